"""What the figures show, as plain data: no drawing, no clock, no foreign library.

    SearchData --incumbent_steps-----> improvements            (one search)
               --incumbent_curve-----> a step function         (one search)
               --incumbent_band------> mean and spread         (repetitions)
               --curves_by_trial-----> one polyline a trial    (one search)
               --worker_timeline-----> busy, start-up, idle    (one search)
               --from_first_ready----> the same search, its time counted from when the first worker was ready

The caller fills `SearchData` from wherever it keeps its results; this file knows nothing of trials that run,
of records or of tuners. All times are seconds since the search began.

Values that are not finite cannot be drawn and are never an incumbent; `n_not_finite` counts them. Reports may
come in any order.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

IntervalKind = Literal["busy", "start-up", "idle"]


@dataclass(frozen=True, slots=True)
class ReportPoint:
    """One value that a trial reported: its `iter`-th report, `t_s` seconds after the search began.

    `resource` says how far the trial was, in the search's `resource_name`; None: its reports are counted. `decision` is
    what the scheduler answered: "CONTINUE", "STOP" or "PAUSE". One that is not `feasible` violates a constraint, and is
    never the best.
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
        """Whether it is a result: finite, and no constraint is violated."""
        return self.feasible and math.isfinite(self.value)

    @property
    def reached(self) -> float:
        """How far the trial was: its resource, or how many reports it had made."""
        return self.iter if self.resource is None else self.resource


