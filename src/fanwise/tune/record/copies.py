"""Copies of a record that is written on local disk, in a folder that other machines see.

    RecordSync's thread --turn--> beat, every 10 s    (`heartbeat`: this tuner lives, and the experiment is its own)
                                  copy, when something is new and it is time; at the end once more

A copy is whole or not there: made beside the live file first, so that SQLite never locks or maps a file on the network,
and brought to its name by a rename. Copying takes at most a tenth of the time: what takes long is done as seldom.
A copy that fails is tried again; the last one is not.
"""

import logging
import math
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import final

from .heartbeat import EVERY_S, Heartbeat
from .reading import FILE_NAME

_CHUNK_BYTES = 8 << 20
_SHARE = 10  # of the time, at most one part in ten is spent on copying

_log = logging.getLogger("fanwise")


def publish(connection: sqlite3.Connection, live: Path, folder: Path, meanwhile: Callable[[], None]) -> None:
    """Put a consistent copy of the database behind `connection` into `folder`, all at once.

    `meanwhile` is called again and again while it is written.
    """
    copy, partial = live.with_name("copy.sqlite"), folder / f".{FILE_NAME}.partial"
    copy.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(copy, isolation_level=None)) as target:
            connection.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")  # the copy is one plain file
        meanwhile()
        with open(copy, "rb") as source, open(partial, "wb") as file:
            while chunk := source.read(_CHUNK_BYTES):
                file.write(chunk)
                meanwhile()
            file.flush()
            os.fsync(file.fileno())
        meanwhile()
        os.replace(partial, folder / FILE_NAME)
    finally:
        copy.unlink(missing_ok=True)


@final
class Copies:
    """See the module. One thread at a time.

    Args:
        live: the database.
        folder: gets the copies.
        every_s: seconds between two copies, and between two signs of life.
    """

    def __init__(self, live: Path, folder: Path, every_s: float = EVERY_S) -> None:
        self.folder = folder
        self._live = live
        self._every_s = every_s
        self._heartbeat = Heartbeat(folder)
        self._beaten_s = -math.inf
        self._due_s = -math.inf
        # Read by other threads: a float is written at once.
        self._covered_s = -math.inf

    @property
    def covered_s(self) -> float:
        """What was committed before this moment of the monotonic clock is in the copy."""
        return self._covered_s

    def begin(self, connection: sqlite3.Connection) -> None:
        """The experiment is this tuner's from now on, and the folder has a first copy. Errors are passed on."""
        self._heartbeat.begin()
        self._publish(connection)

    def wait_s(self, *, is_new: bool) -> float:
        """Seconds until there is something to do. `is_new`: the record has something that the copy has not."""
        due_s = self._beaten_s + self._every_s
        return max(0.0, (min(due_s, self._due_s) if is_new else due_s) - time.monotonic())

    def turn(self, connection: sqlite3.Connection, *, is_new: bool, before: Callable[[], None] = lambda: None) -> bool:
        """Do what is due; returns whether a copy was made. `before`: brings into the database what was committed.

        Raises:
            TakenOverError: another tuner has gone on with the experiment; nothing was overwritten.
        """
        try:
            self._beat()
            if not is_new or time.monotonic() < self._due_s:
                return False
            self._publish(connection, before)
        except (OSError, sqlite3.Error) as error:
            self._due_s = time.monotonic() + self._every_s
            _log.warning("no copy of %s could be put into %s (%s); trying again", self._live, self.folder, error)
            return False
        return True

    def end(self, connection: sqlite3.Connection) -> None:
        """The last copy; nobody writes after it. Errors are passed on."""
        self._beaten_s = -math.inf
        self._publish(connection)
        self._heartbeat.end()

    def _beat(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._beaten_s + self._every_s:
            self._beaten_s = now_s  # also where it fails: it is tried at the next
            self._heartbeat.beat()

    def _publish(self, connection: sqlite3.Connection, before: Callable[[], None] = lambda: None) -> None:
        began_s = time.monotonic()
        before()
        self._beat()
        publish(connection, self._live, self.folder, self._beat)
        self._covered_s, ended_s = began_s, time.monotonic()
        self._due_s = ended_s + max(self._every_s, _SHARE * (ended_s - began_s))
