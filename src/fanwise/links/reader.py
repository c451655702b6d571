"""The reading half of a link, and all waiting for bytes.

At most one thread reads a link at a time: the thread of the hub, or a thread that waits for a reply. A waiting thread
takes the link out of the hub's poll, reads, and puts it back, so that no other thread must be woken. It handles
everything that arrives, also replies for others and requests. Threads that wait meanwhile sleep (`Waiters`); the
reading thread wakes one of them when it stops, which may read then.

If no thread drives the hub, a waiting thread also writes, and a thread that must write reads meanwhile. So two sides
that send each other more than their sockets hold never wait for each other.

Invariants
- `lock` is held by the thread that reads, also while it waits for bytes. `reader_id` is that thread, else 0.
- The descriptor is closed with `lock` and the lock of the `Writer` held, so no thread uses a number that was reused.
- After an interrupt, such as Ctrl-C, no thread reads, and every byte that has arrived is handled once.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from threading import get_ident
from typing import Protocol

from ..base.errors import WireError
from ..base.uninterrupted import Uninterrupted
from .frames import ERROR, REPLY, Frame, FrameReader, Limits, Mark
from .hub import WRITE, Hub
from .peers import LinkState
from .transports.wires import Wire
from .writer import Writer


class Awaited(Protocol):
    """A reply."""

    def done(self) -> bool: ...
    def __hash__(self) -> int: ...


# A thread that waits for room checks this often whether another thread still reads, and one that reads whether its
# reply was canceled.
_CHECK_S = 0.05
# Maximum number of reads for one large frame before other links of the hub are served.
_READS_A_TURN = 16


class Waiters:
    """Threads that wait for replies while another thread reads. Waking costs nothing if nobody is `asleep`.

    Each sleeps on its own lock, so a reply wakes one thread and not hundreds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asleep: dict[Hashable, list[threading.Lock]] = {}

    def wait_unless(self, reply: Hashable, condition: Callable[[], bool], timeout_s: float | None) -> None:
        """Block until woken, or return at once if `condition()` holds.

        No wake-up is lost: this thread registers before it checks the condition, and the other side makes it true
        before it looks at `asleep`.
        """
        turn = threading.Lock()
        turn.acquire()
        try:
            with self._lock:
                self.asleep.setdefault(reply, []).append(turn)
            if not condition():
                turn.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))
        finally:
            try:
                self._remove(reply, turn)
            except BaseException:  # an interrupt, perhaps before it was done
                self._remove(reply, turn)
                raise

    def _remove(self, reply: Hashable, turn: threading.Lock) -> None:
        with self._lock:
            turns = [known for known in self.asleep.get(reply, ()) if known is not turn]
            if turns:
                self.asleep[reply] = turns
            else:
                self.asleep.pop(reply, None)

    def wake(self, reply: Hashable) -> None:
        """Wake the threads that wait for this reply."""
        if self.asleep:
            with self._lock:
                for turn in self.asleep.pop(reply, ()):
                    turn.release()

    def wake_one(self) -> None:
        """Wake the threads that wait for one of the replies: they may read now."""
        if self.asleep:
            with self._lock:
                reply = next(iter(self.asleep), None)
            if reply is not None:
                self.wake(reply)

    def wake_all(self) -> None:
        for reply in list(self.asleep):
            self.wake(reply)


