"""Rungs of successive halving, with the three rules of `ASHA` for the trials that continue.

The key of an entry is (infeasibility, loss, number). Infeasible entries rank behind all feasible ones, and ties are
broken by the unique, increasing number.
"""

from bisect import bisect_left, insort
from typing import TypeAlias, final

Key: TypeAlias = tuple[float, float, int]


@final
class StoppingRung:
    """A rung whose trials continue if they are among the best floor(n / eta), at least one, when they enter.

    Ties are common, e.g. an accuracy of 0.1 before a classifier learns. The first of them would fill the top, and all
    later ones would be stopped. So trials equal to the worst of the top also continue while fewer trials have continued
    than the top has entries.

    >>> rung = StoppingRung(3.0)
    >>> [rung.enter((0.0, 0.9, number)) for number in range(7)]
    [True, False, False, False, False, True, False]
    """

    __slots__ = ("_entries", "_eta", "_num_continued")

    def __init__(self, eta: float) -> None:
        self._eta = eta
        self._entries: list[Key] = []  # sorted
        self._num_continued = 0

    def enter(self, key: Key) -> bool:
        """Add an entry. Return True if its trial continues."""
        insort(self._entries, key)
        top_size = max(1, int(len(self._entries) // self._eta))
        worst = self._entries[top_size - 1]
        continues = key <= worst or (key[:2] == worst[:2] and self._num_continued < top_size)
        self._num_continued += continues
        return continues

    def remove(self, key: Key, *, continued: bool) -> None:
        """Remove an entry. `continued`: the result of `enter`."""
        del self._entries[bisect_left(self._entries, key)]
        self._num_continued -= continued


@final
class QuantileRung:
    """A rung whose trials continue if they are at or better than the 1/eta quantile of the entries, their own included.

    The rule of Syne Tune. The quantile is that of `numpy.quantile`, between the entries floor((n - 1) / eta) and the
    next one, so an entry is at or better than it if and only if it is at or better than entry floor((n - 1) / eta).

    >>> rung = QuantileRung(3.0)
    >>> [rung.enter((0.0, loss, number)) for number, loss in enumerate([0.5, 0.9, 0.6, 0.7, 0.4])]
    [True, False, False, False, True]
    """

    __slots__ = ("_entries", "_eta")

    def __init__(self, eta: float) -> None:
        self._eta = eta
        self._entries: list[Key] = []  # sorted

    def enter(self, key: Key) -> bool:
        """Add an entry. Return True if its trial continues."""
        insort(self._entries, key)
        return key[:2] <= self._entries[int((len(self._entries) - 1) / self._eta)][:2]

    def remove(self, key: Key, *, continued: bool) -> None:
        """Remove an entry."""
        self._entries.remove(key)


@final
class PromotionRung:
    """A rung whose trials wait until they are among the best floor(n / eta); each is promoted once.

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

    __slots__ = ("_entries", "_eta", "_waiting")

    def __init__(self, eta: float) -> None:
        self._eta = eta
        self._entries: list[Key] = []  # sorted
        self._waiting: list[tuple[float, float, int, int]] = []  # keys with trial ids, sorted

    @property
    def promotable(self) -> int | None:
        """The best waiting trial, if it is in the top; otherwise None."""
        top_size = int(len(self._entries) // self._eta)
        if top_size and self._waiting and self._waiting[0][:3] <= self._entries[top_size - 1]:
            return self._waiting[0][3]
        return None

    def enter(self, key: Key, trial_id: int) -> None:
        """Add an entry, whose trial waits."""
        insort(self._entries, key)
        insort(self._waiting, (*key, trial_id))

    def promote(self) -> int:
        """Return the promotable trial, which stops waiting. There must be one."""
        return self._waiting.pop(0)[3]

    def withdraw(self, key: Key) -> None:
        """Stop waiting, because the trial has ended; its entry remains."""
        index = bisect_left(self._waiting, (*key, -1))
        if index < len(self._waiting) and self._waiting[index][:3] == key:
            del self._waiting[index]

    def remove(self, key: Key) -> None:
        """Remove an entry."""
        self.withdraw(key)
        del self._entries[bisect_left(self._entries, key)]
