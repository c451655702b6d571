"""A link: calls both ways with one authenticated peer, over any wire.

    caller                                                 peer
      ask(method, *args)  -- REQUEST -------------------->  handler(request)
                          <- REPLY or ERROR --------------  request.answer(value) / request.fail(error), now or later
      notify(method, *args) -- NOTICE ------------------->  handler(request), nothing goes back

A caller that waits reads its own answer: it takes the link out of the hub's poll, reads, and puts it back, so that no
thread is woken for another. Whoever reads handles all that comes: answers for others, requests. Handlers run inline
and must not block; they may answer later and from any thread.

A link ends by `close` on either side (`clean`), or is lost: end of file, the peer's death, bytes that are not ours.
Then every open call fails at once. Nothing is sent twice.
"""

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..base.errors import ClosedError, DeadlineExceeded, FanwiseError, WireError, WorkerLostError
from . import frames
from .calls import Calls
from .codec import dumps, loads, pack_error, unpack_error
from .frames import Frame, FrameReader, Limits
from .hub import READ, WRITE, Hub
from .wires import Buffer, Wire

_log = logging.getLogger(__name__)


class Peer(NamedTuple):
    """Who is at the other end, as the operating system tells; pid 0 is unknown."""

    pid: int = 0
    uid: int = -1


class Ending(NamedTuple):
    """How a link ended. `clean`: one side closed it on purpose."""

    clean: bool
    reason: str


class Request:
    """What a peer asked. Answer it once, from any thread; what comes later is ignored."""

    __slots__ = ("_call_id", "args", "link", "method")

    def __init__(self, link: "Link", call_id: int, method: str, args: tuple[Any, ...]) -> None:  # Any: peer's values
        self.link = link
        self._call_id = call_id
        self.method = method
        self.args = args

    def answer(self, value: object = None) -> None:
        """The call returns `value`."""
        call_id, self._call_id = self._call_id, 0
        if call_id:
            self.link._answer(call_id, value)

    def fail(self, error: BaseException) -> None:
        """The call raises `error`."""
        call_id, self._call_id = self._call_id, 0
        if call_id:
            self.link._send(frames.encode(frames.ERROR, call_id, pack_error(error)))


class Reply:
    """The answer to come of one call."""

    __slots__ = ("_callbacks", "_done", "_error", "_link", "_value", "call_id", "method")

    def __init__(self, link: "Link", method: str) -> None:
        self._link = link
        self.method = method
        self.call_id = 0
        self._done = False
        self._value: Any = None  # Any: whatever the peer answered
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Reply], None]] | None = None

    def done(self) -> bool:
        return self._done

    def result(self, within_s: float | None = None) -> Any:  # Any: whatever the peer answered
        """Block until the answer is here, at most `within_s` seconds, then raise `DeadlineExceeded`.

        Raises what the peer raised, or `WorkerLostError` when the link is lost first.
        """
        if not self._done:
            self._link._wait(self, within_s)
        if self._error is not None:
            raise self._error
        return self._value

    def add_done_callback(self, callback: "Callable[[Reply], None]") -> None:
        """Call `callback(self)` when the answer is here; at once when it is. On the thread that reads."""
        with self._link._lock:
            if not self._done:
                self._callbacks = [*(self._callbacks or ()), callback]
                return
        callback(self)

    def _resolve(self, value: object, error: BaseException | None) -> None:
        with self._link._lock:
            self._value, self._error = value, error
            self._done = True
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)


Handler = Callable[[Request], None]


def _refuse(request: Request) -> None:
    request.fail(LookupError(f"nobody here answers {request.method!r}"))


