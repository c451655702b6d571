"""Takes about 1 minute: population-based training of LeNet, where the networks of a search learn from each other.

Six networks train on scikit-learn's digits, two at a time. After every few epochs one of the worst stops, and a clone
of one of the best goes on in its place, from that one's checkpoint, with hyperparameters that were changed a little. So
the learning rate becomes a schedule that nobody wrote down. The line of the best network is printed at the end.
"""

from pathlib import Path

import torch

from fanwise.plot import save_figure
from fanwise.tune import (
    PBT,
    StoppingCriterion,
    Tuner,
    from_iter,
    load_checkpoint,
    loguniform,
    report,
)
from fanwise.zoo import LeNet, digits, error_rate, train_epoch

POPULATION = 6
MAX_EPOCHS = 20
INTERVAL = 4  # epochs between two comparisons
N_WORKERS = 2
SEED = 31415927
PICTURE = "population-based.png"


def train_lenet(learning_rate: float, weight_decay: float, max_epochs: int) -> None:
    data, model = digits().standardized(), LeNet()
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=weight_decay)
    folder = load_checkpoint()
    if folder is not None:
        state = torch.load(folder / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        # A clone has the state of another trial: its weights are wanted, its hyperparameters are not.
        optimizer.param_groups[0].update(lr=learning_rate, weight_decay=weight_decay)

    def save(folder: Path) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")

    for epoch in range(from_iter() + 1, max_epochs + 1):
        train_epoch(model, optimizer, data.train_images, data.train_labels, 64)
        error = error_rate(model, data.test_images, data.test_labels)
        report(epoch=epoch, validation_error=error, checkpoint=save)


tuner = Tuner(
    train_lenet,
    {"learning_rate": loguniform(1e-4, 3e-2), "weight_decay": loguniform(1e-3, 1), "max_epochs": MAX_EPOCHS},
    PBT(
        metric="validation_error",
        resource_attr="epoch",
        max_resource_attr="max_epochs",
        population_size=POPULATION,
        perturbation_interval=INTERVAL,
        random_seed=SEED,
    ),
    StoppingCriterion(max_wallclock_time=600),  # it ends by itself when every network has been trained
    n_workers=N_WORKERS,
)
print(f"{POPULATION} networks for {MAX_EPOCHS} epochs on {N_WORKERS} workers; then a picture.", flush=True)
experiment = tuner.run()

best, trials = experiment.best, experiment.trials.set_index("trial_id")
assert best is not None, "trials have reported"
ancestors = [best.trial_id]
while trials["source"][ancestors[0]] >= 0:  # NaN for a trial that is not a clone
    ancestors.insert(0, int(trials["source"][ancestors[0]]))
starts = experiment.results.groupby("trial_id")["epoch"].min()
print(f"{len(trials)} trials; the best error is {best.value:.4f}. How that network was trained:")
for trial_id in ancestors:
    rate, decay = trials.loc[trial_id, ["config_learning_rate", "config_weight_decay"]]
    print(f"  from epoch {starts[trial_id]:2} as trial {trial_id}: learning rate {rate:.4f}, weight decay {decay:.4f}")
print(save_figure(experiment.plot_rungs(), PICTURE))  # who went on after each interval, and who was replaced
