"""A searcher that follows the trials of a study which somebody else keeps.

    courses of all trials not yet over  --told before each question-->  searcher  -->  suggestion

A trial is told of as it stands when somebody asks: reports that are new, then its end. What the study says counts; a
suggestion is remembered only until the study has all of it, because values appear there one by one as they are asked
for. Trials that others chose, or that were there before, are told of too, if they are configurations of the space.

Knows nothing of Optuna, threads, or where courses come from.
"""

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, final

from ..decisions.transfer import configuration_of
from ..searchers.base import Ask, Observation, Searcher
from ..spaces import Space

Status: TypeAlias = Literal["Running", "Completed", "Stopped", "Failed"]


@final
@dataclass(frozen=True, slots=True)
class Report:
    """What a trial had come to at a step. Losses: smaller is better, never NaN. Violations: above 0 where violated."""

    step: float
    losses: tuple[float, ...]
    violations: tuple[float, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Course:
    """A trial as the study has it now: what is known of its configuration, its reports in their order, how it is."""

    number: int
    known: Mapping[str, object]
    reports: tuple[Report, ...]
    status: Status


@final
class Following:
    """A copy of a searcher, begun in a space, and what it was told.

    Raises:
        ValueError: the searcher does not fit the space.
    """

    def __init__(self, searcher: Searcher, space: Space, seed: int) -> None:
        self._searcher = copy.deepcopy(searcher)
        self._searcher.check(space)
        self._searcher.begin(space, seed)
        self._space = space
        self._seed = seed
        self._suggested: dict[int, Mapping[str, object]] = {}  # of trials that are not over
        self._num_told: dict[int, int] = {}  # reports of trials that are not over
        self._over: set[int] = set()

    def is_over(self, number: int) -> bool:
        """Whether nothing more can be told of a trial."""
        return number in self._over

    def suggest(self, number: int, courses: Iterable[Course]) -> Mapping[str, object] | None:
        """The configuration for trial `number`; None: the searcher has nothing. `courses`: all that are not over.

        Raises:
            ValueError: the searcher has suggested something outside the space.
            Exception: whatever the searcher raises.
        """
        pending = self._hear([course for course in courses if course.number != number])
        ask = Ask(number, number, self._space, seed=self._seed, pending=MappingProxyType(pending))
        suggestion = self._searcher.suggest(ask)
        if suggestion is None:
            return None
        config = self._space.check(suggestion)
        self._suggested[number] = config
        return config

    def _hear(self, courses: Iterable[Course]) -> dict[int, Mapping[str, object]]:
        """Tell the searcher what is new; the configurations of the trials that run."""
        pending = dict[int, Mapping[str, object]]()
        for course in courses:
            config = self._configuration_of(course)
            if config is not None:
                self._tell(course, config)
            if course.status != "Running":
                self._over.add(course.number)
                self._suggested.pop(course.number, None)
                self._num_told.pop(course.number, None)
            elif config is not None:
                pending[course.number] = config
        return pending

    def _configuration_of(self, course: Course) -> Mapping[str, object] | None:
        """None: it is none of the space, or so far nobody knows all of it."""
        try:
            return configuration_of({**self._suggested.get(course.number, {}), **course.known}, self._space)
        except ValueError:
            return None

    def _tell(self, course: Course, config: Mapping[str, object]) -> None:
        num_told = self._num_told.get(course.number, 0)
        for iter, report in enumerate(course.reports[num_told:], start=num_told + 1):
            beyond = math.fsum(max(0.0, violation) for violation in report.violations)
            about = (course.number, config, iter, report.step, report.losses)
            self._searcher.observe(Observation(*about, {}, report.violations, beyond))
        self._num_told[course.number] = max(num_told, len(course.reports))
        if course.status != "Running":
            self._searcher.on_end(course.number, course.status)
