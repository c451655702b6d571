"""What killed workers leave in the runtime folder, removed by those who come after (see `lock_files` for the folder).

    w-<random>, <hash>-<random>   a socket: left over when the kernel knows of no open socket behind the file
    <hash>                        a lock file: left over when its holder is gone, and no member of its group lives on
    <hash>-<random>.new           a lock file that was not finished: whoever wrote it held the guard, and we hold it now

Whoever is about to listen sweeps, unless somebody did so a moment ago: the guard's own time says when. With the guard
held no lock file is made, replaced or given back. A socket file appears just before its socket is bound to it, so young
ones are left alone.

Whether anybody is behind a socket file is asked without a connection: a datagram socket that wants to connect to it is
refused as of the wrong kind while the other is open, listening or not yet, and as unreachable when it is not. Nobody is
disturbed by that. Other files, and those of other users, are not touched. Nothing here raises.
"""

import contextlib
import os
import re
import socket
import stat
import time
from pathlib import Path

from ...base.errors import DeadlineExceeded
from .lock_files import guarded, read

_SWEEP_EVERY_S = 10.0
_YOUNG_S = 5.0
# The guard is held meanwhile: what is above this is left to the next one who comes.
_REMOVED_AT_ONCE = 2000

_SOCKET = re.compile(r"w-[0-9a-f]{16}|[0-9a-f]{16}-[0-9a-f]{8}")
_LOCK_FILE = re.compile(r"[0-9a-f]{16}")
_UNFINISHED = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}\.new")


def sweep(folder: Path) -> None:
    """Remove what the dead have left in `folder`. At most once in 10 s, by one process at a time. Blocks a moment."""
    with contextlib.suppress(DeadlineExceeded, OSError), guarded(folder, within_s=0.0) as guard:
        if abs(time.time() - os.fstat(guard).st_mtime) >= _SWEEP_EVERY_S and _remove_leftovers(folder):
            os.utime(guard)


def _remove_leftovers(folder: Path) -> bool:
    """With the guard held. False: there may be more."""
    with os.scandir(folder) as entries:
        paths = [Path(entry.path) for entry in entries]
    num_removed = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        for path in paths:
            if num_removed == _REMOVED_AT_ONCE:
                return False
            with contextlib.suppress(OSError):  # it has just gone
                num_removed += _remove_if_left_over(path, probe)
    return True


def _remove_if_left_over(path: Path, probe: socket.socket) -> bool:
    name, found = path.name, path.lstat()
    if found.st_uid != os.getuid():
        return False
    if _SOCKET.fullmatch(name):
        is_old = abs(time.time() - found.st_mtime) >= _YOUNG_S
        is_over = is_old and stat.S_ISSOCK(found.st_mode) and _is_dead(path, probe)
    elif _LOCK_FILE.fullmatch(name):
        is_over = stat.S_ISREG(found.st_mode) and _is_given_up(path)
    else:
        is_over = _UNFINISHED.fullmatch(name) is not None
    if is_over:
        path.unlink()
    return is_over


def _is_dead(path: Path, probe: socket.socket) -> bool:
    """Whether nobody has the socket open. The second look is for kernels that tell the first one less."""
    if not _refuses(path, probe):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as second:
        second.setblocking(False)
        return _refuses(path, second)


def _refuses(path: Path, probe: socket.socket) -> bool:
    try:
        probe.connect(os.fspath(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _is_given_up(path: Path) -> bool:
    """Whether a lock file is held no more, and nobody is about to take it."""
    holder = read(path)
    return holder is not None and holder.is_gone and not holder.has_survivors
