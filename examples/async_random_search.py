"""Takes about 2 minutes: asynchronous random search of LeNet's learning rate and batch size, beside a synchronous one.

The program of "Dive into Deep Learning" 19.3. Two workers run trials; asynchronously each gets its next trial as soon
as it is free, synchronously it waits for the other one. With a GPU for each worker, trials run there. The tuner prints
trials as they begin and end, a table at intervals, and the resource summary; four pictures show the rest. Needs no
download: the images are scikit-learn's digits.
"""

from pathlib import Path

import torch

from fanwise.plot import save_figure, workers
from fanwise.tune import (
    FIFO,
    Experiment,
    StoppingCriterion,
    Tuner,
    load_experiment,
    lograndint,
    loguniform,
    report,
)
from fanwise.zoo import LeNet, digits, error_rate, train_epoch

SECONDS = 60.0  # of each search
N_WORKERS = 2
MAX_EPOCHS = 25
PRINT_INTERVAL_S = 20.0
SEED = 31415927
OUT = Path("async-random-search")


def train_lenet(learning_rate: float, batch_size: int, max_epochs: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = digits().standardized()  # with momentum, what the sigmoids need to leave chance on 1,438 images
    images, labels = data.train_images.to(device), data.train_labels.to(device)
    test_images, test_labels = data.test_images.to(device), data.test_labels.to(device)
    model = LeNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum=0.8)
    for epoch in range(1, max_epochs + 1):
        train_epoch(model, optimizer, images, labels, batch_size)
        report(epoch=epoch, validation_error=error_rate(model, test_images, test_labels))


def search(asynchronous: bool) -> Experiment:
    tuner = Tuner(
        train_lenet,
        # The book's randint(32, 256) is too narrow here: with so few images all trials would take about the same time.
        {"learning_rate": loguniform(1e-2, 1), "batch_size": lograndint(4, 256), "max_epochs": MAX_EPOCHS},
        FIFO(
            metric="validation_error",
            mode="min",
            points_to_evaluate=[{"learning_rate": 0.1, "batch_size": 128}],
            random_seed=SEED,  # so that both searches try the same configurations, in the same order
        ),
        StoppingCriterion(max_wallclock_time=SECONDS),
        n_workers=N_WORKERS,
        print_update_interval=PRINT_INTERVAL_S,
        asynchronous=asynchronous,
    )
    tuner.run()
    return load_experiment(tuner.name)  # as any program can, also while the search runs


print(f"Two searches of {SECONDS:g} s each, first a synchronous one; then pictures in {OUT}/.", flush=True)
synchronous, asynchronous = search(False), search(True)
for label, experiment in (("synchronous", synchronous), ("asynchronous", asynchronous)):
    print(f"{label}: {len(experiment.trials)} trials in {SECONDS:g} s, best {experiment.best}")
    print(f"  worker utilization {experiment.utilization or 0.0:.1%}; kept in {experiment.path}")

print("drawing")
OUT.mkdir(exist_ok=True)
both = workers(synchronous.search_data(), asynchronous.search_data(), labels=["synchronous", "asynchronous"])
print(save_figure(both, OUT / "workers.png"))  # Figure 19.3.1 of the book, measured
print(save_figure(asynchronous.plot(), OUT / "incumbent.png"))
print(save_figure(asynchronous.plot_learning_curves(), OUT / "learning-curves-asynchronous.png"))
print(save_figure(synchronous.plot_learning_curves(), OUT / "learning-curves-synchronous.png"))
