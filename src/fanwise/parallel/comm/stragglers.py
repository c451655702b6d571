"""Detects which processes of a run hang, from the progress of each. A state machine: it is given progress and time.

Progress is the sequence number of the last collective operation that a process has reached. The other processes wait
for those that are furthest behind. Their time is measured from when the last process reached that number, so time in
which other processes compute or wait does not count. Of the time between two updates at most a second counts, because
the detecting process may have been stopped.

If all processes have the same progress, none waits for another, but all may hang, for example on one file system. Then
all are behind, except for the `idle` ones, which wait for something other than a collective operation.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

# The first step loads and compiles, so its limit is longer.
FIRST_STEP_LEAST_S = 60.0
FIRST_STEP_FACTOR = 10
# Without a limit, a warning comes after this time, and again whenever it is ten times as long.
WARN_S = 60.0
_WARN_FACTOR = 10
_MAX_UPDATE_S = 1.0


@dataclass(frozen=True, slots=True)
class Stragglers:
    """The processes that are furthest behind.

    Attributes:
        ranks: their ranks, ascending.
        late_s: time since the last of them reached its progress.
        num_waiting: number of processes that wait for them.
        waiting_s: time since the first of these has been waiting.
        should_warn: True once when a warning is due.
    """

    ranks: tuple[int, ...]
    late_s: float = 0.0
    num_waiting: int = 0
    waiting_s: float = 0.0
    should_warn: bool = False


@dataclass(slots=True)
class StragglerDetector:
    _key: tuple[int, int] | None = None
    _updated_s: float = 0.0
    _late_s: float = 0.0
    _waiting_s: float = 0.0
    _warn_s: float = WARN_S

    def update(
        self, now_s: float, generation: int, progress: Mapping[int, int], idle: Set[int] = frozenset()
    ) -> Stragglers:
        """Return the stragglers at this time.

        Args:
            generation: changes with the set of processes. Progress of different generations is not comparable.
            progress: of each rank that takes part. Empty: no process is late.
        """
        if not progress:
            self._key = None
            return Stragglers(())
        lowest = min(progress.values())
        behind = [rank for rank, number in progress.items() if number == lowest]
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
    """Return the time for which a process may be late.

    >>> limit_s(3, has_stepped=True), limit_s(3, has_stepped=False), limit_s(100, has_stepped=False)
    (3, 60.0, 1000)
    """
    return step_timeout_s if has_stepped else max(FIRST_STEP_LEAST_S, FIRST_STEP_FACTOR * step_timeout_s)
