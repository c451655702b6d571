"""Gradients of small models: every process writes all of its own, and adds all of everybody's for itself.

    1  each writes the nodes of the tree that it has                       gather: what each node holds
    2  each adds all nodes along the tree, into memory of its own, and divides

That is k times the additions of two_shot.py, where each adds a slice, and k/2 times the bytes; but there is one meeting
a step instead of two, and a few operators over everything instead of some for each parameter. So it is for sums that
take less time than a meeting. The tree is the same, and so are the bits.

A node has two versions, and a sum uses that of its turn, like the boxes of the control block: who writes one again has
seen all others arrive at the turn between, and so done with reading it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..replica.gradients import Partial, total_into
from ..shards import Node
from ..teams.team import divide
from .areas import Areas, check_strided
from .told import Found, told

if TYPE_CHECKING:
    from .team import SharedMemoryTeam


class OneShotSums:
    """The sums of one step of a small model.

    Args:
        offset: bytes that other steps have taken.
    """

    updates = False

    def __init__(self, member: "SharedMemoryTeam", params: Sequence[nn.Parameter], offset: int) -> None:
        self._member = member
        self._areas = areas = Areas(member.memory, params, member.ranks, offset, versions=2)
        self.size_bytes = areas.size_bytes
        self._sum = torch.zeros(areas.params_bytes, dtype=torch.uint8)
        self._grads = areas.shaped(self._sum)
        self._own: dict[tuple[int, int], list[Tensor]] = {}
        self._views = _Views(areas, self._sum, bytes(len(areas.params)), apart=False)

    def total(self, what: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        member = self._member
        version = member.next_turn % 2
        for number, node in enumerate(nodes):
            if node.value is not None:
                self._write(number, version, node.value.grads)
        found, done, reached, _, admits = told(member, what, nodes, shards, None)
        if admits:
            member.admit_soon()
        sums = self._add(found, version, bytes(reached), shards)
        if mean:
            divide(sums, done.count)
        both = zip(self._grads, reached, strict=True)
        done.grads = [(grad if mean else grad.clone()) if is_reached else None for grad, is_reached in both]
        return done

    def settle(self) -> None:
        """The sum is memory of this process."""

    def update_whole(self) -> None:
        """They never update."""

    def _write(self, number: int, version: int, grads: Sequence[Tensor | None]) -> None:
        own = self._own.get((number, version))
        if own is None:
            memory = self._areas.bytes_of_node(self._member.rank, number, version)
            own = self._own[number, version] = self._areas.shaped(memory)
        to, of = [], []
        for view, grad in zip(own, grads, strict=True):
            if grad is not None:
                check_strided(grad)
                to.append(view)
                of.append(grad)
        if to:
            torch._foreach_copy_(to, of)

    def _add(self, found: Sequence[Found], version: int, reached: bytes, shards: int) -> list[Tensor | None]:
        # Where nodes differ in what they have reached, each parameter is added by itself.
        apart = any(each.node.reached not in (b"", reached) for each in found)
        if self._views.made_for != (reached, apart):
            self._views = _Views(self._areas, self._sum, reached, apart=apart)
        nodes = [Node(each.node.start, each.node.stop, self._views.of(each, version)) for each in found]
        return total_into(self._views.sums, nodes, shards, changes=False)


class _Views:
    """Memory of the sum and of nodes, cut into what is added at once: parameters of one type that follow each other.

    Args:
        reached: the parameters that have a sum. apart: each is cut out by itself.
    """

    def __init__(self, areas: Areas, sum_: Tensor, reached: bytes, *, apart: bool) -> None:
        self.made_for = (reached, apart)
        self._areas = areas
        self._spans = areas.spans(reached, apart=apart)
        self._nodes: dict[tuple[int, int, int, bytes], list[Tensor | None]] = {}
        self.sums = [sum_[span.first : span.last].view(span.dtype) for span in self._spans]

    def of(self, each: Found, version: int) -> list[Tensor | None] | None:
        """What a node has for each of these spans; None where it has nothing, or no samples."""
        flags = each.node.reached
        if not flags:
            return None
        key = (each.rank, each.number, version, flags)
        if key not in self._nodes:
            memory = self._areas.bytes_of_node(each.rank, each.number, version)
            self._nodes[key] = [
                memory[span.first : span.last].view(span.dtype) if flags[span.param] else None for span in self._spans
            ]
        return self._nodes[key]
