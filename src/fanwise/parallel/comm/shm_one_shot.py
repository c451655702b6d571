"""Gradients of small models: every process writes all of its own, and adds all of everybody's for itself.

    1  each writes the nodes of the tree that it has                       gather: what each node holds
    2  each adds all nodes along the tree, into memory of its own, and divides

That is k times the additions of all_reduce/two_shot.py, where each adds a slice, and k/2 times the bytes; but there is
one meeting a step instead of two, and a few operators over everything instead of some for each parameter. So it is for
sums that take less time than a meeting. The tree is the same, and so are the bits.

A node has two versions, and a sum uses that of its turn, like the boxes of the control block: who writes one again has
seen all others arrive at the turn between, and so done with reading it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..all_reduce.contract import AllReducePlan, Found
from ..replica.gradients import total_into
from ..shards import Node
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
        self._own: dict[tuple[int, int], list[Tensor | None]] = {}
        self._buckets = _Buckets(areas, self._sum, frozenset())

    def begin(self) -> None:
        self._version = self._areas.team.next_turn % 2

    def ready(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        own = self._own.get((number, self._version))
        if own is None:
            memory = self._areas.whole_node(self._areas.team.rank, number, self._version)
            own = self._own[number, self._version] = self._areas.layout.shaped(memory)
        to: list[Tensor] = []
        of: list[Tensor] = []
        for place, grad in enumerate(grads, first):
            if grad is not None and (view := own[place]) is not None:
                check_strided(grad)
                to.append(view)
                of.append(grad)
        if to:
            torch._foreach_copy_(to, of)

    def finish(self, meet: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        met = meet()
        reached = frozenset(met.flags())
        if self._buckets.made_for != reached:
            self._buckets = _Buckets(self._areas, self._sum, reached)
        nodes = [
            Node(each.node.start, each.node.stop, self._buckets.operands(each, self._version)) for each in met.found
        ]
        sums = total_into(self._buckets.sums, nodes, met.shards, changes=False)
        if met.count is not None:
            divide(sums, met.count)
        return [grad if is_reached else None for grad, is_reached in zip(self._grads, met.reached, strict=True)]

    def settle(self) -> None:
        """The sum is memory of this process."""

    def abort(self) -> None:
        """What was written is of a turn that nobody has come to."""


class _Buckets:
    """Memory of the sum and of nodes, cut into what is added at once.

    Args:
        reached: what the nodes have gradients of, all kinds of them.
    """

    def __init__(self, areas: Areas, sum_: Tensor, reached: frozenset[bytes]) -> None:
        self.made_for = reached
        self._areas = areas
        self._buckets = joined(areas.layout.owned(0, 1), sorted(reached))
        self._nodes: dict[tuple[int, int, int, bytes], list[Tensor | None]] = {}
        self.sums = [bucket.of(sum_) for bucket in self._buckets]

    def operands(self, each: Found, version: int) -> list[Tensor | None] | None:
        """What a node has for each of these; None where it has nothing, or no samples."""
        flags, rank = each.node.reached, self._areas.team.members[each.place]
        if not flags:
            return None
        key = (rank, each.number, version, flags)
        if key not in self._nodes:
            memory = self._areas.whole_node(rank, each.number, version)
            self._nodes[key] = [bucket.of(memory) if flags[bucket.param] else None for bucket in self._buckets]
        return self._nodes[key]
