"""Plain data of figures, shared by `fanwise.plot`, the board and the HTML report. Nothing here draws.

Values that are not finite are not drawn and are never the best. NumPy is imported when the first search is made,
because importing it takes longer than starting a search.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

MAX_OBJECTIVES = 4  # of a figure of the Pareto front
_LOG_RATIO = 100.0  # values over more than two decades get a logarithmic axis
_TYPICAL_QUANTILE, _OUTLIER_FACTOR = 0.9, 10.0

Reports: TypeAlias = Any  # NumPy record array with the fields of `ReportPoint`


class ReportPoint(NamedTuple):
    """A value that a trial reported.

    Attributes:
        t_s: time of the report (see `SearchData`).
        iter: number of the report in its trial, from 1.
        resource: value of the search's `resource_name`. NaN: the same as `iter`.
        decision: answer of the scheduler: "CONTINUE", "STOP" or "PAUSE".
        feasible: whether the report meets all constraints. Other reports are never the best.
    """

    trial_id: int
    t_s: float
    iter: int
    value: float
    resource: float = math.nan
    decision: str = "CONTINUE"
    feasible: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """The stay of a trial on a worker. Times that have not come yet are None.

    Attributes:
        slot: number of the worker.
        started_s: when the trial got the worker.
        ready_s: when its objective started.
        ended_s: when the search learned that it had ended.
        objective_s: seconds in the objective as measured in the worker. None if it is running or could not be measured.
    """

    slot: int
    trial_id: int
    started_s: float
    ready_s: float | None
    ended_s: float | None
    status: str
    objective_s: float | None = None


@dataclass(frozen=True, slots=True)
class SearchData:
    """Data of one search, for figures.

    Times are seconds since the first objective started, so that searches with warm workers have no lead over others.
    Trials that got a worker earlier have `started_s` 0.

    Attributes:
        mode: "min" or "max".
        reports: a `ReportPoint` for each report. They are kept in order of time, as a NumPy record array.
        startup_s: seconds from the begin of the search to the start of the first objective, or None if none has started
            (then times are seconds since the search began).
        stop_s: when the search decided to start no more trials.
        last_s: time of the last event.
        windows: (begin_s, end_s, number of workers) of each interval in which trials were started, which is where
            workers are expected to be busy.
    """

    name: str
    metric: str
    mode: str
    n_workers: int
    reports: Reports
    spans: Sequence[Span]
    startup_s: float | None
    stop_s: float | None
    last_s: float
    resource_name: str = "reports of a trial"
    windows: Sequence[tuple[float, float, int]] = ()

    def __post_init__(self) -> None:
        import numpy as np

        types = ("i8", "f8", "i8", "f8", "f8", "O", "?")
        dtype = np.dtype(list(zip(ReportPoint._fields, types, strict=True)))
        reports: Reports = np.array(list(self.reports), dtype).view(np.recarray)
        reports = reports[np.lexsort((reports.iter, reports.trial_id, reports.t_s))]
        reports.resource = np.where(np.isnan(reports.resource), reports.iter, reports.resource)
        object.__setattr__(self, "reports", reports)

    @property
    def sign(self) -> float:
        """1 to minimize, -1 to maximize: `sign * value` is a loss."""
        return 1.0 if self.mode == "min" else -1.0


# -- best values and learning curves -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Band:
    """A middle value over time, and the spread around it."""

    times_s: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]


def finite_reports(search: SearchData) -> Reports:
    """Return the reports with finite values."""
    import numpy as np

    return search.reports[np.isfinite(search.reports.value)]


def best_of_trials(search: SearchData) -> dict[int, ReportPoint]:
    """Return {trial id: its best report}, the first of equal ones.

    Trials without a finite feasible report are left out.
    """
    import numpy as np

    reports, losses = _ranked_reports(search)
    order = np.lexsort((losses, reports.trial_id))  # stable, so the first of equal ones precedes the others
    best = order[np.unique(reports.trial_id[order], return_index=True)[1]]
    return {point.trial_id: point for point in map(ReportPoint._make, reports[best].tolist())}


def incumbent_steps(search: SearchData) -> list[ReportPoint]:
    """Return the reports that were better than all earlier ones, in order of time."""
    import numpy as np

    reports, losses = _ranked_reports(search)
    best_before = np.minimum.accumulate(np.concatenate([[np.inf], losses]))[:-1]
    return list(map(ReportPoint._make, reports[losses < best_before].tolist()))


def _ranked_reports(search: SearchData) -> tuple[Reports, Any]:
    """Return the reports that may be the best, and their losses."""
    reports = finite_reports(search)
    reports = reports[reports.feasible]
    return reports, search.sign * reports.value


def best_point(search: SearchData) -> ReportPoint | None:
    """Return the best report, the first of equal ones, or None if no report is finite and feasible."""
    steps = incumbent_steps(search)
    return steps[-1] if steps else None


def incumbent_band(searches: Sequence[SearchData]) -> Band:
    """Return mean and spread of the best value over repetitions of a search.

    The band has all times at which a best value changes, from the time when all searches have one. A search that has
    ended keeps its best value. The spread is one sample standard deviation to each side, limited to the range of the
    values. Searches without a finite feasible report are left out.
    """
    import numpy as np

    curves = [(steps, search.last_s) for search in searches if (steps := incumbent_steps(search))]
    if not curves:
        return Band([], [], [], [])
    begin_s = max(steps[0].t_s for steps, _ in curves)
    times = {step.t_s for steps, _ in curves for step in steps} | {last_s for _, last_s in curves} | {begin_s}
    times_s = np.array(sorted(t_s for t_s in times if t_s >= begin_s))
    rows = []
    for steps, _ in curves:
        indices = np.searchsorted([step.t_s for step in steps], times_s, "right") - 1
        rows.append([steps[index].value for index in indices])
    values = np.array(rows)
    mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1) if len(curves) > 1 else 0.0
    low, high = np.maximum(mean - deviation, values.min(axis=0)), np.minimum(mean + deviation, values.max(axis=0))
    return Band(times_s.tolist(), mean.tolist(), low.tolist(), high.tolist())


def curves_by_trial(search: SearchData, trial_ids: Iterable[int] | None = None) -> dict[int, Reports]:
    """Return the finite reports of each trial that has any, or only of `trial_ids`, in order of trial ids."""
    import numpy as np

    reports = finite_reports(search)
    if trial_ids is not None:
        reports = reports[np.isin(reports.trial_id, list(trial_ids))]
    reports = reports[np.argsort(reports.trial_id, kind="stable")]
    ids, starts = np.unique(reports.trial_id, return_index=True)
    return dict(zip(ids.tolist(), np.split(reports, starts[1:]), strict=False))


def bin_reports(search: SearchData, n_bins: int = 60) -> Band:
    """Return median, 10th and 90th percentile of the finite reports of all trials, in `n_bins` equal intervals of time.

    Intervals without reports are left out.
    """
    import numpy as np

    reports = finite_reports(search)
    if not len(reports):
        return Band([], [], [], [])
    begin_s = reports.t_s[0]
    width_s = (reports.t_s[-1] - begin_s) / n_bins or 1.0
    bins = np.minimum(((reports.t_s - begin_s) / width_s).astype(np.int64), n_bins - 1)
    numbers, starts = np.unique(bins, return_index=True)
    quantiles = [np.quantile(values, [0.5, 0.1, 0.9]).tolist() for values in np.split(reports.value, starts[1:])]
    median, low, high = map(list, zip(*quantiles, strict=True))
    return Band((begin_s + (numbers + 0.5) * width_s).tolist(), median, low, high)


# -- workers -----------------------------------------------------------------------------------------------------------

IntervalKind = Literal["busy", "start-up", "idle"]


@dataclass(frozen=True, slots=True)
class WorkerInterval:
    """The activity of a worker from `begin_s` to `end_s`. Idle intervals have neither trial nor status."""

    slot: int
    kind: IntervalKind
    begin_s: float
    end_s: float
    trial_id: int | None = None
    status: str | None = None

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class Timeline:
    """The activity of all workers. The sums count only the windows of the search.

    `capacity_s` is the sum of the lengths of all windows times their numbers of workers.
    """

    intervals: list[WorkerInterval]
    n_workers: int
    capacity_s: float
    busy_s: float
    startup_s: float

    @property
    def shares(self) -> tuple[float, float, float] | None:
        """The busy, start-up and idle shares of the workers' time, from 0 to 1, or None if there is no time yet.

        Idle is the rest, not the sum of the idle intervals: after the number of workers is lowered, trials of the last
        workers still run while lower ones are free and must not be used.
        """
        if not self.capacity_s:
            return None
        busy, startup = min(1.0, self.busy_s / self.capacity_s), min(1.0, self.startup_s / self.capacity_s)
        return busy, startup, max(0.0, 1.0 - busy - startup)

    def utilization_in_words(self) -> str | None:
        """Return the three shares as text, or None if there is no time yet.

        >>> Timeline([], 1, 10.0, busy_s=9.5, startup_s=0.25).utilization_in_words()
        '95.0 % (start-up 2.5 %, idle 2.5 %)'
        """
        return self.shares and "{:.1%} (start-up {:.1%}, idle {:.1%})".format(*self.shares).replace("%", " %")


def worker_timeline(search: SearchData) -> Timeline:
    """Return the activity of all workers.

    Start-up lasts from the start of a trial to the start of its objective. Busy is the time in the objective as the
    worker measured it. Both are also listed outside of the search's windows. Idle is the rest of the windows, which
    includes the time in which a worker is cleaned up after a trial. If spans of a worker overlap, the earlier one has
    precedence.
    """
    windows = search.windows
    n_slots = max([search.n_workers, *(span.slot + 1 for span in search.spans), *(window[2] for window in windows)])
    spans: list[list[Span]] = [[] for _ in range(n_slots)]
    for span in sorted(search.spans, key=lambda s: s.started_s):
        spans[span.slot].append(span)
    intervals: list[WorkerInterval] = []
    for slot in range(n_slots):
        occupied = _occupied(spans[slot], search.last_s)
        intervals += occupied
        for begin_s, end_s, n_workers in windows:
            if slot < n_workers:
                intervals += _idle(slot, occupied, begin_s, end_s)
    sums = {"busy": 0.0, "start-up": 0.0, "idle": 0.0}
    for interval in intervals:
        for begin_s, end_s, _ in windows:
            sums[interval.kind] += max(0.0, min(interval.end_s, end_s) - max(interval.begin_s, begin_s))
    capacity_s = sum(n_workers * (end_s - begin_s) for begin_s, end_s, n_workers in windows)
    return Timeline(intervals, n_slots, capacity_s, sums["busy"], sums["start-up"])


def _occupied(spans: Iterable[Span], last_s: float) -> list[WorkerInterval]:
    """Return the start-up and busy intervals of a worker. A trial that has not ended lasts until `last_s`."""
    intervals: list[WorkerInterval] = []
    free_s = -math.inf
    for span in spans:
        ended_s = last_s if span.ended_s is None else span.ended_s
        ready_s = ended_s if span.ready_s is None else min(span.ready_s, ended_s)
        if span.ready_s is not None and span.objective_s is not None:
            ended_s = ready_s + span.objective_s
        kinds: list[tuple[IntervalKind, float, float]] = [
            ("start-up", span.started_s, ready_s),
            ("busy", ready_s, ended_s),
        ]
        for kind, begin_s, end_s in kinds:
            begin_s = max(begin_s, free_s)
            if end_s > begin_s:
                intervals.append(WorkerInterval(span.slot, kind, begin_s, end_s, span.trial_id, span.status))
                free_s = end_s
    return intervals


def _idle(slot: int, occupied: Sequence[WorkerInterval], begin_s: float, end_s: float) -> list[WorkerInterval]:
    """Return the gaps between the occupied intervals, from `begin_s` to `end_s`."""
    begins = [begin_s, *(max(begin_s, interval.end_s) for interval in occupied)]
    ends = [*(min(interval.begin_s, end_s) for interval in occupied), end_s]
    return [WorkerInterval(slot, "idle", a, b) for a, b in zip(begins, ends, strict=True) if b > a]


# -- rungs -------------------------------------------------------------------------------------------------------------


class Arrival(NamedTuple):
    """The report with which a trial arrived at a rung, and whether it continued."""

    point: ReportPoint
    has_continued: bool


@dataclass(frozen=True, slots=True)
class Rung:
    """A level of the resource at which trials were stopped or paused, and the arrivals in order of time."""

    level: float
    arrivals: list[Arrival]

    @property
    def num_continued(self) -> int:
        return sum(arrival.has_continued for arrival in self.arrivals)


def rungs_of(search: SearchData) -> list[Rung]:
    """Return the rungs in ascending order, and at the end the highest resource that was reached.

    Levels are derived from the decisions after reports, so they exist for all schedulers. Trials that were stopped
    because their value is not finite, or because the search ended, add no level. Without a level the list is empty.

    A trial arrives with its first report at the level or above. A trial that starts from the checkpoint of another
    trial does not arrive at the levels that the other one passed. A trial continues if the decision was to continue, or
    if it was resumed later.
    """
    points = list(map(ReportPoint._make, search.reports.tolist()))
    levels = sorted(
        {
            point.resource
            for point in points
            if point.decision != "CONTINUE" and math.isfinite(point.value) and point.t_s != search.stop_s
        }
    )
    if not levels:
        return []
    if (end := max(point.resource for point in points)) > levels[-1]:
        levels.append(end)
    rungs = [Rung(level, []) for level in levels]
    last_points = {point.trial_id: point for point in points}
    last_started_s = {span.trial_id: span.started_s for span in sorted(search.spans, key=lambda s: s.started_s)}
    num_passed: dict[int, int] = {}
    for point in points:
        trial_id, num_reached = point.trial_id, bisect_right(levels, point.resource)
        if trial_id not in num_passed:  # a trial with a source has not passed the levels below itself
            num_passed[trial_id] = bisect_left(levels, point.resource) if point.iter > 1 else 0
        if num_reached > num_passed[trial_id]:
            is_resumed = last_points[trial_id] is not point or last_started_s.get(trial_id, -math.inf) > point.t_s
            has_continued = num_reached < len(levels) and (point.decision == "CONTINUE" or is_resumed)
            for index in range(num_passed[trial_id], num_reached):  # a report may pass several levels at once
                rungs[index].arrivals.append(Arrival(point, index < num_reached - 1 or has_continued))
            num_passed[trial_id] = num_reached
    return rungs


# -- several objectives ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FrontData:
    """Reports of a search with several objectives.

    Attributes:
        objectives: (name, "min" or "max") of each.
        points: (trial id, values) of each report, in the order of the objectives. All values are finite.
        front: indices of the points that no other point dominates.
        n_left_out: number of reports with a value that is not finite.
        infeasible: indices of the points that violate a constraint.
    """

    name: str
    objectives: Sequence[tuple[str, str]]
    points: Sequence[tuple[int, tuple[float, ...]]]
    front: Sequence[int]
    n_left_out: int = 0
    infeasible: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not 2 <= len(self.objectives) <= MAX_OBJECTIVES:
            names = ", ".join(name for name, _ in self.objectives)
            raise ValueError(
                f"a Pareto front is drawn of 2 to {MAX_OBJECTIVES} objectives, got {len(self.objectives)}: {names}"
            )


# -- axes --------------------------------------------------------------------------------------------------------------


class ValueScale(NamedTuple):
    """Limits of a value axis with margins. `n_beyond`: number of finite values outside of the limits."""

    low: float
    high: float
    log: bool
    n_beyond: int


def value_scale(values: Iterable[float], mode: str, typical: Iterable[float] = ()) -> ValueScale:
    """Return limits that contain the best value and all values but outliers, for a linear or a logarithmic axis.

    Outliers exceed the 0.9 quantile of the typical values by more than ten times the distance from it to the best
    value, so that one diverged trial does not flatten all curves. Values that are not finite are ignored. Without any
    value, the limits are 0 and 1.

    Args:
        values: all values that are drawn.
        mode: "min" or "max": which end of the axis is good.
        typical: values that define outliers, by default all.
    """
    import numpy as np

    sign = 1.0 if mode == "min" else -1.0
    arrays = (np.fromiter(numbers, float) for numbers in (values, typical))
    losses, typical_losses = (np.sort(sign * numbers[np.isfinite(numbers)]) for numbers in arrays)
    if not len(losses):
        return ValueScale(0.0, 1.0, False, 0)
    if not len(typical_losses):
        typical_losses = losses
    quantile = typical_losses[int(_TYPICAL_QUANTILE * (len(typical_losses) - 1))]
    reach = max(quantile - losses[0], abs(losses[0])) or math.inf
    worst = losses[losses <= quantile + _OUTLIER_FACTOR * reach][-1]
    low, high = sorted((float(sign * losses[0]), float(sign * worst)))
    is_log = low > 0 and high / low > _LOG_RATIO
    if is_log:
        margin = (high / low) ** 0.04
        low, high = low / margin, high * margin
    else:
        margin = 0.05 * (high - low) or 0.1 * abs(low) or 0.5  # equal limits cannot be drawn
        low, high = low - margin, high + margin
    shown = sign * losses
    return ValueScale(low, high, is_log, int(np.sum((shown < low) | (shown > high))))


def thin(n_points: int, max_points: int) -> list[int]:
    """Return at most `max_points` evenly spread indices of `n_points` points, with the first and the last."""
    if n_points <= max_points:
        return list(range(n_points))
    return [round(i * (n_points - 1) / (max_points - 1)) for i in range(max_points)]


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
