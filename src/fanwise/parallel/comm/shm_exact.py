"""Gradients that lie in main memory are added in the shared memory itself: the transport of CPU ranks.

The sum is read through a private mapping: an optimizer, or clipping, that writes into its gradients gets pages of its
own, and the others see nothing. Such pages are given up after the step.
"""

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from ..all_reduce.contract import AllReducePlan, Found
from .flat_layout import Bucket, flat_gradient
from .shared_memory import bytes_of
from .shm_areas import Areas


class Direct:
    """See the module and all_reduce/two_shot.py."""

    def __init__(self, areas: Areas) -> None:
        self._areas = areas
        self._own: dict[tuple[int, int], Tensor] = {}
        self._mapping = areas.private_sum()
        self._read = bytes_of(self._mapping)
        self._grads = areas.layout.shaped(self._read)
        self._version = self._read._version
        self.sum, self.meet = areas.sum, areas.team.barrier

    def hand_out(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        areas, rank, own = self._areas, self._areas.team.rank, self._own
        for place, grad in enumerate(grads, first):
            if grad is not None:
                own[number, place] = flat_gradient(areas.layout.params[place], grad)
        last = first + len(grads)
        wanted = [
            bucket
            for buckets in areas.others()
            for bucket in buckets
            if first <= bucket.param < last and grads[bucket.param - first] is not None
        ]
        if wanted:
            of = [bucket.of_flat(own[number, bucket.param]) for bucket in wanted]
            torch._foreach_copy_([areas.node(rank, number, bucket) for bucket in wanted], of)

    def wait(self) -> None:
        """What was copied is there."""

    def bring(self, met: AllReducePlan) -> list[Bucket]:
        """They are read where they are."""
        return self._areas.owned()

    def operand(self, each: Found, bucket: Bucket) -> Tensor:
        team = self._areas.team
        if each.place != team.place:
            return self._areas.node(team.members[each.place], each.number, bucket)
        return bucket.of_flat(self._own[each.number, bucket.param])

    def publish(self) -> None:
        """It was added where all read it."""

    def collect(self) -> list[Tensor | None]:
        self.settle()  # also what a step that failed has left
        return self._grads

    def settle(self) -> None:
        self._own.clear()
        if self._read._version != self._version:
            self._mapping.advise(0, self._mapping.size_bytes, mmap.MADV_DONTNEED)
            self._version = self._read._version

    def abort(self) -> None:
        self.settle()
