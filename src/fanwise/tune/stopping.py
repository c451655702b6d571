"""Stopping criteria of a search. Names and meanings of the limits are those of Syne Tune.

The search updates its `Counts`, and `reached_limit` compares the counts with the limits. The size of `Counts` is
constant, except for the Pareto front of several objectives.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from ..base.nearest import names_nearest_option
from .pareto import HypervolumeFront, ParetoFront
from .searchers.searcher import Objective
from .values import checked_int, checked_number, is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingCriterion:
    """Ends the search when the first limit is reached. At least one limit must be set.

    At most limits, running trials are stopped. At `max_num_trials_started` and `max_num_trials_without_improvement`,
    running trials finish and paused ones may resume, but no new ones start.

    Args:
        max_wallclock_time: seconds since the search began. `math.inf`: run until Ctrl-C.
        max_num_trials_started: number of trials started.
        max_num_trials_without_improvement: number of trials that ended since the last improvement. A report is an
            improvement if it is better than all earlier ones (smaller infeasibility, or equal infeasibility and better
            metric). With several objectives, feasible reports improve if no earlier one dominates them, or, with
            `reference_point`, if they increase the hypervolume.
        max_num_trials_completed: number of trials that ran to their end (neither stopped nor failed).
        max_num_evaluations: number of reports of all trials.
        max_metric_value: stop if the first metric is at or above this number. Infinite values and infeasible reports
            are ignored.
        min_metric_value: stop if the first metric is at or below this number, as above.
        max_hypervolume: stop if the hypervolume of the feasible reports is at or above this number.
        reference_point: reference point of the hypervolume, {objective: value} for all objectives. Requires
            `max_hypervolume` or `max_num_trials_without_improvement`.

    Raises:
        TypeError: a limit has the wrong type or is unknown (the message names the closest one).
        ValueError: no limit is set, a required one is missing, or a limit is NaN or not above 0 (metric values may be
            negative).

    >>> StoppingCriterion(max_time=720)
    Traceback (most recent call last):
    TypeError: StoppingCriterion has no option 'max_time'; did you mean 'max_wallclock_time'?
    """

    max_wallclock_time: float | None = None
    max_num_trials_started: int | None = None
    max_num_trials_without_improvement: int | None = None
    max_num_trials_completed: int | None = None
    max_num_evaluations: int | None = None
    max_metric_value: float | None = None
    min_metric_value: float | None = None
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
            for objective, value in self.reference_point.items():
                _check_finite(f"reference_point[{objective!r}]", value)
            object.__setattr__(self, "reference_point", dict(self.reference_point))
        for name, limit in limits.items():
            if name.startswith("max_num_"):
                checked_int(name, limit, 1)
            elif name in ("max_metric_value", "min_metric_value"):
                _check_finite(name, limit)
            elif name in ("max_wallclock_time", "max_hypervolume") and not checked_number(name, limit) > 0:
                raise ValueError(f"{name} must be above 0, got {limit!r}")


# Set after the class definition, because dataclass generates __init__.
StoppingCriterion.__init__ = names_nearest_option(StoppingCriterion.__init__)  # type: ignore[assignment,method-assign]


@dataclass(slots=True)
class Counts:
    """Progress of a search. Reports that become void (see `record.state`) remain included.

    Args:
        metric: first metric of the scheduler.
        num_trials_without_improvement: number of trials that ended since the last improvement, without the trial
            `best_trial_id`.
        best_key: infeasibility and first loss of the best finite report.
        best_trial_id: trial of the last improvement.
        smallest, largest: the extremes of the first metric in feasible reports.
        pareto_front: feasible non-dominated reports. Empty for one objective.
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
    best_key: tuple[float, float] = (math.inf, math.inf)
    best_trial_id: int | None = None
    smallest: float = math.inf
    largest: float = -math.inf
    pareto_front: ParetoFront = field(default_factory=ParetoFront)
    hypervolume_front: HypervolumeFront | None = None

    def track_hypervolume(self, reference_point: Sequence[float] | None) -> None:
        """Track the hypervolume of all reports, also of earlier ones. `reference_point`: as from `reference_losses`."""
        if reference_point is None:
            self.hypervolume_front = None
        elif self.hypervolume_front is None or self.hypervolume_front.reference != tuple(reference_point):
            self.hypervolume_front = HypervolumeFront(reference_point)
            infeasibility, best_loss = self.best_key
            is_single = len(reference_point) == 1 and infeasibility == 0.0
            for losses in [(best_loss,)] if is_single else self.pareto_front.points:
                self.hypervolume_front.add(losses)

    def add_result(self, trial_id: int, infeasibility: float, losses: Sequence[float], value: float) -> None:
        """Update the best report, the extremes and the fronts with a report. `value`: its first metric, as reported."""
        if not infeasibility and math.isfinite(value):
            if value < self.smallest:
                self.smallest = value
            if value > self.largest:
                self.largest = value
        front = self.hypervolume_front
        has_grown = front is not None and not infeasibility and front.add(losses)
        loss, previous_key = losses[0], self.best_key
        is_better = (infeasibility, loss) < previous_key and math.isfinite(loss) and math.isfinite(infeasibility)
        if is_better:
            self.best_key = (infeasibility, loss)
        if len(losses) > 1 and not infeasibility:
            is_new = self.pareto_front.add(losses)
            is_better = has_grown if front is not None else is_new
            is_better |= is_new and previous_key[0] > 0.0  # the first feasible report
        if is_better:
            self.best_trial_id, self.num_trials_without_improvement = trial_id, 0

    def add_end(self, trial_id: int) -> None:
        """Count a trial that has ended."""
        self.num_trials_without_improvement += trial_id != self.best_trial_id


