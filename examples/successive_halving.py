"""Takes about 20 seconds: successive halving, with trials that pause and go on from a checkpoint.

Section 19.4 of "Dive into Deep Learning". In each round 8 trials train for 2 epochs, the best 4 of them go on to 4, the
best 2 to 8, the best to 10. A trial that waits for its rung to be complete gives its worker back; because it saves a
checkpoint it goes on from there, so a round is 34 epochs and not 58. Needs no download: the images are scikit-learn's.
"""

from pathlib import Path

import torch

from fanwise.plot import save_figure
from fanwise.tune import (
    StoppingCriterion,
    SuccessiveHalving,
    Tuner,
    from_iter,
    load_checkpoint,
    loguniform,
    randint,
    report,
)
from fanwise.zoo import DropoutMLP, digits, error_rate, train_epoch

ROUNDS = 2
PER_ROUND = 8  # trials that begin a round, for the levels below: 2, 4, 8 and 10
R_MIN, R_MAX, ETA = 2, 10, 2  # epochs at the first level and at the last; one trial in two goes on
N_WORKERS = 2
PICTURE = "successive-halving.png"


def train_mlp(learning_rate: float, batch_size: int, max_epochs: int) -> None:
    data, model = digits(), DropoutMLP(256, 256, 0.5, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    folder = load_checkpoint()
    if folder is not None:
        state = torch.load(folder / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def save(folder: Path) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")

    for epoch in range(from_iter() + 1, max_epochs + 1):  # one report an epoch
        train_epoch(model, optimizer, data.train_images, data.train_labels, batch_size)
        error = error_rate(model, data.test_images, data.test_labels)
        report(epoch=epoch, validation_error=error, checkpoint=save)


tuner = Tuner(
    train_mlp,
    {"learning_rate": loguniform(1e-3, 1), "batch_size": randint(32, 256), "max_epochs": R_MAX},
    SuccessiveHalving(
        metric="validation_error",
        resource_attr="epoch",
        max_resource_attr="max_epochs",
        grace_period=R_MIN,
        reduction_factor=ETA,
        points_to_evaluate=[{"learning_rate": 0.1, "batch_size": 128}],
    ),
    StoppingCriterion(max_num_trials_completed=ROUNDS),  # of each round one trial trains to its end
    n_workers=N_WORKERS,
)
print(f"{ROUNDS} rounds of successive halving on {N_WORKERS} workers, then a picture.", flush=True)
experiment = tuner.run()

reports = experiment.results
in_rounds = reports[reports["trial_id"] < PER_ROUND * ROUNDS]  # a worker that is free begins the next round already
for epoch, count in in_rounds["epoch"].value_counts().sort_index().items():
    print(f"epoch {epoch:2}: {count} trials")
print(f"{len(in_rounds)} epochs in {ROUNDS} rounds; best {experiment.best}")
print(save_figure(experiment.plot_learning_curves(), PICTURE))
