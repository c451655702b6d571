"""Which processes of a run hang, from how far each has come. A quiet file: it is told places and the time.

    look(now_s, view, places, idle) -> Stragglers(behind, since when nobody came on, whether somebody waits for them)

A place is the turn that a process has arrived at; while the view changes, whether it has agreed. Whoever is furthest
behind is waited for, and what it does is its own: computing, user code between two steps, or hanging. So the clock
begins when the last of all came to that place, and honest work of the others, and their waiting, do not count.
Nor does time in which nobody looked: the process that looks may have been stopped itself.

Where all are at the same place nobody waits for anybody, and yet all may hang, as on one file system. Then they are all
behind, but for those that say that they wait for something other than a turn (`idle`).
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

# What a process gets at least, and how many times the limit, until its first step is done: it loads and compiles.
FIRST_LEAST_S = 60.0
FIRST_TIMES = 10
# Without a limit: when it is first said that a process is waited for. Again after ten times as long, and so on.
WARN_S = 60.0
_WARN_TIMES = 10
# More than this between two looks is time in which nobody looked.
_MOST_BETWEEN_S = 1.0


@dataclass(frozen=True, slots=True)
class Stragglers:
    """What one look says.

    Attributes:
        ranks: that are furthest behind, ascending. late_s: for so long, as far as was looked.
        waiting: how many wait for them. waiting_s: since the first of these came.
        should_warn: it has been so long that people should know, where there is no limit.
    """

    ranks: tuple[int, ...]
    late_s: float = 0.0
    num_waiting: int = 0
    waiting_s: float = 0.0
    should_warn: bool = False


@dataclass(slots=True)
class StragglerDetector:
    """See the module."""

    _key: tuple[int, int] | None = None
    _looked_s: float = 0.0
    _late_s: float = 0.0
    _waiting_s: float = 0.0
    _warn_s: float = WARN_S

    def update(self, now_s: float, view: int, places: Mapping[int, int], idle: Set[int] = frozenset()) -> Stragglers:
        """How it is now.

        Args:
            view: other views have other places. places: of each process that takes part; without any, nothing is late.
            idle: those that wait for something other than a turn.
        """
        if not places:
            self._key = None
            return Stragglers(())
        low = min(places.values())
        behind = [rank for rank, place in places.items() if place == low]
        waiting = len(places) - len(behind)
        between_s = min(max(0.0, now_s - self._looked_s), _MOST_BETWEEN_S)
        self._looked_s = now_s
        if self._key != (view, low):
            self._key = (view, low)
            self._late_s = self._waiting_s = 0.0
            self._warn_s = WARN_S
        else:
            self._late_s += between_s
            self._waiting_s += between_s if waiting else 0.0
        if not waiting:
            behind = [rank for rank in behind if rank not in idle] or behind
            waiting = len(places) - len(behind)
        should_warn = self._waiting_s >= self._warn_s
        if should_warn:
            self._warn_s *= _WARN_TIMES
        return Stragglers(tuple(sorted(behind)), self._late_s, waiting, self._waiting_s, should_warn)


def limit_s(step_timeout_s: float, *, has_stepped: bool) -> float:
    """How long a process may be late.

    >>> limit_s(3, has_stepped=True), limit_s(3, has_stepped=False), limit_s(100, has_stepped=False)
    (3, 60.0, 1000)
    """
    return step_timeout_s if has_stepped else max(FIRST_LEAST_S, FIRST_TIMES * step_timeout_s)
