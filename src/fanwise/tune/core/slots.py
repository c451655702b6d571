"""Slots of a search: places for running trials, numbered from 0. The smallest free slot is taken first.

    slot        event                                                      next state
    ---------   --------------------------------------------------------   ----------
    free        take: a trial starts in it                                 used
    free        take: a trial resumes whose process has not exited yet     used; the slot is reserved for it
    used        release: the process has exited                            free

    batch       event                                                      next state, only with asynchronous=False
    ---------   --------------------------------------------------------   ----------
    closed      may_fill, while no slot is used                            open; free slots are filled
    open        release                                                    closed; free slots stay free
    open        resize, while all slots are used                           closed

More than `n_workers` slots are in use after `n_workers` was lowered, and after a trial used an offer.
"""

import heapq
from typing import final


@final
class Slots:
    """The slots of one search.

    Args:
        n_workers: number of slots. With 0, a trial starts only after an offer.
        asynchronous: False: fill free slots only when all slots are free.

    Attributes:
        num_used: number of slots that are used or reserved.
        is_offered: one trial more than `n_workers` may start.
    """

    def __init__(self, n_workers: int, *, asynchronous: bool) -> None:
        self.n_workers = n_workers
        self.num_used = 0
        self.is_offered = False
        self._asynchronous = asynchronous
        self._free: list[int] = []  # a heap; free and used slots are 0, 1, 2, ... without gaps
        self._is_batch_open = False

    @property
    def has_room(self) -> bool:
        """True if a trial may start now."""
        return self.num_used < self.n_workers or self.is_offered

    def may_fill(self) -> bool:
        """Return True if free slots may be filled now. Opens a batch if no slot is used."""
        self._is_batch_open = self._is_batch_open or not self.num_used
        return self._asynchronous or self._is_batch_open

    def take(self) -> int:
        """Take the smallest free slot. Uses up the offer if all `n_workers` slots are used."""
        if self.num_used >= self.n_workers:
            self.is_offered = False
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
