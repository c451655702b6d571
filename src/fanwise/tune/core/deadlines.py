"""A priority queue of deadlines with O(log n) operations."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar, final

_Key = TypeVar("_Key", bound=Hashable)


@final
class Deadlines(Generic[_Key]):
    """One deadline per key. Setting it again replaces it. Outdated heap entries are removed when they reach the top.

    Attributes:
        next_s: the earliest deadline, or None. Cached, because it is read after every event.

    >>> deadlines = Deadlines()
    >>> deadlines.set("a", 5.0); deadlines.set("b", 3.0); deadlines.set("a", 1.0)
    >>> deadlines.next_s, deadlines.due(3.0)
    (1.0, ['a', 'b'])
    """

    def __init__(self) -> None:
        self._times: dict[_Key, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, _Key]] = []
        self._set = 0
        self.next_s: float | None = None

    def set(self, key: _Key, at_s: float) -> None:
        """Set the deadline of the key to `at_s`."""
        self._set += 1
        self._times[key] = (at_s, self._set)
        heapq.heappush(self._heap, (at_s, self._set, key))
        if len(self._heap) > 64 + 2 * len(self._times):  # more than half of the entries are outdated
            self._heap = [(time_s, number, key) for key, (time_s, number) in self._times.items()]
            heapq.heapify(self._heap)
        self._find_next()

    def clear(self, key: _Key) -> None:
        """Remove the deadline of the key, if any."""
        self._times.pop(key, None)
        self._find_next()

    def due(self, now_s: float) -> list[_Key]:
        """Remove and return the keys that are due, the earliest first."""
        keys = []
        while (next_s := self.next_s) is not None and next_s <= now_s:
            _, _, key = heapq.heappop(self._heap)
            del self._times[key]
            self._find_next()
            keys.append(key)
        return keys

    def _find_next(self) -> None:
        while self._heap:
            at_s, number, key = self._heap[0]
            if self._times.get(key) == (at_s, number):
                self.next_s = at_s
                return
            heapq.heappop(self._heap)
        self.next_s = None
