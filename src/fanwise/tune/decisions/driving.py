"""Handing facts to `Tuning` with a searcher that answers at once: live, in the simulator, in replay and in tests."""

from collections import deque
from collections.abc import Callable

from ..searchers.base import Searcher
from .facts import Fact, Suggested
from .orders import Order, Suggest
from .tuning import Tuning


def suggested(searcher: Searcher, order: Suggest, now_s: float, *, seen: int = 0) -> Suggested:
    """The searcher's answer as a fact; what it raises becomes the error that ends the search."""
    try:
        return Suggested(now_s, order.number, searcher.suggest(order.ask), seen)
    except Exception as error:  # user code: whatever it raises ends the search, in order
        return failed_suggestion(searcher, order, now_s, error, seen=seen)


def failed_suggestion(
    searcher: Searcher, order: Suggest, now_s: float, error: BaseException, *, seen: int = 0
) -> Suggested:
    """The fact that the searcher raised."""
    what = f"the searcher {type(searcher).__name__} raised {type(error).__name__}: {error}"
    return Suggested(now_s, order.number, None, seen, what)


def handle(tuning: Tuning, fact: Fact, searcher: Searcher | None, note: Callable[[Fact, list[Order]], None]) -> None:
    """Hand in the fact and the searcher's answers that it leads to. `note` gets each fact with its orders."""
    facts = deque((fact,))
    while facts:
        fact = facts.popleft()
        orders = tuning.handle(fact)
        note(fact, orders)
        for order in orders:
            if type(order) is Suggest:
                assert searcher is not None, "a suggestion was ordered from a scheduler without a searcher"
                facts.append(suggested(searcher, order, fact.now_s))
