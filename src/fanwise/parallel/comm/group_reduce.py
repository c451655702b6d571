"""Adds gradients over a process group of torch.distributed.

exact   all_to_all: each process sends every owner its slice of the process's nodes
        all_gather: each owner sends its slice of the sum to all
fast    all-reduce of the backend, NCCL or Gloo, after each process has added its own shards. The order in which the
        backend adds depends on the number of processes, so the last bits of the sum do, too

Parameters without a gradient in any process, such as frozen ones, are not sent. Only the plan tells which ones these
are, so nothing is sent before all processes have it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .all_reduce import AllReducePlan, Grads, RankNode
from .flat_layout import Bucket, Layout, check_strided, flat_gradients, join_buckets
from .team import divide
from .torch_group import TorchGroup


class GroupTransport:
    """The exact `Transport`."""

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
        self._grads = self._layout.param_views(self._sum)

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
        return join_buckets(self._layout.buckets_of(group.index, group.size), plan.flags())

    def _fill(self, send: Tensor, own: Sequence[int]) -> None:
        copies: list[Tensor] = []
        sources: list[Tensor] = []
        for owner, rows in enumerate(send):
            for bucket in self._layout.buckets_of(owner, len(send)):
                for node_index, row in zip(own, rows, strict=True):
                    if (flat := self._own.get((node_index, bucket.param_index))) is not None:
                        copies.append(bucket.view(row, owner * self._slice_bytes))
                        sources.append(bucket.view_in_param(flat))
        if copies:
            torch._foreach_copy_(copies, sources)

    def operand(self, rank_node: RankNode, bucket: Bucket) -> Tensor:
        return bucket.view(self._received[rank_node[:2]], self._group.index * self._slice_bytes)

    def sum(self, bucket: Bucket) -> Tensor:
        return bucket.view(self._sum)

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


_BUCKET_BYTES = 25 << 20  # as in DistributedDataParallel


class FastAllReduce:
    """The fast `AllReduce`. Each process has one node."""

    def __init__(self, group: TorchGroup, params: Sequence[nn.Parameter], device: torch.device) -> None:
        self._group = group
        self._params = list(params)
        self._device = device
        self._lay_out([])

    def _lay_out(self, has_grad: Sequence[bool]) -> None:
        self._has_grad = has_grad
        layout = Layout(self._params, [index for index, has in enumerate(has_grad) if has])
        memory = torch.zeros(layout.size_bytes, dtype=torch.uint8, device=self._device)
        self._buckets = [
            bucket.view(memory) for bucket in join_buckets(layout.buckets_of(0, 1), [has_grad], _BUCKET_BYTES)
        ]
        self._grads = layout.param_views(memory)

    def reduce_scatter(self, nodes: Sequence[Grads | None], make_plan: Callable[[], AllReducePlan]) -> None:
        """Add whole gradients, which `all_gather` returns."""
        own = nodes[0] or [None] * len(self._params)
        for grad in own:
            if grad is not None:
                check_strided(grad)
        plan = make_plan()
        if plan.has_grad != self._has_grad:
            self._lay_out(plan.has_grad)
        for memory, grad in zip(self._grads, own, strict=True):
            if memory is not None:
                memory.zero_() if grad is None else memory.copy_(grad)
        self._group.all_reduce(self._buckets)
        if plan.count is not None:
            divide(self._buckets, plan.count)

    def all_gather(self) -> Grads:
        return self._grads

    def release(self) -> None:
        """Nothing is kept."""
