"""Writing down what happens in a search: each fact with its orders, once, for everybody who wants it.

    fact, orders --write--> the record (a row), whoever listens (callbacks, logging), the progress that is shown

A report that led to nothing but its answer is added to the progress when somebody looks, or when a hundred have come:
together they cost a quarter of what they cost one by one, each time with what is around in other memory. All else
is added at once, because it is told at once.

Used by the search on a pool and by the one that is asked and told. Commits nothing: its user knows when.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, final

from ..decisions.facts import Fact, Reported, Tick
from ..decisions.orders import Order
from .log import Record
from .progress import Progress
from .rows import to_row

# Reports that the progress does not have yet, at most.
_MOST_REPORTS: Final = 100


@final
class Notes:
    """See the module. `listener` is called where the facts come in, before the progress knows; it must not block."""

    def __init__(
        self, record: Record, progress: Progress, listener: Callable[[Fact, list[Order]], None] | None = None
    ) -> None:
        self._record = record
        self._progress = progress
        self._listener = listener
        self._reports: list[tuple[float, str, int | None, Mapping[str, Any]]] = []  # Any: JSON

    @property
    def num_trials(self) -> int:
        """The number of trials that have started. Safe to read from any thread: a start is added at once."""
        return self._progress.num_trials

    @property
    def progress(self) -> Progress:
        """The sum of what was written so far. Only for the thread that calls `write`: it adds waiting reports."""
        reports, fold = self._reports, self._progress.fold
        if reports:
            for report in reports:
                fold(*report)
            reports.clear()
        return self._progress

    def write(self, fact: Fact, orders: list[Order]) -> None:
        """Keep this. A tick of the clock that led to nothing is not kept."""
        if not orders and type(fact) is Tick:
            return
        kind, trial_id, body = to_row(fact, orders)
        self._record.append(fact.now_s, kind, trial_id, body)
        if self._listener is not None:
            self._listener(fact, orders)
        if type(fact) is Reported and len(orders) == 1 and len(self._reports) < _MOST_REPORTS:
            self._reports.append((fact.now_s, kind, trial_id, body))
        else:
            self.progress.fold(fact.now_s, kind, trial_id, body)
