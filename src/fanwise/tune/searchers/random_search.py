"""Random search: every configuration drawn from the space, whatever was observed."""

from collections.abc import Mapping
from typing import final

from .base import Ask, Observation, Searcher


@final
class RandomSearcher(Searcher):
    """Draws every configuration from the space, independently of all others."""

    def suggest(self, ask: Ask) -> Mapping[str, object]:
        return ask.space.sample(ask.random)

    def observe(self, observation: Observation) -> None:
        """Nothing to learn from."""
