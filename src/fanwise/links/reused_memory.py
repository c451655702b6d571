"""Memory for received messages that is used again when nothing refers to it any more.

    buffer(size) --> free memory, or new memory --> a view --> arrays over it ... all gone --> free

Fresh pages cost a receiver more than decrypting what arrives in them: 1 MiB over TLS takes 1.9 ms of processor time
with this module and 2.7 without. Memory is free if its reference count is that of an unused one, because every view and
array over it holds a reference.
"""

import mmap
import sys
import threading
from typing import Final, final

from ..tensor import aligned_buffer

# Smaller buffers come from Python's allocator, which keeps memory itself.
_MIN_BYTES: Final = 256 * 1024
# Memory may be this much larger than a message, so that messages of nearly the same size share it.
_SPARE_BYTES: Final = 64 * 1024


@final
class ReusedMemory:
    """See the module. The oldest memory is freed first.

    Args:
        keep_bytes: limit of all memory together, used or not. Buffers of more than a quarter are not kept.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._kept: list[mmap.mmap] = []
        self._lock = threading.Lock()
        self._unused = self._references([mmap.mmap(-1, 1)], 0)

    def buffer(self, size_bytes: int) -> memoryview:
        """As `fanwise.tensor.aligned_buffer`, with arbitrary contents. Thread-safe."""
        # The lock may be held for ever in a fork, or by another thread for a moment: use new memory then.
        if not _MIN_BYTES <= size_bytes <= self._keep_bytes // 4 or not self._lock.acquire(blocking=False):
            return aligned_buffer(size_bytes)
        try:
            for i in range(len(self._kept)):
                fits = 0 <= len(self._kept[i]) - size_bytes <= _SPARE_BYTES
                if fits and self._references(self._kept, i) == self._unused:
                    return memoryview(self._kept[i])[:size_bytes]
            view = aligned_buffer(size_bytes)
            if isinstance(view.obj, mmap.mmap):
                self._keep(view.obj)
            return view
        finally:
            self._lock.release()

    def _keep(self, memory: mmap.mmap) -> None:
        self._kept.append(memory)
        while sum(map(len, self._kept)) > self._keep_bytes:
            del self._kept[0]

    @staticmethod
    def _references(memories: list[mmap.mmap], i: int) -> int:
        return sys.getrefcount(memories[i])


received: Final = ReusedMemory(keep_bytes=16 << 20)
"""Memory of all links of this process for large parts of frames."""
