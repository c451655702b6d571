"""Data of searches for figures. Nothing here draws.

    SearchData --incumbent_steps-----> improvements of the best value
               --incumbent_curve-----> the best value over time, a step function
               --incumbent_band------> mean and spread over repeated searches
               --curves_by_trial-----> learning curves
               --from_first_objective-> the same search, with times since the first objective started

All times are seconds since the search began. Reports may be in any order. Values that are not finite are not drawn and
are never the best.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace


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
    def may_be_best(self) -> bool:
        """Whether the value is finite and all constraints are met."""
        return self.feasible and math.isfinite(self.value)

    @property
    def reached(self) -> float:
        """The resource, or the number of reports if there is no resource."""
        return self.iter if self.resource is None else self.resource


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
    workers, as (begin_s, end_s, number of workers). It is empty if there is only one.

    Raises:
        ValueError: `mode` is neither "min" nor "max", or `n_workers` is less than 1.
    """

    name: str
    metric: str
    mode: str
    n_workers: int
    asynchronous: bool
    reports: Sequence[ReportPoint]
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
    return sum(not math.isfinite(point.value) for point in search.reports)


def num_infeasible(search: SearchData) -> int:
    """Return the number of finite reports that violate a constraint."""
    return sum(not point.feasible and math.isfinite(point.value) for point in search.reports)


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
        reports=[replace(point, t_s=point.t_s - zero_s) for point in search.reports],
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
    best: dict[int, ReportPoint] = {}
    for point in sorted(search.reports, key=lambda p: p.t_s):
        if point.may_be_best:
            known = best.get(point.trial_id)
            if known is None or search.sign * point.value < search.sign * known.value:
                best[point.trial_id] = point
    return best


def incumbent_steps(search: SearchData) -> list[ReportPoint]:
    """Return the reports that were better than all earlier ones, in order of time."""
    best = math.inf
    steps = []
    for point in sorted(search.reports, key=lambda p: p.t_s):
        if point.may_be_best and search.sign * point.value < best:
            best = search.sign * point.value
            steps.append(point)
    return steps


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


def curves_by_trial(search: SearchData) -> list[Curve]:
    """Return the learning curve of each trial with a finite report, in order of trial ids."""
    curves: dict[int, Curve] = {}
    for point in sorted(search.reports, key=lambda p: (p.trial_id, p.t_s, p.iter)):
        if math.isfinite(point.value):
            curve = curves.setdefault(point.trial_id, Curve(point.trial_id, [], []))
            curve.times_s.append(point.t_s)
            curve.values.append(point.value)
    return list(curves.values())
