"""Grid search: every combination of a few values for each hyperparameter, in a fixed order, once."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import ClassVar, final

from ...base.nearest import did_you_mean
from ..spaces import Space
from ..values import at_least
from .base import Ask, Observation, Searcher


@final
class GridSearcher(Searcher):
    """Suggests every configuration of a grid once, the last hyperparameter of the space changing fastest; then None.

    Args:
        num_points: how many values of each hyperparameter, or for some by name (5 for the others): evenly spread on
            its own scale, both ends included; one point is the middle. All values of one that has fewer, and always
            all categories of a choice.

    Raises:
        TypeError: num_points is no int and no dict of ints.
        ValueError: a number below 1; at `check`, a name that is not a hyperparameter of the space.

    >>> from fanwise.tune.spaces import Space, choice, loguniform
    >>> space = Space({"learning_rate": loguniform(0.01, 1), "optimizer": choice(["sgd", "adam"])})
    >>> searcher = GridSearcher(num_points=3)
    >>> searcher.begin(space, seed=0)
    >>> [tuple(searcher.suggest(Ask(k, k, space)).values()) for k in range(3)]
    [(0.01, 'sgd'), (0.01, 'adam'), (0.1, 'sgd')]
    """

    answers_at_once: ClassVar[bool] = True

    def __init__(self, num_points: int | Mapping[str, int] = 5) -> None:
        if isinstance(num_points, Mapping):
            self.num_points: int | dict[str, int] = {
                str(name): at_least(f"num_points[{name!r}]", number, 1) for name, number in num_points.items()
            }
        else:
            self.num_points = at_least("num_points", num_points, 1)
        self._num_suggested = 0
        self._rest: Iterator[dict[str, object]] | None = None  # made when it is first asked for

    def check(self, space: Space) -> None:
        for name in self.num_points if isinstance(self.num_points, dict) else ():
            if name not in space.domains:
                raise ValueError(f"num_points: {name!r} is no hyperparameter{did_you_mean(name, space.domains)}")

    def begin(self, space: Space, seed: int) -> None:
        self._num_suggested = 0
        self._rest = None

    def suggest(self, ask: Ask) -> Mapping[str, object] | None:
        if self._rest is None:
            numbers = {name: self._number(name) for name in ask.space.domains}
            self._rest = islice(ask.space.grid(numbers), self._num_suggested, None)
        config = next(self._rest, None)
        self._num_suggested += config is not None
        return config

    def observe(self, observation: Observation) -> None:
        """A grid is searched whatever comes out."""

    def describe(self) -> dict[str, object]:
        return {"name": "GridSearcher", "num_points": self.num_points}

    def __getstate__(self) -> dict[str, object]:
        """For copies, which make the rest of the grid themselves."""
        return {**self.__dict__, "_rest": None}

    def _number(self, name: str) -> int:
        return self.num_points if isinstance(self.num_points, int) else self.num_points.get(name, 5)
