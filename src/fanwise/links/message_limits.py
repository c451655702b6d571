"""The largest message that this process takes: half of the memory that the system and its cgroups allow.

An announced message costs nothing until its bytes arrive (`frames`), but a peer that sends without end must not exhaust
the memory of this process. Half leaves room for existing data and for one copy.
"""

import contextlib
import functools
import os
from pathlib import Path

from .frames import Limits

_CGROUPS = Path("/sys/fs/cgroup")


def fitted(limits: Limits) -> Limits:
    """Return the limits with no frame larger than this process can take."""
    return limits._replace(frame_bytes=min(limits.frame_bytes, memory_bytes() // 2))


@functools.cache
def memory_bytes(cgroups: Path = _CGROUPS, own_cgroups: Path = Path("/proc/self/cgroup")) -> int:
    """Return the memory that this process may use. Read once."""
    size_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):
        for line in own_cgroups.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":  # the only hierarchy of version 2
                size_bytes = min(size_bytes, _lowest(cgroups, path.lstrip("/"), "memory.max"))
            elif "memory" in controllers.split(","):
                size_bytes = min(size_bytes, _lowest(cgroups / "memory", path.lstrip("/"), "memory.limit_in_bytes"))
    return size_bytes


def _lowest(root: Path, path: str, name: str) -> int:
    """Return the lowest limit of a group and its parents. In a container all may be at the root."""
    lowest = 1 << 62
    for folder in (root / path, *(root / path).parents):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            lowest = min(lowest, int((folder / name).read_text()))
        if folder == root:
            break
    return lowest
