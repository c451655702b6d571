"""A loop in virtual time: turns happen when a test says so, and an hour passes in no time.

    loop = SimulatedLoop()
    loop.call_at(3600.0, call)
    loop.run(lambda: called)            # turn by turn; the clock goes on to the next timer when nothing else is to do
    loop.turn()                         # or one turn, in which the clock stands

It keeps what `pool.contract.Loop` says, in one thread. Who else hands calls in finds them run in the next turn.
"""

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable

from virtual_clock import VirtualClock

from fanwise.base.errors import ClosedError

_log = logging.getLogger(__name__)


class SimulatedTimer:
    """A call that is to come at `when_s`."""

    __slots__ = ("call", "when_s")

    def __init__(self, when_s: float, call: Callable[[], None]) -> None:
        self.when_s = when_s
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class SimulatedLoop:
    """See the module."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.hooks: tuple[Callable[[], None], ...] = ()
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, SimulatedTimer]] = []
        self._numbers = itertools.count()
        self._closed = False

    # -- what a loop does ------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        return self.clock.now_s()

    def call_soon(self, call: Callable[[], None]) -> None:
        if not self._closed:
            self._soon.append(call)

    def call_at(self, when_s: float, call: Callable[[], None]) -> SimulatedTimer:
        timer = SimulatedTimer(when_s, call)
        heapq.heappush(self._timers, (when_s, next(self._numbers), timer))
        return timer

    def at_turn_end(self, hook: Callable[[], None]) -> None:
        self.hooks = (*self.hooks, hook)

    def not_at_turn_end(self, hook: Callable[[], None]) -> None:
        left = list(self.hooks)
        left.remove(hook)
        self.hooks = tuple(left)

    def check_usable(self) -> None:
        if self._closed:
            raise ClosedError("the simulated loop is closed.")

    # -- what a test does with it ----------------------------------------------------------------------------------

    @property
    def num_timers(self) -> int:
        """How many calls are still to come at some time."""
        return sum(timer.call is not None for _, _, timer in self._timers)

    def turn(self) -> None:
        """One turn: timers that are due, calls that were handed in, hooks. What they bring on comes in the next."""
        number = next(self._numbers)
        while self._timers and self._timers[0][0] <= self.now_s() and self._timers[0][1] < number:
            timer = heapq.heappop(self._timers)[2]
            call, timer.call = timer.call, None
            self._run(call)
        for _ in range(len(self._soon)):
            self._run(self._soon.popleft())
        for hook in self.hooks:
            self._run(hook)

    def run(self, until: Callable[[], bool], *, within_s: float = 86_400.0) -> None:
        """Turn after turn until `until()` holds.

        Raises:
            AssertionError: nothing is left that could make it hold, or `within_s` virtual seconds have passed.
        """
        last_s = self.now_s() + within_s
        while not until():
            if not self._soon:
                self._drop_cancelled()
                assert self._timers, "nothing happens any more, and what was waited for does not hold"
                when_s = self._timers[0][0]
                assert when_s <= last_s, f"what was waited for does not hold after {within_s:g} virtual seconds"
                self.clock.advance(max(0.0, when_s - self.now_s()))
            self.turn()

    def close(self) -> None:
        """Nothing happens any more."""
        self._closed = True
        self._soon.clear()
        self._timers.clear()

    def _drop_cancelled(self) -> None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)

    def _run(self, call: Callable[[], None] | None) -> None:
        if call is None:
            return
        try:
            call()
        except BaseException:  # as a hub does: one broken callback must not stop the loop that all others live on
            _log.exception("a callback failed; the simulated loop goes on")
