"""The interpreter's switch interval, shorter while this process is a worker.

A thread that computes in Python gives the interpreter's lock to others each `sys.getswitchinterval()`, 5 ms as shipped.
A call needs the lock after each system call it makes, so beside such a thread it would take tens of milliseconds. A
tenth of that makes it a few, and costs the thread that computes under 1 %. Read by nobody else: another setting made
meanwhile, also a longer one, stays.
"""

import sys

SWITCH_INTERVAL_S = 0.0005


class ShorterSwitches:
    """From `begin` to `end`. Never longer than what it finds."""

    def __init__(self) -> None:
        self._before_s: float | None = None

    def begin(self) -> None:
        """Shorten the interval, unless it is as short already."""
        found_s = sys.getswitchinterval()
        if found_s > SWITCH_INTERVAL_S:
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            self._before_s = found_s

    def end(self) -> None:
        """Put back what was found, unless somebody has changed it meanwhile. A second call does nothing."""
        before_s, self._before_s = self._before_s, None
        if before_s is not None and abs(sys.getswitchinterval() - SWITCH_INTERVAL_S) < 1e-6:
            sys.setswitchinterval(before_s)
