"""Which entries of a growing rung are among the best 1/eta, in O(log n) an entry.

    Rung           enters losses; says whether one of them is in the top share; forgets those that turn out void
    StoppingRung   the same, and whether who enters goes on at once
    PromotionRung  the same, and which trial of the top share is to be promoted next

A rung of n entries is two heaps: the best floor(n / eta) with the worst of them on top, and the rest with the best of
them on top. An entry moves between them at most a few times, so 1,000,000 entries cost a microsecond or two each; a
sorted list costs two to five times as much from 100,000 entries on. What is forgotten leaves a heap when it comes up.

An entry's key is (infeasibility, loss, number): what violates a constraint is behind everything that does not, however
good its loss. The number is never used twice and grows with each entry: of equals the earlier one is better, whatever
the order in which they are looked at.
"""

import bisect
import heapq
from typing import NamedTuple, TypeAlias, final

Key: TypeAlias = tuple[float, float, int]

_MOST_FORGOTTEN = 64


@final
class Rung:
    """Losses, and which of them are the best floor(n / eta).

    Args:
        eta: above 1.
        at_least: the top share is never smaller, as long as there are so many entries.

    >>> rung = Rung(2.0)
    >>> for number, loss in enumerate([0.5, 0.9, 0.1, 0.7]):
    ...     rung.enter((0.0, loss, number))
    >>> rung.is_top((0.0, 0.5, 0)), rung.is_top((0.0, 0.7, 3)), len(rung)
    (True, False, 4)
    """

    __slots__ = ("_at_least", "_eta", "_forgotten", "_rest", "_size", "_top", "_top_size")

    def __init__(self, eta: float, at_least: int = 0) -> None:
        self._eta = eta
        self._at_least = at_least
        self._top: list[Key] = []  # negated: the worst comes first
        self._rest: list[Key] = []
        self._top_size = 0  # without what is forgotten
        self._size = 0
        self._forgotten: set[Key] = set()

    def __len__(self) -> int:
        return self._size

    @property
    def top_size(self) -> int:
        """How many the top share has."""
        return self._top_size

    @property
    def last_inside(self) -> Key | None:
        """The worst entry of the top share; None: the share is empty."""
        if not self._top:
            return None
        return _negated(self._top[0])

    @property
    def first_outside(self) -> Key | None:
        """The best entry that is not in the top share; None: all are."""
        return self._rest[0] if self._rest else None

    def enter(self, key: Key) -> None:
        """One more entry."""
        top, negated = self._top, _negated(key)
        if top and negated > top[0]:
            heapq.heappush(top, negated)
            self._top_size += 1
        else:
            heapq.heappush(self._rest, key)
        self._size += 1
        self._balance()

    def is_top(self, key: Key) -> bool:
        """Whether this entry is among the best."""
        top = self._top
        return bool(top) and _negated(key) >= top[0]

    def forget(self, key: Key) -> None:
        """This entry is void. It must be there."""
        self._top_size -= self.is_top(key)
        self._size -= 1
        self._forgotten.add(key)
        if len(self._forgotten) > _MOST_FORGOTTEN + self._size:
            self._rebuild()
        else:
            self._clean_top()
            self._clean_rest()
        self._balance()

    def _balance(self) -> None:
        size = min(self._size, max(self._at_least, int(self._size // self._eta)))
        while self._top_size > size:
            heapq.heappush(self._rest, _negated(heapq.heappop(self._top)))
            self._top_size -= 1
            if self._forgotten:
                self._clean_top()
        while self._top_size < size:
            heapq.heappush(self._top, _negated(heapq.heappop(self._rest)))
            self._top_size += 1
            if self._forgotten:
                self._clean_rest()

    def _clean_top(self) -> None:
        """After this the first of the top heap is not forgotten."""
        top, forgotten = self._top, self._forgotten
        while top and _negated(top[0]) in forgotten:
            forgotten.remove(_negated(heapq.heappop(top)))

    def _clean_rest(self) -> None:
        rest, forgotten = self._rest, self._forgotten
        while rest and rest[0] in forgotten:
            forgotten.remove(heapq.heappop(rest))

    def _rebuild(self) -> None:
        """Without all that is forgotten: it is more than what is left."""
        self._top = [key for key in self._top if _negated(key) not in self._forgotten]
        self._rest = [key for key in self._rest if key not in self._forgotten]
        heapq.heapify(self._top)
        heapq.heapify(self._rest)
        self._forgotten.clear()


def _negated(key: Key) -> Key:
    return -key[0], -key[1], -key[2]


@final
class StoppingRung:
    """A rung whose trials go on or stop when they enter: on, if they are in the top share, which has at least one.

    Many may be equal: an accuracy of one class in ten is what every network has before it learns. Then the top share is
    full of the first of them, and as equals of these all later ones would stop. So an equal of the worst in the top
    share goes on too while fewer have gone on than the top share has.

    >>> rung = StoppingRung(3.0)
    >>> [rung.enter((0.0, 0.9, number)) for number in range(7)]
    [True, False, False, False, False, True, False]
    """

    __slots__ = ("_num_gone_on", "_rung")

    def __init__(self, eta: float) -> None:
        self._rung = Rung(eta, at_least=1)
        self._num_gone_on = 0

    def enter(self, key: Key) -> bool:
        """One more entry, and whether its trial goes on."""
        rung = self._rung
        rung.enter(key)
        last = rung.last_inside
        assert last is not None, "there is at least one"
        goes_on = rung.is_top(key) or (key[:2] == last[:2] and self._num_gone_on < rung.top_size)
        self._num_gone_on += goes_on
        return goes_on

    def forget(self, key: Key, *, went_on: bool) -> None:
        """The entry is void. `went_on`: what `enter` said of it."""
        self._rung.forget(key)
        self._num_gone_on -= went_on


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

    def forget(self, key: Key, *, went_on: bool) -> None:
        """Remove an entry that became void."""
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
        promotable: the best trial that waits, if it is in the top share; None: nobody is to be promoted.

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
        self.promotable: int | None = None  # asked for at every free worker: looked for when the rung changes
        self._rung = Rung(eta)
        self._waiting: list[_Waiting] = []  # the best first
        self._is_waiting: set[int] = set()  # numbers of entries

    def __len__(self) -> int:
        return len(self._rung)

    def enter(self, key: Key, trial_id: int) -> None:
        """One more entry; its trial waits to be promoted."""
        self._rung.enter(key)
        heapq.heappush(self._waiting, _Waiting(*key, trial_id))
        self._is_waiting.add(key[2])
        self._look()

    def promote(self) -> int:
        """The promotable trial, of which there must be one, waits no more."""
        trial_id = self.promotable
        assert trial_id is not None, "nothing is promotable"
        self._is_waiting.remove(heapq.heappop(self._waiting).number)
        self._look()
        return trial_id

    def withdraw(self, key: Key) -> None:
        """The entry's trial is over: it stands, but waits no more. Nothing happens if it does not wait."""
        self._is_waiting.discard(key[2])
        self._look()

    def forget(self, key: Key) -> None:
        """The entry is void."""
        self._is_waiting.discard(key[2])
        self._rung.forget(key)
        self._look()

    def _look(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].number not in self._is_waiting:
            heapq.heappop(waiting)
        # The best that waits is in the top share, or none that waits is.
        self.promotable = waiting[0].trial_id if waiting and self._rung.is_top(waiting[0][:3]) else None
