"""Takes about 10 seconds: what ASHA would save you on 100 workers, out of a table of learning curves. No training.

The table is a data frame with a row for each report: your own logs, or as here made up by a formula, 300 curves that
cross. Random search and two kinds of ASHA search it on a virtual clock, as they would search the real thing, each with
several seeds; trials take a while to start, some workers are slow, and trials crash and go on from their checkpoints.
"""

import random
import statistics
from typing import Any

import pandas as pd

from fanwise.tune import FIFO, Scheduler, StoppingCriterion, loguniform, uniform
from fanwise.tune.schedulers import ASHA
from fanwise.tune.simulate import Faults, SimulatedSearch, from_frame, simulate

CONFIGURATIONS = 300
EPOCHS = 81
HOURS = 2.0  # virtual, of each search
SEEDS = range(3)
N_WORKERS = 100


def logs() -> pd.DataFrame:
    """A row for each epoch: a large learning rate is fast at first, one of about 0.03 gets farthest."""
    chance, rows = random.Random(0), []
    for _ in range(CONFIGURATIONS):
        power, dropout = chance.uniform(-4, 0), chance.uniform(0, 0.9)
        rate, floor = 10**power, 0.05 + 0.1 * abs(power + 1.5) + 0.1 * abs(dropout - 0.3)
        epoch_s = chance.uniform(20, 40) * (1 + dropout)
        for epoch in range(1, EPOCHS + 1):
            error = floor + (0.9 - floor) / (1 + (1 + 3 * rate) * epoch)
            rows.append((rate, dropout, epoch, error, epoch * epoch_s))
    return pd.DataFrame(rows, columns=["learning_rate", "dropout", "epoch", "validation_error", "seconds"])


def mean_error(searches: list[SimulatedSearch], time_s: float) -> str:
    errors = [error for search in searches if (error := search.best_value_at(time_s)) is not None]
    return f"{statistics.fmean(errors):12.4f}" if errors else f"{'-':>12}"


table = from_frame(
    logs(),
    {"learning_rate": loguniform(1e-4, 1), "dropout": uniform(0, 0.9)},
    metrics="validation_error",
    resource_attr="epoch",
    elapsed_attr="seconds",
)
asha: dict[str, Any] = {
    "metric": "validation_error",
    "resource_attr": "epoch",
    "max_resource_attr": "max_epochs",
}  # for both kinds
schedulers: dict[str, Scheduler] = {
    "random search": FIFO(metric="validation_error"),
    "ASHA, stopping": ASHA(**asha, reduction_factor=3),
    "ASHA, promotion": ASHA(**asha, reduction_factor=3, type="promotion"),
}
faults = Faults(crashes_per_hour=0.2, slowdown=lambda chance: 1.0 + (chance.random() < 0.1))

print(f"{len(SEEDS)} searches of {HOURS:g} virtual hours on {N_WORKERS} workers with each scheduler; the error, mean:")
times_s = [HOURS * 3600 * part for part in (0.1, 0.25, 0.5, 1.0)]
print(f"{'':16}" + "".join(f"{time_s / 60:8.0f} min" for time_s in times_s) + "   trials   workers busy")
for name, scheduler in schedulers.items():
    stop = StoppingCriterion(max_wallclock_time=HOURS * 3600)
    settings: dict[str, Any] = {
        "n_workers": N_WORKERS,
        "startup_s": 5.0,
        "faults": faults,
        "retries": 2,
        "max_equal_failures": None,
    }
    searches = [simulate(scheduler, table, stop, seed=seed, **settings) for seed in SEEDS]
    trials = sum(search.num_trials_started for search in searches) // len(searches)
    busy = sum(search.utilization for search in searches) / len(searches)
    print(f"{name:16}" + "".join(mean_error(searches, time_s) for time_s in times_s) + f"{trials:9}{busy:14.1%}")
