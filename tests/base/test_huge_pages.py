"""Files mapped where huge pages fit, and gathered into them."""

import gc
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanwise.base.huge_pages import HUGE_PAGE_BYTES, FileMap

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are Linux's")

SIZE_BYTES = 3 * HUGE_PAGE_BYTES + 5 * mmap.PAGESIZE


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("test")
    os.ftruncate(fd, 4 * SIZE_BYTES)
    yield fd
    os.close(fd)


def is_mapped(address: int) -> bool:
    """Whether this process has a file at this address."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "memfd:test" in line]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


def huge_bytes(mapping: FileMap) -> int:
    """How much of it this process has on huge pages."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, *rest = line.split()
        if "-" in key and not key.endswith(":"):
            start, end = (int(number, 16) for number in key.split("-"))
            found = start <= mapping.address < end
        elif found and key == "ShmemPmdMapped:":
            return int(rest[0]) * 1024
    return 0


@pytest.mark.parametrize("size_bytes", [2, mmap.PAGESIZE, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, SIZE_BYTES])
def test_two_maps_of_a_range_are_the_same_memory_and_a_private_one_is_not(fd: int, size_bytes: int) -> None:
    one, other, private = FileMap(fd, size_bytes), FileMap(fd, size_bytes), FileMap(fd, size_bytes, private=True)
    assert len(one.view) == one.size_bytes == size_bytes
    one.view[size_bytes - 1] = 7
    assert other.view[size_bytes - 1] == private.view[size_bytes - 1] == 7
    private.view[0] = 9
    assert one.view[0] == other.view[0] == os.pread(fd, 1, 0)[0] == 0


def test_an_offset_is_where_it_begins(fd: int) -> None:
    os.pwrite(fd, b"x", HUGE_PAGE_BYTES)
    assert FileMap(fd, SIZE_BYTES, HUGE_PAGE_BYTES).view[0] == ord("x")


def test_what_is_long_enough_begins_where_a_huge_page_can(fd: int) -> None:
    maps = [FileMap(fd, SIZE_BYTES) for _ in range(3)]
    assert [each.address % HUGE_PAGE_BYTES for each in maps] == [0, 0, 0]


def test_a_map_ends_with_the_last_that_uses_it(fd: int) -> None:
    mapping = FileMap(fd, SIZE_BYTES)
    address, part = mapping.address, mapping.view[5:6]
    del mapping
    assert is_mapped(address)
    part[0] = 3
    assert os.pread(fd, 1, 5) == b"\3"
    del part
    gc.collect()
    assert not is_mapped(address)


def test_what_cannot_be_mapped_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "only to be read"
    path.write_bytes(bytes(100))
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="100 bytes of a file could not be mapped: EACCES"):
            FileMap(fd, 100)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("offset", "size_bytes", "pages"),
    [
        (0, SIZE_BYTES, 3),
        (0, 1, 1),
        (HUGE_PAGE_BYTES - 1, 2, 2),
        (HUGE_PAGE_BYTES, HUGE_PAGE_BYTES, 1),
        (3 * HUGE_PAGE_BYTES, mmap.PAGESIZE, 0),
        (0, 0, 0),
    ],
)
def test_a_part_is_gathered_with_what_shares_its_pages(fd: int, offset: int, size_bytes: int, pages: int) -> None:
    mapping, other = FileMap(fd, SIZE_BYTES), FileMap(fd, SIZE_BYTES)
    mapping.view[0], mapping.view[SIZE_BYTES - 1] = 1, 2
    mapping.collapse_pages(0, 1)
    if huge_bytes(mapping) != HUGE_PAGE_BYTES:
        pytest.skip("this system gathers no shared memory")
    fresh = FileMap(fd, SIZE_BYTES, 4 * HUGE_PAGE_BYTES)
    fresh.collapse_pages(offset, size_bytes)
    assert huge_bytes(fresh) == pages * HUGE_PAGE_BYTES
    assert other.view[0] == 1 and other.view[SIZE_BYTES - 1] == 2
    other.populate(0, HUGE_PAGE_BYTES)
    assert huge_bytes(other) == HUGE_PAGE_BYTES


def test_gathering_loses_nothing_that_is_written_meanwhile(fd: int) -> None:
    mapping, other = FileMap(fd, SIZE_BYTES), FileMap(fd, SIZE_BYTES)
    written = range(0, SIZE_BYTES, 512)

    def write() -> None:
        for place in written:
            other.view[place] = 1 + place // 512 % 255

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        mapping.advise(0, SIZE_BYTES, mmap.MADV_DONTNEED)
        mapping.collapse_pages(0, SIZE_BYTES)
    writer.join()
    assert all(mapping.view[place] == 1 + place // 512 % 255 for place in written)


def test_populating_gets_memory_and_keeps_what_is_there(fd: int) -> None:
    mapping = FileMap(fd, SIZE_BYTES)
    mapping.view[mmap.PAGESIZE] = 4
    assert mapping.populate(0, 3 * mmap.PAGESIZE)
    assert os.fstat(fd).st_blocks * 512 == 3 * mmap.PAGESIZE
    assert mapping.view[mmap.PAGESIZE] == 4
