"""The lines of `events.jsonl`: one JSON object for each event, with a checksum at its end.

    {"seq":3,"t":0.25,"kind":"report","trial":0,"body":{...},"crc":"1c291ca3"}

`crc` is the CRC-32 of the bytes before `,"crc"`, in hexadecimal. RecordedEvent `n` is line `n`.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...base.frozen import frozen

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=True).encode
_HEAD: Final = re.compile(rb'\{"seq":(\d+),"t":[^,]+,"kind":"(\w+)"')
# Bytes of ',"crc":"1c291ca3"}'.
_TAIL: Final = 18


@frozen
class RecordedEvent:
    """One line. `t_s` counts from the start of the search; see `rows.py` for the bodies."""

    seq: int
    t_s: float
    kind: str
    trial_id: int | None
    body: Mapping[str, Any]  # Any: JSON


def line_of(seq: int, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> bytes:  # Any: JSON
    """Return the line of an event, with its line break. Raises TypeError if `body` is not JSON."""
    trial = "null" if trial_id is None else trial_id
    text = f'{{"seq":{seq},"t":{float(t_s)!r},"kind":"{kind}","trial":{trial},"body":{_encode(body)}'.encode()
    return b'%b,"crc":"%08x"}\n' % (text, zlib.crc32(text))


def is_intact(line: bytes) -> bool:
    """Return True if the checksum of the line, without its line break, is right."""
    return line[-_TAIL:] == b',"crc":"%08x"}' % zlib.crc32(line[:-_TAIL])


def seq_of(line: bytes) -> int:
    """The sequence number of an intact line. Raises ValueError if it is not an event's."""
    head = _HEAD.match(line)
    if head is None:
        raise ValueError("the line is not an event")
    return int(head[1])


def kind_of(line: bytes) -> str:
    """The kind of an intact line. Raises ValueError if it is not an event's."""
    head = _HEAD.match(line)
    if head is None:
        raise ValueError("the line is not an event")
    return head[2].decode()


def events_of(lines: Sequence[bytes]) -> list[RecordedEvent]:
    """Decode intact lines, without line breaks. Raises ValueError, KeyError or TypeError if one is not an event."""
    decoded = json.loads(b"[%b]" % b",".join(lines))  # three times as fast as one call for each line
    return [RecordedEvent(one["seq"], one["t"], one["kind"], one["trial"], one["body"]) for one in decoded]
