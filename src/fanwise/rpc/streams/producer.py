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
from typing import Any, Protocol

from ...base.errors import CallCancelled
from ...links.flow_control.credits import cost_of
from ..calling.cancellation import Scope, cancel_once
from ..messages.messages import Message
from .window import ProducerWindow, Window

_log = logging.getLogger("fanwise.rpc")


class ItemSink(Protocol):
    """Serializes and sends the items of a producer."""

    def serialize_item(self, item: Any) -> Message:
        """Serialize an item. Raises the error of pickle."""

    def send_item(self, message: Message) -> bool:
        """Send an item. Return False if the link has ended. Raises NotSendableError if it is too large."""

    def when_link_drained(self, on_drained: Callable[[], None]) -> bool:
        """Return False if the link has room for an item; otherwise True, and call `on_drained` when it has."""


class Producer:
    """The producer of one stream. `on_ack` and `cancel` are called on reading threads."""

    def __init__(
        self, window: Window, sink: ItemSink, scope: Scope, *, release_slot: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._window = ProducerWindow(window)
        self._sink = sink
        self._scope = scope
        self._release_slot = release_slot
        self._changed = threading.Condition()
        self._wake_loop: Callable[[], None] | None = None

    # -- messages of the consumer ----------------------------------------------------------------------------------

    def on_ack(self, num_items: int, num_bytes: int) -> None:
        """Handle an acknowledgment. Raises ValueError if it exceeds the sent items."""
        with self._changed:
            self._window.on_ack(num_items, num_bytes)
        self._wake()

    def cancel(self) -> None:
        with self._changed:
            self._window.cancel()
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
            wake_loop = self._wake_loop
        if wake_loop is not None:
            wake_loop()

    @property
    def is_blocked(self) -> bool:
        """Return True if the producer waits for the consumer to read."""
        with self._changed:
            return not (self._window.is_cancelled or self._window.has_room())

    # -- running ---------------------------------------------------------------------------------------------------

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
        is_exhausted = False
        try:
            while self._wait_for_room():
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

        with self._changed:
            self._wake_loop = wake
        try:
            while True:
                while not self._has_room():
                    if self._window.is_cancelled:
                        cancel_once(task)  # the scope of the call also does this, perhaps later
                        await asyncio.sleep(0)  # raises CancelledError unless the generator caught it
                        return
                    await changed.wait()
                    changed.clear()
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
                self._send(item)
                del item
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    def _wait_for_room(self) -> bool:
        """Block until there is room for an item. Return False if the stream is canceled."""
        while not self._has_room():
            with self._changed:
                while not (self._window.is_cancelled or self._window.has_room()):
                    self._changed.wait()
                if self._window.is_cancelled:
                    return False
        return True

    def _has_room(self) -> bool:
        with self._changed:
            if self._window.is_cancelled or not self._window.has_room():
                return False
        return not self._wait_for_link()

    def _wait_for_link(self) -> bool:
        """Wait for replies and items queued at the link to be sent. Return False if the link had room."""
        drained = threading.Event()

        def on_drained() -> None:
            drained.set()
            self._wake()

        if not self._sink.when_link_drained(on_drained):
            return False
        if self._wake_loop is None:
            with self._changed:
                while not (drained.is_set() or self._window.is_cancelled):
                    self._changed.wait()
        return True

    def _send(self, item: Any) -> None:
        message = self._sink.serialize_item(item)
        with self._changed:
            # Before sending, because the acknowledgment may arrive at once.
            self._window.on_sent(cost_of(message.head, message.buffers))
        if not self._sink.send_item(message):
            self._scope.cancel()  # now: later, the reading thread would cancel calls made by cleanup code
            self.cancel()


def _close_generator(items: Iterator[Any]) -> None:
    """Close a generator at its `yield` and log what it raises."""
    close = getattr(items, "close", None)
    if close is None:
        return
    try:
        close()
    except (Exception, CallCancelled):
        _log.exception("a generator raised an error while its stream was closed")
