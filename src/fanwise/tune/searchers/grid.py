"""Grid search."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import ClassVar, final

from ...base.nearest import did_you_mean
from ..space import Space
from ..values import checked_int
from .searcher import Observation, Searcher, SuggestContext

_DEFAULT_POINTS = 5


@final
class GridSearcher(Searcher):
    """Suggests every configuration of a grid once; the last hyperparameter of the space changes fastest.

    Args:
        num_points: number of values per hyperparameter, for all or by name (default 5). Values are evenly spaced on the
            scale of the domain, including both ends; one point is the middle. Domains with fewer values, and every
            choice, use all of their values.

    Raises:
        TypeError: num_points is neither an int nor a dict of ints.
        ValueError: a number is below 1; in `check`, a name is not a hyperparameter of the space.

    >>> from fanwise.tune.space import Space, choice, loguniform
    >>> space = Space({"learning_rate": loguniform(0.01, 1), "optimizer": choice(["sgd", "adam"])})
    >>> searcher = GridSearcher(num_points=3)
    >>> searcher.begin(space, seed=0)
    >>> [tuple(searcher.suggest(SuggestContext(k, k, space)).values()) for k in range(3)]
    [(0.01, 'sgd'), (0.01, 'adam'), (0.1, 'sgd')]
    """

    runs_inline: ClassVar[bool] = True

    def __init__(self, num_points: int | Mapping[str, int] = _DEFAULT_POINTS) -> None:
        if isinstance(num_points, Mapping):
            self.num_points: int | dict[str, int] = {
                str(name): checked_int(f"num_points[{name!r}]", number, 1) for name, number in num_points.items()
            }
        else:
            self.num_points = checked_int("num_points", num_points, 1)
        self._num_suggested = 0
        self._remaining: Iterator[dict[str, object]] | None = None

    def check(self, space: Space) -> None:
        for name in self.num_points if isinstance(self.num_points, dict) else ():
            if name not in space.domains:
                raise ValueError(f"num_points: {name!r} is no hyperparameter{did_you_mean(name, space.domains)}")

    def begin(self, space: Space, seed: int) -> None:
        self._num_suggested = 0
        self._remaining = None

    def suggest(self, context: SuggestContext) -> Mapping[str, object] | None:
        if self._remaining is None:
            points = self.num_points
            numbers = {
                name: points if isinstance(points, int) else points.get(name, _DEFAULT_POINTS)
                for name in context.space.domains
            }
            self._remaining = islice(context.space.grid(numbers), self._num_suggested, None)
        config = next(self._remaining, None)
        self._num_suggested += config is not None
        return config

    def observe(self, observation: Observation) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return {"name": "GridSearcher", "num_points": self.num_points}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_remaining": None}  # iterators cannot be copied
