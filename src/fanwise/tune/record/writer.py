"""The record of an experiment: every event of a search, through one writer, into one SQLite file.

    tuner thread:  append, append, ...   buffered
                   commit                ONE transaction in the write-ahead log; then the answers may leave
    sync:          fdatasync, checkpoints, copies, in a thread of its own

A lock beside the file (`lock`) is held while the record is open, so that readers see whether its writer lives.

Promise: what was committed survives the death of the process, kill -9 included, at once; a power cut takes at most
the last 50 ms. Readers (`reading`) may look at any time and never wait for the writer.

Invariants: sequence numbers are 1, 2, 3, ... without a gap; events are never changed; one thread at a time uses a
`Record`; after a fork the child can do nothing with it.

On a network file system the live file is on local disk, in a temporary folder that the meta key `live_file` names (on
the machine `live_host`), and the experiment's folder gets a consistent copy every 10 s and at close.
"""

import errno
import json
import os
import platform
import shutil
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...base.errors import ClosedError, RecordError
from .filesystems import is_network
from .lock import HeldError, hold, release, remove
from .reading import FILE_NAME, FORMAT, read_meta
from .sync import RecordSync, never_free, publish, sync_data, sync_folder

# A commit of one event writes one page to the log. At 1 KiB that is 1.4 KB a commit, at SQLite's 4 KiB 4.4 KB.
PAGE_BYTES = 1024

_INSERT = "INSERT INTO events(seq, t_s, kind, trial, body) VALUES (?, ?, ?, ?, ?)"

# allow_nan: NaN and infinities are written as Python reads them.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=True).encode

# The one process-wide fact: the records that a fork must make inert.
_open_records: "weakref.WeakSet[Record]" = weakref.WeakSet()
_fork_hook_set = False


