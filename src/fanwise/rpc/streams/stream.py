"""The consumer of a stream: the buffer of received items, and the handle that a program iterates over.

    reading thread   item --> StreamReader, buffered --> `Stream.__next__`, `__anext__`, which deserialize it
    end of the call  error, loss, end --> after the items received before it
    close, break, deletion of the handle --> CANCEL; buffered and later items are discarded without deserializing them

The link holds the `StreamReader` but not the `Stream`, so deleting the handle ends the stream. That may happen in a
garbage collection, on any thread, so closing is queued for another thread.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from ...base.errors import DeadlineExceeded
from ...links.link import Link, Reply
from ..calling.call_future import call_error
from ..calling.cancellation import Scope, current_scope
from ..calling.futures import copy_exception, raise_copy
from ..messages.messages import Message
from ..worker_info import WorkerInfo
from .window import ConsumerWindow, EndOfStream, Next, Window

if TYPE_CHECKING:
    from ..agent import Agent

T = TypeVar("T")

# A signal that arrives just before the sleep does not interrupt it, so sleep in slices.
_SIGNAL_CHECK_S = 1.0


class StreamReader:
    """The received items of one stream. Thread-safe. `is_of_call`: opened by a function that a call runs."""

    def __init__(self, agent: "Agent", to: WorkerInfo, window: Window, *, is_of_call: bool) -> None:
        self.to = to
        self.is_of_call = is_of_call
        self._agent = agent
        self._window: ConsumerWindow[Message] = ConsumerWindow(window)
        self._changed = threading.Condition()
        self._loop_wakers: set[Callable[[], None]] = set()
        self._reply: Reply | None = None

    def start(self, reply: Reply) -> None:
        """Set the reply of the call, after sending it. Items may have arrived before."""
        self._reply = reply
        reply.add_done_callback(self._on_end)

    # -- from the link, on a reading thread ------------------------------------------------------------------------

    def on_item(self, item: Message, cost: int) -> None:
        """Buffer or discard an item. Raises ValueError if it exceeds the window."""
        with self._changed:
            is_kept = self._window.on_item(item, cost)
            self._changed.notify_all()
        if is_kept:
            self._notify_loops()
        elif self._reply is not None:
            self._agent.discard(item, self._reply.link)

    def _on_end(self, reply: Reply) -> None:
        error: Exception | None = None
        try:
            reply.result()
        except Exception as raised:
            error = call_error(raised, self.to, None, closed=self._agent.is_closed).with_traceback(None)
        with self._changed:
            self._window.on_end(error)
            self._changed.notify_all()
        self._notify_loops()

    # -- reading ---------------------------------------------------------------------------------------------------

    def next_nowait(self) -> Message | EndOfStream | None:
        """Return the next item or the end; None if neither has arrived."""
        with self._changed:
            result = self._window.next()
        return self._acknowledge(result)

    def next(self, within_s: float | None, scope: Scope | None) -> Message | EndOfStream | None:
        """Block until the next item or the end; return None on time-out."""
        now_s = self._agent.now_s
        deadline_s = None if within_s is None else now_s() + within_s
        with self._changed:
            while (result := self._window.next()) is None:
                if scope is not None:
                    scope.check()
                remaining_s = _SIGNAL_CHECK_S if deadline_s is None else min(_SIGNAL_CHECK_S, deadline_s - now_s())
                if remaining_s <= 0:
                    return None
                self._changed.wait(remaining_s)
        return self._acknowledge(result)

    def _acknowledge(self, result: Next[Message] | EndOfStream | None) -> Message | EndOfStream | None:
        """Acknowledge consumed items to the producer. Called without the lock."""
        if result is None or isinstance(result, EndOfStream):
            return result
        if result.ack is not None and self._reply is not None:
            self._reply.take(*result.ack)
        return result.item

    def wake(self) -> None:
        """Wake the waiting threads, which check the scope of their call."""
        with self._changed:
            self._changed.notify_all()

    def close(self, error: Exception | None = None) -> None:
        """Stop reading. Further reads raise `error`, or end the iteration if it is None."""
        with self._changed:
            unread, is_open = self._window.close(error)
            self._changed.notify_all()
        if self._reply is not None:
            if is_open:
                self._reply.cancel()
            for item in unread:
                self._agent.discard(item, self._reply.link)
        self._notify_loops()

    @property
    def is_finished(self) -> bool:
        """Return True if the handle can be deleted without `close`. Does not lock: called in garbage collections."""
        return self._window.end is not None and not self._window.num_buffered

    @property
    def link(self) -> Link | None:
        return None if self._reply is None else self._reply.link

    # -- loops -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def notifying(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` on every change while the context is active, on any thread."""
        with self._changed:
            self._loop_wakers.add(wake)
        try:
            yield
        finally:
            with self._changed:
                self._loop_wakers.discard(wake)

    def _notify_loops(self) -> None:
        if self._loop_wakers:
            with self._changed:
                wakers = list(self._loop_wakers)
            for wake in wakers:
                wake()


