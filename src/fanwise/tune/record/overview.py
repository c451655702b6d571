"""Reads experiments for display, even while another process writes their records.

SearchReader    reads all events into a `SearchState`; each refresh reads only the new ones
overview_of     reads the summary that the tuner writes every few seconds, for lists of experiments
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from .event_file import EventReader, read_meta
from .lock import is_held
from .state import SearchState
from .trials import SearchSnapshot

State = Literal["running", "finished", "crashed", "unknown"]


@final
class SearchReader:
    """Reads the state of a search from its record, and updates it in `refresh`.

    Args:
        folder: the experiment's folder.
        full: keep all trials and reports; see `SearchState`.

    Attributes:
        search: counts, trials and reports after the events that have been read.
        state: "running", "finished", ... at the last refresh (see `Experiment.state`); before the first, "unknown".

    Raises RecordError if the record is missing or cannot be read. `refresh` may raise it as well.
    """

    def __init__(self, folder: Path, *, full: bool = False) -> None:
        self.folder = folder
        self.search = SearchState(read_meta(folder), full=full)
        self.state: State = "unknown"
        self._reader = EventReader(folder)
        # Time of the last event or summary on the clock of the search, and the local time when it was read.
        self._last_s: float = self.search.meta.get("summary", {}).get("last_s", 0.0)
        self._read_at_s = time.monotonic()

    def refresh(self) -> None:
        """Add the new events and update `state`."""
        is_locked = is_held(self.folder)  # read first: if no tuner holds the lock, the events are complete
        for events in self._reader.read():
            self.search.add_events(events)
        if self.search.last_s > self._last_s:
            self._last_s, self._read_at_s = self.search.last_s, time.monotonic()
        self.state = _state(is_finished=self.search.finished, is_locked=is_locked)

    @property
    def is_tuner_killed(self) -> bool:
        """True if the tuner ended before the search finished."""
        return self.state == "crashed"

    def snapshot(self) -> SearchSnapshot:
        return self.search.snapshot(now_s=self.now_s, is_tuner_killed=self.is_tuner_killed)

    @property
    def now_s(self) -> float:
        """Seconds since the search began, extrapolated from the last event unless the search has ended."""
        if self.state in ("finished", "crashed"):
            return self.search.last_s
        return self._last_s + time.monotonic() - self._read_at_s


def read_search(folder: Path) -> SearchReader:
    """Return a reader that has read all trials and reports so far. Raises RecordError as `SearchReader` does."""
    reader = SearchReader(folder, full=True)
    reader.refresh()
    return reader


@dataclass(frozen=True, slots=True)
class Overview:
    """An experiment as shown in lists of experiments.

    Attributes:
        num_lost: number of trials that were running when their tuner was killed.
        num_ended: number of ended trials by final status: Completed, Stopped or Failed.
        best: value and trial id of the best report. violated: the constraints that this report violates.
    """

    name: str
    path: Path
    state: State
    reason: str | None
    metric: str
    mode: str
    num_trials: int
    num_running: int
    num_paused: int
    num_lost: int
    num_ended: Mapping[str, int]
    best: tuple[float, int] | None
    elapsed_s: float
    violated: str = ""


def overview_of(folder: Path) -> Overview:
    """Return the overview of an experiment. Raises RecordError if its record is missing or cannot be read.

    Reads the events only if there is no summary yet, or if the search has not finished and no tuner holds the lock.
    """
    is_locked = is_held(folder)  # read first: if no tuner holds the lock, the summary is the last one
    meta = read_meta(folder)
    summary = meta.get("summary")
    if summary is None or (not summary["finished"] and not is_locked):
        reader = SearchReader(folder)
        reader.refresh()
        summary = reader.search.summary()
    state = _state(is_finished=summary["finished"], is_locked=is_locked)
    is_tuner_killed = state == "crashed"
    return Overview(
        name=str(meta.get("name", folder.name)),
        path=folder,
        state=state,
        reason=summary["reason"] if state == "finished" else None,
        metric=str(meta["metric"]),
        mode=str(meta["mode"]),
        num_trials=summary["num_trials"],
        num_running=0 if is_tuner_killed else summary["num_running"],
        num_paused=summary["num_paused"],
        num_lost=summary["num_running"] if is_tuner_killed else 0,
        num_ended=summary["num_over"],
        best=None if summary["best"] is None else (summary["best"][0], summary["best"][1]),
        elapsed_s=summary["last_s"],
        violated=summary.get("violated", ""),
    )


def _state(*, is_finished: bool, is_locked: bool | None) -> State:
    """Return the state of a search. `is_locked` is None if the file system has no locks."""
    if is_finished:
        return "finished"
    return "running" if is_locked else "unknown" if is_locked is None else "crashed"
