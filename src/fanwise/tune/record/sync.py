"""The thread behind a record: moves what was committed into the database, makes it durable, has copies made (`copies`).

    writer:  commit -> committed()       ......never waits for a disk......
                            | wakes a thread that sleeps until there is something; a busy one looks by itself
    thread:        0.1 s after it last began: move -> fdatasync(-wal) -> checkpoint, when 4 MiB were written -> copies

The first commit after a quiet time is moved and synced at once, later ones wait for at most 0.1 s and one sync: a
commit is durable within 0.15 s where a sync takes up to 50 ms. To wake a thread costs the writer more than to count a
commit, so as long as there is something in each 0.1 s, none is woken.
Checkpoints are passive, so the writer goes on meanwhile and the log may outgrow them; above 64 MiB the last bit is
checkpointed under the writer's lock, and SQLite starts the log anew.

Danger: closing any descriptor of the main database file drops all POSIX locks that SQLite holds on it in this process
(https://www.sqlite.org/howtocorrupt.html, 2.2). So the file is only ever touched through SQLite. The log carries no
locks and may be opened by hand.

A failed sync is final: Linux marks the pages clean, and a second sync would say "well" without having written them.
A copy that failed is not: another is made later. An experiment that another tuner has gone on with is.
"""

import ctypes
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from .copies import Copies

SYNC_EVERY_S = 0.1
CHECKPOINT_BYTES = 4 << 20
MAX_LOG_BYTES = 64 << 20


def sync_data(fd: int) -> None:
    """Wait until what was written to the file is on the disk."""
    getattr(os, "fdatasync", os.fsync)(fd)  # macOS has no fdatasync


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk, where the file system can do that."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


class RecordSync:
    """The background thread of one record.

    Args:
        live: the database, open in WAL mode by the writer, with its log present.
        lock: held by the writer while it commits.
        move: moves what waits in the journal into the database and returns how many bytes the log got since; takes
            the lock.
        copies: where the record is copied to, or None.
        fdatasync: what waits for the disk; an argument so that tests can let it fail.
        checkpoint_bytes: what may be written to the log between two checkpoints.
        max_log_bytes: the length of the log from which on the writer has to wait for one.
    """

    def __init__(
        self,
        live: Path,
        *,
        lock: AbstractContextManager[object],
        move: Callable[[], int],
        copies: Copies | None,
        fdatasync: Callable[[int], None],
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        max_log_bytes: int = MAX_LOG_BYTES,
    ) -> None:
        self.failure: BaseException | None = None
        self._live, self._lock, self._fdatasync = live, lock, fdatasync
        self._move = move
        self._copies, self._is_new = copies, False
        self._checkpoint_bytes, self._max_log_bytes = checkpoint_bytes, max_log_bytes
        self._log_bytes = 0
        self._num_commits = self._num_synced = 0
        self._sleeps = self._is_closing = False
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._log_fd = os.open(f"{live}-wal", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        # Made here and not in the thread, so that a failure to open is the creator's.
        self._connection = sqlite3.connect(live, isolation_level=None, check_same_thread=False, timeout=5.0)
        self._connection.execute("PRAGMA wal_autocheckpoint=0")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._thread = threading.Thread(target=self._run, name="fanwise-record-sync", daemon=True)
        self._thread.start()

    def committed(self) -> None:
        """The writer has committed."""
        # Counted after the commit: whatever is there when the thread reads the number is moved and synced.
        self._num_commits += 1
        if self._sleeps:
            self._sleeps = False
            self._bell.put(None)

    def close(self) -> None:
        """End the thread, sync a last time, let go of log and connection. Does not raise; see `failure`."""
        self._is_closing = True
        self._bell.put(None)
        self._thread.join()
        try:
            if self.failure is None:
                self._fdatasync(self._log_fd)
        except Exception as error:
            self.failure = error
        finally:
            self._connection.close()
            os.close(self._log_fd)

    def abandon(self) -> None:
        """In the child of a fork: make sure that the parent's connection is never closed here, not even at exit."""
        never_free(self._connection)

    def _run(self) -> None:
        try:
            sync_folder(self._live.parent)
            sync_folder(self._live.parent.parent)
            while not self._is_closing:
                self._turn()
        except BaseException as error:  # whatever it is, nothing is made durable from now on
            self.failure = error

    def _turn(self) -> None:
        """Sync what is new and sleep for the rest of the 0.1 s; if nothing is new, until something is."""
        if self._num_commits == self._num_synced:
            self._sleep()
        else:
            due_s = time.monotonic() + SYNC_EVERY_S
            self._num_synced = self._num_commits
            self._log_bytes += self._move()
            self._fdatasync(self._log_fd)
            self._is_new = True
            if self._log_bytes > self._checkpoint_bytes:
                self._checkpoint()
            self._copy()
            self._wait(max(0.0, due_s - time.monotonic()))

    def _sleep(self) -> None:
        """Until there is a commit, or a copy is due, or the end."""
        copies = self._copies
        self._sleeps = True
        if self._num_commits == self._num_synced:  # else a commit came before it could know that this sleeps
            self._wait(None if copies is None else copies.wait_s(is_new=self._is_new))
        self._sleeps = False
        self._copy()

    def _wait(self, timeout_s: float | None) -> None:
        if not self._is_closing:
            with suppress(Empty):
                self._bell.get(timeout=timeout_s)

    def _copy(self) -> None:
        copies = self._copies
        if (
            copies is not None
            and not self._is_closing
            and copies.turn(self._connection, is_new=self._is_new, before=self._move_first)
        ):
            self._is_new = False

    def _move_first(self) -> None:
        self._log_bytes += self._move()

    def _checkpoint(self) -> None:
        self._log_bytes = 0
        _, num_frames, _ = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        page_bytes: int = self._connection.execute("PRAGMA page_size").fetchone()[0]
        if num_frames * page_bytes > self._max_log_bytes:
            # Only a log that is checkpointed to its end can be started anew, and a busy writer never lets it come so
            # far. What came in since the line above is little; the writer waits for that.
            with self._lock:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def never_free(thing: object) -> None:
    """Keep `thing` alive until the process is gone, beyond the interpreter's own clearing up.

    A list of things to keep would not do: the interpreter empties modules at exit, and the end of an SQLite
    connection checkpoints and deletes the log of a parent that has just been killed.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
