"""Asynchronous successive halving, ASHA: a trial goes on while it is among the best 1/eta of those that got as far.

    rung levels   grace_period, grace_period * eta, ... below the maximum; bracket s leaves out the first s of them
    "promotion"   a trial pauses at each level; a free worker takes up the best one of the top 1/eta, from the highest
                  rung down, and begins a new trial if there is none: Algorithm 2 of Li et al., arXiv 1810.05934
    "stopping"    a trial at a level is stopped at once unless it is in the top 1/eta of those that came there before;
                  who comes first goes on, and of equals as many as there is room for
    "quantile"    as "stopping", but a trial continues if it is at or better than the 1/eta quantile of the results at
                  its level, its own included, which is the rule of Syne Tune

Stopping needs no checkpoints; promotion stops nobody too early, and takes back nothing. A report that has passed
several levels counts for the highest. Several brackets are the asynchronous Hyperband of section 3.3: a new trial gets
bracket s with a chance in proportion to the number of configurations that Hyperband begins in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeAlias, final

from ..chance import Chance
from ..searchers.base import Ask, Mode, Observation, Searcher
from ..spaces import Space
from ..values import at_least
from .base import CONTINUE, PAUSE, STOP, Decision, New, NextTrial, Resume, Scheduler, Status
from .resources import Resources, reached
from .rungs import Key, PromotionRung, QuantileRung, StoppingRung

Kind: TypeAlias = Literal["stopping", "promotion", "quantile"]


@dataclass(slots=True)
class _Entry:
    """What a trial left at a level, with the report that brought it there."""

    iter: int
    level: int
    key: Key
    went_on: bool = False


@dataclass(slots=True)
class _Trial:
    """A trial that may still report. `target`: up to there it goes on unasked."""

    bracket: int
    target: float
    entries: list[_Entry] = field(default_factory=list)


@final
class ASHA(Scheduler):
    """Asynchronous successive halving (Li et al., arXiv 1810.05934); a searcher chooses the configurations.

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t: resource at which trials end.
        max_resource_attr: or the name in the space of the value that tells the objective where to end, "max_epochs".
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
        metric: str,
        mode: Mode = "min",
        constraints: Sequence[str] = (),
        resource_attr: str | None = None,
        max_t: float | None = None,
        max_resource_attr: str | None = None,
        grace_period: float = 1,
        reduction_factor: float = 3,
        type: Kind = "stopping",
        brackets: int = 1,
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        random_seed: int | None = None,
    ) -> None:
        super().__init__(
            searcher,
            metric=metric,
            mode=mode,
            constraints=constraints,
            resource_attr=resource_attr,
            points_to_evaluate=points_to_evaluate,
            random_seed=random_seed,
        )
        if type not in ("stopping", "promotion", "quantile"):
            raise ValueError(f"type must be 'stopping', 'promotion' or 'quantile', got {type!r}")
        self._resources = Resources(resource_attr, max_t, max_resource_attr, grace_period, reduction_factor)
        self._type = type
        self._num_brackets = at_least("brackets", brackets, 1)
        self.max_resource = max_t

    def check(self, space: Space) -> None:
        self._checked_levels(space)
        super().check(space)

    def levels(self, space: Space) -> tuple[float, ...]:
        maximum = self._resources.maximum(space)
        return (*self._resources.levels(maximum), maximum)

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._maximum, self._levels = self._checked_levels(space)
        self.max_resource = self._maximum
        self._seed = seed
        eta, count = self._resources.reduction_factor, len(self._levels)
        self._chances = _chances(self._num_brackets, count, eta)
        self._stopping: list[list[StoppingRung | QuantileRung]] = []
        self._promotion: list[list[PromotionRung]] = []
        for bracket in range(self._num_brackets):
            own = range(count - bracket)
            if self._type == "promotion":
                self._promotion.append([PromotionRung(eta) for _ in own])
            elif self._type == "quantile":
                self._stopping.append([QuantileRung(eta) for _ in own])
            else:
                self._stopping.append([StoppingRung(eta) for _ in own])
        # Algorithm 2 looks from the highest rung down; of equal levels, at the bracket that compares earlier.
        highest_first = sorted((-(s + k), s, k) for s in range(self._num_brackets) for k in range(count - s))
        self._highest_first = [self._promotion[s][k] for _, s, k in highest_first] if self._promotion else []
        self._trials: dict[int, _Trial] = {}
        self._num_entries = 0

    def _checked_levels(self, space: Space) -> tuple[float, tuple[float, ...]]:
        maximum = self._resources.maximum(space)
        levels = self._resources.levels(maximum)
        if self._num_brackets > len(levels) + 1:
            raise ValueError(
                f"brackets={self._num_brackets}, but there are {len(levels)} rung levels below the maximum {maximum!r} "
                f"({', '.join(map(str, levels)) or 'none'}), so at most {len(levels) + 1} brackets"
            )
        return maximum, levels

    def next(self, ask: Ask) -> NextTrial:
        for rung in self._highest_first:
            if rung.promotable is not None:
                return Resume(rung.promote())
        return New()

    def on_report(self, observation: Observation) -> Decision:
        trial = self._trials.get(observation.trial_id)
        if trial is None:
            trial = self._enter(observation.trial_id)
        if observation.resource < trial.target:
            return CONTINUE
        if observation.resource >= self._maximum:
            return self._resources.at_maximum(observation.resource, self._maximum)
        return self._compare(trial, observation)

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        trial = self._trials.get(trial_id)
        if trial is None:
            return
        while trial.entries and trial.entries[-1].iter > to_iter:
            entry = trial.entries.pop()
            if self._stopping:
                self._stopping[trial.bracket][entry.level - trial.bracket].forget(entry.key, went_on=entry.went_on)
            else:
                self._promotion[trial.bracket][entry.level - trial.bracket].forget(entry.key)
        trial.target = self._target(trial.entries[-1].level + 1 if trial.entries else trial.bracket)

    def on_end(self, trial_id: int, status: Status) -> None:
        """What it left at the levels stands: others were, and will be, compared with it."""
        trial = self._trials.pop(trial_id, None)
        if trial is not None and trial.entries and self._promotion:
            entry = trial.entries[-1]
            self._promotion[trial.bracket][entry.level - trial.bracket].withdraw(entry.key)

    def describe(self) -> dict[str, object]:
        resources = self._resources.describe()
        return {**super().describe(), "type": self._type, "brackets": self._num_brackets, **resources}

    def _enter(self, trial_id: int) -> _Trial:
        """A trial's bracket depends on the seed and its id alone."""
        bracket = 0
        if self._num_brackets > 1:
            drawn = Chance(f"{self._seed}/bracket/{trial_id}").random()
            bracket = reached(self._chances, drawn)
        trial = self._trials[trial_id] = _Trial(bracket, self._target(bracket))
        return trial

    def _target(self, level: int) -> float:
        return self._levels[level] if level < len(self._levels) else self._maximum

    def _compare(self, trial: _Trial, observation: Observation) -> Decision:
        """The trial has reached a level that it had not."""
        level = reached(self._levels, observation.resource) - 1
        key = (observation.infeasibility, observation.losses[0], self._num_entries)
        self._num_entries += 1
        entry = _Entry(observation.iter, level, key)
        trial.entries.append(entry)
        trial.target = self._target(level + 1)
        if self._stopping:
            entry.went_on = self._stopping[trial.bracket][level - trial.bracket].enter(key)
            return CONTINUE if entry.went_on else STOP
        self._promotion[trial.bracket][level - trial.bracket].enter(key, observation.trial_id)
        return PAUSE


def _chances(brackets: int, num_levels: int, eta: float) -> list[float]:
    """The upper bounds of the brackets' parts of 0 to 1, without the last.

    Hyperband (arXiv 1603.06560, Algorithm 1) begins (K + 1) / (K - s + 1) * eta^(K - s) trials in bracket s, where K is
    the number of levels below the maximum: its own s counts the other way round.
    """
    sizes = [(num_levels + 1) / (num_levels - s + 1) * eta ** (num_levels - s) for s in range(brackets)]
    return [part / sum(sizes) for part in accumulate(sizes)][:-1]
