"""Change records as somebody could who opens their files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fanwise.tune.record.event_file import EVENTS_NAME, META_NAME, line_of, read_events


def edit_meta(folder: Path, **changes: Any) -> None:  # Any: JSON
    """Replace values in `meta.json`."""
    file = folder / META_NAME
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def edit_events(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:  # Any: JSON
    """Apply `change` to each event (keys kind, trial, body) and write all lines anew, with their checksums."""
    lines = []
    for event in read_events(folder):
        fields: dict[str, Any] = {"kind": event.kind, "trial": event.trial_id, "body": dict(event.body)}
        change(fields)
        lines.append(line_of(event.seq, event.t_s, fields["kind"], fields["trial"], fields["body"]))
    (folder / EVENTS_NAME).write_bytes(b"".join(lines))
