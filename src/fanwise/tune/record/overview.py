"""One line about an experiment for lists, from the summary that its tuner writes, without reading the events.

The summary is a few seconds old while the tuner runs. If the tuner was killed, or has not written one yet, the events
are read instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .lock import is_held
from .reading import iter_events, read_meta
from .state import SearchState

State = Literal["running", "finished", "broken-off", "unknown"]


@dataclass(frozen=True, slots=True)
class Overview:
    """An experiment in one line. `num_lost`: trials that ran when their tuner was killed. `best`: value, trial id.

    `violated`: which constraints the best trial violates, where none meets them; "" else.
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
    num_over: Mapping[str, int]
    best: tuple[float, int] | None
    elapsed_s: float
    violated: str = ""


def overview_of(folder: Path) -> Overview:
    """Return the overview of the experiment in a folder.

    Raises:
        RecordError: there is no record, or it cannot be read.
    """
    meta = read_meta(folder)
    locked = is_held(folder)
    if locked is False:
        meta = read_meta(folder)  # it may have ended in between
    summary = meta.get("summary")
    if summary is None or (not summary["finished"] and not locked):
        summary = _read_state(folder, meta).summary()
    state = state_of(finished=summary["finished"], locked=locked)
    running = summary["num_running"]
    return Overview(
        name=str(meta.get("name", folder.name)),
        path=folder,
        state=state,
        reason=summary["reason"] if state == "finished" else None,
        metric=str(meta["metric"]),
        mode=str(meta["mode"]),
        num_trials=summary["num_trials"],
        num_running=0 if state == "broken-off" else running,
        num_paused=summary["num_paused"],
        num_lost=running if state == "broken-off" else 0,
        num_over=summary["num_over"],
        best=None if summary["best"] is None else (summary["best"][0], summary["best"][1]),
        elapsed_s=summary["last_s"],
        violated=summary.get("violated", ""),
    )


def state_of(*, finished: bool, locked: bool | None) -> State:
    """See `Experiment.state`. `locked`: True if a tuner holds the lock; None if the file system has no locks."""
    if finished:
        return "finished"
    return "running" if locked else "unknown" if locked is None else "broken-off"


def _read_state(folder: Path, meta: Mapping[str, Any]) -> SearchState:  # Any: JSON
    state = SearchState(meta)
    for events in iter_events(folder):
        state.fold(events)
    return state
