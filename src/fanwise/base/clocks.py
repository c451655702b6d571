"""Clocks as arguments, so that tests and simulators can pass a virtual one."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. `now_s` never goes back, and is the same for all processes of a host."""

    def now_s(self) -> float:
        """Return monotonic seconds. Only differences are meaningful."""

    def wall_s(self) -> float:
        """Return seconds since 1970."""


class SystemClock:
    """The clocks of this machine."""

    now_s = staticmethod(time.monotonic)  # without a wrapper, because it is called several times per remote call
    wall_s = staticmethod(time.time)
