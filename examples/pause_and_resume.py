"""Takes about 1 minute: a search is killed in the middle, and goes on as if nothing had happened.

Asynchronous successive halving pauses trials and takes up the promising ones again, each from its last checkpoint. The
process that runs the search is killed, as a power cut would do it: no handler runs. `Tuner.resume` reads the record,
decides everything again that was decided, and goes on, with more workers than before: no report is lost, and no trial
that has a checkpoint begins from scratch. Needs no download: the images are scikit-learn's digits.
"""

import multiprocessing
from pathlib import Path

import torch

from fanwise.plot import save_figure
from fanwise.tune import (
    ASHA,
    StoppingCriterion,
    Tuner,
    from_iter,
    load_checkpoint,
    load_experiment,
    loguniform,
    randint,
    report,
)
from fanwise.zoo import LeNet, digits, error_rate, train_epoch

KILL_AFTER_S = 15.0
TRIALS = 30
MAX_EPOCHS = 9
WORKERS_BEFORE, WORKERS_AFTER = 2, 3
PICTURE = "pause-and-resume.png"


def train_lenet(learning_rate: float, batch_size: int, max_epochs: int) -> None:
    data, model = digits().standardized(), LeNet()
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    folder = load_checkpoint()
    if folder is not None:
        state = torch.load(folder / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def save(folder: Path) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")

    for epoch in range(from_iter() + 1, max_epochs + 1):
        train_epoch(model, optimizer, data.train_images, data.train_labels, batch_size)
        error = error_rate(model, data.test_images, data.test_labels)
        report(epoch=epoch, validation_error=error, checkpoint=save)


tuner = Tuner(
    train_lenet,
    {"learning_rate": loguniform(1e-4, 3e-2), "batch_size": randint(32, 256), "max_epochs": MAX_EPOCHS},
    ASHA(metric="validation_error", resource_attr="epoch", max_resource_attr="max_epochs", type="promotion"),
    StoppingCriterion(max_num_trials_started=TRIALS),
    n_workers=WORKERS_BEFORE,
)
print(f"A search with {WORKERS_BEFORE} workers, which is killed after {KILL_AFTER_S:g} s.", flush=True)
victim = multiprocessing.get_context("fork").Process(target=tuner.run)
victim.start()
victim.join(KILL_AFTER_S)
victim.kill()
victim.join()

before = load_experiment(tuner.name)
kept = len(before.results)
print(f"{before.state}: {len(before.trials)} trials and {kept} epochs are on record. It goes on:", flush=True)
experiment = Tuner.resume(tuner.name, n_workers=WORKERS_AFTER).run()

num_resumed = experiment.trials["attempt"].sum()
print(f"trials were resumed {num_resumed} times; {len(experiment.trials)} trials, {len(experiment.results)} epochs")
print(f"best {experiment.best}")
print(save_figure(experiment.plot_workers(), PICTURE))  # bars: paused; triangles: resumed
