"""The memory that this process may use, and its cgroups, which limit it."""

import re
from functools import lru_cache
from pathlib import Path

_ROOT = Path("/")


def memory_bytes(root: Path = _ROOT) -> int:
    """Return the memory that this process may use: that of the machine, or the lowest limit of its cgroups.

    Args:
        root: parent folder of /proc and /sys.
    """
    total_kib = number_after(read_text(root / "proc/meminfo"), "MemTotal:")
    if total_kib is None:  # not Linux
        import psutil

        return int(psutil.virtual_memory().total)
    limits = [total_kib * 1024]
    for folder in cgroup_folders(root, "memory"):
        texts = [read_text(folder / file).strip() for file in ("memory.max", "memory.limit_in_bytes")]
        limits += [int(text) for text in texts if text.isdecimal()]
    return min(limits)


def cgroup_folders(root: Path, controller: str) -> tuple[Path, ...]:
    """Return the folders of this process's cgroups, innermost first. Some may not exist in a container."""
    return _folders_of(root, controller, read_text(root / "proc/self/cgroup"))


@lru_cache(maxsize=8)
def _folders_of(root: Path, controller: str, groups: str) -> tuple[Path, ...]:
    """Return the folders for a text of /proc/self/cgroup. Cached, because every job calls this."""
    mount = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in groups.splitlines():
        _number, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        bases = {mount / controllers, mount / controller} if controllers else {mount, mount / "unified"}
        for base in sorted(bases):
            inner = base / path.lstrip("/")
            folders += [inner, *(above for above in inner.parents if above.is_relative_to(base))]
    return tuple(folders)


def number_after(text: str, name: str) -> int | None:
    """Return the number after a name, in files with lines such as `oom_kill 3`."""
    match = re.search(rf"^{re.escape(name)}\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


def read_text(path: Path) -> str:
    """Return the text of a file of the kernel; empty if there is none."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read().decode()
    except OSError:
        return ""
