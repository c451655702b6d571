"""Write the record of an experiment: an append-only log of events, `events.jsonl`, with one writer.

    search's thread:  append, append, ...   buffered
                      commit                one write() of all buffered events; then the answers may leave
    sync thread:      fdatasync             every 0.1 s, if there are new events

Committed events survive the death of the process, also by kill -9, and once synced a power cut: at most the last 0.15 s
are lost, if a sync takes up to 50 ms. The writer holds a lock (`lock`) as long as the record is open.

Invariants: sequence numbers are 1, 2, 3, ... without a gap; lines are never changed; one thread at a time uses a
`Record`; after a fork, the child cannot write.
"""

import errno
import json
import os
import resource
import shutil
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

from ...base.errors import ClosedError, ExperimentExistsError, RecordError
from .lines import line_of
from .lock import HeldError, hold, release, remove
from .reading import FILE_NAME, FORMAT, META_NAME, SUMMARY_NAME, EventReader, read_meta

SYNC_EVERY_S: Final = 0.1

# Process-wide: a fork makes these records unusable in the child.
_open_records: "weakref.WeakSet[Record]" = weakref.WeakSet()
_fork_hook_set = False


def sync_data(fd: int) -> None:
    """Wait until the file's data is on the disk."""
    getattr(os, "fdatasync", os.fsync)(fd)  # macOS has no fdatasync


