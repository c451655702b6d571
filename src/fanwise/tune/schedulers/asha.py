"""Asynchronous successive halving (ASHA; Li et al., arXiv 1810.05934), for one objective and for several.

    eta           the reduction_factor
    rung levels   grace_period, grace_period * eta, ... below the maximum; bracket s omits the first s of them
    "promotion"   a trial pauses at each level; a free worker resumes the best paused trial in the top 1/eta of a rung,
                  from the highest rung down, or starts a new trial (Algorithm 2)
    "stopping"    a trial at a level is stopped unless it is in the top 1/eta of the trials that reached the level so
                  far; the first trial continues; a trial that ties with the last of the top continues, too, while fewer
                  than 1/eta of the trials have continued
    "quantile"    a trial continues if it equals or beats the 1/eta quantile of all results at its level, including its
                  own (the rule of Syne Tune)

Stopping needs no checkpoints. With "promotion", trials are paused and never stopped, so a trial can be promoted later,
when more trials have reached its level. A report that passes several levels counts for the highest one. With several
brackets, the scheduler is asynchronous Hyperband (section 3.3). A new trial gets bracket s with a probability
proportional to the number of trials that Hyperband starts in bracket s.
"""

# level_index: index of a level in `AsynchronousHalving._levels`

import abc
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar, Literal, NamedTuple, TypeAlias, Unpack, final

from ..rng import KeyedRandom
from ..searchers.searcher import Observation, Searcher, SuggestContext
from ..space import Space
from ..values import checked_int
from .resources import RungOptions, RungScheduler
from .rungs import Key, ParetoRung, PromotionRung, QuantileRung, Rung, StoppingRung
from .scheduler import CONTINUE, Decision, New, NextTrial, Resume, Status

Kind: TypeAlias = Literal["stopping", "promotion", "quantile"]
_RUNGS: dict[Kind, type[StoppingRung] | type[PromotionRung] | type[QuantileRung]] = {
    "stopping": StoppingRung,
    "promotion": PromotionRung,
    "quantile": QuantileRung,
}


class _Entry(NamedTuple):
    """A trial's entry in a rung. `iter`: number of the report. `has_continued`: the decision was CONTINUE."""

    iter: int
    level_index: int
    key: Key
    has_continued: bool


@dataclass(slots=True)
class _Trial:
    """A trial that may still report. It continues until its resource is `next_decision_at`."""

    bracket: int
    next_decision_at: float
    entries: list[_Entry] = field(default_factory=list)


class AsynchronousHalving(RungScheduler):
    """Base class of `ASHA` and `MOASHA`, which differ in their rungs. A searcher chooses the configurations."""

    _num_brackets = 1

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._bracket_bounds = _bracket_bounds(self._num_brackets, len(self._levels), self._eta)
        self._trials: dict[int, _Trial] = {}
        self._num_entries = 0
        self._rungs = {
            (bracket, level_index): self._new_rung()
            for bracket in range(self._num_brackets)
            for level_index in range(bracket, len(self._levels))
        }
        # The highest level first, because `next` promotes from the highest rung down.
        rungs = [self._rungs[key] for key in sorted(self._rungs, key=lambda key: (-key[1], key[0]))]
        self._promotion_rungs = [rung for rung in rungs if isinstance(rung, PromotionRung)]

    @abc.abstractmethod
    def _new_rung(self) -> Rung: ...

    def next(self, context: SuggestContext) -> NextTrial:
        for rung in self._promotion_rungs:
            if rung.promotable is not None:
                return Resume(rung.promote())
        return New()

    def on_report(self, observation: Observation) -> Decision:
        trial = self._trials.get(observation.trial_id)
        if trial is None:
            bracket = 0
            if self._num_brackets > 1:  # the bracket depends only on the seed and the trial id
                u = KeyedRandom(f"{self._seed}/bracket/{observation.trial_id}").random()
                bracket = bisect_right(self._bracket_bounds, u)
            trial = self._trials[observation.trial_id] = _Trial(bracket, self._resource_of(level_index=bracket))
        if observation.resource < trial.next_decision_at:
            return CONTINUE
        if observation.resource >= self._maximum:
            return self._decide_at_maximum(observation.resource)
        level_index = bisect_right(self._levels, observation.resource) - 1
        trial.next_decision_at = self._resource_of(level_index + 1)
        key = (observation.infeasibility, *observation.losses, self._num_entries, observation.trial_id)
        self._num_entries += 1
        decision = self._rungs[trial.bracket, level_index].enter(key)
        trial.entries.append(_Entry(observation.iter, level_index, key, decision is CONTINUE))
        return decision

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        trial = self._trials.get(trial_id)
        if trial is None:
            return
        while trial.entries and trial.entries[-1].iter > to_iter:
            entry = trial.entries.pop()
            self._rungs[trial.bracket, entry.level_index].remove(entry.key, has_continued=entry.has_continued)
        next_level_index = trial.entries[-1].level_index + 1 if trial.entries else trial.bracket
        trial.next_decision_at = self._resource_of(next_level_index)

    def on_end(self, trial_id: int, status: Status) -> None:
        trial = self._trials.pop(trial_id, None)
        if trial is not None and trial.entries:
            rung = self._rungs[trial.bracket, trial.entries[-1].level_index]
            if isinstance(rung, PromotionRung):
                rung.withdraw(trial.entries[-1].key)

    def _resource_of(self, level_index: int) -> float:
        """Return the resource of a level, or the maximum after the last level."""
        return self._levels[level_index] if level_index < len(self._levels) else self._maximum