@dataclass(frozen=True, slots=True)
class Span:
    """The stay of one trial on one worker.

    The trial got the worker at `started_s`, its objective began at `ready_s`, the search heard of its end at `ended_s`,
    and the worker could be given away again at `free_s`. What has not happened yet is None. `objective_s` is how long
    the objective took, measured in the worker; None while it runs and where the worker could not tell any more.
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


@dataclass(frozen=True, slots=True)
class Band:
    """Mean and spread of the incumbents of several searches; each holds from its time to the next (a step function)."""

    times_s: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    n_searches: int


@dataclass(frozen=True, slots=True)
class Curve:
    """The reports of one trial in order of time."""

    trial_id: int
    times_s: list[float]
    values: list[float]


@dataclass(frozen=True, slots=True)
class WorkerInterval:
    """What one worker did from `begin_s` to `end_s`. Idle intervals have neither trial nor status."""

    slot: int
    kind: IntervalKind
    begin_s: float
    end_s: float
    trial_id: int | None = None
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """What all workers did. The sums count only the time in which a tuner ran and started trials.

    `busy_s + startup_s + idle_s` is `capacity_s`, the length of all windows of `SearchData`, each times its number of
    workers; it is more where trials ran beside the workers.
    """

    intervals: list[WorkerInterval]
    n_workers: int
    capacity_s: float
    busy_s: float
    startup_s: float
    idle_s: float

    @property
    def utilization(self) -> float | None:
        """Part of the worker time that went into the objective, 0 to 1; None while there is no worker time."""
        return self._share(self.busy_s)

    @property
    def startup_share(self) -> float | None:
        """Part of the worker time that went into starting trials, 0 to 1; None while there is no worker time."""
        return self._share(self.startup_s)

    @property
    def idle_share(self) -> float | None:
        """Idle part of the worker time, 0 to 1; None while there is no worker time."""
        return self._share(self.idle_s)

    def utilization_in_words(self) -> str | None:
        """The three shares as the figures and the command line print them; None while there is no worker time.

        >>> Timeline([], 1, 10.0, busy_s=9.5, startup_s=0.25, idle_s=0.25).utilization_in_words()
        '95.0 % (start-up 2.5 %, idle 2.5 %)'
        """
        busy, startup, idle = self.utilization, self.startup_share, self.idle_share
        if busy is None or startup is None or idle is None:
            return None
        return f"{100 * busy:.1f} % (start-up {100 * startup:.1f} %, idle {100 * idle:.1f} %)"

    def _share(self, seconds: float) -> float | None:
        return min(1.0, seconds / self.capacity_s) if self.capacity_s > 0 else None


def n_not_finite(search: SearchData) -> int:
    """How many reports hold NaN or an infinity."""
    return sum(not math.isfinite(point.value) for point in search.reports)


def n_infeasible(search: SearchData) -> int:
    """How many finite reports violate a constraint."""
    return sum(not point.feasible and math.isfinite(point.value) for point in search.reports)


def later_values(search: SearchData) -> list[float]:
    """The finite values that trials reported after their first report: what is usual once training has begun.

    First reports can be larger by orders of magnitude. Where there are only first reports, it is those.
    """
    curves = curves_by_trial(search)
    later = [value for curve in curves for value in curve.values[1:]]
    return later or [value for curve in curves for value in curve.values]


def from_first_ready(search: SearchData) -> SearchData:
    """The same search with its times counted from when the first objective began, and nothing before that.

    Until one has begun, the search as it is. So the figures show the time that their numbers count: the utilization
    begins there, and of several searches none is ahead because its workers had been warm.
    """
    zero_s = search.first_objective_s
    if zero_s is None:
        return search
    return replace(
        search,
        reports=[
            ReportPoint(p.trial_id, p.t_s - zero_s, p.iter, p.value, p.resource, p.decision, p.feasible)
            for p in search.reports
        ],
        spans=[
            replace(
                span,
                started_s=max(0.0, span.started_s - zero_s),
                ready_s=_later(span.ready_s, zero_s),
                ended_s=_later(span.ended_s, zero_s),
                free_s=_later(span.free_s, zero_s),
            )
            for span in search.spans
        ],
        first_objective_s=0.0,
        stop_s=_later(search.stop_s, zero_s),
        windows=tuple((begin_s - zero_s, end_s - zero_s, n_workers) for begin_s, end_s, n_workers in search.windows),
        last_s=search.last_s - zero_s,
    )


def _later(t_s: float | None, zero_s: float) -> float | None:
    return None if t_s is None else t_s - zero_s


def best_of_trials(search: SearchData) -> dict[int, ReportPoint]:
    """The best finite report of each trial that has one; of equal ones the first. One that is not feasible is none."""
    sign = 1.0 if search.mode == "min" else -1.0
    best: dict[int, ReportPoint] = {}
    for point in search.reports:
        if point.may_be_best:
            known = best.get(point.trial_id)
            if known is None or (sign * point.value, point.t_s) < (sign * known.value, known.t_s):
                best[point.trial_id] = point
    return best


def incumbent_steps(search: SearchData) -> list[ReportPoint]:
    """The reports that were better than all before them, in order of time. Equal is not better."""
    sign = 1.0 if search.mode == "min" else -1.0
    best = math.inf
    steps = []
    for point in sorted(search.reports, key=lambda p: p.t_s):
        if point.may_be_best and sign * point.value < best:
            best = sign * point.value
            steps.append(point)
    return steps


def best_point(search: SearchData) -> ReportPoint | None:
    """The first report of the best value, or None when nothing finite and feasible was reported."""
    steps = incumbent_steps(search)
    return steps[-1] if steps else None


def incumbent_curve(search: SearchData) -> tuple[list[float], list[float]]:
    """Times and values of the best value so far, the last one held until `last_s`; empty without a finite report."""
    steps = incumbent_steps(search)
    if not steps:
        return [], []
    times_s = [step.t_s for step in steps]
    values = [step.value for step in steps]
    return [*times_s, max(search.last_s, times_s[-1])], [*values, values[-1]]


def incumbent_band(searches: Sequence[SearchData]) -> Band | None:
    """Mean and spread of the best value so far over repetitions of one search.

    The grid holds every time at which any incumbent changes, so nothing is interpolated. It begins where all searches
    have reported, and ends with the longest: a search that ended keeps its best value. Searches without a finite
    report are left out. The spread is one sample standard deviation to each side, cut where it would leave the range
    of the values it was computed from.

    Returns:
        The band, or None when no search has a finite report.

    Raises:
        ValueError: the searches do not share one mode.
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
    """One polyline a trial over wall-clock time, in order of trial ids; trials without a finite report have none."""
    curves: dict[int, Curve] = {}
    for point in sorted(search.reports, key=lambda p: (p.trial_id, p.t_s, p.iter)):
        if math.isfinite(point.value):
            curve = curves.setdefault(point.trial_id, Curve(point.trial_id, [], []))
            curve.times_s.append(point.t_s)
            curve.values.append(point.value)
    return list(curves.values())