class Record:
    """Writes the events of one experiment. Made by `Record.create`; used by one thread at a time.

    >>> record = Record.create(folder, {"name": "lenet"})
    >>> record.append(0.25, "start", 0, {"config": {"lr": 0.1}, "attempt": 0})
    1
    >>> record.commit()
    >>> record.close()
    >>> read_events(folder)[0].kind
    'start'
    """

    def __init__(self, connection: sqlite3.Connection, folder: Path, live: Path, lock: threading.Lock) -> None:
        self.folder = folder
        self.file = live
        self._connection = connection
        self._cursor = connection.cursor()
        self._lock = lock
        self._sync: RecordSync | None = None
        self._held: int | None = None
        self._ended: str | None = None
        self._next_seq = 1
        self._rows: list[tuple[int, float, str, int | None, str]] = []

    @classmethod
    def create(
        cls,
        folder: Path,
        meta: Mapping[str, Any],  # Any: JSON
        *,
        on_network: bool | None = None,
        publish_every_s: float = 10.0,
        fdatasync: Callable[[int], None] = sync_data,
    ) -> "Record":
        """Make the experiment's folder (mode 0700) and an empty record in it, which readers can open at once.

        Args:
            folder: must not exist; the folders above it are made.
            meta: JSON values; the key `format` is added.
            on_network: whether `folder` is on a network file system; None looks.
            publish_every_s: seconds between two copies, on a network file system.
            fdatasync: waits for the disk; an argument so that tests can let it fail.

        Raises:
            FileExistsError: `folder` exists.
            TypeError: `meta` is not JSON.
            RecordError: the disk refuses; nothing is left behind.
        """
        encoded = {key: _encode(value) for key, value in {**meta, "format": FORMAT}.items()}
        _make_folder(folder)
        live_folder = folder
        try:
            if is_network(folder) if on_network is None else on_network:
                live_folder = Path(tempfile.mkdtemp(prefix="fanwise-record-"))
                encoded |= {"live_file": _encode(str(live_folder / FILE_NAME)), "live_host": _encode(platform.node())}
            return cls._fill(folder, live_folder, encoded, publish_every_s=publish_every_s, fdatasync=fdatasync)
        except BaseException as error:
            shutil.rmtree(live_folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, (sqlite3.Error, OSError)):
                raise _not_made(folder, error) from error
            raise

    @classmethod
    def reopen(
        cls,
        folder: Path,
        *,
        on_network: bool | None = None,
        publish_every_s: float = 10.0,
        fdatasync: Callable[[int], None] = sync_data,
    ) -> "Record":
        """Go on with the record of an experiment whose tuner has ended, however it ended. Arguments as `create`.

        Raises:
            RecordError: there is none, or another tuner writes to it; it is damaged or of another format; the disk.
        """
        read_meta(folder)
        live_folder = folder
        try:
            if is_network(folder) if on_network is None else on_network:
                live_folder = Path(tempfile.mkdtemp(prefix="fanwise-record-"))
                shutil.copyfile(folder / FILE_NAME, live_folder / FILE_NAME)
            try:
                held = hold(live_folder) if live_folder == folder else _hold_both(folder, live_folder)
            except HeldError:
                raise RecordError(
                    f"{folder} is being written by another tuner. One experiment has one tuner at a time: wait for it "
                    f"to end, or stop it (fanwise tune stop {folder.name})."
                ) from None
            record = cls._attach(folder, live_folder, held, publish_every_s=publish_every_s, fdatasync=fdatasync)
        except BaseException as error:
            if live_folder != folder:
                shutil.rmtree(live_folder, ignore_errors=True)
            if isinstance(error, (sqlite3.Error, OSError)):
                raise RecordError(f"{folder / FILE_NAME} cannot be gone on with: {_explanation(error)}") from error
            raise
        if live_folder != folder:
            record.set_meta({"live_file": str(live_folder / FILE_NAME), "live_host": platform.node()})
        return record

    @classmethod
    def _fill(
        cls,
        folder: Path,
        live_folder: Path,
        meta: Mapping[str, str],
        *,
        publish_every_s: float,
        fdatasync: Callable[[int], None],
    ) -> "Record":
        try:
            held = hold(live_folder)  # before there is a record: whoever finds one finds it held
        except HeldError:  # a folder that was just made
            raise AssertionError(f"{live_folder} is new, and held") from None
        try:
            _make_file(live_folder / FILE_NAME, meta)
        except BaseException:
            release(held)
            raise
        return cls._attach(folder, live_folder, held, publish_every_s=publish_every_s, fdatasync=fdatasync)

    @classmethod
    def _attach(
        cls,
        folder: Path,
        live_folder: Path,
        held: int | None,
        *,
        publish_every_s: float,
        fdatasync: Callable[[int], None],
    ) -> "Record":
        """A writer of the file that lies in `live_folder`, whose lock is held; lets go of it when this fails."""
        live, lock = live_folder / FILE_NAME, threading.Lock()
        try:
            connection = sqlite3.connect(live, isolation_level=None, check_same_thread=False, timeout=5.0)
        except BaseException:
            release(held)
            raise
        try:
            _set_pragmas(connection)
            record = cls(connection, folder, live, lock)
            record._next_seq = 1 + connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]
            on_network = live_folder != folder
            if on_network:
                publish(connection, live, folder)
            record._sync = RecordSync(
                live,
                lock=lock,
                publish_to=folder if on_network else None,
                publish_every_s=publish_every_s,
                fdatasync=fdatasync,
            )
        except BaseException:
            connection.close()
            release(held)
            raise
        record._held = held
        _make_inert_after_fork(record)
        return record

    @property
    def next_seq(self) -> int:
        """The sequence number that the next event gets."""
        return self._next_seq

    def set_meta(self, values: Mapping[str, Any]) -> None:  # Any: JSON
        """Write or replace values of the table meta, at once. Errors as `commit`."""
        if self._ended is not None:
            raise ClosedError(self._ended)
        rows = [(key, _encode(value)) for key, value in values.items()]
        with self._lock:
            try:
                self._cursor.execute("BEGIN IMMEDIATE")
                self._cursor.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
                self._cursor.execute("COMMIT")
            except BaseException as error:
                self._roll_back()
                if isinstance(error, sqlite3.Error):
                    raise self._error(error) from error
                raise

    def append(self, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> int:  # Any: JSON
        """Buffer one event for the next commit and return its sequence number. Writes nothing.

        Args:
            t_s: seconds since the tuner started.
            kind: what happened.
            trial_id: the trial it happened to, or None.
            body: JSON; encoded now, so later changes of it do not matter.

        Raises:
            TypeError: `body` is not JSON.
            ClosedError: the record is closed, or this is a fork of the process that made it.
        """
        if self._ended is not None:
            raise ClosedError(self._ended)
        seq = self._next_seq
        self._rows.append((seq, t_s, kind, trial_id, _encode(body)))
        self._next_seq = seq + 1
        return seq

    def commit(self) -> None:
        """Write all buffered events in one transaction. Afterwards they survive the death of this process.

        Waits for no disk. Does nothing when nothing is buffered.

        Raises:
            RecordError: the file cannot be written; the events stay buffered, and a later commit tries again. Or an
                earlier commit could not be brought to the disk: then every further commit raises.
            ClosedError: as `append`.
        """
        if self._ended is not None:
            raise ClosedError(self._ended)
        sync, rows, cursor = self._sync, self._rows, self._cursor
        assert sync is not None, "a record without its thread"
        if sync.failure is not None:
            raise self._error(sync.failure) from sync.failure
        if not rows:
            return
        with self._lock:
            try:
                if len(rows) == 1:
                    cursor.execute(_INSERT, rows[0])  # a transaction by itself
                else:
                    cursor.execute("BEGIN IMMEDIATE")
                    cursor.executemany(_INSERT, rows)
                    cursor.execute("COMMIT")
            except BaseException as error:
                self._roll_back()
                if isinstance(error, sqlite3.Error):
                    raise self._error(error) from error
                raise
        sync.committed(PAGE_BYTES + sum([len(row[4]) for row in rows]))
        rows.clear()

    def close(self) -> None:
        """Commit what is buffered, end the thread and leave one plain file. Closing twice is fine.

        Raises:
            RecordError: something could not be written. The record is closed all the same.
        """
        if self._ended is not None:
            return
        failure: BaseException | None = None
        try:
            self.commit()
        except RecordError as error:
            failure = error
        self._ended = f"The record of {self.folder} is closed."
        _open_records.discard(self)
        try:
            self._finish()
        except RecordError as error:
            failure = failure or error
        except (OSError, sqlite3.Error) as error:
            failure = failure or self._error(error)
            failure.__cause__ = failure.__cause__ or error
        finally:
            with suppress(OSError):  # a lock file that stays harms nobody
                remove(self.file)
            self._let_go()
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self) -> None:
        assert self._sync is not None, "a record without its thread"
        self._sync.close()
        try:
            if self._sync.failure is not None:
                raise self._sync.failure
            self._connection.execute("PRAGMA busy_timeout=1000")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            with suppress(sqlite3.OperationalError):  # a reader holds the log open: the record stays in WAL mode
                self._connection.execute("PRAGMA journal_mode=DELETE").fetchone()
            if self.file.parent != self.folder:
                self._publish_last()
        finally:
            self._connection.close()
        sync_folder(self.folder)

    def _publish_last(self) -> None:
        try:
            publish(self._connection, self.file, self.folder)
        except (OSError, sqlite3.Error) as error:
            raise RecordError(
                f"The record could not be put into {self.folder} ({error}). All of it is in {self.file}: copy it there."
            ) from error
        shutil.rmtree(self.file.parent, ignore_errors=True)

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.rollback()

    def _error(self, error: BaseException) -> RecordError:
        last = self._next_seq - len(self._rows) - 1
        return RecordError(f"{self.file} cannot be written: {_explanation(error)} Committed up to event {last}.")

    def _abandon(self) -> None:
        """In the child of a fork: never touch SQLite again."""
        self._ended = f"The record of {self.folder} belongs to the process that this one was forked from."
        never_free(self._connection)
        never_free(self._cursor)
        if self._sync is not None:
            self._sync.abandon()
        self._let_go()  # of the child's descriptor only: the parent still holds the lock

    def _let_go(self) -> None:
        held, self._held = self._held, None
        release(held)


