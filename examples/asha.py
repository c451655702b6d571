"""Takes about 2 minutes: asynchronous successive halving, beside random search on the same budget.

Section 19.5 of "Dive into Deep Learning", on a perceptron with dropout, which learns something in few epochs. A trial
reports every epoch; at 2, 4, 8 and 16 epochs it is compared with those that have got there before, and stopped unless
it is among the best half. Nobody waits for anybody: a worker whose trial was stopped starts the next one at once. The
two pictures show how much is tried instead of trained to the end.
"""

import torch

from fanwise import Pool
from fanwise.plot import SearchData, incumbent, save_figure
from fanwise.tune import ASHA, FIFO, Scheduler, StoppingCriterion, Tuner, loguniform, randint, report
from fanwise.zoo import DropoutMLP, digits, error_rate, train_epoch

SECONDS = 45.0  # of each search
N_WORKERS = 2
MAX_EPOCHS = 25
GRACE_PERIOD, REDUCTION_FACTOR = 2, 2
SEED = 31415927


def train_mlp(learning_rate: float, batch_size: int, max_epochs: int) -> None:
    data, model = digits(), DropoutMLP(256, 256, 0.5, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    for epoch in range(1, max_epochs + 1):
        train_epoch(model, optimizer, data.train_images, data.train_labels, batch_size)
        report(epoch=epoch, validation_error=error_rate(model, data.test_images, data.test_labels))


space = {"learning_rate": loguniform(1e-3, 1), "batch_size": randint(32, 256), "max_epochs": MAX_EPOCHS}
first: dict[str, object] = {"learning_rate": 0.1, "batch_size": 128}
schedulers: dict[str, Scheduler] = {
    "random search": FIFO(metric="validation_error", points_to_evaluate=[first], random_seed=SEED),
    "ASHA": ASHA(
        metric="validation_error",
        resource_attr="epoch",
        max_resource_attr="max_epochs",
        grace_period=GRACE_PERIOD,
        reduction_factor=REDUCTION_FACTOR,
        points_to_evaluate=[first],
        random_seed=SEED,
    ),
}

print(f"2 searches of {SECONDS:g} s each on {N_WORKERS} workers, then two pictures.", flush=True)
searches: list[SearchData] = []
with Pool(cpus=N_WORKERS) as pool:  # one pool for both, so that both find warm workers
    pool.submit(train_mlp, **first, max_epochs=1).result()  # its warm process has all modules now
    for name, scheduler in schedulers.items():
        stop = StoppingCriterion(max_wallclock_time=SECONDS)
        tuner = Tuner(train_mlp, space, scheduler, stop, n_workers=N_WORKERS, pool=pool, print_update_interval=20)
        experiment = tuner.run()
        searches.append(experiment.search_data())
        trials, epochs = len(experiment.trials), len(experiment.results)
        print(f"{name}: {trials} trials, {epochs} epochs, best {experiment.best}", flush=True)
print(save_figure(experiment.plot_learning_curves(), "asha-learning-curves.png"))
print(save_figure(incumbent(*searches, labels=list(schedulers)), "asha-incumbents.png"))
