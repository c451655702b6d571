"""A link: calls both ways with one authenticated peer, over any wire.

    caller                                                 peer
      ask(method, *args)  -- REQUEST -------------------->  handler(request)
                          <- REPLY or ERROR --------------  request.answer(value) / request.fail(error), now or later
      call_on_credit      -- CALL ---------------------->   the same, when the peer has room for it
      reply.cancel        -- CANCEL -------------------->   request.listener.cancelled()
      reply.on_item       <- ITEM, ITEM, ... -----------    request.give(value)      of an answer in many parts
      reply.take          -- TAKEN --------------------->   request.listener.taken(...)
      notify(method, *args) -- NOTICE ------------------->  handler(request), nothing goes back

A caller that waits reads its own answer: it takes the link out of the hub's poll, reads, and puts it back, so that no
thread is woken for another. Whoever reads handles all that comes: answers for others, requests. Handlers run inline
and must not block; they may answer later and from any thread. Who waits also writes where no hub does, and who must
wait to write reads meanwhile: two sides that send each other more than their sockets hold never wait for each other.

A request made on credit (`call_on_credit`, `ask_on_credit`) waits until the peer has room for it; `flow` says when.
Answers and other messages never do. Credit that was taken and whose call has not left is returned, whatever was in the
way: the end of the link, values that cannot be copied, Ctrl-C. A call counts as having left when the sender begins to
write it, which empties the list of its parts. CPython lets an interrupt in where a function begins or one of C's has
returned: so none comes between credit that is taken, or a call that is opened, and the note of that in the next
statement. Of a peer that does not take its answers, no more requests are begun (`_hold`).

A reply is resolved exactly once, by whichever thread reads the answer, misses the deadline, cancels or finds the link
gone. Its callbacks run on that thread, after it is done; one that raises is logged and stops nothing. A request is
answered once, from any thread.

A link ends by `close` on either side (`clean`), or is lost: end of file, the peer's death, bytes that are not ours.
Then every open call fails at once. Nothing is sent twice.

Locks: `_reading` is held by the one thread that reads, also while it waits for bytes; `_lock` and the sender's only for
moments. The descriptor is closed with `_reading` and the sender's held, and by who polls it for room, if anybody does:
nobody uses a number that became another's.
"""

import contextlib
import logging
import os
import struct
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Protocol

from ..base.errors import (
    CancelledError,
    ClosedError,
    DeadlineExceeded,
    FanwiseError,
    WindowFullError,
    WireError,
    WorkerLostError,
)
from . import frames
from .calls import Calls
from .codec import dumps, load_error, loads, pack_error, unpack_error
from .counts import TIMED_EVERY, TIMED_SINGLY, Latencies, LinkCounts, weight_of
from .flow_control.credits import CALL_COST, cost_of
from .flow_control.flow import Flow
from .frames import Frame, FrameReader, Limits, Mark
from .hub import WRITE, Alarm, Hub
from .message_limits import fitted
from .peers import Ending, Peer, PeerWatch
from .sender import Sender
from .shared_memory.sharing import Sharing, shared
from .transports.resumable import ResumableWire
from .transports.wires import Buffer, Wire
from .waiters import Waiters

_log = logging.getLogger(__name__)

# How long to wait for room in the socket before looking again whether anybody reads meanwhile.
_LOOK_AGAIN_S = 0.05
# A frame whose parts are here already is read without a look at other links, up to so many parts.
_READS_A_TURN = 16


# With more bytes of answers waiting for a peer, no more of its requests are begun.
BEHIND_BYTES = 4 << 20

Waiting = Callable[[], contextlib.AbstractContextManager[None]]


class NeverSent(WorkerLostError):
    """The link had ended before this was sent: nothing of it has left."""


def was_never_sent(error: BaseException) -> bool:
    """Return True if `call_on_credit` or `ask_on_credit` raised this before the call began to leave.

    Also true of errors that are no errors of the link, such as a KeyboardInterrupt while it waited for credit.
    """
    return getattr(error, "_was_never_sent", False)


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


# Is told of each reply that this thread is about to wait for, so that another one can cancel it.
Watch = Callable[["Reply"], None]


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
                link._tell_credit()

    def when_answers_leave(self, again: Callable[[], None]) -> bool:
        """Whether so many bytes of answers wait for this peer that it should not be given more now.

        If so, `again` is called when they have left, or when the link ends. On a thread that must not block.
        """
        return self.link._sender.num_queued_bytes > BEHIND_BYTES and self.link._hold(again)

    def give(self, value: object) -> None:
        """One more item of an answer in many parts, to a caller that asked for such. Raises as `Link.notify` does."""
        self.link._say(frames.ITEM, self._call_id, value, "an answer")

    def unanswered(self) -> None:
        """Nobody waits for its answer any more: there will be none."""
        self._is_over()

    def answer(self, value: object = None) -> None:
        """The call returns `value`."""
        call_id = self._is_over()
        if call_id:
            self.link._answer(call_id, value)

    def fail(self, error: BaseException) -> None:
        """The call raises `error`."""
        packed = pack_error(error)  # first: when that raises, another error can still be sent
        self.link._count_failed(is_refused=isinstance(error, WireError) and not hasattr(error, "__notes__"))
        call_id = self._is_over()
        if call_id:
            self.link._send(frames.encode(frames.ERROR, call_id, packed))

    def _is_over(self) -> int:
        """It is about to be answered; its id, 0 when it was before."""
        if self._cost:
            self.taken_up()
        call_id, self._call_id = self._call_id, 0
        # Who listens has this request too: in a ring of the two, what came with a call, as a big tensor in shared
        # memory, would be in use until the garbage collector comes.
        self.listener = None
        self.link.asked.pop(call_id, None)
        return call_id


