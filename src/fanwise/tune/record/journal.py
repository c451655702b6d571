"""The journal of a record: what was committed last, in a plain file, until it is in the database.

    commit --into memory--> record.journal         a line each: checksum, sequence number, time, kind, trial, body
                               |
                          every 0.1 s, in one transaction (`sync`) --> record.sqlite, and the journal begins anew

The file is mapped into memory, so a commit by itself asks the kernel for nothing, where SQLite's takes ten times the
processor's time. In the database rows are cheap when they come together.

What is read is always a beginning of the history: a line counts if its checksum is right and its number is the next
one. The journal is written from its start again without being emptied, so behind its last line are older ones, which
are in the database, and pieces of them.

Readers look into the journal first and then into the database: what is moved between the two looks is seen twice and
counted once. In the other order it would be missed.

The whole file has its place on the disk from the beginning: one that is full cannot make a write fail that no error
could tell of (SIGBUS). SQLite's log of a running search needs a file system on which that works, as this does.
"""

import errno
import mmap
import os
import stat
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from ...base.errors import RecordError

FILE_NAME: Final = "record.journal"

# What does not fit goes straight into the database, with all that waits.
CAPACITY_BYTES: Final = 1 << 20

# seq, t_s, kind, trial, body (JSON)
Row = tuple[int, float, str, int | None, str]


def journal_of(record: Path) -> Path:
    """The journal beside a record's file."""
    return record.with_name(FILE_NAME)


def line_of(row: Row) -> bytes:
    """A row as a line. Bodies are JSON in ASCII without line breaks, kinds are words."""
    seq, t_s, kind, trial, body = row
    text = f"{seq} {float(t_s)!r} {kind} {'-' if trial is None else trial} {body}\n".encode()
    return b"%08x %b" % (zlib.crc32(text), text)


def rows_of(written: bytes) -> list[Row]:
    """The rows at the beginning of a journal: as far as lines are whole and their numbers follow each other."""
    rows: list[Row] = []
    start = 0
    while (end := written.find(b"\n", start)) >= 0:
        text = written[start + 9 : end + 1]
        if written[start : start + 9] != b"%08x " % zlib.crc32(text):
            break
        seq, t_s, kind, trial, body = text.decode()[:-1].split(" ", 4)
        if rows and int(seq) != rows[-1][0] + 1:
            break
        rows.append((int(seq), float(t_s), kind, None if trial == "-" else int(trial), body))
        start = end + 1
    return rows


def read_rows(record: Path) -> list[Row]:
    """What is in the journal of a record, whoever writes it; nothing where there is none."""
    file = journal_of(record)
    try:
        if not file.is_file():  # a pipe would block
            return []
        with open(file, "rb") as journal:
            return rows_of(journal.read(CAPACITY_BYTES))
    except FileNotFoundError:
        return []


def next_rows(rows: Iterable[Row], newest_seq: int) -> list[Row]:
    """Those that a database lacks whose last row is `newest_seq`."""
    later = [row for row in rows if row[0] > newest_seq]
    return later if later and later[0][0] == newest_seq + 1 else []


@final
class Journal:
    """The writer's side. One thread at a time. OSError when it is made: the disk refuses."""

    def __init__(self, record: Path) -> None:
        self._file = journal_of(record)
        self._end = 0
        fd = self._open()
        try:
            os.posix_fallocate(fd, 0, CAPACITY_BYTES)
            self._memory = mmap.mmap(fd, CAPACITY_BYTES)
        finally:
            os.close(fd)

    def _open(self) -> int:
        how = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self._file, how, 0o666)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return fd
            os.close(fd)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
        raise RecordError(f"{self._file} is a link, a folder or a pipe, and not a journal of fanwise. Remove it.")

    def write(self, rows: Sequence[Row]) -> bool:
        """Write these; afterwards they survive the death of this process. False: they do not fit, and were not."""
        lines = line_of(rows[0]) if len(rows) == 1 else b"".join(map(line_of, rows))
        end = self._end + len(lines)
        if end > CAPACITY_BYTES:
            return False
        self._memory[self._end : end] = lines
        self._end = end
        return True

    def begin_anew(self) -> None:
        """All that was written is in the database."""
        self._end = 0
        self._memory[:1] = b"\n"  # no line begins so: who reads need not read what is in the database

    def close(self) -> None:
        """Let go of the file, which stays."""
        self._memory.close()

    def remove(self) -> None:
        """All that was written is in the database, and nobody writes any more."""
        with suppress(OSError):  # somebody has removed it, or put something else there
            self._file.unlink()
