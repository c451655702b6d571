"""One call, from both of its ends: the `Reply` that the caller holds, the `Request` that the peer answers.

    caller                                                    peer
      link.on_credit.call  -- CALL ------------------------>    handler(request)
      reply.cancel         -- CANCEL ---------------------->    request.listener.cancelled()
      reply.on_item        <- ITEM, ITEM, ... -------------   request.give(value)      of an answer in many parts
      reply.take           -- TAKEN ----------------------->    request.listener.taken(...)
                           <- REPLY or ERROR --------------   request.answer / request.fail

A reply is resolved exactly once, by whichever thread reads the answer, misses the deadline, cancels or finds the link
gone. Its callbacks run on that thread, after it is done; one that raises is logged and stops nothing. A request is
answered once, from any thread. Knows of links only what it asks of its own.
"""

import logging
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..base.errors import CancelledError, DeadlineExceeded, WireError
from . import frames
from .codec import pack_error

if TYPE_CHECKING:
    from .link import Link

# With more bytes of answers waiting for a peer, no more of its requests are begun.
BEHIND_BYTES = 4 << 20

_log = logging.getLogger(__name__)


class Expired(DeadlineExceeded):
    """A call's own time ran out, here. What the peer raises of that kind is a plain `DeadlineExceeded`."""


class NotSent(Expired):
    """The same for a call that has not left: it waited for credit."""


class Cancelled(CancelledError):
    """This side does not wait any more. What the peer raises of that kind is a plain `CancelledError`."""


class NotSentCancelled(Cancelled):
    """The same for a call that has not left: it waited for credit."""


class Listener(Protocol):
    """What a call that was asked for hears of its caller. On a reading thread: it must not block."""

    def cancelled(self) -> None:
        """The caller does not wait any more."""

    def taken(self, num_items: int, num_bytes: int) -> None:
        """So much of what was given was taken, ever. ValueError: that cannot be."""

    def lost(self) -> None:
        """The link to the caller has ended."""


TAKEN = struct.Struct("<QQ")


