"""The transport between CPU ranks of one machine for all but small models: owners read the nodes in shared memory.

The whole sum is read through a private mapping. A page of it that an optimizer, or clipping, writes to becomes a copy
of this process, which `release` discards.
"""

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from .all_reduce import AllReducePlan, Grads, RankNode
from .flat_layout import Bucket, flat_gradients
from .shared_memory import bytes_of
from .shm_areas import Areas


class TwoShotTransport:
    is_changeable = True

    def __init__(self, areas: Areas) -> None:
        self._areas = areas
        self._own: dict[tuple[int, int], Tensor] = {}  # flat gradients by node and parameter
        self._mapping = areas.private_sum()
        self._private = bytes_of(self._mapping)
        self._grads = areas.layout.shaped(self._private)
        self._version = self._private._version

    def send(self, nodes: Sequence[Grads | None]) -> None:
        areas, rank = self._areas, self._areas.team.rank
        self._own = flat_gradients(areas.layout.params, nodes)
        copies: list[Tensor] = []
        sources: list[Tensor] = []
        for bucket in areas.slices_of_others():
            for node_index in range(len(nodes)):
                if (flat := self._own.get((node_index, bucket.param))) is not None:
                    copies.append(areas.node(rank, node_index, bucket))
                    sources.append(bucket.of_flat(flat))
        if copies:
            torch._foreach_copy_(copies, sources)

    def receive(self, plan: AllReducePlan) -> list[Bucket]:
        return self._areas.own_slice()

    def operand(self, rank_node: RankNode, bucket: Bucket) -> Tensor:
        team = self._areas.team
        if rank_node.member_index != team.index:
            return self._areas.node(team.members[rank_node.member_index], rank_node.node_index, bucket)
        return bucket.of_flat(self._own[rank_node.node_index, bucket.param])

    def sum(self, bucket: Bucket) -> Tensor:
        return self._areas.sum(bucket)

    def barrier(self) -> None:
        self._areas.team.barrier()

    def whole_sum(self) -> Grads:
        self.release()
        return self._grads

    def release(self) -> None:
        self._own.clear()
        if self._private._version != self._version:
            self._mapping.advise(0, self._mapping.size_bytes, mmap.MADV_DONTNEED)
            self._version = self._private._version
