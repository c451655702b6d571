"""Reading the record of an experiment: while it is written, after a crash, or years later.

    record.sqlite    meta(key, value)                    JSON values
                     events(seq, t_s, kind, trial, body) JSON bodies, seq = 1, 2, 3, ...
    record.journal   events that are not there yet, while it is written and after a crash; see `journal.py`

Knows the format of the file and how to say that a file is not of it. Does not know what the events mean; that is
`history.py`. Never writes: every connection is read-only, and the writer is not disturbed.

A reader needs the record's folder writable, or the `-shm` file that the writer leaves, only as long as there is a
`-wal` file, that is while the writer runs and after it was killed. A closed record is one plain file.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...base.errors import RecordError
from ...base.frozen import frozen
from ...base.home import RECORD_NAME
from .filesystems import is_network
from .journal import Row, next_rows, read_rows

# [major, minor]: another major one cannot be read; a higher minor one has kinds of rows that are passed over.
FORMAT = (2, 0)
FILE_NAME = RECORD_NAME

_BUSY_S = 5.0
_CHUNK = 10_000


@frozen
class Event:
    """One row: a fact and what followed from it; see `rows.py`. `t_s` counts from the start of the search."""

    seq: int
    t_s: float
    kind: str
    trial_id: int | None
    body: Mapping[str, Any]  # Any: JSON


def read_meta(path: str | os.PathLike[str]) -> dict[str, Any]:  # Any: JSON
    """What was known when the experiment began: name, space, metric, seed and so on.

    Args:
        path: the experiment's folder, or its record.sqlite.

    Raises:
        RecordError: there is no record, or it is damaged, foreign or of another version.
    """
    file = _file_of(path)
    with _explained(file), closing(_connect(file)) as connection:
        return _checked_meta(connection, file)


def read_events(path: str | os.PathLike[str], after_seq: int = 0) -> list[Event]:
    """All events with a sequence number above `after_seq`, in order. Raises as `read_meta` does."""
    return [event for chunk in iter_events(path, after_seq) for event in chunk]


def newest_seq(path: str | os.PathLike[str]) -> int:
    """The sequence number of the last event; 0: there is none. Raises as `read_meta` does."""
    file = _file_of(path)
    with _explained(file), _both(file) as (_, newest_seq, later):
        return later[-1][0] if later else newest_seq


# The multiples of a number, between two that are bound.
_SOME_SEQS = (
    "WITH RECURSIVE some_seqs(seq) AS (SELECT ?1 UNION ALL "
    "SELECT seq + ?2 FROM some_seqs WHERE seq + ?2 <= (SELECT max(seq) FROM events))"
)


def iter_events(
    path: str | os.PathLike[str], after_seq: int = 0, kinds: Sequence[str] = (), *, reports_every: int = 1
) -> Iterator[list[Event]]:
    """The events that `read_events` returns, in lists of up to 10,000, so that a large record needs little memory.

    Args:
        kinds: only of these kinds; none: of all.
        reports_every: of the reports only those whose number is a multiple of this. The others are not even looked at.
    """
    file = _file_of(path)
    with _explained(file), _both(file) as (connection, _, later):
        wanted = f" AND kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        chosen = f"SELECT seq, t_s, kind, trial, body FROM events WHERE seq > ?{wanted}"
        if reports_every == 1:
            rows = connection.execute(f"{chosen} ORDER BY seq", (after_seq, *kinds))
        else:
            rows = connection.execute(
                f"{_SOME_SEQS} {chosen} AND kind <> 'report' "
                f"UNION ALL {chosen} AND kind = 'report' AND seq IN some_seqs ORDER BY seq",
                (after_seq // reports_every * reports_every, reports_every, after_seq, *kinds, after_seq, *kinds),
            )
        while chunk := rows.fetchmany(_CHUNK):
            yield _decoded(chunk, file)
        if chunk := [
            row
            for row in later
            if row[0] > after_seq
            and (not kinds or row[2] in kinds)
            and (row[2] != "report" or row[0] % reports_every == 0)
        ]:
            yield _decoded(chunk, file)


@contextmanager
def _both(file: Path) -> Iterator[tuple[sqlite3.Connection, int, list[Row]]]:
    """The database as it is at this moment, its last number, and what the journal has beyond that."""
    try:
        journal = read_rows(file)  # before: what moves in between is seen twice
    except OSError as error:
        raise RecordError(f"{error.filename} cannot be read: {error.strerror}.") from error
    with closing(_connect(file)) as connection:
        connection.execute("BEGIN")
        _checked_meta(connection, file)
        newest_seq = int(connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])
        yield connection, newest_seq, next_rows(journal, newest_seq)


def _file_of(path: str | os.PathLike[str]) -> Path:
    place = Path(path)
    if place.is_dir():
        file = place / FILE_NAME
        if not file.is_file():
            raise RecordError(f"{place} is not an experiment: the folder holds no {FILE_NAME}.")
        return file
    if not place.is_file():
        raise RecordError(f"There is no experiment at {place}: no such file or folder.")
    return place


def _connect(file: Path) -> sqlite3.Connection:
    try:
        return _connect_as(file, "mode=ro&immutable=1" if is_still(file) and is_network(file) else "mode=ro")
    except sqlite3.OperationalError as error:
        # An error of input or output: a file system without locks.
        refused = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)
        if error.sqlite_errorcode & 0xFF not in refused:
            raise
        if not os.access(file, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise RecordError(f"{file} cannot be read: permission denied. Ask its owner to allow it.") from None
        if is_still(file):  # nothing to take from a log, and no lock is needed on a file that nobody writes
            return _connect_as(file, "mode=ro&immutable=1")
        raise RecordError(
            f"{file} was not closed by its writer, and what it wrote last is in {file.name}-wal. Only somebody who may "
            f"write to the folder can read that. Copy the whole folder to a place of yours and open the copy."
        ) from None


def _connect_as(file: Path, how: str) -> sqlite3.Connection:
    uri = f"file:{quote(os.path.abspath(file))}?{how}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_S, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # opening alone reads nothing
    except BaseException:
        connection.close()
        raise
    return connection


def is_still(file: Path) -> bool:
    """No write-ahead log lies beside the file: it is closed, or a published copy."""
    return not file.with_name(file.name + "-wal").exists()


def _checked_meta(connection: sqlite3.Connection, file: Path) -> dict[str, Any]:  # Any: JSON
    try:
        meta = {key: json.loads(value) for key, value in connection.execute("SELECT key, value FROM meta")}
    except (ValueError, TypeError) as error:
        raise RecordError(f"{file} is damaged: its table meta holds something that is not JSON ({error}).") from None
    if "format" not in meta:
        raise RecordError(f"{file} is not the record of an experiment: its table meta has no key 'format'.")
    written = meta["format"]
    if not isinstance(written, list) or written[:1] != [FORMAT[0]]:
        raise RecordError(
            f"{file} is of format {written!r}, and this version of fanwise reads format {list(FORMAT)}. "
            f"Open it with the version that wrote it ({meta.get('versions')!r})."
        )
    return meta


def _decoded(rows: list[Row], file: Path) -> list[Event]:
    try:
        # One call for all bodies: three times as fast as one call a body.
        bodies = json.loads(f"[{','.join([row[4] for row in rows])}]")
        if len(bodies) != len(rows):
            raise ValueError("bodies that run into each other")
    except (ValueError, TypeError):
        bodies = [_decoded_body(row, file) for row in rows]
    pairs = zip(rows, bodies, strict=True)
    return [Event(seq, t_s, kind, trial_id, body) for (seq, t_s, kind, trial_id, _), body in pairs]


def _decoded_body(row: Row, file: Path) -> Any:  # Any: JSON
    try:
        return json.loads(row[4])
    except (ValueError, TypeError) as error:
        raise RecordError(f"{file} is damaged: the body of event {row[0]} is not JSON ({error}).") from None


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """SQLite's errors as ours, each with what it means for a record."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise RecordError(_explanation(error, file)) from error


def _explanation(error: sqlite3.DatabaseError, file: Path) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return f"{file} is not the record of an experiment: it is not an SQLite file."
    if code == sqlite3.SQLITE_CORRUPT:
        return f"{file} is damaged ({error}): part of it is missing or overwritten. Take it from a backup."
    if code == sqlite3.SQLITE_BUSY:
        return f"{file} was locked by another process for {_BUSY_S:g} s. Try again."
    if code == sqlite3.SQLITE_ERROR:  # "no such table", "no such column"
        return f"{file} is an SQLite file, but not the record of an experiment ({error})."
    return f"{file} cannot be read: {error}."
