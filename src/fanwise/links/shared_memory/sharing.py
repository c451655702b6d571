"""Big buffers of one link through shared memory, when its peer is on this host.

    sender                                                     receiver
      OFFER, with the first big buffer, which is copied   -->
                                                          <--  INVITE: I can map what you send
      SEGMENT and its descriptor, before its first use    -->  mapped once
      copies a buffer into a part; names it in a frame    -->  hands the part out as writable memory, no copy
                                                          <--  RETURN: nothing refers to these parts any more
      DROPPED: this segment is used no more               -->  unmapped when the last array in it is gone

Descriptors are looked for only after an INVITE: a read that can take them costs more, and most links send small things.

A received part belongs to the receiver until the last array or view over it is gone. That is noticed by a weak
reference, whose callback may run on any thread in the middle of anything: it only appends to a deque, which is looked
at whenever the link has read something, and now and then. What is in use when this process forks may be read by the
child too, and is shared with it, as memory of torch's `share_memory_()` is: it is returned when that child has ended as
well, and all that it forked. The end of a pipe tells that: they hold its other end, and nobody writes.

Locks: a link's own, then the pool's, then the sender's.
"""

import contextlib
import itertools
import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...base.errors import WireError
from .. import frames
from ..frames import Buffer, Frame, Limits
from ..hub import Alarm, Hub
from ..sender import Sender
from ..transports.wires import SocketWire
from .segment_table import PAGE_BYTES, Part, Received, rounded
from .segments import SUPPORTED, Segment, SegmentPool, map_received, pool_bytes

if TYPE_CHECKING:
    import ctypes

# Smaller buffers are quicker through the socket.
SHARED_FROM_BYTES = 192 << 10
# Fewer bytes are returned with those that come later: a message for each would cost more than the copy.
_RETURNED_FROM_BYTES = 1 << 20
# How often to look for what is to be returned while nothing is read.
_LOOK_S = 0.5

_TWO, _ONE = struct.Struct("<QQ"), struct.Struct("<Q")
_numbers = itertools.count(1)