class Reader:
    """See the module.

    Args:
        handle: called with each frame. Raises `WireError` if the frame is invalid.
        adopt: returns a frame with its buffers in shared memory as memory. Changes nothing if it is interrupted.
        is_awaited: returns True for an answer that was not handled.
        after_read: called when all frames that have arrived were handled. May raise `WireError`.
        on_end: called with the reason when the wire has ended.
        on_malformed: called when the peer has sent something invalid.
    """

    def __init__(
        self,
        state: LinkState,
        wire: Wire,
        writer: Writer,
        limits: Limits,
        *,
        handle: Callable[[Frame], None],
        adopt: Callable[[Frame], Frame],
        is_awaited: Callable[[Frame], bool],
        after_read: Callable[[], None],
        on_end: Callable[[str], None],
        on_malformed: Callable[[WireError], None],
    ) -> None:
        self._state, self._hub, self._wire, self._writer = state, state.hub, wire, writer
        self._handle, self._adopt, self._is_awaited, self._after_read = handle, adopt, is_awaited, after_read
        self._on_end, self._on_malformed = on_end, on_malformed
        self.lock = threading.Lock()
        self.reader_id = 0
        self.waiters = Waiters()
        self.end_reason = ""  # reported at the end of the wire, if another part of the link knows it
        self.frames = FrameReader(limits)
        self._unhandled = deque[Frame]()
        self.is_scheduled = False
        self._is_closing = False
        _all.add(self)

    @property
    def may_block(self) -> bool:
        """Return True if this thread must write the queue itself: no hub does, and it is in no handler."""
        return not (self._hub.driven or self._hub.is_loop_thread or self.reader_id == get_ident())

    @property
    def is_reading_here(self) -> bool:
        """Return True on the thread that reads this link, now or in every turn of the hub."""
        me = get_ident()
        return self.reader_id == me or (self._hub.driven and self._hub.loop_thread_id == me)

    # -- reading from the hub --------------------------------------------------------------------------------------

    def on_ready(self, events: int) -> None:
        """The hub's poll reports `events`."""
        if events & WRITE:
            self._writer.drain()
        if events != WRITE:
            self.read()

    def schedule(self) -> None:
        """Make the hub read, because there are bytes that polling does not show."""
        if self.is_scheduled:
            return
        try:
            self.is_scheduled = True
            self._hub.call_soon(self._read_as_scheduled)
        except BaseException:  # an interrupt: the hub may not wake up for this, so the next call must wake it
            self.is_scheduled = False
            raise

    def _read_as_scheduled(self) -> None:
        self.is_scheduled = False
        self.read()

    def read(self, *, to_the_end: bool = False) -> None:
        """Read the bytes that have arrived, or until the end of the wire; not while another thread reads."""
        if self._state.ending is None:
            try:
                self._read_alone(self._read_to_the_end if to_the_end else self._read_once)
            finally:
                if self.waiters.asleep:
                    self.waiters.wake_one()

    def _read_to_the_end(self) -> None:
        while self._read_once():
            pass

    def find_end(self) -> None:
        """Nothing can be written any more: read what arrived before the end."""
        if self.may_block:
            self.read(to_the_end=True)
        else:
            self.schedule()

    def _read_alone(self, read: Callable[[], object]) -> bool:
        """Call `read` as the only reader. Return False if another thread reads.

        An interrupt may come anywhere, so the lock is acquired by C code (see `SocketWire`) and released right here.
        """
        acquired: list[bool] = []
        has_read = False
        try:
            acquired.extend(map(self.lock.acquire, (False,)))
            if acquired[0]:
                self.reader_id = get_ident()
                read()
        finally:
            if acquired and acquired[0]:
                has_read = True
                try:
                    self._stop_reading(acquired)
                except BaseException:  # an interrupt, perhaps before it was done
                    self._stop_reading(acquired)
                    raise
        return has_read

    def _stop_reading(self, acquired: list[bool]) -> None:
        """Release the lock, once, and do what other threads have left to the reading one."""
        if acquired[0]:
            self.reader_id = 0
            acquired[0] = False
            self.lock.release()
        if self._is_closing:
            if not self._writer.is_closed:
                self.close()
        elif self._unhandled or self._wire.holds_bytes:  # left by an interrupt, or not shown by polling
            self.schedule()

    def _read_once(self) -> bool:
        """Read the bytes that have arrived and handle them. Return False if there were none, or the link has ended."""
        unhandled, frames, num_reads, mark = self._unhandled, self.frames, 0, None
        try:
            while not unhandled and num_reads < _READS_A_TURN:
                space = frames.space()
                mark = frames.mark()
                size = self._wire.read_into(space)
                if size > 0:
                    unhandled.extend(frames.filled(size))
                mark = None
                if size < 0:
                    self._on_end(self.end_reason or "the other side ended without a goodbye")
                    return False
                if size == 0:
                    break
                num_reads += 1
                if size < len(space) or not frames.is_in_large_frame:
                    break
            has_frames = bool(unhandled)
            while unhandled and self._state.ending is None:
                frame = unhandled[0]
                if frame.kind not in (REPLY, ERROR):
                    with Uninterrupted():
                        del unhandled[0]
                        self._handle(self._adopt(frame) if frame.parts else frame)
                    continue
                if frame.parts:
                    frame = unhandled[0] = self._adopt(frame)
                del unhandled[0]  # not popleft(), in which an interrupt would lose it
                try:
                    self._handle(frame)
                except BaseException:  # perhaps an interrupt before it was handled
                    if self._is_awaited(frame):
                        unhandled.appendleft(frame)
                    raise
            self._after_read()
        except WireError as error:
            self._on_malformed(error)
            return False
        except BaseException:
            if mark is not None:
                self._complete_read(mark)
            raise
        return (num_reads > 0 or has_frames) and self._state.ending is None

    def _complete_read(self, mark: Mark) -> None:
        """After an interrupt: take the bytes that have arrived since `mark`."""
        self.frames.reset(mark)
        self._unhandled.clear()
        try:
            size = self._wire.num_read - self.frames.num_filled
            self._unhandled.extend(self.frames.filled(size) if size else ())
        except WireError as error:
            self._on_malformed(error)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait_for(self, reply: Awaited, left_s: float | None) -> None:
        """Make progress towards a reply: read, write, or sleep while another thread reads. Callers loop."""
        if self._state.ending is not None:
            self.waiters.wait_unless(reply, reply.done, left_s)  # another thread is failing the open calls
        elif self._try_to_read_for(reply, left_s):
            pass
        elif self._writer.waits and self.may_block:
            self._write_beside_reader(left_s)
        else:
            self.waiters.wait_unless(reply, lambda: reply.done() or not self.lock.locked(), left_s)

    def _try_to_read_for(self, reply: Awaited, left_s: float | None) -> bool:
        """Read until the reply is done, or for a while. Return False if another thread reads."""
        has_read = self._read_alone(lambda: self._read_for(reply, left_s))
        if has_read and not self._hub.driven and reply.done() and self._writer.waits and self.may_block:
            self.flush(left_s)  # replies of handlers
        return has_read

    def _read_for(self, reply: Awaited, left_s: float | None) -> None:
        """Read while the hub's poll leaves this link alone."""
        driven = self._hub.driven
        try:
            if driven:
                self._writer.borrow_reading()
            while not reply.done() and self._state.ending is None:
                # Canceling the call cannot end the wait for bytes, so that ends by itself now and then.
                wait_s = _CHECK_S if left_s is None or left_s > _CHECK_S else left_s
                if self._unhandled or (self._wire.wait_readable if self._hub.driven else self._wait_for_bytes)(wait_s):
                    self._read_once()
                if left_s is not None:
                    break  # the caller checks the time
        finally:
            if driven:
                try:
                    self._writer.return_reading()
                except BaseException:  # an interrupt, perhaps before it was done
                    self._writer.return_reading()
                    raise

    def _wait_for_bytes(self, left_s: float | None) -> bool:
        if self._hub.driven or not self._writer.waits:
            return self._wire.wait_readable(left_s)
        ready = self._wire.wait_any(left_s)
        self._writer.drain()
        return ready

    def flush(self, within_s: float | None = None) -> None:
        """Block until the queue is written. Reads meanwhile, because the peer may be unable to read until then."""
        until_s = None if within_s is None else self._hub.clock.now_s() + within_s
        left_s = within_s
        while self._writer.waits and self._state.ending is None and (left_s is None or left_s > 0):
            try:
                has_read = self._read_alone(partial(self._wait_and_read, left_s))
            finally:
                self.waiters.wake_one()
            if has_read:
                self._writer.drain()
            else:
                self._write_beside_reader(left_s)
            left_s = None if until_s is None else until_s - self._hub.clock.now_s()

    def _wait_and_read(self, left_s: float | None) -> None:
        self._wire.wait_any(left_s)
        self._read_once()

    def _write_beside_reader(self, left_s: float | None) -> None:
        """Write while another thread reads; not for long, because that thread may stop."""
        self._writer.wait_for_room(_CHECK_S if left_s is None else min(_CHECK_S, left_s))
        self._writer.drain()

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the wire, which was hung up. If another thread reads, that woke it, and it closes the wire itself."""
        self._is_closing = True
        self._read_alone(self._writer.close)


_all: "weakref.WeakSet[Reader]" = weakref.WeakSet()


def may_wait_for(hub: Hub) -> bool:
    """Return True if this thread may wait for messages: it is not the hub's, nor in a callback of a reading thread.

    Searches all links, which is slow, but only used if there is no credit.
    """
    if hub.is_loop_thread:
        return False
    while True:
        try:
            return all(reader.reader_id != get_ident() for reader in list(_all))
        except RuntimeError:  # another thread has just made a link
            continue
