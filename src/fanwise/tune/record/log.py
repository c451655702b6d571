"""Writes the record of an experiment: an append-only log of events, `events.jsonl`, with one writer.

    search thread:  append, append, ...   buffer events
                    commit                write all buffered events by one write()
    sync thread:    fdatasync             every 0.1 s, if there are new events

Committed events survive the death of the process, even by kill -9. Synced events also survive a power cut. If a sync
takes up to 50 ms, a power cut loses at most the last 0.15 s. The writer holds a lock (`lock`) while the record is open.

Invariants: Sequence numbers are 1, 2, 3, ... without a gap. Lines never change. Only one thread at a time uses a
`Record`. After a fork, the child cannot write.
"""

import errno
import json
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self, final

from ...base.atomic_file import atomic_file
from ...base.errors import ClosedError, ExperimentExistsError, RecordError
from ..core.actions import Action
from ..core.events import Event, Reported, Tick
from .event_codec import to_row
from .event_file import EVENTS_NAME, FORMAT, META_NAME, SUMMARY_NAME, EventReader, line_of, read_meta
from .lock import HeldError, hold, release
from .state import SearchState

SYNC_EVERY_S: Final = 0.1
_MAX_PENDING_REPORTS: Final = 100

_open_records: "weakref.WeakSet[Record]" = weakref.WeakSet()


def sync_data(fd: int) -> None:
    """Wait until the file's data is on the disk."""
    getattr(os, "fdatasync", os.fsync)(fd)  # macOS has no fdatasync


