"""Which calls of a link are open. Pure book-keeping: no socket, lock, thread or clock.

A call is opened with what waits for it (opaque here) and a deadline or none. It ends exactly once: by its answer, by
its deadline, or by the loss of the link. An answer that comes later, twice, or for a call never made changes nothing
but a counter.

Invariants: ids are never used twice; what is returned as ended is forgotten at the same moment.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter")


@dataclass(slots=True)
class Calls(Generic[Waiter]):
    """The open calls of one link."""

    _open: dict[int, Waiter] = field(default_factory=dict)
    _deadlines: dict[int, float] = field(default_factory=dict)
    _last_id: int = 0
    late_answers: int = 0
    closed: bool = False

    def open(self, waiter: Waiter, deadline_s: float | None = None) -> int:
        """A new call; `deadline_s` is on the caller's clock. Returns its id, from 1 on."""
        assert not self.closed, "the caller checks whether the link is open"
        self._last_id += 1
        self._open[self._last_id] = waiter
        if deadline_s is not None:
            self._deadlines[self._last_id] = deadline_s
        return self._last_id

    @property
    def num_opened(self) -> int:
        """How many were opened so far."""
        return self._last_id

    def answered(self, call_id: int) -> Waiter | None:
        """Its answer came: who waits for it, or None when nobody does any more."""
        waiter = self._open.pop(call_id, None)
        if waiter is None:
            self.late_answers += 1
        elif self._deadlines:
            self._deadlines.pop(call_id, None)
        return waiter

    def waiting(self, call_id: int) -> Waiter | None:
        """Who waits for its answer; the call stays open. None when nobody does any more."""
        return self._open.get(call_id)

    def waiters(self) -> Iterable[Waiter]:
        """All who wait for an answer."""
        return self._open.values()

    def give_up(self, call_id: int) -> Waiter | None:
        """The caller no longer waits. None when it had ended already."""
        self._deadlines.pop(call_id, None)
        return self._open.pop(call_id, None)

    def expire(self, now_s: float) -> list[Waiter]:
        """Those whose deadline has passed, in order of their ids."""
        late = sorted(call_id for call_id, deadline_s in self._deadlines.items() if deadline_s <= now_s)
        for call_id in late:
            del self._deadlines[call_id]
        return [self._open.pop(call_id) for call_id in late]

    def next_deadline_s(self) -> float | None:
        """When `expire` must be asked next."""
        return min(self._deadlines.values(), default=None)

    def lose(self) -> list[Waiter]:
        """The link is gone: all who wait, in order of their ids. Nothing can be opened after this."""
        self.closed = True
        waiting = [self._open[call_id] for call_id in sorted(self._open)]
        self._open.clear()
        self._deadlines.clear()
        return waiting

    def __len__(self) -> int:
        return len(self._open)
