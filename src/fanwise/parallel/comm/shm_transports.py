"""The transports between CPU ranks of one machine.

two-shot    owners read the slices of the nodes in shared memory, and write their slice of the sum there
one-shot    for small models: every rank adds all nodes, and none sends a sum

One-shot needs k times the additions and k/2 times the bytes of two-shot with k ranks, but one collective operation per
step instead of two. It is faster if an addition takes less time than an operation. The bits are the same.
"""

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from .all_reduce import AllReducePlan, Grads, RankNode
from .flat_layout import Bucket, check_strided, flat_gradients, join_buckets
from .shared_memory import bytes_of
from .shm_areas import Areas


class TwoShotTransport:
    """See the module. The whole sum is read through a private mapping.

    A page of it that an optimizer, or clipping, writes to becomes a copy of this process, which `release` discards.
    """

    is_changeable = True

    def __init__(self, areas: Areas) -> None:
        self._areas = areas
        self._own: dict[tuple[int, int], Tensor] = {}  # flat gradients by node and parameter
        self._mapping = areas.private_sum()
        self._private = bytes_of(self._mapping)
        self._grads = areas.layout.param_views(self._private)
        self._version = self._private._version

    def send(self, nodes: Sequence[Grads | None]) -> None:
        areas, rank = self._areas, self._areas.team.rank
        self._own = flat_gradients(areas.layout.params, nodes)
        copies: list[Tensor] = []
        sources: list[Tensor] = []
        for bucket in areas.other_buckets():
            for node_index in range(len(nodes)):
                if (flat := self._own.get((node_index, bucket.param_index))) is not None:
                    copies.append(areas.node_view(rank, node_index, bucket))
                    sources.append(bucket.view_in_param(flat))
        if copies:
            torch._foreach_copy_(copies, sources)

    def receive(self, plan: AllReducePlan) -> list[Bucket]:
        return self._areas.own_buckets()

    def operand(self, rank_node: RankNode, bucket: Bucket) -> Tensor:
        team = self._areas.team
        if rank_node.member_index != team.index:
            return self._areas.node_view(team.members[rank_node.member_index], rank_node.node_index, bucket)
        return bucket.view_in_param(self._own[rank_node.node_index, bucket.param_index])

    def sum(self, bucket: Bucket) -> Tensor:
        return self._areas.sum_view(bucket)

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


class OneShotTransport:
    """See the module. A node has two versions, one for even and one for odd sequence numbers, like the mailboxes.

    Before a rank overwrites a version, all others have arrived at the operation between, and so have read the old one.
    """

    is_changeable = False

    def __init__(self, areas: Areas) -> None:
        self._areas = areas
        self._version = 0
        self._sum = torch.zeros(areas.layout.size_bytes, dtype=torch.uint8)
        self._grads = areas.layout.param_views(self._sum)
        self._own: dict[tuple[int, int], list[Tensor | None]] = {}  # memory of own nodes, by node index and version
        self._flags: list[bytes] = []
        self._buckets: list[Bucket] = []  # for these flags

    def send(self, nodes: Sequence[Grads | None]) -> None:
        areas = self._areas
        self._version = areas.team.next_seq % 2
        copies: list[Tensor] = []
        sources: list[Tensor] = []
        for node_index, grads in enumerate(nodes):
            if grads is None:
                continue
            key = node_index, self._version
            if key not in self._own:
                self._own[key] = areas.layout.param_views(areas.node_bytes(areas.team.rank, *key))
            for copy, grad in zip(self._own[key], grads, strict=True):
                if grad is not None and copy is not None:
                    check_strided(grad)
                    copies.append(copy)
                    sources.append(grad)
        if copies:
            torch._foreach_copy_(copies, sources)

    def receive(self, plan: AllReducePlan) -> list[Bucket]:
        if (flags := plan.flags()) != self._flags:
            self._flags, self._buckets = flags, join_buckets(self._areas.layout.buckets_of(0, 1), flags)
        return self._buckets

    def operand(self, rank_node: RankNode, bucket: Bucket) -> Tensor:
        rank = self._areas.team.members[rank_node.member_index]
        return self._areas.node_view(rank, rank_node.node_index, bucket, self._version)

    def sum(self, bucket: Bucket) -> Tensor:
        return bucket.view(self._sum)

    def barrier(self) -> None:
        """Every process has the whole sum."""

    def whole_sum(self) -> Grads:
        return self._grads

    def release(self) -> None:
        """Nothing is kept."""