Handler = Callable[[Request], None]


def refuse(request: Request) -> None:
    """What a link without a handler does."""
    request.fail(LookupError(f"nobody here answers {request.method!r}"))


class Reply:
    """The answer to come of one call."""

    __slots__ = (
        *("_callback", "_done", "_due_s", "_error", "_link", "_more", "_value"),
        *("began_s", "call_id", "cost", "method", "on_item"),
    )

    def __init__(self, link: "Link", method: str) -> None:
        self._link = link
        self.method = method
        self.call_id = self.cost = 0  # the cost: of a call on credit, once that was taken
        self.began_s: float | None = None  # of one that is timed
        self._due_s: float | None = None
        self._done = False
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


class Link:
    """See the module. Made by `dial`, `UnixListener` and `link_pair`."""

    # CPython lets instances share the names of 30 attributes. With more each has a dict of its own: 1.6 KB that are in
    # no cache when a report a second comes over each of 500 links, and every call of a method first looks into it.
    __slots__ = (
        "__weakref__",
        *("peer", "handler", "ending", "on_malformed", "dumps", "loads", "load_error"),
        *("on_late", "refused", "asked"),
        *("_alarm", "_calls", "_death", "_endings", "_flow", "_held", "_hub"),
        *("_latencies", "_limits", "_lock", "_num_failed", "_num_not_calls", "_resumable"),
        *("_num_timed_out", "_over", "_pid", "_reader", "_reader_id", "_reading", "_sender", "_sharing"),
        *("_taken_there", "_is_read_scheduled", "_unhandled", "_waiters", "_watch", "_wire"),
    )

    def __init__(
        self, hub: Hub, wire: Wire, *, peer: Peer = Peer(), limits: Limits = Limits(), sharing: Sharing | None = None
    ) -> None:
        self.peer = peer
        self.handler: Handler = refuse
        self.ending: Ending | None = None
        self.on_malformed: Callable[[WireError], None] = lambda error: None
        # How values become bytes; a layer above may set its own, on both sides, before the first call.
        self.dumps, self.loads = dumps, loads
        self.load_error: Callable[[bytes], Any] | None = load_error  # of an error of the peer; see `codec`
        self.on_late: Callable[[Buffer, Sequence[memoryview]], None] | None = None  # for answers nobody waits for
        self.refused: Counter[str] = Counter()  # what was not done for the peer, or by it, by reason
        self._latencies = Latencies()
        self._num_not_calls = self._num_timed_out = self._num_failed = 0
        self._hub, self._wire = hub, wire
        self._pid = os.getpid()
        self._watch = PeerWatch(hub, peer, self._peer_ended)
        self._death: Ending | None = None
        self._over = self._is_read_scheduled = False
        self._endings: list[Callable[[Link, Ending], None]] = []
        self._lock, self._reading, self._reader_id = threading.Lock(), threading.Lock(), 0
        self._calls: Calls[Reply] = Calls()
        self.asked: dict[int, Request] = {}  # calls of the peer that are not answered
        self._alarm = Alarm(hub, self._expire)
        self._limits = self._taken_there = limits = fitted(limits)
        self._reader, self._unhandled = FrameReader(limits), deque[Frame]()
        self._sender = Sender(hub, wire)
        self._resumable = wire if isinstance(wire, ResumableWire) else None
        if self._resumable is not None:
            self._resumable.attach(self._sender, self._tell, self.lose)
        self._flow: Flow[Reply] = Flow(hub)
        self._held = deque[Callable[[], None]]()
        self._sharing = sharing
        if sharing is not None:
            sharing.attach(self._sender)
        self._waiters = Waiters()
        hub.close_in_fork(self)
        _all.add(self)

    def open(self) -> None:
        """Begin to read. Set `handler` first. Does nothing when the link has ended already."""
        self._sender.begin_polling(self._ready)
        if self._wire.holds_bytes:  # frames may have arrived together with the handshake
            self._tell()

    def watch_peer(self) -> None:
        """Notice the peer's death also when a process it forked keeps the socket open (Linux: by pidfd)."""
        self._watch.begin()

    @property
    def pidfd(self) -> int:
        """A descriptor of the peer's process, for signals; -1 when there is none. Owned by the link."""
        return self._watch.fd

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, method: str, *args: object, deadline_s: float | None = None) -> Reply:
        """Ask and do not wait. `deadline_s`: seconds from now after which the reply fails with `DeadlineExceeded`.

        Arrays among `args` may be changed as soon as this returns. Raises `ClosedError` or `WorkerLostError` when the
        link has ended, `NotSendableError` when the message is too big.
        """
        head, buffers = self._dumped((method, args))
        reply = self._new_call(str(method), deadline_s)  # its name only, when it is more: that is large
        self._send(self._encode(frames.REQUEST, reply.call_id, head, buffers))
        return reply

    def ask(self, method: str, *args: object, within_s: float | None = None) -> Any:
        """Ask and wait for the answer. Raises as `Reply.result` does, and `RuntimeError` where waiting never ends."""
        self._check_may_wait(method)
        head, buffers = self._dumped((method, args))
        reply = self._new_call(method, None)
        try:
            return self._ask(reply, self._encode(frames.REQUEST, reply.call_id, head, buffers), within_s)
        finally:
            del reply  # else an error would keep this frame, and so what was sent, until the collector comes

    def _ask(
        self, reply: Reply, parts: list[Buffer], within_s: float | None, watch: Callable[[Reply], None] | None = None
    ) -> Any:  # Any: the peer's answer
        try:  # nothing is copied: the memory is ours until this returns
            if self._sender.put(parts, copied=False) == "lost":
                self._find_end()
            if watch is not None:
                watch(reply)  # now: what cancels it must not come before it
            self._wait(reply, within_s)
        except BaseException:
            self._sender.copy_unsent()
            raise
        error = reply._error
        if error is None:
            return reply._value
        if isinstance(error, Cancelled):
            self._sender.copy_unsent()
        # The frames that read the answer hold the reply, and the error may hold them.
        reply._error = None
        try:
            raise error
        finally:
            del error, reply  # as in `ask`

    def notify(self, method: str, *args: object) -> None:
        """Tell; there is no answer. Raises `ClosedError` or `WorkerLostError` when the link has ended."""
        self._say(frames.NOTICE, 0, (method, args), method)

    def on_ended(self, callback: "Callable[[Link, Ending], None]") -> None:
        """Call `callback(link, ending)` when the link ends; at once when it has."""
        with self._lock:
            if self.ending is None:
                self._endings.append(callback)
                return
        callback(self, self.ending)

    def close(self, reason: str = "closed") -> None:
        """End the link on purpose: the peer learns that it was no accident. Never blocks, never raises.

        What the peer's socket has no room for at this moment is dropped: when it matters, `ask` something first. In a
        fork of the process that owns the link this does nothing.
        """
        if self._pid != os.getpid():
            return
        if self._begin_end(Ending(True, reason)):
            self._sender.put_last(frames.encode(frames.GOODBYE, 0, reason.encode()))
            self._finish_end()

    def lose(self, reason: str) -> None:
        """End the link because the peer is lost: open calls fail. Never blocks, never raises."""
        if self._pid == os.getpid():
            self._end(Ending(False, reason))

    @property
    def frame_bytes(self) -> int:
        """How large a message this side takes."""
        return self._limits.frame_bytes

    def peer_takes(self, frame_bytes: int) -> None:
        """The other side has said how large a message it takes. Until then it is taken to be as this side."""
        self._taken_there = self._taken_there._replace(frame_bytes=frame_bytes)

    @property
    def num_open(self) -> int:
        """How many calls wait for their answers."""
        return len(self._calls)

    @property
    def num_open_whole(self) -> int:
        """How many calls wait for an answer that comes as a whole, not in parts."""
        with self._lock:
            return sum(reply.on_item is None for reply in self._calls.waiters())

    @property
    def num_waiting(self) -> int:
        """How many calls wait here until the peer has room for them."""
        return self._flow.num_waiting

    def open_calls(self) -> list[str]:
        """The names of calls on credit whose answers are waited for."""
        with self._lock:
            return [str(reply.method) for reply in self._calls.waiters() if reply.cost]

    @property
    def num_queued_bytes(self) -> int:
        """How much waits here until the peer's socket takes it."""
        return self._sender.num_queued_bytes

    @property
    def num_bytes_not_begun(self) -> int:
        """How much of the peer's calls waits here to be begun, with 1 KiB for each."""
        return self._flow.bytes_not_begun

    def counts(self) -> LinkCounts:
        """What it has carried so far. By any thread."""
        sharing, latencies = self._sharing, self._latencies
        return LinkCounts(
            calls_made=self._calls.num_opened - self._num_not_calls,
            calls_received=self._flow.num_received,
            calls_timed_out=self._num_timed_out,
            calls_failed=self._num_failed,
            bytes_sent=self._wire.num_written + (sharing.num_sent_bytes if sharing is not None else 0),
            bytes_received=self._reader.num_filled + (sharing.num_received_bytes if sharing is not None else 0),
            refused=dict(+self.refused),
            latencies=Latencies(latencies.buckets.copy(), latencies.sum_s),
        )

    def _count_failed(self, *, is_refused: bool) -> None:
        """A request is answered with an error. `is_refused`: it names what it must not, or cannot be read."""
        with self._lock:
            self._num_failed += 1
            self.refused["not_allowed"] += is_refused

    def close_fork(self) -> None:
        """In a forked child: the descriptors are copies; the parent's link goes on."""
        self._wire.close()
        if self._sharing is not None:
            self._sharing.close_fork()
        self._watch.close()

    def _new_call(self, method: str, deadline_s: float | None) -> Reply:
        self._hub.check_usable()
        reply = Reply(self, method)
        if deadline_s is not None:
            reply._due_s = self._hub.clock.now_s() + deadline_s
        with self._lock:
            if self.ending is not None:
                raise self._gone(method, "cannot be asked")
            reply.call_id = self._calls.open(reply, reply._due_s)
            self._num_not_calls += 1
        if reply._due_s is not None:
            self._alarm.set(reply._due_s)
        return reply

    # -- calls on credit -------------------------------------------------------------------------------------------

    def ask_on_credit(
        self, method: str, *, within_s: float | None = None, watch: Watch | None = None
    ) -> Any:  # Any: the peer's answer
        """As `Link.ask`, when the peer has room for it. Waiting for that counts; then `NotSent` is raised.

        Raises `Cancelled` when the reply that it waits for was cancelled; `NotSentCancelled` if nothing has left.
        """
        parts = None
        reply = Reply(self, method)
        try:
            self._check_may_wait(method)
            head, buffers = self.dumps((method, ()))  # as `_dumped`
            if buffers or len(head) > self._taken_there.frame_bytes:
                frames.check_may_be_sent(self._taken_there, head, buffers)
            cost = cost_of(head, buffers) if buffers else CALL_COST + len(head)
            with self._lock:  # as most: there is room
                if self.ending is None and self._flow.spend(cost):
                    reply.cost = cost
                    reply.call_id = self._calls.open(reply)
            if not (reply.cost or self._open_on_credit(reply, cost)):
                began_s = self._hub.clock.now_s()
                self._wait_and_open(reply, cost, within_s, watch=watch)
                if within_s is not None:
                    within_s = max(0.0, within_s - (self._hub.clock.now_s() - began_s))
            if reply.call_id <= TIMED_SINGLY or not reply.call_id % TIMED_EVERY:
                reply.began_s = self._hub.clock.now_s()
            parts = (self._encode if buffers else frames.encode)(frames.CALL, reply.call_id, head, buffers)
            return self._ask(reply, parts, within_s, watch)
        except BaseException as error:
            if parts is None or parts:
                self._not_sent(reply, error)
            raise
        finally:
            del reply  # else an error would keep this frame, and so what was sent, until the collector comes

    def call_on_credit(
        self,
        method: str,
        *,
        deadline_s: float | None = None,
        waiting: Waiting = contextlib.nullcontext,
        overdraws: bool = False,
        watch: Watch | None = None,
        on_item: Callable[[Any, int], None] | None = None,  # Any: what the peer gives
    ) -> Reply:
        """As `Link.call`, when the peer has room for it; until then it waits here, within `waiting()`.

        Nobody waits on a thread that reads, nor with `overdraws`, as long as the window is not overdrawn too far.
        Raises `NotSent` at the deadline; `WindowFullError` on a thread that must not wait; as `ask` when cancelled.

        `on_item`: asks for an answer in many parts, and takes them; see `Reply`.
        """
        parts = None
        reply = Reply(self, str(method))
        reply.on_item = on_item
        if deadline_s is not None and on_item is None:  # else it is for each item
            reply._due_s = self._hub.clock.now_s() + deadline_s
        try:
            head, buffers = self.dumps((method, ()))  # as `_dumped`
            if buffers or len(head) > self._taken_there.frame_bytes:
                frames.check_may_be_sent(self._taken_there, head, buffers)
            cost = cost_of(head, buffers) if buffers else CALL_COST + len(head)
            if not self._open_on_credit(reply, cost, overdraws):
                self._wait_and_open(reply, cost, deadline_s, waiting, watch)
            if reply._due_s is not None:
                self._alarm.set(reply._due_s)
            if reply.call_id <= TIMED_SINGLY or not reply.call_id % TIMED_EVERY:
                reply.began_s = self._hub.clock.now_s()
            parts = (self._encode if buffers else frames.encode)(frames.CALL, reply.call_id, head, buffers)
            self._send(parts)
            return reply
        except BaseException as error:
            if parts is None or parts:
                self._not_sent(reply, error)
            raise

    # -- waiting for room ------------------------------------------------------------------------------------------

    def _open_on_credit(self, reply: Reply, cost: int, overdraws: bool = False) -> bool:
        """A call begins, if it may now."""
        self._hub.check_usable()
        with self._lock:
            if self.ending is not None:
                raise self._gone(reply.method, "cannot be asked")
            if self._flow.spend(cost) or (overdraws and self._flow.overdraw(cost)):
                reply.cost = cost
                reply.call_id = self._calls.open(reply, reply._due_s)
                return True
        return False

    def _wait_and_open(
        self,
        reply: Reply,
        cost: int,
        within_s: float | None,
        waiting: Waiting = contextlib.nullcontext,
        watch: Watch | None = None,
    ) -> None:
        """Block until a call may begin, and begin it. Where nobody may block, spend more than there is."""
        may_wait, turn = may_wait_for(self._hub), Reply(self, str(reply.method))
        if self._open_on_credit(reply, cost, not may_wait):
            return
        if not may_wait:
            self.refused["window_full"] += 1
            raise WindowFullError(
                f"{turn.method!r} was not sent: as many calls as {self.peer} has room for wait there to be begun, "
                f"and this thread reads the answers, so it must not wait.\n"
                f"Call from a thread of your own, or from a callback of a call's future (`then`), which may wait."
            )
        try:
            with self._lock:
                if self.ending is not None:
                    raise self._gone(turn.method, "cannot be asked")
                turns, wanted = self._flow.wait(turn, cost)
                turn.cost = cost
            self._give_turns(turns, wanted)
            if watch is not None:
                watch(turn)
            with waiting():
                self._wait(turn, within_s)
            if isinstance(turn._error, Cancelled):
                raise NotSentCancelled(turn._error.message)
            if turn._error is not None:
                raise turn._error
            with self._lock:
                if self.ending is not None:
                    raise self._gone(turn.method, "was not sent")
                reply.call_id = self._calls.open(reply, reply._due_s)
                reply.cost = cost
        except BaseException:
            if not reply.cost:
                with self._lock:
                    turns = self._flow.give_up(turn, cost) if turn.cost else self._flow.withdraw(turn, cost)
                    wanted = self._flow.want()
                self._give_turns(turns, wanted)
            raise
        finally:
            del turn  # as in `ask`

    def _not_sent(self, reply: Reply, error: BaseException) -> None:
        """Nothing of a call was written. Return its credit, and mark `error` for `was_never_sent`."""
        error._was_never_sent = True  # type: ignore[attr-defined]  # the mark
        if not reply.cost:
            return
        with self._lock:
            cost, reply.cost = reply.cost, 0
            self._num_not_calls += 1
            self._calls.give_up(reply.call_id)
            turns, wanted = self._flow.refund(cost), self._flow.want()
        self._give_turns(turns, wanted)

    def _give_turns(self, turns: Sequence[Reply], wanted: list[Buffer]) -> None:
        for turn in turns:
            turn._settle(None, None)
            self._waiters.wake(turn)
            turn._tell()
        if wanted and self.ending is None:
            self._send(wanted)

    # -- frames about credit ---------------------------------------------------------------------------------------

    def _credited(self, frame: Frame) -> None:
        """CREDIT came. Raises `WireError`."""
        with self._lock:
            turns, wanted = self._flow.credited(frame.head), self._flow.want()
        self._give_turns(turns, wanted)

    def _wanted(self, frame: Frame) -> None:
        """WANT came. Raises `WireError`."""
        with self._lock:
            credit = self._flow.wanted(frame.head)
        if credit:
            self._send(credit)

    def _tell_credit(self) -> None:
        """Tell the other side how much of its calls was taken up here."""
        with self._lock:
            credit = self._flow.tell()
        if self.ending is None:
            with contextlib.suppress(ClosedError):  # there is no hub any more
                self._send(credit)

    # -- what is not begun ---------------------------------------------------------------------------------------------

    @property
    def _is_behind(self) -> bool:
        """Whether the peer does not take its answers."""
        return self._sender.num_queued_bytes > BEHIND_BYTES

    def _hold(self, again: Callable[[], None]) -> bool:
        with self._lock:
            if self.ending is not None:
                return False
            self._held.append(again)
        if not self._is_behind:
            self._let_go()
        return True

    def _let_go(self) -> None:
        with self._lock:
            held, self._held = self._held, deque()
        for again in held:
            again()

    # -- sending ---------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        self._sender.drain()
        if self._held and not self._is_behind:
            self._let_go()

    def _answer(self, call_id: int, value: object) -> None:
        try:
            head, buffers = self.dumps(value)  # as `_dumped`
            if buffers or len(head) > self._taken_there.frame_bytes:
                frames.check_may_be_sent(self._taken_there, head, buffers)
        except Exception as error:
            self._send(frames.encode(frames.ERROR, call_id, pack_error(error)))
            return
        self._send((self._encode if buffers else frames.encode)(frames.REPLY, call_id, head, buffers))

    def _say(self, kind: int, call_id: int, value: object, what: str) -> None:
        """Send what is not answered."""
        head, buffers = self._dumped(value)
        self._hub.check_usable()
        if self.ending is not None:
            raise self._gone(what, "cannot be told")
        self._send(self._encode(kind, call_id, head, buffers))

    def _dumped(self, value: object) -> tuple[bytes, Sequence[memoryview]]:
        """A message that the other side takes. Raises what pickling raises; `NotSendableError` when it is too big."""
        head, buffers = self.dumps(value)
        if buffers or len(head) > self._taken_there.frame_bytes:
            frames.check_may_be_sent(self._taken_there, head, buffers)
        return head, buffers

    def _encode(self, kind: int, call_id: int, head: bytes, buffers: Sequence[memoryview]) -> list[Buffer]:
        if not buffers or self._sharing is None or not self._sharing.wants(buffers):
            return frames.encode(kind, call_id, head, buffers)
        if self._may_block:
            self._read(to_the_end=False)  # the peer may have returned shared memory, and nobody else reads
        return self._sharing.encode(kind, call_id, head, buffers)

    def _send(self, parts: list[Buffer]) -> None:
        """Send; the memory of `parts` may be changed afterwards. Blocks until it is written where nobody else will."""
        hub = self._hub
        if hub.is_closed:
            hub.check_usable()
        put = self._sender.put(parts, copied=hub.driven or not self._may_block)
        if put == "waits" and self._may_block:
            self._flush()
        elif put == "lost":
            self._find_end()

    @property
    def _may_block(self) -> bool:
        """Whether this thread must write what waits: no hub does, and it is in no handler."""
        return not (self._hub.driven or self._hub.is_loop_thread or self._reader_id == get_ident())

    def _find_end(self) -> None:
        """Nothing can be written any more: what came before the end is still read."""
        if self._may_block:
            self._read(to_the_end=True)
        else:
            self._hub.call_soon(self._readable)

    def _flush(self, within_s: float | None = None) -> None:
        """Block until all is written. Reads meanwhile: the peer may be unable to go on until we do."""
        until_s = None if within_s is None else self._hub.clock.now_s() + within_s
        left_s = within_s
        while self._sender.waits and self.ending is None and (left_s is None or left_s > 0):
            if self._reading.acquire(blocking=False):
                self._reader_id = get_ident()
                try:
                    self._wire.wait_any(left_s)
                    self._read_once()
                finally:
                    self._stop_reading()
                    self._waiters.wake_one()
                self._drain()
            else:
                self._write_beside_reader(left_s)
            left_s = None if until_s is None else until_s - self._hub.clock.now_s()

    def _write_beside_reader(self, left_s: float | None) -> None:
        """Write some more while another thread reads. It may stop to read, so not for long."""
        self._sender.wait_for_room(min(_LOOK_AGAIN_S, _LOOK_AGAIN_S if left_s is None else left_s))
        self._drain()

    # -- reading ---------------------------------------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._drain()
        if events != WRITE:
            self._read(to_the_end=False)

    def _tell(self) -> None:
        """Let the hub read, because there is something that polling does not show."""
        if self._is_read_scheduled:
            return
        try:
            self._is_read_scheduled = True
            self._hub.call_soon(self._readable)
        except BaseException:  # an interrupt: the hub may not wake up for this, so the next call must wake it
            self._is_read_scheduled = False
            raise

    def _readable(self) -> None:
        """Read as after a poll."""
        self._is_read_scheduled = False
        self._read(to_the_end=False)

    def _read(self, *, to_the_end: bool) -> None:
        """Read what is there now, or all there is; not while another thread, which waits for an answer, reads."""
        if self.ending is None and self._reading.acquire(blocking=False):
            self._reader_id = get_ident()
            try:
                while self._read_once() and to_the_end:
                    pass
            finally:
                self._stop_reading()
                if self._waiters.asleep:
                    self._waiters.wake_one()

    def _stop_reading(self) -> None:
        self._reader_id = 0
        self._reading.release()
        self._after_reading()

    def _after_reading(self) -> None:
        if self._over:
            self._close_wire()
        elif self._unhandled or self._wire.holds_bytes:  # left by an interrupt; or not shown by polling
            self._tell()

    def _read_once(self) -> bool:
        """Read what is there and handle it. False: nothing was there, or the link ended."""
        unhandled, reader, num_reads, mark = self._unhandled, self._reader, 0, None
        try:
            while not unhandled and num_reads < _READS_A_TURN:
                space = reader.space()
                mark = reader.mark()
                size = self._wire.read_into(space)
                if size > 0:
                    unhandled.extend(reader.filled(size))
                mark = None
                if size < 0:
                    self._end(self._death or Ending(False, "the other side ended without a goodbye"))
                    return False
                if size == 0:
                    if num_reads:
                        break
                    if self._resumable is not None and self._resumable.is_write_due:
                        self._sender.drain()
                    return False
                num_reads += 1
                if size < len(space) or not reader.is_in_large_frame:
                    break
            while unhandled and self.ending is None:
                self._handle(unhandled.popleft())
            if self._sharing is not None:
                self._sharing.after_reading(between_frames=self._reader.is_between_frames)
            if self._resumable is not None and self._resumable.is_write_due:
                self._sender.drain()
        except WireError as error:
            self._malformed(error)
            return False
        except BaseException:
            if mark is not None:
                self._finish_read(mark)
            raise
        return self.ending is None  # what came after that is not handled any more

    def _finish_read(self, mark: Mark) -> None:
        """After an interrupt: take the bytes that have arrived since `mark`."""
        self._reader.reset(mark)
        self._unhandled.clear()
        try:
            size = self._wire.num_read - self._reader.num_filled
            self._unhandled.extend(self._reader.filled(size) if size else ())
        except WireError as error:
            self._malformed(error)

    def _malformed(self, error: WireError) -> None:
        self.refused["malformed"] += 1
        self.on_malformed(error)
        self._end(Ending(False, error.message))

    def _handle(self, frame: Frame) -> None:
        """Raises `WireError` when the frame's pickle is none; interrupts pass through. Nothing else is raised."""
        kind = frame.kind
        if frame.parts:
            frame = shared(self._sharing).adopt(frame)
        if kind == frames.REPLY or kind == frames.ERROR:
            with self._lock:
                reply = self._calls.answered(frame.call_id)
            if reply is not None:
                self._resolve(reply, frame)
            elif kind == frames.REPLY and self.on_late is not None:
                self.on_late(frame.head, frame.buffers)
        elif kind < frames.REPLY or kind == frames.CALL:
            self._serve(frame)
        elif kind == frames.GOODBYE:
            self._end(Ending(True, bytes(frame.head).decode(errors="replace")))
        elif kind == frames.CREDIT:
            self._credited(frame)
        elif kind == frames.WANT:
            self._wanted(frame)
        elif kind == frames.ITEM:
            self._take_item(frame)
        elif kind == frames.TAKEN or kind == frames.CANCEL:
            self._heard_of(frame)
        else:
            shared(self._sharing).handle(frame)

    def _resolve(self, reply: Reply, frame: Frame) -> None:
        if reply.began_s is not None:
            self._latencies.add(self._hub.clock.now_s() - reply.began_s, weight_of(reply.call_id))
        value, error, failure = None, None, None
        try:
            if frame.kind == frames.REPLY:
                value = self.loads(frame.head, frame.buffers)
            else:
                error = unpack_error(frame.head, self.load_error)
        except BaseException as raised:  # the value's own type failed to come back: the caller must learn why
            failure = raised
        reply._resolve(value, failure or error)
        if self._waiters.asleep:
            self._waiters.wake(reply)
        try:
            if failure is not None and (isinstance(failure, WireError) or not isinstance(failure, Exception)):
                raise failure
        finally:
            del failure, error  # else they would keep this frame, and so the bytes that came

    def _serve(self, frame: Frame) -> None:
        cost = 0
        if frame.kind == frames.CALL:
            cost = cost_of(frame.head, frame.buffers) if frame.buffers else CALL_COST + len(frame.head)
            if not self._flow.received(cost):
                raise WireError("the peer sent more calls than this side has room for, and than it was granted.")
        request = Request(self, frame.call_id, cost)
        if cost:
            self.asked[frame.call_id] = request
        try:
            request.method, request.args = self.loads(frame.head, frame.buffers)
        except WireError:
            raise
        except Exception as error:
            self._not_served(request, frame, error)
            return
        try:
            self.handler(request)
        except BaseException as error:
            self._not_served(request, frame, error)
            if not isinstance(error, Exception):
                raise

    def _heard_of(self, frame: Frame) -> None:
        """The caller of what is asked here has taken some of the answer, or does not wait any more."""
        request = self.asked.get(frame.call_id)
        listener = None if request is None else request.listener
        if frame.kind == frames.CANCEL:
            if listener is not None:
                listener.cancelled()
            else:
                self.asked.pop(frame.call_id, None)
            return
        try:
            num_items, num_bytes = TAKEN.unpack(frame.head)
            if listener is not None:
                listener.taken(num_items, num_bytes)
        except (struct.error, ValueError) as error:
            raise WireError(f"the peer has taken what it cannot have: {error}.") from error

    def _take_item(self, frame: Frame) -> None:
        """One more item of an answer."""
        with self._lock:
            reply = self._calls.waiting(frame.call_id)
        if reply is None:
            if self.on_late is not None:
                self.on_late(frame.head, frame.buffers)
        elif reply.on_item is None:
            raise WireError("an answer came in parts, where one was asked for.")
        else:
            try:
                reply.on_item(self.loads(frame.head, frame.buffers), cost_of(frame.head, frame.buffers))
            except ValueError as error:
                raise WireError(f"the peer gave more than was asked for: {error}.") from error

    def _not_served(self, request: Request, frame: Frame, error: BaseException) -> None:
        if frame.kind == frames.NOTICE:
            _log.error("notice %r of %s was not handled", request.method, self.peer, exc_info=error)
        with contextlib.suppress(FanwiseError):  # closed meanwhile: the caller learns that
            request.fail(error)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _check_may_wait(self, method: str) -> None:
        hub, me = self._hub, get_ident()
        if hub.is_closed:
            hub.check_usable()
        if self._reader_id == me or (hub.driven and hub.loop_thread_id == me):
            raise RuntimeError(
                f"waiting for {method!r} here would never end: this is the thread that reads its answer.\n"
                f"In a handler or callback use call(...).add_done_callback(...)."
            )

    def _wait(self, reply: Reply, within_s: float | None) -> None:
        """Block until the reply is done. After `_check_may_wait`."""
        now_s = self._hub.clock.now_s
        until_s, left_s = reply._due_s, within_s
        if within_s is not None:
            end_s = now_s() + within_s
            if until_s is None or end_s <= until_s:
                until_s = end_s
            else:
                left_s = within_s - (end_s - until_s)
        elif until_s is not None:
            left_s = until_s - now_s()
        if left_s is not None and left_s < 0:
            left_s = 0.0
        try:
            while not reply._done:
                if self.ending is not None:
                    self._waiters.wait_unless(reply, reply.done, left_s)  # another thread is just telling everybody
                elif self._try_to_read_for(reply, left_s):
                    pass
                elif self._sender.waits and self._may_block:
                    self._write_beside_reader(left_s)
                else:
                    self._waiters.wait_unless(reply, lambda: reply._done or not self._reading.locked(), left_s)
                if until_s is not None and not reply._done:
                    left_s = max(0.0, until_s - now_s())
                    if not left_s:
                        self._too_late(reply, within_s)
        finally:
            if self._waiters.asleep:
                self._waiters.wake_one()  # whoever waits may read now

    def _try_to_read_for(self, reply: Reply, left_s: float | None) -> bool:
        """Read until the answer is here. False if another thread reads. An interrupt leaves nobody reading."""
        acquired: list[bool] = []
        try:
            acquired.extend(map(self._reading.acquire, (False,)))  # noted by C code, as in `SocketWire`
            if acquired[0]:
                self._read_for(reply, left_s)
        finally:
            if acquired and acquired[0]:
                self._reader_id = 0
                self._reading.release()
                self._after_reading()
        if acquired[0]:
            if not self._hub.driven and reply._done and self._sender.waits and self._may_block:
                self._flush(left_s)  # answers that handlers gave meanwhile
        return acquired[0]

    def _read_for(self, reply: Reply, left_s: float | None) -> None:
        """Read as the only reader. The hub's poll leaves this link alone meanwhile."""
        self._reader_id, driven = get_ident(), self._hub.driven
        try:
            if driven:
                self._sender.borrow_reading()
            while not reply._done and self.ending is None:
                # Who cancels the call cannot end the wait for bytes, so that ends by itself now and then.
                wait_s = _LOOK_AGAIN_S if left_s is None or left_s > _LOOK_AGAIN_S else left_s
                if self._unhandled or (self._wire.wait_readable if self._hub.driven else self._wait_for_bytes)(wait_s):
                    self._read_once()
                if left_s is not None:
                    break  # the caller looks at the clock again
        finally:
            if driven:
                try:
                    self._sender.return_reading()
                except BaseException:  # an interrupt may have come before it was done
                    self._sender.return_reading()
                    raise

    def _wait_for_bytes(self, left_s: float | None) -> bool:
        if self._hub.driven or not self._sender.waits:
            return self._wire.wait_readable(left_s)
        ready = self._wire.wait_any(left_s)
        self._drain()
        return ready

    # -- answers in parts, and those that nobody wants -----------------------------------------------------------------

    def _tell_of(self, kind: int, call_id: int, head: bytes = b"") -> None:
        """Tell the other side something about a call. Where the link has ended, it knows."""
        if call_id and self.ending is None:
            with contextlib.suppress(FanwiseError):
                self._send(frames.encode(kind, call_id, head))

    def _cancel(self, reply: Reply) -> bool:
        with self._lock:
            is_open = reply.call_id and self._calls.give_up(reply.call_id) is not None
            # Not open, and not done: it waits for room, or to be told why the link was lost; or is just being answered.
            if reply._done or (reply.call_id and not is_open and self.ending is None):
                return False
            reply._error, reply._done = Cancelled(f"{reply.method!r} was cancelled before it was answered."), True
        self._tell_of(frames.CANCEL, reply.call_id)
        self._waiters.wake(reply)
        reply._tell()
        return True

    # -- deadlines -------------------------------------------------------------------------------------------------

    def _too_late(self, reply: Reply, within_s: float | None) -> None:
        if not reply.call_id:
            raise NotSent(f"{reply.method!r} was not sent within {within_s} s: {self.peer} had no room for it.")
        if reply._due_s is not None and reply._due_s <= self._hub.clock.now_s():
            self._expire()
        else:
            with self._lock:
                waiter = self._calls.give_up(reply.call_id)
            if waiter is not None:
                self._num_timed_out += 1
                raise Expired(
                    f"{reply.method!r} was not answered by {self.peer} within {within_s} s.\n"
                    f"The other side may still be at work; the answer will be ignored."
                )
        while not reply._done:  # another thread is just resolving it
            self._waiters.wait_unless(reply, reply.done, None)

    def _expire(self) -> None:
        with self._lock:
            late = self._calls.expire(self._hub.clock.now_s())
            self._num_timed_out += len(late)
            next_due_s = self._calls.next_deadline_s()
        for reply in late:
            reply._resolve(None, Expired(f"{reply.method!r} was not answered by {self.peer} before its deadline."))
            self._waiters.wake(reply)
        if next_due_s is not None:
            self._alarm.set(next_due_s)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _peer_ended(self) -> None:
        self._death = Ending(False, f"{self.peer} ended")
        # Its children may hold the socket open. What it sent before can still be read; then comes the end.
        self._wire.hang_up()
        self._read(to_the_end=True)

    def _gone(self, method: str, what: str, kind: type[WorkerLostError] = NeverSent) -> FanwiseError:
        assert self.ending is not None, "only then is it gone"
        text = f"{method!r} {what}: the link to {self.peer} has ended ({self.ending.reason})."
        return ClosedError(text) if self.ending.clean else kind(text)

    def _end(self, ending: Ending) -> None:
        if self._begin_end(ending):
            self._finish_end()

    def _begin_end(self, ending: Ending) -> bool:
        """From now on it has ended, in this way and no other. False when it had ended already."""
        with self._lock:
            first, self.ending = self.ending is None, self.ending or ending
            return first

    def _finish_end(self) -> None:
        assert self.ending is not None, "it has begun to end"
        with self._lock:
            waiting, turns = self._calls.lose(), self._flow.close()
            callbacks, self._endings = self._endings, []
        self._over = True
        self._sender.end_polling()
        self._watch.end()
        self._alarm.cancel()
        if self._sharing is not None:
            self._sharing.close()
        self._wire.hang_up()
        self._close_wire()
        for turn in turns:
            turn._settle(None, self._gone(turn.method, "was not sent"))
        for request in list(self.asked.values()):
            if request.listener is not None:
                request.listener.lost()
        for reply in waiting:
            reply._settle(None, self._gone(reply.method, "was not answered", WorkerLostError))
        self._waiters.wake_all()
        for reply in waiting:
            reply._tell()
        for callback in callbacks:
            try:
                callback(self, self.ending)
            except Exception:
                _log.exception("a callback of the end of the link to %s failed", self.peer)
        self._let_go()
        self._watch.close()

    def _close_wire(self) -> None:
        """Give the descriptor back. While another thread reads, `hang_up` has woken it, and it comes here itself."""
        if self._reading.acquire(blocking=False):
            try:
                self._sender.close()
            finally:
                self._reading.release()


_all: "weakref.WeakSet[Link]" = weakref.WeakSet()


def may_wait_for(hub: Hub) -> bool:
    """Whether this thread may wait for what comes in: it is in no turn of the hub, nor called by what reads a link.

    Looks at all links, as nobody has to tell anything then who reads: it is asked only when there is no credit.
    """
    if hub.is_loop_thread:
        return False
    while True:
        try:
            return all(link._reader_id != get_ident() for link in list(_all))
        except RuntimeError:  # another thread has just made a link
            continue
