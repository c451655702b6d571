"""Memory to receive arrays into, aligned so that every engine can adopt it without a copy.

Knows nothing of arrays. Small buffers come from Python's own allocator; big ones straight from the operating
system, whose pages are made when they are first written, so that asking for a gigabyte costs microseconds.
The memory lives as long as any view of it, and is private to this process: a forked child has its own copy.
"""

import contextlib
import ctypes
import mmap
import sys

# Above this, filling with zeros (what bytearray does) costs more than a system call.
_MAP_FROM_BYTES = 256 * 1024
# From here on Linux is asked for pages of 2 MiB: to make a small one takes as long as to receive into it.
_HUGE_FROM_BYTES = 4 << 20


def aligned_buffer(size_bytes: int, alignment: int = 64) -> memoryview:
    """Writable memory of zeros whose first byte lies at a multiple of `alignment`.

    Args:
        size_bytes: how many bytes; zero is allowed.
        alignment: a power of two. 64 is what all engines accept without a copy.

    Returns:
        A one-dimensional view of bytes. It owns the memory.

    Raises:
        ValueError: `size_bytes` is negative, or `alignment` no power of two.
        MemoryError: the machine has no such piece of memory.

    >>> len(aligned_buffer(1000))
    1000
    """
    if size_bytes < 0:
        raise ValueError(f"size_bytes must be at least 0, got {size_bytes!r}")
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment must be a power of two, got {alignment!r}")
    whole = _allocate(size_bytes + alignment)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(whole)) % alignment
    return memoryview(whole)[start : start + size_bytes]


def _allocate(size_bytes: int) -> bytearray | mmap.mmap:
    if size_bytes < _MAP_FROM_BYTES:
        return bytearray(size_bytes)
    if size_bytes > sys.maxsize:
        raise MemoryError(f"{size_bytes} bytes are more than this machine can address")
    try:
        return _map_private(size_bytes)
    except OSError as error:
        raise MemoryError(f"the operating system has no {size_bytes} bytes: {error}") from error


def _map_private(size_bytes: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size_bytes)
    # Python's default is MAP_SHARED, in which a forked child would write into its parent's arrays.
    whole = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size_bytes >= _HUGE_FROM_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            whole.madvise(mmap.MADV_HUGEPAGE)
    return whole
