"""Gradients of small models over hosts: each process tells all of its own, and adds all of everybody's for itself.

They go the way of whatever is told at a turn, through the coordinator. That is more bytes than needed, and one message
each way: for sums that take less time than a message.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ..all_reduce.contract import AllReducePlan, Found
from ..comm.flat_layout import Layout, flat_gradient, joined
from ..comm.team import divide
from ..replica.gradients import total_into
from ..shards import Node


class ExchangingTeam(Protocol):
    """What it needs of a team."""

    @property
    def place(self) -> int: ...

    def exchange(self, content: bytes) -> Sequence[bytes]:
        """What all have given, by place. Blocks until all have."""
        ...


class InBoxes:
    """The `AllReduce` of small models."""

    def __init__(self, team: ExchangingTeam, params: Sequence[nn.Parameter]) -> None:
        self._team = team
        self._params = list(params)
        self._own: dict[tuple[int, int], Tensor] = {}
        self._lay_out([])

    def _lay_out(self, reached: Sequence[bool]) -> None:
        self._reached = reached
        self._layout = Layout(self._params, [place for place, is_reached in enumerate(reached) if is_reached])
        self._sum = torch.zeros(self._layout.size_bytes, dtype=torch.uint8)
        self._grads = self._layout.shaped(self._sum)

    def begin(self) -> None:
        self._own.clear()

    def ready(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        for place, grad in enumerate(grads, first):
            if grad is not None:
                self._own[number, place] = flat_gradient(self._params[place], grad)

    def finish(self, meet: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        met = meet()
        if met.reached != self._reached:
            self._lay_out(met.reached)
        layout = self._layout
        mine = [each.number for each in met.found if each.place == self._team.place and each.node.reached]
        told = torch.zeros(len(mine), layout.size_bytes, dtype=torch.uint8)
        for row, number in zip(told, mine, strict=True):
            for (its, place), flat in self._own.items():
                if its == number:
                    layout.flat(row, place).copy_(flat)
        num_nodes = Counter(each.place for each in met.found if each.node.reached)
        contents = self._team.exchange(told.numpy().tobytes())
        rows = [iter(_rows(each, num_nodes[place], layout.size_bytes)) for place, each in enumerate(contents)]
        buckets = joined(layout.owned(0, 1), met.flags())

        def operands(each: Found) -> list[Tensor | None] | None:
            if not each.node.reached:
                return None
            row = next(rows[each.place])
            return [bucket.of(row) if each.node.reached[bucket.param] else None for bucket in buckets]

        nodes = [Node(each.node.start, each.node.stop, operands(each)) for each in met.found]
        sums = total_into([bucket.of(self._sum) for bucket in buckets], nodes, met.shards, changes=True)
        if met.count is not None:
            divide(sums, met.count)
        return [grad if is_reached else None for grad, is_reached in zip(self._grads, met.reached, strict=True)]

    def settle(self) -> None:
        self._own.clear()

    def abort(self) -> None:
        self._own.clear()


def _rows(content: bytes, count: int, size_bytes: int) -> Iterable[Tensor]:
    """Of so many nodes, which have nothing in them where no parameter is reached."""
    if not content:
        return [torch.zeros(0, dtype=torch.uint8)] * count
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(count, size_bytes)
