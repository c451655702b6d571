"""Whether somebody still writes to a record: a lock that lives exactly as long as its writer.

    writer:  hold(folder) ------------ the record is open ------------ release(...), or the process dies
    reader:  is_held(folder)   True                                    False

The lock is a flock on a file of its own beside the record. The kernel lets go of it with the last descriptor, however
the process ends, so no pid has to be compared that another process may have got since, and it holds across containers.
SQLite's own file must not be used: closing any descriptor of it would drop the locks that SQLite holds there.

A closed record is one plain file: the lock file is gone, and so is the log of SQLite. A log without a lock file
says nothing: the file system may have no locks.
"""

import fcntl
import os
from pathlib import Path

from .record_reading import is_still

LOCK_NAME = "writer.lock"


def hold(folder: Path) -> int | None:
    """Take the lock of a new folder; returns its descriptor, or None where the file system has no locks.

    The descriptor is not inherited by programs that are executed; the child of a bare fork has to `release` it.
    """
    file = folder / LOCK_NAME
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        file.unlink()
        return None
    return descriptor


def release(descriptor: int | None) -> None:
    """Let go of the lock; in the child of a fork, of its share in it."""
    if descriptor is not None:
        os.close(descriptor)


def remove(file: Path) -> None:
    """Remove the lock file beside a record that was closed well. One with a log left keeps it, as after a crash."""
    if is_still(file):
        file.with_name(LOCK_NAME).unlink(missing_ok=True)


def is_held(file: Path) -> bool | None:
    """Whether a writer holds the lock beside this record; None when that cannot be known. Blocks for nothing."""
    try:
        descriptor = os.open(file.with_name(LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False if is_still(file) else None
    except OSError:
        return None
    try:
        # Shared, so that readers who ask at the same moment do not take each other for the writer.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
