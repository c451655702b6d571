"""The transport between CPU ranks of one machine for small models: every rank adds all nodes, and none sends a sum.

With k ranks this needs k times the additions of shm_two_shot.py and k/2 times the bytes, but one exchange for each step
instead of two. So it pays if an addition takes less time than an exchange. The bits are the same.

A node has two versions, one for even and one for odd sequence numbers, like the mailboxes of the control block: before
a rank overwrites a version, all other ranks have arrived at the exchange between, and so have finished reading.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .all_reduce import AllReducePlan, Grads, RankNode
from .flat_layout import Bucket, check_strided, joined
from .shm_areas import Areas


class OneShotTransport:
    """See the module. `areas`: with two versions of each node."""

    is_changeable = False

    def __init__(self, areas: Areas) -> None:
        self._areas = areas
        self._version = 0
        self._sum = torch.zeros(areas.layout.size_bytes, dtype=torch.uint8)
        self._grads = areas.layout.shaped(self._sum)
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
                self._own[key] = areas.layout.shaped(areas.whole_node(areas.team.rank, *key))
            for copy, grad in zip(self._own[key], grads, strict=True):
                if grad is not None and copy is not None:
                    check_strided(grad)
                    copies.append(copy)
                    sources.append(grad)
        if copies:
            torch._foreach_copy_(copies, sources)

    def receive(self, plan: AllReducePlan) -> list[Bucket]:
        if (flags := plan.flags()) != self._flags:
            self._flags, self._buckets = flags, joined(self._areas.layout.owned(0, 1), flags)
        return self._buckets

    def operand(self, rank_node: RankNode, bucket: Bucket) -> Tensor:
        rank = self._areas.team.members[rank_node.member_index]
        return self._areas.node(rank, rank_node.node_index, bucket, self._version)

    def sum(self, bucket: Bucket) -> Tensor:
        return bucket.of(self._sum)

    def barrier(self) -> None:
        """Every process has the whole sum."""

    def whole_sum(self) -> Grads:
        return self._grads

    def release(self) -> None:
        """The sum is memory of this process."""
