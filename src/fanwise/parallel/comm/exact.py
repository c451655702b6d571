"""Slices of gradients as messages between the processes of torch.distributed: the transport of reduce="exact".

    all to all      each sends every owner its slice of the nodes of the tree, in the order of the nodes
    broadcasts      each owner sends its slice of the sum to all

The bytes are those of a ring. Parameters that no shard reached, such as frozen ones, do not travel; which those are is
known when all have met, so nothing is sent before.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..all_reduce.contract import AllReducePlan, Found
from .flat_layout import Bucket, Layout, flat_gradient, joined
from .torch_group import Groups


class Messages:
    """See the module and all_reduce/two_shot.py."""

    def __init__(self, groups: Groups, params: Sequence[nn.Parameter], device: torch.device) -> None:
        self._groups = groups
        self._params = list(params)
        self._device = device
        self._own: dict[tuple[int, int], Tensor] = {}
        self._room: dict[str, Tensor] = {}
        self._rows: dict[tuple[int, int], Tensor] = {}
        self._lay_out([])

    def _lay_out(self, reached: Sequence[bool]) -> None:
        self._reached = reached
        self._layout = Layout(self._params, [place for place, is_reached in enumerate(reached) if is_reached])
        self._slice = self._layout.slice_bytes(self._groups.size)
        self._begin = self._groups.place * self._slice
        self._sum = self._memory("sum", self._slice * self._groups.size)
        self._grads = self._layout.shaped(self._sum)

    def hand_out(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        for place, grad in enumerate(grads, first):
            if grad is not None:
                self._own[number, place] = flat_gradient(self._params[place], grad)

    def wait(self) -> None:
        """Nothing was sent."""

    def bring(self, met: AllReducePlan) -> list[Bucket]:
        if met.reached != self._reached:
            self._lay_out(met.reached)
        groups, each = self._groups, self._slice
        with_samples = [found for found in met.found if found.node.reached]
        own = [found.number for found in with_samples if found.place == groups.place]
        counts = [sum(found.place == place for found in with_samples) for place in range(groups.size)]
        send = self._memory("send", groups.size * len(own) * each).view(groups.size, len(own), each)
        self._fill(send, own)
        rows = self._memory("rows", len(with_samples) * each).view(len(with_samples), each)
        groups.all_to_all(list(send), list(torch.split(rows, counts)))
        self._rows = {found[:2]: row for found, row in zip(with_samples, rows, strict=True)}
        return joined(self._layout.owned(groups.place, groups.size), met.flags())

    def _fill(self, send: Tensor, own: Sequence[int]) -> None:
        """With what each process is to have of own nodes."""
        to: list[Tensor] = []
        of: list[Tensor] = []
        for owner, rows in enumerate(send):
            for bucket in self._layout.owned(owner, len(send)):
                for number, row in zip(own, rows, strict=True):
                    if (flat := self._own.get((number, bucket.param))) is not None:
                        to.append(bucket.of(row, owner * self._slice))
                        of.append(bucket.of_flat(flat))
        if to:
            torch._foreach_copy_(to, of)

    def operand(self, each: Found, bucket: Bucket) -> Tensor:
        return bucket.of(self._rows[each[:2]], self._begin)

    def sum(self, bucket: Bucket) -> Tensor:
        return bucket.of(self._sum)

    def publish(self) -> None:
        """It is sent when all have."""

    def meet(self) -> None:
        self._groups.all_gather(self._sum)

    def collect(self) -> list[Tensor | None]:
        return self._grads

    def settle(self) -> None:
        self._own.clear()

    def abort(self) -> None:
        self._own.clear()

    def _memory(self, name: str, size_bytes: int) -> Tensor:
        """Flat memory for one purpose, kept for the next step."""
        if name not in self._room or len(self._room[name]) < size_bytes:
            self._room[name] = torch.zeros(size_bytes, dtype=torch.uint8, device=self._device)
        return self._room[name][:size_bytes]
