"""A stream at the worker that reads it: what came and was not taken, and the handle that a program goes through.

    reading thread   item --> Incoming: here until it is taken --> `Stream.__next__`, `__anext__`, which open it
    the call's end   error, loss, all given --> after the items that came before
    close, break, the end of the handle --> CANCEL; items that are here, or still come, are given back unopened

`Incoming` outlives nothing: the link holds it, not the handle, so that a handle which nobody has any more ends its
stream. That may happen in a garbage collection, on any thread, so it is done elsewhere.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from ...base.errors import DeadlineExceeded
from ...links.link import Link, Reply
from .. import agent_protocol
from ..calling.call_future import failed
from ..calling.cancelling import Scope, here
from ..calling.outcomes import afresh, raise_afresh
from ..messages.messages import Message
from ..messages.serializer import Serializer
from ..worker_info import WorkerInfo
from .window import Next, Over, Taking, Window

T = TypeVar("T")

# A signal that comes between Python's last look at signals and the sleep wakes nobody; so the sleep ends now and then.
_HEAR_S = 1.0


class Agent(agent_protocol.Agent, Protocol):
    """What is asked of the agent."""

    @property
    def serializer(self) -> Serializer: ...
    def discard(self, message: Message, link: Link) -> None: ...


class Incoming:
    """What came of one stream and was not taken. By any thread. `is_of_call`: a called function has opened it."""

    def __init__(self, agent: Agent, to: WorkerInfo, window: Window, *, is_of_call: bool) -> None:
        self.to = to
        self.is_of_call = is_of_call
        self._agent = agent
        self._taking: Taking[Message] = Taking(window)
        self._changed = threading.Condition()
        self._loops: set[Callable[[], None]] = set()
        self._reply: Reply | None = None

    def began(self, reply: Reply) -> None:
        """The call has left. Items may have come before."""
        self._reply = reply
        reply.add_done_callback(self._ended)

    # -- from the link, on a reading thread ------------------------------------------------------------------------

    def arrived(self, item: Message, cost: int) -> None:
        """An item came. ValueError: it must not have."""
        with self._changed:
            is_wanted = self._taking.arrived(item, cost)
            self._changed.notify_all()
        if is_wanted:
            self._tell_loops()
        elif self._reply is not None:
            self._agent.discard(item, self._reply.link)

    def _ended(self, reply: Reply) -> None:
        error: Exception | None = None
        try:
            reply.result()
        except Exception as raised:
            error = failed(raised, self.to, None, closed=self._agent.is_closed).with_traceback(None)
        with self._changed:
            self._taking.ended(error)
            self._changed.notify_all()
        self._tell_loops()

    # -- from who reads --------------------------------------------------------------------------------------------

    def next_nowait(self) -> Message | Over | None:
        """The next item, or the end, if it is here."""
        with self._changed:
            found = self._taking.next()
        return self._told(found)

    def next(self, within_s: float | None, scope: Scope | None) -> Message | Over | None:
        """Block until the next item, or the end, is here; None: not in time."""
        now_s = self._agent.now_s
        until_s = None if within_s is None else now_s() + within_s
        with self._changed:
            while (found := self._taking.next()) is None:
                if scope is not None:
                    scope.check()
                left_s = _HEAR_S if until_s is None else min(_HEAR_S, until_s - now_s())
                if left_s <= 0:
                    return None
                self._changed.wait(left_s)
        return self._told(found)

    def _told(self, found: Next[Message] | Over | None) -> Message | Over | None:
        """The producer hears what was taken. Without the lock."""
        if found is None or isinstance(found, Over):
            return found
        if found.tell is not None and self._reply is not None:
            self._reply.take(*found.tell)
        return found.item

    def wake(self) -> None:
        """Whoever waits looks again."""
        with self._changed:
            self._changed.notify_all()

    def close(self, error: Exception | None = None) -> None:
        """Nobody reads on. `error`: what who does all the same is told; None: that there is no more."""
        with self._changed:
            left, is_open = self._taking.close(error)
            self._changed.notify_all()
        if self._reply is not None:
            if is_open:
                self._reply.cancel()
            for item in left:
                self._agent.discard(item, self._reply.link)
        self._tell_loops()

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be done when nobody reads on. Without the lock: asked in garbage collections."""
        return self._taking.end is not None and not self._taking.num_here

    @property
    def link(self) -> Link | None:
        """By which the items come."""
        return None if self._reply is None else self._reply.link

    # -- loops -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def telling(self, wake: Callable[[], None]) -> Iterator[None]:
        """Meanwhile `wake` is called, by any thread, when something has changed."""
        with self._changed:
            self._loops.add(wake)
        try:
            yield
        finally:
            with self._changed:
                self._loops.discard(wake)

    def _tell_loops(self) -> None:
        if self._loops:
            with self._changed:
                loops = list(self._loops)
            for wake in loops:
                wake()


