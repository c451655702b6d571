"""Memory for one message after another: that of one to which nobody refers any more is given out again.

    buffer(size) --> memory that is kept and free, or new --> a view --> arrays over it ... all gone --> free

New pages cost a receiver more than to decrypt what comes into them. Whether memory is free is told by its references:
every view and every array over it has one.
"""

import mmap
import sys
import threading
from typing import Final, final

from ..tensor import aligned_buffer

# What is smaller comes from Python's own allocator, which keeps memory itself.
_FROM_BYTES: Final = 256 * 1024
# So much bigger than a message may be what it comes into: messages of nearly the same size share memory.
_SPARE_BYTES: Final = 64 * 1024


@final
class ReusedMemory:
    """See the module. What was made first is let go of first.

    Args:
        keep_bytes: at most, of all together, also while nobody uses them. What is bigger than a quarter is not kept.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._kept: list[mmap.mmap] = []
        self._lock = threading.Lock()
        self._unused = self._references([mmap.mmap(-1, 1)], 0)

    def buffer(self, size_bytes: int) -> memoryview:
        """As `fanwise.tensor.aligned_buffer`, but with any content. By any thread."""
        # In a fork another thread's lock is held for ever; then, as when another thread is here, there is new memory.
        if not _FROM_BYTES <= size_bytes <= self._keep_bytes // 4 or not self._lock.acquire(blocking=False):
            return aligned_buffer(size_bytes)
        try:
            for place in range(len(self._kept)):
                fits = 0 <= len(self._kept[place]) - size_bytes <= _SPARE_BYTES
                if fits and self._references(self._kept, place) == self._unused:
                    return memoryview(self._kept[place])[:size_bytes]
            view = aligned_buffer(size_bytes)
            if isinstance(view.obj, mmap.mmap):
                self._keep(view.obj)
            return view
        finally:
            self._lock.release()

    def _keep(self, whole: mmap.mmap) -> None:
        """Its first byte is aligned, as that of every page."""
        self._kept.append(whole)
        while sum(map(len, self._kept)) > self._keep_bytes:
            del self._kept[0]

    @staticmethod
    def _references(kept: list[mmap.mmap], place: int) -> int:
        return sys.getrefcount(kept[place])


received: Final = ReusedMemory(keep_bytes=16 << 20)
"""Of all links of this process: what big parts of frames come into."""
