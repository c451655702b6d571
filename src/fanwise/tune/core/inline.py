"""Applies events to `SearchCore` with an inline searcher. Used by live searches, the simulator, replay and tests."""

from collections import deque
from collections.abc import Callable, Mapping

from ..searchers.searcher import Searcher
from ..values import plain_json_or_name
from .actions import Action, Suggest
from .events import Event, Suggested
from .search_core import SearchCore


def asked(searcher: Searcher, action: Suggest) -> Mapping[str, object] | None:
    """Return the searcher's suggestion in plain Python values and names of objects, as the record stores it.

    `SearchCore` checks that it is in the space. Exceptions of the searcher propagate.
    """
    config = searcher.suggest(action.ask)
    if not isinstance(config, Mapping):
        return config
    try:
        return {name: plain_json_or_name(name, value) for name, value in config.items()}
    except ValueError:  # NaN
        return config


def suggested(searcher: Searcher, action: Suggest, now_s: float, *, seen: int = 0) -> Suggested:
    """Return the searcher's suggestion as an event. An exception becomes an event that ends the search."""
    try:
        return Suggested(now_s, action.number, asked(searcher, action), seen)
    except Exception as error:  # user code: any exception ends the search in order
        return failed_suggestion(searcher, action, now_s, error, seen=seen)


def failed_suggestion(
    searcher: Searcher, action: Suggest, now_s: float, error: BaseException, *, seen: int = 0
) -> Suggested:
    """Return the event that the searcher raised an exception."""
    message = "\n".join([
        f"the searcher {type(searcher).__name__} raised {type(error).__name__}: {error}",
        *getattr(error, "__notes__", ()),
    ])  # fmt: skip
    return Suggested(now_s, action.number, None, seen, message)


def handle(
    core: SearchCore, event: Event, searcher: Searcher | None, note: Callable[[Event, list[Action]], None]
) -> None:
    """Apply the event and the suggestions that result from it. `note` is called with each event and its actions."""
    events = deque((event,))
    while events:
        event = events.popleft()
        actions = core.handle(event)
        note(event, actions)
        for action in actions:
            if type(action) is Suggest:
                assert searcher is not None, "a suggestion was ordered from a scheduler without a searcher"
                events.append(suggested(searcher, action, event.now_s))
