"""Multi-objective ASHA (Schmucker et al., arXiv 2106.12639): asynchronous halving for several objectives at once.

As ASHA by stopping, but "the best 1/eta" of a rung are its first points front by front, and within a front those that
are spread out (`pareto.best_of`). So the trials that go on approach the whole Pareto front, not one point of it. Points
that violate a constraint come behind all that do not, those that violate it least first. Of equal points as many go on
as there is room for, as in ASHA (rungs.py says why).

An answer at a rung of n trials costs the sorting of n points: O(n log n) for two objectives, O(n^2) at worst for more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias, final

from ..pareto import best_of
from ..searchers.base import Ask, Mode, Observation, Searcher
from ..spaces import Space
from .base import Decision, New, NextTrial, Scheduler, Status
from .resources import Resources, reached

_Result: TypeAlias = tuple[float, tuple[float, ...]]  # infeasibility, losses


@dataclass(slots=True)
class _Entry:
    """What a trial left at a level."""

    iter: int
    level: int
    number: int
    went_on: bool


@dataclass(slots=True)
class _Trial:
    """A trial that may still report. `target`: up to there it goes on unasked."""

    target: float
    entries: list[_Entry] = field(default_factory=list)


@final
class MOASHA(Scheduler):
    """Multi-objective asynchronous successive halving, by stopping; a searcher chooses the configurations.

    A trial that reaches a level goes on if it is among the best floor(n / reduction_factor), at least one, of the n
    that have reached it so far; or is equal to one of these, while fewer than so many have gone on.

    Args:
        searcher, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        metric: names of the reported values to optimize, at least two.
        max_t: resource at which trials end.
        max_resource_attr: or the name in the space of the value that tells the objective where to end, "max_epochs".
        grace_period: the first rung level.
        reduction_factor: eta; one trial in eta continues, to eta times the resource.

    Raises:
        TypeError: an unknown option (the message names the closest one), or an argument of the wrong type.
        ValueError: an argument out of range, or only one objective.

    >>> scheduler = MOASHA(metric=["error", "seconds"], max_t=9)
    >>> scheduler.begin(Space({"depth": 3}), seed=0)
    >>> def report(trial_id, *losses):
    ...     return str(scheduler.on_report(Observation(trial_id, {"depth": 3}, 1, 1, losses, {})))
    >>> report(0, 0.5, 8.0), report(1, 0.4, 7.0), report(2, 0.6, 9.0)
    ('CONTINUE', 'CONTINUE', 'STOP')
    """

    multiple_objectives: ClassVar[bool] = True

    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        metric: Sequence[str],
        mode: Mode | Sequence[Mode] = "min",
        constraints: Sequence[str] = (),
        resource_attr: str | None = None,
        max_t: float | None = None,
        max_resource_attr: str | None = None,
        grace_period: float = 1,
        reduction_factor: float = 3,
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
        if len(self.objectives) < 2:
            raise ValueError(f"MOASHA needs at least two metrics, got {metric!r}; use ASHA for one")
        self._resources = Resources(resource_attr, max_t, max_resource_attr, grace_period, reduction_factor)
        self.max_resource = max_t

    def check(self, space: Space) -> None:
        self._resources.maximum(space)
        super().check(space)

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._maximum = self.max_resource = self._resources.maximum(space)
        self._levels = self._resources.levels(self._maximum)
        self._rungs: list[dict[int, _Result]] = [{} for _ in self._levels]  # by number of the entry
        self._gone_on = [0 for _ in self._levels]
        self._trials: dict[int, _Trial] = {}
        self._num_entries = 0

    def next(self, ask: Ask) -> NextTrial:
        return New()

    def on_report(self, observation: Observation) -> Decision:
        trial = self._trials.get(observation.trial_id)
        if trial is None:
            trial = self._trials[observation.trial_id] = _Trial(self._target(0))
        if observation.resource < trial.target:
            return Decision.CONTINUE
        if observation.resource >= self._maximum:
            return self._resources.at_maximum(observation.resource, self._maximum)
        level = reached(self._levels, observation.resource) - 1
        trial.target = self._target(level + 1)
        result, rung = (observation.infeasibility, observation.losses), self._rungs[level]
        rung[self._num_entries] = result
        goes_on = self._goes_on(result, list(rung.values()), self._gone_on[level])
        trial.entries.append(_Entry(observation.iter, level, self._num_entries, goes_on))
        self._num_entries += 1
        self._gone_on[level] += goes_on
        return Decision.CONTINUE if goes_on else Decision.STOP

    def _goes_on(self, result: _Result, results: Sequence[_Result], num_gone_on: int) -> bool:
        """Whether the last of these results, this one, is among the best, or as good while there is room."""
        number = max(1, int(len(results) // self._resources.reduction_factor))
        best = _best_of(results, number)
        is_equal = any(results[place] == result for place in best)
        return len(results) - 1 in best or (is_equal and num_gone_on < number)

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        trial = self._trials.get(trial_id)
        if trial is None:
            return
        while trial.entries and trial.entries[-1].iter > to_iter:
            entry = trial.entries.pop()
            del self._rungs[entry.level][entry.number]
            self._gone_on[entry.level] -= entry.went_on
        trial.target = self._target(trial.entries[-1].level + 1 if trial.entries else 0)

    def on_end(self, trial_id: int, status: Status) -> None:
        """What it left at the levels stands: others were, and will be, compared with it."""
        self._trials.pop(trial_id, None)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), **self._resources.describe()}

    def _target(self, level: int) -> float:
        return self._levels[level] if level < len(self._levels) else self._maximum


def _best_of(results: Sequence[_Result], number: int) -> list[int]:
    """The places of the best `number` results."""
    feasible = [place for place, (beyond, _) in enumerate(results) if not beyond]
    best = [feasible[place] for place in best_of([results[place][1] for place in feasible], number)] if feasible else []
    others = sorted((beyond, place) for place, (beyond, _) in enumerate(results) if beyond)
    return best + [place for _, place in others[: number - len(best)]]
