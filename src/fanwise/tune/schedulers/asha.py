"""Asynchronous successive halving (ASHA; Li et al., arXiv 1810.05934).

    rung levels   grace_period, grace_period * eta, ... below the maximum; bracket s omits the first s of them
    "promotion"   a trial pauses at each level; a free worker resumes the best paused trial in the top 1/eta of a rung,
                  from the highest rung down, or starts a new trial (Algorithm 2)
    "stopping"    a trial at a level is stopped unless it is in the top 1/eta of the trials that reached it so far; the
                  first trial continues, and ties continue while fewer than the top 1/eta have continued
    "quantile"    a trial continues if it is at or better than the 1/eta quantile of the results at its level, including
                  its own (the rule of Syne Tune)

Stopping needs no checkpoints. Promotion never stops a trial prematurely and never reverses a decision. A report that
passes several levels counts for the highest one. Several brackets are asynchronous Hyperband (section 3.3): a new trial
gets bracket s with a probability proportional to the number of trials that Hyperband starts in it.
"""

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeAlias, Unpack, final

from ..rng import KeyedRandom
from ..searchers.searcher import Observation, Searcher, SuggestContext
from ..space import Space
from ..values import checked_int
from .resources import ResourceOptions, ResourceScheduler, num_reached
from .rungs import Key, PromotionRung, QuantileRung, StoppingRung
from .scheduler import CONTINUE, PAUSE, STOP, Decision, New, NextTrial, Resume, Status

Kind: TypeAlias = Literal["stopping", "promotion", "quantile"]


@dataclass(slots=True)
class _Entry:
    """The entry of a trial at a rung level, and the report that caused it."""

    iter: int
    level: int
    key: Key
    continued: bool = False


@dataclass(slots=True)
class _Trial:
    """A trial that may still report. It continues without a decision below `target`."""

    bracket: int
    target: float
    entries: list[_Entry] = field(default_factory=list)


