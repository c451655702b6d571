"""Initial configurations given by the user (`points_to_evaluate`)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

from ..space import Space
from ..values import plain_json_or_name
from .searcher import Observation, Searcher, SuggestContext


@final
class FirstPoints(Searcher):
    """Suggests `points` in order, then delegates to `searcher`, which observes all trials.

    Args:
        points: configurations; omitted values are sampled.
        searcher: searcher for all further configurations.

    Raises:
        TypeError: `points` is not a list of dicts.
    """

    runs_inline: ClassVar[bool] = False
    suggest_timeout_s: ClassVar[float | None] = None
    libraries: ClassVar[tuple[str, ...]] = ()

    def __init__(self, points: Sequence[Mapping[str, object]] | None, searcher: Searcher) -> None:
        self._points = _normalize_points(points)
        self.searcher = searcher
        self._next = 0
        self.runs_inline = searcher.runs_inline  # type: ignore[misc]  # as the wrapped searcher
        self.suggest_timeout_s = searcher.suggest_timeout_s  # type: ignore[misc]
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

    def suggest(self, context: SuggestContext) -> Mapping[str, object] | None:
        if self._next < len(self._points):
            point = self._points[self._next]
            self._next += 1
            return context.space.complete(point, context.random)
        return self.searcher.suggest(context)

    def replay_suggestion(self, context: SuggestContext, config: Mapping[str, object] | None) -> None:
        if self._next < len(self._points):
            self._next += 1
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
    """Copy the points with plain Python values, and names in place of objects."""
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
