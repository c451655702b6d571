"""Shared segments: anonymous files that are mapped by the sender and the receiver of a link.

A segment can neither shrink nor grow, so a process with its descriptor cannot make its memory vanish below another
process. A receiver keeps it mapped as long as arrays refer to it, even after the end of the sender.

Writing to fresh memory takes ten times as long as to used memory, because the system zeroes each page first. New
segments are therefore filled with pages at once, huge ones where possible, and used again (`segment_table`).
"""

import _thread
import ctypes
import fcntl
import mmap
import os
import threading
import weakref

from ...base.errors import WireError
from ...base.huge_pages import FileMap
from ..frames import Limits
from ..hub import Hub

_LIMIT_BYTES = 4 << 30
_LIMIT_SEGMENTS = 4096  # a process may have 65,530 mappings
# One core writes at half the speed of the memory or less. Below this size, a thread costs more than it saves.
_TWO_THREADS_FROM_BYTES = 8 << 20

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW if hasattr(fcntl, "F_SEAL_SHRINK") else 0
SUPPORTED = hasattr(os, "memfd_create") and bool(_SEALS)


class Segment:
    """A mapped segment. Stays mapped while this object or one made by `buffer` exists. `fd` stays the caller's.

    Raises `OSError` if it cannot be mapped, `MemoryError` if there is no memory for a new one.
    """

    def __init__(self, fd: int, size_bytes: int, *, is_new: bool = False) -> None:
        self._map = FileMap(fd, size_bytes)
        self.size_bytes = size_bytes
        if is_new:
            self._map.collapse_pages(0, size_bytes)
        if not self._map.populate(0, size_bytes) and is_new:
            raise MemoryError(f"there is no memory for a shared segment of {size_bytes} bytes")

    def release(self) -> None:
        """Return the memory to the system, also for processes that have inherited the mapping by a fork."""
        self._map.advise(0, self.size_bytes, mmap.MADV_REMOVE)

    def write(self, data: memoryview) -> None:
        """Copy without the GIL if `data` is writable; with two threads if it is large and there are two CPUs."""
        if data.readonly:
            self._map.view[: data.nbytes] = data.cast("B")
            return
        source, target = ctypes.addressof(ctypes.c_char.from_buffer(data)), self._map.address
        if data.nbytes >= _TWO_THREADS_FROM_BYTES and len(os.sched_getaffinity(0)) > 1:
            _copy_with_two_threads(target, source, data.nbytes)
        else:
            ctypes.memmove(target, source, data.nbytes)

    def buffer(self, size_bytes: int) -> "ctypes.Array[ctypes.c_ubyte]":
        """Return the first bytes as an object that can be weakly referenced and keeps the segment mapped."""
        return (ctypes.c_ubyte * size_bytes).from_buffer(self._map.view)


def _copy_with_two_threads(target: int, source: int, size_bytes: int) -> None:
    """Copy. Neither return nor raise while the other thread writes: the memory may be reused then."""
    half, copied = size_bytes // 2, threading.Lock()

    def copy_second_half() -> None:
        try:
            ctypes.memmove(target + half, source + half, size_bytes - half)
        finally:
            copied.release()

    copied.acquire()
    try:
        _thread.start_new_thread(copy_second_half, ())  # takes half the time of `Thread.start`, which waits
    except RuntimeError:  # no thread can be started
        ctypes.memmove(target, source, size_bytes)
        return
    interrupt: BaseException | None = None
    try:
        ctypes.memmove(target, source, half)
    except BaseException as error:  # raised by a signal handler
        interrupt = error
    while True:
        try:
            copied.acquire()
            break
        except BaseException as error:  # as above
            interrupt = error
    if interrupt is not None:
        raise interrupt


def new_segment(size_bytes: int) -> tuple[Segment, int] | None:
    """Return a new segment and its descriptor, which is the caller's; None if there is no memory or descriptor."""
    fd = -1
    try:
        fd = os.memfd_create("fanwise", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return Segment(fd, size_bytes, is_new=True), fd
    except (OSError, MemoryError):
        if fd >= 0:
            os.close(fd)
        return None


def map_received(fd: int, size_bytes: int) -> Segment:
    """Map a segment of a peer. Raises `WireError` if the peer could shrink it, or it cannot be mapped."""
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(fd).st_size != size_bytes:
            raise WireError(f"a shared segment of {size_bytes} bytes is not sealed, or has another size.")
        return Segment(fd, size_bytes)
    except (OSError, ValueError, OverflowError) as error:
        raise WireError(f"a shared segment of {size_bytes} bytes could not be mapped: {error}.") from error


def limit_of(limits: Limits) -> int:
    """Return how many bytes the segments of a hub may have under these limits."""
    if not SUPPORTED:
        return 0
    if limits.pool_bytes is not None:
        return limits.pool_bytes
    return min(_LIMIT_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)


class SegmentBudget:
    """The segments that all links of a hub have together. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_bytes = self.num_segments = 0

    @staticmethod
    def of(hub: Hub) -> "SegmentBudget":
        return _budgets.get(hub) or _budgets.setdefault(hub, SegmentBudget())

    def take(self, size_bytes: int, limit_bytes: int) -> bool:
        """Return True if there may be one more segment, which is counted from now on."""
        with self._lock:
            if self.num_bytes + size_bytes > limit_bytes or self.num_segments >= _LIMIT_SEGMENTS:
                return False
            self.num_bytes += size_bytes
            self.num_segments += 1
            return True

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self.num_bytes -= size_bytes
            self.num_segments -= 1


_budgets: "weakref.WeakKeyDictionary[Hub, SegmentBudget]" = weakref.WeakKeyDictionary()
