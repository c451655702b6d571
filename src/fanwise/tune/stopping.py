"""When a search ends: the limits a person sets, and the verdict on what has happened so far.

    Counts (seconds, trials, reports, extremes)  --StoppingCriterion.verdict-->  None, or why to stop and how hard

The names and meanings are Syne Tune's. Knows numbers only: no clock, no trials, no scheduler; the tuner fills Counts.
Counts keeps the extremes of the metrics that the criterion names and of no others, so its size does not grow, but for
the front of several objectives.
"""

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..base.nearest import names_nearest_option, nearest
from .hypervolume import Front, Undominated
from .searchers.base import Objective
from .values import is_number


@dataclass(frozen=True, slots=True)
class Verdict:
    """The search has to stop.

    Args:
        reason: which limit was reached, with values.
        lets_running_finish: True: start nothing more and wait; False: stop the running trials too.
    """

    reason: str
    lets_running_finish: bool


@dataclass(slots=True)
class Counts:
    """What a search has done so far.

    Args:
        metric: the scheduler's metric, which a limit written as a number means.
        watched: the metrics whose extremes are kept; `StoppingCriterion.watched(metric)`.
        unseen: those of them that no report has had.
        last_names: what the last report had, as long as some are unseen.
        num_trials_without_improvement: trials that have ended since the best report, without the one that made it.
        best_rank: infeasibility and first loss of the best finite report, void ones too.
        best_trial_id: whose the last improvement was.
        undominated: of several objectives, what no other feasible report dominates, void ones too.
        front: likewise, up to the criterion's reference point; None: it has none.
        wallclock_s: seconds since the search began, at the last look before it was stopped.
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
    undominated: Undominated = field(default_factory=Undominated)
    front: Front | None = None

    def __post_init__(self) -> None:
        self.unseen = self.watched

    @property
    def num_trials_finished(self) -> int:
        """Completed, stopped or failed."""
        return self.num_trials_completed + self.num_trials_stopped + self.num_trials_failed

    def watch(self, watched: frozenset[str]) -> None:
        """Keep the extremes of other metrics from now on; those that were kept before stay as they are."""
        self.unseen = (self.unseen & watched) | (watched - self.watched)
        self.watched = watched

    def keep_front(self, reference: Sequence[float] | None) -> None:
        """Keep the front up to this point, in losses, of what was reported before too."""
        if reference is None:
            self.front = None
        elif self.front is None or self.front.reference != tuple(reference):
            self.front = Front(reference)
            beyond, best_loss = self.best_rank
            of_one = [(best_loss,)] if len(reference) == 1 and beyond == 0.0 else []
            for losses in of_one or self.undominated.points:
                self.front.add(losses)

    def add_report(self, values: Mapping[str, object], *, is_feasible: bool = True) -> None:
        """One more evaluation. Watched values that are NaN, infinite or no numbers leave the extremes as they were, and
        so does a report that violates a constraint: a goal that is reached in that way is not reached.
        """
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
        """How far a report is from meeting all constraints, and its objectives; smaller is better."""
        grew = self.front is not None and not infeasibility and self.front.add(losses)
        loss, before = losses[0], self.best_rank
        is_better = math.isfinite(loss) and math.isfinite(infeasibility) and (infeasibility, loss) < before
        if is_better:
            self.best_rank = (infeasibility, loss)
        if len(losses) > 1 and not infeasibility:
            is_new = self.undominated.add(losses)
            is_better = grew if self.front is not None else is_new
            is_better |= is_new and before[0] > 0.0  # the first that is feasible
        if is_better:
            self.best_trial_id, self.num_trials_without_improvement = trial_id, 0

    def add_end(self, trial_id: int) -> None:
        """A trial is over, however it ended."""
        self.num_trials_without_improvement += trial_id != self.best_trial_id

    def missing_metric(self) -> str | None:
        """What to tell, when a trial has completed, of a watched metric that no report had; None: all were seen."""
        if not self.unseen:
            return None
        name, reported = min(self.unseen), ", ".join(map(repr, self.last_names))
        hint = None if name in self.last_names else nearest(name, self.last_names)
        return (
            f"the StoppingCriterion waits for the metric {name!r}, but a trial has completed without reporting it"
            f"{' as a number' if name in self.last_names else ''}; "
            f"it reported {reported}" + (f"; did you mean {hint!r}?" if hint else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingCriterion:
    """The search ends when the first of these limits is reached. At least one must be set.

    Args:
        max_wallclock_time: seconds since the search began; `math.inf` for a search that only Ctrl-C ends.
        max_num_trials_started: trials started; those that run then may finish, and paused ones still go on as the
            scheduler decides. All other limits but the next one stop them.
        max_num_trials_without_improvement: trials that have ended, in whatever way, since the scheduler's metric was
            better than ever, or a report came nearer to meeting all constraints. Of several objectives: since a report
            was one that no earlier one dominates or equals, or with `reference_point` since the hypervolume grew. The
            others go on likewise: one of them may be the better one.
        max_num_trials_completed: trials that ran to their end (neither stopped nor failed).
        max_num_evaluations: reports of all trials together.
        max_metric_value: the metric is at or above this; a number for the scheduler's metric, or {name: number}. What
            is infinite does not count.
        min_metric_value: the metric is at or below this; likewise.
        max_hypervolume: the volume that the reports dominate together, up to `reference_point`, is at or above this;
            for several objectives. Reports that violate a constraint do not count.
        reference_point: {name of an objective: the value that is just not good enough any more}, for all objectives;
            with one of the two limits that it has a meaning to.

    Raises:
        TypeError: a limit of the wrong type, or an unknown one (names the nearest).
        ValueError: no limit at all, or one that is NaN or not above 0 (metric values may be negative).

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
        limits = [option.name for option in fields(self) if option.name != "reference_point"]
        if all(getattr(self, name) is None for name in limits):
            raise ValueError(
                f"StoppingCriterion() would let the search run for ever; set one of {', '.join(limits)}, "
                f"or say that you mean it: max_wallclock_time=math.inf"
            )
        _check_seconds(self.max_wallclock_time)
        for name in limits:
            if name.startswith("max_num_"):
                _check_count(name, getattr(self, name))
        for name in ("max_metric_value", "min_metric_value"):
            object.__setattr__(self, name, _metric_limit(name, getattr(self, name)))
        self._check_hypervolume()

    @property
    def most_trials(self) -> int | None:
        """So many trials may come to their end in a search; None: no limit says so."""
        limits = (self.max_num_trials_started, self.max_num_trials_completed, self.max_num_evaluations)
        return min((limit for limit in limits if limit is not None), default=None)

    def _check_hypervolume(self) -> None:
        limit, reference = self.max_hypervolume, self.reference_point
        if limit is not None and reference is None:
            raise ValueError(f"max_hypervolume needs a reference_point: got max_hypervolume={limit!r} alone")
        if reference is None:
            return
        if limit is None and self.max_num_trials_without_improvement is None:
            raise ValueError(
                "reference_point says what max_hypervolume or max_num_trials_without_improvement measure: "
                f"got reference_point={reference!r} without either"
            )
        if limit is not None and not is_number(limit):
            raise TypeError(f"max_hypervolume must be a number, got {limit!r} of type {type(limit).__name__}")
        if limit is not None and not 0 < limit < math.inf:
            raise ValueError(f"max_hypervolume must be above 0 and finite, got {limit!r}")
        if not isinstance(reference, Mapping):
            raise TypeError(f"reference_point must be {{name of an objective: number}}, got {reference!r}")
        object.__setattr__(self, "reference_point", _metric_limit("reference_point", reference))

    def reference_losses(self, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
        """The reference point as losses, in the order of the objectives; None: there is none.

        Raises:
            ValueError: it does not have a value for each objective, or others; names them.
        """
        if self.reference_point is None:
            return None
        names = [objective.metric for objective in objectives]
        if sorted(names) != sorted(self.reference_point):
            raise ValueError(
                f"reference_point must have a value for each objective, {', '.join(map(repr, names))}, "
                f"and got {', '.join(map(repr, self.reference_point))}"
            )
        return tuple(objective.loss(self.reference_point[objective.metric]) for objective in objectives)

    def to_json(self) -> dict[str, object]:
        """The limits that are set, for the record; an infinite one is written as Python's JSON does."""
        limits = {option.name: getattr(self, option.name) for option in fields(self)}
        return {
            name: dict(limit) if isinstance(limit, Mapping) else limit
            for name, limit in limits.items()
            if limit is not None
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "StoppingCriterion":  # Any: JSON
        """The criterion that `to_json` wrote. Raises TypeError, ValueError as the constructor."""
        return cls(**body)

    def watched(self, metric: str) -> frozenset[str]:
        """Names of the metrics whose extremes the verdict needs; `metric` is the scheduler's."""
        return frozenset(_limits(self.max_metric_value, metric)) | frozenset(_limits(self.min_metric_value, metric))

    def verdict(self, counts: Counts) -> Verdict | None:
        """Whether to stop. A limit that stops the running trials goes before the one that lets them finish."""
        reason = self._reached(counts)
        if reason is not None:
            return Verdict(reason, lets_running_finish=False)
        most = self.max_num_trials_started
        if most is not None and counts.num_trials_started >= most:
            return Verdict(f"max_num_trials_started={most} reached", lets_running_finish=True)
        most = self.max_num_trials_without_improvement
        if most is not None and counts.num_trials_without_improvement >= most:
            return Verdict(f"max_num_trials_without_improvement={most} reached", lets_running_finish=True)
        return None

    def hard_verdict(self, counts: Counts) -> Verdict | None:
        """Whether to stop the running trials too."""
        reason = self._reached(counts)
        return None if reason is None else Verdict(reason, lets_running_finish=False)

    def _reached(self, counts: Counts) -> str | None:
        """The first limit that stops running trials too, if one is reached. Asked at every fact of a search."""
        limit_s = self.max_wallclock_time
        if limit_s is not None and counts.wallclock_s >= limit_s:
            return f"max_wallclock_time={limit_s:g} s is over"
        most = self.max_num_trials_completed
        if most is not None and counts.num_trials_completed >= most:
            return f"max_num_trials_completed={most} reached"
        most = self.max_num_evaluations
        if most is not None and counts.num_evaluations >= most:
            return f"max_num_evaluations={most} reached"
        if self.max_metric_value is not None:
            for name, limit in _limits(self.max_metric_value, counts.metric).items():
                if counts.largest.get(name, -math.inf) >= limit:
                    return f"{name} {counts.largest[name]:g} is at or above max_metric_value={limit:g}"
        if self.min_metric_value is not None:
            for name, limit in _limits(self.min_metric_value, counts.metric).items():
                if counts.smallest.get(name, math.inf) <= limit:
                    return f"{name} {counts.smallest[name]:g} is at or below min_metric_value={limit:g}"
        most_volume, front = self.max_hypervolume, counts.front
        if most_volume is not None and front is not None and front.volume >= most_volume:
            return f"hypervolume {front.volume:g} is at or above max_hypervolume={most_volume:g}"
        return None


# Below the class, because the dataclass writes this method itself.
StoppingCriterion.__init__ = names_nearest_option(StoppingCriterion.__init__)  # type: ignore[assignment,method-assign]


def _limits(limit: float | Mapping[str, float] | None, metric: str) -> Mapping[str, float]:
    if limit is None:
        return {}
    return limit if isinstance(limit, Mapping) else {metric: limit}


def _check_seconds(limit: object) -> None:
    if limit is None:
        return
    if not is_number(limit):
        raise TypeError(f"max_wallclock_time must be seconds, got {limit!r} of type {type(limit).__name__}")
    if not limit > 0:
        raise ValueError(f"max_wallclock_time must be above 0 seconds, got {limit!r}")


def _check_count(name: str, limit: object) -> None:
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, numbers.Integral):
        raise TypeError(f"{name} must be an int, got {limit!r} of type {type(limit).__name__}")
    if limit < 1:
        raise ValueError(f"{name} must be at least 1, got {limit!r}")


def _metric_limit(name: str, limit: object) -> object:
    """The checked limit; a dict is copied, so that the caller's may change."""
    if limit is None:
        return None
    if not isinstance(limit, Mapping):
        return _metric_value(name, limit)
    if not limit:
        raise ValueError(f"{name} must name at least one metric, got an empty dict")
    for metric in limit:
        if not isinstance(metric, str):
            raise TypeError(f"{name} must be {{name of a metric: number}}, got the key {metric!r}")
    return {metric: _metric_value(f"{name}[{metric!r}]", value) for metric, value in limit.items()}


def _metric_value(name: str, value: object) -> float:
    if not is_number(value):
        raise TypeError(f"{name} must be a number or {{name of a metric: number}}, got {value!r}")
    if not -math.inf < value < math.inf:
        raise ValueError(f"{name} must be finite, got {value!r}")
    return value
