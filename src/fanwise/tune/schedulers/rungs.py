"""Rungs of successive halving: which of n entries are in the top 1/eta, in O(log n) per entry.

A rung consists of two heaps: the best floor(n / eta) entries with the worst on top, and the others with the best on
top. With 1,000,000 entries an insertion takes 1 to 2 us; a sorted list is two to five times slower from 100,000 entries
on. Removed entries leave a heap lazily, when they reach its top.

The key of an entry is (infeasibility, loss, number). Infeasible entries rank behind all feasible ones, and ties are
broken by the unique, increasing number.
"""

import bisect
import heapq
from typing import NamedTuple, TypeAlias, final

Key: TypeAlias = tuple[float, float, int]

_MAX_REMOVED = 64


@final
class Rung:
    """Entries, and which of them are the best floor(n / eta).

    Args:
        eta: reduction factor, above 1.
        min_top: minimum size of the top.

    >>> rung = Rung(2.0)
    >>> for number, loss in enumerate([0.5, 0.9, 0.1, 0.7]):
    ...     rung.enter((0.0, loss, number))
    >>> rung.is_top((0.0, 0.5, 0)), rung.is_top((0.0, 0.7, 3)), len(rung)
    (True, False, 4)
    """

    __slots__ = ("_eta", "_min_top", "_removed", "_rest", "_size", "_top", "_top_size")

    def __init__(self, eta: float, min_top: int = 0) -> None:
        self._eta = eta
        self._min_top = min_top
        self._top: list[Key] = []  # negated keys, worst first
        self._rest: list[Key] = []
        self._top_size = 0  # without removed entries
        self._size = 0
        self._removed: set[Key] = set()

    def __len__(self) -> int:
        return self._size

    @property
    def top_size(self) -> int:
        """Size of the top."""
        return self._top_size

    @property
    def worst_of_top(self) -> Key | None:
        """The worst entry of the top, or None."""
        if not self._top:
            return None
        return _negated(self._top[0])

    def enter(self, key: Key) -> None:
        """Add an entry."""
        top, negated = self._top, _negated(key)
        if top and negated > top[0]:
            heapq.heappush(top, negated)
            self._top_size += 1
        else:
            heapq.heappush(self._rest, key)
        self._size += 1
        self._balance()

    def is_top(self, key: Key) -> bool:
        """Return True if the entry is in the top."""
        top = self._top
        return bool(top) and _negated(key) >= top[0]

    def remove(self, key: Key) -> None:
        """Remove an existing entry."""
        self._top_size -= self.is_top(key)
        self._size -= 1
        self._removed.add(key)
        if len(self._removed) > _MAX_REMOVED + self._size:
            self._rebuild()
        else:
            self._clean_top()
            self._clean_rest()
        self._balance()

    def _balance(self) -> None:
        size = min(self._size, max(self._min_top, int(self._size // self._eta)))
        while self._top_size > size:
            heapq.heappush(self._rest, _negated(heapq.heappop(self._top)))
            self._top_size -= 1
            if self._removed:
                self._clean_top()
        while self._top_size < size:
            heapq.heappush(self._top, _negated(heapq.heappop(self._rest)))
            self._top_size += 1
            if self._removed:
                self._clean_rest()

    def _clean_top(self) -> None:
        """Pop removed entries from the top of the heap."""
        top, removed = self._top, self._removed
        while top and _negated(top[0]) in removed:
            removed.remove(_negated(heapq.heappop(top)))

    def _clean_rest(self) -> None:
        rest, removed = self._rest, self._removed
        while rest and rest[0] in removed:
            removed.remove(heapq.heappop(rest))

    def _rebuild(self) -> None:
        """Delete all removed entries, because there are more of them than others."""
        self._top = [key for key in self._top if _negated(key) not in self._removed]
        self._rest = [key for key in self._rest if key not in self._removed]
        heapq.heapify(self._top)
        heapq.heapify(self._rest)
        self._removed.clear()


def _negated(key: Key) -> Key:
    return -key[0], -key[1], -key[2]


@final
class StoppingRung:
    """A rung whose trials continue if they are in the top, which has at least one entry, when they enter.

    Ties are common, e.g. an accuracy of 0.1 before a classifier learns. The first of them would fill the top, and all
    later ones would be stopped. So trials equal to the worst of the top also continue while fewer trials have continued
    than the top has entries.

    >>> rung = StoppingRung(3.0)
    >>> [rung.enter((0.0, 0.9, number)) for number in range(7)]
    [True, False, False, False, False, True, False]
    """

    __slots__ = ("_num_continued", "_rung")

    def __init__(self, eta: float) -> None:
        self._rung = Rung(eta, min_top=1)
        self._num_continued = 0

    def enter(self, key: Key) -> bool:
        """Add an entry. Return True if its trial continues."""
        rung = self._rung
        rung.enter(key)
        worst = rung.worst_of_top
        assert worst is not None, "the top is not empty"
        continues = rung.is_top(key) or (key[:2] == worst[:2] and self._num_continued < rung.top_size)
        self._num_continued += continues
        return continues

    def remove(self, key: Key, *, continued: bool) -> None:
        """Remove an entry. `continued`: the result of `enter`."""
        self._rung.remove(key)
        self._num_continued -= continued


@final
class QuantileRung:
    """A rung whose trials continue if they are at or better than the 1/eta quantile of the entries, their own included.

    The rule of Syne Tune. The quantile is that of `numpy.quantile`, between the entries floor((n - 1) / eta) and the
    next one, so an entry is at or better than it if and only if it is at or better than entry floor((n - 1) / eta).

    >>> rung = QuantileRung(3.0)
    >>> [rung.enter((0.0, loss, number)) for number, loss in enumerate([0.9, 0.9, 0.5, 0.6, 0.5])]
    [True, True, True, False, True]
    """

    __slots__ = ("_entries", "_eta")

    def __init__(self, eta: float) -> None:
        self._eta = eta
        self._entries: list[Key] = []

    def enter(self, key: Key) -> bool:
        """Add an entry. Return whether its trial continues."""
        bisect.insort(self._entries, key)
        return key[:2] <= self._entries[int((len(self._entries) - 1) / self._eta)][:2]

    def remove(self, key: Key, *, continued: bool) -> None:
        """Remove an entry."""
        self._entries.remove(key)


class _Waiting(NamedTuple):
    infeasibility: float
    loss: float
    number: int
    trial_id: int


@final
class PromotionRung:
    """A rung whose trials wait until they are among the best floor(n / eta); each is promoted once.

    Attributes:
        promotable: the best waiting trial, if it is in the top; otherwise None.

    >>> rung = PromotionRung(2.0)
    >>> rung.enter((0.0, 0.5, 0), trial_id=7)
    >>> rung.promotable is None
    True
    >>> rung.enter((0.0, 0.9, 1), trial_id=8)
    >>> rung.promotable
    7
    >>> rung.promote(), rung.promotable
    (7, None)
    """

    __slots__ = ("_is_waiting", "_rung", "_waiting", "promotable")

    def __init__(self, eta: float) -> None:
        self.promotable: int | None = None  # cached, because every free worker reads it
        self._rung = Rung(eta)
        self._waiting: list[_Waiting] = []  # heap, best first
        self._is_waiting: set[int] = set()  # entry numbers

    def __len__(self) -> int:
        return len(self._rung)

    def enter(self, key: Key, trial_id: int) -> None:
        """Add an entry, whose trial waits."""
        self._rung.enter(key)
        heapq.heappush(self._waiting, _Waiting(*key, trial_id))
        self._is_waiting.add(key[2])
        self._update_promotable()

    def promote(self) -> int:
        """Return the promotable trial, which stops waiting. There must be one."""
        trial_id = self.promotable
        assert trial_id is not None, "nothing is promotable"
        self._is_waiting.remove(heapq.heappop(self._waiting).number)
        self._update_promotable()
        return trial_id

    def withdraw(self, key: Key) -> None:
        """Stop waiting, because the trial has ended; its entry remains."""
        self._is_waiting.discard(key[2])
        self._update_promotable()

    def remove(self, key: Key) -> None:
        """Remove an entry."""
        self._is_waiting.discard(key[2])
        self._rung.remove(key)
        self._update_promotable()

    def _update_promotable(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].number not in self._is_waiting:
            heapq.heappop(waiting)
        # If the best waiting entry is not in the top, none is.
        self.promotable = waiting[0].trial_id if waiting and self._rung.is_top(waiting[0][:3]) else None
