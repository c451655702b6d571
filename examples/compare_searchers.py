"""Takes about 2 minutes: random search beside Bayesian optimization, with 1, 2 and 4 workers, a few times each.

Exercise 1 of section 19.3 of "Dive into Deep Learning": the perceptron with dropout of exercise 4.6 has two widths, two
dropout probabilities, a learning rate and a batch size. Every search tries the same number of configurations. Random
search chooses them blindly; Bayesian optimization, here with a forest as its model, from what came out, and with more
workers it must choose before it knows the last results. The picture has the best error so far over time: means, and how
far the repetitions are apart.
"""

import torch

from fanwise import Pool
from fanwise.plot import SearchData, incumbent, save_figure
from fanwise.tune import StoppingCriterion, Tuner, lograndint, loguniform, report, uniform
from fanwise.zoo import DropoutMLP, digits, error_rate, train_epoch

WORKERS = (1, 2, 4)
REPETITIONS = 3
TRIALS = 24
MAX_EPOCHS = 5
PICTURE = "compare-searchers.png"


def train_mlp(
    learning_rate: float,
    batch_size: int,
    max_epochs: int,
    width_1: int,
    width_2: int,
    dropout_1: float,
    dropout_2: float,
) -> None:
    torch.set_num_threads(1)  # each trial has one CPU, however many run
    data, model = digits(), DropoutMLP(width_1, width_2, dropout_1, dropout_2)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    for epoch in range(1, max_epochs + 1):
        train_epoch(model, optimizer, data.train_images, data.train_labels, batch_size)
        report(epoch=epoch, validation_error=error_rate(model, data.test_images, data.test_labels))


space = {
    "learning_rate": loguniform(1e-3, 1),
    "batch_size": lograndint(16, 384),
    "max_epochs": MAX_EPOCHS,
    "width_1": lograndint(16, 512),
    "width_2": lograndint(16, 512),
    "dropout_1": uniform(0, 0.9),
    "dropout_2": uniform(0, 0.9),
}
searchers = {"random search": "random", "Bayesian optimization": "forest"}
stop = StoppingCriterion(max_num_trials_started=TRIALS)
searches: list[SearchData] = []
labels: list[str] = []

print(f"{2 * len(WORKERS) * REPETITIONS} searches of {TRIALS} trials, then a picture.", flush=True)
with Pool(cpus=max(WORKERS)) as pool:  # one pool for all searches
    pool.submit(train_mlp, 0.1, 256, 1, 16, 16, 0.5, 0.5).result()  # its warm process has all modules now
    for n_workers in WORKERS:
        for name, searcher in searchers.items():
            bests: list[float] = []
            for seed in range(REPETITIONS):
                experiment = Tuner(
                    train_mlp,
                    space,
                    metric="validation_error",
                    searcher=searcher,
                    stop=stop,
                    n_workers=n_workers,
                    random_seed=seed,
                    pool=pool,
                    quiet=True,
                ).run()
                searches.append(experiment.search_data())
                labels.append(f"{name}, {n_workers} workers" if n_workers > 1 else f"{name}, 1 worker")
                bests.append(float(experiment.results["validation_error"].min()))
            print(f"{labels[-1]}: best errors {', '.join(f'{best:.4f}' for best in bests)}", flush=True)
print(save_figure(incumbent(*searches, labels=labels), PICTURE))
