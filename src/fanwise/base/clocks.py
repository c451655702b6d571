"""Time as an argument: what reads a clock takes one of these, so that tests and the simulator bring their own.

`now_s` is monotonic and, on one host, the same for all processes; `wall_s` is the date, for people.
Invariant: `now_s` never goes back.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """What the library asks of a clock."""

    def now_s(self) -> float:
        """Monotonic seconds; differences are meaningful within one host."""

    def wall_s(self) -> float:
        """Seconds since 1970, as people and log files use them."""


class SystemClock:
    """The clocks of this machine."""

    now_s = staticmethod(time.monotonic)  # as it is: every call that is waited for looks at it several times
    wall_s = staticmethod(time.time)


class VirtualClock:
    """A clock that stands until somebody moves it.

    >>> clock = VirtualClock()
    >>> clock.advance(2.5)
    >>> clock.now_s()
    2.5
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s

    def advance(self, by_s: float) -> None:
        """Move forward by `by_s` seconds."""
        if by_s < 0:
            raise ValueError(f"a clock cannot go back: advance({by_s!r})")
        self._now_s += by_s