class Stream(Generic[T]):
    """The items that a function on another worker yields, as they come: an iterator. Made by `rpc.stream`.

    In a coroutine, `async for`. The end of a `for` loop that is left early, of a `with` block, or of the last reference
    to it ends the function too: it gets `GeneratorExit` where it waits.
    """

    __slots__ = ("_agent", "_incoming", "_name", "_timeout_s")

    def __init__(self, agent: Agent, incoming: Incoming, name: str, timeout_s: float | None) -> None:
        self._agent = agent
        self._incoming = incoming
        self._name = name
        self._timeout_s = timeout_s

    def __del__(self) -> None:
        if not self._incoming.is_over:  # perhaps in a garbage collection, where nothing may be locked or run
            self._agent.outside(self._incoming.close)

    def close(self) -> None:
        """Read no further: the function's generator is closed. Does not wait for that. A second time does nothing."""
        self._incoming.close()

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
        """The next item. Blocks until it is here; the stream's `timeout` is for each.

        Raises what the function raised, after the items before it; WorkerLostError, LinkLostError after those that had
        come; DeadlineExceeded, which ends the stream. NotSendableError: the item cannot be sent.
        """
        found = self._incoming.next_nowait()
        if found is None:
            found = self._wait()
        if isinstance(found, Over):
            self._raise(found)
            raise StopIteration
        return self._opened(found)

    def __aiter__(self) -> "Stream[T]":
        return self

    async def __anext__(self) -> T:
        """As `__next__`, without blocking the loop. A task that is cancelled here has lost no item."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(changed.set)

        with self._incoming.telling(wake):
            try:
                async with asyncio.timeout(self._timeout_s):
                    while (found := self._incoming.next_nowait()) is None:
                        await changed.wait()
                        changed.clear()
            except TimeoutError:
                raise self._too_late() from None
        if isinstance(found, Over):
            self._raise(found)
            raise StopAsyncIteration
        return self._opened(found)

    def _wait(self) -> "Message | Over":
        if not self._agent.may_wait():
            raise RuntimeError(
                f"waiting here for the next item of {self._name} would never end: this is a thread that reads what "
                f"comes in.\nRead a stream on a thread of your own, or in a function that a call runs."
            )
        scope = here()
        with self._agent.waiting():
            if scope is None:
                found = self._incoming.next(self._timeout_s, None)
            else:
                with scope.waking(self._incoming.wake):
                    found = self._incoming.next(self._timeout_s, scope)
        if found is None:
            raise self._too_late()
        return found

    def _too_late(self) -> DeadlineExceeded:
        error = DeadlineExceeded(
            f"no item of {self._name} came from worker {self._incoming.to.name} within {self._timeout_s} s. The stream "
            f"was ended.\nGive timeout= as long as the function may take for one item, or 0 for ever."
        )
        self._incoming.close(afresh(error))  # whoever goes on hears of it again, and takes the rest for lost
        return error

    def _raise(self, over: Over) -> None:
        """The error with which it ended, each time anew."""
        if over.error is not None:
            raise_afresh(over.error)

    def _opened(self, item: Message) -> T:
        try:
            value: T = self._agent.serializer.deserialize(item, self._incoming.to.id, self._incoming.link).value
        except Exception as error:  # as above
            self._incoming.close(afresh(error).with_traceback(None))
            raise
        except BaseException:
            self.close()
            raise
        return value

    def __repr__(self) -> str:
        return f"<stream of {self._name} on worker {self._incoming.to.name}>"
