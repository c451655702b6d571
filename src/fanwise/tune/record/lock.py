"""The lock of a record, which its writer holds until it closes the record or dies.

The lock is a flock on a separate file in the experiment's folder. The kernel releases it when the last descriptor is
closed, however the process ends. Unlike a pid, it works across containers and over NFS. The file is never deleted.
"""

import fcntl
import os
import time
from pathlib import Path

LOCK_NAME = "writer.lock"

_RETRY_S = 0.2  # because readers take the lock for a few microseconds in `is_held`
_PAUSE_S = 0.01  # between two attempts to take the lock


class HeldError(Exception):
    """Another writer holds the lock."""


def hold(folder: Path) -> int | None:
    """Take the lock of a folder. Return the file descriptor that holds it, or None if the file system has no locks.

    Blocks for up to 0.2 s. The descriptor is closed on exec. The child of a fork inherits it and must `release` it.

    Raises:
        HeldError: another writer holds the lock.
        OSError: the lock file cannot be created.
    """
    deadline_s = time.monotonic() + _RETRY_S
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                os.close(descriptor)
                raise HeldError from None
            time.sleep(_PAUSE_S)
        except OSError:
            os.close(descriptor)
            return None


def release(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def is_held(folder: Path) -> bool | None:
    """Return whether a writer holds the lock of a folder, or None if that cannot be determined. Does not block."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        # A shared lock, because concurrent readers must not take each other for the writer.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
