"""The memory that the processes of a run share: one file without a name, which ends with the last of them.

    0           the control block: a few numbers for each process    control_block.py
    1 MiB ...   two boxes for each process, for messages             control_block.py
    1 TiB ...   gradients, as the steps of the run ask for them      shm_areas.py

The file is 1 EiB long and empty: only what was written takes memory. It is made by the process that starts the others,
and they open it through that process's entry in /proc, which the system allows to the same user only. There is no name
that could be left behind, and nothing to clean up after a kill.
"""

import mmap
import os
from typing import Literal

import torch
from torch import Tensor

from ...base.huge_pages import HUGE_PAGE_BYTES, FileMap

_SIZE_BYTES = 1 << 60

# Each process adds everything, or only its slice; "auto" takes whichever is quicker for the model.
AllReduceKind = Literal["auto", "one-shot", "two-shot"]


class SharedMemory:
    """See the module. `create` in the process that starts the others, `open` in these.

    Attributes:
        all_reduce: how gradients go through it.
    """

    def __init__(self, fd: int, path: str, all_reduce: AllReduceKind = "auto") -> None:
        self.path = path
        self.all_reduce = all_reduce
        self._fd = fd

    @classmethod
    def create(cls) -> "SharedMemory":
        fd = os.memfd_create("fanwise", os.MFD_CLOEXEC)
        os.ftruncate(fd, _SIZE_BYTES)
        return cls(fd, f"/proc/{os.getpid()}/fd/{fd}")

    @classmethod
    def open(cls, path: str, all_reduce: AllReduceKind = "auto") -> "SharedMemory":
        """Raises OSError when the process that made it is gone."""
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC), path, all_reduce)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def write(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:  # a write of more than 2 GiB comes in parts
            written = os.pwrite(self._fd, view, offset)
            offset, view = offset + written, view[written:]

    def map(self, offset: int, size: int, *, private: bool = False) -> FileMap:
        """Map a range that starts at a page. With `private`, what is written into it stays in this process.

        Raises:
            MemoryError: the range is beyond the end of the file.
        """
        if offset + size > _SIZE_BYTES:
            raise MemoryError(
                f"the steps of this run need more than {_SIZE_BYTES >> 40} TiB of addresses for their gradients.\n"
                f"Use fewer processes, or call run.step once and not in every epoch."
            )
        return FileMap(self._fd, size, offset, private=private)

    def close(self) -> None:
        """Mappings stay."""
        os.close(self._fd)


def bytes_of(mapping: FileMap) -> Tensor:
    """A mapping as a tensor of bytes, which holds it."""
    return torch.frombuffer(mapping.view, dtype=torch.uint8)


def pages(size: int) -> int:
    """`size` rounded up to whole pages: huge ones, if it is that long."""
    page = HUGE_PAGE_BYTES if size >= HUGE_PAGE_BYTES else mmap.PAGESIZE
    return -(-size // page) * page
