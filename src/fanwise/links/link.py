"""A link: calls in both directions with one authenticated peer, over any wire.

    caller                                                 peer
      ask(method, *args)  -- REQUEST -------------------->  handler(request)
                          <- REPLY or ERROR --------------  request.answer(value) / request.fail(error), now or later
      call_on_credit      -- CALL ---------------------->   the same, when the peer has room for it
      reply.cancel        -- CANCEL -------------------->   request.on_cancel()
      notify(method, *args) -- NOTICE ------------------>   handler(request), without a reply

The parts: `reader` reads and waits, `writer` writes, `calls` is the caller's half. This file is the face of a link and
the callee's half. Handlers run on the reading thread and must not block; they may answer later, from any thread. A
request is answered once.

A link ends by `close` on either side (`clean`), or is lost: end of file, death of the peer, invalid bytes. Then every
open call fails at once. Nothing is sent twice.

Locks: the reader's is held by the thread that reads, also while it waits for bytes; all others only for moments.
"""

import contextlib
import functools
import logging
import os
import struct
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..base.errors import ClosedError, FanwiseError, WireError
from . import frames
from .calls import Calls, Waiting, Watch
from .calls import Reply as Reply
from .codec import dumps, load_error, loads, pack_error
from .counts import Latencies, LinkCounts
from .credits import WINDOW_MIN, Granting, cost_of, share
from .frames import Buffer, Frame, Limits
from .hub import Hub
from .memory_limits import memory_bytes
from .peers import Ending, LinkState, Peer, PeerWatch
from .reader import Reader
from .shared_memory.sharing import Sharing, shared
from .transports.resumable import ResumableWire
from .transports.wires import Wire
from .writer import Writer

_log = logging.getLogger(__name__)

_memory_bytes = functools.cache(memory_bytes)
_CREDIT, _WANT = struct.Struct("<QQ"), struct.Struct("<Q")


class Request:
    """A call of the peer. Answer it once, from any thread; later answers are ignored.

    Attributes:
        on_cancel: called on the reading thread if the caller cancels the call before it is answered. Must not block.
    """

    __slots__ = ("_call_id", "_cost", "args", "link", "method", "on_cancel")

    def __init__(self, link: "Link", call_id: int, cost: int = 0) -> None:
        self.link = link
        self._call_id = call_id
        self._cost = cost
        self.method = ""
        self.args: tuple[Any, ...] = ()
        self.on_cancel: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Return True if the peer waits for the answer."""
        return self._call_id in self.link.asked

    def taken_up(self) -> None:
        """Return the credit of a call that was started. Otherwise the answer does so."""
        cost, self._cost = self._cost, 0
        if cost:
            self.link._return_credit(cost)

    def when_answers_leave(self, again: Callable[[], None]) -> bool:
        """Return True if too many bytes of answers are queued for the peer to start more of its requests.

        If so, `again` is called when they were sent, or when the link ends, on a thread that must not block.
        """
        return self.link._writer.when_drained(again)

    def unanswered(self) -> None:
        """Close the request without an answer, because nobody waits for it."""
        self._close()

    def answer(self, value: object = None) -> bool:
        """Make the call return `value`. Return False if it raises an error instead, as the value cannot be sent."""
        call_id = self._close()
        return self.link._answer(call_id, value) if call_id else True

    def fail(self, error: BaseException) -> None:
        """Make the call raise `error`."""
        packed = pack_error(error)  # first: if that raises, another error can still be sent
        self.link._count_failed(is_refused=isinstance(error, WireError) and not hasattr(error, "__notes__"))
        call_id = self._close()
        if call_id:
            self.link._send(frames.encode(frames.ERROR, call_id, packed))

    def _close(self) -> int:
        """Return the id to answer, 0 if the request was answered before."""
        if self._cost:
            self.taken_up()
        call_id, self._call_id = self._call_id, 0
        # It refers to this request. In a cycle of the two, the contents of a call, such as a big tensor in shared
        # memory, would stay in use until a garbage collection.
        self.on_cancel = None
        self.link.asked.pop(call_id, None)
        return call_id


Handler = Callable[[Request], object]


def _refuse(request: Request) -> None:
    request.fail(LookupError(f"nobody here answers {request.method!r}"))


class _Budget:
    """The window of the links of one hub, and so of a process, that have received WANT."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_links = 0
        self.window = share(1)

    def join(self, by: int) -> None:
        """Change the number of links by this number."""
        with self._lock:
            self._num_links += by
            self.window = share(self._num_links)