def worker_timeline(search: SearchData) -> Timeline:
    """What each worker did, and how much of it was idle.

    Start-up is from the start of a trial to its objective, busy is inside the objective as the worker measured it; both
    are listed whole, also where they reach beyond the windows of the search. Idle is the rest of the windows, including
    the time in which a worker tells of its end and is cleared after a trial. Where the spans of one worker overlap, the
    earlier one keeps its place.

    The busy share is the utilization of the search: the start-ups of a run's first trials lie before its window, those
    of later ones are in it.
    """
    windows = _windows(search)
    n_slots = max(
        [search.n_workers, *(span.slot + 1 for span in search.spans), *(n_workers for _, _, n_workers in windows)]
    )
    intervals: list[WorkerInterval] = []
    for slot in range(n_slots):
        occupied = _occupied(
            sorted((s for s in search.spans if s.slot == slot), key=lambda s: s.started_s), search.last_s
        )
        intervals += occupied
        for begin_s, end_s, n_workers in windows:
            if slot < n_workers:
                intervals += _idle(slot, occupied, (begin_s, end_s))
    worker_s = math.fsum(n_workers * (end_s - begin_s) for begin_s, end_s, n_workers in windows)
    busy_s, startup_s = _sum_inside("busy", intervals, windows), _sum_inside("start-up", intervals, windows)
    # Not the sum of the idle boxes: after the number of workers was lowered, the trials that still run may be in the
    # last slots, while the first ones are free and must not be used yet.
    idle_s = max(0.0, worker_s - busy_s - startup_s)
    return Timeline(intervals, n_slots, worker_s, busy_s=busy_s, startup_s=startup_s, idle_s=idle_s)


def _windows(search: SearchData) -> Sequence[tuple[float, float, int]]:
    end_s = search.last_s if search.stop_s is None else search.stop_s
    if search.windows or search.first_objective_s is None or end_s <= search.first_objective_s:
        return search.windows
    return [(search.first_objective_s, end_s, search.n_workers)]


def _occupied(spans: Iterable[Span], last_s: float) -> list[WorkerInterval]:
    """Start-up and busy intervals of one worker, one after another; what has not ended lasts until `last_s`."""
    found: list[WorkerInterval] = []
    cursor_s = -math.inf
    for span in spans:
        ended_s = last_s if span.ended_s is None else span.ended_s
        ready_s = ended_s if span.ready_s is None else min(span.ready_s, ended_s)
        if span.ready_s is not None and span.objective_s is not None:
            ended_s = ready_s + span.objective_s
        kinds: tuple[tuple[IntervalKind, float, float], ...] = (
            ("start-up", span.started_s, ready_s),
            ("busy", ready_s, ended_s),
        )
        for kind, begin_s, end_s in kinds:
            if end_s > max(begin_s, cursor_s):
                found.append(WorkerInterval(span.slot, kind, max(begin_s, cursor_s), end_s, span.trial_id, span.status))
                cursor_s = end_s
    return found


def _idle(slot: int, occupied: Iterable[WorkerInterval], window_s: tuple[float, float]) -> list[WorkerInterval]:
    cursor_s, window_end_s = window_s
    gaps = []
    for interval in occupied:
        if min(interval.begin_s, window_end_s) > cursor_s:
            gaps.append(WorkerInterval(slot, "idle", cursor_s, min(interval.begin_s, window_end_s)))
        cursor_s = max(cursor_s, interval.end_s)
    if window_end_s > cursor_s:
        gaps.append(WorkerInterval(slot, "idle", cursor_s, window_end_s))
    return gaps


def _sum_inside(
    kind: IntervalKind, intervals: Iterable[WorkerInterval], windows: Sequence[tuple[float, float, int]]
) -> float:
    found = [interval for interval in intervals if interval.kind == kind]
    return math.fsum(
        max(0.0, min(interval.end_s, end_s) - max(interval.begin_s, begin_s))
        for begin_s, end_s, _ in windows
        for interval in found
    )
