"""The folder of this user, on this host, for what lives as long as its processes: sockets, lock files, status files.

Everything that decides whether others can get in is here: it is a folder, no link, of this user, and nobody else may
enter it. What lies in it is the business of those who put it there.
"""

import hashlib
import logging
import os
import socket
import stat
from pathlib import Path

from ..base.errors import JoinError

_FOLDER_SIZE_MAX = 60  # of bytes: a socket's path has 100
_WAY_ROUND = (
    "Set XDG_RUNTIME_DIR, for all processes of the group, to a folder of yours that nobody else may enter, with a path "
    f"of at most {_FOLDER_SIZE_MAX - 8} characters."
)
_log = logging.getLogger(__name__)


def runtime_folder(*, for_all: Path = Path("/tmp")) -> Path:
    """The folder of this user for sockets that live as long as their processes; made when it is not there.

    Without XDG_RUNTIME_DIR it lies in `for_all`, where another user can be first to make something of that name. Then
    it is one in this user's home, and stays so when the other thing is gone: all processes must find the same one.
    Raises `JoinError` when what is there is not a folder that only this user may enter.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    given = Path(base, "fanwise")
    if base and len(os.fsencode(given)) <= _FOLDER_SIZE_MAX and os.path.isdir(base):
        return _ours(given)
    usual = for_all / f"fanwise-{os.getuid()}"
    # A home may be that of several hosts, whose sockets are not each other's.
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    instead = Path(os.path.expanduser("~"), f".fanwise-{host}")
    if len(os.fsencode(instead)) > _FOLDER_SIZE_MAX or not os.path.isdir(instead.parent):
        return _ours(usual)
    if not instead.is_dir() and not _is_taken(usual):
        return _ours(usual)
    if not instead.is_dir():
        _log.warning("%s is somebody else's; sockets of this user lie in %s from now on", usual, instead)
    return _ours(instead)


def _is_taken(folder: Path) -> bool:
    """Whether something is there that is not this user's folder."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid()


def _ours(folder: Path) -> Path:
    """The folder, made when it is not there. Raises `JoinError` unless it is this user's and nobody else may enter."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise JoinError(f"{folder} cannot be made: {error}.\n{_WAY_ROUND}") from error
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise JoinError(
            f"{folder} must be a folder of user {os.getuid()} that nobody else may enter (mode 0700).\n"
            f"It belongs to user {found.st_uid}, {stat.filemode(found.st_mode)}, and may be there to keep you out.\n"
            f"{_WAY_ROUND}"
        )
    if found.st_mode & 0o077:
        raise JoinError(
            f"{folder} must be a folder of user {os.getuid()} that nobody else may enter (mode 0700); it is "
            f"{stat.filemode(found.st_mode)}.\nMake it so (chmod 700), when you know who has opened it. {_WAY_ROUND}"
        )
    return folder
