"""Streams: the items that a function on another worker yields, fetched while it runs.

    consumer   Stream: a reference to the iterator, and `window` calls of `next` in flight, which are answered in order
    producer   an actor that runs one call at a time: the iterator

A stream is therefore an ordinary remote object. Order, errors, lost workers, cancellation and shutdown are those of
calls and references: the iterator is closed when no worker refers to it any more.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from functools import partial
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch.futures import Future

from ..base.errors import CallCancelled, DeadlineExceeded
from . import current as process
from .calling.call import Call, calls_method, method_called
from .calling.futures import error_of, raise_copy, wait_for
from .messages.ids import GlobalId, Invocation
from .messages.metadata import Address
from .messages.pickling import ByValue, name_of_function
from .references.rref import RRef
from .worker_info import WorkerInfo

if TYPE_CHECKING:
    from .agent import Agent

T = TypeVar("T")

_log = logging.getLogger("fanwise.rpc")


class Stream(Generic[T]):
    """Iterator over the items that a function on another worker yields. Returned by `rpc.stream`.

    Coroutines use `async for`. Leaving the loop early, leaving a `with` block, or deleting the last reference also
    ends the function: it gets `GeneratorExit` at its `yield`.
    """

    def __init__(
        self, agent: "Agent", to: WorkerInfo, invocation: Invocation, *, timeout_s: float, window: int
    ) -> None:
        self._pending: deque[Call[tuple[()] | tuple[T]]] = deque()
        function, args, kwargs = invocation
        self._agent = agent
        self._to = to
        method = method_called(invocation)
        self._name = getattr(function, "__qualname__", repr(function)) if method is None else method[0]
        self._limit_s = agent.sender.time_limit(timeout_s)
        self._error: Exception | None = None
        sent = function if name_of_function(function) is not None else ByValue(function)
        creation: Invocation = (_open, (sent, self._name, args, kwargs), {})
        self._rref: RRef[_Iterator] | None = agent.actors.create(to, creation, timeout_s=timeout_s, concurrency=1)
        for _ in range(window):
            self._request_next()

    def _request_next(self) -> None:
        assert self._rref is not None, "the stream is open"
        rref_id = self._rref._rref_id
        # The id suffices for the owner while this fork exists. A reference to a value of this worker is no fork.
        target = self._rref if self._rref.is_owner() else rref_id
        call = self._agent.call(self._to, (_next, (target,), {}), timeout_s=0.0, address=Address(rref_id, 0.0))
        self._pending.append(call)

    def __del__(self) -> None:
        if self._pending:  # may run in a garbage collection, on any thread: must not lock
            self._agent.outside(partial(_cancel_all, self._pending))

    def close(self) -> None:
        """Stop reading and close the generator of the function, without waiting for it. Idempotent."""
        pending, self._pending, self._rref = self._pending, deque(), None
        _cancel_all(pending)

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
        if self._pending:
            with self._agent.waiting():
                is_done = wait_for(self._pending[0], self._limit_s)
            if not is_done:
                self._time_out()
        return self._take(StopIteration)

    def __aiter__(self) -> "Stream[T]":
        return self

    async def __anext__(self) -> T:
        """As `__next__`, without blocking the loop. Canceling the task loses no item."""
        if self._pending:
            loop, done = asyncio.get_running_loop(), asyncio.Event()

            def wake(_: object) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(done.set)

            self._pending[0].add_done_callback(wake)
            try:
                async with asyncio.timeout(self._limit_s):
                    await done.wait()
            except TimeoutError:
                self._time_out()
        return self._take(StopAsyncIteration)

    def _take(self, stop: type[Exception]) -> T:
        """Return the next item, which has arrived. At the end of the stream, raise its error or `stop`."""
        if self._pending:
            call = self._pending.popleft()
            self._error = error_of(call)
            items = () if self._error is not None else call.value()
            if items:
                self._request_next()
                return items[0]
            self.close()
        if self._error is not None:
            raise_copy(self._error)
        raise stop

    def _time_out(self) -> None:
        self._error = DeadlineExceeded(
            f"worker {self._to.name} sent no item of {self._name} within {self._limit_s} s. The stream was "
            f"closed.\nSet timeout= to the longest time the function may need for one item, or to 0 for no limit."
        )
        self.close()

    def __repr__(self) -> str:
        return f"<stream of {self._name} on worker {self._to.name}>"


def _cancel_all(calls: Iterable[Call[Any]]) -> None:
    for call in calls:
        call.cancel()


# -- on the producer ---------------------------------------------------------------------------------------------------


class _Iterator:
    """The iterator of a stream. It may be advanced by one thread after another, and keeps its own grad mode."""

    def __init__(self, items: Generator[Any, None, None]) -> None:
        self._items = items
        self._outside: Callable[[Callable[[], None]], None] = process.current().outside
        self._is_grad_enabled = True

    def next(self) -> tuple[Any, ...]:
        """Return the next item as a tuple of one, or an empty tuple at the end."""
        previous = torch.is_grad_enabled()
        torch._C._set_grad_enabled(self._is_grad_enabled)
        try:
            return (next(self._items),)
        except StopIteration:
            return ()
        finally:
            self._is_grad_enabled = torch.is_grad_enabled()
            torch._C._set_grad_enabled(previous)

    def __del__(self) -> None:
        self._outside(partial(_close, self._items))  # this thread may be reading, and `finally` blocks may make calls


def _close(items: Generator[Any, None, None]) -> None:
    try:
        items.close()
    except (Exception, CallCancelled):
        _log.exception("a generator raised an error while its stream was closed")


@calls_method
def _open(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Iterator:
    return _Iterator(_items_of(function, name, args, kwargs))


def _items_of(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Generator[Any, None, None]:
    """Call the function and yield its items. An error of the call is that of the first item."""
    value = function(*args, **kwargs)
    if type(value) is CoroutineType:
        value.close()
    if not isinstance(value, Iterable) or isinstance(value, Awaitable | Future):
        raise TypeError(
            f"{name} was called as a stream but returned {type(value).__name__}, which is not iterable.\n"
            f"Yield the items, or return an iterator. Use rpc_sync for a single result."
        )
    yield from value


def _next(target: RRef[_Iterator] | GlobalId) -> tuple[Any, ...]:
    if isinstance(target, RRef):
        return target.local_value().next()
    iterator: _Iterator = process.current().references.value_of(target).wait()
    return iterator.next()


_next._about_rref = "the next item of"  # type: ignore[attr-defined]  # for errors, see `references.rref`
