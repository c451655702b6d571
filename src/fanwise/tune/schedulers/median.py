"""The median stopping rule: a trial stops when its best is worse than the median of the others' running averages.

The rule of Golovin et al., "Google Vizier", KDD 2017, section 3.2.1: at a step a trial is compared with the average, up
to this step, of the losses of each trial that has got as far; here also of those that still run, since with many
workers few have ended when the first decisions are due. It goes on top of any scheduler: what that one stops or pauses
stays stopped or paused. A report that violates a constraint counts as an infinite loss here: an average of losses and
violations would mean nothing. Memory grows with the reports, since each may change a median.
"""

import math
from dataclasses import dataclass
from typing import final

from ..constraints import Constraint, constraints_of
from ..searchers.base import Ask, Objective, Observation, Searcher
from ..spaces import Space
from ..values import at_least, is_number
from .protocol import Decision, NextTrial, Scheduler, Status
from .rungs import Key, Rung
from .settings import checks_options


@dataclass(slots=True)
class _Step:
    """What a report left: with which averages it is compared, and the trial's best and sum of losses so far."""

    iter: int
    resource: float
    key: Key
    best: float
    total: float


@final
class MedianStoppingRule:
    """Stops trials by the median rule, on top of a scheduler that decides all else.

    Args:
        scheduler: for example `RandomSearch(metric="loss")`; its first objective and its `resource_attr` are compared.
        grace_time: no trial is stopped at a resource below this.
        grace_population: no trial is stopped at a resource that fewer others have reached.

    Raises:
        TypeError: an unknown option (names the nearest), or an argument of the wrong type.
        ValueError: an argument out of range.

    >>> from fanwise.tune import RandomSearch
    >>> scheduler = MedianStoppingRule(RandomSearch(metric="loss"), grace_population=2)
    >>> scheduler.begin(Space({"depth": 3}), seed=0)
    >>> [str(scheduler.on_report(Observation(i, {}, 1, 1, (float(i),), {}))) for i in range(4)]
    ['CONTINUE', 'CONTINUE', 'STOP', 'STOP']
    """

    @checks_options
    def __init__(self, scheduler: Scheduler, *, grace_time: float = 1, grace_population: int = 5) -> None:
        if not isinstance(scheduler, Scheduler):
            raise TypeError(f"scheduler must be a scheduler, for example RandomSearch(metric=...), got {scheduler!r}")
        if not is_number(grace_time):
            raise TypeError(f"grace_time must be a number, got {grace_time!r} of type {type(grace_time).__name__}")
        self.scheduler = scheduler
        self.random_seed: int | None = getattr(scheduler, "random_seed", None)
        self._grace_time = float(grace_time)
        self._grace_population = at_least("grace_population", grace_population, 1)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return self.scheduler.objectives

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return constraints_of(self.scheduler)

    @property
    def resource_attr(self) -> str | None:
        return self.scheduler.resource_attr

    @property
    def max_resource(self) -> float | None:
        return self.scheduler.max_resource

    @property
    def searcher(self) -> Searcher | None:
        return self.scheduler.searcher

    @property
    def clones(self) -> bool:
        return self.scheduler.clones

    def check(self, space: Space) -> None:
        self.scheduler.check(space)

    def begin(self, space: Space, seed: int) -> None:
        self.scheduler.begin(space, seed)
        self._averages: dict[float, Rung] = {}
        self._steps: dict[int, list[_Step]] = {}  # of each trial that may still report
        self._num_steps = 0

    def next(self, ask: Ask) -> NextTrial:
        return self.scheduler.next(ask)

    def on_report(self, observation: Observation) -> Decision:
        decision, is_bad = self.scheduler.on_report(observation), self._enter(observation)
        return Decision.STOP if is_bad and decision is Decision.CONTINUE else decision

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        self.scheduler.on_rewind(trial_id, to_iter)
        steps = self._steps.get(trial_id, [])
        while steps and steps[-1].iter > to_iter:
            step = steps.pop()
            self._averages[step.resource].forget(step.key)

    def on_end(self, trial_id: int, status: Status) -> None:
        """Its averages stand."""
        self.scheduler.on_end(trial_id, status)
        self._steps.pop(trial_id, None)

    def describe(self) -> dict[str, object]:
        return {
            "name": "MedianStoppingRule",
            "grace_time": self._grace_time,
            "grace_population": self._grace_population,
            "scheduler": self.scheduler.describe(),
        }

    def _enter(self, observation: Observation) -> bool:
        """Whether the trial is worse than the median of the others; then its average counts for those that follow."""
        steps = self._steps.setdefault(observation.trial_id, [])
        loss, resource = math.inf if observation.infeasibility else observation.loss, observation.resource
        best, total = (min(loss, steps[-1].best), steps[-1].total + loss) if steps else (loss, loss)
        averages = self._averages.get(resource)
        if averages is None:
            averages = self._averages[resource] = Rung(2.0)
        may_stop = resource >= self._grace_time and len(averages) >= self._grace_population
        is_bad = may_stop and best > _median(averages)
        key = (0.0, total / (len(steps) + 1), self._num_steps)
        self._num_steps += 1
        averages.enter(key)
        steps.append(_Step(observation.iter, resource, key, best, total))
        return is_bad


def _median(averages: Rung) -> float:
    """Of an odd number the middle one, else the average of the two in the middle."""
    inside, outside = averages.last_inside, averages.first_outside
    assert outside is not None, "one half of something is outside"
    if inside is None or len(averages) % 2:
        return outside[1]
    if inside[1] == outside[1]:
        return inside[1]  # also where both are infinite
    return inside[1] / 2 + outside[1] / 2
