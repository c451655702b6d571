"""A running search, seen from another process: the rows that its record gets, folded as they come.

    record --look()--> state     then news() and snapshot(), as the tuner's own screen has them

Bounded, whatever the number of trials, but for the one time in which it catches up.
"""

import time
from pathlib import Path
from typing import final

from .lock import is_held
from .overview import State, state_of
from .progress import Progress
from .reading import EventReader, read_meta
from .snapshot import SearchSnapshot


@final
class Following:
    """See the module. Raises RecordError: there is no record, or it cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._progress = Progress(read_meta(folder))
        self._reader = EventReader(folder)
        self._state: State = "unknown"
        self._at_s = 0.0
        self._seen_s = time.monotonic()

    def look(self) -> State:
        """Take in what has happened since the last look; returns the state of the search."""
        meta = read_meta(self._folder)
        held = is_held(self._folder)  # before the events: what it wrote last is seen
        for events in self._reader.read():
            for event in events:
                self._progress.fold(event.t_s, event.kind, event.trial_id, event.body)
        known_s = max(self._progress.last_s, meta.get("summary", {}).get("last_s", 0.0))
        if known_s > self._at_s:
            self._at_s, self._seen_s = known_s, time.monotonic()
        self._state = state_of(finished=self._progress.finished, held=held)
        return self._state

    @property
    def reason(self) -> str | None:
        """Why the search ended, or starts nothing more."""
        return self._progress.reason

    def news(self) -> list[str]:
        """The lines since the last call."""
        return self._progress.news()

    def snapshot(self) -> SearchSnapshot:
        """What is shown of the search. While it runs its clock goes on between two events."""
        if self._state in ("finished", "broken-off"):
            return self._progress.snapshot(dead=self._state == "broken-off")
        return self._progress.snapshot(now_s=self._at_s + time.monotonic() - self._seen_s)
