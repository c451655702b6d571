"""The record of an experiment: every event of a search, through one writer, into one SQLite file.

    tuner thread:  append, append, ...   buffered
                   commit                into the journal (`journal`); then the answers may leave
    sync:          a transaction of all that waits in the journal, fdatasync, checkpoints, copies, in its own thread

A lock beside the file (`lock`) is held while the record is open, so that readers see whether its writer lives.

Promise: what was committed survives the death of the process, kill -9 included, at once; a power cut takes at most
the last 0.15 s. Readers (`reading`) may look at any time and never wait for the writer.

Invariants: sequence numbers are 1, 2, 3, ... without a gap; events are never changed; one thread at a time uses a
`Record`; after a fork the child can do nothing with it.

Where the folder's file system is a network one or has no locks, the live file is on local disk, in a folder that the
meta key `live_file` names (on the machine `live_host`), and the experiment's folder gets a consistent copy every 10 s
and at close (`live`, `copies`). Whoever goes on with such a record on the same machine takes the live file, on another
one the copy.
"""

import json
import math
import os
import shutil
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ...base.errors import ClosedError, RecordError
from .copies import Copies, publish
from .disk_errors import explanation
from .heartbeat import EVERY_S, SILENT_S, TakenOverError, last_beat
from .journal import Journal, Row, journal_of, next_rows, read_rows
from .live import LIVE_FILE, LIVE_HOST, live_file_here, live_meta, make_live_folder, why_elsewhere
from .lock import HeldError, hold, release, remove
from .reading import FILE_NAME, FORMAT, is_still, read_meta
from .sync import RecordSync, never_free, sync_data, sync_folder

# The least that a transaction writes to the log. At SQLite's 4 KiB it would be 4.4 KB.
PAGE_BYTES = 1024

_INSERT = "INSERT INTO events(seq, t_s, kind, trial, body) VALUES (?, ?, ?, ?, ?)"

# allow_nan: NaN and infinities are written as Python reads them.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=True).encode

# The one process-wide fact: the records that a fork must make inert.
_open_records: "weakref.WeakSet[Record]" = weakref.WeakSet()
_fork_hook_set = False


