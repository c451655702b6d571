"""Gradients of all processes, added along the tree over the shards, each slice by its owner.

    1  each sends every owner its slice of the nodes of the tree       all to all, in the order of the nodes
    2  the owner adds its slice of all nodes along the tree, and divides
    3  each owner sends the sum to all                                 one broadcast of each slice

The bytes are those of a ring. Every element is added in the order of the tree, so the result has the bits of one process.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..brought import brought
from ..gradients import Partial, add
from ..processes.areas import flat_gradient
from ..shards import Node, total
from ..team import check_count, divide
from .layout import Layout, Run

if TYPE_CHECKING:
    from .guest_team import GuestTeam


class ExactSums:
    """The sums of one step."""

    updates = False

    def __init__(self, team: "GuestTeam", params: Sequence[nn.Parameter]) -> None:
        self._team = team
        self._layout = Layout(params, team.size)
        self._part = self._layout.part_bytes
        self._room: dict[str, Tensor] = {}
        self._sum = self._memory("sum", self._part * team.size)
        self._grads = [self._layout.whole(self._sum, place) for place in range(len(self._layout.params))]

    def total(self, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        team = self._team
        flats = [self._flats(node.value) for node in nodes if node.value is not None]
        said = team.gather("makes a step", [brought(node) for node in nodes])
        found = [each for theirs in said for each in theirs]
        done = total([each.node() for each in found], shards, add)
        check_count(done.count, done.samples)
        rows = self._exchange(flats, [sum(bool(each.reached) for each in theirs) for theirs in said])
        leaves = [(each.start, each.stop, bool(each.reached)) for each in found]
        reached = [each.reached for each in found if each.reached]
        own = self._sum[team.place * self._part : (team.place + 1) * self._part]
        for run in self._layout.runs(team.place, reached):
            out = own[run.first : run.last].view(run.dtype)
            _add(run, rows, leaves, shards, out)
            if mean:
                divide([out], done.count)
        team.spread(self._sum)
        is_reached = [any(flags) for flags in zip(*reached, strict=True)]
        both = zip(self._grads, is_reached, strict=True)
        done.grads = [(grad if mean else grad.clone()) if is_here else None for grad, is_here in both]
        return team.to_device(done)

    def settle(self) -> None:
        pass

    def _flats(self, value: Partial) -> list[Tensor | None]:
        return [flat_gradient(param, grad) for param, grad in zip(self._layout.params, value.grads, strict=True)]

    def _exchange(self, flats: Sequence[Sequence[Tensor | None]], counts: Sequence[int]) -> Tensor:
        """The own slice of all nodes with samples, one row each.

        Args:
            flats: of own nodes with samples. counts: such nodes of each process.
        """
        team, part = self._team, self._part
        send = self._memory("send", team.size * len(flats) * part).view(team.size, len(flats), part)
        to: list[Tensor] = []
        of: list[Tensor] = []
        for owner, pieces in enumerate(self._layout.pieces):
            for number, each in enumerate(flats):
                for piece in pieces:
                    flat = each[piece.param]
                    if flat is not None:
                        to.append(send[owner, number, piece.first : piece.last].view(flat.dtype))
                        of.append(flat[piece.start : piece.stop])
        if to:
            torch._foreach_copy_(to, of)
        rows = self._memory("rows", sum(counts) * part).view(sum(counts), part)
        team.exchange(list(send), list(rows.split(list(counts))))
        return rows

    def _memory(self, name: str, size_bytes: int) -> Tensor:
        """Flat memory for one purpose, kept for the next step."""
        if name not in self._room or len(self._room[name]) < size_bytes:
            self._room[name] = torch.zeros(size_bytes, dtype=torch.uint8, device=self._team.device)
        return self._room[name][:size_bytes]


def _add(run: Run, rows: Tensor, leaves: Sequence[tuple[int, int, bool]], shards: int, out: Tensor) -> None:
    """One run of all nodes, along the tree; the last addition puts it where it is read."""
    nodes: list[Node[Tensor]] = []
    number = 0
    for start, stop, has_samples in leaves:
        is_operand = has_samples and number in run.operands
        value = rows[number, run.first : run.last].view(run.dtype) if is_operand else None
        nodes.append(Node(start, stop, value))
        number += has_samples
    additions = 0

    def plus(left: Tensor, right: Tensor) -> Tensor:
        nonlocal additions
        additions += 1
        return torch.add(left, right, out=out) if additions == len(run.operands) - 1 else left.add_(right)

    result = total(nodes, shards, plus)
    if len(run.operands) == 1:
        out.copy_(result)