@final
class Record:
    """Writes the events of one experiment. Create it with `create` or `reopen`.

    Attributes:
        folder: the experiment's folder.
        next_seq: sequence number of the next event.
        notices: lines for the user about repairs by `reopen`.
    """

    def __init__(self, folder: Path, lock_fd: int | None, last_seq: int, size: int) -> None:
        self.folder = folder
        self.notices: list[str] = []
        self._lock_fd = lock_fd
        self.next_seq = last_seq + 1
        self._lines: list[bytes] = []  # buffered events
        self._size = size  # size of the committed events in bytes
        self._closed_reason: str | None = None
        self._fd = os.open(folder / EVENTS_NAME, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._sync = _SyncThread(self._fd)
        _open_records.add(self)

    @classmethod
    def create(cls, folder: Path, meta: Mapping[str, Any]) -> "Record":
        """Create the experiment's folder (mode 0700) with an empty record, and its missing parent folders.

        Args:
            folder: must not exist.
            meta: content of `meta.json`, to which the key `format` is added.

        Raises:
            ExperimentExistsError: `folder` exists.
            TypeError: `meta` cannot be encoded as JSON.
            RecordError: the folder or a file cannot be written. The folder is removed again.
        """
        text = json.dumps({**meta, "format": FORMAT})
        with _wrap_os_errors(f"The experiment {folder} could not be created"), ExitStack() as stack:
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                raise ExperimentExistsError(folder) from None
            stack.callback(_remove_folder, folder)
            lock_fd = hold(folder)  # before the record exists, so that no reader sees an unlocked record
            stack.callback(release, lock_fd)
            with atomic_file(folder / META_NAME, sync=True) as meta_file:
                meta_file.write_text(text)
            os.close(os.open(folder / EVENTS_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            _sync_folder(folder)
            _sync_folder(folder.parent)
            record = cls(folder, lock_fd, 0, 0)
            stack.pop_all()
        return record

    @classmethod
    def reopen(cls, folder: Path) -> "Record":
        """Open the record of an experiment whose tuner has ended, to append to it.

        Incomplete or damaged lines at the end, as left by a crash, are cut off and reported in `notices`.

        Raises RecordError if there is no record, another tuner writes to it, it is damaged or has another format, or it
        cannot be written.
        """
        read_meta(folder)
        with _wrap_os_errors(f"{folder} cannot be resumed"), ExitStack() as stack:
            try:
                lock_fd = hold(folder)
            except HeldError:
                raise RecordError(
                    f"{folder} is being written by another tuner. One experiment has one tuner at a time: wait for it "
                    f"to end, or stop it (fanwise tune stop {folder.name})."
                ) from None
            stack.callback(release, lock_fd)
            reader = EventReader(folder)
            for _ in reader.read():  # find the end of the last intact line
                pass
            if reader.torn_bytes:
                os.truncate(folder / EVENTS_NAME, reader.offset)
            record = cls(folder, lock_fd, reader.last_seq, reader.offset)
            stack.pop_all()
        if reader.torn_bytes:
            record.notices.append(
                f"{EVENTS_NAME} ended with damaged lines, as after a crash: {reader.torn_bytes} bytes were cut off"
            )
        return record

    def set_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace `summary.json` now. Raises RecordError if it cannot be written, and ClosedError like `append`."""
        if self._closed_reason is not None:
            raise ClosedError(self._closed_reason)
        try:
            with atomic_file(self.folder / SUMMARY_NAME) as summary_file:
                summary_file.write_text(json.dumps(summary))
        except OSError as error:
            raise self._error(error) from error

    def append(self, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> int:
        """Buffer one event for the next commit and return its sequence number.

        `body` is encoded at once, so later changes to it have no effect.

        Raises:
            TypeError: `body` cannot be encoded as JSON.
            ClosedError: the record is closed, or this process is a fork of the one that opened it.
        """
        if self._closed_reason is not None:
            raise ClosedError(self._closed_reason)
        seq = self.next_seq
        self._lines.append(line_of(seq, t_s, kind, trial_id, body))
        self.next_seq = seq + 1
        return seq

    def commit(self) -> None:
        """Write all buffered events, so that they survive the death of this process. Does not wait for the disk.

        Raises:
            RecordError: the file cannot be written; the next commit tries again. After a failed sync, every commit
                raises this error.
            ClosedError: see `append`.
        """
        if self._closed_reason is not None:
            raise ClosedError(self._closed_reason)
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
        self._sync.has_new_events = True

    def close(self) -> None:
        """Commit the buffered events, block until they are on the disk, and release the lock. Idempotent.

        Raises RecordError if an event could not be written or synced. The record is closed nevertheless.
        """
        if self._closed_reason is not None:
            return
        try:
            try:
                self.commit()
            finally:
                self._sync.close()
            if self._sync.failure is not None:
                raise self._error(self._sync.failure) from self._sync.failure
        finally:
            self._end(f"The record of {self.folder} is closed.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        """Append all of the data, or raise an error and leave the file as it was."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:] if written else data)
        except BaseException:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError as error:  # the file may end with an incomplete line, so no event may follow
                self._sync.failure = self._sync.failure or error
            raise

    def _error(self, error: BaseException) -> RecordError:
        last_seq, file = self.next_seq - len(self._lines) - 1, self.folder / EVENTS_NAME
        return RecordError(f"{file} cannot be written: {_explanation(error)} Committed up to event {last_seq}.")

    def _end(self, reason: str) -> None:
        """Close the descriptors. In the child of a fork, this does not release the lock of the parent."""
        self._closed_reason = reason
        _open_records.discard(self)
        with suppress(OSError):
            os.close(self._fd)
        lock_fd, self._lock_fd = self._lock_fd, None
        release(lock_fd)


@final
class Recorder:
    """Records the events of a search, passes them to a listener, and adds them to the state of the search.

    Reports are added to the state in batches, when the state is read or when 100 reports are pending. A batch takes a
    quarter of the time, because the CPU caches stay warm. All other events are added at once. Nothing is committed.

    Args:
        record: the open record.
        state: the state of the search after the events in the record.
        listener: called with each event and its actions before they are added to the state. If the event is a report,
            the state may also lack the reports directly before it. The listener must not block.
    """

    def __init__(
        self, record: Record, state: SearchState, listener: Callable[[Event, list[Action]], None] | None = None
    ) -> None:
        self._record = record
        self._state = state
        self._listener = listener
        self._pending: list[tuple[float, str, int | None, Mapping[str, Any]]] = []  # reports to be added to the state
        self.news = state.news  # lines about the events; reports have none

    @property
    def state(self) -> SearchState:
        """The state after all recorded events. May only be read by the thread that calls `write`."""
        reports, add = self._pending, self._state.add
        if reports:
            for report in reports:
                add(*report)
            reports.clear()
        return self._state

    def write(self, event: Event, actions: list[Action]) -> None:
        """Record an event and its actions, unless it is a tick without actions."""
        if not actions and type(event) is Tick:
            return
        kind, trial_id, body = to_row(event, actions)
        self._record.append(event.now_s, kind, trial_id, body)
        is_pending = type(event) is Reported and len(actions) == 1 and len(self._pending) < _MAX_PENDING_REPORTS
        state = self._state if is_pending else self.state  # the property adds the pending reports
        if self._listener is not None:
            self._listener(event, actions)
        if is_pending:
            self._pending.append((event.now_s, kind, trial_id, body))
        else:
            state.add(event.now_s, kind, trial_id, body)


@final
class _SyncThread:
    """A thread that syncs a file every 0.1 s if `has_new_events` was set since the last sync.

    A failed sync ends the thread. If it were repeated, it would succeed without writing: Linux marks the data as
    written even if the first sync fails.
    """

    def __init__(self, fd: int) -> None:
        self.failure: BaseException | None = None
        self.has_new_events = False
        self._fd = fd
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fanwise-record-sync", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sync once more and end the thread."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(SYNC_EVERY_S):
                if self.has_new_events:
                    self.has_new_events = False
                    sync_data(self._fd)
            sync_data(self._fd)
        except BaseException as error:
            self.failure = error


def _remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()  # rmtree opens the folder, which fails if there are too many open files


def _sync_folder(folder: Path) -> None:
    """Wait until the entries of a folder are on the disk, if the file system supports that."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


@contextmanager
def _wrap_os_errors(failure: str) -> Iterator[None]:
    """Turn an error of the file system into a RecordError that suggests a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # one of our own errors, which has a complete message
            raise
        raise RecordError(f"{failure}: {_explanation(error)}") from error


def _explanation(error: BaseException) -> str:
    if not isinstance(error, OSError):
        return f"{type(error).__name__}: {error}."
    return (
        f"{error}. Check for a full disk, missing permissions, and limits on open files and file sizes. "
        f"Set FANWISE_HOME to use another folder."
    )


def _abandon_all() -> None:
    for record in list(_open_records):
        record._end(f"The record of {record.folder} belongs to the process that this one was forked from.")


os.register_at_fork(after_in_child=_abandon_all)
