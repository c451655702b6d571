"""Searchers that suggest fixed configurations, a grid or the `points_to_evaluate` of a scheduler."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar, final

from ...base.nearest import did_you_mean
from ..space import Space, check_partial_config
from ..values import checked_int, plain_json_or_name
from .searcher import Observation, Searcher, SuggestContext

_DEFAULT_POINTS = 5


@final
class GridSearcher(Searcher):
    """Suggests every configuration of a grid once. The last hyperparameter of the space changes fastest.

    Args:
        num_points: number of values per hyperparameter, for all or by name (default 5). Values are evenly spaced on the
            scale of the domain, including both ends. A single value is the middle of the scale. Domains with fewer
            values, and every choice, use all of their values.

    Raises:
        TypeError, ValueError: a number is not an int or is below 1. A name that is not a hyperparameter raises
            ValueError when the search is created.

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
        self._remaining_configs: Iterator[dict[str, object]] | None = None

    def check(self, space: Space) -> None:
        for name in self.num_points if isinstance(self.num_points, dict) else ():
            if name not in space.domains:
                raise ValueError(f"num_points: {name!r} is not a hyperparameter{did_you_mean(name, space.domains)}")

    def begin(self, space: Space, seed: int) -> None:
        self._num_suggested = 0
        self._remaining_configs = None

    def suggest(self, context: SuggestContext) -> Mapping[str, object] | None:
        if self._remaining_configs is None:
            points = self.num_points
            numbers = {
                name: points if isinstance(points, int) else points.get(name, _DEFAULT_POINTS)
                for name in context.space.domains
            }
            self._remaining_configs = islice(context.space.grid(numbers), self._num_suggested, None)
        config = next(self._remaining_configs, None)
        self._num_suggested += config is not None
        return config

    def observe(self, observation: Observation) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return {"name": "GridSearcher", "num_points": self.num_points}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_remaining_configs": None}  # generators cannot be copied


@final
class FirstPoints(Searcher):
    """Suggests `points` in order, then the suggestions of `searcher`. Values missing in a point are sampled.

    Raises TypeError if `points` is not a list of dicts.
    """

    def __init__(self, points: Sequence[Mapping[str, object]] | None, searcher: Searcher) -> None:
        self._points = _normalize_points(points)
        self.searcher = searcher
        self._num_suggested = 0
        self.runs_inline = searcher.runs_inline  # type: ignore[misc]  # per instance
        self.suggest_timeout_s = searcher.suggest_timeout_s  # type: ignore[misc]
        self.levels = searcher.levels

    @property
    def libraries(self) -> tuple[str, ...]:
        return self.searcher.libraries

    def check(self, space: Space) -> None:
        for index, point in enumerate(self._points):
            try:
                check_partial_config(space, point)
            except ValueError as error:
                raise ValueError(f"points_to_evaluate[{index}]: {error}") from None
        self.searcher.check(space)

    def begin(self, space: Space, seed: int) -> None:
        self._num_suggested = 0
        self.searcher.levels = self.levels
        self.searcher.begin(space, seed)

    def suggest(self, context: SuggestContext) -> Mapping[str, object] | None:
        if self._num_suggested < len(self._points):
            point = self._points[self._num_suggested]
            self._num_suggested += 1
            return context.space.complete(point, context.random)
        return self.searcher.suggest(context)

    def replay_suggestion(self, context: SuggestContext, config: Mapping[str, object] | None) -> None:
        if self._num_suggested < len(self._points):
            self._num_suggested += 1
        else:
            self.searcher.replay_suggestion(context, config)

    def observe(self, observation: Observation) -> None:
        self.searcher.observe(observation)

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.searcher.on_rollback(trial_id, to_iter)

    def on_end(self, trial_id: int, status: str) -> None:
        self.searcher.on_end(trial_id, status)

    def describe(self) -> dict[str, object]:
        return {**self.searcher.describe(), "points_to_evaluate": [dict(point) for point in self._points]}


def _normalize_points(points: Sequence[Mapping[str, object]] | None) -> tuple[dict[str, object], ...]:
    """Copy the points with plain Python values. Objects are replaced by their names."""
    if points is None:
        return ()
    if isinstance(points, Mapping | str) or not isinstance(points, Sequence):
        raise TypeError(f"points_to_evaluate must be a list of configurations, [{{...}}, ...], got {points!r}")
    copies = []
    for index, point in enumerate(points):
        label = f"points_to_evaluate[{index}]"
        if not isinstance(point, Mapping):
            raise TypeError(f"{label} must be a dict of hyperparameters, got {point!r}")
        copies.append({str(name): plain_json_or_name(f"{label}[{name!r}]", value) for name, value in point.items()})
    return tuple(copies)
