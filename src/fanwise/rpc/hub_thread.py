"""Waiting for the hub's thread: a one-shot value, and `run_on_hub`, which runs a function there.

    caller's thread   one_shot.wait()      <-- one_shot.set() --   hub's thread
    caller's thread   run_on_hub(function) -- function() runs -->  hub's thread

Never wait on the hub's own thread.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..links.hub import Hub

T = TypeVar("T")

_CHECK_S = 1.0


class OneShot:
    """A value that one thread sets and another waits for. Only the first `set` has an effect."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._value: tuple[str, str] = ("again", "")

    def set(self, kind: str, text: str = "") -> None:
        """Set the kind of the value, and a text for messages."""
        if not self._event.is_set():
            self._value = (kind, text)
            self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, within_s: float) -> tuple[str, str] | None:
        """Return the value, or None if it is not set in time."""
        return self._value if self._event.wait(max(0.0, within_s)) else None


def run_on_hub(hub: Hub, function: Callable[[], T]) -> T:
    """Run `function` on the hub's thread and return its result. Raises its error, or ClosedError if the hub closes."""
    if hub.is_loop_thread:
        return function()
    hub.check_usable()
    done = threading.Event()
    outcomes: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcomes.append((function(), None))
        except BaseException as error:
            outcomes.append((None, error))
        finally:
            done.set()

    hub.call_soon(run)
    while not done.wait(_CHECK_S):
        hub.check_usable()
    value, error = outcomes[0]
    if error is not None:
        try:
            raise error
        finally:
            del error, outcomes  # else the error would keep this frame alive
    result: T = value
    return result
