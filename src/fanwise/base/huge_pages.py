"""Mapped files on pages of 2 MiB, by madvise(MADV_COLLAPSE) of Linux 6.1.

Linux gives shared memory in pages of 4 KiB by default. The first access to each page is a fault, which is most of the
cost of new memory, and copies through small pages are slower. For 48 MB: 65 to 80 ms with faults, 9 to 14 ms with
MADV_COLLAPSE, and 0.05 instead of 30 ms for a second process. Older kernels use small pages.
"""

import ctypes
import errno
import mmap
import sys

HUGE_PAGE_BYTES = 2 << 20
_POPULATE_READ, _POPULATE_WRITE, _COLLAPSE = 22, 23, 25  # of madvise(2); not all are in `mmap`
_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value

if sys.platform != "win32":
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    _libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    _libc.mmap.restype = ctypes.c_void_p


def advise(address: int, size_bytes: int, advice: int) -> int:
    """Call madvise(2), and return 0 or the errno. Unlike `mmap.madvise`, releases the GIL: a call may take long."""
    return 0 if _libc.madvise(address, size_bytes, advice) == 0 else ctypes.get_errno()


def collapse(address: int, size_bytes: int) -> bool:
    """Move memory of this process to huge pages. Return False if the kernel did not, or did only a part."""
    return advise(address, size_bytes, _COLLAPSE) == 0


class FileMap:
    """A mapped range of a file. The mapping lives as long as this object, or an object made from its `view`.

    Attributes:
        view: the bytes, writable.
        size_bytes: number of bytes.
        address: of the first byte in this process. A multiple of 2 MiB if the range is at least as large.
    """

    def __init__(self, fd: int, size_bytes: int, offset: int = 0, *, private: bool = False) -> None:
        """Raise OSError if mmap(2) fails. `private`: other processes do not see writes."""
        self.size_bytes = size_bytes
        spare = HUGE_PAGE_BYTES if size_bytes >= HUGE_PAGE_BYTES else 0
        # An anonymous mapping owns the address range, and Python frees it. The file is mapped over it.
        room = mmap.mmap(-1, size_bytes + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(room))
        skipped = -begin % HUGE_PAGE_BYTES if spare else 0
        self.address = begin + skipped
        flags = (mmap.MAP_PRIVATE if private else mmap.MAP_SHARED) | _MAP_FIXED
        result = _libc.mmap(self.address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
        if result == _MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, f"{size_bytes} bytes of a file could not be mapped: {errno.errorcode.get(code, code)}")
        self.view = memoryview(room)[skipped : skipped + size_bytes]

    def advise(self, offset: int, size_bytes: int, advice: int) -> int:
        """Call madvise(2) for a part, and return 0 or the errno."""
        return advise(self.address + offset, size_bytes, advice)

    def populate(self, offset: int, size_bytes: int) -> bool:
        """Allocate pages for a part in one call, which is faster than faults. Return False if memory is exhausted."""
        # Kernels before 5.14 return EINVAL, and allocate the pages on access.
        return self.advise(offset, size_bytes, _POPULATE_WRITE) in (0, errno.EINVAL)

    def collapse_pages(self, offset: int, size_bytes: int) -> None:
        """Move a part, rounded to whole pages, to huge pages if the kernel can. Safe while in use."""
        first = offset // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        last = min(-(-(offset + size_bytes) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, self.size_bytes)
        for page in range(first, last - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES):
            # MADV_COLLAPSE needs at least one allocated page.
            if self.advise(page, mmap.PAGESIZE, _POPULATE_READ) != 0 or not collapse(
                self.address + page, HUGE_PAGE_BYTES
            ):
                return