_budgets: "weakref.WeakKeyDictionary[Hub, _Budget]" = weakref.WeakKeyDictionary()


class Link:
    """See the module. Made by `dial`, `UnixListener` and `link_pair`.

    Attributes:
        handler: called with each request, on the reading thread.
        dumps, loads: how values become bytes. A layer above may set its own on both sides, before the first call.
        load_error: unpickles errors of the peer; see `codec.unpack_error`.
        on_late: called with the bytes of each answer that nobody waits for.
        on_malformed: called with the error when the peer has sent something invalid.
        asked: calls of the peer on credit that are not answered.
    """

    def __init__(
        self, hub: Hub, wire: Wire, *, peer: Peer = Peer(), limits: Limits = Limits(), sharing: Sharing | None = None
    ) -> None:
        self.peer = peer
        self.handler: Handler = _refuse
        self.on_malformed: Callable[[WireError], None] = lambda error: None
        self.dumps, self.loads = dumps, loads
        self.load_error: Callable[[bytes], Any] | None = load_error
        self.on_late: Callable[[Buffer, Sequence[memoryview]], None] | None = None
        self.asked: dict[int, Request] = {}
        self._hub, self._wire, self._sharing, self._pid = hub, wire, sharing, os.getpid()
        self._resumable = wire if isinstance(wire, ResumableWire) else None
        # An announced message costs nothing until its bytes arrive, but a peer that sends without end must not exhaust
        # the memory of this process. Half leaves room for existing data and for one copy.
        limits = limits._replace(frame_bytes=min(limits.frame_bytes, _memory_bytes() // 2))
        self._limits = self._peer_limits = limits
        self._state = LinkState(hub, peer)
        self._writer = Writer(hub, wire)
        self._reader = Reader(
            self._state,
            wire,
            self._writer,
            limits,
            handle=self._handle,
            adopt=lambda frame: shared(self._sharing).adopt(frame),
            is_awaited=self._is_awaited,
            after_read=self._after_read,
            on_end=self.lose,
            on_malformed=self._on_malformed,
        )
        self._calls = Calls(self, self._state, self._reader, self._send)
        self._granting = Granting()
        self._budget: _Budget | None = None  # joined when the peer needs more than WINDOW_MIN
        self._watch = PeerWatch(hub, peer, self._on_death)
        self._endings: list[Callable[[Link, Ending], None]] = []
        self._refused: Counter[str] = Counter()
        self._num_failed = 0
        if self._resumable is not None:
            self._resumable.attach(self._writer, self._reader.schedule, self.lose)
        if sharing is not None:
            sharing.attach(self._writer)
        hub.close_in_fork(self)

    @property
    def ending(self) -> Ending | None:
        """The reason of the end; None while the link is open."""
        return self._state.ending

    def open(self) -> None:
        """Begin to read. Set `handler` first. Does nothing if the link has ended already."""
        self._writer.begin_polling(self._reader.on_ready)
        if self._wire.holds_bytes:  # frames may have arrived together with the handshake
            self._reader.schedule()

    def watch_peer(self) -> None:
        """Notice the peer's death also if a process that it forked keeps the socket open (Linux: by pidfd)."""
        self._watch.begin()

    @property
    def pidfd(self) -> int:
        """A descriptor of the peer's process, for signals; -1 if there is none. Owned by the link."""
        return self._watch.fd

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, method: str, *args: object, deadline_s: float | None = None) -> Reply:
        """Send a call and do not wait. The reply fails with `DeadlineExceeded` after `deadline_s` seconds.

        Arrays among `args` may be changed as soon as this returns. Raises `ClosedError` or `WorkerLostError` if the
        link has ended, `NotSendableError` if the message is too large.
        """
        due_s = None if deadline_s is None else self._hub.clock.now_s() + deadline_s
        reply, parts = Reply(self._calls, str(method), due_s), None
        try:
            head, buffers = self._dumped((method, args))
            self._calls.open(reply)
            parts = self._encode(frames.REQUEST, reply.call_id, head, buffers)
            self._send(parts)
            return reply
        except BaseException as error:
            self._calls.take_back(reply, parts, error)
            raise

    def ask(self, method: str, *args: object, within_s: float | None = None) -> Any:
        """Call and wait for the answer. Raises as `Reply.result`, and RuntimeError on the thread that reads it."""
        reply, parts = Reply(self._calls, method), None
        try:
            self._calls.check_may_wait(method)
            head, buffers = self._dumped((method, args))
            self._calls.open(reply)
            parts = self._encode(frames.REQUEST, reply.call_id, head, buffers)
            return self._send_and_wait(reply, parts, within_s)
        except BaseException as error:
            self._calls.take_back(reply, parts, error)
            raise
        finally:
            del reply  # otherwise an error would keep this frame, and so the message, until a garbage collection

    def call_on_credit(
        self,
        method: str,
        *,
        deadline_s: float | None = None,
        waiting: Waiting = contextlib.nullcontext,
        overdraws: bool = False,
        watch: Watch | None = None,
    ) -> Reply:
        """As `call`, when the peer has room for it. Blocks until then, within `waiting()`.

        Does not block on a thread that reads, nor with `overdraws`, unless the window is overdrawn too far. Raises
        `DeadlineExceeded`; `WindowFullError` on a thread that must not wait; `CancelledError` if the reply that it
        waits for was canceled. `was_never_sent` is true of errors that came before the call was sent.
        """
        due_s = None if deadline_s is None else self._hub.clock.now_s() + deadline_s
        reply, parts = Reply(self._calls, str(method), due_s), None
        try:
            head, buffers = self._dumped((method, ()))
            cost = cost_of(head, buffers)
            self._calls.open_on_credit(reply, cost, deadline_s, overdraws=overdraws, waiting=waiting, watch=watch)
            parts = self._encode(frames.CALL, reply.call_id, head, buffers)
            self._send(parts)
            return reply
        except BaseException as error:
            self._calls.take_back(reply, parts, error)
            raise

    def ask_on_credit(self, method: str, *, within_s: float | None = None, watch: Watch | None = None) -> Any:
        """As `ask`, when the peer has room for it. Raises as `call_on_credit` if the call was not sent."""
        reply, parts = Reply(self._calls, method), None
        try:
            self._calls.check_may_wait(method)
            head, buffers = self._dumped((method, ()))
            within_s = self._calls.open_on_credit(reply, cost_of(head, buffers), within_s, watch=watch)
            parts = self._encode(frames.CALL, reply.call_id, head, buffers)
            return self._send_and_wait(reply, parts, within_s, watch)
        except BaseException as error:
            self._calls.take_back(reply, parts, error)
            raise
        finally:
            del reply  # as in `ask`

    def _send_and_wait(
        self, reply: Reply, parts: list[Buffer], within_s: float | None, watch: Watch | None = None
    ) -> Any:
        try:  # without a copy: the caller does not change the memory until this returns
            if self._writer.put(parts, copied=False) == "lost":
                self._reader.find_end()
            if watch is not None:
                watch(reply)  # now, because CANCEL must not be sent before the call
            self._calls.wait(reply, within_s)
            if not reply.done():
                self._calls.time_out(reply, f"within {within_s} s")
        except BaseException:
            self._writer.copy_unsent()
            reply.settle(None, None)  # so a later answer goes to `on_late`
            raise
        error = reply._error
        if error is None:
            return reply._value
        self._writer.copy_unsent()  # it was canceled or too late, perhaps before it was written
        # The frames of the functions that read the answer hold the reply, and the error may hold them.
        reply._error = None
        try:
            raise error
        finally:
            del error, reply  # as in `ask`

    def notify(self, method: str, *args: object) -> None:
        """Send a message without an answer. Raises `ClosedError` or `WorkerLostError` if the link has ended."""
        head, buffers = self._dumped((method, args))
        self._hub.check_usable()
        if self.ending is not None:
            raise self._state.ended_error(method, "cannot be told")
        self._send(self._encode(frames.NOTICE, 0, head, buffers))

    # -- facts about the link --------------------------------------------------------------------------------------

    @property
    def frame_bytes(self) -> int:
        """The largest message that this side takes."""
        return self._limits.frame_bytes

    def peer_takes(self, frame_bytes: int) -> None:
        """Set the largest message that the other side takes. Until then it is assumed to be that of this side."""
        self._peer_limits = self._peer_limits._replace(frame_bytes=frame_bytes)

    @property
    def num_open(self) -> int:
        """Number of calls that were sent and not answered."""
        return len(self._calls.open_replies)

    @property
    def num_waiting(self) -> int:
        """Number of calls that wait for credit."""
        return self._calls.spending.num_waiting

    def open_calls(self) -> list[str]:
        """Return the names of calls on credit that were sent and not answered."""
        return [str(reply.method) for reply in list(self._calls.open_replies.values()) if reply.cost]

    @property
    def num_queued_bytes(self) -> int:
        """Number of bytes that the peer's socket has not taken yet."""
        return self._writer.num_queued_bytes

    @property
    def num_bytes_not_begun(self) -> int:
        """Size of the peer's calls that were not started, and 1 KiB for each."""
        return self._granting.total_cost - self._granting.started

    def counts(self) -> LinkCounts:
        """Return the counters of this link. Thread-safe."""
        sharing, latencies = self._sharing, self._calls.latencies
        return LinkCounts(
            calls_made=self._calls.num_on_credit,
            calls_received=self._granting.num_calls,
            calls_timed_out=self._calls.num_timed_out,
            calls_failed=self._num_failed,
            bytes_sent=self._wire.num_written + (sharing.num_sent_bytes if sharing is not None else 0),
            bytes_received=self._reader.frames.num_filled + (sharing.num_received_bytes if sharing is not None else 0),
            refused=dict(+(self._refused + Counter(window_full=self._calls.num_refused))),
            latencies=Latencies(latencies.buckets.copy(), latencies.sum_s),
        )

    def _count_failed(self, *, is_refused: bool) -> None:
        """`is_refused`: the request could not be read, or names something that is not allowed."""
        with self._state.lock:
            self._num_failed += 1
            self._refused["not_allowed"] += is_refused

    # -- sending ---------------------------------------------------------------------------------------------------

    def _dumped(self, value: object) -> tuple[bytes, Sequence[memoryview]]:
        """Serialize. Raises the errors of pickling; `NotSendableError` if the other side would not take the message."""
        head, buffers = self.dumps(value)
        if buffers or len(head) > self._peer_limits.frame_bytes:
            frames.check_may_be_sent(self._peer_limits, head, buffers)
        return head, buffers

    def _encode(self, kind: int, call_id: int, head: bytes, buffers: Sequence[memoryview]) -> list[Buffer]:
        if not buffers or self._sharing is None or not self._sharing.wants(buffers):
            return frames.encode(kind, call_id, head, buffers)
        if self._reader.may_block:
            self._reader.read()  # the peer may have returned shared memory, and no other thread reads
        return self._sharing.encode(kind, call_id, head, buffers)

    def _send(self, parts: list[Buffer]) -> None:
        """Send; the memory of `parts` may be changed afterwards. Blocks until it is written if no thread writes it."""
        hub, reader = self._hub, self._reader
        if hub.is_closed:
            hub.check_usable()
        status = self._writer.put(parts, copied=hub.driven or not reader.may_block)
        if status == "waits" and reader.may_block:
            try:
                reader.flush()
            except BaseException:  # an interrupt: the program may change the memory that is still queued
                self._writer.copy_unsent()
                raise
        elif status == "lost":
            reader.find_end()

    def _answer(self, call_id: int, value: object) -> bool:
        try:
            head, buffers = self._dumped(value)
        except Exception as error:
            self._send(frames.encode(frames.ERROR, call_id, pack_error(error)))
            return False
        self._send(self._encode(frames.REPLY, call_id, head, buffers))
        return True

    # -- receiving -------------------------------------------------------------------------------------------------

    def _handle(self, frame: Frame) -> None:
        """Handle a frame. Raises `WireError` if it is invalid; interrupts pass through. Nothing else is raised."""
        kind = frame.kind
        if kind == frames.REPLY or kind == frames.ERROR:
            is_wanted = self._calls.on_answer(frame, self.loads, self.load_error)
            if not is_wanted and kind == frames.REPLY and self.on_late is not None:
                self.on_late(frame.head, frame.buffers)
        elif kind < frames.REPLY or kind == frames.CALL:
            self._serve(frame)
        elif kind == frames.GOODBYE:
            self._end(Ending(True, bytes(frame.head).decode(errors="replace")))
        elif kind == frames.CREDIT:
            self._calls.on_credit(frame)
        elif kind == frames.WANT:
            self._on_want(frame)
        elif kind == frames.CANCEL:
            request = self.asked.get(frame.call_id)
            if request is not None and request.on_cancel is not None:
                request.on_cancel()
            else:
                self.asked.pop(frame.call_id, None)
        else:
            shared(self._sharing).handle(frame)

    def _is_awaited(self, frame: Frame) -> bool:
        return frame.kind in (frames.REPLY, frames.ERROR) and frame.call_id in self._calls.open_replies

    def _serve(self, frame: Frame) -> None:
        cost = 0
        if frame.kind == frames.CALL:
            cost = cost_of(frame.head, frame.buffers)
            if not self._granting.received(cost):
                raise WireError("the peer sent more calls than this side has room for, and than it was granted.")
        request = Request(self, frame.call_id, cost)
        if cost:
            self.asked[frame.call_id] = request
        try:
            request.method, request.args = self.loads(frame.head, frame.buffers)
        except WireError:
            raise
        except Exception as error:
            self._fail(request, frame, error)
            return
        try:
            self.handler(request)
        except BaseException as error:
            self._fail(request, frame, error)
            if not isinstance(error, Exception):
                raise

    def _fail(self, request: Request, frame: Frame, error: BaseException) -> None:
        if frame.kind == frames.NOTICE:
            _log.error("notice %r of %s was not handled", request.method, self.peer, exc_info=error)
        with contextlib.suppress(FanwiseError):  # closed meanwhile, which the caller notices
            request.fail(error)

    # -- credit for the peer's calls -------------------------------------------------------------------------------

    def _credit(self) -> list[Buffer]:
        window = WINDOW_MIN if self._budget is None else self._budget.window
        return frames.encode(frames.CREDIT, 0, _CREDIT.pack(*self._granting.announce(window)))

    def _return_credit(self, cost: int) -> None:
        """A call of the peer was started."""
        with self._state.lock:
            credit = self._credit() if self._granting.taken_up(cost) else []
        if credit and self.ending is None:
            with contextlib.suppress(ClosedError):  # the hub is closed
                self._send(credit)

    def _on_want(self, frame: Frame) -> None:
        if len(frame.head) != _WANT.size:
            raise WireError(f"a frame about credit has {len(frame.head)} bytes, expected {_WANT.size}.")
        (position,) = _WANT.unpack(frame.head)
        with self._state.lock:
            if self._budget is None:
                self._budget = _budgets.get(self._hub) or _budgets.setdefault(self._hub, _Budget())
                self._budget.join(1)
            credit = self._credit() if self._granting.wanted(position, self._budget.window) else []
        if credit:
            self._send(credit)

    # -- the end ---------------------------------------------------------------------------------------------------

    def on_ended(self, callback: "Callable[[Link, Ending], None]") -> None:
        """Call `callback(link, ending)` when the link ends; at once if it has."""
        with self._state.lock:
            ending = self.ending
            if ending is None:
                self._endings.append(callback)
                return
        callback(self, ending)

    def close(self, reason: str = "closed") -> None:
        """End the link on purpose, and tell the peer. Never blocks, never raises.

        Queued messages for which the peer's socket has no room now are dropped: `ask` something first if they matter.
        No effect in a fork of the process that owns the link.
        """
        self._end(Ending(True, reason), frames.encode(frames.GOODBYE, 0, reason.encode()))

    def lose(self, reason: str) -> None:
        """End the link because the peer is lost: open calls fail. Never blocks, never raises."""
        self._end(Ending(False, reason))

    def close_fork(self) -> None:
        """Close the copies of the descriptors in a forked child."""
        self._wire.close()
        if self._sharing is not None:
            self._sharing.close_fork()
        self._watch.close()

    def _after_read(self) -> None:
        if self._sharing is not None:
            self._sharing.after_reading(self._reader.frames)
        if self._resumable is not None and self._resumable.is_write_due:
            self._writer.drain()

    def _on_malformed(self, error: WireError) -> None:
        self._refused["malformed"] += 1
        self.on_malformed(error)
        self._end(Ending(False, error.message))

    def _on_death(self) -> None:
        self._reader.end_reason = f"{self.peer} ended"
        # Its children may hold the socket open. Data that it sent before can still be read, then the wire ends.
        self._wire.hang_up()
        self._reader.read(to_the_end=True)

    def _end(self, ending: Ending, goodbye: Sequence[Buffer] = ()) -> None:
        if self._pid != os.getpid():
            return
        try:
            self._end_once(ending, goodbye)
        except BaseException:  # an interrupt: nobody else would complete the end
            self._end_once(ending, ())
            raise

    def _end_once(self, ending: Ending, goodbye: Sequence[Buffer]) -> None:
        """End the link, or complete that after an interrupt. Does nothing if it has ended for another reason."""
        with self._state.lock:
            if self._state.ending is None:
                self._state.ending = ending
            if self._state.ending is not ending:
                return
            budget, self._budget = self._budget, None
        if budget is not None:
            budget.join(-1)
        if goodbye:
            self._writer.put_last(goodbye)
        self._writer.end_polling()
        self._watch.end()
        if self._sharing is not None:
            self._sharing.close()
        self._wire.hang_up()
        self._reader.close()
        self._calls.fail_all()
        while self._endings:
            try:
                self._endings.pop(0)(self, ending)
            except Exception:
                _log.exception("a callback of the end of the link to %s failed", self.peer)
        self._writer.run_on_drained()
        self._watch.close()
