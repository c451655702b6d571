"""Random search: every configuration drawn from the space, whatever was observed."""

from collections.abc import Mapping
from typing import ClassVar, final

from ..spaces import Space
from .base import Ask, Observation, Searcher
from .tried import Tried


@final
class RandomSearcher(Searcher):
    """Draws every configuration from the space, whatever came out before.

    Of a space of up to 4,096 configurations none comes twice while others are left.
    """

    answers_at_once: ClassVar[bool] = True

    def __init__(self) -> None:
        self._tried: Tried | None = None

    def begin(self, space: Space, seed: int) -> None:
        self._tried = Tried(space)

    def suggest(self, ask: Ask) -> Mapping[str, object]:
        if self._tried is None:  # schedulers of one's own may leave out to begin it
            self._tried = Tried(ask.space)
        return self._tried.instead(ask.space.sample(ask.random), ask.pending.values(), ask.random)

    def observe(self, observation: Observation) -> None:
        """Nothing to learn from, but what was tried."""
        if self._tried is not None and observation.trial_id >= 0:
            self._tried.note(observation.config)