class Record:
    """Writes the events of one experiment. Made by `Record.create`; used by one thread at a time.

    `notices`: lines that whoever runs the search should see: where the live file lies, and what may be missing.

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
        self.notices: list[str] = []
        self._sync: RecordSync | None = None
        self._copies: Copies | None = None
        self._held: list[int | None] = []
        self._ended: str | None = None
        self._next_seq = 1
        self._rows: list[Row] = []
        self._journal = Journal(live)
        # With the lock held: what is in the journal and not in the database, why that was refused, what the log got.
        self._waiting: list[Row] = []
        self._refused: sqlite3.Error | None = None
        self._log_bytes = 0

    @classmethod
    def create(
        cls,
        folder: Path,
        meta: Mapping[str, Any],  # Any: JSON
        *,
        copied: bool | None = None,
        copy_every_s: float = EVERY_S,
        fdatasync: Callable[[int], None] = sync_data,
    ) -> "Record":
        """Make the experiment's folder (mode 0700) and an empty record in it, which readers can open at once.

        Args:
            folder: must not exist; the folders above it are made.
            meta: JSON values; the key `format` is added.
            copied: whether the live file is on local disk and `folder` gets copies; None: where its file system or
                FANWISE_LOCAL_FOLDER asks for that.
            copy_every_s: seconds between two copies.
            fdatasync: waits for the disk; an argument so that tests can let it fail.

        Raises:
            FileExistsError: `folder` exists.
            TypeError: `meta` is not JSON.
            RecordError: the disk refuses; nothing is left behind.
        """
        encoded = {key: _encode(value) for key, value in {**meta, "format": FORMAT}.items()}
        _make_folder(folder)
        live_folder = folder
        held: list[int | None] = []
        try:
            why = _why_copied(folder, copied)
            if why is not None:
                live_folder = make_live_folder(folder.name)
                encoded |= {key: _encode(value) for key, value in live_meta(live_folder / FILE_NAME).items()}
            held.append(_hold_new(live_folder))  # before there is a record: whoever finds one finds it held
            if why is not None:
                held.append(_hold_new(folder))
            _make_file(live_folder / FILE_NAME, encoded)
            record = cls._attach(folder, live_folder, held, copy_every_s=copy_every_s, fdatasync=fdatasync)
        except BaseException as error:
            _release_all(held)
            shutil.rmtree(live_folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                folder.rmdir()  # where the one could open no folder to look into it
            if isinstance(error, (sqlite3.Error, OSError)):
                raise _not_made(folder, error) from error
            raise
        if why is not None:
            record.notices.append(_said(why, live_folder, copy_every_s))
        return record

    @classmethod
    def reopen(
        cls,
        folder: Path,
        *,
        copied: bool | None = None,
        copy_every_s: float = EVERY_S,
        fdatasync: Callable[[int], None] = sync_data,
    ) -> "Record":
        """Go on with the record of an experiment whose tuner has ended, however it ended. Arguments as `create`.

        A live file that a killed tuner has left on this machine is gone on with; else what is in the folder.

        Raises:
            RecordError: there is none, or another tuner writes to it; it is damaged or of another format; the disk.
        """
        meta = read_meta(folder)
        live = live_file_here(meta)
        held: list[int | None] = []
        notices: list[str] = []
        made: Path | None = None
        try:
            live_folder = folder if live is None else live.parent
            held.append(hold(live_folder))
            if live is not None:
                held.append(hold(folder))
                notices.append(_said("it was begun so", live_folder, copy_every_s))
            elif LIVE_FILE in meta:
                notices.append(_missing(folder, meta))
            if live is None and is_still(folder / FILE_NAME) and (why := _why_copied(folder, copied)) is not None:
                live_folder = made = make_live_folder(folder.name)
                held.append(_hold_new(live_folder))
                shutil.copyfile(folder / FILE_NAME, live_folder / FILE_NAME)
                with suppress(FileNotFoundError):  # where the log of SQLite alone is gone
                    shutil.copyfile(journal_of(folder / FILE_NAME), journal_of(live_folder / FILE_NAME))
                notices.append(_said(why, live_folder, copy_every_s))
            record = cls._attach(folder, live_folder, held, copy_every_s=copy_every_s, fdatasync=fdatasync)
            if made is not None:  # its events are in the copy, and no other history may be taken to go on with them
                journal_of(folder / FILE_NAME).unlink(missing_ok=True)
        except BaseException as error:
            _release_all(held)
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)
            if isinstance(error, HeldError):
                raise RecordError(
                    f"{folder} is being written by another tuner. One experiment has one tuner at a time: wait for it "
                    f"to end, or stop it (fanwise tune stop {folder.name}).{error}"
                ) from None
            if isinstance(error, (sqlite3.Error, OSError)):
                raise RecordError(f"{folder / FILE_NAME} cannot be gone on with: {explanation(error)}") from error
            raise
        record.notices.extend(notices)
        return record

    @classmethod
    def _attach(
        cls,
        folder: Path,
        live_folder: Path,
        held: list[int | None],
        *,
        copy_every_s: float,
        fdatasync: Callable[[int], None],
    ) -> "Record":
        """A writer of the file that lies in `live_folder`, whose locks are held."""
        live, lock = live_folder / FILE_NAME, threading.Lock()
        copies = None if live_folder == folder else Copies(live, folder, copy_every_s)
        connection = sqlite3.connect(live, isolation_level=None, check_same_thread=False, timeout=5.0)
        try:
            _set_pragmas(connection)
            newest_seq = _bring_in_journal(connection, live)
            record = cls(connection, folder, live, lock)
            record._next_seq = newest_seq + 1
            # Before the first copy: whoever sees that one knows where the rest is.
            rows = {} if copies is None else {key: _encode(value) for key, value in live_meta(live).items()}
            connection.execute("BEGIN IMMEDIATE")
            if copies is None:
                connection.execute("DELETE FROM meta WHERE key IN (?, ?)", (LIVE_FILE, LIVE_HOST))
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows.items())
            connection.execute("COMMIT")
            if copies is not None:
                copies.begin(connection)
            record._sync = RecordSync(live, lock=lock, move=record._move, copies=copies, fdatasync=fdatasync)
        except BaseException:
            connection.close()
            raise
        record._held, record._copies = held, copies
        _make_inert_after_fork(record)
        return record

    @property
    def next_seq(self) -> int:
        """The sequence number that the next event gets."""
        return self._next_seq

    def outlives_s(self) -> float:
        """What was committed before this moment of the monotonic clock is wherever a later tuner may go on from."""
        return math.inf if self._copies is None else self._copies.covered_s

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
        """Write down all buffered events. Afterwards they survive the death of this process, and readers see them.

        Waits for no disk. Does nothing when nothing is buffered.

        Raises:
            RecordError: the file cannot be written; the events stay buffered, and a later commit tries again. Or an
                earlier commit could not be brought to the disk: then every further commit raises.
            ClosedError: as `append`.
        """
        if self._ended is not None:
            raise ClosedError(self._ended)
        sync, rows = self._sync, self._rows
        assert sync is not None, "a record without its thread"
        if sync.failure is not None:
            raise self._error(sync.failure) from sync.failure
        if not rows:
            return
        with self._lock:
            try:
                if self._refused is not None:
                    self._into_database([])
                if self._journal.write(rows):
                    self._waiting += rows
                else:
                    self._into_database(rows)
            except sqlite3.Error as error:
                raise self._error(error) from error
        sync.committed()
        rows.clear()

    def _move(self) -> int:
        """Into the database with what waits in the journal. By the thread that syncs; what is refused, the next commit
        raises. Returns the bytes that were written to the log since the last time.
        """
        with self._lock:
            if self._waiting:
                with suppress(sqlite3.Error):
                    self._into_database([])
            log_bytes, self._log_bytes = self._log_bytes, 0
            return log_bytes

    def _into_database(self, rows: list[Row]) -> None:
        """What waits, and these, in one transaction; the journal is empty then. With the lock held."""
        waiting = self._waiting + rows
        try:
            self._cursor.execute("BEGIN IMMEDIATE")
            self._cursor.executemany(_INSERT, waiting)
            self._cursor.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, sqlite3.Error):
                self._refused = error
            raise
        self._refused = None
        self._log_bytes += PAGE_BYTES + sum([len(row[4]) for row in waiting])
        self._waiting.clear()
        self._journal.begin_anew()

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
        except Exception as error:
            failure = failure or self._error(error)
            failure.__cause__ = failure.__cause__ or error
        finally:
            if failure is None:
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
        sync = self._sync
        assert sync is not None, "a record without its thread"
        try:
            try:
                with self._lock:
                    self._into_database([])
            finally:
                sync.close()
                self._journal.close()
            if sync.failure is not None:
                raise sync.failure
            self._connection.execute("PRAGMA busy_timeout=1000")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            with suppress(sqlite3.OperationalError):  # a reader holds the log open: the record stays in WAL mode
                self._connection.execute("PRAGMA journal_mode=DELETE").fetchone()
            self._journal.remove()
            if self._copies is not None:
                self._copy_last(self._copies)
        finally:
            self._cursor.close()  # a statement that failed would keep the file open
            self._connection.close()
        sync_folder(self.folder)

    def _copy_last(self, copies: Copies) -> None:
        try:
            self._connection.execute("DELETE FROM meta WHERE key IN (?, ?)", (LIVE_FILE, LIVE_HOST))
            copies.end(self._connection)
        except (OSError, sqlite3.Error, TakenOverError) as error:
            with suppress(sqlite3.Error):  # a copy that was made before names it
                self._connection.executemany(
                    "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                    [(key, _encode(value)) for key, value in live_meta(self.file).items()],
                )
            raise RecordError(
                f"The record could not be put into {self.folder} ({explanation(error)}) "
                f"All of it is in {self.file}: copy it there, or go on with the experiment on this machine."
            ) from error
        remove(self.folder / FILE_NAME)
        shutil.rmtree(self.file.parent, ignore_errors=True)

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.rollback()

    def _error(self, error: BaseException) -> RecordError:
        last = self._next_seq - len(self._rows) - 1
        return RecordError(f"{self.file} cannot be written: {explanation(error)} Committed up to event {last}.")

    def _abandon(self) -> None:
        """In the child of a fork: never touch SQLite again."""
        self._ended = f"The record of {self.folder} belongs to the process that this one was forked from."
        never_free(self._connection)
        never_free(self._cursor)
        if self._sync is not None:
            self._sync.abandon()
        self._journal.close()
        self._let_go()  # of the child's descriptor only: the parent still holds the lock

    def _let_go(self) -> None:
        held, self._held = self._held, []
        _release_all(held)


def bring_up_to_date(folder: Path) -> None:
    """Where a killed tuner has left a live file on this machine: put a copy of it into the experiment's folder.

    Nothing happens where there is none, or where its tuner lives.

    Raises:
        RecordError: there is no record, or it cannot be copied.
    """
    live = live_file_here(read_meta(folder))
    if live is None:
        return
    try:
        held = hold(live.parent)
    except HeldError:
        return
    try:
        with closing(sqlite3.connect(live, isolation_level=None, timeout=5.0)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint=0")
            _bring_in_journal(connection, live)
            publish(connection, live, folder, lambda: None)
    except (OSError, sqlite3.Error) as error:
        raise RecordError(f"{live} cannot be copied to {folder}: {explanation(error)}") from error
    finally:
        release(held)


def _bring_in_journal(connection: sqlite3.Connection, live: Path) -> int:
    """What a killed writer has left in the journal goes into the database; the number of the last event then."""
    (newest_seq,) = connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
    if rows := next_rows(read_rows(live), newest_seq):
        connection.execute("PRAGMA synchronous=FULL")  # on the disk, before the journal begins anew
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_INSERT, rows)
        connection.execute("COMMIT")
        connection.execute("PRAGMA synchronous=NORMAL")
    return int(newest_seq) + len(rows)


def _hold_new(folder: Path) -> int | None:
    try:
        return hold(folder)
    except HeldError:  # a folder that was just made
        raise AssertionError(f"{folder} is new, and held") from None


def _release_all(held: list[int | None]) -> None:
    for descriptor in held:
        release(descriptor)


def _why_copied(folder: Path, copied: bool | None) -> str | None:
    """Why the live file shall be elsewhere, as a clause; None: it lies in the folder."""
    if copied is None:
        return why_elsewhere(folder)
    return "it was asked for" if copied else None


def _said(why: str, live_folder: Path, every_s: float) -> str:
    return f"the record is kept in {live_folder} and copied every {every_s:g} s, because {why}"


def _missing(folder: Path, meta: Mapping[str, Any]) -> str:  # Any: JSON
    """What a copy may lack whose live file is not here.

    Raises:
        HeldError: its tuner was heard of a moment ago.
    """
    copied_s = os.stat(folder / FILE_NAME).st_mtime
    beat = last_beat(folder)
    if beat is not None and beat.is_fresh:
        raise HeldError(
            f" It runs on {beat.host!r} (process {beat.pid}) and was heard of {beat.silent_s:.0f} s ago; "
            f"if that machine has failed, try again in {SILENT_S - beat.silent_s:.0f} s."
        )
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(copied_s))
    return (
        f"this goes on from a copy of {when}: what came after it is missing, and trials go on from before it; "
        f"the rest is in {meta[LIVE_FILE]} on {meta.get(LIVE_HOST)!r}, if that is still there: resume there to keep it"
    )


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
    return RecordError(f"No experiment could be made in {folder}: {explanation(error)}")


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
        # So that a reader who takes some of a million reports finds all the rest at once.
        connection.execute("CREATE INDEX no_reports ON events(kind) WHERE kind <> 'report'")
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute("COMMIT")
    finally:
        connection.close()  # the last connection: its log goes into the file, which is then alone
    os.replace(partial, file)


def _set_pragmas(connection: sqlite3.Connection) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "wal_autocheckpoint=0"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


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
