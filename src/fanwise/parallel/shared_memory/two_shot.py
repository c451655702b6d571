"""Gradients of all processes, added in the memory that they share: each process owns a slice of every sum.

    1  each writes the slices of others from its nodes of the tree       gather: what each node holds
    2  each adds its own slice of all nodes, along the tree, and divides   barrier
    3  each reads the whole sum                                          until the next step

So a process reads and adds 1/k of what there is, whatever the number of shards, and bytes move once each way: the
traffic of a ring (D2L 13.5, exercise 3). Slices begin at multiples of 64 bytes. The tree is that of `shards`, and every
element is added in its order, so the bits do not depend on who owns it.

How a process comes at this memory is its `Carrier`'s matter: CPU ranks add in it (direct.py), GPU ranks on the device,
to and from which they copy (staging.py).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..optimizers.elementwise import is_elementwise
from ..replica.gradients import Partial, total_into
from ..shards import Node
from ..teams.node_info import NodeInfo, to_device
from ..teams.team import divide
from .areas import Areas, Piece, flat_gradient
from .direct import Direct
from .sharding import ShardedOptimizer
from .staging import Staged
from .told import Found, told

if TYPE_CHECKING:
    from .team import SharedMemoryTeam


_Flats = dict[int, list[Tensor | None]]


class Carrier(Protocol):
    """Where one process has what is added, and how it comes there."""

    def hand_out(self, number: int, flats: Sequence[Tensor | None], slices: Sequence[Sequence[Piece]]) -> None:
        """Write these slices of one own node, by its number, where the others find it."""
        ...

    def wait(self) -> None:
        """Block until what was handed out is there."""
        ...

    def bring(self, rank: int, nodes: Sequence[NodeInfo], pieces: Sequence[Piece]) -> None:
        """Our slice of the nodes that another rank has handed out is wanted."""
        ...

    def others_node(self, rank: int, number: int, piece: Piece) -> Tensor:
        """A piece of one of those."""
        ...

    def sum(self, piece: Piece) -> Tensor:
        """Where a piece of our slice is to be added."""
        ...

    def publish(self, pieces: Sequence[Piece]) -> None:
        """Our slice has been added: others are to find it. Blocks until they do."""
        ...

    def collect(self, slices: Sequence[Sequence[Piece]]) -> list[Tensor]:
        """All have published: the whole sum, of which these slices are those of others."""
        ...

    def settle(self) -> None:
        """The sum is not needed any more."""
        ...


class TwoShotSums:
    """The sums of one step. `updates`: with `mean` a total also updates the parameters, slice by slice.

    Args:
        offset: bytes that other steps have taken. optimizer: of the step; None if it needs whole gradients.
    """

    def __init__(
        self, member: "SharedMemoryTeam", params: Sequence[nn.Parameter], offset: int, optimizer: Optimizer | None
    ) -> None:
        self._member = member
        self._areas = areas = Areas(member.memory, params, member.ranks, offset)
        self.size_bytes = areas.size_bytes
        self._device = params[0].device if params else torch.device("cpu")
        is_direct = self._device.type == "cpu" and member.memory.exchange != "staged"
        self._carrier: Carrier = Direct(areas, member.rank) if is_direct else Staged(areas, member.rank, self._device)
        sharded = optimizer is not None and is_direct and is_elementwise(optimizer, params)
        self._sharded = ShardedOptimizer(optimizer, areas, params) if optimizer is not None and sharded else None

    @property
    def updates(self) -> bool:
        return self._sharded is not None

    # -- one step --------------------------------------------------------------------------------------------------

    def total(self, what: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        member, carrier, own = self._member, self._carrier, _Flats()
        slices = [self._areas.slice(place, member.size) for place in range(member.size)]
        pieces = slices.pop(member.place)
        for number, node in enumerate(nodes):
            if node.value is not None:
                both = zip(self._areas.params, node.value.grads, strict=True)
                own[number] = [flat_gradient(param, grad) for param, grad in both]
                carrier.hand_out(number, own[number], slices)
        carrier.wait()
        state = None if self._sharded is None else (self._sharded.version, self._sharded.ends)
        found, done, reached, states, admits = told(member, what, nodes, shards, state)
        if self._sharded is not None:
            self._begin_sharded(self._sharded, states, is_sparse=bool(done.sparse))
        sharded = self._sharded if mean else None
        for rank in member.members:
            if rank != member.rank:
                carrier.bring(rank, [each.node for each in found if each.rank == rank], pieces)
        self._add(pieces, found, own, shards, done.count if mean else None)
        carrier.publish(pieces)
        if sharded is not None:
            sharded.update(pieces, reached, self._areas.sum)
        member.barrier()
        if admits:
            member.admit_soon()
        if sharded is not None:
            sharded.commit(reached)
            return done
        both_ = zip(carrier.collect(slices), reached, strict=True)
        done.grads = [(grad if mean else grad.clone()) if is_reached else None for grad, is_reached in both_]
        return to_device(done, self._device)

    def _begin_sharded(
        self, sharded: ShardedOptimizer, states: Sequence[tuple[int | None, bool] | None], *, is_sparse: bool
    ) -> None:
        """All know now where each has the state, and whether one cannot go on by slices: then none does."""
        if is_sparse or any(state is None or state[1] for state in states):
            self.update_whole()
        else:
            sharded.begin([state[0] for state in states if state is not None])

    def settle(self) -> None:
        self._carrier.settle()

    def update_whole(self) -> None:
        if self._sharded is not None:
            self._sharded.end()
            self._sharded = None

    # -- step by step ----------------------------------------------------------------------------------------------

    def _add(
        self, pieces: Sequence[Piece], found: Sequence[Found], own: _Flats, shards: int, count: float | None
    ) -> None:
        """Our slice of all nodes, along the tree; the last addition puts it where it is read."""
        nodes = [Node(each.node.start, each.node.stop, self._operands(each, own, pieces)) for each in found]
        result = total_into([self._carrier.sum(piece) for piece in pieces], nodes, shards, changes=True)
        if count is not None:
            divide(result, count)

    def _operands(self, each: Found, own: _Flats, pieces: Sequence[Piece]) -> list[Tensor | None] | None:
        """A node's gradients of our slice, piece by piece. None: it has no samples."""
        reached, rank, number = each.node.reached, each.rank, each.number
        if not reached:
            return None
        if rank != self._member.rank:
            node = self._carrier.others_node
            return [node(rank, number, piece) if reached[piece.param] else None for piece in pieces]
        flats = own[number]
        return [None if (flat := flats[place]) is None else flat[start:stop] for place, start, stop, _ in pieces]
