"""Replays recorded events, to resume a search or to check that it is deterministic.

In a live search, other events may occur between the request for a suggestion and the searcher's answer. A replay
therefore applies the recorded answer after these events. At the request, the searcher suggests again, or receives the
recorded answer, which restores its state. For this, rows are read ahead up to the answer, which needs little memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import tee
from typing import Protocol, TypeAlias, final

from ..searchers.searcher import Searcher
from .actions import Action, Suggest
from .events import Event, Resumed, Suggested
from .search_core import SearchCore
from .suggestions import call_searcher

_MAX_DIFFERENCES = 20


class RowActions(Protocol):
    """The recorded actions of a row. See `RecordedActions`, which this package must not import."""

    def matches(self, actions: Sequence[Action]) -> bool: ...
    def actions(self) -> list[Action]: ...


Row: TypeAlias = tuple[int, Event, RowActions]  # (sequence number, event, recorded actions)


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
