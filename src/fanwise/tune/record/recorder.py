"""Record the events of a search, pass them to a listener, and update the search's state.

Reports are added to the state together, when the state is read or when there are a hundred: this takes a quarter of
the time, because the caches are warm. Everything else is added at once. Nothing is committed here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, final

from ..decisions.facts import Fact, Reported, Tick
from ..decisions.orders import Order
from .log import Record
from .rows import to_row
from .state import SearchState

# Reports that are not in the state yet, at most.
_MAX_PENDING: Final = 100


@final
class Recorder:
    """See the module. `listener` is called with each fact and its orders, before the state has them; must not block."""

    def __init__(
        self, record: Record, state: SearchState, listener: Callable[[Fact, list[Order]], None] | None = None
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

    def write(self, fact: Fact, orders: list[Order]) -> None:
        """Record a fact and its orders. A tick of the clock that led to nothing is not recorded."""
        if not orders and type(fact) is Tick:
            return
        kind, trial_id, body = to_row(fact, orders)
        self._record.append(fact.now_s, kind, trial_id, body)
        if self._listener is not None:
            self._listener(fact, orders)
        if type(fact) is Reported and len(orders) == 1 and len(self._reports) < _MAX_PENDING:
            self._reports.append((fact.now_s, kind, trial_id, body))
        else:
            self.state.add(fact.now_s, kind, trial_id, body)
