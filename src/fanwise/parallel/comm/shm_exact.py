"""Gradients in slices through shared memory: how `all_reduce.TwoShot` exchanges them between CPU ranks.

The sum is read through a private mapping. An optimizer, or clipping, that writes into its gradients gets pages of its
own, which are given up after the step.
"""

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from .all_reduce import AllReducePlan, Found
from .flat_layout import Bucket, flat_gradient
from .shared_memory import bytes_of
from .shm_areas import Areas


class Direct:
    """See the module and all_reduce.py."""

    def __init__(self, areas: Areas) -> None:
        self._areas = areas
        self._own: dict[tuple[int, int], Tensor] = {}  # flat gradients by node and parameter
        self._mapping = areas.private_sum()
        self._private = bytes_of(self._mapping)
        self._grads = areas.layout.shaped(self._private)
        self._version = self._private._version
        self.sum, self.meet = areas.sum, areas.team.barrier

    def hand_out(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        areas, rank, own = self._areas, self._areas.team.rank, self._own
        for place, grad in enumerate(grads, first):
            if grad is not None:
                own[number, place] = flat_gradient(areas.layout.params[place], grad)
        last = first + len(grads)
        sent = [
            bucket
            for buckets in areas.slices_of_others()
            for bucket in buckets
            if first <= bucket.param < last and grads[bucket.param - first] is not None
        ]
        if sent:
            sources = [bucket.of_flat(own[number, bucket.param]) for bucket in sent]
            torch._foreach_copy_([areas.node(rank, number, bucket) for bucket in sent], sources)

    def wait(self) -> None:
        """The copies are complete."""

    def bring(self, met: AllReducePlan) -> list[Bucket]:
        """The nodes of others are read in place."""
        return self._areas.own_slice()

    def operand(self, each: Found, bucket: Bucket) -> Tensor:
        team = self._areas.team
        if each.place != team.place:
            return self._areas.node(team.members[each.place], each.number, bucket)
        return bucket.of_flat(self._own[each.number, bucket.param])

    def publish(self) -> None:
        """The slice was added in memory that all read."""

    def collect(self) -> list[Tensor | None]:
        self.settle()  # also the pages of a step that failed
        return self._grads

    def settle(self) -> None:
        self._own.clear()
        if self._private._version != self._version:
            self._mapping.advise(0, self._mapping.size_bytes, mmap.MADV_DONTNEED)
            self._version = self._private._version

    def abort(self) -> None:
        self.settle()
