"""What went wrong with a disk, and what to do about it, in words."""

import errno
import os
import resource
import sqlite3

from .heartbeat import TakenOverError


def explanation(error: BaseException) -> str:
    """What went wrong and what to do about it, for the errors that disks make."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full. Free some space or set FANWISE_HOME to another disk."
    if (code == sqlite3.SQLITE_CANTOPEN or isinstance(error, OSError)) and _may_open_no_more_files():
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"this process may not open more than {limit} files. Raise that (ulimit -n) or run fewer workers."
    if code == sqlite3.SQLITE_READONLY or isinstance(error, PermissionError):
        return f"it may not be written ({error}). Allow it or set FANWISE_HOME to a folder of yours."
    if isinstance(error, TakenOverError):
        return "another tuner has gone on with the experiment, from a copy: this one lets it go."
    if code == sqlite3.SQLITE_BUSY:
        return "another process holds its lock. Only the tuner may write to it."
    if not isinstance(error, OSError | sqlite3.Error):
        return f"{type(error).__name__}: {error}"
    return f"{error}. Look at the disk (full? failing? a limit on file sizes?) or set FANWISE_HOME to another one."


def _may_open_no_more_files() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False
