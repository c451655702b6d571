"""What is searched: a table of learning curves, with its best and median values and the time of a training.

The numbers are losses: a smaller one is better. A search that is asked for a configuration which the table does not
have gets the curve of the nearest (see `CurveTable`), so no search can be better than the table's best value.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from curve_tables import fcnet_final, lcbench_curves
from measuring import ROOT

from fanwise.tune import choice, randint, uniform
from fanwise.tune.searchers import Mode
from fanwise.tune.simulate import CurveTable, from_frame

DATA = Path(os.environ.get("BENCHMARK_DATA", ROOT.parent / "shared" / "data"))
_KINDS = {
    "lcbench": ("lcbench-curves/task_*.npz", "val_accuracy", "max", lcbench_curves),
    "fcnet": ("fcnet-final/*.npz", "val_mse", "min", fcnet_final),
}


@dataclass(frozen=True, slots=True)
class Task:
    """A table, and what is known of it.

    Args:
        name: unique, in all results.
        best: the least loss of all reports of the table.
        median: the median over the configurations of their least loss.
        training_s: median seconds of a whole training.
        max_resource: where a training ends.
        has_curves: there are reports before the end, so that trials can be stopped early.
    """

    name: str
    table: CurveTable
    metric: str
    mode: Mode
    best: float
    median: float
    training_s: float
    max_resource: int
    has_curves: bool


# C: configurations, R: reports of each
def task(name: str, table: CurveTable, metric: str, mode: Mode, *, values_CR: Any, elapsed_CR: Any) -> Task:
    """A task from a table and the arrays that it was made of. A curve ends before its first NaN in `elapsed_CR`."""
    elapsed_CR = np.maximum.accumulate(np.asarray(elapsed_CR, np.float64), axis=1)
    losses_CR: npt.NDArray[np.float64] = np.asarray(values_CR, np.float64) * (1.0 if mode == "min" else -1.0)
    losses_CR = np.where(np.isnan(elapsed_CR) | np.isnan(losses_CR), np.inf, losses_CR)
    least_C = losses_CR.min(axis=1)
    constants = table.space.constants
    return Task(
        name,
        table,
        metric,
        mode,
        best=float(least_C.min()),
        median=float(np.median(least_C)),
        training_s=float(np.median(np.nanmax(elapsed_CR, axis=1))),
        max_resource=int(constants.get("max_epochs", losses_CR.shape[1])),  # type: ignore[call-overload]  # a number
        has_curves=losses_CR.shape[1] > 1,
    )


def names(data: Path = DATA) -> list[str]:
    """The tables of a folder: "lcbench/3945", "fcnet/protein_structure", ..."""
    found = [
        f"{kind}/{path.stem.removeprefix('task_')}"
        for kind, (pattern, *_) in _KINDS.items()
        for path in data.glob(pattern)
    ]
    return sorted(found)


@cache
def named(name: str, data: Path = DATA) -> Task:
    """A task by one of `names`."""
    kind, _, stem = name.partition("/")
    pattern, metric, mode, reader = _KINDS[kind]
    path = data / pattern.replace("*", stem)
    table = reader(path)
    with np.load(path) as arrays:
        values_CR = arrays["val_accuracy"] if kind == "lcbench" else arrays["val_mse"].mean(axis=1)[:, None]
        elapsed_CR = arrays["elapsed_s"] if kind == "lcbench" else np.full(values_CR.shape, 100.0)
    return task(name, table, metric, mode, values_CR=values_CR, elapsed_CR=elapsed_CR)  # type: ignore[arg-type]


@cache
def of_csv(path: Path, hyperparameters: Sequence[str], metric: str, mode: Mode, resource: str, elapsed: str) -> Task:
    """A task from a file of a user: a row for each report, as `from_frame` takes them."""
    frame = pd.read_csv(path)
    columns = list(hyperparameters)
    space = {name: _smallest_domain(frame[name].unique().tolist()) for name in columns}
    table = from_frame(frame, space, metrics=metric, resource_attr=resource, elapsed_attr=elapsed)
    curves = frame.pivot_table(index=columns, columns=resource, values=[metric, elapsed], aggfunc="last")
    return task(path.stem, table, metric, mode, values_CR=curves[metric], elapsed_CR=curves[elapsed])


def _smallest_domain(values: list[Any]) -> object:
    """Return the smallest domain that contains the values, or the constant if there is only one."""
    if len(values) == 1:
        return values[0]
    if all(type(value) is int for value in values):
        return randint(min(values), max(values))
    if all(type(value) in (int, float) for value in values):
        return uniform(min(values), max(values))
    return choice(values)
