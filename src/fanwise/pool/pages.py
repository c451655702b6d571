"""Huge pages for the warm process, because most of a fork's time is spent copying page tables.

A process with torch has about 220 MB of anonymous memory in 4 KiB pages. `collapse` asks the kernel to merge them into
2 MiB pages (Linux 6.1 or later, with any system-wide setting). Written pages are split and copied one by one, so a
child does not copy more. Measured from fork to wait: 8.5 ms before, 3.5 ms after. Elsewhere nothing happens.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..base import huge_pages
from ..base.huge_pages import HUGE_PAGE_BYTES

_TUNABLE = "glibc.malloc.hugetlb=1"
_VARIABLE = "GLIBC_TUNABLES"


def with_tunables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which the C library's heap starts on huge pages, which makes `collapse` faster."""
    own = environ.get(_VARIABLE)
    return {**environ, _VARIABLE: f"{own}:{_TUNABLE}" if own else _TUNABLE}


def forget_tunables() -> None:
    """Undo `with_tunables` in this process's environment, so that its children do not inherit it."""
    own = os.environ.get(_VARIABLE, "").removesuffix(_TUNABLE).removesuffix(":")
    if own:
        os.environ[_VARIABLE] = own
    else:
        os.environ.pop(_VARIABLE, None)


def collapse() -> int:
    """Merge this process's private anonymous memory into huge pages. Return the number of merged bytes."""
    if sys.platform != "linux":
        return 0
    return sum(size for start, size in list(_regions()) if huge_pages.collapse(start, size))


def _regions() -> Iterator[tuple[int, int]]:
    """Yield start and size of private writable anonymous memory, rounded to huge pages."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        name = fields[5] if len(fields) > 5 else "[heap]"
        if fields[1] != "rw-p" or name != "[heap]":
            continue
        start, end = (int(number, 16) for number in fields[0].split("-"))
        start, end = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if start < end:
            yield start, end - start
