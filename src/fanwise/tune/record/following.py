"""Follow a running search from another process, by reading the events that its record gets."""

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
    """A search that is followed. Raises RecordError: there is no record, or it cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._search = SearchState(read_meta(folder))
        self._reader = EventReader(folder)
        self._state: State = "unknown"
        self._at_s = 0.0
        self._seen_s = time.monotonic()

    def update(self) -> State:
        """Read the new events. Return the state of the search."""
        meta = read_meta(self._folder)
        is_running = is_held(self._folder)  # before the events, so that the last ones it wrote are read
        for events in self._reader.read():
            self._search.fold(events)
        known_s = max(self._search.last_s, meta.get("summary", {}).get("last_s", 0.0))
        if known_s > self._at_s:
            self._at_s, self._seen_s = known_s, time.monotonic()
        self._state = state_of(finished=self._search.finished, held=is_running)
        return self._state

    @property
    def reason(self) -> str | None:
        """Why the search ended, or starts no more trials."""
        return self._search.reason

    def news(self) -> list[str]:
        """The lines since the last call."""
        return self._search.news.take()

    def snapshot(self) -> SearchSnapshot:
        """The table of the search. While it runs, time passes between two events."""
        if self._state in ("finished", "broken-off"):
            return self._search.snapshot(dead=self._state == "broken-off")
        return self._search.snapshot(now_s=self._at_s + time.monotonic() - self._seen_s)
