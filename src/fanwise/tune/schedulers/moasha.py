"""Multi-objective ASHA (Schmucker et al., arXiv 2106.12639).

Like ASHA with type "stopping", but the top 1/eta of a rung are selected by non-dominated sorting, and within a front by
an epsilon-net (`pareto.best_of`), so that the trials that continue approximate the whole Pareto front. Infeasible
points rank behind all feasible ones, by infeasibility. Ties are handled as in `rungs.StoppingRung`.

A decision at a rung with n trials takes O(n log n) for two objectives and O(n^2) in the worst case for more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias, Unpack, final

from ..pareto import best_of
from ..searchers.searcher import Observation, Searcher, SuggestContext
from ..space import Space
from .resources import ResourceOptions, ResourceScheduler, num_reached
from .scheduler import CONTINUE, STOP, Decision, New, NextTrial, Status

_Result: TypeAlias = tuple[float, tuple[float, ...]]  # infeasibility, losses


@dataclass(slots=True)
class _Entry:
    """The entry of a trial at a rung level."""

    iter: int
    level: int
    number: int
    continued: bool


@dataclass(slots=True)
class _Trial:
    """A trial that may still report. It continues without a decision below `target`."""

    target: float
    entries: list[_Entry] = field(default_factory=list)


@final
class MOASHA(ResourceScheduler):
    """Multi-objective asynchronous successive halving; a searcher chooses the configurations.

    A trial at a level is stopped unless it is among the best floor(n / reduction_factor), at least one, of the n trials
    that reached it so far. Ties continue while fewer than that have continued.

    Args:
        searcher, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        metric: names of the reported values to optimize, at least two.
        max_t: resource at which trials end.
        max_resource_attr: alternatively, name in the space of the value with that resource, e.g. "max_epochs"; the
            objective then ends by itself.
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

    def __init__(self, searcher: Searcher | str | None = None, **options: Unpack[ResourceOptions]) -> None:
        super().__init__(searcher, **options)
        if len(self.objectives) < 2:
            raise ValueError(f"MOASHA needs at least two metrics, got {options['metric']!r}; use ASHA for one")

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._rungs: list[dict[int, _Result]] = [{} for _ in self._levels]  # by entry number
        self._num_continued = [0 for _ in self._levels]
        self._trials: dict[int, _Trial] = {}
        self._num_entries = 0

    def next(self, context: SuggestContext) -> NextTrial:
        return New()

    def on_report(self, observation: Observation) -> Decision:
        trial = self._trials.get(observation.trial_id)
        if trial is None:
            trial = self._trials[observation.trial_id] = _Trial(self._target(0))
        if observation.resource < trial.target:
            return CONTINUE
        if observation.resource >= self._maximum:
            return self._resources.decide_at_maximum(observation.resource, self._maximum)
        level = num_reached(self._levels, observation.resource) - 1
        trial.target = self._target(level + 1)
        result, rung = (observation.infeasibility, observation.losses), self._rungs[level]
        rung[self._num_entries] = result
        continues = self._continues(result, list(rung.values()), self._num_continued[level])
        trial.entries.append(_Entry(observation.iter, level, self._num_entries, continues))
        self._num_entries += 1
        self._num_continued[level] += continues
        return CONTINUE if continues else STOP

    def _continues(self, result: _Result, results: Sequence[_Result], num_continued: int) -> bool:
        """Return True if the last result is among the best, or a tie for which there is room."""
        size = max(1, int(len(results) // self._resources.reduction_factor))
        best = _best_of(results, size)
        is_tie = any(results[index] == result for index in best)
        return len(results) - 1 in best or (is_tie and num_continued < size)

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        trial = self._trials.get(trial_id)
        if trial is None:
            return
        while trial.entries and trial.entries[-1].iter > to_iter:
            entry = trial.entries.pop()
            del self._rungs[entry.level][entry.number]
            self._num_continued[entry.level] -= entry.continued
        trial.target = self._target(trial.entries[-1].level + 1 if trial.entries else 0)

    def on_end(self, trial_id: int, status: Status) -> None:
        self._trials.pop(trial_id, None)


def _best_of(results: Sequence[_Result], number: int) -> list[int]:
    """Return the indices of the best `number` results."""
    feasible = [index for index, (infeasibility, _) in enumerate(results) if not infeasibility]
    best = [feasible[i] for i in best_of([results[index][1] for index in feasible], number)] if feasible else []
    infeasible = sorted((infeasibility, index) for index, (infeasibility, _) in enumerate(results) if infeasibility)
    return best + [index for _, index in infeasible[: number - len(best)]]
