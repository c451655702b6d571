"""Rungs of asynchronous successive halving: the rules that decide which trials continue.

When a trial reaches the level of a rung, an entry for the trial is added to the rung, and the rung decides whether the
trial continues. Entries are sorted by their keys. A key is a tuple of the infeasibility, the losses, the number of the
entry, and the trial id. So infeasible entries rank behind all feasible ones, and of equal entries the first one ranks
first.
"""

import abc
from bisect import bisect_left, insort
from typing import Any, TypeAlias, final

from ..pareto import best_of
from .scheduler import CONTINUE, PAUSE, STOP, Decision

Key: TypeAlias = tuple[Any, ...]


class Rung(abc.ABC):
    """The entries of one level in one bracket."""

    __slots__ = ("_entries", "_eta", "_num_continued")

    def __init__(self, eta: float) -> None:
        self._eta = eta
        self._entries: list[Key] = []  # sorted, except in `ParetoRung`, where they are in the order of arrival
        self._num_continued = 0

    @abc.abstractmethod
    def enter(self, key: Key) -> Decision:
        """Add an entry. Return the decision about its trial."""

    def remove(self, key: Key, *, has_continued: bool) -> None:
        """Remove an entry. `has_continued`: True if `enter` returned CONTINUE."""
        self._entries.remove(key)
        self._num_continued -= has_continued


@final
class StoppingRung(Rung):
    """A rung whose trials continue if they are in the top. The top is the best floor(n / eta) entries, at least one.

    Ties are common, e.g. an accuracy of 0.1 before a classifier learns. The first of these trials would fill the top,
    and all later ones would be stopped. So a trial that equals the worst entry of the top also continues if fewer
    trials have continued than the top contains.

    >>> rung = StoppingRung(3.0)
    >>> [str(rung.enter((0.0, 0.9, number, 0))) for number in range(6)]
    ['CONTINUE', 'STOP', 'STOP', 'STOP', 'STOP', 'CONTINUE']
    """

    __slots__ = ()

    def enter(self, key: Key) -> Decision:
        insort(self._entries, key)
        top_size = max(1, int(len(self._entries) // self._eta))
        worst_key = self._entries[top_size - 1]
        continues = key <= worst_key or (key[:2] == worst_key[:2] and self._num_continued < top_size)
        self._num_continued += continues
        return CONTINUE if continues else STOP


@final
class QuantileRung(Rung):
    """A rung whose trials continue if they equal or beat the 1/eta quantile of all n entries, including their own.

    This is the rule of Syne Tune, which uses `numpy.quantile`. The quantile lies between the sorted entries with the
    indices floor((n - 1) / eta) and floor((n - 1) / eta) + 1, so it suffices to compare with the first of the two.

    >>> rung = QuantileRung(3.0)
    >>> [str(rung.enter((0.0, loss, number, 0))) for number, loss in enumerate([0.5, 0.9, 0.6, 0.4])]
    ['CONTINUE', 'STOP', 'STOP', 'CONTINUE']
    """

    __slots__ = ()

    def enter(self, key: Key) -> Decision:
        insort(self._entries, key)
        threshold = self._entries[int((len(self._entries) - 1) / self._eta)]
        return CONTINUE if key[:2] <= threshold[:2] else STOP


@final
class PromotionRung(Rung):
    """A rung whose trials pause until they are among the best floor(n / eta) entries. Each trial is promoted once.

    >>> rung = PromotionRung(2.0)
    >>> str(rung.enter((0.0, 0.5, 0, 7))), rung.promotable
    ('PAUSE', None)
    >>> str(rung.enter((0.0, 0.9, 1, 8))), rung.promotable
    ('PAUSE', 7)
    >>> rung.promote(), rung.promotable
    (7, None)
    """

    __slots__ = ("_waiting_keys", "promotable")

    def __init__(self, eta: float) -> None:
        super().__init__(eta)
        self._waiting_keys: list[Key] = []  # entries whose trials are paused, sorted
        self.promotable: int | None = None  # id of the best waiting trial if that is among the best floor(n / eta)

    def _update(self) -> None:
        top_size = int(len(self._entries) // self._eta)
        is_top = bool(top_size and self._waiting_keys) and self._waiting_keys[0] <= self._entries[top_size - 1]
        self.promotable = self._waiting_keys[0][-1] if is_top else None

    def enter(self, key: Key) -> Decision:
        insort(self._entries, key)
        insort(self._waiting_keys, key)
        self._update()
        return PAUSE

    def promote(self) -> int:
        """Remove the promotable trial from the waiting trials and return its id. `promotable` must not be None."""
        trial_id: int = self._waiting_keys.pop(0)[-1]
        self._update()
        return trial_id

    def withdraw(self, key: Key) -> None:
        """Remove a trial that has ended from the waiting trials. Its entry still counts."""
        index = bisect_left(self._waiting_keys, key)
        if self._waiting_keys[index : index + 1] == [key]:
            del self._waiting_keys[index]
        self._update()

    def remove(self, key: Key, *, has_continued: bool) -> None:
        super().remove(key, has_continued=has_continued)
        self.withdraw(key)


@final
class ParetoRung(Rung):
    """A rung for several objectives. Trials continue if they are among the best floor(n / eta) entries, at least one.

    Feasible entries are ordered by `pareto.best_of`. Infeasible entries follow, ordered by infeasibility. Ties are
    handled as in `StoppingRung`.
    """

    __slots__ = ()

    def enter(self, key: Key) -> Decision:
        entries = self._entries
        entries.append(key)
        top_size = max(1, int(len(entries) // self._eta))
        indices = [index for index, (infeasibility, *_) in enumerate(entries) if not infeasibility]
        losses = [entries[index][1:-2] for index in indices]
        top_indices = [indices[i] for i in best_of(losses, top_size)] if losses else []
        infeasible_entries = sorted((entry[0], index) for index, entry in enumerate(entries) if entry[0])
        top_indices += [index for _, index in infeasible_entries[: top_size - len(top_indices)]]
        is_tie = any(entries[index][:-2] == key[:-2] for index in top_indices)
        continues = len(entries) - 1 in top_indices or (is_tie and self._num_continued < top_size)
        self._num_continued += continues
        return CONTINUE if continues else STOP
