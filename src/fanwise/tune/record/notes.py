"""Writing down what happens in a search: each fact with its orders, once, for everybody who wants it.

    fact, orders --write--> the record (a row), whoever listens (callbacks, logging), the progress that is shown

Used by the search on a pool and by the one that is asked and told. Commits nothing: its user knows when.
"""

from collections.abc import Callable
from typing import final

from ..decisions.facts import Fact, Tick
from ..decisions.orders import Order
from .progress import Progress
from .rows import to_row
from .writer import Record


@final
class Notes:
    """See the module. `listener` is called where the facts come in, before the progress knows; it must not block."""

    def __init__(
        self, record: Record, progress: Progress, listener: Callable[[Fact, list[Order]], None] | None = None
    ) -> None:
        self._record = record
        self._progress = progress
        self._listener = listener

    def write(self, fact: Fact, orders: list[Order]) -> None:
        """Keep this. A tick of the clock that led to nothing is not kept."""
        if not orders and type(fact) is Tick:
            return
        kind, trial_id, body = to_row(fact, orders)
        self._record.append(fact.now_s, kind, trial_id, body)
        if self._listener is not None:
            self._listener(fact, orders)
        self._progress.fold(fact.now_s, kind, trial_id, body)
