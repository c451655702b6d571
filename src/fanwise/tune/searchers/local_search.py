"""Local search: often the best configuration so far with one hyperparameter drawn anew (D2L 19.2, exercise 2)."""

import heapq
from collections.abc import Mapping
from typing import ClassVar, final

from ..spaces import Space
from ..values import at_least, probability
from .base import Ask, Observation, Searcher
from .courses import Course, Rank
from .steps import resampled
from .tried import Tried


@final
class LocalSearcher(Searcher):
    """Suggests a neighbour of the best configuration so far, or one drawn from the space.

    The best is the one with the smallest loss that any report had, the earlier trial's of equals; one that meets all
    constraints goes before all that do not. What a trial reported before it failed counts, as for `tuner.best`.

    Args:
        probab_local: how often, 0 to 1, a neighbour: the best configuration with one hyperparameter drawn anew.
        num_init_random: so many configurations are drawn from the space first.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: probab_local outside 0 to 1, or num_init_random below 0.
    """

    answers_at_once: ClassVar[bool] = True
    one_objective: ClassVar[bool] = True

    def __init__(self, probab_local: float = 0.5, num_init_random: int = 5) -> None:
        self.probab_local = probability("probab_local", probab_local)
        self.num_init_random = at_least("num_init_random", num_init_random, 0)
        self._clear()

    def _clear(self) -> None:
        self._num_suggested = 0
        self._living: dict[int, Course] = {}
        self._ranked: list[tuple[Rank, int]] = []  # a heap of (rank, trial id) of the living, and of what they were
        self._best_over: tuple[Rank, int, Mapping[str, object]] | None = None  # of the trials that are over

    def begin(self, space: Space, seed: int) -> None:
        self._clear()
        self._tried = Tried(space)

    def suggest(self, ask: Ask) -> Mapping[str, object]:
        self._num_suggested += 1
        best = self._best()
        if self._num_suggested <= self.num_init_random or best is None or ask.random.random() >= self.probab_local:
            config = ask.space.sample(ask.random)
        else:
            config = resampled(ask.space, best, ask.random)
        return self._tried.instead(config, ask.pending.values(), ask.random)

    def _best(self) -> Mapping[str, object] | None:
        ranked = self._ranked
        while ranked and not self._stands(*ranked[0]):
            heapq.heappop(ranked)
        over = self._best_over
        if ranked and (over is None or ranked[0] < over[:2]):
            return self._living[ranked[0][1]].config
        return None if over is None else over[2]

    def _stands(self, rank: Rank, trial_id: int) -> bool:
        course = self._living.get(trial_id)
        return course is not None and course.rank == rank

    def _rank(self, trial_id: int, course: Course) -> None:
        if course.rank is not None:
            heapq.heappush(self._ranked, (course.rank, trial_id))
        if len(self._ranked) > 2 * len(self._living) + 64:  # mostly what no longer stands
            ranks = ((one.rank, trial_id) for trial_id, one in self._living.items())
            self._ranked = [(rank, trial_id) for rank, trial_id in ranks if rank is not None]
            heapq.heapify(self._ranked)

    def observe(self, observation: Observation) -> None:
        trial_id = observation.trial_id
        course = self._living.get(trial_id)
        if course is None:
            course = self._living[trial_id] = Course(observation.config)
            if trial_id >= 0:
                self._tried.note(observation.config)
        before = course.rank
        course.observe(observation)
        if course.rank != before:
            self._rank(trial_id, course)

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        course = self._living.get(trial_id)
        if course is not None:
            course.rewind(to_iter)
            self._rank(trial_id, course)

    def on_end(self, trial_id: int, status: str) -> None:
        course = self._living.pop(trial_id, None)
        if course is not None and course.rank is not None:
            over = (course.rank, trial_id, course.config)
            if self._best_over is None or over[:2] < self._best_over[:2]:
                self._best_over = over

    def describe(self) -> dict[str, object]:
        return {
            "name": "LocalSearcher",
            "probab_local": self.probab_local,
            "num_init_random": self.num_init_random,
        }
