"""Segments of shared memory, and the pool of those that the links of one hub send in.

Fresh memory is what costs: the system zeroes each page when it is first written, which takes ten times as long as
copying to where one has written before. So a pool keeps its segments, and parts that come back are used again, the
lowest first. What was not needed for a while goes back to the system. Which part is whose is decided in
`segment_table`; who gets to know of it, in `sharing`.

A segment is an anonymous file that can neither shrink nor grow: nobody who has it can make it vanish below another.
Its receivers keep it mapped as long as they have arrays in it, whatever becomes of the sender.

Locks: the pool's is held for moments. Copying holds none, nor the GIL.
"""

import _thread
import ctypes
import fcntl
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...base.errors import WireError
from ...base.huge_pages import FileMap
from ..frames import Limits
from ..hub import Alarm, Hub
from .segment_table import Part, SegmentTable

SEGMENT_BYTES = 256 << 20
_POOL_BYTES_MAX = 4 << 30
# Memory that nobody needed for so long goes back to the system.
_IDLE_S = 10.0

# One core writes half as fast as the memory can take it, or slower; below this, a thread costs more than it brings.
_BY_TWO_FROM_BYTES = 8 << 20

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW if hasattr(fcntl, "F_SEAL_SHRINK") else 0
SUPPORTED = hasattr(os, "memfd_create") and bool(_SEALS)
_REMOVE = 9  # of madvise, which `mmap` has not everywhere


class Segment:
    """One segment, mapped here as long as this object or a part of it is in use: somebody may just be copying.

    `fd` stays the caller's.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._map = FileMap(fd, size_bytes)
        self.size_bytes = size_bytes

    def acquire(self, offset: int, size_bytes: int) -> bool:
        """Get memory for pages that have none, on huge pages where the system can. False: there is none."""
        self._map.collapse_pages(offset, size_bytes)
        return self._map.populate(offset, size_bytes)

    def populate(self, offset: int, size_bytes: int) -> bool:
        """Map pages that have memory: one call is quicker than a fault for each."""
        return self._map.populate(offset, size_bytes)

    def release(self, offset: int, size_bytes: int) -> None:
        """Give the memory of these pages back to the system; they are zeros then, for all who have them mapped."""
        self._map.advise(offset, size_bytes, _REMOVE)

    def write(self, offset: int, data: memoryview) -> None:
        """Copy, without the GIL where that is possible; much of it by two threads, where this process has two CPUs."""
        if data.readonly:
            self._map.view[offset : offset + data.nbytes] = data.cast("B")
            return
        source, target = ctypes.addressof(ctypes.c_char.from_buffer(data)), self._map.address + offset
        if data.nbytes >= _BY_TWO_FROM_BYTES and len(os.sched_getaffinity(0)) > 1:
            _copy_by_two(target, source, data.nbytes)
        else:
            ctypes.memmove(target, source, data.nbytes)

    def part(self, offset: int, size_bytes: int) -> "ctypes.Array[ctypes.c_ubyte]":
        """Memory that can be referred to weakly; it keeps the segment mapped."""
        return (ctypes.c_ubyte * size_bytes).from_buffer(self._map.view, offset)


def _copy_by_two(target: int, source: int, size_bytes: int) -> None:
    """Copy; does not return, or raise, while another thread still writes: the memory may be somebody else's then."""
    half, copied = size_bytes // 2, threading.Lock()

    def copy_second() -> None:
        try:
            ctypes.memmove(target + half, source + half, size_bytes - half)
        finally:
            copied.release()

    copied.acquire()
    try:
        _thread.start_new_thread(copy_second, ())  # half the time of `Thread.start`, which waits for its beginning
    except RuntimeError:  # no more threads may be
        ctypes.memmove(target, source, size_bytes)
        return
    interrupt: BaseException | None = None
    try:
        ctypes.memmove(target, source, half)
    except BaseException as error:  # what a signal's handler raised
        interrupt = error
    while True:
        try:
            copied.acquire()
            break
        except BaseException as error:  # as above
            interrupt = error
    if interrupt is not None:
        raise interrupt


def map_received(fd: int, size_bytes: int) -> Segment:
    """Map what a peer has sent. Raises `WireError` when it could be cut short below us, or cannot be mapped."""
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(fd).st_size != size_bytes:
            raise WireError(f"a shared segment of {size_bytes} bytes is not sealed, or has another size.")
        return Segment(fd, size_bytes)
    except (OSError, ValueError, OverflowError) as error:
        raise WireError(f"a shared segment of {size_bytes} bytes could not be mapped: {error}.") from error