@final
class Record:
    """Writes the events of one experiment. Made by `create` or `reopen`.

    Attributes:
        folder: the experiment's.
        notices: lines to show to the user.

    >>> record = Record.create(folder, {"name": "lenet"})
    >>> record.append(0.25, "start", 0, {"config": {"lr": 0.1}, "attempt": 0})
    1
    >>> record.commit()
    >>> record.close()
    >>> read_events(folder)[0].kind
    'start'
    """

    def __init__(
        self, folder: Path, lock_fd: int | None, last_seq: int, size: int, fdatasync: Callable[[int], None]
    ) -> None:
        self.folder = folder
        self.notices: list[str] = []
        self._lock_fd: int | None = lock_fd
        self._next_seq = last_seq + 1
        self._lines: list[bytes] = []
        self._size = size  # bytes that are committed
        self._ended: str | None = None
        self._fd = os.open(folder / FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._sync = _Sync(self._fd, fdatasync)
        _make_unusable_after_fork(self)

    @classmethod
    def create(
        cls,
        folder: Path,
        meta: Mapping[str, Any],  # Any: JSON
        *,
        fdatasync: Callable[[int], None] = sync_data,
    ) -> "Record":
        """Make the experiment's folder (mode 0700) and an empty record in it, which readers can open at once.

        Args:
            folder: must not exist; the folders above it are made.
            meta: JSON; the key `format` is added.
            fdatasync: waits for the disk; an argument so that tests can let it fail.

        Raises:
            FileExistsError: `folder` exists.
            TypeError: `meta` is not JSON.
            RecordError: the disk refuses; nothing is left behind.
        """
        encoded = json.dumps({**meta, "format": FORMAT})
        _make_folder(folder)
        lock_fd: int | None = None
        try:
            lock_fd = hold(folder)  # before the record exists, so that nobody finds it unlocked
            _replace(folder / META_NAME, encoded, sync=True)
            os.close(os.open(folder / FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            _sync_folder(folder)
            _sync_folder(folder.parent)
            return cls(folder, lock_fd, 0, 0, fdatasync)
        except BaseException as error:
            release(lock_fd)
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                folder.rmdir()  # rmtree needs to open the folder, and there may be too many open files
            if isinstance(error, OSError):
                raise _not_made(folder, error) from error
            raise

    @classmethod
    def reopen(cls, folder: Path, *, fdatasync: Callable[[int], None] = sync_data) -> "Record":
        """Open the record of an experiment whose tuner has ended, however it ended, to append to it.

        An incomplete last line, as a crash leaves it, is cut off; `notices` says so.

        Raises:
            RecordError: there is no record, another tuner writes to it, it is damaged or has another format, or the
                disk refuses.
        """
        read_meta(folder)
        try:
            lock_fd = hold(folder)
        except HeldError:
            raise RecordError(
                f"{folder} is being written by another tuner. One experiment has one tuner at a time: wait for it "
                f"to end, or stop it (fanwise tune stop {folder.name})."
            ) from None
        except OSError as error:
            raise RecordError(f"{folder} cannot be resumed: {_explanation(error)}") from error
        try:
            reader = EventReader(folder)
            for _ in reader.read():
                pass
            if reader.torn_bytes:
                os.truncate(folder / FILE_NAME, reader.offset)
            record = cls(folder, lock_fd, reader.last_seq, reader.offset, fdatasync)
        except BaseException as error:
            release(lock_fd)
            if isinstance(error, OSError):
                raise RecordError(f"{folder} cannot be resumed: {_explanation(error)}") from error
            raise
        if reader.torn_bytes:
            record.notices.append(
                f"{FILE_NAME} ended with an incomplete line, as after a crash: {reader.torn_bytes} bytes were cut off"
            )
        return record

    @property
    def next_seq(self) -> int:
        """The sequence number that the next event gets."""
        return self._next_seq

    def set_summary(self, summary: Mapping[str, Any]) -> None:  # Any: JSON
        """Replace `summary.json`, at once. Errors as `commit`."""
        self._check_usable()
        try:
            _replace(self.folder / SUMMARY_NAME, json.dumps(summary))
        except OSError as error:
            raise self._error(error) from error

    def append(self, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> int:  # Any: JSON
        """Buffer one event for the next commit and return its sequence number. Writes nothing.

        Args:
            t_s: seconds since the search began.
            kind: what happened.
            trial_id: the trial it happened to, or None.
            body: JSON; encoded now, so that later changes of it do not matter.

        Raises:
            TypeError: `body` is not JSON.
            ClosedError: the record is closed, or this is a fork of the process that made it.
        """
        self._check_usable()
        seq = self._next_seq
        self._lines.append(line_of(seq, t_s, kind, trial_id, body))
        self._next_seq = seq + 1
        return seq

    def commit(self) -> None:
        """Write all buffered events. Afterwards they survive the death of this process, and readers see them.

        Does not wait for the disk. Does nothing when nothing is buffered.

        Raises:
            RecordError: the file cannot be written; the events stay buffered, and a later commit tries again. Or what
                an earlier commit wrote could not be synced: then every further commit raises.
            ClosedError: as `append`.
        """
        self._check_usable()
        if self._sync.failure is not None:
            raise self._error(self._sync.failure) from self._sync.failure
        if not self._lines:
            return
        data = b"".join(self._lines)
        try:
            self._write(data)
        except OSError as error:
            raise self._error(error) from error
        self._size += len(data)
        self._lines.clear()
        self._sync.wake()

    def close(self) -> None:
        """Commit the buffered events, sync, and release the lock. Closing twice is fine.

        Raises:
            RecordError: something could not be written. The record is closed all the same.
        """
        if self._ended is not None:
            return
        failure: RecordError | None = None
        try:
            self.commit()
        except RecordError as error:
            failure = error
        self._sync.close()
        if failure is None and self._sync.failure is not None:
            failure = self._error(self._sync.failure)
            failure.__cause__ = self._sync.failure
        self._ended = f"The record of {self.folder} is closed."
        _open_records.discard(self)
        with suppress(OSError):
            os.close(self._fd)
        if failure is None:
            with suppress(OSError):  # a lock file that stays does no harm
                remove(self.folder)
        self._release()
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        """Append all of it or nothing."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:] if written else data)
        except BaseException:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError as error:
                self._sync.failure = self._sync.failure or error
            raise

    def _check_usable(self) -> None:
        if self._ended is not None:
            raise ClosedError(self._ended)

    def _error(self, error: BaseException) -> RecordError:
        last = self._next_seq - len(self._lines) - 1
        return RecordError(
            f"{self.folder / FILE_NAME} cannot be written: {_explanation(error)} Committed up to event {last}."
        )

    def _abandon(self) -> None:
        """Called in the child of a fork: never write again. The parent keeps its lock."""
        self._ended = f"The record of {self.folder} belongs to the process that this one was forked from."
        with suppress(OSError):
            os.close(self._fd)
        self._release()

    def _release(self) -> None:
        lock_fd, self._lock_fd = self._lock_fd, None
        release(lock_fd)


@final
class _Sync:
    """A thread that syncs a file 0.1 s after the last time, if something was written.

    A failed sync is final: Linux then marks the data as written, and a second sync would succeed without writing it.
    """

    def __init__(self, fd: int, fdatasync: Callable[[int], None]) -> None:
        self.failure: BaseException | None = None
        self._fd = fd
        self._fdatasync = fdatasync
        self._written = threading.Event()
        self._closing = threading.Event()
        self.wake = self._written.set
        self._thread = threading.Thread(target=self._run, name="fanwise-record-sync", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sync a last time and end the thread."""
        self._closing.set()
        self._written.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                self._written.wait()
                self._written.clear()
                self._fdatasync(self._fd)
                if self._closing.wait(SYNC_EVERY_S):
                    self._fdatasync(self._fd)
                    return
        except BaseException as error:  # nothing is synced from now on
            self.failure = error


def _make_folder(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError as error:
        if error.filename == str(folder):
            raise ExperimentExistsError(folder) from None
        raise _not_made(folder, error) from error
    except OSError as error:
        raise _not_made(folder, error) from error


def _replace(file: Path, text: str, *, sync: bool = False) -> None:
    """Write a file that readers see as it was or as it will be. `sync`: also after a power cut."""
    partial = file.with_name(f".{file.name}.partial")
    with open(partial, "w") as target:
        target.write(text)
        if sync:
            target.flush()
            os.fsync(target.fileno())
    os.replace(partial, file)


def _sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk, where the file system can do that."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def _not_made(folder: Path, error: OSError) -> RecordError:
    return RecordError(f"No experiment could be made in {folder}: {_explanation(error)}")


def _explanation(error: BaseException) -> str:
    """Say what went wrong with the disk, and what to do about it."""
    code = getattr(error, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full. Free some space or set FANWISE_HOME to another disk."
    if code in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"this process may not open more than {limit} files. Raise that (ulimit -n) or run fewer workers."
    if isinstance(error, PermissionError) or code == errno.EROFS:
        return f"permission denied ({error}). Allow it or set FANWISE_HOME to a folder of yours."
    if not isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    return f"{error}. Look at the disk (full? failing? a limit on file sizes?) or set FANWISE_HOME to another one."


def _make_unusable_after_fork(record: Record) -> None:
    global _fork_hook_set
    _open_records.add(record)
    if not _fork_hook_set and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_abandon_all)
        _fork_hook_set = True


def _abandon_all() -> None:
    for record in list(_open_records):
        record._abandon()
    _open_records.clear()