class Link:
    """See the module. Made by `dial`, `UnixListener` and `memory_links`."""

    def __init__(self, hub: Hub, wire: Wire, *, peer: Peer = Peer(), limits: Limits = Limits()) -> None:
        self.peer = peer
        self.handler: Handler = _refuse
        self.ending: Ending | None = None
        self.on_malformed: Callable[[WireError], None] = lambda error: None
        self._hub = hub
        self._wire = wire
        self._reader = FrameReader(limits)
        self._calls: Calls[Reply] = Calls()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._sending = threading.Lock()
        self._queue: deque[memoryview] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._endings: list[Callable[[Link, Ending], None]] = []
        self._fd = wire.fileno()
        self._pidfd = -1
        hub.close_in_fork(self)

    def open(self) -> None:
        """Begin to read. Set `handler` first."""
        if self._fd >= 0:
            self._hub.watch(self._fd, self._ready)
        else:
            self._wire.on_readable(lambda: self._hub.call_soon(self._readable))

    def watch_peer(self) -> None:
        """Notice the peer's death also when a process it forked keeps the socket open (Linux: by pidfd)."""
        if self.peer.pid in (0, os.getpid()):
            return
        try:
            self._pidfd = os.pidfd_open(self.peer.pid)
        except (OSError, AttributeError):
            return  # already gone: end of file tells; or no pidfd on this system
        self._hub.watch(self._pidfd, self._peer_ended)

    @property
    def pidfd(self) -> int:
        """A descriptor of the peer's process, for signals; -1 when there is none. Owned by the link."""
        return self._pidfd

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, method: str, *args: object, deadline_s: float | None = None) -> Reply:
        """Ask and do not wait. `deadline_s`: seconds from now after which the reply fails with `DeadlineExceeded`."""
        head, buffers = dumps((method, args))
        reply = Reply(self, method)
        self._hub.check_usable()
        until_s = None if deadline_s is None else self._hub.clock.now_s() + deadline_s
        with self._lock:
            if self._calls.closed:
                raise self._gone(method)
            reply.call_id = self._calls.open(reply, until_s)
        if until_s is not None:
            due_s = until_s
            self._hub.call_soon(lambda: self._hub.call_at(due_s, self._expire) and None)
        self._send(frames.encode(frames.REQUEST, reply.call_id, head, buffers))
        return reply

    def ask(self, method: str, *args: object, within_s: float | None = None) -> Any:  # Any: the peer's answer
        """Ask and wait for the answer. Raises as `Reply.result` does."""
        return self.call(method, *args).result(within_s)

    def notify(self, method: str, *args: object) -> None:
        """Tell; there is no answer. Raises `ClosedError` or `WorkerLostError` when the link has ended."""
        head, buffers = dumps((method, args))
        self._hub.check_usable()
        if self._calls.closed:
            raise self._gone(method)
        self._send(frames.encode(frames.NOTICE, 0, head, buffers))

    def on_ended(self, callback: "Callable[[Link, Ending], None]") -> None:
        """Call `callback(link, ending)` when the link ends; at once when it has."""
        with self._lock:
            if self.ending is None:
                self._endings.append(callback)
                return
        callback(self, self.ending)

    def close(self, reason: str = "closed") -> None:
        """End the link on purpose: the peer learns that it was no accident. Never blocks, never raises."""
        if self.ending is None:
            with contextlib.suppress(FanwiseError):
                self._send(frames.encode(frames.GOODBYE, 0, reason.encode()))
        self._end(Ending(True, reason))

    def close_fork(self) -> None:
        """In a forked child: the descriptors are copies; the parent's link goes on."""
        self._wire.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    # -- sending ---------------------------------------------------------------------------------------------------

    def _answer(self, call_id: int, value: object) -> None:
        try:
            head, buffers = dumps(value)
        except Exception as error:
            self._send(frames.encode(frames.ERROR, call_id, pack_error(error)))
            return
        self._send(frames.encode(frames.REPLY, call_id, head, buffers))

    def _send(self, parts: Sequence[Buffer]) -> None:
        self._hub.check_usable()
        with self._sending:
            if not self._queue:
                sent = self._wire.write(parts)
                if sent == len(parts[0]) and len(parts) == 1:
                    return
                if sent < 0:
                    self._hub.call_soon(self._readable)  # reads what is left, then finds the end
                    return
            else:
                sent = 0
            self._enqueue(parts, sent)
            if self._hub.driven:
                self._hub.change(self._fd, READ | WRITE)
            else:
                while self._queue and self._wire.wait_writable(None):
                    self._drain()

    def _enqueue(self, parts: Sequence[Buffer], sent: int) -> None:
        for part in parts:
            view = memoryview(part).cast("B")
            if sent >= len(view):
                sent -= len(view)
                continue
            self._queue.append(view[sent:])
            sent = 0

    def _drain(self) -> None:
        while self._queue:
            batch = [self._queue[i] for i in range(min(len(self._queue), 16))]
            sent = self._wire.write(batch)
            if sent < 0:
                self._queue.clear()
                self._hub.call_soon(self._readable)
                return
            if sent == 0:
                return
            while self._queue and sent >= len(self._queue[0]):
                sent -= len(self._queue.popleft())
            if sent:
                self._queue[0] = self._queue[0][sent:]

    def _ready(self, events: int) -> None:
        if events & WRITE:
            with self._sending:
                self._drain()
                if not self._queue:
                    self._hub.change(self._fd, READ)
        if events & ~WRITE:
            self._readable()

    # -- reading ---------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        """The hub's turn to read, unless somebody who waits is reading."""
        if self.ending is None and self._reading.acquire(blocking=False):
            try:
                self._read_once()
            finally:
                self._reading.release()
                self._wake_waiting()

    def _read_once(self) -> bool:
        """Read what is there and handle it. False: nothing was there, or the link ended."""
        size = self._wire.read_into(self._reader.space())
        if size > 0:
            try:
                for frame in self._reader.filled(size):
                    self._handle(frame)
            except WireError as error:
                self.on_malformed(error)
                self._end(Ending(False, error.message))
                return False
            return True
        if size < 0:
            self._end(Ending(False, "the other side ended without a goodbye"))
        return False

    def _handle(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == frames.REPLY or kind == frames.ERROR:
            with self._lock:
                reply = self._calls.answered(frame.call_id)
            if reply is not None:
                self._resolve(reply, frame)
        elif kind == frames.GOODBYE:
            self._end(Ending(True, bytes(frame.head).decode(errors="replace")))
        else:
            self._serve(frame)

    def _resolve(self, reply: Reply, frame: Frame) -> None:
        try:
            if frame.kind == frames.REPLY:
                reply._resolve(loads(frame.head, frame.buffers), None)
            else:
                reply._resolve(None, unpack_error(frame.head))
        except WireError:
            raise
        except Exception as error:  # the value's own type failed to come back: the caller must learn why
            reply._resolve(None, error)
        self._wake_waiting()

    def _serve(self, frame: Frame) -> None:
        request = Request(self, frame.call_id, "", ())
        try:
            request.method, request.args = loads(frame.head, frame.buffers)
            self.handler(request)
        except WireError:
            raise
        except Exception as error:
            if frame.kind == frames.NOTICE:
                _log.exception("a notice %r of process %d could not be handled", request.method, self.peer.pid)
            request.fail(error)

    def _wait(self, reply: Reply, within_s: float | None) -> None:
        if self._hub.is_loop_thread:
            raise RuntimeError(f"waiting for {reply.method!r} on the thread that reads its answer would never end")
        clock = self._hub.clock
        until_s = None if within_s is None else clock.now_s() + within_s
        while not reply._done:
            left_s = None if until_s is None else until_s - clock.now_s()
            if left_s is not None and left_s <= 0:
                self._give_up(reply, within_s)
            elif self._reading.acquire(blocking=False):
                self._read_for(reply, left_s)
            else:
                self._wait_for_reader(reply, left_s)

    def _read_for(self, reply: Reply, left_s: float | None) -> None:
        """Read until the answer is here, as the only reader. The hub's poll leaves this link alone meanwhile."""
        hub = self._hub
        borrowed = hub.driven
        if borrowed:
            hub.change(self._fd, 0)
        try:
            while not reply._done and self.ending is None and self._wire.wait_readable(left_s):
                self._read_once()
                if left_s is not None:
                    break  # the caller looks at the clock again
        finally:
            self._reading.release()
            if borrowed and self.ending is None:
                hub.change(self._fd, READ | WRITE if self._queue else READ)
                if self._fd < 0:
                    hub.call_soon(self._readable)
            self._wake_waiting()

    def _wait_for_reader(self, reply: Reply, left_s: float | None) -> None:
        with self._changed:
            self._waiting += 1
            try:
                if not reply._done and self._reading.locked():
                    self._changed.wait(left_s)
            finally:
                self._waiting -= 1

    def _wake_waiting(self) -> None:
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def _give_up(self, reply: Reply, within_s: float | None) -> None:
        with self._lock:
            waiter = self._calls.give_up(reply.call_id)
        if waiter is not None:
            raise DeadlineExceeded(
                f"{reply.method!r} was not answered by process {self.peer.pid} within {within_s} s.\n"
                f"The other side may still be at work; the answer will be ignored."
            )

    def _expire(self) -> None:
        with self._lock:
            late = self._calls.expire(self._hub.clock.now_s())
        for reply in late:
            reply._resolve(None, DeadlineExceeded(f"{reply.method!r} was not answered by its deadline."))
        self._wake_waiting()

    # -- the end ---------------------------------------------------------------------------------------------------

    def _peer_ended(self, _events: int) -> None:
        self._hub.forget(self._pidfd)
        while self.ending is None and self._reading.acquire(blocking=False):
            try:
                if not self._read_once():
                    break
            finally:
                self._reading.release()
        self._end(Ending(False, f"process {self.peer.pid} ended"))

    def _gone(self, method: str) -> FanwiseError:
        ending = self.ending or Ending(False, "lost")
        text = f"{method!r} cannot be asked: the link to process {self.peer.pid} has ended ({ending.reason})."
        return ClosedError(text) if ending.clean else WorkerLostError(text)

    def _end(self, ending: Ending) -> None:
        with self._lock:
            if self.ending is not None:
                return
            self.ending = ending
            waiting = self._calls.lose()
            callbacks, self._endings = self._endings, []
        if self._fd >= 0:
            self._hub.forget(self._fd)
        if self._pidfd >= 0:
            self._hub.forget(self._pidfd)
        self._wire.close()
        for reply in waiting:
            reply._resolve(None, self._gone(reply.method))
        self._wake_waiting()
        for callback in callbacks:
            callback(self, ending)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
