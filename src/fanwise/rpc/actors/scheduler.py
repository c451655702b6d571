"""The scheduler of one actor: decides when calls may start. A pure state machine.

    enqueue --waiting--> running --finish--> removed
               |            |
               |            +--pause--> waiting again at its old position, until its caller reads replies: resume
               +--withdraw, expire--> removed: it never runs

Calls start in order of arrival, at most `limit` at a time. Calls of a paused caller wait, are overtaken by calls of
other callers and keep their own order. Events for a removed call are ignored.

Calls and callers are opaque. All times are read from one clock of the owner.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Call = TypeVar("Call", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Call]):
    call: Call
    caller: Hashable
    deadline_s: float | None
    number: int


@dataclass(slots=True)
class Scheduler(Generic[Call]):
    """The queue of one actor. Methods return the calls to start now, in order.

    Attributes:
        limit: maximum number of concurrent calls; 0 while the actor is being created.
    """

    limit: int = 1
    _waiting: deque[_Entry[Call]] = field(default_factory=deque)
    _running: dict[Call, _Entry[Call]] = field(default_factory=dict)
    _paused: set[Hashable] = field(default_factory=set)
    _count: int = 0

    def enqueue(self, call: Call, caller: Hashable, deadline_s: float | None) -> list[Call]:
        self._count += 1
        self._waiting.append(_Entry(call, caller, deadline_s, self._count))
        return self._next()

    def finish(self, call: Call) -> list[Call]:
        """Handle the reply of a running call."""
        if self._running.pop(call, None) is None:
            return []
        return self._next()

    def pause(self, call: Call) -> list[Call]:
        """Return a started call to the queue until `resume`, because its caller does not read replies."""
        entry = self._running.pop(call, None)
        if entry is None:
            return []
        newer = deque[_Entry[Call]]()
        while self._waiting and self._waiting[-1].number > entry.number:
            newer.appendleft(self._waiting.pop())
        self._waiting += (entry, *newer)
        self._paused.add(entry.caller)
        return self._next()

    def resume(self, caller: Hashable) -> list[Call]:
        """Let calls of `caller` start again: it reads replies again, or has disconnected."""
        self._paused.discard(caller)
        return self._next()

    def set_limit(self, limit: int) -> list[Call]:
        self.limit = limit
        return self._next()

    def withdraw(self, call: Call) -> bool:
        """Remove a waiting call. Return False if it has already started."""
        for entry in self._waiting:
            if entry.call == call:
                self._waiting.remove(entry)
                return True
        return False

    def expire(self, now_s: float) -> list[Call]:
        """Remove and return the waiting calls whose deadline has passed."""
        overdue = [entry for entry in self._waiting if entry.deadline_s is not None and entry.deadline_s <= now_s]
        if overdue:
            numbers = {entry.number for entry in overdue}
            self._waiting = deque(entry for entry in self._waiting if entry.number not in numbers)
        return [entry.call for entry in overdue]

    def next_deadline_s(self) -> float | None:
        """Return the earliest deadline of the waiting calls."""
        return min((entry.deadline_s for entry in self._waiting if entry.deadline_s is not None), default=None)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def _next(self) -> list[Call]:
        startable: list[Call] = []
        skipped: list[_Entry[Call]] = []
        while self._waiting and len(self._running) < self.limit:
            entry = self._waiting.popleft()
            if entry.caller in self._paused:
                skipped.append(entry)
                continue
            self._running[entry.call] = entry
            startable.append(entry.call)
        self._waiting.extendleft(reversed(skipped))
        return startable
