"""What a called function learns of the end of its caller's interest, and what it has asked of others meanwhile.

    caller's future.cancel() --CANCEL--> the call's Scope.cancel() --> what it has asked of others is cancelled too
                                                                  +--> what it waits for wakes; `check` raises, once
                                                                  +--> cancelled() is True from now on

The scope belongs to the call, not to a thread: a context variable, which a coroutine takes along, finds it. Threads
that the function starts, and callbacks of futures, are in none. The error is raised once, as in asyncio: what cleans
up may wait and call. Knows no link and no agent.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from ...base.errors import CallCancelled


class Cancellable(Protocol):
    """What ends, or wakes, when the call does that has it."""

    def cancel(self) -> object:
        """End it. By any thread, and without blocking."""


class Scope:
    """One call that runs here."""

    __slots__ = ("_has", "_is_told", "_lock", "is_cancelled")

    def __init__(self) -> None:
        self.is_cancelled = False
        self._is_told = False
        self._lock = threading.Lock()
        self._has: set[Cancellable] = set()

    def cancel(self) -> None:
        """Nobody waits for the call any more. By any thread; a second time does nothing."""
        with self._lock:
            if self.is_cancelled:
                return
            self.is_cancelled = True
            has, self._has = self._has, set()
        for one in has:
            one.cancel()

    def add(self, one: Cancellable) -> None:
        """It ends with this call; at once when that is cancelled and the function does not know it yet."""
        with self._lock:
            if self._is_told or not self.is_cancelled:
                self._has.add(one)
                return
        one.cancel()

    def drop(self, one: Cancellable) -> None:
        """It has ended."""
        self._has.discard(one)

    def has(self, one: Cancellable) -> bool:
        """Whether it was added, and neither dropped nor cancelled."""
        return one in self._has

    def nest(self, call: Any) -> None:
        """A call that the function makes: `add`, and `drop` when it is done."""
        self.add(call)
        call.add_done_callback(self.drop)

    def told(self) -> None:
        """The function learns of it in another way, or has: no wait raises it."""
        self._is_told = True

    def check(self) -> None:
        """Raise `CallCancelled` if the call was cancelled and no wait has raised that yet."""
        if self.is_cancelled and not self._is_told:
            self._is_told = True
            raise CallCancelled("nobody waits any more for the call that runs this function: it was cancelled.")

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Around a wait that `wake` ends. Raises `CallCancelled` after it, and before it."""
        self.check()
        waker = _Waker(wake)
        self.add(waker)
        try:
            yield
        finally:
            self.drop(waker)
        self.check()


class _Waker:
    """Ends a wait."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self.cancel = wake


def cancel_once(task: "asyncio.Task[Any]") -> None:
    """Cancel a task, on its loop's thread, if nobody has: a second time would cancel how it cleans up."""
    if not task.cancelling():
        task.cancel()


class Running(Protocol):
    """A call that runs here."""

    def scope(self) -> Scope: ...
    def is_cancelled(self) -> bool: ...


# The call that runs the current function. Not its scope, which few calls ever need.
running: ContextVar[Running | None] = ContextVar("fanwise.rpc.running", default=None)


def here() -> Scope | None:
    """The scope of the call that runs the current function; None outside of calls."""
    call = running.get()
    return None if call is None else call.scope()


def check() -> None:
    """As `Scope.check`, of the call that runs the current function."""
    call = running.get()
    if call is not None and call.is_cancelled():
        call.scope().check()


def cancelled() -> bool:
    """Whether the call that runs this function was cancelled. False outside of calls.

    For functions that compute: one that waits for another call, a future or the next item of a stream, or enters
    `waiting()`, hears of it there, as `fanwise.errors.CallCancelled`, and a coroutine as `asyncio.CancelledError`.

    >>> def train(steps):
    ...     for step in range(steps):
    ...         if cancelled():
    ...             return
    ...         ...
    """
    call = running.get()
    return call is not None and call.is_cancelled()
