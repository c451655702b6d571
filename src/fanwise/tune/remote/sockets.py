"""Where a running search can be reached: a Unix socket and its key, both in the experiment's folder.

    <experiment>/control.sock   there while the search runs; mode 0600, in a folder of mode 0700
                 control.key    32 random bytes of this run, mode 0600: whoever dials proves to have read them

A killed tuner leaves both behind; they let nobody in, and whoever goes on with the experiment replaces them.
A path to a socket has room for some 100 bytes. A folder with a longer one is reached through /proc/self/fd.
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
    """What the two sides say to each other are plain values: nothing is unpickled. Before the first word."""
    link.dumps, link.loads = _plain.dumps, _loads


def _loads(head: Buffer, buffers: Sequence[memoryview] = ()) -> Any:  # Any: plain values
    return _plain.loads(head, buffers)


@contextmanager
def near(folder: Path) -> Iterator[Path]:
    """The folder under a name that is short enough for a socket in it, as long as the block lasts."""
    if len(os.fsencode(folder)) + 1 + len(SOCKET_NAME) <= _PATH_BYTES_MAX:
        yield folder
        return
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def write_key(folder: Path, key: bytes) -> None:
    """For this user's eyes only."""
    descriptor = os.open(folder / KEY_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)


def clear(folder: Path) -> None:
    """Remove what a killed tuner has left. Only for who holds the record."""
    for name in (SOCKET_NAME, KEY_NAME):
        with suppress(FileNotFoundError):
            (folder / name).unlink()
