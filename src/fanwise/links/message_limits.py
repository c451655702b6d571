"""How large a message of a peer may be: a part of the memory that this process may use.

    min(what the system has, what the cgroups of this process allow) / 2

What is announced costs nothing until it comes (`frames`), but what comes has to be somewhere, and a peer that sends
without end must not end this process. Half leaves room for what is there already, and for one copy.
"""

import contextlib
import functools
import os
from pathlib import Path

from .frames import Limits

_SHARE = 2
_CGROUPS = Path("/sys/fs/cgroup")


def fitted(limits: Limits) -> Limits:
    """The limits, with no frame larger than this process can take."""
    return limits._replace(frame_bytes=min(limits.frame_bytes, memory_bytes() // _SHARE))


@functools.cache
def memory_bytes(cgroups: Path = _CGROUPS, mine: Path = Path("/proc/self/cgroup")) -> int:
    """The memory that this process may use, as the system says when it is first asked."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):
        for line in mine.read_text().splitlines():
            # Version 2 has one hierarchy, with the number 0; of version 1 the one of memory counts.
            number, names, path = line.split(":", 2)
            is_second = number == "0"
            if is_second or "memory" in names.split(","):
                root = cgroups if is_second else cgroups / "memory"
                found = min(
                    found, _lowest(root, path.lstrip("/"), "memory.max" if is_second else "memory.limit_in_bytes")
                )
    return found


def _lowest(root: Path, path: str, name: str) -> int:
    """The lowest limit of a group and those around it. In a container they may all be at the root."""
    lowest = 1 << 62
    for folder in (root / path, *(root / path).parents):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            lowest = min(lowest, int((folder / name).read_text()))
        if folder == root:
            break
    return lowest