class Request:
    """What a peer asked. Answer it once, from any thread; what comes later is ignored."""

    __slots__ = ("_call_id", "_cost", "args", "link", "listener", "method")

    def __init__(self, link: "Link", call_id: int, cost: int = 0) -> None:
        self.link = link
        self._call_id = call_id
        self._cost = cost
        self.method = ""
        self.args: tuple[Any, ...] = ()  # Any: peer's values
        self.listener: Listener | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is a call that the peer still waits for, and that was not answered."""
        return self._call_id in self.link.asked

    def taken_up(self) -> None:
        """It waits here no more: its caller gets the credit back that it spent. When not told, its answer does so."""
        cost, self._cost, link = self._cost, 0, self.link
        if cost:
            with link._lock:
                is_due = link._flow.taken_up(cost)
            if is_due:
                link.on_credit.tell()

    def when_answers_leave(self, again: Callable[[], None]) -> bool:
        """Whether so many bytes of answers wait for this peer that it should not be given more now.

        If so, `again` is called when they have left, or when the link ends. On a thread that must not block.
        """
        return self.link._sender.num_queued_bytes > BEHIND_BYTES and self.link._hold(again)

    def give(self, value: object) -> None:
        """One more item of an answer in many parts, to a caller that asked for such. Raises as `Link.notify` does."""
        self.link._give(self._call_id, value)

    def unanswered(self) -> None:
        """Nobody waits for its answer any more: there will be none."""
        if self._cost:
            self.taken_up()
        call_id, self._call_id = self._call_id, 0
        self.link.asked.pop(call_id, None)

    def answer(self, value: object = None) -> None:
        """The call returns `value`."""
        if self._cost:
            self.taken_up()
        call_id, self._call_id = self._call_id, 0
        self.link.asked.pop(call_id, None)
        if call_id:
            self.link._answer(call_id, value)

    def fail(self, error: BaseException) -> None:
        """The call raises `error`."""
        packed = pack_error(error)  # first: when that raises, another error can still be sent
        self.link._count_failed(is_refused=isinstance(error, WireError) and not hasattr(error, "__notes__"))
        if self._cost:
            self.taken_up()
        call_id, self._call_id = self._call_id, 0
        self.link.asked.pop(call_id, None)
        if call_id:
            self.link._send(frames.encode(frames.ERROR, call_id, packed))


Handler = Callable[[Request], None]


def refuse(request: Request) -> None:
    """What a link without a handler does."""
    request.fail(LookupError(f"nobody here answers {request.method!r}"))


class Reply:
    """The answer to come of one call."""

    __slots__ = (
        *("_callback", "_done", "_due_s", "_error", "_judged", "_link", "_more", "_value"),
        *("began_s", "call_id", "cost", "method", "on_item"),
    )

    def __init__(self, link: "Link", method: str) -> None:
        self._link = link
        self.method = method
        self.call_id = self.cost = 0  # the cost: of a call on credit, once that was taken
        self.began_s: float | None = None  # of one that is timed
        self._due_s: float | None = None
        self._done = False
        self._judged = True
        self._value: Any = None  # Any: whatever the peer answered
        self._error: BaseException | None = None
        # Most have one, and thousands may be open: no list for it, which the garbage collector would look at too.
        self._callback: Callable[[Reply], None] | None = None
        self._more: tuple[Callable[[Reply], None], ...] = ()
        # Takes each item of an answer in many parts, and what it cost, on the thread that reads. ValueError: too much.
        self.on_item: Callable[[Any, int], None] | None = None  # Any: whatever the peer gave

    @property
    def link(self) -> "Link":
        """By which it was asked."""
        return self._link

    def done(self) -> bool:
        return self._done

    def result(self, within_s: float | None = None) -> Any:  # Any: whatever the peer answered
        """Block until the answer is here, at most `within_s` seconds, then raise `DeadlineExceeded`.

        Raises what the peer raised; `WorkerLostError` or `ClosedError` when the link ends first.
        """
        self.wait(within_s)
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # else the error would keep this frame, and this frame the error
        return self._value

    def wait(self, within_s: float | None = None) -> None:
        """Block until it is done, and return nothing. `DeadlineExceeded` as `result`."""
        if not self._done:
            self._link._check_may_wait(self.method)
            self._link._wait(self, within_s)

    def add_done_callback(self, callback: "Callable[[Reply], None]") -> None:
        """Call `callback(self)` when the answer is here; at once when it is. On the thread that reads."""
        with self._link._lock:
            if not self._done:
                if self._callback is None:
                    self._callback = callback
                else:
                    self._more = (*self._more, callback)
                return
        callback(self)

    def cancel(self) -> bool:
        """Wait no more: it fails with `Cancelled`, and the peer is told. False: it was answered, or has failed."""
        return self._link._cancel(self)

    def stop(self) -> None:
        """Let the peer know that nobody takes the rest of an answer in many parts. It still comes to an end."""
        self._link._tell_of(frames.CANCEL, self.call_id)

    def take(self, num_items: int, num_bytes: int) -> None:
        """Let the peer know how much of an answer in many parts was taken, ever."""
        self._link._tell_of(frames.TAKEN, self.call_id, TAKEN.pack(num_items, num_bytes))

    def _resolve(self, value: object, error: BaseException | None) -> None:
        with self._link._lock:  # as `_settle`
            if not self._done:
                self._value, self._error = value, error
                self._done = True
        if self._callback is not None:
            self._tell()

    def _settle(self, value: object, error: BaseException | None) -> None:
        with self._link._lock:
            if not self._done:  # else it was cancelled
                self._value, self._error = value, error
                self._done = True

    def _tell(self) -> None:
        first, self._callback = self._callback, None
        if first is None:
            return
        more, self._more = self._more, ()
        for callback in (first, *more):
            try:
                callback(self)
            except Exception:
                _log.exception("a callback of the answer to %r failed", self.method)


class Waiters:
    """Threads that wait for their replies while another reads. To wake nobody costs nothing.

    Each sleeps on a lock of its own: an answer wakes the one that it is for, not all of hundreds. Where nobody is
    `asleep`, and what makes the fact of `wait_unless` true was done before that was seen, nobody need be woken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asleep: dict[Reply, list[threading.Lock]] = {}

    def wait_unless(self, reply: Reply, fact: Callable[[], bool], timeout_s: float | None) -> None:
        """Block until woken, at most `timeout_s` seconds; not at all when `fact()` holds already.

        What makes the fact true must be done before a wake. Then none is lost: this side is in the list before it looks
        at the fact, the other side looks at the list after it.
        """
        turn = threading.Lock()
        turn.acquire()
        with self._lock:
            self.asleep.setdefault(reply, []).append(turn)
        try:
            if not fact():
                turn.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))
        finally:
            with self._lock:
                turns = self.asleep.get(reply, [])
                if turn in turns:
                    turns.remove(turn)
                    if not turns:
                        del self.asleep[reply]

    def wake(self, reply: Reply) -> None:
        """This reply is done."""
        if self.asleep:
            with self._lock:
                for turn in self.asleep.pop(reply, ()):
                    turn.release()

    def wake_one(self) -> None:
        """Nobody reads any more: let one of them. Those who wait for the same reply go together."""
        if self.asleep:
            with self._lock:
                reply = next(iter(self.asleep), None)
            if reply is not None:
                self.wake(reply)

    def wake_all(self) -> None:
        """Nothing will come any more."""
        for reply in list(self.asleep):
            self.wake(reply)
