"""Credit: how many calls of a peer may be on their way or wait before they are taken up. A quiet file.

    caller: Spending                               callee: Granting
      CALL, which costs n      ----------------->    received(n)      it waits for its turn
      WANT position            ----------------->    wanted(position) "tell me when so much was taken up"
                               <-----------------    taken_up(n)      CREDIT taken, window; now and then

Positions count what all calls since the beginning of the link cost, so a message about them can be late or doubled and
does no harm. A caller may have `window` outstanding: sent, and not known to be taken up. One call that is larger goes
when nothing is outstanding. Who cannot send waits, first come, first served, and says at which position it can: so
nobody has to be told of single calls, and whoever waits hears of the one that matters. Else half a window is told of
at a time.

A link begins with WINDOW_MIN. One that wants more takes part in the budget of its process from then on, in equal
shares: however many links there are, what waits of all of them together is at most twice the budget (while others
join), or WINDOW_MIN for each link where that is more. A window that shrinks does so as what is outstanding is taken up.

Some calls must not wait: those that were accepted before there was a link, and those of threads that read credit
themselves. They may overdraw the window by OVERDRAFT. Answers and book-keeping cost nothing and know nothing of this.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

# What a call costs besides its bytes: that is what this process keeps of one that waits, about.
CALL_COST = 1024
WINDOW_MIN = 64 << 10
WINDOW_MAX = 4 << 20
BUDGET = 32 << 20
OVERDRAFT = 256 << 10

Turn = TypeVar("Turn")


def cost_of(head: bytes | bytearray | memoryview, buffers: Sequence[memoryview]) -> int:
    """What a call of these parts costs; both sides see the same."""
    if buffers:
        return CALL_COST + len(head) + sum(buffer.nbytes for buffer in buffers)
    return CALL_COST + len(head)


def share(num_links: int) -> int:
    """The window of each link when so many take part in the budget."""
    return max(WINDOW_MIN, min(WINDOW_MAX, BUDGET // max(1, num_links)))


@dataclass(slots=True)
class Spending(Generic[Turn]):
    """What the caller's side of one link may send. A turn is whoever waits, opaque here."""

    window: int = WINDOW_MIN
    sent: int = 0
    taken: int = 0
    _waiting: deque[tuple[Turn, int]] = field(default_factory=deque)

    def spend(self, cost: int) -> bool:
        """A call would leave: whether it may now. Not past those who wait."""
        outstanding = self.sent - self.taken
        if self._waiting or (outstanding and outstanding + cost > self.window):  # as `_fits`; every call comes here
            return False
        self.sent += cost
        return True

    def overdraw(self, cost: int) -> bool:
        """The same for one that must not wait: past those who do, and somewhat more than the window has."""
        fits = self._fits(cost, self.window + OVERDRAFT)
        if fits:
            self.sent += cost
        return fits

    def wait(self, turn: Turn, cost: int) -> list[Turn]:
        """It waits. Whose turns these are now: its own, when credit came since `spend` said no."""
        self._waiting.append((turn, cost))
        return self._next()

    def wanted(self) -> int | None:
        """The position at which the first that waits may go; None: nobody waits."""
        if not self._waiting:
            return None
        cost = self._waiting[0][1]
        return self.sent if cost > self.window else self.sent + cost - self.window

    def credit(self, taken: int, window: int) -> list[Turn]:
        """The callee told so: whose turns these are now, and what they cost is spent. ValueError: it cannot be true."""
        if not (taken <= self.sent and window >= WINDOW_MIN):
            raise ValueError(f"credit for {taken} of {self.sent} that were sent, and a window of {window}")
        self.taken, self.window = max(self.taken, taken), window
        return self._next()

    def give_up(self, turn: Turn, cost: int) -> list[Turn]:
        """It does not want to send any more, whether its turn has come or not. Whose turns these are now."""
        return self.withdraw(turn, cost) if (turn, cost) in self._waiting else self.refund(cost)

    def withdraw(self, turn: Turn, cost: int) -> list[Turn]:
        """It does not wait any more, if it did. Whose turns these are now."""
        if (turn, cost) in self._waiting:
            self._waiting.remove((turn, cost))
        return self._next()

    def refund(self, cost: int) -> list[Turn]:
        """What was spent was not sent. Whose turns these are now."""
        self.sent -= cost
        return self._next()

    def lose(self) -> list[Turn]:
        """The link is gone: all who wait."""
        waiting = [turn for turn, _ in self._waiting]
        self._waiting.clear()
        return waiting

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def _fits(self, cost: int, window: int) -> bool:
        outstanding = self.sent - self.taken
        return outstanding == 0 or outstanding + cost <= window

    def _next(self) -> list[Turn]:
        turns = []
        while self._waiting and self._fits(self._waiting[0][1], self.window):
            turn, cost = self._waiting.popleft()
            self.sent += cost
            turns.append(turn)
        return turns


class Credit(NamedTuple):
    """To be told: so much was taken up since the link began; so much may be outstanding."""

    taken: int
    window: int


@dataclass(slots=True)
class Granting:
    """What the callee's side of one link grants. `received` and the rest may be told by different threads."""

    came: int = 0
    taken: int = 0
    num_calls: int = 0
    told: Credit = field(default_factory=lambda: Credit(0, WINDOW_MIN))
    _due_at: int = WINDOW_MIN // 2
    _granted: int = WINDOW_MIN  # the highest position that the caller was ever told it may reach

    def received(self, cost: int) -> bool:
        """A call came. False: its caller went on beyond what was granted, by more than one call."""
        kept = self.came <= self._granted + OVERDRAFT
        self.came += cost
        self.num_calls += 1
        return kept

    def taken_up(self, cost: int) -> bool:
        """A call waits no more. Whether to tell the caller how far things are."""
        self.taken += cost
        return self.taken >= self._due_at

    def wanted(self, position: int, window: int) -> bool:
        """The caller cannot go on before so much was taken up. `window`: of this link, by now. As `taken_up`."""
        self._due_at = min(self._due_at, position)
        return self.taken >= self._due_at or window > self.told.window

    def tell(self, window: int) -> Credit:
        """It is told."""
        self.told = Credit(self.taken, window)
        self._granted = max(self._granted, self.taken + window)
        self._due_at = self.taken + (window + 1) // 2
        return self.told
