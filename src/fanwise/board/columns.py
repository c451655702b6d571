"""The reports of a search as arrays, for what looks at all of them at once: half a million in some 100 ms.

    SearchState --columns_of--> Columns --best_of_trials--> each trial's best value
                                    --incumbents------> the reports that were better than all before them
                                    --curves----------> the reports of some trials, thinned
                                    --crowd-----------> what the reports of all trials were like

Left out are reports that do not count (void, repeated) and those without a finite number as metric. What violates a
constraint is drawn, and is never the best.
"""

# N: reports that count

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..tune.record.state import SearchState

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BINS = 40  # of the crowd
_MOST_POINTS_A_CURVE = 800  # a chart is hardly wider


@dataclass(frozen=True, slots=True)
class DrawnCurve:
    """Reports of one trial: seconds since the search began, which report of the trial, the value."""

    trial_id: int
    times_s: list[float]
    iters: list[int]
    values: list[float]


@final
class Columns:
    """See the module; made by `columns_of`. `losses_N`: smaller is better; infinite where a constraint is violated."""

    def __init__(
        self,
        *,
        trial_ids_N: Ints,
        times_N: Floats,
        iters_N: Ints,
        values_N: Floats,
        losses_N: Floats,
        num_left_out: int,
    ) -> None:
        self.trial_ids_N = trial_ids_N
        self.times_N = times_N
        self.iters_N = iters_N
        self.values_N = values_N
        self.losses_N = losses_N
        self.num_left_out = num_left_out
        # The rows of each trial together, in the order of reporting.
        self._order_N = np.argsort(trial_ids_N, kind="stable")
        ids, begins = np.unique(trial_ids_N[self._order_N], return_index=True)
        self.ids: list[int] = ids.tolist()
        self._begins = begins
        ends = np.append(begins, len(trial_ids_N))[1:]
        self._rows = {one: slice(*pair) for one, *pair in zip(self.ids, begins.tolist(), ends.tolist(), strict=True)}

    def best_losses(self) -> dict[int, float]:
        """Each trial's smallest loss; infinite for one that violated a constraint in all its reports."""
        if not self.ids:
            return {}
        best = np.minimum.reduceat(self.losses_N[self._order_N], self._begins)
        return dict(zip(self.ids, best.tolist(), strict=True))

    def incumbents(self) -> list[int]:
        """The rows that were better than all before them."""
        if not len(self.losses_N):
            return []
        best_N = np.minimum.accumulate(self.losses_N)
        before_N = np.concatenate([[np.inf], best_N[:-1]])
        found: list[int] = np.flatnonzero(self.losses_N < before_N).tolist()
        return found

    def curves(self, trials: Sequence[int], most_points: int) -> list[DrawnCurve]:
        """The curves of these trials, of `most_points` together or a few more."""
        rows = [self._order_N[self._rows[trial_id]] for trial_id in trials]
        total = sum(map(len, rows))
        found = []
        for trial_id, its in zip(trials, rows, strict=True):
            share = len(its) if total <= most_points else math.ceil(most_points * len(its) / total)
            kept = its[thin(self.values_N[its], min(share, _MOST_POINTS_A_CURVE))]
            found.append(
                DrawnCurve(trial_id, *(one[kept].tolist() for one in (self.times_N, self.iters_N, self.values_N)))
            )
        return found

    def crowd(self) -> dict[str, list[float]]:
        """Median and the middle 80 % of all reports, in bins of time that are not empty."""
        crowd: dict[str, list[float]] = {"t": [], "median": [], "low": [], "high": []}
        if not len(self.times_N):
            return crowd
        begin_s, end_s = float(self.times_N.min()), float(self.times_N.max())
        width_s = (end_s - begin_s) / _BINS or 1.0
        bins_N = np.minimum(((self.times_N - begin_s) / width_s).astype(np.int64), _BINS - 1)
        order_N = np.argsort(bins_N, kind="stable")
        numbers, begins = np.unique(bins_N[order_N], return_index=True)
        for number, values in zip(numbers.tolist(), np.split(self.values_N[order_N], begins[1:]), strict=True):
            low, median, high = np.quantile(values, [0.1, 0.5, 0.9]).tolist()
            crowd["t"].append(begin_s + (number + 0.5) * width_s)
            crowd["median"].append(median)
            crowd["low"].append(low)
            crowd["high"].append(high)
        return crowd


def columns_of(history: SearchState) -> Columns:
    """The reports that count, with the search's first objective as value."""
    reports, count = history.reports, len(history.reports)
    column: Sequence[Any] = reports.values.get(history.metric) or [None] * count  # Any: what was reported
    values_N = np.fromiter(map(_number, column), np.float64, count)
    counts_N = np.fromiter(history.counted_mask(), np.bool_, count)
    kept_N = counts_N & np.isfinite(values_N)
    losses_N = values_N if history.mode == "min" else -values_N
    if history.constraints:
        beyond_N = np.fromiter(history.infeasibilities(), np.float64, count)
        losses_N = np.where(beyond_N == 0.0, losses_N, np.inf)
    return Columns(
        trial_ids_N=np.array(reports.trial_ids, np.int64)[kept_N],
        times_N=np.array(reports.t_s, np.float64)[kept_N],
        iters_N=np.array(reports.iters, np.int64)[kept_N],
        values_N=values_N[kept_N],
        losses_N=losses_N[kept_N],
        num_left_out=int((counts_N & ~np.isfinite(values_N)).sum()),
    )


def thin(values_N: Floats, most: int) -> Ints:
    """Places in `values_N`, upwards, at most `most` of them (4 at the least).

    Both ends are kept, and the smallest and largest value of each of the equal stretches between them, so a spike that
    lasts for one report is still there: nothing is averaged away. No value is NaN.

    >>> thin(np.array([5.0, 5.0, 9.0, 5.0, 1.0, 5.0, 5.0]), 4).tolist()
    [0, 2, 4, 6]
    """
    count, most = len(values_N), max(4, most)
    if count <= most:
        return np.arange(count)
    stretches = (most - 2) // 2
    edges = 1 + np.arange(stretches + 1) * (count - 2) // stretches
    begins, inner_N = edges[:-1] - 1, values_N[1:-1]
    numbers = np.repeat(np.arange(stretches), np.diff(edges))
    kept = [np.array([0, count - 1])]
    for extremes in (np.minimum.reduceat(inner_N, begins), np.maximum.reduceat(inner_N, begins)):
        places = np.flatnonzero(inner_N == extremes[numbers])
        kept.append(1 + places[np.unique(numbers[places], return_index=True)[1]])  # the first of equal ones
    return np.unique(np.concatenate(kept))


def _number(value: object) -> float:
    if type(value) is float:
        return value
    try:
        return float(value) if isinstance(value, int) else math.nan
    except OverflowError:
        return math.nan