class ReachedLimit(NamedTuple):
    """A limit that was reached. `reason`: text for users. `lets_running_finish`: running trials are not stopped."""

    reason: str
    lets_running_finish: bool


def reached_limit(criterion: StoppingCriterion, counts: Counts, *, is_draining: bool = False) -> ReachedLimit | None:
    """Return the limit that was reached, or None. Limits that stop running trials take precedence.

    Called at every event. `is_draining`: no new trials start any more, so only limits that stop running trials matter.
    """
    limit_s = criterion.max_wallclock_time
    if limit_s is not None and counts.wallclock_s >= limit_s:
        return ReachedLimit(f"max_wallclock_time={limit_s:g} s is over", lets_running_finish=False)
    limit = criterion.max_num_trials_completed
    if limit is not None and counts.num_trials_completed >= limit:
        return ReachedLimit(f"max_num_trials_completed={limit} reached", lets_running_finish=False)
    limit = criterion.max_num_evaluations
    if limit is not None and counts.num_evaluations >= limit:
        return ReachedLimit(f"max_num_evaluations={limit} reached", lets_running_finish=False)
    bound = criterion.max_metric_value
    if bound is not None and counts.largest >= bound:
        reason = f"{counts.metric} {counts.largest:g} is at or above max_metric_value={bound:g}"
        return ReachedLimit(reason, lets_running_finish=False)
    bound = criterion.min_metric_value
    if bound is not None and counts.smallest <= bound:
        reason = f"{counts.metric} {counts.smallest:g} is at or below min_metric_value={bound:g}"
        return ReachedLimit(reason, lets_running_finish=False)
    bound, front = criterion.max_hypervolume, counts.hypervolume_front
    if bound is not None and front is not None and front.volume >= bound:
        reason = f"hypervolume {front.volume:g} is at or above max_hypervolume={bound:g}"
        return ReachedLimit(reason, lets_running_finish=False)
    if is_draining:
        return None
    limit = criterion.max_num_trials_started
    if limit is not None and counts.num_trials_started >= limit:
        return ReachedLimit(f"max_num_trials_started={limit} reached", lets_running_finish=True)
    limit = criterion.max_num_trials_without_improvement
    if limit is not None and counts.num_trials_without_improvement >= limit:
        return ReachedLimit(f"max_num_trials_without_improvement={limit} reached", lets_running_finish=True)
    return None


def limits_of(criterion: StoppingCriterion) -> dict[str, object]:
    """Return the options that are not None, as JSON. `StoppingCriterion(**limits)` restores the criterion."""
    limits = ((option.name, getattr(criterion, option.name)) for option in fields(criterion))
    return {name: dict(limit) if isinstance(limit, Mapping) else limit for name, limit in limits if limit is not None}


def max_trials(criterion: StoppingCriterion) -> int | None:
    """Return an upper bound on the number of trials that can complete, or None if the criterion sets none."""
    limits = (criterion.max_num_trials_started, criterion.max_num_trials_completed, criterion.max_num_evaluations)
    return min((limit for limit in limits if limit is not None), default=None)


def reference_losses(criterion: StoppingCriterion, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """Return the reference point as losses, in the order of the objectives, or None if the criterion has none.

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


def _check_finite(name: str, value: object) -> None:
    if not is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    if not -math.inf < value < math.inf:
        raise ValueError(f"{name} must be finite, got {value!r}")
