"""Restores the state machine of a search from its record, and checks that a replay makes the same decisions."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...base.errors import RecordError
from ..core.replay import Row, replay
from ..core.search_core import SearchCore
from ..searchers.searcher import Searcher
from ..stopping import StoppingCriterion
from .event_codec import RecordedActions, event_of
from .event_file import iter_events, read_meta
from .state import SearchState


def restore(folder: Path, core: SearchCore, searcher: Searcher | None) -> SearchState:
    """Replay the record in a new SearchCore and a new searcher. Return the state of the search, without news.

    Raises RecordError if the record cannot be read, an event is invalid, or the scheduler decides differently now.
    """
    state = SearchState(read_meta(folder))
    replayed = replay(core, searcher, rows_of(folder, state), compares_suggestions=False)
    state.news.take()
    if replayed.differences:
        difference = replayed.differences[0]
        raise RecordError(
            f"{folder.name} cannot be resumed: from event {difference.seq} on, the scheduler makes other decisions "
            f"than when the record was written.\n  then: {difference.recorded!r}\n  now:  {difference.replayed!r}\n"
            f"Has the scheduler's code changed, or does it use random numbers or a clock of its own? "
            f"`fanwise tune replay {folder.name}` lists the differences. Resume with the code of the original search."
        )
    return state


def rows_of(folder: Path, state: SearchState | None = None) -> Iterator[Row]:
    """Yield the rows of a record for a replay, and add their events to `state`. Raises RecordError for invalid rows."""
    for recorded in iter_events(folder):
        kind, body = recorded.kind, recorded.body
        if state is not None:
            state.add(recorded.t_s, kind, recorded.trial_id, body)
        try:
            event = event_of(kind, recorded.t_s, recorded.trial_id, body)
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(
                f"event {recorded.seq} ({kind}) of {folder} is invalid ({type(error).__name__}: {error}). "
                f"Was it written by a newer version of fanwise?"
            ) from error
        yield recorded.seq, event, RecordedActions(kind, recorded.trial_id, body)


def recorded_versions(folder: Path, meta: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return {library: its versions in order of use}. A search may have been resumed with other versions."""
    versions = {name: [version] for name, version in meta.get("versions", {}).items()}
    for event in iter_events(folder, kinds=("resumed",)):
        for name, version in (event.body.get("versions") or {}).items():
            versions_of_library = versions.setdefault(name, [])
            if version not in versions_of_library:
                versions_of_library.append(version)
    return versions


def last_settings(folder: Path, meta: Mapping[str, Any]) -> tuple[int, StoppingCriterion]:
    """Return the current number of workers and stopping criterion, which commands and resumes can change."""
    n_workers, stop = int(meta["n_workers"]), meta["stop"]
    for event in iter_events(folder, kinds=("resumed", "workers")):
        n_workers = event.body["n_workers"] or n_workers
        stop = event.body.get("stop") or stop
    return n_workers, StoppingCriterion(**stop)
