"""Follow a running search from another process, by reading events as they are appended to its record."""

import time
from pathlib import Path
from typing import final

from .lock import is_held
from .overview import State, state_of
from .reading import EventReader, read_meta
from .snapshot import SearchSnapshot
from .state import SearchState


@final
class Following:
    """Follows a running search. Raises RecordError if the record is missing or cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._search = SearchState(read_meta(folder))
        self._reader = EventReader(folder)
        self._state: State = "unknown"
        self._last_event_s = 0.0
        self._last_event_clock_s = time.monotonic()

    def update(self) -> State:
        """Read the new events. Return the state of the search."""
        meta = read_meta(self._folder)
        is_running = is_held(self._folder)  # before the events, so that none of an ended search are missed
        for events in self._reader.read():
            self._search.fold(events)
        last_s = max(self._search.last_s, meta.get("summary", {}).get("last_s", 0.0))
        if last_s > self._last_event_s:
            self._last_event_s, self._last_event_clock_s = last_s, time.monotonic()
        self._state = state_of(finished=self._search.finished, locked=is_running)
        return self._state

    @property
    def reason(self) -> str | None:
        """Why the search ended, or starts no more trials."""
        return self._search.reason

    def news(self) -> list[str]:
        """Return the messages since the last call."""
        return self._search.news.take()

    def snapshot(self) -> SearchSnapshot:
        """Return a snapshot. While the search runs, its clock is extrapolated from the last event to now."""
        if self._state in ("finished", "broken-off"):
            return self._search.snapshot(dead=self._state == "broken-off")
        return self._search.snapshot(now_s=self._last_event_s + time.monotonic() - self._last_event_clock_s)
