"""Gradients in slices over a process group: how `all_reduce.TwoShot` exchanges them for `reduce="exact"`.

    all_to_all    each process sends every owner its slice of the process's nodes of the tree, in the order of the nodes
    all_gather    each owner sends its slice of the sum to all

Parameters without a gradient in any shard, such as frozen ones, are not sent. Which ones those are is known only from
the plan, so nothing is sent before.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .all_reduce import AllReducePlan, RankNode
from .flat_layout import Bucket, Layout, flat_gradient, joined
from .torch_group import TorchGroup


class GroupTransport:
    """See the module and all_reduce.py."""

    def __init__(self, group: TorchGroup, params: Sequence[nn.Parameter], device: torch.device) -> None:
        self._group = group
        self._params = list(params)
        self._device = device
        self._own: dict[tuple[int, int], Tensor] = {}  # flat gradients by node and parameter
        self._memory: dict[str, Tensor] = {}
        self._rows: dict[tuple[int, int], Tensor] = {}
        self._lay_out([])

    def _lay_out(self, has_grad: Sequence[bool]) -> None:
        self._has_grad = has_grad
        self._layout = Layout(self._params, [index for index, has in enumerate(has_grad) if has])
        self._slice_bytes = self._layout.slice_bytes(self._group.size)
        self._sum = self._flat_memory("sum", self._slice_bytes * self._group.size)
        self._grads = self._layout.shaped(self._sum)

    def hand_out(self, node_index: int, first_param: int, grads: Sequence[Tensor | None]) -> None:
        for index, grad in enumerate(grads, first_param):
            if grad is not None:
                self._own[node_index, index] = flat_gradient(self._params[index], grad)

    def wait(self) -> None:
        """Nothing was sent yet."""

    def bring(self, plan: AllReducePlan) -> list[Bucket]:
        if plan.has_grad != self._has_grad:
            self._lay_out(plan.has_grad)
        group, size = self._group, self._slice_bytes
        nodes = [rank_node for rank_node in plan.rank_nodes if rank_node.node.has_grad]
        own = [rank_node.node_index for rank_node in nodes if rank_node.place == group.place]
        counts = [sum(rank_node.place == place for rank_node in nodes) for place in range(group.size)]
        send = self._flat_memory("send", group.size * len(own) * size).view(group.size, len(own), size)
        self._fill(send, own)
        rows = self._flat_memory("rows", len(nodes) * size).view(len(nodes), size)
        if size:
            sizes = [len(own) * size] * group.size, [count * size for count in counts]
            group.all_to_all(send.view(-1), rows.view(-1), *sizes)
        self._rows = {rank_node[:2]: row for rank_node, row in zip(nodes, rows, strict=True)}
        return joined(self._layout.owned(group.place, group.size), plan.flags())

    def _fill(self, send: Tensor, own: Sequence[int]) -> None:
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

    def operand(self, rank_node: RankNode, bucket: Bucket) -> Tensor:
        return bucket.of(self._rows[rank_node[:2]], self._group.place * self._slice_bytes)

    def sum(self, bucket: Bucket) -> Tensor:
        return bucket.of(self._sum)

    def publish(self) -> None:
        """The sum is sent once all processes have added their slices."""

    def barrier(self) -> None:
        self._group.all_gather(self._sum)

    def collect(self) -> list[Tensor | None]:
        return self._grads

    def release(self) -> None:
        self._own.clear()

    def abort(self) -> None:
        self._own.clear()

    def _flat_memory(self, name: str, size_bytes: int) -> Tensor:
        if name not in self._memory or len(self._memory[name]) < size_bytes:
            self._memory[name] = torch.zeros(size_bytes, dtype=torch.uint8, device=self._device)
        return self._memory[name][:size_bytes]