def pool_bytes(limits: Limits) -> int:
    """Up to where the pool may grow under these limits."""
    if not SUPPORTED:
        return 0
    if limits.pool_bytes is not None:
        return limits.pool_bytes
    return min(_POOL_BYTES_MAX, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)


class Placed(NamedTuple):
    """Where something may be written."""

    part: Part
    segment: Segment


class SegmentPool:
    """The segments that the links of one hub send in. Get it by `SegmentPool.of(hub)`; it ends with the hub."""

    def __init__(self, hub: Hub, *, segment_bytes: int = SEGMENT_BYTES, idle_s: float = _IDLE_S) -> None:
        self._hub = hub
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._table = SegmentTable(segment_bytes)
        self._segments: dict[int, tuple[Segment, int]] = {}
        self._on_drop: dict[int, Callable[[int], None]] = {}
        self._alarm = Alarm(hub, self._ring)
        self._tick_s: float | None = None
        self._closed = False
        hub.close_in_fork(self)

    @staticmethod
    def of(hub: Hub) -> "SegmentPool":
        """The pool of this hub."""
        return _pools.get(hub) or _pools.setdefault(hub, SegmentPool(hub))

    def join(self, holder: int, on_drop: Callable[[int], None]) -> None:
        """From now on `on_drop(segment)` is called for each segment that is dropped, with the pool's lock held."""
        with self._lock:
            self._on_drop[holder] = on_drop

    def place(self, size_bytes: int, holder: int, limit_bytes: int) -> Placed | None:
        """A part for `holder`. None: there is no room, and the pool may not grow beyond `limit_bytes`."""
        with self._lock:
            if self._closed:
                return None
            part = self._table.place(size_bytes, holder)
            if part is None and self._grow(size_bytes, limit_bytes):
                part = self._table.place(size_bytes, holder)
            return None if part is None else Placed(part, self._segments[part.segment][0])

    def descriptor(self, segment: int) -> int | None:
        """A descriptor of this segment, from now on the caller's. None: the pool has none of that number any more.

        A copy, made while nobody can close the pool's own: its number might be another file's a moment later.
        """
        with self._lock:
            return os.dup(self._segments[segment][1]) if segment in self._segments else None

    def give_back(self, part_ids: Sequence[int], holder: int) -> None:
        """The holder uses them no more."""
        with self._lock:
            if not self._closed:
                self._drop(self._table.give_back(part_ids, holder))
                self._tick_if_due()

    def lose(self, holder: int) -> None:
        """The holder can return nothing any more."""
        with self._lock:
            self._on_drop.pop(holder, None)
            if not self._closed:
                self._drop(self._table.lose(holder))

    def close(self) -> None:
        """Give all back. What receivers have mapped stays theirs."""
        with self._lock:
            self._closed = True
            self._alarm.cancel()
            self._on_drop.clear()
            self._drop(list(self._segments))
        _pools.pop(self._hub, None)

    def close_fork(self) -> None:
        """In a forked child: it has copies of the descriptors, and never sends."""
        self._closed = True
        self._on_drop.clear()
        self._drop(list(self._segments))

    def _grow(self, size_bytes: int, limit_bytes: int) -> bool:
        grown = self._table.grow(size_bytes, limit_bytes)
        if grown is None:
            return False
        try:
            self._segments[grown[0]] = _new_segment(grown[1])
        except OSError:  # no memory, or no descriptor: the socket needs neither
            self._table.forget(grown[0])
            return False
        return True

    def _drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            os.close(self._segments.pop(number)[1])
            for tell in self._on_drop.values():
                tell(number)

    def _ring(self) -> None:
        with self._lock:
            if not self._closed:
                self._tick_if_due()

    def _tick_if_due(self) -> None:
        """Also by whoever comes by: where no hub runs, no alarm rings."""
        now_s = self._hub.clock.now_s()
        if self._tick_s is not None and now_s >= self._tick_s:
            self._tick_s = None
            for number, offset, size_bytes in self._table.tick():
                self._segments[number][0].release(offset, size_bytes)
        if self._tick_s is None and self._table.has_idle:
            self._tick_s = now_s + self._idle_s
            self._alarm.set(self._tick_s)


def _new_segment(size_bytes: int) -> tuple[Segment, int]:
    fd = os.memfd_create("fanwise", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        segment = Segment(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    return segment, fd


_pools: "weakref.WeakKeyDictionary[Hub, SegmentPool]" = weakref.WeakKeyDictionary()
