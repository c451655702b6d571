"""Configurations that a person wants tried first, before the searcher chooses."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

from ..spaces import Space
from ..values import named_json
from .base import Ask, Observation, Searcher


@final
class FirstPoints(Searcher):
    """Suggests `points` in their order, then what `searcher` suggests; the searcher observes all of them.

    Args:
        points: configurations; what one leaves out is drawn at random.
        searcher: chooses all further ones.

    Raises:
        TypeError: `points` is no list of dicts.
    """

    answers_at_once: ClassVar[bool] = False
    budget_s: ClassVar[float | None] = None
    libraries: ClassVar[tuple[str, ...]] = ()

    def __init__(self, points: Sequence[Mapping[str, object]] | None, searcher: Searcher) -> None:
        self._points = _copied(points)
        self.searcher = searcher
        self._next = 0
        self.answers_at_once = searcher.answers_at_once  # type: ignore[misc]  # as slow as the one it stands before
        self.budget_s = searcher.budget_s  # type: ignore[misc]
        self.levels = searcher.levels
        self.libraries = searcher.libraries  # type: ignore[misc]

    def check(self, space: Space) -> None:
        for index, point in enumerate(self._points):
            try:
                space.check_part(point)
            except ValueError as error:
                raise ValueError(f"points_to_evaluate[{index}]: {error}") from None
        self.searcher.check(space)

    def begin(self, space: Space, seed: int) -> None:
        self._next = 0
        self.searcher.levels = self.levels
        self.searcher.begin(space, seed)

    def suggest(self, ask: Ask) -> Mapping[str, object] | None:
        if self._next < len(self._points):
            point = self._points[self._next]
            self._next += 1
            return ask.space.complete(point, ask.random)
        return self.searcher.suggest(ask)

    def recall(self, ask: Ask, config: Mapping[str, object] | None) -> None:
        if self._next < len(self._points):
            self._next += 1
        else:
            self.searcher.recall(ask, config)

    def observe(self, observation: Observation) -> None:
        self.searcher.observe(observation)

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        self.searcher.on_rewind(trial_id, to_iter)

    def on_end(self, trial_id: int, status: str) -> None:
        self.searcher.on_end(trial_id, status)

    def describe(self) -> dict[str, object]:
        return {**self.searcher.describe(), "points_to_evaluate": [dict(point) for point in self._points]}


def _copied(points: Sequence[Mapping[str, object]] | None) -> tuple[dict[str, object], ...]:
    """Return copies in plain Python values, with names for objects. Whether they fit a space is checked later."""
    if points is None:
        return ()
    if isinstance(points, Mapping | str) or not isinstance(points, Sequence):
        raise TypeError(f"points_to_evaluate must be a list of configurations, [{{...}}, ...], got {points!r}")
    copies = []
    for index, point in enumerate(points):
        if not isinstance(point, Mapping):
            raise TypeError(f"points_to_evaluate[{index}] must be a dict of hyperparameters, got {point!r}")
        what = f"points_to_evaluate[{index}]"
        copies.append({str(name): named_json(f"{what}[{name!r}]", value) for name, value in point.items()})
    return tuple(copies)
