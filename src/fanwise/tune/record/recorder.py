"""Records the events of a search, passes them to a listener, and adds them to the search's state.

Reports are added to the state in batches, when the state is read or when there are a hundred. This takes a quarter of
the time, because the caches are warm. All other events are added at once. Nothing is committed here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, final

from ..core.actions import Action
from ..core.events import Event, Reported, Tick
from .event_codec import to_row
from .log import Record
from .state import SearchState

_MAX_PENDING: Final = 100  # reports that are not in the state yet


@final
class Recorder:
    """See the module.

    Args:
        record: the open record.
        state: the state of the search after the events in the record.
        listener: called with each event and its actions before they are added to the state, which then has all earlier
            events, except for reports if the event is one. It must not block.
    """

    def __init__(
        self, record: Record, state: SearchState, listener: Callable[[Event, list[Action]], None] | None = None
    ) -> None:
        self._record = record
        self._state = state
        self._listener = listener
        self._reports: list[tuple[float, str, int | None, Mapping[str, Any]]] = []

    @property
    def num_trials(self) -> int:
        """Number of trials that have started. Can be read from any thread."""
        return self._state.num_trials

    @property
    def state(self) -> SearchState:
        """The state after all recorded events. Only for the thread that calls `write`."""
        reports, add = self._reports, self._state.add
        if reports:
            for report in reports:
                add(*report)
            reports.clear()
        return self._state

    def write(self, event: Event, actions: list[Action]) -> None:
        """Record an event and its actions, unless it is a tick without actions."""
        if not actions and type(event) is Tick:
            return
        kind, trial_id, body = to_row(event, actions)
        self._record.append(event.now_s, kind, trial_id, body)
        is_pending = type(event) is Reported and len(actions) == 1 and len(self._reports) < _MAX_PENDING
        state = self._state if is_pending else self.state
        if self._listener is not None:
            self._listener(event, actions)
        if is_pending:
            self._reports.append((event.now_s, kind, trial_id, body))
        else:
            state.add(event.now_s, kind, trial_id, body)
