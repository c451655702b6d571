"""Asynchronous successive halving (ASHA; Li et al., arXiv 1810.05934), for one objective and for several.

    rung levels   grace_period, grace_period * eta, ... below the maximum; bracket s omits the first s of them
    "promotion"   a trial pauses at each level; a free worker resumes the best paused trial in the top 1/eta of a rung,
                  from the highest rung down, or starts a new trial (Algorithm 2)
    "stopping"    a trial at a level is stopped unless it is in the top 1/eta of the trials that reached it so far; the
                  first trial continues, and ties continue until 1/eta of the trials have continued
    "quantile"    a trial continues if it is at or better than the 1/eta quantile of the results at its level, including
                  its own (the rule of Syne Tune)

Stopping needs no checkpoints. Promotion only pauses trials, so a trial can still be promoted when more trials have
reached its level. A report that passes several levels counts for the highest one. With several brackets, the scheduler
is asynchronous Hyperband (section 3.3). A new trial gets bracket s with a probability proportional to the number of
trials that Hyperband starts in bracket s.
"""

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
    """An entry of a trial in a rung. `iter`: number of its report. `continued`: the decision was CONTINUE."""

    iter: int
    level: int
    key: Key
    continued: bool


@dataclass(slots=True)
class _Trial:
    """A trial that may still report. `target`: resource of its next decision. It continues until then."""

    bracket: int
    target: float
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
            (bracket, level): self._new_rung()
            for bracket in range(self._num_brackets)
            for level in range(bracket, len(self._levels))
        }
        # Sort by decreasing level, then by bracket.
        rungs = [self._rungs[place] for place in sorted(self._rungs, key=lambda place: (-place[1], place[0]))]
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
            trial = self._trials[observation.trial_id] = _Trial(bracket, self._target(bracket))
        if observation.resource < trial.target:
            return CONTINUE
        if observation.resource >= self._maximum:
            return self._decide_at_maximum(observation.resource)
        level = bisect_right(self._levels, observation.resource) - 1
        trial.target = self._target(level + 1)
        key = (observation.infeasibility, *observation.losses, self._num_entries, observation.trial_id)
        self._num_entries += 1
        decision = self._rungs[trial.bracket, level].enter(key)
        trial.entries.append(_Entry(observation.iter, level, key, decision is CONTINUE))
        return decision

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        trial = self._trials.get(trial_id)
        if trial is None:
            return
        while trial.entries and trial.entries[-1].iter > to_iter:
            entry = trial.entries.pop()
            self._rungs[trial.bracket, entry.level].remove(entry.key, continued=entry.continued)
        trial.target = self._target(trial.entries[-1].level + 1 if trial.entries else trial.bracket)

    def on_end(self, trial_id: int, status: Status) -> None:
        trial = self._trials.pop(trial_id, None)
        if trial is not None and trial.entries:
            rung = self._rungs[trial.bracket, trial.entries[-1].level]
            if isinstance(rung, PromotionRung):
                rung.withdraw(trial.entries[-1].key)

    def _target(self, level: int) -> float:
        """Return the resource of the level with this index, or the maximum after the last level."""
        return self._levels[level] if level < len(self._levels) else self._maximum


@final
class ASHA(AsynchronousHalving):
    """Asynchronous successive halving (Li et al., arXiv 1810.05934).

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t, max_resource_attr: resource at which trials end, or its name in the space.
        grace_period: the first rung level.
        reduction_factor: eta. One trial in eta continues, to eta times the resource.
        type: "stopping", "promotion" or "quantile".
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
                f"brackets={self._num_brackets}, but there are {len(levels)} rung levels below the maximum {maximum!r} "
                f"({', '.join(map(str, levels)) or 'none'}), so at most {len(levels) + 1} brackets"
            )

    def levels(self, space: Space) -> tuple[float, ...]:
        maximum = self._maximum_of(space)
        return (*self.rungs(maximum), maximum)

    def _new_rung(self) -> Rung:
        return _RUNGS[self._type](self._eta)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "type": self._type, "brackets": self._num_brackets}


@final
class MOASHA(AsynchronousHalving):
    """Multi-objective asynchronous successive halving (Schmucker et al., arXiv 2106.12639).

    A trial at a level is stopped unless it is among the best floor(n / reduction_factor), at least one, of the n trials
    that reached it so far. Ties continue until that number of trials have continued. The best trials are selected by
    non-dominated sorting, and within a front by an epsilon-net, so that they approximate the whole Pareto front. A
    decision takes O(n log n) time for two objectives, and at most O(n^2) for more.

    Args:
        searcher, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        metric: names of the reported values to optimize, at least two.
        max_t, max_resource_attr: resource at which trials end, or its name in the space.
        grace_period: the first rung level.
        reduction_factor: eta. One trial in eta continues, to eta times the resource.

    >>> scheduler = MOASHA(metric=["error", "seconds"], max_t=9)
    >>> scheduler.begin(Space({"depth": 3}), seed=0)
    >>> def report(trial_id, *losses):
    ...     return str(scheduler.on_report(Observation(trial_id, {"depth": 3}, 1, 1, losses, {})))
    >>> report(0, 0.5, 8.0), report(1, 0.4, 7.0), report(2, 0.6, 9.0)
    ('CONTINUE', 'CONTINUE', 'STOP')
    """

    _multiple_objectives: ClassVar[bool] = True

    def __init__(self, searcher: Searcher | str | None = None, **options: Unpack[RungOptions]) -> None:
        super().__init__(searcher, **options)
        if len(self.objectives) < 2:
            raise ValueError(f"MOASHA needs at least two metrics, got {options['metric']!r}; use ASHA for one")

    def _new_rung(self) -> Rung:
        return ParetoRung(self._eta)


def _bracket_bounds(num_brackets: int, num_levels: int, eta: float) -> list[float]:
    """Return the inner bounds of the brackets' shares of [0, 1).

    With K levels below the maximum, Hyperband (arXiv 1603.06560, Algorithm 1) starts (K + 1) / (K - s + 1) *
    eta^(K - s) trials in bracket s. The paper counts s in the opposite direction.
    """
    sizes = [(num_levels + 1) / (num_levels - s + 1) * eta ** (num_levels - s) for s in range(num_brackets)]
    return [bound / sum(sizes) for bound in accumulate(sizes)][:-1]
