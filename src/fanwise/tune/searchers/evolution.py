"""Regularised evolution (Real, Aggarwal, Huang, Le: arXiv 1802.01548, algorithm 1), asynchronous.

    youngest trials with a result  --a few at random-->  the best of them  --one hyperparameter changed-->  suggestion

Each trial has a number, so age needs no clock: the population is the `population_size` youngest trials that have a
finite loss and are over or paused. So the oldest member leaves when a new one comes, however good it is. A trial that
failed is no member, and one that a scheduler has paused is none while it runs again.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from heapq import merge
from typing import ClassVar, final

from ..spaces import Space
from ..values import at_least
from .base import Ask, Observation, Searcher
from .courses import Course, Rank
from .steps import mutated
from .tried import Tried


@final
class EvolutionSearcher(Searcher):
    """Changes one hyperparameter of the best of a few members of a population in which the oldest die.

    Until the population is complete, configurations are drawn from the space. A member is as good as its best report,
    and one that violates a constraint there is worse than all that do not. A child differs from its parent and from
    what runs now, where the space has room for that.

    Args:
        population_size: P in the paper.
        sample_size: S in the paper: the parent is the best of so many members, drawn with replacement.

    Raises:
        TypeError: an argument that is no int.
        ValueError: one below 1, or a sample larger than the population.
    """

    answers_at_once: ClassVar[bool] = True
    one_objective: ClassVar[bool] = True

    def __init__(self, population_size: int = 100, sample_size: int = 10) -> None:
        self.population_size = at_least("population_size", population_size, 1)
        self.sample_size = at_least("sample_size", sample_size, 1)
        if sample_size > population_size:
            raise ValueError(f"sample_size={sample_size} must not be above population_size={population_size}")
        self._clear()

    def _clear(self) -> None:
        self._courses: dict[int, Course] = {}
        self._living: list[int] = []  # ids in their order of those that have reported and are not over
        self._over: list[int] = []  # likewise the youngest of those that are over with a result

    def begin(self, space: Space, seed: int) -> None:
        self._clear()
        self._tried = Tried(space)

    def suggest(self, ask: Ask) -> Mapping[str, object]:
        population = self._population(ask.pending)
        if len(population) < self.population_size:
            return self._tried.instead(ask.space.sample(ask.random), ask.pending.values(), ask.random)
        sample = [ask.random.choice(population) for _ in range(self.sample_size)]
        parent = self._courses[min(sample)[1]].config
        child = mutated(ask.space, parent, ask.random, list(ask.pending.values()))
        return self._tried.instead(child, ask.pending.values(), ask.random)

    def _population(self, pending: Mapping[int, Mapping[str, object]]) -> list[tuple[Rank, int]]:
        """(rank, trial id) of the members, the youngest first."""
        paused = (trial_id for trial_id in reversed(self._living) if trial_id not in pending)
        members: list[tuple[Rank, int]] = []
        for trial_id in merge(paused, reversed(self._over), reverse=True):
            rank = self._courses[trial_id].rank
            if rank is not None:
                members.append((rank, trial_id))
                if len(members) == self.population_size:
                    break
        return members

    def observe(self, observation: Observation) -> None:
        course = self._courses.get(observation.trial_id)
        if course is None:
            course = self._courses[observation.trial_id] = Course(observation.config)
            insort(self._living, observation.trial_id)
            if observation.trial_id >= 0:
                self._tried.note(observation.config)
        course.observe(observation)

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        if trial_id in self._courses:
            self._courses[trial_id].rewind(to_iter)

    def on_end(self, trial_id: int, status: str) -> None:
        course = self._courses.get(trial_id)
        if course is None:
            return
        del self._living[bisect_left(self._living, trial_id)]
        if status == "Failed" or course.rank is None:
            del self._courses[trial_id]
            return
        course.close()
        insort(self._over, trial_id)
        if len(self._over) > self.population_size:  # so many are younger and stay: it is never in a population again
            del self._courses[self._over.pop(0)]

    def describe(self) -> dict[str, object]:
        return {
            "name": "EvolutionSearcher",
            "population_size": self.population_size,
            "sample_size": self.sample_size,
        }
