"""Big buffers of one link through shared memory, when the peer is on this host.

    sender                                                     receiver
      SEGMENT and its descriptor, before its first use    -->  maps it
      copies a buffer into it; names it in a frame        -->  hands it out as writable memory, without a copy
                                                          <--  RETURN: nothing refers to the buffer any more
      uses it again for the next buffer of its size, or
      DROPPED: after 10 s without use                     -->  unmaps it

A weak reference tells when the last array or view of a received buffer is gone. Its callback may run on any thread in
the middle of anything, so it only appends to a deque, which is read after the link has received something, and every
half second. A buffer that was in use during a fork may be read by the child for as long as it lives, as memory of
torch's `share_memory_()` is. Its segment is returned as not reusable, and the sender drops it.

Locks: `_lock` is held before the writer's.
"""

import contextlib
import math
import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...base.errors import WireError
from .. import frames
from ..frames import Buffer, Frame, FrameReader, Limits
from ..hub import Alarm, Hub
from ..transports.wires import SocketWire
from ..writer import Writer
from .segment_table import ReceivedSegments, SegmentTable, SharedBuffer, segment_bytes_for
from .segments import Segment, SegmentBudget, limit_of, map_received, new_segment

if TYPE_CHECKING:
    import ctypes

# Smaller buffers are faster through the socket.
SHARED_FROM_BYTES = 192 << 10
# Fewer bytes are returned together with later ones: a message for each would cost more than the copy.
_RETURNED_FROM_BYTES = 1 << 20
_RETURN_INTERVAL_S = 0.5
_IDLE_S = 10.0

_SEGMENT, _DROPPED, _RETURNED = struct.Struct("<QQ"), struct.Struct("<Q"), struct.Struct("<Q?")


