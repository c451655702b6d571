"""The `AllReduce` of `reduce="fast"` over a process group: the all-reduce of the backend, NCCL or Gloo.

Each process adds its own shards first. The order in which the backend adds depends on the number of processes, so the
last bits of the sum do, too. A process without a gradient of a parameter contributes zeros. Parameters without a
gradient in any process, such as frozen ones, are not sent.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from .all_reduce import AllReducePlan, Grads
from .flat_layout import Layout, check_strided, join_buckets
from .team import divide
from .torch_group import TorchGroup

_BUCKET_BYTES = 25 << 20  # as in DistributedDataParallel


class FastAllReduce:
    """See the module. Each process has one node."""

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
