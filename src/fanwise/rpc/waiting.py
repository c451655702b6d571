"""How other threads wait for the hub's: a mailbox for one answer, and `on_hub`, which runs a function there.

    caller's thread   mailbox.wait()  <-- mailbox.put() --   hub's thread
    caller's thread   on_hub(do)      -- do() runs -->       hub's thread

Nobody waits on the hub's own thread. Knows nothing of groups.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..links.hub import Hub

T = TypeVar("T")

_ASK_S = 1.0


class Mailbox:
    """One answer that a thread waits for, and another brings. The first one counts."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._content: tuple[str, str] = ("again", "")

    def put(self, kind: str, text: str = "") -> None:
        """The answer: its kind, and a text for people."""
        if not self._there.is_set():
            self._content = (kind, text)
            self._there.set()

    @property
    def is_full(self) -> bool:
        """Whether the answer is there."""
        return self._there.is_set()

    def wait(self, within_s: float) -> tuple[str, str] | None:
        """The answer; None when it does not come in time."""
        return self._content if self._there.wait(max(0.0, within_s)) else None


def on_hub(hub: Hub, do: Callable[[], T]) -> T:
    """Run `do` on the hub's thread, wait for it, and return or raise what it does. ClosedError when the hub closes."""
    if hub.is_loop_thread:
        return do()
    hub.check_usable()
    done = threading.Event()
    outcome: list[tuple[Any, BaseException | None]] = []  # Any: what `do` returns

    def run() -> None:
        try:
            outcome.append((do(), None))
        except BaseException as error:
            outcome.append((None, error))
        finally:
            done.set()

    hub.call_soon(run)
    while not done.wait(_ASK_S):
        hub.check_usable()
    value, error = outcome[0]
    if error is not None:
        try:
            raise error
        finally:
            del error, outcome  # else it would keep this frame
    result: T = value
    return result