class Sharing:
    """The shared memory of one link, in both directions."""

    def __init__(self, hub: Hub, wire: SocketWire, limits: Limits) -> None:
        self._hub = hub
        self._wire = wire
        self._writer: Writer | None = None
        self._lock = threading.Lock()
        self._has_ended = False
        self.num_sent_bytes = self.num_received_bytes = 0
        # Sending.
        self._limit_bytes = limit_of(limits)
        self._budget = SegmentBudget.of(hub)
        self._table = SegmentTable()
        self._sent: dict[int, Segment] = {}
        self._idle_alarm = Alarm(hub, self._drop_idle)
        # Receiving.
        self._received = ReceivedSegments(limits.mapped_bytes)
        self._mapped: dict[int, Segment] = {}
        self._watches: dict[int, _Watch] = {}
        self._forked: set[int] = set()  # segments that were in use during a fork
        self._unused: deque[int] = deque()
        self._returning = threading.Lock()
        self._due: list[int] = []
        self._due_bytes = 0
        self._return_alarm = Alarm(hub, self._return_all)
        _all.add(self)

    def attach(self, writer: Writer) -> None:
        """Send frames by `writer`."""
        self._writer = writer

    def handle(self, frame: Frame) -> None:
        """Handle a frame about shared memory. Raises `WireError` if it cannot be right."""
        if frame.kind == frames.SEGMENT:
            self._map(frame.head)
        elif frame.kind == frames.DROPPED:
            (segment,) = _unpacked(_DROPPED, frame.head)
            self._received.drop(segment)
            self._mapped.pop(segment, None)
            self._forked.discard(segment)
        elif len(frame.head) % _RETURNED.size == 0:
            self._give_back(list(_RETURNED.iter_unpack(frame.head)))
        else:
            raise WireError(f"a return of {len(frame.head)} bytes came, which is no multiple of {_RETURNED.size}.")

    # -- sending ---------------------------------------------------------------------------------------------------

    def wants(self, buffers: Sequence[memoryview]) -> bool:
        """Return True if any of the buffers is large enough to be shared."""
        return self._limit_bytes > 0 and any(buffer.nbytes >= SHARED_FROM_BYTES for buffer in buffers)

    def encode(self, kind: int, call_id: int, head: bytes, buffers: Sequence[memoryview]) -> list[Buffer]:
        """As `frames.encode`. Buffers that were copied into shared memory may be changed at once."""
        if len(buffers) > frames.SHARED_BUFFERS_MAX:
            return frames.encode(kind, call_id, head, buffers)
        shared = [self._copy(buffer) if buffer.nbytes >= SHARED_FROM_BYTES else None for buffer in buffers]
        if not any(shared):  # there is no memory
            return frames.encode(kind, call_id, head, buffers)
        return frames.encode_shared(kind, call_id, head, buffers, shared)

    def _copy(self, buffer: memoryview) -> SharedBuffer | None:
        with self._lock:
            if self._has_ended:
                return None
            number = self._table.take(buffer.nbytes)
            segment = self._sent[number] if number is not None else None
        if number is None or segment is None:
            new = self._add_segment(segment_bytes_for(buffer.nbytes))
            if new is None:
                return None
            number, segment = new
        try:
            segment.write(buffer)
        except BaseException:  # a signal handler has raised it
            self._give_back([(number, True)])
            raise
        self.num_sent_bytes += buffer.nbytes
        return SharedBuffer(number, buffer.nbytes)

    def _add_segment(self, size_bytes: int) -> tuple[int, Segment] | None:
        """Make a segment and announce it to the peer. None: there is no memory, or the link has ended."""
        if not self._budget.take(size_bytes, self._limit_bytes):
            self._drop_idle(idle_s=0.0)
            if not self._budget.take(size_bytes, self._limit_bytes):
                return None
        new = new_segment(size_bytes)  # without the lock: this may take long
        if new is None:
            self._budget.give_back(size_bytes)
            return None
        segment, fd = new
        with self._lock:
            if self._has_ended:
                self._budget.give_back(size_bytes)
                os.close(fd)
                return None
            number = self._table.add(size_bytes)
            self._sent[number] = segment
            assert self._writer is not None, "attached when the link was made"
            (frame,) = frames.encode(frames.SEGMENT, 0, _SEGMENT.pack(number, size_bytes))
            self._writer.put_with_descriptor(bytes(frame), fd, self._wire.write_with_descriptor)
        return number, segment

    def _give_back(self, returned: Sequence[tuple[int, bool]]) -> None:
        now_s = self._hub.clock.now_s()
        with self._lock:
            dropped = [n for n, reusable in returned if self._table.give_back(n, now_s, reusable=reusable) is not None]
            self._drop(dropped)
        self._drop_idle()

    def _drop_idle(self, idle_s: float = _IDLE_S) -> None:
        """Drop the segments that were not used for `idle_s`."""
        now_s = self._hub.clock.now_s()
        with self._lock:
            idle = self._table.remove_idle(now_s - idle_s)
            for segment in idle:
                self._sent[segment].release()
            self._drop(idle)
            has_free = self._table.has_free
        if has_free:
            self._idle_alarm.set(now_s + _IDLE_S)

    def _drop(self, segments: Sequence[int]) -> None:
        """Forget segments that the receiver does not use. With the lock held."""
        for number in segments:
            self._budget.give_back(self._sent.pop(number).size_bytes)
            self._put(frames.DROPPED, _DROPPED.pack(number))

    def _put(self, kind: int, head: bytes) -> None:
        assert self._writer is not None, "attached when the link was made"
        self._writer.put(frames.encode(kind, 0, head), copied=False)

    # -- receiving -------------------------------------------------------------------------------------------------

    def _map(self, head: Buffer) -> None:
        number, size_bytes = _unpacked(_SEGMENT, head)
        fd = self._wire.next_descriptor()
        if fd < 0:
            raise WireError("a shared segment was announced, and no descriptor came with it.")
        try:
            self._received.add(number, size_bytes)
            self._mapped[number] = map_received(fd, size_bytes)
        finally:
            os.close(fd)

    def adopt(self, frame: Frame) -> Frame:
        """Return the frame with its shared buffers as memory. Raises `WireError` if they do not fit their segments."""
        both = zip(frame.buffers, frame.parts, strict=True)
        try:
            buffers = [buffer if shared is None else self._adopt(shared) for buffer, shared in both]
            self._return_alarm.set(self._hub.clock.now_s() + _RETURN_INTERVAL_S)
            return frame._replace(buffers=buffers, parts=())
        except WireError:
            raise
        except BaseException:  # an interrupt: the frame is adopted again
            for shared in frame.parts:
                if shared is not None:
                    self._watches.pop(shared.segment, None)
                    self._received.forget(shared.segment)
            raise

    def _adopt(self, shared: SharedBuffer) -> memoryview:
        self._received.take(shared)
        segment = self._mapped.get(shared.segment)
        if segment is None:
            raise WireError("the link has just ended.")
        array = segment.buffer(shared.size_bytes)
        self.num_received_bytes += shared.size_bytes
        self._watches[shared.segment] = _Watch(array, shared.segment, self._unused)
        return memoryview(array).cast("B")

    def after_reading(self, frames: FrameReader) -> None:
        """Call this after all received frames were handled. Raises `WireError` if a descriptor was not announced."""
        if self._wire.descriptors and frames.is_between_frames:
            raise WireError("a descriptor came that nobody had announced.")
        if self._unused:
            self.send_returns(at_least_bytes=_RETURNED_FROM_BYTES)

    def send_returns(self, *, at_least_bytes: int = 0) -> None:
        """Return the segments of unused buffers, if these have at least this number of bytes."""
        with self._returning:
            with contextlib.suppress(IndexError):
                while True:
                    segment = self._unused.popleft()
                    self._watches.pop(segment, None)
                    self._due.append(segment)
                    self._due_bytes += self._received.done(segment)
            if self._has_ended or not self._due or self._due_bytes < at_least_bytes:
                return
            head = b"".join(_RETURNED.pack(segment, segment not in self._forked) for segment in self._due)
            self._due, self._due_bytes = [], 0
        self._put(frames.RETURN, head)

    def _return_all(self) -> None:
        self.send_returns()
        if self._watches and not self._has_ended:
            self._return_alarm.set(self._hub.clock.now_s() + _RETURN_INTERVAL_S)

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The link has ended. Received buffers stay usable."""
        with self._lock:
            self._has_ended = True
            for number in self._table.remove_idle(math.inf):
                self._sent[number].release()
            for segment in self._sent.values():
                self._budget.give_back(segment.size_bytes)
            self._table, self._sent = SegmentTable(), {}
        self._idle_alarm.cancel()
        self._return_alarm.cancel()
        self._watches, self._mapped = {}, {}

    def close_fork(self) -> None:
        """Free the memory in a forked child, where locks may be held by threads that do not exist."""
        self._has_ended = True
        self._watches, self._mapped, self._sent = {}, {}, {}

    def note_fork(self) -> None:
        """A child may read the buffers that are in use now."""
        self._forked.update(self._watches)


def shared(sharing: Sharing | None) -> Sharing:
    """Return the shared memory of a link. Raises `WireError` if it has none, and the peer has sent a frame about it."""
    if sharing is None:
        raise WireError("a frame about shared memory came, and this link has none.")
    return sharing


class _Watch(weakref.ref["ctypes.Array[ctypes.c_ubyte]"]):
    """Notes when nothing refers to the buffer of a segment any more."""

    __slots__ = ("segment", "unused")
    segment: int
    unused: deque[int]

    def __new__(cls, array: "ctypes.Array[ctypes.c_ubyte]", segment: int, unused: deque[int]) -> "_Watch":
        watch = super().__new__(cls, array, _note)
        watch.segment, watch.unused = segment, unused
        return watch

    def __init__(self, array: "ctypes.Array[ctypes.c_ubyte]", segment: int, unused: deque[int]) -> None:
        """Does nothing: the constructor of a weak reference takes other arguments."""


def _note(watch: "_Watch") -> None:
    # On any thread, possibly with any lock held: do nothing else here.
    watch.unused.append(watch.segment)


def _unpacked(layout: struct.Struct, head: Buffer) -> tuple[int, ...]:
    if len(head) != layout.size:
        raise WireError(f"a frame about shared memory has {len(head)} bytes, expected {layout.size}.")
    return layout.unpack(head)


def _note_fork() -> None:
    while True:
        try:
            sharings = list(_all)
            break
        except RuntimeError:  # another thread has just made a link
            continue
    for sharing in sharings:
        sharing.note_fork()


_all: "weakref.WeakSet[Sharing]" = weakref.WeakSet()
os.register_at_fork(before=_note_fork, after_in_parent=_note_fork)
