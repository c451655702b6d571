"""The median stopping rule (Golovin et al., "Google Vizier", KDD 2017, section 3.2.2).

When a trial reports at resource r, the losses up to r are averaged for every other trial that has reached r. The trial
is stopped if its best loss is worse than the median of these averages. Trials need not report at the same resources, so
the resource can also be a time in seconds. Unlike in the paper, running trials count too, because with many workers few
trials have ended when the first decisions are due.

A report that violates a constraint counts as an infinite loss, because averages of losses and violations are
meaningless. Memory grows with the number of reports, and the time of a decision with the number of trials.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Unpack, final

from ..searchers.searcher import Observation, Searcher, SuggestContext
from ..space import Space
from ..values import checked_int, checked_number, round_resource
from .scheduler import CONTINUE, STOP, Decision, New, NextTrial, Scheduler, SchedulerOptions


@dataclass(slots=True)
class _Curve:
    """The valid reports of a trial, with the sum, average and minimum of the losses up to each report."""

    iters: list[int] = field(default_factory=list)
    resources: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    averages: list[float] = field(default_factory=list)
    minima: list[float] = field(default_factory=list)

    def add(self, iter: int, resource: float, loss: float) -> None:
        self.iters.append(iter)
        self.resources.append(resource)
        self.sums.append(self.sums[-1] + loss if self.sums else loss)
        self.minima.append(min(self.minima[-1], loss) if self.minima else loss)
        # Rounding can make an average smaller than the minimum (0.1 added ten times is below 1). Without max(), a trial
        # with a constant loss could count as worse than another with the same loss.
        self.averages.append(max(self.sums[-1] / len(self.sums), self.minima[-1]))

    def roll_back(self, to_iter: int) -> None:
        num_valid = bisect_right(self.iters, to_iter)
        for column in (self.iters, self.resources, self.sums, self.averages, self.minima):
            del column[num_valid:]


@final
class MedianStopping(Scheduler):
    """Stops a trial whose best loss is worse than the median of the other trials' average losses.

    Args:
        searcher, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        metric: see `Scheduler`. Only the first metric is compared.
        grace_time: resource below which no trial is stopped.
        grace_population: number of other trials that must have reached a resource before a trial is stopped there.

    >>> from fanwise.tune import Space
    >>> scheduler = MedianStopping(metric="loss", grace_population=2)
    >>> scheduler.begin(Space({"depth": 3}), seed=0)
    >>> [str(scheduler.on_report(Observation(i, {}, 1, 1, (float(i),), {}))) for i in range(4)]
    ['CONTINUE', 'CONTINUE', 'STOP', 'STOP']
    """

    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        grace_time: float = 1,
        grace_population: int = 5,
        **options: Unpack[SchedulerOptions],
    ) -> None:
        super().__init__(searcher, **options)
        self._grace_time = round_resource(float(checked_number("grace_time", grace_time)))
        self._grace_population = checked_int("grace_population", grace_population, 1)

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._curves: dict[int, _Curve] = {}  # by trial id

    def next(self, context: SuggestContext) -> NextTrial:
        return New()

    def on_report(self, observation: Observation) -> Decision:
        loss = math.inf if observation.infeasibility else observation.loss
        curve = self._curves.setdefault(observation.trial_id, _Curve())
        curve.add(observation.iter, observation.resource, loss)
        return STOP if self._should_stop(curve) else CONTINUE

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        if trial_id in self._curves:
            self._curves[trial_id].roll_back(to_iter)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "grace_time": self._grace_time, "grace_population": self._grace_population}

    def _should_stop(self, curve: _Curve) -> bool:
        resource = curve.resources[-1]
        if resource < self._grace_time:
            return False
        averages = []
        for competitor in self._curves.values():
            resources = competitor.resources
            if resources and resources[-1] >= resource and competitor is not curve:
                num_reports = bisect_right(resources, resource)
                if num_reports:
                    averages.append(competitor.averages[num_reports - 1])
        return len(averages) >= self._grace_population and curve.minima[-1] > _median(averages)


def _median(values: list[float]) -> float:
    values.sort()
    lower, upper = values[(len(values) - 1) // 2], values[len(values) // 2]
    return lower if lower == upper else lower / 2 + upper / 2
