"""The user's source files that this process has imported, and whether they have changed since.

A process that keeps imported modules for later jobs must not run old code.
"""

import functools
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

Snapshot = dict[Path, tuple[int, int]]  # by file: time of the last change in ns, and size in bytes

_LIBRARY = __name__.partition(".")[0]
_NO_FILES = frozenset({"", "__main__", "__mp_main__", "builtins"})


class Sources:
    """A snapshot of the source files of imported modules. A forked process has a copy."""

    def __init__(self) -> None:
        self._files: Snapshot = {}
        self._modules: set[str] = set()

    def remember(self) -> bool:
        """Add the files of modules that were imported since the last call. Return False if there are none."""
        new = sys.modules.keys() - self._modules
        if new:
            self._modules |= new
            self._files.update({path: stamp for path, stamp in sources_of(new).items() if path not in self._files})
        return bool(new)

    def edited(self) -> list[Path]:
        """Return the files that were edited, replaced or removed since they were added."""
        return [path for path, stamp in self._files.items() if _stamp(path) != stamp]


def sources_of(modules: Iterable[str]) -> Snapshot:
    """Return the state of the user's own source files among these modules.

    Files of the standard library, of installed packages and of fanwise are omitted, because every job checks all files.
    So is `__main__`, whose functions are sent by value.
    """
    files: Snapshot = {}
    for name in modules:
        path = None if name.partition(".")[0] == _LIBRARY else user_file(name)
        if path is not None and (stamp := _stamp(path)) is not None:
            files[path] = stamp
    return files


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def user_file(name: str) -> Path | None:
    """Return the source file of a loaded module if it is neither of the standard library nor installed."""
    if name in _NO_FILES:
        return None
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    return _user_path(file if os.path.isabs(file) else str(Path(file).absolute()))


@functools.lru_cache(maxsize=4096)
def _user_path(file: str) -> Path | None:
    path = Path(file)
    if {"site-packages", "dist-packages"} & set(path.parts):
        return None
    return None if any(path.is_relative_to(folder) for folder in _stdlib()) else path


@functools.cache
def _stdlib() -> tuple[Path, ...]:
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    return tuple(dict.fromkeys([*folders, *(folder.resolve() for folder in folders)]))
