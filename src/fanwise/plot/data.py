"""Data of searches for figures, shared by `fanwise.plot` and the board. Nothing here draws.

    SearchData --incumbent_steps-----> improvements of the best value
               --incumbent_curve-----> the best value over time, a step function
               --incumbent_band------> mean and spread over repeated searches
               --best_of_trials------> the best report of each trial
               --curves_by_trial-----> learning curves
               --bin_reports---------> median and spread of all reports over time
               --from_first_objective-> the same search, with times since the first objective started

All times are seconds since the search began. Values that are not finite are not drawn and are never the best. NumPy is
imported when the first search is made, because importing it takes longer than starting a search.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUM_BINS = 60  # time intervals of `bin_reports`


@dataclass(frozen=True, slots=True)
class ReportPoint:
    """A value that a trial reported.

    Attributes:
        t_s: time of the report, in seconds since the search began.
        iter: number of the report in its trial, from 1.
        resource: value of the search's `resource_name`, or None if reports are counted instead.
        decision: answer of the scheduler: "CONTINUE", "STOP" or "PAUSE".
        feasible: whether the report meets all constraints. Other reports are never the best.
    """

    trial_id: int
    t_s: float
    iter: int
    value: float
    resource: float | None = None
    decision: str = "CONTINUE"
    feasible: bool = True

    @property
    def reached(self) -> float:
        """The resource, or the number of reports if there is no resource."""
        return self.iter if self.resource is None else self.resource


@final
class Reports(Collection[ReportPoint]):
    """Reports as NumPy columns, sorted by time. Iterating yields each as a `ReportPoint`.

    Args:
        columns: the attributes of `ReportPoint` in their order, each for all reports.
    """

    def __init__(self, *columns: Iterable[Any]) -> None:
        import numpy as np

        types = (np.int64, np.float64, np.int64, np.float64, np.float64, np.object_, np.bool_)
        arrays: list[NDArray[Any]] = [np.asarray(column, dtype) for column, dtype in zip(columns, types, strict=True)]
        order = np.argsort(arrays[1], kind="stable")
        self.columns = [array[order] for array in arrays]
        self.trial_ids: NDArray[np.int64] = self.columns[0]
        self.times_s: NDArray[np.float64] = self.columns[1]
        self.iters: NDArray[np.int64] = self.columns[2]
        self.values: NDArray[np.float64] = self.columns[3]
        self.feasible: NDArray[np.bool_] = self.columns[6]

    @classmethod
    def from_points(cls, points: Iterable[ReportPoint]) -> "Reports":
        """Return the columns of these reports."""
        rows = map(attrgetter("trial_id", "t_s", "iter", "value", "resource", "decision", "feasible"), points)
        return cls(*(list(zip(*rows, strict=True)) or [()] * 7))

    def __len__(self) -> int:
        return len(self.times_s)

    def __iter__(self) -> Iterator[ReportPoint]:
        return map(_point, *(column.tolist() for column in self.columns))

    def __contains__(self, point: object) -> bool:
        return any(point == report for report in self)

    def point(self, index: int) -> ReportPoint:
        return _point(*(column.item(index) for column in self.columns))

    def shifted(self, seconds: float) -> "Reports":
        """Return the same reports with later times."""
        return Reports(self.trial_ids, self.times_s + seconds, *self.columns[2:])


def _point(
    trial_id: int, t_s: float, iter: int, value: float, resource: float, decision: str, feasible: bool
) -> ReportPoint:
    return ReportPoint(trial_id, t_s, iter, value, None if math.isnan(resource) else resource, decision, feasible)


@dataclass(frozen=True, slots=True)
class Span:
    """The stay of a trial on a worker. Times that have not come yet are None.

    Attributes:
        slot: number of the worker.
        started_s: when the trial got the worker.
        ready_s: when its objective started.
        ended_s: when the search learned that it had ended.
        free_s: when the worker could run another trial.
        objective_s: seconds in the objective as measured in the worker. None if it is running or could not be measured.
    """

    slot: int
    trial_id: int
    started_s: float
    ready_s: float | None
    ended_s: float | None
    free_s: float | None
    status: str
    objective_s: float | None = None


@dataclass(frozen=True, slots=True)
class SearchData:
    """Data of one search, for figures.

    Workers are expected to be busy from `first_objective_s`, when the first objective started, to `stop_s`, after which
    no trial is started. `last_s` is the time of the last event. `windows` lists intervals with a constant number of
    workers, as (begin_s, end_s, number of workers). It is empty if there is only one. `reports` may be in any order.

    Raises:
        ValueError: `mode` is neither "min" nor "max", or `n_workers` is less than 1.
    """

    name: str
    metric: str
    mode: str
    n_workers: int
    asynchronous: bool
    reports: Collection[ReportPoint]
    spans: Sequence[Span]
    first_objective_s: float | None
    stop_s: float | None
    last_s: float
    resource_name: str = "reports of a trial"
    windows: Sequence[tuple[float, float, int]] = ()

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', got {self.mode!r}")
        if self.n_workers < 1:
            raise ValueError(f"n_workers must be at least 1, got {self.n_workers!r}")
        if not isinstance(self.reports, Reports):
            object.__setattr__(self, "reports", Reports.from_points(self.reports))

    @property
    def sign(self) -> float:
        """1 to minimize, -1 to maximize: `sign * value` is a loss."""
        return 1.0 if self.mode == "min" else -1.0


@dataclass(frozen=True, slots=True)
class Curve:
    """The finite values of a trial, in order of time."""

    trial_id: int
    times_s: list[float]
    values: list[float]
    iters: list[int]

    def thinned(self, max_points: int) -> "Curve":
        """Return at most `max_points` of the points, with all extremes (see `thin_curve`)."""
        if len(self.values) <= max_points:
            return self
        indices = thin_curve(self.values, max_points)
        return Curve(
            self.trial_id,
            [self.times_s[i] for i in indices],
            [self.values[i] for i in indices],
            [self.iters[i] for i in indices],
        )


@dataclass(frozen=True, slots=True)
class ReportBins:
    """Median, 10th and 90th percentile of the reports in intervals of time. Intervals without reports are left out."""

    times_s: list[float]
    median: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True, slots=True)
class Band:
    """Mean and spread of the best value of several searches. Each value holds until the next time."""

    times_s: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    n_searches: int


def num_not_finite(search: SearchData) -> int:
    """Return the number of reports with NaN or an infinity."""
    return len(search.reports) - int(_is_finite(search).sum())


def num_infeasible(search: SearchData) -> int:
    """Return the number of finite reports that violate a constraint."""
    return int((_is_finite(search) & ~_columns(search).feasible).sum())


def typical_values(search: SearchData) -> list[float]:
    """Return the finite values without each trial's first, which can be larger by orders of magnitude.

    If all trials have one report, return all finite values.
    """
    curves = curves_by_trial(search)
    later = [value for curve in curves for value in curve.values[1:]]
    return later or [value for curve in curves for value in curve.values]


def from_first_objective(search: SearchData) -> SearchData:
    """Return the search with times since its first objective started, and earlier times cut off at 0.

    Figures use these times because the utilization is measured from there, and because warm workers then give a search
    no lead over others. Return the search unchanged if no objective has started.
    """
    zero_s = search.first_objective_s
    if zero_s is None:
        return search

    def shifted(t_s: float | None) -> float | None:
        return None if t_s is None else t_s - zero_s

    return replace(
        search,
        reports=_columns(search).shifted(-zero_s),
        spans=[
            replace(
                span,
                started_s=max(0.0, span.started_s - zero_s),
                ready_s=shifted(span.ready_s),
                ended_s=shifted(span.ended_s),
                free_s=shifted(span.free_s),
            )
            for span in search.spans
        ],
        first_objective_s=0.0,
        stop_s=shifted(search.stop_s),
        windows=tuple((begin_s - zero_s, end_s - zero_s, n_workers) for begin_s, end_s, n_workers in search.windows),
        last_s=search.last_s - zero_s,
    )


def best_of_trials(search: SearchData) -> dict[int, ReportPoint]:
    """Return {trial id: its best report}, the first of equal ones.

    Trials without a finite feasible report are left out.
    """
    import numpy as np

    losses, trial_ids = _losses(search), _columns(search).trial_ids
    order = np.lexsort((losses, trial_ids))  # stable, so the first of equal ones precedes the others
    best = order[np.unique(trial_ids[order], return_index=True)[1]]
    return {int(trial_ids[i]): _columns(search).point(i) for i in best[np.isfinite(losses[best])].tolist()}


def incumbent_steps(search: SearchData) -> list[ReportPoint]:
    """Return the reports that were better than all earlier ones, in order of time."""
    import numpy as np

    losses = _losses(search)
    best_before = np.minimum.accumulate(np.concatenate([[np.inf], losses]))[:-1]
    return [_columns(search).point(i) for i in np.flatnonzero(losses < best_before).tolist()]


def best_point(search: SearchData) -> ReportPoint | None:
    """Return the best report, the first of equal ones, or None if no report is finite and feasible."""
    steps = incumbent_steps(search)
    return steps[-1] if steps else None


def incumbent_curve(search: SearchData) -> tuple[list[float], list[float]]:
    """Return times and values of the best value so far. The last value is repeated at `last_s`."""
    steps = incumbent_steps(search)
    if not steps:
        return [], []
    times_s = [step.t_s for step in steps]
    values = [step.value for step in steps]
    return [*times_s, max(search.last_s, times_s[-1])], [*values, values[-1]]


def incumbent_band(searches: Sequence[SearchData]) -> Band | None:
    """Return mean and spread of the best value over repetitions of a search.

    The band has all times at which a best value changes, from the time when all searches have one. A search that has
    ended keeps its best value. The spread is one sample standard deviation to each side, limited to the range of the
    values. Searches without a finite feasible report are left out; None if there are no others.

    Raises:
        ValueError: the searches have different modes.
    """
    if len({search.mode for search in searches}) > 1:
        raise ValueError("repetitions of one search must share one mode, got 'min' and 'max'")
    curves = [curve for curve in map(incumbent_curve, searches) if curve[0]]
    if not curves:
        return None
    begin_s = max(times_s[0] for times_s, _ in curves)
    grid_s = sorted({t_s for times_s, _ in curves for t_s in times_s if t_s >= begin_s} | {begin_s})
    band = Band(grid_s, [], [], [], len(curves))
    for t_s in grid_s:
        mean, low, high = _mean_and_spread([values[bisect_right(times_s, t_s) - 1] for times_s, values in curves])
        band.mean.append(mean)
        band.low.append(low)
        band.high.append(high)
    return band


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float, float]:
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, mean, mean
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return mean, max(mean - deviation, min(values)), min(mean + deviation, max(values))


def drawable_trials(search: SearchData) -> list[int]:
    """Return the ids of the trials with a finite report, in ascending order."""
    return sorted(set(_columns(search).trial_ids[_is_finite(search)].tolist()))


def curves_by_trial(search: SearchData, trial_ids: Sequence[int] | None = None) -> list[Curve]:
    """Return the learning curve of each trial with a finite report, in order of trial ids.

    Args:
        trial_ids: return only the curves of these trials.
    """
    import numpy as np

    reports, mask = _columns(search), _is_finite(search)
    if trial_ids is not None:
        mask = mask & np.isin(reports.trial_ids, np.asarray(trial_ids, np.int64))
    rows = np.flatnonzero(mask)
    rows = rows[np.argsort(reports.trial_ids[rows], kind="stable")]
    ids, starts = np.unique(reports.trial_ids[rows], return_index=True)
    columns = [column[rows].tolist() for column in (reports.times_s, reports.values, reports.iters)]
    bounds = zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=False)
    return [
        Curve(trial_id, *(column[start:end] for column in columns))
        for trial_id, (start, end) in zip(ids.tolist(), bounds, strict=False)
    ]


def bin_reports(search: SearchData, n_bins: int = NUM_BINS) -> ReportBins:
    """Return quantiles of the finite reports of all trials, in `n_bins` equal intervals of time."""
    import numpy as np

    result, mask = ReportBins([], [], [], []), _is_finite(search)
    times_s, values = _columns(search).times_s[mask], _columns(search).values[mask]
    if not len(times_s):
        return result
    width_s = (times_s[-1] - times_s[0]) / n_bins or 1.0
    bins = np.minimum(((times_s - times_s[0]) / width_s).astype(np.int64), n_bins - 1)
    numbers, starts = np.unique(bins, return_index=True)
    for number, in_bin in zip(numbers.tolist(), np.split(values, starts[1:]), strict=True):
        low, median, high = np.quantile(in_bin, [0.1, 0.5, 0.9]).tolist()
        result.times_s.append(float(times_s[0] + (number + 0.5) * width_s))
        result.median.append(median)
        result.low.append(low)
        result.high.append(high)
    return result


def thin_curve(values: Sequence[float], max_points: int) -> list[int]:
    """Return at most `max_points` (at least 4) indices of a curve, in ascending order. No value may be NaN.

    The indices contain both ends, and the smallest and the largest value of equal stretches between them, so that a
    spike of one report remains visible.

    >>> thin_curve([5.0, 5.0, 9.0, 5.0, 1.0, 5.0, 5.0], 4)
    [0, 2, 4, 6]
    """
    n_points, n_stretches = len(values), (max(4, max_points) - 2) // 2
    if n_points <= max(4, max_points):
        return list(range(n_points))
    bounds = [1 + i * (n_points - 2) // n_stretches for i in range(n_stretches + 1)]
    indices = {0, n_points - 1}
    for start, end in pairwise(bounds):
        indices |= {min(range(start, end), key=values.__getitem__), max(range(start, end), key=values.__getitem__)}
    return sorted(indices)


def _columns(search: SearchData) -> Reports:
    assert isinstance(search.reports, Reports)
    return search.reports


def _is_finite(search: SearchData) -> "NDArray[np.bool_]":
    import numpy as np

    return np.isfinite(_columns(search).values)


def _losses(search: SearchData) -> "NDArray[np.float64]":
    """Return a loss for each report, infinite if the report may not be the best."""
    import numpy as np

    return np.where(_is_finite(search) & _columns(search).feasible, search.sign * _columns(search).values, np.inf)
