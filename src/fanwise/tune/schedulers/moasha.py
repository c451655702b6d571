"""Multi-objective ASHA (Schmucker et al., arXiv 2106.12639).

Like ASHA with type "stopping", but the top of a rung is selected by non-dominated sorting, and within a front by an
epsilon-net, so that the trials that continue approximate the whole Pareto front. A decision at a rung with n trials
takes O(n log n) for two objectives and O(n^2) in the worst case for more.
"""

from typing import ClassVar, Unpack, final

from ..pareto import best_of
from ..searchers.searcher import Observation, Searcher
from ..space import Space
from .asha import AsynchronousHalving, Entry
from .resources import RungOptions
from .scheduler import CONTINUE, STOP, Decision


@final
class MOASHA(AsynchronousHalving):
    """Multi-objective asynchronous successive halving (Schmucker et al., arXiv 2106.12639).

    A trial at a level is stopped unless it is among the best floor(n / reduction_factor), at least one, of the n trials
    that reached it so far. Ties continue while fewer than that have continued.

    Args:
        searcher, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        metric: names of the reported values to optimize, at least two.
        max_t, max_resource_attr: resource at which trials end, or its name in the space; see `ResourceScheduler`.
        grace_period: the first rung level.
        reduction_factor: eta; one trial in eta continues, to eta times the resource.

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

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._rungs = [_ParetoRung(self._eta) for _ in self._levels]

    def _enter(self, bracket: int, entry: Entry, observation: Observation) -> Decision:
        continues = self._rungs[entry.level].enter(observation.infeasibility, observation.losses, entry.key[2])
        return CONTINUE if continues else STOP

    def _remove(self, bracket: int, entry: Entry) -> None:
        self._rungs[entry.level].remove(entry.key[2], continued=entry.continued)


@final
class _ParetoRung:
    """A rung of several objectives. Trials continue if they are among the best max(1, floor(n / eta)) entries.

    Feasible entries are ordered by `pareto.best_of`, infeasible ones follow by infeasibility. Ties are handled as in
    `StoppingRung`.
    """

    __slots__ = ("_entries", "_eta", "_num_continued")

    def __init__(self, eta: float) -> None:
        self._eta = eta
        self._entries: dict[int, tuple[float, tuple[float, ...]]] = {}  # infeasibility and losses by number
        self._num_continued = 0

    def __len__(self) -> int:
        return len(self._entries)

    def enter(self, infeasibility: float, losses: tuple[float, ...], number: int) -> bool:
        """Add an entry. Return True if its trial continues."""
        self._entries[number] = result = (infeasibility, losses)
        results = list(self._entries.values())
        size = max(1, int(len(results) // self._eta))
        best = self._best_of(results, size)
        is_tie = any(results[index] == result for index in best)
        continues = len(results) - 1 in best or (is_tie and self._num_continued < size)
        self._num_continued += continues
        return continues

    def remove(self, number: int, *, continued: bool) -> None:
        """Remove an entry. `continued`: the result of `enter`."""
        del self._entries[number]
        self._num_continued -= continued

    @staticmethod
    def _best_of(results: list[tuple[float, tuple[float, ...]]], size: int) -> list[int]:
        """Return the indices of the best results."""
        feasible = [index for index, (infeasibility, _) in enumerate(results) if not infeasibility]
        best = [feasible[i] for i in best_of([results[index][1] for index in feasible], size)] if feasible else []
        infeasible = sorted((infeasibility, index) for index, (infeasibility, _) in enumerate(results) if infeasibility)
        return best + [index for _, index in infeasible[: size - len(best)]]