class Sharing:
    """The shared memory of one link, both ways."""

    def __init__(self, hub: Hub, wire: SocketWire, limits: Limits) -> None:
        self._hub = hub
        self._wire = wire
        self._sender: Sender | None = None
        self._lock = threading.Lock()
        self._ended = False
        self.num_sent_bytes = self.num_received_bytes = 0
        # What this side sends.
        self._number = next(_numbers)
        self._pool_bytes = pool_bytes(limits)
        self._pool: SegmentPool | None = None
        self._offered = False
        self._introduced: set[int] = set()
        # What it receives.
        self.is_invited = False
        self._received = Received(limits.mapped_bytes)
        self._segments: dict[int, Segment] = {}
        self._watches: dict[int, _Watch] = {}
        self._forks: dict[int, set[int]] = {}  # the reading end of the pipe to a fork -> the parts it may read
        self._forking: tuple[int, int] | None = None
        self._gone: deque[int] = deque()
        self._returning = threading.Lock()
        self._due: list[int] = []
        self._due_bytes = 0
        self._alarm = Alarm(hub, self._look)
        _all.add(self)

    def attach(self, sender: Sender) -> None:
        """What is sent for this goes by `sender`."""
        self._sender = sender

    def handle(self, frame: Frame) -> None:
        """A frame about shared memory. Raises `WireError` when it cannot be right."""
        if frame.kind == frames.OFFER:
            self._invite()
        elif frame.kind == frames.INVITE:
            self._accept()
        elif frame.kind == frames.SEGMENT:
            self._map(frame.head)
        elif frame.kind == frames.DROPPED:
            (segment,) = _unpacked(_ONE, frame.head)
            self._received.drop_segment(segment)
            self._segments.pop(segment, None)
        elif self._pool is not None and len(frame.head) % _ONE.size == 0:
            self._pool.give_back([part for (part,) in _ONE.iter_unpack(frame.head)], self._number)
        else:
            raise WireError(f"a return of {len(frame.head)} bytes came, for what was never shared.")

    # -- sending ---------------------------------------------------------------------------------------------------

    def wants(self, buffers: Sequence[memoryview]) -> bool:
        """Whether any of these is worth being shared."""
        return self._pool_bytes > 0 and any(buffer.nbytes >= SHARED_FROM_BYTES for buffer in buffers)

    def encode(self, kind: int, call_id: int, head: bytes, buffers: Sequence[memoryview]) -> list[Buffer]:
        """As `frames.encode`; what could be copied into shared memory may be changed at once."""
        parts: list[Part | None] = []
        if self._pool is None:
            self._offer()
        elif len(buffers) <= frames.SHARED_BUFFERS_MAX:
            parts = [self._copy(buffer) if buffer.nbytes >= SHARED_FROM_BYTES else None for buffer in buffers]
        if any(parts):
            return frames.encode_shared(kind, call_id, head, buffers, parts)
        return frames.encode(kind, call_id, head, buffers)

    def _offer(self) -> None:
        with self._lock:
            first, self._offered = not self._offered, True
        if first:
            self._put(frames.OFFER, b"")

    def _accept(self) -> None:
        with self._lock:
            if not self._offered or self._pool is not None:
                raise WireError("an invitation to share memory came, and nothing was offered.")
            if not self._ended:
                pool = SegmentPool.of(self._hub)
                pool.join(self._number, self._dropped)
                self._pool = pool

    def _copy(self, buffer: memoryview) -> Part | None:
        with self._lock:
            if self._ended or self._pool is None:
                return None
            placed = self._pool.place(buffer.nbytes, self._number, self._pool_bytes)
            if placed is None:
                return None
            part, segment = placed
            if part.segment not in self._introduced and not self._introduce(part.segment, segment.size_bytes):
                return None
        if part.fresh_bytes:
            end = part.offset + rounded(part.size_bytes, PAGE_BYTES)
            if not segment.acquire(end - part.fresh_bytes, part.fresh_bytes):
                self._pool.give_back([part.id], self._number)
                return None
        segment.write(part.offset, buffer)
        self.num_sent_bytes += part.size_bytes
        return part

    def _introduce(self, number: int, size_bytes: int) -> bool:
        """The peer gets the segment before any frame that names it: who sends such a frame took the lock after us.

        False: the pool is closed by now.
        """
        assert self._pool is not None, "it has the segment"
        fd = self._pool.descriptor(number)
        if fd is None:
            return False
        self._introduced.add(number)
        (frame,) = frames.encode(frames.SEGMENT, 0, _TWO.pack(number, size_bytes))
        assert self._sender is not None, "attached when the link was made"
        self._sender.put_with_descriptor(bytes(frame), fd, self._wire.write_with_descriptor)
        return True

    def _dropped(self, number: int) -> None:
        if number in self._introduced:
            self._introduced.discard(number)
            self._put(frames.DROPPED, _ONE.pack(number))

    def _put(self, kind: int, head: bytes) -> None:
        assert self._sender is not None, "attached when the link was made"
        self._sender.put(frames.encode(kind, 0, head), copied=False)

    # -- receiving -------------------------------------------------------------------------------------------------

    def _invite(self) -> None:
        if SUPPORTED and self._received.limit_bytes > 0 and not self.is_invited:
            self._wire.take_descriptors()
            self.is_invited = True
            self._put(frames.INVITE, b"")

    def _map(self, head: Buffer) -> None:
        number, size_bytes = _unpacked(_TWO, head)
        fd = self._wire.next_descriptor()
        if fd < 0:
            raise WireError("a shared segment was announced, and no descriptor came with it.")
        try:
            self._received.check_segment(number, size_bytes)
            self._segments[number] = map_received(fd, size_bytes)
            self._received.add_segment(number, size_bytes)
        finally:
            os.close(fd)

    def adopt(self, frame: Frame) -> Frame:
        """The frame with its shared buffers as memory. Raises `WireError` when they are not where they may be."""
        both = zip(frame.buffers, frame.parts, strict=True)
        buffers = [buffer if part is None else self._adopt(part) for buffer, part in both]
        self._alarm.set(self._hub.clock.now_s() + _LOOK_S)
        return frame._replace(buffers=buffers, parts=())

    def _adopt(self, part: Part) -> memoryview:
        fresh_from = self._received.take(part)
        segment = self._segments.get(part.segment)
        if segment is None:
            raise WireError("the link has just ended.")
        end = part.offset + part.size_bytes
        if fresh_from < end:
            segment.populate(fresh_from, end - fresh_from)
        array = segment.part(part.offset, part.size_bytes)
        self.num_received_bytes += part.size_bytes
        self._watches[part.id] = _Watch(array, part.id, self._gone)
        return memoryview(array).cast("B")

    def after_reading(self, *, between_frames: bool) -> None:
        """All that came has been handled. Raises `WireError` when descriptors came that no frame told of."""
        if between_frames and self._wire.has_descriptors:
            raise WireError("a descriptor came that nobody had announced.")
        if self._gone:
            self.send_returns(at_least_bytes=_RETURNED_FROM_BYTES)

    def send_returns(self, *, at_least_bytes: int = 0) -> None:
        """Tell the peer which of its parts nobody here uses any more, if they are worth a message."""
        with self._returning:
            with contextlib.suppress(IndexError):
                while True:
                    part_id = self._gone.popleft()
                    self._watches.pop(part_id, None)
                    if not self._is_read_by_fork(part_id):
                        self._due.append(part_id)
                        self._due_bytes += self._received.done(part_id)
            if self._ended or not self._due or self._due_bytes < at_least_bytes:
                return
            head = b"".join(map(_ONE.pack, self._due))
            self._due, self._due_bytes = [], 0
        self._put(frames.RETURN, head)

    def _look(self) -> None:
        self.send_returns()
        if (self._watches or self._forks) and not self._ended:
            self._alarm.set(self._hub.clock.now_s() + _LOOK_S)

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The link has ended. What was received stays with those who have it."""
        with self._lock:
            self._ended = True
            if self._pool is not None:
                self._pool.lose(self._number)
        self._alarm.cancel()
        self._watches, self._segments = {}, {}
        with self._returning:
            forks, self._forks = list(self._forks), {}
        for end in forks:
            self._hub.forget(end)
            os.close(end)

    # -- forks -----------------------------------------------------------------------------------------------------

    def close_fork(self) -> None:
        """In a forked child, where locks may be held by threads that are not there. Our end of the pipe stays open."""
        self._ended = True
        self._watches, self._segments = {}, {}
        for end in (*self._forks, *(self._forking or ())[:1]):
            os.close(end)
        self._forks, self._forking = {}, None

    def before_fork(self) -> None:
        """This process is about to fork: what is in use here may be in use there."""
        if self._watches and not self._ended:
            self._forking = os.pipe2(os.O_CLOEXEC)

    def after_fork(self) -> None:
        """It has forked, or could not: then the pipe ends at once."""
        ends, self._forking = self._forking, None
        if ends is None:
            return
        os.close(ends[1])
        with self._returning:
            is_over = self._ended
            if not is_over:
                self._forks[ends[0]] = set(self._watches)
        if is_over:
            os.close(ends[0])
        else:
            self._hub.watch(ends[0], partial(self._fork_ended, ends[0]))

    def _is_read_by_fork(self, part_id: int) -> bool:
        return any(part_id in parts for parts in self._forks.values())

    def _fork_ended(self, end: int, _events: int) -> None:
        with self._returning:
            parts = self._forks.pop(end, None)
        if parts is None:
            return
        self._hub.forget(end)
        os.close(end)
        self._gone.extend(part_id for part_id in parts if part_id not in self._watches)  # nobody here reads it either
        self.send_returns(at_least_bytes=_RETURNED_FROM_BYTES)
        self._alarm.set(self._hub.clock.now_s() + _LOOK_S)


def shared(sharing: Sharing | None) -> Sharing:
    """What a link has to share memory with. Raises `WireError` when it has none, and its peer thinks it has."""
    if sharing is None:
        raise WireError("a frame about shared memory came, and this link has none.")
    return sharing


class _Watch(weakref.ref["ctypes.Array[ctypes.c_ubyte]"]):
    """Notes when nothing refers to a part any more."""

    __slots__ = ("gone", "part_id")
    part_id: int
    gone: deque[int]

    def __new__(cls, array: "ctypes.Array[ctypes.c_ubyte]", part_id: int, gone: deque[int]) -> "_Watch":
        watch = super().__new__(cls, array, _note)
        watch.part_id, watch.gone = part_id, gone
        return watch

    def __init__(self, array: "ctypes.Array[ctypes.c_ubyte]", part_id: int, gone: deque[int]) -> None:
        """All is done in `__new__`; a weak reference's own takes other arguments."""


def _note(watch: "_Watch") -> None:
    # On any thread, inside any lock: nothing but this.
    watch.gone.append(watch.part_id)


def _unpacked(form: struct.Struct, head: Buffer) -> tuple[int, ...]:
    if len(head) != form.size:
        raise WireError(f"a frame about shared memory has {len(head)} bytes, expected {form.size}.")
    return form.unpack(head)


def _every() -> "list[Sharing]":
    while True:
        try:
            return list(_all)
        except RuntimeError:  # another thread has just made a link
            continue


def _before_fork() -> None:
    for sharing in _every():
        sharing.before_fork()


def _after_fork() -> None:
    for sharing in _every():
        sharing.after_fork()


_all: "weakref.WeakSet[Sharing]" = weakref.WeakSet()
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
