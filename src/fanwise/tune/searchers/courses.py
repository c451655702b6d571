"""A trial's course: its best result so far, and those before it, so that reports which become void can be forgotten."""

import math
from collections.abc import Mapping
from typing import TypeAlias, final

from .base import Observation

Rank: TypeAlias = tuple[float, float]  # infeasibility, then the loss of the first objective


@final
class Course:
    """What one trial has reached. Infinite losses are no results and do not count.

    Holds one number for each time that the trial got better than ever, so it does not grow with every report.
    """

    __slots__ = ("_better", "config")

    def __init__(self, config: Mapping[str, object]) -> None:
        self.config = config
        self._better: list[tuple[int, Rank]] = []  # (iteration, rank): iterations go up, ranks down

    @property
    def rank(self) -> Rank | None:
        """Of the best report; smaller is better. None: there is none."""
        return self._better[-1][1] if self._better else None

    def observe(self, observation: Observation) -> None:
        rank = (observation.infeasibility, observation.loss)
        if all(map(math.isfinite, rank)) and (not self._better or rank < self._better[-1][1]):
            self._better.append((observation.iter, rank))

    def rewind(self, to_iter: int) -> None:
        """Forget the reports after iteration `to_iter`."""
        while self._better and self._better[-1][0] > to_iter:
            self._better.pop()

    def close(self) -> None:
        """The trial is over: nothing will be rewound, and only the best stays."""
        del self._better[:-1]
