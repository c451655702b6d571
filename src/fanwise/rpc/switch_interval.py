"""Shortens the interpreter's thread switch interval while this process is a worker.

A thread that computes in Python releases the interpreter's lock every `sys.getswitchinterval()`, 5 ms by default. A
call needs the lock after each system call, so beside such a thread it would take tens of milliseconds. A tenth of the
default reduces that to a few and costs the computing thread less than 1 %. An interval set by the program is kept.
"""

import sys

SWITCH_INTERVAL_S = 0.0005


class ShortSwitchInterval:
    """Shortens the interval between `begin` and `end`. Never lengthens it."""

    def __init__(self) -> None:
        self._previous_s: float | None = None

    def begin(self) -> None:
        """Shorten the interval unless it is already as short."""
        previous_s = sys.getswitchinterval()
        if previous_s > SWITCH_INTERVAL_S:
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            self._previous_s = previous_s

    def end(self) -> None:
        """Restore the interval unless the program has changed it. Idempotent."""
        previous_s, self._previous_s = self._previous_s, None
        if previous_s is not None and abs(sys.getswitchinterval() - SWITCH_INTERVAL_S) < 1e-6:
            sys.setswitchinterval(previous_s)
