"""The memory that the CPU ranks of one machine and their supervisor share: one anonymous file.

    0           the control block: a few numbers for each rank       control_block.py
    1 MiB ...   two mailboxes for each rank                          control_block.py
    1 TiB ...   gradients, parameters and optimizer state of steps   shm_areas.py

The file is 1 EiB long and sparse: only written pages take memory. The supervisor creates it, and the ranks open it
through the supervisor's entry in /proc, which the system allows only to processes of the same user. The file has no
name, and its memory is freed when the last process ends.
"""

import mmap
import os
from typing import Literal

import torch
from torch import Tensor

from ...base.huge_pages import HUGE_PAGE_BYTES, FileMap

_SIZE_BYTES = 1 << 60

# The transport for gradients, see shm_transports.py. "auto" chooses by the size of the model.
AllReduceKind = Literal["auto", "one-shot", "two-shot"]


class SharedMemory:
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
        """Open the memory of another process. Raises OSError if that process has ended."""
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC), path, all_reduce)

    def read(self, offset: int, size_bytes: int) -> bytes:
        return os.pread(self._fd, size_bytes, offset)

    def write(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:  # one system call writes at most 2 GiB
            written = os.pwrite(self._fd, view, offset)
            offset, view = offset + written, view[written:]

    def map(self, offset: int, size_bytes: int, *, private: bool = False) -> FileMap:
        """Map a range from a multiple of the page size on. `private`: keep writes of this process in this process."""
        if offset + size_bytes > _SIZE_BYTES:
            raise MemoryError(
                f"the steps of this run need more than {_SIZE_BYTES >> 40} TiB of addresses for their gradients.\n"
                f"Use fewer processes, or call run.step once and not in every epoch."
            )
        return FileMap(self._fd, size_bytes, offset, private=private)

    def close(self) -> None:
        """Close the file. Ranges that are mapped stay mapped."""
        os.close(self._fd)


def bytes_of(mapping: FileMap) -> Tensor:
    """Return a tensor of the mapped bytes. The range stays mapped as long as the tensor exists."""
    return torch.frombuffer(mapping.view, dtype=torch.uint8)


def pages(size_bytes: int) -> int:
    """Round up to whole pages, or to whole huge pages if the size is at least one of these."""
    page = HUGE_PAGE_BYTES if size_bytes >= HUGE_PAGE_BYTES else mmap.PAGESIZE
    return -(-size_bytes // page) * page
