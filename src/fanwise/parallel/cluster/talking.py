"""What a rank and its supervisor say to each other: reports of the rank's job, whose answers may come later.

say   "linked", "out" and "err" with text, "progress" with numbers      nobody waits for an answer
ask   "here", a card                     -> "cards" of all, when all have come
      "report", numbers                  -> nothing, when it was taken
      "over", whether this is the first  -> "value": whether its result is the one that is wanted
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...pool.current import CurrentJob
from ..hosts.meeting import Card


class Talking:
    """The rank's side; `job`: the one that it is."""

    def __init__(self, job: CurrentJob) -> None:
        self._job = job

    def say(self, name: str, *content: Any) -> None:  # Any: plain values
        """Returns at once."""
        self._job.begin_report((name, *content))

    def ask(self, name: str, *content: Any) -> Mapping[str, Any]:  # Any: plain values
        """Blocks until it is answered."""
        return self._job.report((name, *content)).body or {}

    def who_is_where(self, card: Card) -> Mapping[int, Card]:
        """Tell who this is; the cards of all, when all have come."""
        return {each["rank"]: Card(**each) for each in self.ask("here", asdict(card))["cards"]}


def as_cards(cards: Mapping[int, Card]) -> dict[str, object]:
    """The answer to "here"."""
    return {"cards": [asdict(card) for card in cards.values()]}
