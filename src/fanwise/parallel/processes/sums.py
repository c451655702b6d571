"""Gradients of all processes, added in the memory that they share: each process owns a slice of every sum.

    1  each writes the slices of others from its nodes of the tree       gather: what each node holds
    2  each adds its own slice of all nodes, along the tree, and divides   barrier
    3  each reads the whole sum                                          until the next step

So a process reads and adds 1/k of what there is, whatever the number of shards, and bytes move once each way: the
traffic of a ring (D2L 13.5, exercise 3). Slices begin at multiples of 64 bytes. The tree is that of `shards`, and every
element is added in its order, so the bits do not depend on who owns it.

The sum is read through a private mapping: an optimizer, or clipping, that writes into its gradients gets pages of its
own, and the others see nothing. Such pages are given up after the step.
"""

import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..brought import Brought, brought
from ..gradients import Partial, add, add_grads
from ..shards import Node, total
from ..team import check_count, divide
from .areas import Areas, Piece, flat_gradient
from .sharding import ShardedOptimizer, can_be_sharded

if TYPE_CHECKING:
    from .member import Member


class _Found(NamedTuple):
    """A node, and where its gradients are."""

    rank: int
    number: int
    node: Brought


_Flats = dict[int, list[Tensor | None]]


class SharedSums:
    """The sums of one step. `updates`: with `mean` a total also updates the parameters, slice by slice.

    Args:
        offset: bytes that other steps have taken. optimizer: of the step; None if it needs whole gradients.
    """

    def __init__(
        self, member: "Member", params: Sequence[nn.Parameter], offset: int, optimizer: Optimizer | None
    ) -> None:
        self._member = member
        self._areas = areas = Areas(member.memory, params, member.ranks, offset)
        self.size_bytes = areas.size_bytes
        self._mapping, self._read, self._grads = areas.map_sum()
        self._version = self._read._version
        sharded = optimizer is not None and can_be_sharded(optimizer, params)
        self._sharded = ShardedOptimizer(optimizer, areas, params) if optimizer is not None and sharded else None

    @property
    def updates(self) -> bool:
        return self._sharded is not None

    # -- one step --------------------------------------------------------------------------------------------------

    def total(self, what: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        member, own = self._member, _Flats()
        sharded = self._sharded if mean else None
        for number, node in enumerate(nodes):
            if node.value is not None:
                both = zip(self._areas.params, node.value.grads, strict=True)
                own[number] = [flat_gradient(param, grad) for param, grad in both]
                self._hand_out(number, own[number])
        version = None if self._sharded is None else self._sharded.version
        said = member.gather(what, (member.joining, version, [brought(node) for node in nodes]))
        if self._sharded is not None:
            self._sharded.begin([its for _, its, _ in said])
        found = [
            _Found(rank, number, node)
            for rank, (_, _, theirs) in zip(member.members, said, strict=True)
            for number, node in enumerate(theirs)
        ]
        done = total([each.node.node() for each in found], shards, add)
        check_count(done.count, done.samples)
        reached = [
            any(flags) for flags in zip(*(each.node.reached for each in found if each.node.reached), strict=True)
        ]
        pieces = self._areas.slice(member.place, member.size)
        self._add(pieces, found, own, shards, done.count if mean else None)
        if sharded is not None:
            sharded.update(pieces, reached, self._areas.sum)
        member.barrier()
        if said[0][0]:
            member.admit_soon()
        if sharded is not None:
            sharded.commit(reached)
            return done
        self.settle()  # also what a step that failed has left
        both_ = zip(self._grads, reached, strict=True)
        done.grads = [(grad if mean else grad.clone()) if is_reached else None for grad, is_reached in both_]
        return done

    def settle(self) -> None:
        if self._read._version != self._version:
            self._mapping.madvise(mmap.MADV_DONTNEED)
            self._version = self._read._version

    # -- step by step ----------------------------------------------------------------------------------------------

    def _hand_out(self, number: int, flats: Sequence[Tensor | None]) -> None:
        """What the others add, of one node of ours."""
        member, areas = self._member, self._areas
        to: list[Tensor] = []
        of: list[Tensor] = []
        for place in range(member.size):
            if place != member.place:
                for piece in areas.slice(place, member.size):
                    flat = flats[piece.param]
                    if flat is not None:
                        to.append(areas.node(member.rank, number, piece))
                        of.append(flat[piece.start : piece.stop])
        if to:
            torch._foreach_copy_(to, of)

    def _add(
        self, pieces: Sequence[Piece], found: Sequence[_Found], own: _Flats, shards: int, count: float | None
    ) -> None:
        """Our slice of all nodes, along the tree; the last addition puts it where it is read."""
        nodes = [Node(each.node.start, each.node.stop, self._operands(each, own, pieces)) for each in found]
        operands = sum(node.value is not None for node in nodes)
        sums = [self._areas.sum(piece) for piece in pieces]
        additions = 0

        def plus(left: list[Tensor | None], right: list[Tensor | None]) -> list[Tensor | None]:
            nonlocal additions
            additions += 1
            if additions < operands - 1:
                add_grads(left, right)
                return left
            return [_put(out, mine, other) for out, mine, other in zip(sums, left, right, strict=True)]

        result = total(nodes, shards, plus)
        if operands == 1:
            result = [_put(out, mine, None) for out, mine in zip(sums, result, strict=True)]
        if count is not None:
            divide(result, count)

    def _operands(self, each: _Found, own: _Flats, pieces: Sequence[Piece]) -> list[Tensor | None] | None:
        """A node's gradients of our slice, piece by piece. None: it has no samples."""
        reached, rank, number = each.node.reached, each.rank, each.number
        if not reached:
            return None
        if rank != self._member.rank:
            node = self._areas.node
            return [node(rank, number, piece) if reached[piece.param] else None for piece in pieces]
        flats = own[number]
        return [None if (flat := flats[place]) is None else flat[start:stop] for place, start, stop, _ in pieces]


def _put(out: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """The sum of two, in `out`."""
    if left is not None and right is not None:
        return torch.add(left, right, out=out)
    only = left if right is None else right
    return None if only is None else out.copy_(only)
