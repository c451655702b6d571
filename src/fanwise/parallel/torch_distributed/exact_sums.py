"""Gradients of all processes, added along the tree over the shards, each slice by its owner.

    1  each sends every owner its slice of the nodes of the tree       all to all, in the order of the nodes
    2  the owner adds its slice of all nodes along the tree, and divides
    3  each owner sends the sum to all                                 one broadcast of each slice

The bytes are those of a ring. Every element is added in the order of the tree: the bits are those of one process.
Parameters that no shard reached, such as frozen ones, do not travel.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..replica.gradients import Partial, add
from ..shards import Node, total
from ..shared_memory.areas import flat_gradient
from ..teams.node_info import NodeInfo, hear, tell, to_device
from ..teams.team import check_done, divide
from .layout import Layout, Stretch

if TYPE_CHECKING:
    from .team import TorchDistributedTeam

_Flats = list[Tensor | None]


class ExactSums:
    """The sums of one step."""

    updates = False

    def __init__(self, team: "TorchDistributedTeam", params: Sequence[nn.Parameter]) -> None:
        self._team = team
        self._params = list(params)
        self._exchange = Exchange(team, self._params, ())

    def total(self, what: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        team = self._team
        flats = [flat_gradients(self._params, node.value) for node in nodes if node.value is not None]
        said = [hear(told) for told in team.gather(what, tell(nodes))]
        found = [each for theirs in said for each in theirs]
        done = total([each.node() for each in found], shards, add)
        check_done(done)
        places = reached_places(found)
        if places != self._exchange.places:
            self._exchange = Exchange(team, self._params, places)
        grads = self._exchange.added(flats, said, shards, done.count if mean else None)
        done.grads = [None] * len(self._params)
        for place, grad in zip(places, grads, strict=True):
            done.grads[place] = grad if mean else grad.clone()
        return to_device(done, team.device)

    def settle(self) -> None:
        pass

    def update_whole(self) -> None:
        pass


def flat_gradients(params: Sequence[nn.Parameter], value: Partial) -> _Flats:
    """Raises TypeError for a sparse one."""
    return [flat_gradient(param, grad) for param, grad in zip(params, value.grads, strict=True)]


def reached_places(found: Sequence[NodeInfo]) -> tuple[int, ...]:
    """Which parameters have a gradient in at least one node."""
    flags = zip(*(each.reached for each in found if each.reached), strict=True)
    return tuple(place for place, each in enumerate(flags) if any(each))


class Exchange:
    """Memory and views for the gradients of the parameters at these `places`."""

    def __init__(self, team: "TorchDistributedTeam", params: Sequence[nn.Parameter], places: tuple[int, ...]) -> None:
        self.places = places
        self._team = team
        self._layout = Layout([params[place] for place in places], team.size)
        self._part = self._layout.part_bytes
        self._room: dict[str, Tensor] = {}
        self._sum = self._memory("sum", self._part * team.size)
        self._grads = [self._layout.whole(self._sum, number) for number in range(len(places))]

    def added(
        self, flats: Sequence[_Flats], said: Sequence[Sequence[NodeInfo]], shards: int, count: float | None
    ) -> list[Tensor]:
        """The sums over all shards, divided by `count`; good until the next call.

        Args:
            flats: the gradients of own nodes with samples. said: what the nodes of each process hold besides.
        """
        team = self._team
        rows = self._rows(flats, [sum(bool(each.reached) for each in theirs) for theirs in said])
        nodes = [each for theirs in said for each in theirs]
        reached = [[each.reached[place] for place in self.places] for each in nodes if each.reached]
        own = self._sum[team.place * self._part : (team.place + 1) * self._part]
        for stretch in self._layout.stretches(team.place, reached):
            out = own[stretch.first : stretch.last].view(stretch.dtype)
            _add(stretch, rows, nodes, shards, out)
            if count is not None:
                divide([out], count)
        team.spread(self._sum)
        return self._grads

    def _rows(self, flats: Sequence[_Flats], counts: Sequence[int]) -> Tensor:
        """The own slice of all nodes with samples, one row each; `counts`: such nodes of each process."""
        team, part = self._team, self._part
        send = self._memory("send", team.size * len(flats) * part).view(team.size, len(flats), part)
        to: list[Tensor] = []
        of: list[Tensor] = []
        for owner in range(team.size):
            for piece in self._layout.pieces(owner):
                for number, each in enumerate(flats):
                    flat = each[self.places[piece.param]]
                    if flat is not None:
                        to.append(send[owner, number, piece.first : piece.last].view(flat.dtype))
                        of.append(flat[piece.start : piece.stop])
        if to:
            torch._foreach_copy_(to, of)
        rows = self._memory("rows", sum(counts) * part).view(sum(counts), part)
        team.exchange(list(send), list(torch.split(rows, list(counts))))
        return rows

    def _memory(self, name: str, size_bytes: int) -> Tensor:
        """Flat memory for one purpose, kept for the next step."""
        if name not in self._room or len(self._room[name]) < size_bytes:
            self._room[name] = torch.zeros(size_bytes, dtype=torch.uint8, device=self._team.device)
        return self._room[name][:size_bytes]


def _add(stretch: Stretch, rows: Tensor, found: Sequence[NodeInfo], shards: int, out: Tensor) -> None:
    """One stretch of all nodes, along the tree; the last addition puts it where it is read."""
    nodes: list[Node[Tensor]] = []
    number = 0
    for each in found:
        is_operand = bool(each.reached) and number in stretch.operands
        value = rows[number, stretch.first : stretch.last].view(stretch.dtype) if is_operand else None
        nodes.append(Node(each.start, each.stop, value))
        number += bool(each.reached)
    operands = len(stretch.operands)
    additions = 0

    def plus(left: Tensor, right: Tensor) -> Tensor:
        nonlocal additions
        additions += 1
        return torch.add(left, right, out=out) if additions == operands - 1 else left.add_(right)

    result = total(nodes, shards, plus)
    if operands == 1:
        out.copy_(result)
