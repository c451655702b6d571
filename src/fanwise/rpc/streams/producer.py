"""The producer of a stream: runs the function and sends its items, as far as the window allows.

    the call starts --> function(...) --> a generator or iterator --> on this thread, which holds no slot meanwhile
                                     +--> an async generator      --> on the asyncio loop of this worker
    canceled, or the consumer lost    --> the generator is closed at its `yield`: `GeneratorExit`, `finally`
    it returns or raises              --> the call is answered with that, after the items

A stream has one thread from the first item to the last, because locks and torch contexts that a generator holds belong
to a thread. It holds no slot of the runner threads; otherwise as many streams as slots would block all calls.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import CoroutineType
from typing import Any

from ...base.errors import CallCancelled, FanwiseError, NotSendableError
from ...links.credits import cost_of
from ...links.link import Request
from ..calling.cancellation import Scope, cancel_once
from ..messages.messages import Message
from .window import Amount, Window

_log = logging.getLogger("fanwise.rpc")


class Producer:
    """The producer of one stream. `on_ack` and `cancel` are called on reading threads.

    Args:
        serialize: serializes an item. Raises an error that explains why that failed.
        roll_back: releases the contents of an item that was not sent.
        release_slot: a context in which this thread has no slot of the runner threads.
    """

    def __init__(
        self,
        limit: Amount,
        request: Request,
        scope: Scope,
        *,
        serialize: Callable[[Any], Message],
        roll_back: Callable[[Message], None],
        release_slot: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._window = Window(limit)
        self._lock = threading.Lock()
        self._request = request
        self._scope = scope
        self._serialize = serialize
        self._roll_back = roll_back
        self._release_slot = release_slot
        self._is_cancelled = False
        self._wake: Callable[[], None] = lambda: None  # interrupts the wait for room

    def on_ack(self, num_items: int, num_bytes: int) -> None:
        """Handle an acknowledgment. Raises ValueError if it exceeds the sent items."""
        with self._lock:
            self._window.acknowledge(Amount(num_items, num_bytes))
        self._wake()

    def cancel(self) -> None:
        self._is_cancelled = True
        self._wake()

    @property
    def is_blocked(self) -> bool:
        """Return True if the producer waits for the consumer to read."""
        with self._lock:
            return not (self._is_cancelled or self._window.has_room())

    def run(self, value: Any, name: str) -> Any:
        """Send all items of `value`, the result of the function. For an async iterator, return a coroutine."""
        if hasattr(value, "__aiter__"):
            return self._send_all_async(value.__aiter__())
        if type(value) is CoroutineType:
            value.close()
        if not isinstance(value, Iterable) or isinstance(value, Awaitable):
            raise TypeError(
                f"{name} was called as a stream but returned {type(value).__name__}, which is not iterable.\n"
                f"Yield the items, or return an iterator. Use rpc_sync for a single result."
            )
        with self._release_slot():
            self._send_all(iter(value))
        return None

    def _send_all(self, items: Iterator[Any]) -> None:
        changed = threading.Event()
        self._wake = changed.set
        is_exhausted = False
        try:
            while not self._is_cancelled:
                if not self._has_room():
                    changed.wait()
                    changed.clear()
                    continue
                try:
                    item = next(items)
                except StopIteration:
                    is_exhausted = True
                    return
                self._send(item)
                del item  # free it while the next one is computed
        finally:
            if not is_exhausted:
                self._scope.mark_delivered()
                _close_generator(items)

    async def _send_all_async(self, items: AsyncIterator[Any]) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        task = asyncio.current_task()
        assert task is not None, "runs on a loop"

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        self._wake = wake
        try:
            while not self._is_cancelled:
                if not self._has_room():
                    await changed.wait()
                    changed.clear()
                    continue
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
                self._send(item)
                del item
            cancel_once(task)  # the scope of the call also does this, perhaps later
            await asyncio.sleep(0)  # raises CancelledError unless the generator caught it
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    def _has_room(self) -> bool:
        """Return True if an item may be sent; otherwise `_wake` is called when that may have changed."""
        with self._lock:
            if self._is_cancelled or not self._window.has_room():
                return False
        return not self._request.when_answers_leave(self._wake)

    def _send(self, item: Any) -> None:
        message = self._serialize(item)
        with self._lock:
            self._window.add(cost_of(message.head, message.buffers))  # first: the acknowledgment may arrive at once
        try:
            self._request.give(message)
        except NotSendableError:
            self._roll_back(message)
            raise
        except FanwiseError:  # the link has ended
            self._scope.cancel()  # now: later, the reading thread would cancel calls made by cleanup code
            self.cancel()


def _close_generator(items: Iterator[Any]) -> None:
    """Close a generator at its `yield`, and log its errors."""
    close = getattr(items, "close", None)
    if close is None:
        return
    try:
        close()
    except (Exception, CallCancelled):
        _log.exception("a generator raised an error while its stream was closed")