class Stream(Generic[T]):
    """Iterator over the items that a function on another worker yields. Returned by `rpc.stream`.

    In a coroutine, use `async for`. Leaving the loop early, leaving a `with` block, or deleting the last reference also
    ends the function: it gets `GeneratorExit` at its `yield`.
    """

    __slots__ = ("_agent", "_name", "_reader", "_timeout_s")

    def __init__(self, agent: "Agent", reader: StreamReader, name: str, timeout_s: float | None) -> None:
        self._agent = agent
        self._reader = reader
        self._name = name
        self._timeout_s = timeout_s

    def __del__(self) -> None:
        if not self._reader.is_finished:  # may run in a garbage collection: must not lock
            self._agent.outside(self._reader.close)

    def close(self) -> None:
        """Stop reading and close the generator of the function, without waiting for it. Idempotent."""
        self._reader.close()

    def __enter__(self) -> "Stream[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> "Stream[T]":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> "Stream[T]":
        return self

    def __next__(self) -> T:
        """Return the next item. Blocks until it arrives, at most the `timeout` of the stream.

        Raises the error of the function after the items before it; WorkerLostError after the received
        items; DeadlineExceeded, which ends the stream; NotSendableError if the item cannot be sent.
        """
        result = self._reader.next_nowait()
        if result is None:
            result = self._wait()
        if isinstance(result, EndOfStream):
            self._raise_error(result)
            raise StopIteration
        return self._deserialize(result)

    def __aiter__(self) -> "Stream[T]":
        return self

    async def __anext__(self) -> T:
        """As `__next__`, without blocking the loop. Canceling the task loses no item."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        with self._reader.notifying(wake):
            try:
                async with asyncio.timeout(self._timeout_s):
                    while (result := self._reader.next_nowait()) is None:
                        await changed.wait()
                        changed.clear()
            except TimeoutError:
                raise self._time_out() from None
        if isinstance(result, EndOfStream):
            self._raise_error(result)
            raise StopAsyncIteration
        return self._deserialize(result)

    def _wait(self) -> "Message | EndOfStream":
        if not self._agent.may_wait():
            raise RuntimeError(
                f"waiting for the next item of {self._name} on this thread would deadlock: it reads the replies.\n"
                f"Read a stream on a thread of your own, or in a function that a call runs."
            )
        scope = current_scope()
        with self._agent.waiting():
            if scope is None:
                result = self._reader.next(self._timeout_s, None)
            else:
                with scope.wake_on_cancel(self._reader.wake):
                    result = self._reader.next(self._timeout_s, scope)
        if result is None:
            raise self._time_out()
        return result

    def _time_out(self) -> DeadlineExceeded:
        error = DeadlineExceeded(
            f"worker {self._reader.to.name} sent no item of {self._name} within {self._timeout_s} s. The stream was "
            f"closed.\nSet timeout= to the longest time the function may need for one item, or to 0 for no limit."
        )
        self._reader.close(copy_exception(error))  # further reads raise it again
        return error

    def _raise_error(self, end: EndOfStream) -> None:
        """Raise a copy of the error of the stream, if it has one."""
        if end.error is not None:
            raise_copy(end.error)

    def _deserialize(self, item: Message) -> T:
        try:
            value: T = self._agent.serializer.deserialize(item, self._reader.to.id, self._reader.link).value
        except Exception as error:
            self._reader.close(copy_exception(error).with_traceback(None))
            raise
        except BaseException:
            self.close()
            raise
        return value

    def __repr__(self) -> str:
        return f"<stream of {self._name} on worker {self._reader.to.name}>"
