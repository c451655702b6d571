"""Applies facts to `Tuning` with an inline searcher. Used by live searches, the simulator, replay and tests."""

from collections import deque
from collections.abc import Callable, Mapping

from ..searchers.base import Searcher
from ..values import plain_json_or_name
from .facts import Fact, Suggested
from .orders import Order, Suggest
from .tuning import Tuning


def asked(searcher: Searcher, order: Suggest) -> Mapping[str, object] | None:
    """Return the searcher's suggestion in plain Python values and names of objects, as the record stores it.

    `Tuning` checks that it is in the space. Exceptions of the searcher propagate.
    """
    config = searcher.suggest(order.ask)
    if not isinstance(config, Mapping):
        return config
    try:
        return {name: plain_json_or_name(name, value) for name, value in config.items()}
    except ValueError:  # NaN
        return config


def suggested(searcher: Searcher, order: Suggest, now_s: float, *, seen: int = 0) -> Suggested:
    """Return the searcher's suggestion as a fact. An exception becomes a fact that ends the search."""
    try:
        return Suggested(now_s, order.number, asked(searcher, order), seen)
    except Exception as error:  # user code: any exception ends the search in order
        return failed_suggestion(searcher, order, now_s, error, seen=seen)


def failed_suggestion(
    searcher: Searcher, order: Suggest, now_s: float, error: BaseException, *, seen: int = 0
) -> Suggested:
    """Return the fact that the searcher raised an exception."""
    message = "\n".join([
        f"the searcher {type(searcher).__name__} raised {type(error).__name__}: {error}",
        *getattr(error, "__notes__", ()),
    ])  # fmt: skip
    return Suggested(now_s, order.number, None, seen, message)


def handle(tuning: Tuning, fact: Fact, searcher: Searcher | None, note: Callable[[Fact, list[Order]], None]) -> None:
    """Apply the fact and the suggestions that result from it. `note` is called with each fact and its orders."""
    facts = deque((fact,))
    while facts:
        fact = facts.popleft()
        orders = tuning.handle(fact)
        note(fact, orders)
        for order in orders:
            if type(order) is Suggest:
                assert searcher is not None, "a suggestion was ordered from a scheduler without a searcher"
                facts.append(suggested(searcher, order, fact.now_s))
