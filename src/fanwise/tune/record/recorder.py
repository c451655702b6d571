"""Record the events of a search, pass them to a listener, and update the search's state.

Reports are added to the state together, when the state is read or when there are a hundred: this takes a quarter of
the time, because the caches are warm. Everything else is added at once. Nothing is committed here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, final

from ..core.actions import Action
from ..core.events import Event, Reported, Tick
from .event_codec import to_row
from .log import Record
from .state import SearchState

# Reports that are not in the state yet, at most.
_MAX_PENDING: Final = 100


@final
class Recorder:
    """See the module. `listener` is called with each event and its actions, before the state; must not block."""

    def __init__(
        self, record: Record, state: SearchState, listener: Callable[[Event, list[Action]], None] | None = None
    ) -> None:
        self._record = record
        self._state = state
        self._listener = listener
        self._reports: list[tuple[float, str, int | None, Mapping[str, Any]]] = []  # Any: JSON

    @property
    def num_trials(self) -> int:
        """The number of trials that have started. Safe to read from any thread: a start is added at once."""
        return self._state.num_trials

    @property
    def state(self) -> SearchState:
        """The state with everything recorded so far. Only for the thread that calls `write`."""
        reports, add = self._reports, self._state.add
        if reports:
            for report in reports:
                add(*report)
            reports.clear()
        return self._state

    def write(self, event: Event, actions: list[Action]) -> None:
        """Record an event and its actions. A tick of the clock that led to nothing is not recorded."""
        if not actions and type(event) is Tick:
            return
        kind, trial_id, body = to_row(event, actions)
        self._record.append(event.now_s, kind, trial_id, body)
        if self._listener is not None:
            self._listener(event, actions)
        if type(event) is Reported and len(actions) == 1 and len(self._reports) < _MAX_PENDING:
            self._reports.append((event.now_s, kind, trial_id, body))
        else:
            self.state.add(event.now_s, kind, trial_id, body)
