"""The transport of `reduce="exact"` over a process group of torch.distributed.

    all_to_all    each process sends every owner its slice of the process's nodes
    all_gather    each owner sends its slice of the sum to all

Parameters without a gradient in any shard, such as frozen ones, are not sent. Only the plan tells which ones these are,
so nothing is sent before all processes have it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .all_reduce import AllReducePlan, Grads, RankNode
from .flat_layout import Bucket, Layout, flat_gradients, joined
from .torch_group import TorchGroup


class GroupTransport:
    is_changeable = True

    def __init__(self, group: TorchGroup, params: Sequence[nn.Parameter], device: torch.device) -> None:
        self._group = group
        self._params = list(params)
        self._device = device
        self._own: dict[tuple[int, int], Tensor] = {}  # flat gradients by node and parameter
        self._memory: dict[str, Tensor] = {}
        self._received: dict[tuple[int, int], Tensor] = {}  # the own slice of each node, by index and node index
        self._lay_out([])

    def _lay_out(self, has_grad: Sequence[bool]) -> None:
        self._has_grad = has_grad
        self._layout = Layout(self._params, [index for index, has in enumerate(has_grad) if has])
        self._slice_bytes = self._layout.slice_bytes(self._group.size)
        self._sum = self._flat_memory("sum", self._slice_bytes * self._group.size)
        self._grads = self._layout.shaped(self._sum)

    def send(self, nodes: Sequence[Grads | None]) -> None:
        self._own = flat_gradients(self._params, nodes)

    def receive(self, plan: AllReducePlan) -> list[Bucket]:
        if plan.has_grad != self._has_grad:
            self._lay_out(plan.has_grad)
        group, size = self._group, self._slice_bytes
        nodes = [rank_node for rank_node in plan.rank_nodes if rank_node.node.has_grad]
        own = [rank_node.node_index for rank_node in nodes if rank_node.member_index == group.index]
        counts = [sum(rank_node.member_index == index for rank_node in nodes) for index in range(group.size)]
        send = self._flat_memory("send", group.size * len(own) * size).view(group.size, len(own), size)
        self._fill(send, own)
        received = self._flat_memory("received", len(nodes) * size).view(len(nodes), size)
        if size:
            sizes = [len(own) * size] * group.size, [count * size for count in counts]
            group.all_to_all(send.view(-1), received.view(-1), *sizes)
        self._received = {rank_node[:2]: row for rank_node, row in zip(nodes, received, strict=True)}
        return joined(self._layout.owned(group.index, group.size), plan.flags())

    def _fill(self, send: Tensor, own: Sequence[int]) -> None:
        copies: list[Tensor] = []
        sources: list[Tensor] = []
        for owner, rows in enumerate(send):
            for bucket in self._layout.owned(owner, len(send)):
                for node_index, row in zip(own, rows, strict=True):
                    if (flat := self._own.get((node_index, bucket.param))) is not None:
                        copies.append(bucket.of(row, owner * self._slice_bytes))
                        sources.append(bucket.of_flat(flat))
        if copies:
            torch._foreach_copy_(copies, sources)

    def operand(self, rank_node: RankNode, bucket: Bucket) -> Tensor:
        return bucket.of(self._received[rank_node[:2]], self._group.index * self._slice_bytes)

    def sum(self, bucket: Bucket) -> Tensor:
        return bucket.of(self._sum)

    def barrier(self) -> None:
        self._group.all_gather(self._sum)

    def whole_sum(self) -> Grads:
        return self._grads

    def release(self) -> None:
        self._own.clear()

    def _flat_memory(self, name: str, size_bytes: int) -> Tensor:
        if name not in self._memory or len(self._memory[name]) < size_bytes:
            self._memory[name] = torch.zeros(size_bytes, dtype=torch.uint8, device=self._device)
        return self._memory[name][:size_bytes]
