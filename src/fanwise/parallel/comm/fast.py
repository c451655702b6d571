"""Gradients by the group's own all-reduce, for `reduce="fast"`: each process adds its shards before.

The order in which the backend adds depends on the number of processes, and so do the last bits of the sum. A process
without a gradient of a parameter contributes zeros. Parameters without a gradient in any process, such as frozen ones,
are not sent.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .all_reduce import AllReducePlan
from .flat_layout import Bucket, Layout, check_strided, joined
from .team import divide
from .torch_group import TorchGroup

_BUCKET_BYTES = 25 << 20  # as in DistributedDataParallel


class FastAllReduce:
    """The `AllReduce` of processes that have at most one node each."""

    def __init__(self, group: TorchGroup, params: Sequence[nn.Parameter], device: torch.device) -> None:
        self._group = group
        self._params = list(params)
        self._device = device
        self._own: dict[int, Tensor] = {}
        self._lay_out([])

    def _lay_out(self, has_grad: Sequence[bool]) -> None:
        self._has_grad = has_grad
        layout = Layout(self._params, [index for index, has in enumerate(has_grad) if has])
        memory = torch.zeros(layout.size_bytes, dtype=torch.uint8, device=self._device)
        buckets: list[Bucket] = joined(layout.owned(0, 1), [has_grad], _BUCKET_BYTES)
        self._buckets = [bucket.of(memory) for bucket in buckets]
        self._grads = layout.shaped(memory)

    def begin(self) -> None:
        self._own.clear()

    def submit(self, node_index: int, first_param: int, grads: Sequence[Tensor | None]) -> None:
        for index, grad in enumerate(grads, first_param):
            if grad is not None:
                check_strided(grad)
                self._own[index] = grad

    def finish(self, make_plan: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        plan = make_plan()
        if plan.has_grad != self._has_grad:
            self._lay_out(plan.has_grad)
        for index, grad in enumerate(self._grads):
            if grad is not None:
                own = self._own.get(index)
                grad.zero_() if own is None else grad.copy_(own)
        self._group.all_reduce(self._buckets)
        if plan.count is not None:
            divide(self._buckets, plan.count)
        return self._grads

    def release(self) -> None:
        self._own.clear()

    def abort(self) -> None:
        self._own.clear()
        self._lay_out([])  # new memory, because an exchange under way may still write into the old one
