"""Cancellation: tells a running function, and the calls it made, that its caller has canceled the call.

    caller's future.cancel() --CANCEL--> Scope.cancel() of the call --> the calls that the function made are canceled
                                                                   +--> its waits wake up; `check` raises, once
                                                                   +--> cancelled() is True from now on

A scope belongs to a call and is found through a context variable, which coroutines inherit. Threads that the function
starts, and callbacks of futures, have no scope. As in asyncio, the error is raised once, so cleanup code may wait and
make calls.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from ...base.errors import CallCancelled


class Cancellable(Protocol):
    """A call, task or wait that is canceled with a scope."""

    def cancel(self) -> object:
        """Cancel without blocking. Thread-safe."""


class Scope:
    """The cancellation scope of one running call."""

    __slots__ = ("_children", "_is_delivered", "_lock", "is_cancelled")

    def __init__(self) -> None:
        self.is_cancelled = False
        self._is_delivered = False
        self._lock = threading.Lock()
        self._children: set[Cancellable] = set()

    def cancel(self) -> None:
        """Cancel the scope and its children. Thread-safe and idempotent."""
        with self._lock:
            if self.is_cancelled:
                return
            self.is_cancelled = True
            children, self._children = self._children, set()
        for child in children:
            child.cancel()

    def add(self, child: Cancellable) -> None:
        """Add a child. Cancel it at once if the scope is canceled and the function has not been notified."""
        with self._lock:
            if self._is_delivered or not self.is_cancelled:
                self._children.add(child)
                return
        child.cancel()

    def discard(self, child: Cancellable) -> None:
        self._children.discard(child)

    def contains(self, child: Cancellable) -> bool:
        return child in self._children

    def add_child(self, call: Any) -> None:
        """Add a call that the function makes, and discard it when it is done."""
        self.add(call)
        call.add_done_callback(self.discard)

    def mark_delivered(self) -> None:
        """Raise nothing from now on: the function is notified in another way."""
        self._is_delivered = True

    def check(self) -> None:
        """Raise `CallCancelled` if the call was canceled and nothing has raised that yet."""
        if self.is_cancelled and not self._is_delivered:
            self._is_delivered = True
            raise CallCancelled("the call that runs this function was canceled by its caller.")

    @contextmanager
    def wake_on_cancel(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` if the scope is canceled during a wait. Raises `CallCancelled` before or after the wait."""
        self.check()
        waker = _Waker(wake)
        self.add(waker)
        try:
            yield
        finally:
            self.discard(waker)
        self.check()


class _Waker:
    def __init__(self, wake: Callable[[], object]) -> None:
        self.cancel = wake


def cancel_once(task: "asyncio.Task[Any]") -> None:
    """Cancel a task unless it is being canceled: a second time would cancel its cleanup. Runs on the loop's thread."""
    if not task.cancelling():
        task.cancel()


class RunningCall(Protocol):
    def scope(self) -> Scope: ...
    def is_cancelled(self) -> bool: ...


# The call that runs the current function. Its scope is created on demand, because few calls need one.
current_call: ContextVar[RunningCall | None] = ContextVar("fanwise.rpc.running", default=None)


def current_scope() -> Scope | None:
    """Return the scope of the call that runs the current function; None outside of calls."""
    call = current_call.get()
    return None if call is None else call.scope()


def check() -> None:
    """As `Scope.check`, for the call that runs the current function."""
    call = current_call.get()
    if call is not None and call.is_cancelled():
        call.scope().check()


def cancelled() -> bool:
    """Return True if the call that runs this function was canceled. False outside of calls.

    Computing functions poll it. Waits for a call, a future or the next item of a stream, and `waiting()`, raise
    `fanwise.errors.CallCancelled` instead; coroutines get `asyncio.CancelledError`.

    >>> def train(steps):
    ...     for step in range(steps):
    ...         if cancelled():
    ...             return
    ...         ...
    """
    call = current_call.get()
    return call is not None and call.is_cancelled()