def _hold_both(folder: Path, live_folder: Path) -> int | None:
    """On a network file system: the published copy's lock keeps a second tuner away where such locks work."""
    release(hold(folder))
    return hold(live_folder)


def _make_folder(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_made(folder, error) from error
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise FileExistsError(
            f"{folder} exists already. Give the experiment another name, or remove that folder if you need it no more."
        ) from None
    except OSError as error:
        raise _not_made(folder, error) from error


def _not_made(folder: Path, error: BaseException) -> RecordError:
    return RecordError(f"No experiment could be made in {folder}: {_explanation(error)}")


def _make_file(file: Path, meta: Mapping[str, str]) -> None:
    """Make the tables under another name first: a reader finds a whole record, or none."""
    partial = file.with_name(f".{file.name}.partial")
    connection = sqlite3.connect(partial, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}").fetchall()
        _set_pragmas(connection)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT)")
        connection.execute(
            "CREATE TABLE events(seq INTEGER PRIMARY KEY, t_s REAL, kind TEXT, trial INTEGER, body TEXT)"
        )
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute("COMMIT")
    finally:
        connection.close()  # the last connection: its log goes into the file, which is then alone
    os.replace(partial, file)


def _set_pragmas(connection: sqlite3.Connection) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "wal_autocheckpoint=0"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _explanation(error: BaseException) -> str:
    """What went wrong and what to do about it, for the errors that disks make."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full. Free some space or set FANWISE_HOME to another disk."
    if code == sqlite3.SQLITE_READONLY or isinstance(error, PermissionError):
        return f"it may not be written ({error}). Allow it or set FANWISE_HOME to a folder of yours."
    if code == sqlite3.SQLITE_BUSY:
        return "another process holds its lock. Only the tuner may write to it."
    return f"{error}. Look at the disk (full? failing? a limit on file sizes?) or set FANWISE_HOME to another one."


def _make_inert_after_fork(record: Record) -> None:
    global _fork_hook_set
    _open_records.add(record)
    if not _fork_hook_set and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_abandon_all)
        _fork_hook_set = True


def _abandon_all() -> None:
    for record in list(_open_records):
        record._abandon()
    _open_records.clear()
