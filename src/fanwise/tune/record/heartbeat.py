"""A sign of life beside the copies of a record, for machines that cannot see its lock, or cannot trust it.

    tuner:    Heartbeat.begin, then beat every 10 s: the file is written anew; end removes it
    others:   last_beat(folder): whose it is, and for how long it has been silent

Whoever goes on with an experiment whose tuner is silent writes a file of its own. A tuner that was cut off and comes
back finds that one, and lets the experiment go.
"""

import json
import os
import platform
import secrets
import tempfile
import time
from pathlib import Path
from typing import final

from ...base.frozen import frozen

FILE_NAME = "writer.beat"
EVERY_S = 10.0
# Three beats and the time of a slow copy.
SILENT_S = 45.0


class TakenOverError(Exception):
    """Another tuner has gone on with the experiment."""


@frozen
class Beat:
    """The last sign of life of a tuner: its host and process, and how long ago that was."""

    host: str
    pid: int
    silent_s: float

    @property
    def is_fresh(self) -> bool:
        """Whether it was so short a time ago that its tuner is taken for alive."""
        return self.silent_s < SILENT_S


@final
class Heartbeat:
    """The sign of life of this process in a folder. One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        whose = {"host": platform.node(), "pid": os.getpid(), "key": secrets.token_hex(8)}
        self._text = json.dumps(whose).encode()

    def begin(self) -> None:
        """The first beat, in the place of whoever was there before. OSError: the file system refuses."""
        partial = self._file.with_name(f".{FILE_NAME}.{os.getpid()}.partial")
        partial.write_bytes(self._text)
        os.replace(partial, self._file)

    def beat(self) -> None:
        """One more.

        Raises:
            TakenOverError: the file is another tuner's, or was removed by it.
            OSError: the file system refuses.
        """
        try:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            if self._file.parent.is_dir():
                raise TakenOverError from None
            raise
        try:
            if os.pread(descriptor, 4096, 0) != self._text:
                raise TakenOverError
            os.pwrite(descriptor, self._text, 0)  # the same bytes: no moment in which the file is empty
            os.utime(descriptor)
        finally:
            os.close(descriptor)

    def end(self) -> None:
        """Nobody writes any more. OSError: the file system refuses."""
        self._file.unlink(missing_ok=True)


def last_beat(folder: Path) -> Beat | None:
    """The last beat of the tuner whose copies are in this folder; None: there is none."""
    file = folder / FILE_NAME
    try:
        beaten_s = file.stat().st_mtime
        whose = json.loads(file.read_bytes())
        host, pid = str(whose["host"]), int(whose["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Beat(host, pid, max(0.0, _now_s(folder) - beaten_s))


def _now_s(folder: Path) -> float:
    """The time by the clock that sets modification times in this folder, which may be a file server's.

    Without permission to write there, the time of this machine.
    """
    try:
        with tempfile.NamedTemporaryFile(prefix=".clock.", dir=folder) as file:
            file.write(b".")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()
