"""Credit for calls: how many calls of a peer may be on their way or wait until they are started. Pure.

    caller: Spending                               callee: Granting
      CALL, which costs n      ----------------->    received(n)      the call waits until it is started
      WANT position            ----------------->    wanted(position) "send credit when so much was started"
                               <-----------------    taken_up(n)      CREDIT started, window; now and then

Positions count the cost of all calls since the link was made, so a late or repeated message does no harm. A caller may
have `window` outstanding: sent, and not known to be started. A single call that is larger is sent when nothing is
outstanding. Calls that do not fit wait in order, and WANT names the position at which the first can be sent. Without
it, the callee sends credit after every half window.

A link begins with WINDOW_MIN. When its caller first sends WANT, it joins the budget of its process and gets an equal
share. All links together never have more waiting than twice the budget (while links join), or WINDOW_MIN each if that
is more. A window shrinks as outstanding calls are started.

Some calls cannot wait: those that were accepted before there was a link, and those of threads that read credit
themselves. They may exceed the window by OVERDRAFT. Replies and control messages cost nothing.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

# Cost of a call in addition to its bytes: about the memory that this process keeps for a waiting call.
CALL_COST = 1024
WINDOW_MIN = 64 << 10
WINDOW_MAX = 4 << 20
BUDGET = 32 << 20
OVERDRAFT = 256 << 10

Turn = TypeVar("Turn")


def cost_of(head: bytes | bytearray | memoryview, buffers: Sequence[memoryview]) -> int:
    """Return the cost of a call. The caller and the callee compute the same."""
    if buffers:
        return CALL_COST + len(head) + sum(buffer.nbytes for buffer in buffers)
    return CALL_COST + len(head)


def share(num_links: int) -> int:
    """Return the window of each link if the budget has this number of links."""
    return max(WINDOW_MIN, min(WINDOW_MAX, BUDGET // max(1, num_links)))


@dataclass(slots=True)
class Spending(Generic[Turn]):
    """The caller's side of one link. A turn identifies a waiting call and is opaque here.

    Methods that return turns return the calls that may be sent now. Their cost is spent.
    """

    window: int = WINDOW_MIN
    sent: int = 0
    started: int = 0
    _waiting: deque[tuple[Turn, int]] = field(default_factory=deque)

    def spend(self, cost: int) -> bool:
        """Return True, and spend the cost, if a call may be sent now. Calls that wait go first."""
        outstanding = self.sent - self.started
        if self._waiting or (outstanding and outstanding + cost > self.window):  # as `_fits`, inline for speed
            return False
        self.sent += cost
        return True

    def overdraw(self, cost: int) -> bool:
        """As `spend`, for a call that cannot wait: it goes before calls that wait, and may exceed the window."""
        fits = self._fits(cost, self.window + OVERDRAFT)
        if fits:
            self.sent += cost
        return fits

    def wait(self, turn: Turn, cost: int) -> list[Turn]:
        """Queue a call. Its own turn may be among the returned ones, if credit came after `spend` returned False."""
        self._waiting.append((turn, cost))
        return self._next()

    def wanted(self) -> int | None:
        """Return the position at which the first waiting call may be sent; None if no call waits."""
        if not self._waiting:
            return None
        cost = self._waiting[0][1]
        return self.sent if cost > self.window else self.sent + cost - self.window

    def credit(self, started: int, window: int) -> list[Turn]:
        """Process CREDIT of the callee. Raises `ValueError` if it cannot be true."""
        if not (started <= self.sent and window >= WINDOW_MIN):
            raise ValueError(f"credit for {started} of {self.sent} that were sent, and a window of {window}")
        self.started, self.window = max(self.started, started), window
        return self._next()

    def give_up(self, turn: Turn, cost: int) -> list[Turn]:
        """Cancel a call that was not sent, whether it still waits or not."""
        return self.withdraw(turn, cost) if (turn, cost) in self._waiting else self.refund(cost)

    def withdraw(self, turn: Turn, cost: int) -> list[Turn]:
        """Remove a call from the queue, if it is there."""
        if (turn, cost) in self._waiting:
            self._waiting.remove((turn, cost))
        return self._next()

    def refund(self, cost: int) -> list[Turn]:
        """Return the credit of a call that was not sent."""
        self.sent -= cost
        return self._next()

    def waiting(self) -> list[Turn]:
        """Return the calls that wait, in order."""
        return [turn for turn, _ in self._waiting]

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def _fits(self, cost: int, window: int) -> bool:
        outstanding = self.sent - self.started
        return outstanding == 0 or outstanding + cost <= window

    def _next(self) -> list[Turn]:
        turns = []
        while self._waiting and self._fits(self._waiting[0][1], self.window):
            turn, cost = self._waiting.popleft()
            self.sent += cost
            turns.append(turn)
        return turns


class Credit(NamedTuple):
    """The contents of CREDIT: the cost of all started calls, and the window."""

    started: int
    window: int


@dataclass(slots=True)
class Granting:
    """The callee's side of one link. `received` and the other methods may be called by different threads.

    Attributes:
        total_cost: of all received calls.
        started: cost of all started calls.
        announced: the last CREDIT.
    """

    total_cost: int = 0
    started: int = 0
    num_calls: int = 0
    announced: Credit = field(default_factory=lambda: Credit(0, WINDOW_MIN))
    _due_at: int = WINDOW_MIN // 2
    _granted: int = WINDOW_MIN  # the highest position up to which the caller was ever allowed to send

    def received(self, cost: int) -> bool:
        """Count a call. Return False if the caller exceeded its credit by more than one call."""
        is_allowed = self.total_cost <= self._granted + OVERDRAFT
        self.total_cost += cost
        self.num_calls += 1
        return is_allowed

    def taken_up(self, cost: int) -> bool:
        """A call was started. Return True if CREDIT should be sent."""
        self.started += cost
        return self.started >= self._due_at

    def wanted(self, position: int, window: int) -> bool:
        """Process WANT. `window`: the current one of this link. Return True if CREDIT should be sent."""
        self._due_at = min(self._due_at, position)
        return self.started >= self._due_at or window > self.announced.window

    def announce(self, window: int) -> Credit:
        """Return the CREDIT to send now."""
        self.announced = Credit(self.started, window)
        self._granted = max(self._granted, self.started + window)
        self._due_at = self.started + (window + 1) // 2
        return self.announced
