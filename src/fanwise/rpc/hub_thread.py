"""Waiting for the hub's thread: a one-shot value, and `run_on_hub`, which runs a function there."""

import concurrent.futures
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

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
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    hub.call_soon(partial(_complete, future, function))
    try:
        while not concurrent.futures.wait([future], _CHECK_S).done:
            hub.check_usable()
        return future.result()
    finally:
        del future  # else an error would keep this frame alive


def _complete(future: "concurrent.futures.Future[T]", function: Callable[[], T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
