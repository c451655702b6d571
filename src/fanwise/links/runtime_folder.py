"""This user's folder for sockets, lock files and status files of running processes.

It is a real folder, owned by this user, that no other user may enter. The access to everything in it depends on that.
"""

import hashlib
import logging
import os
import socket
import stat
from pathlib import Path

from ..base.errors import JoinError

_FOLDER_SIZE_MAX = 60  # in bytes: a socket's path has 100
_REMEDY = (
    "Set XDG_RUNTIME_DIR, for all processes of the group, to a folder that no other user may enter, with a path "
    f"of at most {_FOLDER_SIZE_MAX - 8} characters."
)
_log = logging.getLogger(__name__)


def runtime_folder(*, for_all: Path = Path("/tmp")) -> Path:
    """Return the folder, and create it if necessary.

    Without XDG_RUNTIME_DIR it is in `for_all`, where another user can create something of that name first. Then it is
    in this user's home, and stays there, because all processes must use the same one. Raises `JoinError` if it is not a
    folder that only this user may enter.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    configured = Path(base, "fanwise")
    if base and len(os.fsencode(configured)) <= _FOLDER_SIZE_MAX and os.path.isdir(base):
        return _private(configured)
    usual = for_all / f"fanwise-{os.getuid()}"
    # Several hosts may share a home, but not their sockets.
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    fallback = Path(os.path.expanduser("~"), f".fanwise-{host}")
    if len(os.fsencode(fallback)) > _FOLDER_SIZE_MAX or not os.path.isdir(fallback.parent):
        return _private(usual)
    if not fallback.is_dir():
        if not _is_taken(usual):
            return _private(usual)
        _log.warning("%s belongs to another user; sockets of this user are in %s from now on", usual, fallback)
    return _private(fallback)


def _is_taken(folder: Path) -> bool:
    """Return True if the path exists and is not this user's folder."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid()


def _private(folder: Path) -> Path:
    """Create the folder if necessary. Raises `JoinError` unless it is private to this user."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise JoinError(f"{folder} cannot be made: {error}.\n{_REMEDY}") from error
    status = folder.lstat()
    rule = f"{folder} must be a folder that only user {os.getuid()} may enter (mode 0700)"
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise JoinError(
            f"{rule}.\nIt belongs to user {status.st_uid}, {stat.filemode(status.st_mode)}, and may have been created "
            f"to keep you out.\n{_REMEDY}"
        )
    if status.st_mode & 0o077:
        raise JoinError(
            f"{rule}; it is {stat.filemode(status.st_mode)}.\n"
            f"Change that (chmod 700) if no other user has put files there. {_REMEDY}"
        )
    return folder
