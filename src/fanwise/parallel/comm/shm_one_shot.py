"""Gradients of small models: every rank writes all of its nodes into shared memory, and adds all nodes of all ranks.

This needs k times the additions of all_reduce.py, where each of k ranks adds a slice, and k/2 times the bytes,
but one exchange for each step instead of two. So it is for sums that take less time than an exchange. The tree is the
same, and so are the bits.

A node has two versions, one for even and one for odd turns, like the boxes of the control block: a rank that overwrites
a version has seen all others arrive at the turn between, and so finish reading it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..step.gradients import total_into
from ..step.tree import Node
from .all_reduce import AllReducePlan, Found
from .flat_layout import check_strided, joined
from .shm_areas import Areas
from .team import divide


class OneShot:
    """The `AllReduce` of small models. `areas`: with two versions of each node."""

    def __init__(self, areas: Areas) -> None:
        self._areas = areas
        self._version = 0
        self._sum = torch.zeros(areas.layout.size_bytes, dtype=torch.uint8)
        self._grads = areas.layout.shaped(self._sum)
        self._own: dict[tuple[int, int], list[Tensor | None]] = {}  # by node and version
        self._buckets = _Buckets(areas, self._sum, frozenset())

    def begin(self) -> None:
        self._version = self._areas.team.next_turn % 2

    def ready(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        own = self._own.get((number, self._version))
        if own is None:
            memory = self._areas.whole_node(self._areas.team.rank, number, self._version)
            own = self._own[number, self._version] = self._areas.layout.shaped(memory)
        copies: list[Tensor] = []
        sources: list[Tensor] = []
        for place, grad in enumerate(grads, first):
            if grad is not None and (copy := own[place]) is not None:
                check_strided(grad)
                copies.append(copy)
                sources.append(grad)
        if copies:
            torch._foreach_copy_(copies, sources)

    def finish(self, meet: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        met = meet()
        reached = frozenset(met.flags())
        if self._buckets.reached != reached:
            self._buckets = _Buckets(self._areas, self._sum, reached)
        nodes = [
            Node(each.node.start, each.node.stop, self._buckets.operands(each, self._version)) for each in met.found
        ]
        sums = total_into(self._buckets.sums, nodes, met.shards, changes=False)
        if met.count is not None:
            divide(sums, met.count)
        return [grad if is_reached else None for grad, is_reached in zip(self._grads, met.reached, strict=True)]

    def settle(self) -> None:
        """The sum is in memory of this process."""

    def abort(self) -> None:
        """Nobody reads the nodes of a turn at which this rank has not arrived."""


class _Buckets:
    """The memory of the sum and of the nodes, in parts that are added at once.

    Args:
        reached: the distinct flags of the nodes, which tell the parameters that have gradients.
    """

    def __init__(self, areas: Areas, total: Tensor, reached: frozenset[bytes]) -> None:
        self.reached = reached
        self._areas = areas
        self._buckets = joined(areas.layout.owned(0, 1), sorted(reached))
        self._operands: dict[tuple[int, int, int, bytes], list[Tensor | None]] = {}
        self.sums = [bucket.of(total) for bucket in self._buckets]

    def operands(self, node: Found, version: int) -> list[Tensor | None] | None:
        """Return the gradients of a node in each bucket, None where it has none. None: the node has no samples."""
        flags, rank = node.node.reached, self._areas.team.members[node.place]
        if not flags:
            return None
        key = (rank, node.number, version, flags)
        if key not in self._operands:
            memory = self._areas.whole_node(rank, node.number, version)
            self._operands[key] = [bucket.of(memory) if flags[bucket.param] else None for bucket in self._buckets]
        return self._operands[key]
