"""Handing in recorded facts again: to go on with a search, or to see whether it would decide the same again.

Live, the searcher answers when it is asked or, in a thread, later. Here its answers come from the record; the searcher
is asked at the same moment all the same: so it is afterwards where it was, and its answers can be compared. For that
the rows are read ahead as far as the answer, and no further: a long record needs little memory.
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
    """The orders of a row. They are made out of it only where somebody wants to see them."""

    def matches(self, orders: Sequence[Order]) -> bool:
        """Whether the row would have been the same with these orders."""

    def orders(self) -> list[Order]:
        """As far as rows keep them."""


Row: TypeAlias = tuple[int, Fact, Recorded]


@final
@dataclass(slots=True)
class Difference:
    """Where replay went another way. `seq`: of the row. What was recorded and what was made are orders, or answers."""

    seq: int
    fact: Fact
    recorded: object
    replayed: object


@final
@dataclass(slots=True)
class Replayed:
    """What came of a replay: how many facts and decisions were compared, and where they differ (the first few).

    `other_versions`: libraries on which the suggestions depend, each with the version in the record and the one here;
    if there are any, the suggestions were taken from the record, and none was compared.
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
    """Hand in recorded facts; afterwards `tuning` and `searcher` are where the recorded ones were.

    Args:
        tuning, searcher: fresh ones, made from the same settings.
        rows: sequence number, fact and recorded orders.
        asks_anew: the searcher is asked anew, and its answers are compared; False: it recalls what is recorded.
    """
    found = Replayed()
    again: dict[int, object] = {}
    ahead = _Ahead(rows)
    for seq, fact, recorded in ahead:
        found.num_facts += 1
        if type(fact) is Suggested and fact.number in again:
            found.num_suggestions += 1
            anew = again.pop(fact.number)
            if fact.error is None and anew != fact.config:
                found.differ(seq, fact, fact.config, anew)
        orders = tuning.handle(fact)
        if not recorded.matches(orders):
            made = [order for order in orders if type(order) is not Suggest]
            found.differ(seq, fact, recorded.orders(), made)
        for order in orders:
            if type(order) is not Suggest:
                found.num_decisions += 1
                continue
            if searcher is not None and (answer := ahead.answer_to(order.number)) is not None:
                if asks_anew:
                    again[order.number] = suggested(searcher, order, fact.now_s).config
                elif answer.error is None:
                    searcher.replay_suggestion(order.ask, answer.config)
                else:
                    with suppress(Exception):  # it raised then, which ended that run
                        searcher.replay_suggestion(order.ask, None)
    return found


@final
class _Ahead:
    """Rows in their order, of which one can be looked for ahead of its turn."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = iter(rows)
        self._read: deque[Row] = deque()

    def __iter__(self) -> "_Ahead":
        return self

    def __next__(self) -> Row:
        return self._read.popleft() if self._read else next(self._rows)

    def answer_to(self, number: int) -> Suggested | None:
        """The searcher's answer to this question; None: its tuner ended before it came."""
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
