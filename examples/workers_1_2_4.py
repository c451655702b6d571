"""Takes about 1 minute: the same random search with 1, 2 and 4 workers, to see how the time falls.

Exercise 1 of section 19.3 of "Dive into Deep Learning". Each search tries the same configurations of a perceptron with
dropout, because they are made from seed and number. Random search needs no result of an earlier trial, so twice the
workers take half the time, up to as many as there are CPUs.
"""

import os

import torch

from fanwise import Pool
from fanwise.plot import SearchData, incumbent, save_figure
from fanwise.tune import FIFO, StoppingCriterion, Tuner, loguniform, randint, report
from fanwise.zoo import DropoutMLP, digits, error_rate, train_epoch

WORKERS = (1, 2, 4)
REPETITIONS = 2
TRIALS = 12
MAX_EPOCHS = 10
PICTURE = "workers-1-2-4.png"


def train_mlp(learning_rate: float, batch_size: int, max_epochs: int) -> None:
    torch.set_num_threads(1)  # each trial has one CPU, however many run
    data, model = digits(), DropoutMLP(256, 256, 0.5, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    for epoch in range(1, max_epochs + 1):
        train_epoch(model, optimizer, data.train_images, data.train_labels, batch_size)
        report(epoch=epoch, validation_error=error_rate(model, data.test_images, data.test_labels))


space = {"learning_rate": loguniform(1e-3, 1), "batch_size": randint(16, 384), "max_epochs": MAX_EPOCHS}
stop = StoppingCriterion(max_num_trials_started=TRIALS)
times_s: dict[int, list[float]] = {n_workers: [] for n_workers in WORKERS}
searches: list[SearchData] = []
labels: list[str] = []

print(f"{len(WORKERS) * REPETITIONS} searches of {TRIALS} trials on {os.cpu_count()} CPUs, then a picture.", flush=True)
with Pool(cpus=max(WORKERS)) as pool:  # one pool for all searches
    pool.submit(train_mlp, 0.1, 256, max_epochs=1).result()  # its warm process has all modules now: no search waits
    for seed in range(REPETITIONS):
        for n_workers in WORKERS:
            scheduler = FIFO(metric="validation_error", random_seed=seed)
            experiment = Tuner(train_mlp, space, scheduler, stop, n_workers=n_workers, pool=pool, quiet=True).run()
            searches.append(experiment.search_data())
            labels.append(f"n_workers={n_workers}")
            times_s[n_workers].append(float(experiment.trials["ended_s"].max()))
for n_workers, times in times_s.items():
    mean_s = sum(times) / REPETITIONS
    speedup = sum(times_s[WORKERS[0]]) / sum(times)
    print(f"n_workers={n_workers}: {mean_s:.1f} s for {TRIALS} trials, {speedup:.2f} times as fast")
print(save_figure(incumbent(*searches, labels=labels), PICTURE))
