"""Replays the record of a search, to resume the search or to check that its decisions are deterministic.

In a live search, other events may occur between the request for a suggestion and the searcher's answer. A replay
therefore applies the recorded answer after these events. At the request, the searcher suggests again, or receives the
recorded answer, which restores its state. For this, rows are read ahead up to the answer, which needs little memory.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import tee
from pathlib import Path
from typing import Any, TypeAlias, final

from ...base.errors import RecordError
from ..core.actions import Suggest
from ..core.events import Event, Resumed, Suggested
from ..core.search_core import SearchCore
from ..core.suggestions import call_searcher
from ..searchers.searcher import Searcher
from ..stopping import StoppingCriterion
from .event_codec import RecordedActions, event_of
from .event_file import iter_events, read_meta
from .state import SearchState

_MAX_DIFFERENCES = 20


Row: TypeAlias = tuple[int, Event, RecordedActions]  # (sequence number, event, recorded actions)


@final
@dataclass(slots=True)
class Difference:
    """A difference in row `seq` of the record. `recorded` and `replayed` are actions or suggestions."""

    seq: int
    event: Event
    recorded: object
    replayed: object


@final
@dataclass(slots=True)
class ReplayResult:
    """The result of a replay, with the numbers of compared events, actions and suggestions.

    Args:
        num_differences: number of differences, including those not listed.
        differences: the first 20 differences.
        version_changes: library -> (recorded version, installed version), for the searcher's libraries whose version
            has changed. Set by `replay_experiment`, which then does not compare suggestions.
    """

    num_events: int = 0
    num_actions: int = 0
    num_suggestions: int = 0
    num_differences: int = 0
    differences: list[Difference] = field(default_factory=list)
    version_changes: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def add_difference(self, seq: int, event: Event, recorded: object, replayed: object) -> None:
        self.num_differences += 1
        if len(self.differences) < _MAX_DIFFERENCES:
            self.differences.append(Difference(seq, event, recorded, replayed))


def replay(
    core: SearchCore, searcher: Searcher | None, rows: Iterable[Row], *, compares_suggestions: bool
) -> ReplayResult:
    """Apply recorded events to `core` and `searcher`, so that they have the state at the end of the record.

    Args:
        core, searcher: new objects, created with the settings of the recorded search. `searcher` may be None.
        rows: the rows of the record.
        compares_suggestions: call the searcher and compare its answers. If False, pass it the recorded answers.
    """
    result = ReplayResult()
    suggestions: dict[int, object] = {}
    (rows,) = tee(rows, 1)  # makes `rows` copyable: `tee(rows)[1]` below reads ahead without advancing `rows`
    for seq, event, recorded in rows:
        result.num_events += 1
        if type(event) is Suggested and event.number in suggestions:
            result.num_suggestions += 1
            config = suggestions.pop(event.number)
            if event.error is None and config != event.config:
                result.add_difference(seq, event, event.config, config)
        actions = core.handle(event)
        if not recorded.matches(actions):
            replayed = [action for action in actions if type(action) is not Suggest]
            result.add_difference(seq, event, recorded.actions(), replayed)
        for action in actions:
            if type(action) is not Suggest:
                result.num_actions += 1
                continue
            if searcher is not None and (answer := _answer_to(action.number, tee(rows)[1])) is not None:
                if compares_suggestions:
                    suggestions[action.number] = call_searcher(searcher, action, event.now_s).config
                elif answer.error is None:
                    searcher.replay_suggestion(action.context, answer.config)
                else:
                    # The recorded call raised an exception, which ended that run. The replayed call may raise, too.
                    with suppress(Exception):
                        searcher.replay_suggestion(action.context, None)
    return result


def _answer_to(number: int, rows: Iterable[Row]) -> Suggested | None:
    """Return the recorded answer to a request, or None if the tuner ended before it arrived."""
    for _, event, _ in rows:
        if type(event) is Suggested and event.number == number:
            return event
        if type(event) is Resumed:
            return None
    return None


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
