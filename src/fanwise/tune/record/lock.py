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

from .reading import is_still

LOCK_NAME = "writer.lock"


class HeldError(Exception):
    """Somebody else writes to the record."""


def hold(folder: Path) -> int | None:
    """Take the lock of a folder; returns its descriptor, or None where the file system has no locks.

    The descriptor is not inherited by programs that are executed; the child of a bare fork has to `release` it.

    Raises:
        HeldError: another writer has it.
    """
    file = folder / LOCK_NAME
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise HeldError from None
        except OSError:
            os.close(descriptor)
            file.unlink()
            return None
        if _is_same(descriptor, file):
            return descriptor
        os.close(descriptor)  # the writer before closed its record at this moment, and took the file away


def _is_same(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


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
