"""Files in memory, mapped so that they can lie on pages of 2 MiB, and the system call that puts them there.

Linux gives memory that processes share on pages of 4 KiB, unless the administrator has asked for more. The first touch
of each costs a fault, which is most of what fresh memory costs, and copying through them is slower later. A program
may ask for a range to be gathered into pages of 2 MiB whatever the setting is (MADV_COLLAPSE, Linux 6.1). That of a
range which nobody has touched makes it, zeroed, and whoever maps the file at an address that suits has those pages as
well. Measured here, 48 MB: 65 to 80 ms by faults and 9 to 14 gathered; for the second process 30 ms and 0.05.

Where the kernel does not know it nothing is gathered, and all works on small pages.
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
    """madvise(2): 0 or the error's number. Not by `mmap.madvise`, which holds the GIL: this may take long."""
    return 0 if _libc.madvise(address, size_bytes, advice) == 0 else ctypes.get_errno()


def collapse(address: int, size_bytes: int) -> bool:
    """Gather whole huge pages of this process's memory. False: the system did not, or not all."""
    return advise(address, size_bytes, _COLLAPSE) == 0


class FileMap:
    """A range of a file, mapped as long as this object or something made from its `view` is in use.

    Attributes:
        view: its bytes, which can be written. size_bytes: how many.
        address: where they begin in this process: at a multiple of 2 MiB, if they are that many.
    """

    def __init__(self, fd: int, size_bytes: int, offset: int = 0, *, private: bool = False) -> None:
        """Raises OSError when it cannot be mapped. `private`: what is written stays in this process."""
        self.size_bytes = size_bytes
        spare = HUGE_PAGE_BYTES if size_bytes >= HUGE_PAGE_BYTES else 0
        # Room for it, which Python takes back when nobody uses it any more, and then the file in its place.
        room = mmap.mmap(-1, size_bytes + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(room))
        skipped = -begin % HUGE_PAGE_BYTES if spare else 0
        self.address = begin + skipped
        flags = (mmap.MAP_PRIVATE if private else mmap.MAP_SHARED) | _MAP_FIXED
        found = _libc.mmap(self.address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
        if found == _MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, f"{size_bytes} bytes of a file could not be mapped: {errno.errorcode.get(code, code)}")
        self.view = memoryview(room)[skipped : skipped + size_bytes]

    def advise(self, offset: int, size_bytes: int, advice: int) -> int:
        """madvise(2) for a part: 0 or the error's number."""
        return advise(self.address + offset, size_bytes, advice)

    def populate(self, offset: int, size_bytes: int) -> bool:
        """Get pages for a part, small ones if there are none yet: one call is quicker than faults. False: no memory."""
        # A kernel before 5.14 does not know this; there they come one by one.
        return self.advise(offset, size_bytes, _POPULATE_WRITE) in (0, errno.EINVAL)

    def collapse_pages(self, offset: int, size_bytes: int) -> None:
        """Have huge pages for a part and for what lies on the same ones, where the system can.

        What is there stays as it is, also while others read and write it.
        """
        first = offset // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        last = min(-(-(offset + size_bytes) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, self.size_bytes)
        for page in range(first, last - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES):
            # It gathers nothing where nothing is.
            if self.advise(page, mmap.PAGESIZE, _POPULATE_READ) != 0 or not collapse(
                self.address + page, HUGE_PAGE_BYTES
            ):
                return
