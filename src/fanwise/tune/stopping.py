"""Stopping criteria of a search. The names of the limits and their meanings are those of Syne Tune.

The search updates `Counts`, and `StoppingCriterion.verdict` evaluates them without reading a clock. `Counts`
has a constant size, except for the Pareto front of several objectives.
"""

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..base.nearest import names_nearest_option, nearest
from .pareto import HypervolumeFront, ParetoFront
from .searchers.searcher import Objective
from .values import is_number


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision to stop the search. `reason`: the limit that was reached, with its value."""

    reason: str
    lets_running_finish: bool  # True: start no more trials and wait for the running ones; False: stop them


@dataclass(slots=True)
class Counts:
    """Progress of a search, including reports that were discarded later.

    Args:
        metric: metric of the scheduler, used for limits given as a number.
        watched: metrics whose extremes are tracked; see `StoppingCriterion.watched`.
        wallclock_s: seconds since the search began.
        num_trials_without_improvement: trials that ended since the best report, except the trial that made it.
        best_rank: infeasibility and first loss of the best finite report.
        best_trial_id: trial of the last improvement.
        unseen: watched metrics that no report has contained.
        last_names: names in the last report; updated only while some metrics are unseen.
        pareto_front: feasible non-dominated reports, for several objectives.
        hypervolume_front: feasible reports that increased the hypervolume; None without a reference point.
    """

    metric: str
    watched: frozenset[str]
    wallclock_s: float = 0.0
    num_trials_started: int = 0
    num_trials_completed: int = 0
    num_trials_stopped: int = 0
    num_trials_failed: int = 0
    num_evaluations: int = 0
    num_trials_without_improvement: int = 0
    best_rank: tuple[float, float] = (math.inf, math.inf)
    best_trial_id: int | None = None
    smallest: dict[str, float] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    unseen: frozenset[str] = field(init=False)
    last_names: tuple[str, ...] = ()
    pareto_front: ParetoFront = field(default_factory=ParetoFront)
    hypervolume_front: HypervolumeFront | None = None

    def __post_init__(self) -> None:
        self.unseen = self.watched

    @property
    def num_trials_finished(self) -> int:
        """Number of trials that completed, were stopped or failed."""
        return self.num_trials_completed + self.num_trials_stopped + self.num_trials_failed

    def watch(self, watched: frozenset[str]) -> None:
        """Change the watched metrics; extremes tracked so far are kept."""
        self.unseen = (self.unseen & watched) | (watched - self.watched)
        self.watched = watched

    def keep_front(self, reference: Sequence[float] | None) -> None:
        """Track the hypervolume with respect to a reference point, in losses, including earlier reports."""
        if reference is None:
            self.hypervolume_front = None
        elif self.hypervolume_front is None or self.hypervolume_front.reference != tuple(reference):
            self.hypervolume_front = HypervolumeFront(reference)
            infeasibility, best_loss = self.best_rank
            best = [(best_loss,)] if len(reference) == 1 and infeasibility == 0.0 else []
            for losses in best or self.pareto_front.points:
                self.hypervolume_front.add(losses)

    def add_report(self, values: Mapping[str, object], *, is_feasible: bool = True) -> None:
        """Count a report. Infeasible reports and non-finite values do not change the extremes."""
        self.num_evaluations += 1
        if self.unseen:
            self.unseen -= {name for name, value in values.items() if is_number(value)}
            self.last_names = tuple(values)
        if not is_feasible:
            return
        for name in self.watched:
            value = values.get(name)
            if is_number(value) and math.isfinite(value):
                self.smallest[name] = min(value, self.smallest.get(name, value))
                self.largest[name] = max(value, self.largest.get(name, value))

    def add_result(self, trial_id: int, infeasibility: float, losses: Sequence[float]) -> None:
        """Update the best results with the infeasibility and losses of a report."""
        front = self.hypervolume_front
        has_grown = front is not None and not infeasibility and front.add(losses)
        loss, previous = losses[0], self.best_rank
        is_better = math.isfinite(loss) and math.isfinite(infeasibility) and (infeasibility, loss) < previous
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
        """Return an error message if a watched metric was never reported. Called when a trial has completed."""
        if not self.unseen:
            return None
        name, reported = min(self.unseen), ", ".join(map(repr, self.last_names))
        hint = None if name in self.last_names else nearest(name, self.last_names)
        return (
            f"the StoppingCriterion needs the metric {name!r}, but a trial completed without reporting it"
            f"{' as a number' if name in self.last_names else ''}; "
            f"it reported {reported}" + (f"; did you mean {hint!r}?" if hint else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingCriterion:
    """Ends the search when the first limit is reached. At least one limit must be set.

    Running trials are stopped, except for `max_num_trials_started` and `max_num_trials_without_improvement`, which let
    running trials finish and paused ones resume.

    Args:
        max_wallclock_time: seconds since the search began; `math.inf` to run until Ctrl-C.
        max_num_trials_started: number of trials started.
        max_num_trials_without_improvement: number of trials that ended since the last improvement. An improvement is a
            better metric or a smaller infeasibility. With several objectives, it is a non-dominated report, or, with
            `reference_point`, an increase of the hypervolume.
        max_num_trials_completed: number of trials that ran to their end (neither stopped nor failed).
        max_num_evaluations: number of reports of all trials.
        max_metric_value: stop if the metric is at or above this; a number for the scheduler's metric, or {name:
            number}. Infinite values are ignored.
        min_metric_value: stop if the metric is at or below this; same format as `max_metric_value`.
        max_hypervolume: stop if the hypervolume of the feasible reports is at or above this; for several objectives.
        reference_point: {objective: value} for all objectives; reference point of the hypervolume. Requires
            `max_hypervolume` or `max_num_trials_without_improvement`.

    Raises:
        TypeError: a limit of the wrong type, or an unknown one (the message names the closest).
        ValueError: no limit, or one that is NaN or not above 0 (metric values may be negative).

    >>> StoppingCriterion(max_time=720)
    Traceback (most recent call last):
    TypeError: StoppingCriterion has no option 'max_time'; did you mean 'max_wallclock_time'?
    >>> criterion = StoppingCriterion(max_wallclock_time=720, min_metric_value={"validation_error": 0.1})
    >>> counts = Counts("validation_error", criterion.watched("validation_error"), wallclock_s=720.4)
    >>> criterion.verdict(counts)
    Verdict(reason='max_wallclock_time=720 s is over', lets_running_finish=False)
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
        limits = {option.name: getattr(self, option.name) for option in fields(self)}
        reference = limits.pop("reference_point")
        if all(limit is None for limit in limits.values()):
            raise ValueError(
                f"StoppingCriterion() would never end the search; set one of {', '.join(limits)}, "
                f"or max_wallclock_time=math.inf to run until interrupted"
            )
        limit_s = self.max_wallclock_time
        if limit_s is not None and not is_number(limit_s):
            raise TypeError(f"max_wallclock_time must be seconds, got {limit_s!r} of type {type(limit_s).__name__}")
        if limit_s is not None and not limit_s > 0:
            raise ValueError(f"max_wallclock_time must be above 0 seconds, got {limit_s!r}")
        for name, limit in limits.items():
            if name.startswith("max_num_") and limit is not None:
                if isinstance(limit, bool) or not isinstance(limit, numbers.Integral):
                    raise TypeError(f"{name} must be an int, got {limit!r} of type {type(limit).__name__}")
                if limit < 1:
                    raise ValueError(f"{name} must be at least 1, got {limit!r}")
        for name in ("max_metric_value", "min_metric_value"):
            if limits[name] is not None:
                object.__setattr__(self, name, _checked_metric_limit(name, limits[name]))
        if reference is not None or self.max_hypervolume is not None:
            self._check_hypervolume(self.max_hypervolume, reference)

    @property
    def max_trials(self) -> int | None:
        """Upper bound on the number of trials that can complete; None if there is no such limit."""
        limits = (self.max_num_trials_started, self.max_num_trials_completed, self.max_num_evaluations)
        return min((limit for limit in limits if limit is not None), default=None)

    def _check_hypervolume(self, limit: object, reference: object) -> None:
        if reference is None:
            raise ValueError(f"max_hypervolume needs a reference_point: got max_hypervolume={limit!r} alone")
        if limit is None and self.max_num_trials_without_improvement is None:
            raise ValueError(
                "reference_point requires max_hypervolume or max_num_trials_without_improvement: "
                f"got reference_point={reference!r} without either"
            )
        if limit is not None and not is_number(limit):
            raise TypeError(f"max_hypervolume must be a number, got {limit!r} of type {type(limit).__name__}")
        if limit is not None and not 0 < limit < math.inf:
            raise ValueError(f"max_hypervolume must be above 0 and finite, got {limit!r}")
        if not isinstance(reference, Mapping):
            raise TypeError(f"reference_point must be {{name of an objective: number}}, got {reference!r}")
        object.__setattr__(self, "reference_point", _checked_metric_limit("reference_point", reference))

    def reference_losses(self, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
        """Return the reference point as losses, in the order of the objectives, or None.

        Raises ValueError if the names of the reference point are not those of the objectives.
        """
        if self.reference_point is None:
            return None
        names = [objective.metric for objective in objectives]
        if sorted(names) != sorted(self.reference_point):
            raise ValueError(
                f"reference_point must have a value for each objective, {', '.join(map(repr, names))}, "
                f"but got {', '.join(map(repr, self.reference_point))}"
            )
        return tuple(objective.loss(self.reference_point[objective.metric]) for objective in objectives)

    def to_json(self) -> dict[str, object]:
        """Return the limits that are set, as JSON."""
        limits = ((option.name, getattr(self, option.name)) for option in fields(self))
        return {name: dict(v) if isinstance(v, Mapping) else v for name, v in limits if v is not None}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "StoppingCriterion":
        """Restore a criterion from `to_json`. Raises TypeError, ValueError as the constructor does."""
        return cls(**body)

    def watched(self, metric: str) -> frozenset[str]:
        """Return the metrics whose extremes must be tracked. `metric`: metric of the scheduler."""
        return frozenset(_limits(self.max_metric_value, metric)) | frozenset(_limits(self.min_metric_value, metric))

    def verdict(self, counts: Counts) -> Verdict | None:
        """Return the verdict if a limit was reached. Limits that stop running trials take precedence."""
        reason = self._hard_limit_reached(counts)
        if reason is not None:
            return Verdict(reason, lets_running_finish=False)
        reason = self._count_limit_reached(counts, ("num_trials_started", "num_trials_without_improvement"))
        return None if reason is None else Verdict(reason, lets_running_finish=True)

    def hard_verdict(self, counts: Counts) -> Verdict | None:
        """Return the verdict if a limit that stops running trials was reached."""
        reason = self._hard_limit_reached(counts)
        return None if reason is None else Verdict(reason, lets_running_finish=False)

    def _count_limit_reached(self, counts: Counts, names: Sequence[str]) -> str | None:
        for name in names:
            limit = getattr(self, f"max_{name}")
            if limit is not None and getattr(counts, name) >= limit:
                return f"max_{name}={limit} reached"
        return None

    def _hard_limit_reached(self, counts: Counts) -> str | None:
        """Return the reason if a limit that stops running trials was reached. Called at every event."""
        limit_s = self.max_wallclock_time
        if limit_s is not None and counts.wallclock_s >= limit_s:
            return f"max_wallclock_time={limit_s:g} s is over"
        reason = self._count_limit_reached(counts, ("num_trials_completed", "num_evaluations"))
        if reason is not None:
            return reason
        if self.max_metric_value is not None:
            for name, bound in _limits(self.max_metric_value, counts.metric).items():
                if counts.largest.get(name, -math.inf) >= bound:
                    return f"{name} {counts.largest[name]:g} is at or above max_metric_value={bound:g}"
        if self.min_metric_value is not None:
            for name, bound in _limits(self.min_metric_value, counts.metric).items():
                if counts.smallest.get(name, math.inf) <= bound:
                    return f"{name} {counts.smallest[name]:g} is at or below min_metric_value={bound:g}"
        volume, front = self.max_hypervolume, counts.hypervolume_front
        if volume is not None and front is not None and front.volume >= volume:
            return f"hypervolume {front.volume:g} is at or above max_hypervolume={volume:g}"
        return None


# Set after the class definition, because dataclass generates __init__.
StoppingCriterion.__init__ = names_nearest_option(StoppingCriterion.__init__)  # type: ignore[assignment,method-assign]


def _limits(limit: float | Mapping[str, float] | None, metric: str) -> Mapping[str, float]:
    if limit is None:
        return {}
    return limit if isinstance(limit, Mapping) else {metric: limit}


def _checked_metric_limit(name: str, limit: object) -> object:
    """Validate a limit and return a copy. Raises TypeError, ValueError."""
    if not isinstance(limit, Mapping):
        return _checked_metric_value(name, limit)
    if not limit:
        raise ValueError(f"{name} must name at least one metric, got an empty dict")
    for metric in limit:
        if not isinstance(metric, str):
            raise TypeError(f"{name} must be {{name of a metric: number}}, got the key {metric!r}")
    return {metric: _checked_metric_value(f"{name}[{metric!r}]", value) for metric, value in limit.items()}


def _checked_metric_value(name: str, value: object) -> float:
    if not is_number(value):
        raise TypeError(f"{name} must be a number or {{name of a metric: number}}, got {value!r}")
    if not -math.inf < value < math.inf:
        raise ValueError(f"{name} must be finite, got {value!r}")
    return value
