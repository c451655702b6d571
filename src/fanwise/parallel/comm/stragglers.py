"""Detects the processes of a run that hang, from the progress of each process. A state machine without a clock.

Progress is the sequence number of the last collective operation that a process has reached. Processes that are ahead
wait for those with the lowest number, the stragglers. A straggler's time counts from the moment at which the last
process reached the lowest number, so a process is not blamed for time in which it waited for others. Between two
updates at most one second counts, because the detecting process may have been stopped itself.

If all processes have the same number, none waits for another, but all of them may hang, for example on one file system.
Then all count as stragglers, except for idle ones, which have returned from the training function.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

# The first step loads and compiles, so its limit is longer.
_FIRST_STEP_LEAST_S = 60.0
_FIRST_STEP_FACTOR = 10
# A warning is due after this time, and again each time that the time has become ten times as long.
WARN_S = 60.0
_WARN_FACTOR = 10
_MAX_UPDATE_S = 1.0


@dataclass(frozen=True, slots=True)
class Stragglers:
    ranks: tuple[int, ...]
    late_s: float = 0.0  # time since the last of them reached its number
    num_waiting: int = 0  # number of processes that wait for them
    waiting_s: float = 0.0  # time since the first of these began to wait
    should_warn: bool = False  # True once when a warning is due


@dataclass(slots=True)
class StragglerDetector:
    _key: tuple[int, int] | None = None  # generation and lowest number
    _updated_s: float = 0.0
    _late_s: float = 0.0
    _waiting_s: float = 0.0
    _warn_s: float = WARN_S

    def update(
        self, now_s: float, generation: int, progress: Mapping[int, int], idle: Set[int] = frozenset()
    ) -> Stragglers:
        """Return the stragglers at this time.

        Args:
            generation: changes with the set of processes. Numbers of different generations are not comparable.
            progress: the last operation of each rank that takes part. Empty: no process is late.
            idle: ranks that have returned from the training function.
        """
        if not progress:
            self._key = None
            return Stragglers(())
        lowest = min(progress.values())
        behind = [rank for rank, seq in progress.items() if seq == lowest]
        num_waiting = len(progress) - len(behind)
        elapsed_s = min(max(0.0, now_s - self._updated_s), _MAX_UPDATE_S)
        self._updated_s = now_s
        if self._key != (generation, lowest):
            self._key = (generation, lowest)
            self._late_s = self._waiting_s = 0.0
            self._warn_s = WARN_S
        else:
            self._late_s += elapsed_s
            self._waiting_s += elapsed_s if num_waiting else 0.0
        if not num_waiting:
            behind = [rank for rank in behind if rank not in idle] or behind
            num_waiting = len(progress) - len(behind)
        should_warn = self._waiting_s >= self._warn_s
        if should_warn:
            self._warn_s *= _WARN_FACTOR
        return Stragglers(tuple(sorted(behind)), self._late_s, num_waiting, self._waiting_s, should_warn)


def limit_s(step_timeout_s: float, *, has_stepped: bool) -> float:
    """Return the time for which a process may be late. `has_stepped`: the process has completed its first step.

    >>> limit_s(3, has_stepped=True), limit_s(3, has_stepped=False), limit_s(100, has_stepped=False)
    (3, 60.0, 1000)
    """
    return step_timeout_s if has_stepped else max(_FIRST_STEP_LEAST_S, _FIRST_STEP_FACTOR * step_timeout_s)
