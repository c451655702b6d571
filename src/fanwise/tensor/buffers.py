"""Memory to receive arrays into, aligned so that every engine can adopt it without a copy.

Small buffers come from Python's allocator, large ones from mmap, whose pages are made on first write, so that
allocating a gigabyte takes microseconds. The memory lives as long as any view of it. A forked child gets its own copy.
"""

import contextlib
import ctypes
import mmap
import sys

_ALIGNMENT = 64
# Above this size, zero-filling a bytearray costs more than a system call.
_MMAP_FROM_BYTES = 256 * 1024
# Above this size, ask Linux for pages of 2 MiB: making small pages takes as long as receiving into them.
_HUGE_FROM_BYTES = 4 << 20


def aligned_buffer(size_bytes: int) -> memoryview:
    """Return writable zeroed memory that starts at a multiple of 64 bytes, which all engines accept without a copy.

    Args:
        size_bytes: number of bytes; may be zero.

    Returns:
        A one-dimensional view of bytes, which owns the memory.

    Raises:
        ValueError: `size_bytes` is negative.
        MemoryError: not enough memory.

    >>> len(aligned_buffer(1000))
    1000
    """
    if size_bytes < 0:
        raise ValueError(f"size_bytes must be at least 0, got {size_bytes!r}")
    memory = _allocate(size_bytes + _ALIGNMENT)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _ALIGNMENT
    return memoryview(memory)[start : start + size_bytes]


def _allocate(size_bytes: int) -> bytearray | mmap.mmap:
    if size_bytes < _MMAP_FROM_BYTES:
        return bytearray(size_bytes)
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, size_bytes)
        # The default is MAP_SHARED: a forked child would write into the arrays of its parent.
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"cannot allocate {size_bytes} bytes: {error}") from error
    if size_bytes >= _HUGE_FROM_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # the kernel was built without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
