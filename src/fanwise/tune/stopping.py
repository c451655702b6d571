"""Stopping criteria of a search. Names and meanings of the limits are those of Syne Tune.

The search updates `Counts`, and `verdict` compares them with the limits. `Counts` has a constant size, except for the
Pareto front of several objectives.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from ..base.nearest import names_nearest_option, nearest
from .pareto import HypervolumeFront, ParetoFront
from .searchers.searcher import Objective
from .values import checked_int, is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingCriterion:
    """Ends the search when the first limit is reached. At least one limit must be set.

    Running trials are stopped, except for `max_num_trials_started` and `max_num_trials_without_improvement`, which let
    running trials finish and paused ones resume.

    Args:
        max_wallclock_time: seconds since the search began. `math.inf`: run until Ctrl-C.
        max_num_trials_started: number of trials started.
        max_num_trials_without_improvement: number of trials that ended since the last improvement. An improvement is a
            better metric or a smaller infeasibility. With several objectives, it is a non-dominated report, or, with
            `reference_point`, an increase of the hypervolume.
        max_num_trials_completed: number of trials that ran to their end (neither stopped nor failed).
        max_num_evaluations: number of reports of all trials.
        max_metric_value: stop if the scheduler's metric is at or above this number. A dict {metric: number} sets limits
            of several metrics. Infinite values are ignored.
        min_metric_value: stop if the scheduler's metric is at or below this number, or a dict as above.
        max_hypervolume: stop if the hypervolume of the feasible reports is at or above this. For several objectives.
        reference_point: reference point of the hypervolume, {objective: value} for all objectives. Requires
            `max_hypervolume` or `max_num_trials_without_improvement`.

    Raises:
        TypeError: a limit has the wrong type or is unknown (the message names the closest one).
        ValueError: no limit is set, or a limit is NaN or not above 0 (metric values may be negative).

    >>> StoppingCriterion(max_time=720)
    Traceback (most recent call last):
    TypeError: StoppingCriterion has no option 'max_time'; did you mean 'max_wallclock_time'?
    """

    max_wallclock_time: float | None = None
    max_num_trials_started: int | None = None
    max_num_trials_without_improvement: int | None = None
    max_num_trials_completed: int | None = None
    max_num_evaluations: int | None = None
    max_metric_value: float | Mapping[str, float] | None = None
    min_metric_value: float | Mapping[str, float] | None = None
    max_hypervolume: float | None = None
    reference_point: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        limits = limits_of(self)
        if not limits:
            raise ValueError(
                "StoppingCriterion() would never end the search; set a limit, or max_wallclock_time=math.inf to run "
                "until interrupted"
            )
        if self.max_hypervolume is not None and self.reference_point is None:
            raise ValueError("max_hypervolume requires a reference_point")
        if self.reference_point is not None:
            if self.max_hypervolume is None and self.max_num_trials_without_improvement is None:
                raise ValueError("reference_point requires max_hypervolume or max_num_trials_without_improvement")
            if not isinstance(self.reference_point, Mapping):
                raise TypeError(f"reference_point must be {{objective: number}}, got {self.reference_point!r}")
        for name, limit in limits.items():
            if name.startswith("max_num_"):
                checked_int(name, limit, 1)
            elif name in ("max_wallclock_time", "max_hypervolume"):
                if not is_number(limit):
                    raise TypeError(f"{name} must be a number, got {limit!r} of type {type(limit).__name__}")
                if not limit > 0:
                    raise ValueError(f"{name} must be above 0, got {limit!r}")
            else:
                object.__setattr__(self, name, _checked_metric_limit(name, limit))


# Set after the class definition, because dataclass generates __init__.
StoppingCriterion.__init__ = names_nearest_option(StoppingCriterion.__init__)  # type: ignore[assignment,method-assign]


@dataclass(slots=True)
class Counts:
    """Progress of a search. Reports that were discarded later are included.

    Args:
        metric: metric of the scheduler. Limits that are numbers apply to it.
        num_trials_without_improvement: number of other trials that ended since the last improvement.
        best_rank: infeasibility and first loss of the best finite report.
        best_trial_id: trial of the last improvement.
        limited_metrics: metrics with a limit, whose extremes are tracked.
        smallest, largest: the extremes of these metrics.
        unreported: limited metrics that no report has contained.
        last_names: names in the last report. Updated only while `unreported` is not empty.
        pareto_front: feasible non-dominated reports, for several objectives.
        hypervolume_front: feasible reports that increased the hypervolume. None without a reference point.
    """

    metric: str
    wallclock_s: float = 0.0
    num_trials_started: int = 0
    num_trials_completed: int = 0
    num_trials_stopped: int = 0
    num_trials_failed: int = 0
    num_evaluations: int = 0
    num_trials_without_improvement: int = 0
    best_rank: tuple[float, float] = (math.inf, math.inf)
    best_trial_id: int | None = None
    limited_metrics: frozenset[str] = frozenset()
    smallest: dict[str, float] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    unreported: frozenset[str] = frozenset()
    last_names: tuple[str, ...] = ()
    pareto_front: ParetoFront = field(default_factory=ParetoFront)
    hypervolume_front: HypervolumeFront | None = None

    def track(self, criterion: StoppingCriterion, reference_point: Sequence[float] | None) -> None:
        """From now on, track the values that the criterion needs. `reference_point`: the result of `reference_losses`.

        Earlier reports are included, except for metrics that had no limit.
        """
        limits = (criterion.max_metric_value, criterion.min_metric_value)
        metrics = frozenset(name for limit in limits for name in _metric_limits(limit, self.metric))
        self.unreported = (self.unreported & metrics) | (metrics - self.limited_metrics)
        self.limited_metrics = metrics
        if reference_point is None:
            self.hypervolume_front = None
        elif self.hypervolume_front is None or self.hypervolume_front.reference != tuple(reference_point):
            self.hypervolume_front = HypervolumeFront(reference_point)
            infeasibility, best_loss = self.best_rank
            is_single = len(reference_point) == 1 and infeasibility == 0.0
            for losses in [(best_loss,)] if is_single else self.pareto_front.points:
                self.hypervolume_front.add(losses)

    def add_report(self, values: Mapping[str, object], *, is_feasible: bool = True) -> None:
        """Count a report. Infeasible reports and non-finite values do not change the extremes."""
        self.num_evaluations += 1
        if self.unreported:
            self.unreported -= {name for name, value in values.items() if is_number(value)}
            self.last_names = tuple(values)
        if not is_feasible:
            return
        for name in self.limited_metrics:
            value = values.get(name)
            if is_number(value) and math.isfinite(value):
                self.smallest[name] = min(value, self.smallest.get(name, value))
                self.largest[name] = max(value, self.largest.get(name, value))

    def add_result(self, trial_id: int, infeasibility: float, losses: Sequence[float]) -> None:
        """Update the best results with the infeasibility and losses of a report."""
        front = self.hypervolume_front
        has_grown = front is not None and not infeasibility and front.add(losses)
        loss, previous = losses[0], self.best_rank
        is_better = (infeasibility, loss) < previous and math.isfinite(loss) and math.isfinite(infeasibility)
        if is_better:
            self.best_rank = (infeasibility, loss)
        if len(losses) > 1 and not infeasibility:
            is_new = self.pareto_front.add(losses)
            is_better = has_grown if front is not None else is_new
            is_better |= is_new and previous[0] > 0.0  # the first feasible report
        if is_better:
            self.best_trial_id, self.num_trials_without_improvement = trial_id, 0

    def add_end(self, trial_id: int) -> None:
        """Count a trial that has ended."""
        self.num_trials_without_improvement += trial_id != self.best_trial_id

    def missing_metric(self) -> str | None:
        """Return an error message if a limited metric was never reported, or None. Call this when a trial completes."""
        if not self.unreported:
            return None
        name = min(self.unreported)
        text = f"the StoppingCriterion needs the metric {name!r}, but a trial completed without reporting it"
        names_text = ", ".join(map(repr, self.last_names))
        if name in self.last_names:
            return f"{text} as a number; it reported {names_text}"
        closest = nearest(name, self.last_names)
        return f"{text}; it reported {names_text}" + (f"; did you mean {closest!r}?" if closest else "")


class Verdict(NamedTuple):
    """The limit that was reached. If `lets_running_finish` is False, running trials are stopped."""

    reason: str
    lets_running_finish: bool


def verdict(criterion: StoppingCriterion, counts: Counts, *, is_draining: bool = False) -> Verdict | None:
    """Return the limit that was reached, or None. Limits that stop running trials take precedence.

    Called at every event. `is_draining`: no more trials start, so only limits that stop running trials matter.
    """
    limit_s = criterion.max_wallclock_time
    if limit_s is not None and counts.wallclock_s >= limit_s:
        return Verdict(f"max_wallclock_time={limit_s:g} s is over", lets_running_finish=False)
    limit = criterion.max_num_trials_completed
    if limit is not None and counts.num_trials_completed >= limit:
        return Verdict(f"max_num_trials_completed={limit} reached", lets_running_finish=False)
    limit = criterion.max_num_evaluations
    if limit is not None and counts.num_evaluations >= limit:
        return Verdict(f"max_num_evaluations={limit} reached", lets_running_finish=False)
    if (counts.limited_metrics or counts.hypervolume_front) and (reason := _value_limit(criterion, counts)):
        return Verdict(reason, lets_running_finish=False)
    if is_draining:
        return None
    limit = criterion.max_num_trials_started
    if limit is not None and counts.num_trials_started >= limit:
        return Verdict(f"max_num_trials_started={limit} reached", lets_running_finish=True)
    limit = criterion.max_num_trials_without_improvement
    if limit is not None and counts.num_trials_without_improvement >= limit:
        return Verdict(f"max_num_trials_without_improvement={limit} reached", lets_running_finish=True)
    return None


def _value_limit(criterion: StoppingCriterion, counts: Counts) -> str | None:
    """Return the reason if a metric or the hypervolume has reached its limit."""
    for name, limit in _metric_limits(criterion.max_metric_value, counts.metric).items():
        if counts.largest.get(name, -math.inf) >= limit:
            return f"{name} {counts.largest[name]:g} is at or above max_metric_value={limit:g}"
    for name, limit in _metric_limits(criterion.min_metric_value, counts.metric).items():
        if counts.smallest.get(name, math.inf) <= limit:
            return f"{name} {counts.smallest[name]:g} is at or below min_metric_value={limit:g}"
    volume, front = criterion.max_hypervolume, counts.hypervolume_front
    if volume is not None and front is not None and front.volume >= volume:
        return f"hypervolume {front.volume:g} is at or above max_hypervolume={volume:g}"
    return None


def limits_of(criterion: StoppingCriterion) -> dict[str, object]:
    """Return the options that are set, as JSON. `StoppingCriterion(**limits)` restores the criterion."""
    limits = ((option.name, getattr(criterion, option.name)) for option in fields(criterion))
    return {name: dict(limit) if isinstance(limit, Mapping) else limit for name, limit in limits if limit is not None}


def max_trials(criterion: StoppingCriterion) -> int | None:
    """Return an upper bound on the number of trials that can complete, or None."""
    limits = (criterion.max_num_trials_started, criterion.max_num_trials_completed, criterion.max_num_evaluations)
    return min((limit for limit in limits if limit is not None), default=None)


def reference_losses(criterion: StoppingCriterion, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """Return the reference point as losses, in the order of the objectives, or None.

    Raises ValueError if the names of the reference point are not those of the objectives.
    """
    point = criterion.reference_point
    if point is None:
        return None
    names = [objective.metric for objective in objectives]
    if sorted(names) != sorted(point):
        raise ValueError(
            f"reference_point must have a value for each objective, {', '.join(map(repr, names))}, "
            f"but got {', '.join(map(repr, point))}"
        )
    return tuple(objective.loss(point[objective.metric]) for objective in objectives)


def _metric_limits(limit: float | Mapping[str, float] | None, metric: str) -> Mapping[str, float]:
    if limit is None:
        return {}
    return limit if isinstance(limit, Mapping) else {metric: limit}


def _checked_metric_limit(name: str, limit: object) -> object:
    """Validate a limit and return a copy. Raises TypeError, ValueError."""
    if not isinstance(limit, Mapping):
        if not is_number(limit):
            raise TypeError(f"{name} must be a number or {{name of a metric: number}}, got {limit!r}")
        if not -math.inf < limit < math.inf:
            raise ValueError(f"{name} must be finite, got {limit!r}")
        return limit
    if not limit:
        raise ValueError(f"{name} must name at least one metric, got an empty dict")
    for metric, value in limit.items():
        if not isinstance(metric, str) or not is_number(value):
            raise TypeError(f"{name} must be {{name of a metric: number}}, got {limit!r}")
        _checked_metric_limit(f"{name}[{metric!r}]", value)
    return dict(limit)
