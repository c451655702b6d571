"""Whose turn it is at one actor: which of the calls that came may begin. A quiet file.

    came --waits--> begins --ended--> forgotten
           |          |
           |          +--held--> waits again, at its place: its caller takes no answers; released
           +--withdrawn, expired--> forgotten: it never begins

Calls begin in the order in which they came, at most `limit` at a time. Those of a caller that is held wait, and let the
calls of others pass; they keep their own order. A call that has ended, or was withdrawn, is unknown from then on:
what is said of it later changes nothing.

Calls and callers are opaque here. All times are on one clock of the owner's.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Call = TypeVar("Call", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Call]):
    call: Call
    caller: Hashable
    due_s: float | None
    number: int


@dataclass(slots=True)
class Turns(Generic[Call]):
    """See the module. What is returned are the calls that begin now, in their order.

    Attributes:
        limit: how many may run at a time; 0 while the actor is being made.
    """

    limit: int = 1
    _waiting: deque[_Waiting[Call]] = field(default_factory=deque)
    _running: dict[Call, _Waiting[Call]] = field(default_factory=dict)
    _held: set[Hashable] = field(default_factory=set)
    _count: int = 0

    def came(self, call: Call, caller: Hashable, due_s: float | None) -> list[Call]:
        """A call came. `due_s`: when its caller gives up; None: never."""
        self._count += 1
        self._waiting.append(_Waiting(call, caller, due_s, self._count))
        return self._next()

    def ended(self, call: Call) -> list[Call]:
        """A call that had begun was answered."""
        if self._running.pop(call, None) is None:
            return []
        return self._next()

    def held(self, call: Call) -> list[Call]:
        """A call that was to begin has not: its caller takes no answers. It waits again until that is `released`."""
        waiting = self._running.pop(call, None)
        if waiting is None:
            return []
        later = deque[_Waiting[Call]]()
        while self._waiting and self._waiting[-1].number > waiting.number:
            later.appendleft(self._waiting.pop())
        self._waiting += (waiting, *later)
        self._held.add(waiting.caller)
        return self._next()

    def released(self, caller: Hashable) -> list[Call]:
        """A caller takes its answers again, or is gone."""
        self._held.discard(caller)
        return self._next()

    def limited(self, limit: int) -> list[Call]:
        """From now on so many may run at a time."""
        self.limit = limit
        return self._next()

    def withdrawn(self, call: Call) -> bool:
        """Its caller wants no answer any more. True: it had not begun, and never will."""
        for waiting in self._waiting:
            if waiting.call == call:
                self._waiting.remove(waiting)
                return True
        return False

    def expired(self, now_s: float) -> list[Call]:
        """The calls whose time is over before they began. They are forgotten."""
        over = [waiting for waiting in self._waiting if waiting.due_s is not None and waiting.due_s <= now_s]
        if over:
            gone = {waiting.number for waiting in over}
            self._waiting = deque(waiting for waiting in self._waiting if waiting.number not in gone)
        return [waiting.call for waiting in over]

    def next_due_s(self) -> float | None:
        """When `expired` has to be asked next; None: not before another call has come."""
        return min((waiting.due_s for waiting in self._waiting if waiting.due_s is not None), default=None)

    @property
    def is_idle(self) -> bool:
        """Whether no call is here."""
        return not self._waiting and not self._running

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def _next(self) -> list[Call]:
        begin: list[Call] = []
        passed: list[_Waiting[Call]] = []
        while self._waiting and len(self._running) < self.limit:
            waiting = self._waiting.popleft()
            if waiting.caller in self._held:
                passed.append(waiting)
                continue
            self._running[waiting.call] = waiting
            begin.append(waiting.call)
        self._waiting.extendleft(reversed(passed))
        return begin
