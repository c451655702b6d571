"""Replays recorded facts, to resume a search or to check that it is deterministic.

In a live search, the searcher answers at once or later from its thread. In a replay, answers come from the record. The
searcher is still called at the time of each order, which restores its state and allows comparing its answers. Rows are
read ahead only up to the recorded answer, so a long record needs little memory.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, final

from ..searchers.base import Searcher
from .driving import suggested
from .facts import Fact, Resumed, Suggested
from .orders import Order, Suggest
from .tuning import Tuning

_MOST_KEPT = 20


class Recorded(Protocol):
    """The orders of a row, decoded lazily."""

    def matches(self, orders: Sequence[Order]) -> bool:
        """Return True if these orders would have produced the same row."""

    def orders(self) -> list[Order]:
        """Return the orders, as far as rows store them."""


Row: TypeAlias = tuple[int, Fact, Recorded]


@final
@dataclass(slots=True)
class Difference:
    """A difference between the record and the replay. `recorded` and `replayed` are orders or suggestions.

    `seq`: sequence number of the row.
    """

    seq: int
    fact: Fact
    recorded: object
    replayed: object


@final
@dataclass(slots=True)
class Replayed:
    """The result of a replay: the numbers of compared facts, decisions and suggestions, and the first differences.

    `other_versions`: libraries of the searcher whose recorded and installed versions differ, with both versions. If
    there are any, suggestions were taken from the record and not compared.
    """

    num_facts: int = 0
    num_decisions: int = 0
    num_suggestions: int = 0
    num_different: int = 0
    differences: list[Difference] = field(default_factory=list)
    other_versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def differ(self, seq: int, fact: Fact, recorded: object, replayed: object) -> None:
        self.num_different += 1
        if len(self.differences) < _MOST_KEPT:
            self.differences.append(Difference(seq, fact, recorded, replayed))


def replay(tuning: Tuning, searcher: Searcher | None, rows: Iterable[Row], *, asks_anew: bool) -> Replayed:
    """Apply recorded facts, which brings `tuning` and `searcher` to their recorded states.

    Args:
        tuning, searcher: fresh ones, made with the same settings.
        rows: sequence number, fact and recorded orders.
        asks_anew: ask the searcher again and compare its answers. False: pass it the recorded answers.
    """
    result = Replayed()
    answers: dict[int, object] = {}
    ahead = _Ahead(rows)
    for seq, fact, recorded in ahead:
        result.num_facts += 1
        if type(fact) is Suggested and fact.number in answers:
            result.num_suggestions += 1
            config = answers.pop(fact.number)
            if fact.error is None and config != fact.config:
                result.differ(seq, fact, fact.config, config)
        orders = tuning.handle(fact)
        if not recorded.matches(orders):
            replayed = [order for order in orders if type(order) is not Suggest]
            result.differ(seq, fact, recorded.orders(), replayed)
        for order in orders:
            if type(order) is not Suggest:
                result.num_decisions += 1
                continue
            if searcher is not None and (answer := ahead.answer_to(order.number)) is not None:
                if asks_anew:
                    answers[order.number] = suggested(searcher, order, fact.now_s).config
                elif answer.error is None:
                    searcher.replay_suggestion(order.ask, answer.config)
                else:
                    with suppress(Exception):  # the recorded call raised and ended that run
                        searcher.replay_suggestion(order.ask, None)
    return result


@final
class _Ahead:
    """Iterator over rows that can look ahead for the answer to a suggestion order."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = iter(rows)
        self._read: deque[Row] = deque()

    def __iter__(self) -> "_Ahead":
        return self

    def __next__(self) -> Row:
        return self._read.popleft() if self._read else next(self._rows)

    def answer_to(self, number: int) -> Suggested | None:
        """Return the recorded answer to this order, or None if the tuner ended before it arrived."""
        for _, fact, _ in self._read:
            if type(fact) is Suggested and fact.number == number:
                return fact
            if type(fact) is Resumed:
                return None
        for row in self._rows:
            self._read.append(row)
            fact = row[1]
            if type(fact) is Suggested and fact.number == number:
                return fact
            if type(fact) is Resumed:
                return None
        return None
