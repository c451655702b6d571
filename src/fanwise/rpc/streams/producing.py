"""A stream at the worker that runs its function: items are made, closed and given, as far as the window lets it go.

    the call begins --> function(...) --> a generator or iterator --> on this thread, which has no place meanwhile
                                     +--> an async generator      --> on the loop of this worker
    nobody wants more (cancelled, lost) --> the generator is closed where it waits: `GeneratorExit`, its `finally`
    it ends, or raises                  --> the call is answered with that, after the items

One thread for each stream from the first item to the last, for what a generator has open (locks, contexts of torch)
belongs to a thread. It has no place among the calls: else as many streams as there are places would keep all calls
from beginning. Knows the call only by what it asks of it.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import CoroutineType
from typing import Any, Protocol

from ...base.errors import CallCancelled
from ...links.flow_control.credits import cost_of
from ..calling.cancelling import Scope, cancel_once
from ..messages.messages import Message
from .window import Giving, Window

_log = logging.getLogger("fanwise.rpc")


class Outlet(Protocol):
    """What takes the items of a stream to its reader."""

    def close_item(self, item: Any) -> Message:
        """The item as it travels. Raises what pickling raises."""

    def give(self, closed: Message) -> bool:
        """It leaves. False: it cannot, the link has ended. NotSendableError: it is too big for a message."""

    def when_it_takes_more(self, again: Callable[[], None]) -> bool:
        """Whether so much waits for the reader's link that no more should come; if so, `again` is called."""


class Producer:
    """See the module. One for each stream, made when its call begins; what its reader says comes on reading threads."""

    def __init__(
        self, window: Window, outlet: Outlet, scope: Scope, *, without_place: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._giving = Giving(window)
        self._outlet = outlet
        self._scope = scope
        self._without_place = without_place
        self._changed = threading.Condition()
        self._wake_loop: Callable[[], None] | None = None

    # -- what the reader says --------------------------------------------------------------------------------------

    def taken(self, num_items: int, num_bytes: int) -> None:
        """So much was taken. ValueError: it cannot be true."""
        with self._changed:
            self._giving.taken(num_items, num_bytes)
        self._wake()

    def cancelled(self) -> None:
        """Nobody wants the rest."""
        with self._changed:
            self._giving.cancelled()
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
            wake_loop = self._wake_loop
        if wake_loop is not None:
            wake_loop()

    @property
    def waits_for_its_reader(self) -> bool:
        """Whether nothing goes on here until somebody has read."""
        with self._changed:
            return not (self._giving.is_cancelled or self._giving.may_go_on())

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, made: Any, name: str) -> Any:
        """Give all that `made`, what the function returned, has. A coroutine that does so, where that must run."""
        if hasattr(made, "__aiter__"):
            return self._run_async(made.__aiter__())
        if type(made) is CoroutineType:
            made.close()
        if not isinstance(made, Iterable) or isinstance(made, Awaitable):
            raise TypeError(
                f"{name} was called as a stream, and returned one {type(made).__name__} in the place of items.\n"
                f"Yield them one by one, or return an iterator; a single result is for rpc_sync."
            )
        with self._without_place():
            self._run(iter(made))
        return None

    def _run(self, items: Iterator[Any]) -> None:
        closed = False
        try:
            while self._wait_for_room():
                try:
                    item = next(items)
                except StopIteration:
                    closed = True
                    return
                self._give(item)
                del item  # it may be large, and the next may take long
        finally:
            if not closed:
                self._scope.told()
                _close(items)

    async def _run_async(self, items: AsyncIterator[Any]) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        task = asyncio.current_task()
        assert task is not None, "a coroutine on a loop runs in one"

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._wake_loop = wake
        try:
            while True:
                while not self._has_room():
                    if self._giving.is_cancelled:
                        cancel_once(task)  # the call's scope does so too, maybe later
                        await asyncio.sleep(0)  # raises, unless the generator has caught that
                        return
                    await changed.wait()
                    changed.clear()
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
                self._give(item)
                del item
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    def _wait_for_room(self) -> bool:
        """Block until there is room for one more item. False: nobody wants one."""
        while not self._has_room():
            with self._changed:
                while not (self._giving.is_cancelled or self._giving.may_go_on()):
                    self._changed.wait()
                if self._giving.is_cancelled:
                    return False
        return True

    def _has_room(self) -> bool:
        with self._changed:
            if self._giving.is_cancelled or not self._giving.may_go_on():
                return False
        return not self._waits_for_the_link()

    def _waits_for_the_link(self) -> bool:
        """Other answers must leave first: those of calls, and the items of other streams."""
        left = threading.Event()

        def again() -> None:
            left.set()
            self._wake()

        if not self._outlet.when_it_takes_more(again):
            return False
        if self._wake_loop is None:
            with self._changed:
                while not (left.is_set() or self._giving.is_cancelled):
                    self._changed.wait()
        return True

    def _give(self, item: Any) -> None:
        closed = self._outlet.close_item(item)
        with self._changed:
            self._giving.gave(cost_of(closed.head, closed.buffers))  # first: the reader may say at once that it took it
        if not self._outlet.give(closed):
            self._scope.cancel()  # now, not when the reading thread comes to it: that would end calls that clean up
            self.cancelled()


def _close(items: Iterator[Any]) -> None:
    """End a generator where it waits. What it raises then has nobody who hears it."""
    close = getattr(items, "close", None)
    if close is None:
        return
    try:
        close()
    except (Exception, CallCancelled):
        _log.exception("a generator whose stream was ended failed as it was closed")