@final
class ASHA(AsynchronousHalving):
    """Asynchronous successive halving (Li et al., arXiv 1810.05934).

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t, max_resource_attr, grace_period, reduction_factor: see `RungScheduler`.
        type: "stopping", "promotion" or "quantile", as described in `fanwise.tune.schedulers.asha`.
        brackets: number of brackets. The first rung level of bracket s is grace_period * eta^s.

    >>> scheduler = ASHA(metric="loss", max_t=9)
    >>> scheduler.begin(Space({"depth": 3}), seed=0)
    >>> scheduler.on_report(Observation(0, {"depth": 3}, 1, 1, (0.5,), {}))  # the first at level 1
    <Decision.CONTINUE: 'CONTINUE'>
    >>> scheduler.on_report(Observation(1, {"depth": 3}, 1, 1, (0.6,), {}))
    <Decision.STOP: 'STOP'>
    """

    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        type: Kind = "stopping",
        brackets: int = 1,
        **options: Unpack[RungOptions],
    ) -> None:
        super().__init__(searcher, **options)
        if type not in _RUNGS:
            raise ValueError(f"type must be 'stopping', 'promotion' or 'quantile', got {type!r}")
        self._type = type
        self._num_brackets = checked_int("brackets", brackets, 1)

    def check(self, space: Space) -> None:
        super().check(space)
        *levels, maximum = self.levels(space)
        if self._num_brackets > len(levels) + 1:
            raise ValueError(
                f"brackets={self._num_brackets} must be at most {len(levels) + 1}, because the number of rung levels "
                f"below the maximum {maximum!r} is {len(levels)} ({', '.join(map(str, levels)) or 'none'})"
            )

    def levels(self, space: Space) -> tuple[float, ...]:
        maximum = self._maximum_of(space)
        return (*self.rung_levels(maximum), maximum)

    def _new_rung(self) -> Rung:
        return _RUNGS[self._type](self._eta)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "type": self._type, "brackets": self._num_brackets}


@final
class MOASHA(AsynchronousHalving):
    """Multi-objective asynchronous successive halving (Schmucker et al., arXiv 2106.12639).

    When n trials have reached a level, the best floor(n / reduction_factor) of them, at least one, are the top. A trial
    that reaches a level continues if it is in the top. It also continues if it ties with a trial in the top and fewer
    trials have continued than the top contains. Otherwise it is stopped. The top is selected by non-dominated sorting,
    and within a front by an epsilon-net, so that it approximates the whole Pareto front. A decision takes O(n log n)
    time for two objectives, and at most O(n^2) for more.

    Args:
        searcher, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        metric: names of the reported values to optimize, at least two.
        max_t, max_resource_attr, grace_period, reduction_factor: see `RungScheduler`.

    >>> scheduler = MOASHA(metric=["error", "seconds"], max_t=9)
    >>> scheduler.begin(Space({"depth": 3}), seed=0)
    >>> def report(trial_id, *losses):
    ...     return str(scheduler.on_report(Observation(trial_id, {"depth": 3}, 1, 1, losses, {})))
    >>> report(0, 0.5, 8.0), report(1, 0.4, 7.0), report(2, 0.6, 9.0)
    ('CONTINUE', 'CONTINUE', 'STOP')
    """

    _accepts_multiple_objectives: ClassVar[bool] = True

    def __init__(self, searcher: Searcher | str | None = None, **options: Unpack[RungOptions]) -> None:
        super().__init__(searcher, **options)
        if len(self.objectives) < 2:
            raise ValueError(f"MOASHA needs at least two metrics, got {options['metric']!r}; use ASHA for one")

    def _new_rung(self) -> Rung:
        return ParetoRung(self._eta)


def _bracket_bounds(num_brackets: int, num_levels: int, eta: float) -> list[float]:
    """Divide [0, 1) in proportion to the probabilities of the brackets. Return the bounds between them.

    With K levels below the maximum, Hyperband (arXiv 1603.06560, Algorithm 1) starts (K + 1) / (K - s + 1) *
    eta^(K - s) trials in bracket s. The paper numbers the brackets in the opposite order.
    """
    sizes = [(num_levels + 1) / (num_levels - s + 1) * eta ** (num_levels - s) for s in range(num_brackets)]
    return [bound / sum(sizes) for bound in accumulate(sizes)][:-1]