@final
class ASHA(ResourceScheduler):
    """Asynchronous successive halving (Li et al., arXiv 1810.05934); a searcher chooses the configurations.

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t: resource at which trials end.
        max_resource_attr: alternatively, name in the space of the value with that resource, e.g. "max_epochs"; the
            objective then ends by itself.
        grace_period: the first rung level.
        reduction_factor: eta; one trial in eta continues, to eta times the resource.
        type: "stopping", "promotion" or "quantile".
        brackets: number of brackets; bracket s compares trials from grace_period * eta^s on.

    Raises:
        TypeError: an unknown option (the message names the closest one), or an argument of the wrong type.
        ValueError: an argument out of range.

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
        **options: Unpack[ResourceOptions],
    ) -> None:
        super().__init__(searcher, **options)
        if type not in ("stopping", "promotion", "quantile"):
            raise ValueError(f"type must be 'stopping', 'promotion' or 'quantile', got {type!r}")
        self._type = type
        self._num_brackets = checked_int("brackets", brackets, 1)

    def check(self, space: Space) -> None:
        super().check(space)
        self._check_brackets(space)

    def levels(self, space: Space) -> tuple[float, ...]:
        maximum = self._resources.maximum(space)
        return (*self._resources.rungs(maximum), maximum)

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        eta, num_levels = self._resources.reduction_factor, len(self._levels)
        self._bracket_bounds = _bracket_bounds(self._num_brackets, num_levels, eta)
        self._stopping: list[list[StoppingRung | QuantileRung]] = []
        self._promotion: list[list[PromotionRung]] = []
        for bracket in range(self._num_brackets):
            levels = range(num_levels - bracket)
            if self._type == "promotion":
                self._promotion.append([PromotionRung(eta) for _ in levels])
            elif self._type == "quantile":
                self._stopping.append([QuantileRung(eta) for _ in levels])
            else:
                self._stopping.append([StoppingRung(eta) for _ in levels])
        # Highest level first; ties are broken by the bracket that starts earlier.
        highest_first = sorted((-(s + k), s, k) for s in range(self._num_brackets) for k in range(num_levels - s))
        self._highest_first = [self._promotion[s][k] for _, s, k in highest_first] if self._promotion else []
        self._trials: dict[int, _Trial] = {}
        self._num_entries = 0

    def _check_brackets(self, space: Space) -> None:
        maximum = self._resources.maximum(space)
        levels = self._resources.rungs(maximum)
        if self._num_brackets > len(levels) + 1:
            raise ValueError(
                f"brackets={self._num_brackets}, but there are {len(levels)} rung levels below the maximum {maximum!r} "
                f"({', '.join(map(str, levels)) or 'none'}), so at most {len(levels) + 1} brackets"
            )

    def next(self, context: SuggestContext) -> NextTrial:
        for rung in self._highest_first:
            if rung.promotable is not None:
                return Resume(rung.promote())
        return New()

    def on_report(self, observation: Observation) -> Decision:
        trial = self._trials.get(observation.trial_id)
        if trial is None:
            trial = self._add_trial(observation.trial_id)
        if observation.resource < trial.target:
            return CONTINUE
        if observation.resource >= self._maximum:
            return self._resources.decide_at_maximum(observation.resource, self._maximum)
        return self._compare(trial, observation)

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        trial = self._trials.get(trial_id)
        if trial is None:
            return
        while trial.entries and trial.entries[-1].iter > to_iter:
            entry = trial.entries.pop()
            if self._stopping:
                rung = self._stopping[trial.bracket][entry.level - trial.bracket]
                rung.remove(entry.key, continued=entry.continued)
            else:
                self._promotion[trial.bracket][entry.level - trial.bracket].remove(entry.key)
        trial.target = self._target(trial.entries[-1].level + 1 if trial.entries else trial.bracket)

    def on_end(self, trial_id: int, status: Status) -> None:
        trial = self._trials.pop(trial_id, None)
        if trial is not None and trial.entries and self._promotion:
            entry = trial.entries[-1]
            self._promotion[trial.bracket][entry.level - trial.bracket].withdraw(entry.key)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "type": self._type, "brackets": self._num_brackets}

    def _add_trial(self, trial_id: int) -> _Trial:
        """Add a trial; its bracket depends only on the seed and its id."""
        bracket = 0
        if self._num_brackets > 1:
            u = KeyedRandom(f"{self._seed}/bracket/{trial_id}").random()
            bracket = num_reached(self._bracket_bounds, u)
        trial = self._trials[trial_id] = _Trial(bracket, self._target(bracket))
        return trial

    def _compare(self, trial: _Trial, observation: Observation) -> Decision:
        """Enter the trial into the rung of the highest level it has reached."""
        level = num_reached(self._levels, observation.resource) - 1
        key = (observation.infeasibility, observation.losses[0], self._num_entries)
        self._num_entries += 1
        entry = _Entry(observation.iter, level, key)
        trial.entries.append(entry)
        trial.target = self._target(level + 1)
        if self._stopping:
            entry.continued = self._stopping[trial.bracket][level - trial.bracket].enter(key)
            return CONTINUE if entry.continued else STOP
        self._promotion[trial.bracket][level - trial.bracket].enter(key, observation.trial_id)
        return PAUSE


def _bracket_bounds(num_brackets: int, num_levels: int, eta: float) -> list[float]:
    """Return the inner bounds of the brackets' shares of [0, 1).

    With K levels below the maximum, Hyperband (arXiv 1603.06560, Algorithm 1) starts (K + 1) / (K - s + 1) *
    eta^(K - s) trials in bracket s. The paper counts s in the opposite direction.
    """
    sizes = [(num_levels + 1) / (num_levels - s + 1) * eta ** (num_levels - s) for s in range(num_brackets)]
    return [bound / sum(sizes) for bound in accumulate(sizes)][:-1]
