"""Handing in recorded facts again: to go on with a search, or to see whether it would decide the same again.

Live, the searcher answers when it is asked or, in a thread, later. Here its answers come from the record; the searcher
is asked at the same moment all the same: so it is afterwards where it was, and its answers can be compared.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from ..searchers.base import Searcher
from .driving import suggested
from .facts import Fact, Suggested
from .orders import Order, Suggest
from .tuning import Tuning

_MOST_KEPT = 20


@final
@dataclass(slots=True)
class Difference:
    """Where replay went another way. `seq`: of the row."""

    seq: int
    fact: Fact
    recorded: object
    replayed: object


@final
@dataclass(slots=True)
class Replayed:
    """What came of a replay: how many facts and decisions were compared, and where they differ (the first few)."""

    num_facts: int = 0
    num_decisions: int = 0
    num_suggestions: int = 0
    num_different: int = 0
    differences: list[Difference] = field(default_factory=list)

    def differ(self, seq: int, fact: Fact, recorded: object, replayed: object) -> None:
        self.num_different += 1
        if len(self.differences) < _MOST_KEPT:
            self.differences.append(Difference(seq, fact, recorded, replayed))


def replay(
    tuning: Tuning,
    searcher: Searcher | None,
    rows: Iterable[tuple[int, Fact, list[Order]]],
    suggestions: Mapping[int, Mapping[str, object] | None],
    *,
    as_recorded: Callable[[Order], Order] | None = None,
) -> Replayed:
    """Hand in recorded facts; afterwards `tuning` and `searcher` are where the recorded ones were.

    Args:
        tuning, searcher: fresh ones, made from the same settings.
        rows: sequence number, fact and recorded orders.
        suggestions: the recorded answers of the searcher by their number. One that is not there was never given: its
            tuner was killed meanwhile, and nothing is asked.
        as_recorded: an order as it would come back from the record. With it orders are compared, and the searcher is
            asked anew, and its answers are compared; None: it recalls what is recorded.
    """
    found = Replayed()
    again: dict[int, object] = {}
    for seq, fact, recorded in rows:
        found.num_facts += 1
        if isinstance(fact, Suggested) and fact.number in again:
            found.num_suggestions += 1
            anew = again.pop(fact.number)
            if fact.error is None and anew != fact.config:
                found.differ(seq, fact, fact.config, anew)
        orders = tuning.handle(fact)
        if as_recorded is not None:
            made = [as_recorded(order) for order in orders if type(order) is not Suggest]
            found.num_decisions += len(made)
            if made != recorded:
                found.differ(seq, fact, recorded, made)
        for order in orders:
            if type(order) is Suggest and searcher is not None and order.number in suggestions:
                if as_recorded is None:
                    searcher.recall(order.ask, suggestions[order.number])
                else:
                    again[order.number] = suggested(searcher, order, fact.now_s).config
    return found
