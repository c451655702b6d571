"""Gradients in slices over a process group: how `all_reduce.two_shot` exchanges them for `reduce="exact"`.

    all_to_all    each process sends every owner its slice of the process's nodes of the tree, in the order of the nodes
    all_gather    each owner sends its slice of the sum to all

Parameters that no shard reached, such as frozen ones, are not sent. Which ones those are is known only after all
processes have met, so nothing is sent before.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..all_reduce.contract import AllReducePlan, Found
from .flat_layout import Bucket, Layout, flat_gradient, joined
from .torch_group import TorchGroup


class GroupTransport:
    """See the module and all_reduce/two_shot.py."""

    def __init__(self, group: TorchGroup, params: Sequence[nn.Parameter], device: torch.device) -> None:
        self._group = group
        self._params = list(params)
        self._device = device
        self._own: dict[tuple[int, int], Tensor] = {}  # flat gradients by node and parameter
        self._memory: dict[str, Tensor] = {}
        self._rows: dict[tuple[int, int], Tensor] = {}
        self._lay_out([])

    def _lay_out(self, reached: Sequence[bool]) -> None:
        self._reached = reached
        self._layout = Layout(self._params, [place for place, is_reached in enumerate(reached) if is_reached])
        self._slice_bytes = self._layout.slice_bytes(self._group.size)
        self._sum = self._flat_memory("sum", self._slice_bytes * self._group.size)
        self._grads = self._layout.shaped(self._sum)

    def hand_out(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        for place, grad in enumerate(grads, first):
            if grad is not None:
                self._own[number, place] = flat_gradient(self._params[place], grad)

    def wait(self) -> None:
        """Nothing was sent yet."""

    def bring(self, met: AllReducePlan) -> list[Bucket]:
        if met.reached != self._reached:
            self._lay_out(met.reached)
        group, size = self._group, self._slice_bytes
        nodes = [node for node in met.found if node.node.reached]
        own = [node.number for node in nodes if node.place == group.place]
        counts = [sum(node.place == place for node in nodes) for place in range(group.size)]
        send = self._flat_memory("send", group.size * len(own) * size).view(group.size, len(own), size)
        self._fill(send, own)
        rows = self._flat_memory("rows", len(nodes) * size).view(len(nodes), size)
        if size:
            sizes = [len(own) * size] * group.size, [count * size for count in counts]
            group.all_to_all(send.view(-1), rows.view(-1), *sizes)
        self._rows = {node[:2]: row for node, row in zip(nodes, rows, strict=True)}
        return joined(self._layout.owned(group.place, group.size), met.flags())

    def _fill(self, send: Tensor, own: Sequence[int]) -> None:
        """Write each owner's slice of the nodes `own`."""
        copies: list[Tensor] = []
        sources: list[Tensor] = []
        for owner, rows in enumerate(send):
            for bucket in self._layout.owned(owner, len(send)):
                for number, row in zip(own, rows, strict=True):
                    if (flat := self._own.get((number, bucket.param))) is not None:
                        copies.append(bucket.of(row, owner * self._slice_bytes))
                        sources.append(bucket.of_flat(flat))
        if copies:
            torch._foreach_copy_(copies, sources)

    def operand(self, each: Found, bucket: Bucket) -> Tensor:
        return bucket.of(self._rows[each[:2]], self._group.place * self._slice_bytes)

    def sum(self, bucket: Bucket) -> Tensor:
        return bucket.of(self._sum)

    def publish(self) -> None:
        """The sum is sent once all processes have added their slices."""

    def meet(self) -> None:
        self._group.all_gather(self._sum)

    def collect(self) -> list[Tensor | None]:
        return self._grads

    def settle(self) -> None:
        self._own.clear()

    def abort(self) -> None:
        self._own.clear()

    def _flat_memory(self, name: str, size_bytes: int) -> Tensor:
        """Memory for one purpose, which is kept for the next step."""
        if name not in self._memory or len(self._memory[name]) < size_bytes:
            self._memory[name] = torch.zeros(size_bytes, dtype=torch.uint8, device=self._device)
        return self._memory[name][:size_bytes]
