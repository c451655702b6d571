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
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ...base.errors import DeadlineExceeded
from ...links.link import Reply
from ..calling.call_future import call_error
from ..calling.cancellation import current_scope
from ..calling.futures import copy_exception, raise_copy
from ..messages.messages import Message
from ..worker_info import WorkerInfo
from .window import Amount, Window

if TYPE_CHECKING:
    from ..agent import Agent

T = TypeVar("T")

# A signal that arrives just before the sleep does not interrupt it, so sleep in slices.
_SIGNAL_CHECK_S = 1.0


class EndOfStream(NamedTuple):
    """The end of the items. `error` is None if the function returned or the consumer closed the stream."""

    error: Exception | None


class StreamReader:
    """The received items of one stream. Thread-safe. `is_of_call`: opened by a function that a call runs."""

    def __init__(self, agent: "Agent", to: WorkerInfo, limit: Amount, *, is_of_call: bool) -> None:
        self.to = to
        self.is_of_call = is_of_call
        self._agent = agent
        self._lock = threading.Lock()
        self._window = Window(limit)
        self._consumed = Amount(0, 0)
        self._buffer: deque[tuple[Message, int]] = deque()
        self._end: EndOfStream | None = None
        self._is_closed = False
        self._wakers: set[Callable[[], None]] = set()
        self._reply: Reply | None = None

    def start(self, reply: Reply) -> None:
        """Set the reply of the call, after sending it. Items may have arrived before."""
        self._reply = reply
        reply.add_done_callback(self._on_reply)

    def on_item(self, item: Message, cost: int) -> None:
        """Buffer or discard an item, on a reading thread. Raises ValueError if it exceeds the window."""
        with self._lock:
            self._window.add(cost)
            is_closed = self._is_closed
            if not is_closed:
                if self._end is not None:
                    raise ValueError("an item after the end")
                self._buffer.append((item, cost))
        if not is_closed:
            self._notify()
        elif self._reply is not None:
            self._agent.discard(item, self._reply.link)

    def _on_reply(self, reply: Reply) -> None:
        error: Exception | None = None
        try:
            reply.result()
        except Exception as raised:
            error = call_error(raised, self.to, None, closed=self._agent.is_closed).with_traceback(None)
        with self._lock:
            self._end = self._end or EndOfStream(error)
        self._notify()

    def next(self) -> Message | EndOfStream | None:
        """Return the next item or the end; None if neither has arrived. Does not block."""
        with self._lock:
            if not self._buffer:
                return self._end
            item, cost = self._buffer.popleft()
            self._consumed = Amount(self._consumed.num_items + 1, self._consumed.num_bytes + cost)
            must_acknowledge = self._end is None and self._window.is_half_consumed(self._consumed)
            if must_acknowledge:
                self._window.acknowledge(self._consumed)
        if must_acknowledge and self._reply is not None:
            self._reply.take(*self._window.acknowledged)
        return item

    def deserialize(self, item: Message) -> object:
        return self._agent.serializer.deserialize(item, self.to.id).value

    def close(self, error: Exception | None = None) -> None:
        """Stop reading. Further reads raise `error`, or end the iteration if it is None."""
        with self._lock:
            if self._is_closed:
                return
            is_open = self._end is None
            self._is_closed, self._end = True, EndOfStream(error)
            unread, self._buffer = self._buffer, deque()
        if self._reply is not None:
            if is_open:
                self._reply.cancel()
            for item, _cost in unread:
                self._agent.discard(item, self._reply.link)
        self._notify()

    @property
    def is_finished(self) -> bool:
        """Return True if the handle can be deleted without `close`. Does not lock: called in garbage collections."""
        return self._end is not None and not self._buffer

    @contextlib.contextmanager
    def notifying(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` on every change while the context is active, on any thread."""
        with self._lock:
            self._wakers.add(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakers.discard(wake)

    def _notify(self) -> None:
        if self._wakers:
            with self._lock:
                wakers = list(self._wakers)
            for wake in wakers:
                wake()


class Stream(Generic[T]):
    """Iterator over the items that a function on another worker yields. Returned by `rpc.stream`.

    Coroutines use `async for`. Leaving the loop early, leaving a `with` block, or deleting the last reference also
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
        result = self._reader.next()
        return self._item(self._wait() if result is None else result, StopIteration)

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
                    while (result := self._reader.next()) is None:
                        await changed.wait()
                        changed.clear()
            except TimeoutError:
                raise self._time_out() from None
        return self._item(result, StopAsyncIteration)

    def _wait(self) -> Message | EndOfStream:
        if not self._agent.may_wait():
            raise RuntimeError(
                f"waiting for the next item of {self._name} on this thread would deadlock: it reads the replies.\n"
                f"Read a stream on a thread of your own, or in a function that a call runs."
            )
        now_s, scope, changed = self._agent.now_s, current_scope(), threading.Event()
        deadline_s = float("inf") if self._timeout_s is None else now_s() + self._timeout_s
        until_cancelled = contextlib.nullcontext() if scope is None else scope.wake_on_cancel(changed.set)
        with self._agent.waiting(), until_cancelled, self._reader.notifying(changed.set):
            while (result := self._reader.next()) is None:
                if scope is not None:
                    scope.check()
                remaining_s = deadline_s - now_s()
                if remaining_s <= 0:
                    raise self._time_out()
                changed.wait(min(_SIGNAL_CHECK_S, remaining_s))
                changed.clear()
        return result

    def _time_out(self) -> DeadlineExceeded:
        error = DeadlineExceeded(
            f"worker {self._reader.to.name} sent no item of {self._name} within {self._timeout_s} s. The stream was "
            f"closed.\nSet timeout= to the longest time the function may need for one item, or to 0 for no limit."
        )
        self._reader.close(copy_exception(error))  # further reads raise it again
        return error

    def _item(self, result: Message | EndOfStream, stop: type[Exception]) -> T:
        """Deserialize an item. At the end of the stream, raise a copy of its error, or `stop`."""
        if isinstance(result, EndOfStream):
            if result.error is not None:
                raise_copy(result.error)
            raise stop
        try:
            return self._reader.deserialize(result)  # type: ignore[return-value]  # the caller's type
        except Exception as error:
            self._reader.close(copy_exception(error).with_traceback(None))
            raise
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<stream of {self._name} on worker {self._reader.to.name}>"
