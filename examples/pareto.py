"""Takes about 2 minutes: networks that are both small and good, found by random search and by Bayesian optimization.

Two objectives: the error, and the size, here the logarithm of the number of weights. No network is best in both; what
a search finds is a front, the networks that no other one beats in both. A constraint comes on top: networks that are
wrong more often than one time in five are of no use. The searches are compared by the hypervolume, the area that a
front dominates. Picture: the front.
"""

import math
from typing import Any

import torch

from fanwise import Pool
from fanwise.plot import save_figure
from fanwise.tune import StoppingCriterion, Tuner, lograndint, loguniform, uniform
from fanwise.zoo import DropoutMLP, digits, error_rate, train_epoch

TRIALS = 50
MAX_EPOCHS = 10
MAX_ERROR = 0.2
WORST = {"error": MAX_ERROR, "size": 5.5}  # just not good enough any more: from here the area is measured


def train_mlp(
    width_1: int, width_2: int, dropout: float, learning_rate: float, batch_size: int, max_epochs: int
) -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)  # so that networks differ by their configurations only
    data, model = digits(), DropoutMLP(width_1, width_2, dropout, dropout)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    for _ in range(max_epochs):
        train_epoch(model, optimizer, data.train_images, data.train_labels, batch_size)
    num_weights = sum(weight.numel() for weight in model.parameters())
    return {"error": error_rate(model, data.test_images, data.test_labels), "size": math.log10(num_weights)}


space = {
    "width_1": lograndint(4, 256),
    "width_2": lograndint(4, 256),
    "dropout": uniform(0, 0.6),
    "learning_rate": loguniform(1e-2, 0.5),
    "batch_size": lograndint(8, 64),
    "max_epochs": MAX_EPOCHS,
}
about: dict[str, Any] = {
    "metric": ["error", "size"],
    "mode": "min",
    "constraints": [f"error <= {MAX_ERROR}"],
    "random_seed": 0,
}
stop = StoppingCriterion(max_num_trials_started=TRIALS)
experiments = {}

print(f"2 searches of {TRIALS} trials, then a picture.", flush=True)
with Pool(cpus=2) as pool:
    for name, searcher in {"random search": "random", "Bayesian optimization": "forest"}.items():
        tuner = Tuner(train_mlp, space, searcher=searcher, stop=stop, n_workers=2, pool=pool, quiet=True, **about)
        experiment = tuner.run()
        experiments[name] = experiment
        front, area = experiment.pareto(), experiment.hypervolume(WORST)
        print(f"\n{name}: {len(front)} of {len(experiment.trials)} trials on the front, area {area:.3f}")
        print("    error   weights")
        for point in front:
            print(f"   {point.values['error']:.4f}  {10 ** point.values['size']:8.0f}   trial {point.trial_id}")

print()
print(save_figure(experiments["Bayesian optimization"].plot_pareto_front(), "pareto-front.png"))
