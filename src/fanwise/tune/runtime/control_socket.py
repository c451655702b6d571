"""The Unix socket of a running search and its key, both in the experiment's folder.

    <experiment>/control.sock   exists while the search runs; mode 0600, in a folder of mode 0700
                 control.key    32 random bytes of this run, mode 0600; peers must prove that they have read them

A killed tuner leaves both files behind. They give no access, and resuming the experiment replaces them.
Socket paths are limited to about 100 bytes. Folders with longer paths are accessed through /proc/self/fd.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...links import Link
from ...links.plain import Buffer, Plain

SOCKET_NAME = "control.sock"
KEY_NAME = "control.key"

_PATH_BYTES_MAX = 100

_plain = Plain()


def speak(link: Link) -> None:
    """Set the link to encode plain values only, so that nothing is unpickled. Call before the first message."""
    link.dumps, link.loads = _plain.dumps, _loads


def _loads(head: Buffer, buffers: Sequence[memoryview] = ()) -> Any:  # Any: plain values
    return _plain.loads(head, buffers)


@contextmanager
def near(folder: Path) -> Iterator[Path]:
    """Give a path to the folder that is short enough for a socket in it. Valid inside the block."""
    if len(os.fsencode(folder)) + 1 + len(SOCKET_NAME) <= _PATH_BYTES_MAX:
        yield folder
        return
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def write_key(folder: Path, key: bytes) -> None:
    """Write the key to a new file that only this user can read."""
    descriptor = os.open(folder / KEY_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)


def clear(folder: Path) -> None:
    """Remove the socket and key of an earlier run. The caller must hold the lock of the record."""
    for name in (SOCKET_NAME, KEY_NAME):
        with suppress(FileNotFoundError):
            (folder / name).unlink()
