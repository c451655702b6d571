"""Slots of a search, numbered from 0. Each running trial uses one slot. The smallest free slot is taken first.

A trial uses its slot until its process has exited. More than `n_workers` slots can be used, because `n_workers` was
lowered or an ask-and-tell program requested trials (`has_request`). With asynchronous=False, trials start in batches. A
batch opens when no slot is used. It closes when a slot is released, or when `n_workers` changes while all are used.
"""

import heapq
from typing import final


@final
class Slots:
    """The slots of one search.

    Attributes:
        num_used: number of slots that are used or reserved (`Trial.reserved_slot`).
        has_request: a program has requested a trial, which may start even if `n_workers` slots are used.
    """

    def __init__(self, n_workers: int, *, asynchronous: bool) -> None:
        self.n_workers = n_workers
        self.num_used = 0
        self.has_request = False
        self._asynchronous = asynchronous
        self._free: list[int] = []  # a heap; free and used slots together are 0, 1, 2, ...
        self._is_batch_open = False

    @property
    def has_room(self) -> bool:
        """True if a slot is free or a program has requested a trial."""
        return self.num_used < self.n_workers or self.has_request

    def open_batch(self) -> bool:
        """Open a batch if no slot is used. Return True if free slots may be filled now."""
        self._is_batch_open = self._is_batch_open or not self.num_used
        return self._asynchronous or self._is_batch_open

    def take(self) -> int:
        """Take the smallest free slot. If `n_workers` slots are used already, this fulfills the request."""
        if self.num_used >= self.n_workers:
            self.has_request = False
        slot = heapq.heappop(self._free) if self._free else self.num_used
        self.num_used += 1
        return slot

    def release(self, slot: int) -> None:
        """Free the slot and close the batch."""
        self._is_batch_open = False
        self.num_used -= 1
        heapq.heappush(self._free, slot)

    def resize(self, n_workers: int) -> None:
        """Change the number of slots. Used slots stay used, and a full batch does not grow."""
        self._is_batch_open = self._is_batch_open and self.has_room
        self.n_workers = n_workers
