"""The files of a record, and functions to read them, even while the search runs or after a crash.

    meta.json       name, space, scheduler, seed, versions, ...; written when the experiment is created
    summary.json    counts and the best report, for lists of experiments; replaced every few seconds
    events.jsonl    one event per line, append-only:

    {"seq":3,"t":0.25,"kind":"report","trial":0,"body":{...},"crc":"1c291ca3"}

`seq` is the number of the line, and `crc` the CRC-32 of the bytes before `,"crc"`, in hexadecimal.

An `EventReader` remembers how far it has read, so that following a running search costs only as much as its new events.
Readers write nothing and take no locks. They skip incomplete or damaged lines at the end of the file, which are still
being written or were left by a crash.
"""

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from ...base.errors import RecordError
from ...base.home import RECORD_NAME
from .event_codec import RecordedEvent

# (major, minor). Another major version cannot be read. A higher minor version may have further kinds of events, which
# are skipped when the record is shown, but cannot be replayed.
FORMAT: Final = (3, 0)
EVENTS_NAME: Final = RECORD_NAME
META_NAME: Final = "meta.json"
SUMMARY_NAME: Final = "summary.json"

_CHUNK_BYTES = 4 << 20
_HEAD: Final = re.compile(rb'\{"seq":(\d+),"t":[^,]+,"kind":"(\w+)"')
_CRC_BYTES: Final = len(b',"crc":"1c291ca3"}')
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=True).encode


def line_of(seq: int, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> bytes:
    """Return the line of an event, with its line break. Raises TypeError if `body` cannot be encoded as JSON."""
    trial = "null" if trial_id is None else trial_id
    text = f'{{"seq":{seq},"t":{float(t_s)!r},"kind":"{kind}","trial":{trial},"body":{_encode(body)}'.encode()
    return b'%b,"crc":"%08x"}\n' % (text, zlib.crc32(text))


def read_meta(folder: Path) -> dict[str, Any]:
    """Return `meta.json` (name, space, metric, seed, ...), and `summary.json` as the key `summary` if it exists.

    Raises RecordError if there is no record, or it is damaged or has another format.
    """
    _check_folder(folder)
    meta = _read_json(folder / META_NAME)
    if meta is None:
        raise RecordError(f"{folder} is not an experiment: it has no {META_NAME}.")
    if "format" not in meta:
        raise RecordError(f"{folder / META_NAME} is not the record of an experiment: it has no key 'format'.")
    recorded = meta["format"]
    if not isinstance(recorded, list) or recorded[:1] != [FORMAT[0]]:
        raise RecordError(
            f"{folder} has format {recorded!r}, and this version of fanwise reads format {list(FORMAT)}. "
            f"Open it with the version that wrote it ({meta.get('versions')!r})."
        )
    summary = _read_json(folder / SUMMARY_NAME)
    return meta if summary is None else {**meta, "summary": summary}


def read_events(folder: Path) -> list[RecordedEvent]:
    return list(iter_events(folder))


def iter_events(folder: Path, kinds: Sequence[str] = ()) -> Iterator[RecordedEvent]:
    """Yield the events of these kinds (empty: all) with little memory. Raises RecordError as `EventReader` does."""
    for events in EventReader(folder).read(kinds):
        yield from events


@final
class EventReader:
    """Reads events in order. Each `read` continues where the last one ended.

    Attributes:
        last_seq: sequence number of the last event that was read.
        offset: number of bytes up to the end of the last event that was read.
        torn_bytes: number of bytes after the last intact line, set when `read` reaches the end.

    Raises RecordError if the folder is not an experiment.
    """

    def __init__(self, folder: Path) -> None:
        _check_folder(folder)
        self.file = folder / EVENTS_NAME
        self.last_seq = 0
        self.offset = 0
        self.torn_bytes = 0

    def read(self, kinds: Sequence[str] = ()) -> Iterator[list[RecordedEvent]]:
        """Yield the new events of these kinds (empty: all) in lists.

        Raises RecordError if the file cannot be read, or is damaged. The message names the line.
        """
        self.torn_bytes = 0
        try:
            with open(self.file, "rb") as log:
                size = os.fstat(log.fileno()).st_size
                if size < self.offset:
                    raise RecordError(f"{self.file} is shorter than before: it was replaced or truncated.")
                log.seek(self.offset)
                partial = b""  # a line whose end has not been read or written yet
                while chunk := log.read(_CHUNK_BYTES):
                    *lines, partial = (partial + chunk).split(b"\n")
                    num_intact = next((index for index, line in enumerate(lines) if not _is_intact(line)), len(lines))
                    if num_intact < len(lines):
                        # A crash can leave invalid lines only at the end of the file.
                        later_lines = [*lines[num_intact + 1 :], *(partial + log.read()).split(b"\n")]
                        if any(map(_is_intact, later_lines)):
                            raise self._damage_error(num_intact, "its checksum is wrong")
                    if events := self._decode(lines[:num_intact], kinds):
                        yield events
                    if num_intact < len(lines):
                        break
                self.torn_bytes = max(0, size - self.offset)
        except OSError as error:
            raise RecordError(f"{self.file} cannot be read: {error.strerror}.") from error

    def _decode(self, lines: Sequence[bytes], kinds: Sequence[str]) -> list[RecordedEvent]:
        """Decode intact lines and advance past them."""
        if not lines:
            return []
        for index in (0, len(lines) - 1):  # if both have the expected numbers, no line is missing
            match = _HEAD.match(lines[index])
            if match is None:
                raise self._damage_error(index, "it is not an event")
            seq, expected_seq = int(match[1]), self.last_seq + 1 + index
            if seq != expected_seq:
                problem = f"its sequence number is {seq}, not {expected_seq}; two programs may have written to the file"
                raise self._damage_error(index, problem)
        selected = [line for line in lines if _kind_of(line) in kinds] if kinds else lines
        try:
            rows = json.loads(b"[%b]" % b",".join(selected))  # one call, which is three times as fast
            events = [RecordedEvent(row["seq"], row["t"], row["kind"], row["trial"], row["body"]) for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise self._damage_error(0, f"this line or a later one is not an event ({error})") from None
        self.last_seq += len(lines)
        self.offset += sum(map(len, lines)) + len(lines)
        return events

    def _damage_error(self, index: int, problem: str) -> RecordError:
        return RecordError(
            f"{self.file} is damaged in line {self.last_seq + 1 + index}: {problem}. Restore the file from a "
            f"backup, or delete this line and all later lines and resume from the event before."
        )


def _is_intact(line: bytes) -> bool:
    """Return True if the checksum of the line, without its line break, is right."""
    return line[-_CRC_BYTES:] == b',"crc":"%08x"}' % zlib.crc32(line[:-_CRC_BYTES])


def _kind_of(line: bytes) -> str:
    match = _HEAD.match(line)
    return "" if match is None else match[2].decode()


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise RecordError(f"There is no experiment at {folder}: no such folder.")
    if (folder / EVENTS_NAME).is_file():
        return
    raise RecordError(f"{folder} is not an experiment: the folder has no {EVENTS_NAME}.")


def _read_json(file: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if there is no file."""
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise RecordError(f"{file} is damaged: it is not JSON ({error}).") from None
    if not isinstance(content, dict):
        raise RecordError(f"{file} is damaged: it is not a JSON object.")
    return content
