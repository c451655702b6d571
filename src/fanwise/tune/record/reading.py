"""Read the record of an experiment: while it is written, after a crash, or years later.

    meta.json       name, space, scheduler, seed, versions; written when the experiment begins
    summary.json    counts and the best report, for lists of experiments; replaced every few seconds
    events.jsonl    one event in each line (`lines`); only appended to

A reader keeps its position in `events.jsonl`, so that following a running search costs only as much as its new events.
It never writes and takes no locks. An incomplete last line is being written, or was cut off by a crash: it is skipped.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

from ...base.errors import RecordError
from ...base.home import RECORD_NAME
from .lines import RecordedEvent, events_of, is_intact, kind_of, seq_of

# [major, minor]: another major version cannot be read; a higher minor one has kinds of events that are skipped.
FORMAT: Final = (3, 0)
FILE_NAME: Final = RECORD_NAME
META_NAME: Final = "meta.json"
SUMMARY_NAME: Final = "summary.json"

_CHUNK_BYTES = 4 << 20
_OLD_NAME = "record.sqlite"


def read_meta(path: str | os.PathLike[str]) -> dict[str, Any]:  # Any: JSON
    """Read `meta.json` (name, space, metric, seed, ...), and the last `summary`, if any.

    Args:
        path: the experiment's folder, or its `events.jsonl`.

    Raises:
        RecordError: there is no record, or it is damaged, foreign or of another version.
    """
    folder = _file_of(path).parent
    meta = _read_json(folder / META_NAME)
    if meta is None:
        raise RecordError(f"{folder} is not an experiment: it has no {META_NAME}.")
    if "format" not in meta:
        raise RecordError(f"{folder / META_NAME} is not the record of an experiment: it has no key 'format'.")
    written = meta["format"]
    if not isinstance(written, list) or written[:1] != [FORMAT[0]]:
        raise RecordError(
            f"{folder} has format {written!r}, and this version of fanwise reads format {list(FORMAT)}. "
            f"Open it with the version that wrote it ({meta.get('versions')!r})."
        )
    summary = _read_json(folder / SUMMARY_NAME)
    return meta if summary is None else {**meta, "summary": summary}


def read_events(path: str | os.PathLike[str]) -> list[RecordedEvent]:
    """Return all events. Raises as `read_meta` does."""
    return [event for chunk in iter_events(path) for event in chunk]


def iter_events(path: str | os.PathLike[str], kinds: Sequence[str] = ()) -> Iterator[list[RecordedEvent]]:
    """Yield all events in lists, so that a large record needs little memory. `kinds`: only of these, if any are given.

    Raises as `read_meta` does.
    """
    yield from EventReader(path).read(kinds)


@final
class EventReader:
    """Reads events in order. Each `read` continues where the last one ended.

    Attributes:
        last_seq: the sequence number of the last event that was read; 0: none.
        offset: bytes of the file that were read.
        torn_bytes: bytes behind the last intact line, when the last `read` came to its end.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = _file_of(path)
        self.last_seq = 0
        self.offset = 0
        self.torn_bytes = 0

    def read(self, kinds: Sequence[str] = ()) -> Iterator[list[RecordedEvent]]:
        """Yield the new events in lists. `kinds`: only of these, if any are given.

        Raises:
            RecordError: the file cannot be read, or is damaged; names the line.
        """
        self.torn_bytes = 0
        try:
            with open(self.file, "rb") as log:
                size = os.fstat(log.fileno()).st_size
                if size < self.offset:
                    raise RecordError(f"{self.file} is shorter than before: it was replaced or cut.")
                log.seek(self.offset)
                data = b""
                while more := log.read(_CHUNK_BYTES):
                    *lines, data = (data + more).split(
                        b"\n"
                    )  # `data`: a line whose end is not read yet, or not written
                    num_intact = self._num_intact(lines)
                    if num_intact < len(lines):
                        # A crash leaves no intact line behind a torn one.
                        behind = [*lines[num_intact + 1 :], *(data + log.read()).split(b"\n")]
                        if any(map(is_intact, behind)):
                            raise self._damaged(num_intact, "its checksum is wrong")
                    if events := self._decode(lines[:num_intact], kinds):
                        yield events
                    if num_intact < len(lines):
                        break
                self.torn_bytes = max(0, size - self.offset)
        except OSError as error:
            raise RecordError(f"{self.file} cannot be read: {error.strerror}.") from error

    def _num_intact(self, lines: Sequence[bytes]) -> int:
        for index, line in enumerate(lines):
            if not is_intact(line):
                return index
        return len(lines)

    def _decode(self, lines: Sequence[bytes], kinds: Sequence[str]) -> list[RecordedEvent]:
        """Decode intact lines and move on behind them."""
        if not lines:
            return []
        for index in (0, len(lines) - 1):
            try:
                seq = seq_of(lines[index])
            except ValueError:
                raise self._damaged(index, "it is not an event") from None
            if seq != self.last_seq + 1 + index:
                raise self._damaged(index, f"it has the number {seq}. Have two programs written to it?")
        try:
            events = events_of([line for line in lines if kind_of(line) in kinds] if kinds else lines)
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(0, f"a line from there on is not an event ({error})") from None
        self.last_seq += len(lines)
        self.offset += sum(map(len, lines)) + len(lines)
        return events

    def _damaged(self, index: int, why: str) -> RecordError:
        return RecordError(
            f"{self.file} is damaged in line {self.last_seq + 1 + index}: {why}. Take it from a backup, or delete this "
            f"line and all lines after it to continue from there."
        )


def _file_of(path: str | os.PathLike[str]) -> Path:
    place = Path(path)
    if not place.is_dir():
        if not place.is_file():
            raise RecordError(f"There is no experiment at {place}: no such file or folder.")
        if place.name != FILE_NAME:
            raise RecordError(f"{place} is not the record of an experiment, which is called {FILE_NAME}.")
        return place
    file = place / FILE_NAME
    if file.is_file():
        return file
    if (place / _OLD_NAME).is_file():
        raise RecordError(
            f"{place} is a record of fanwise 0.2, which this version does not read. Export its results with 0.2: "
            f"fanwise tune export {place.name} results.csv."
        )
    raise RecordError(f"{place} is not an experiment: the folder has no {FILE_NAME}.")


def _read_json(file: Path) -> dict[str, Any] | None:  # Any: JSON
    """Return the object in a file; None: there is no file."""
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise RecordError(f"{file} is damaged: it is not JSON ({error}).") from None
    if not isinstance(content, dict):
        raise RecordError(f"{file} is damaged: it holds no JSON object.")
    return content
