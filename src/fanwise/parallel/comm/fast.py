"""Gradients by the group's own all-reduce, for `reduce="fast"`: each process adds its shards before.

The order in which the backend adds depends on the number of processes, and so do the last bits of the sum. A process
without a gradient of a parameter contributes zeros. Parameters that no process reached, such as frozen ones, are not
sent.
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

    def _lay_out(self, reached: Sequence[bool]) -> None:
        self._reached = reached
        layout = Layout(self._params, [place for place, is_reached in enumerate(reached) if is_reached])
        memory = torch.zeros(layout.size_bytes, dtype=torch.uint8, device=self._device)
        buckets: list[Bucket] = joined(layout.owned(0, 1), [reached], _BUCKET_BYTES)
        self._buckets = [bucket.of(memory) for bucket in buckets]
        self._grads = layout.shaped(memory)

    def begin(self) -> None:
        self._own.clear()

    def ready(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        for place, grad in enumerate(grads, first):
            if grad is not None:
                check_strided(grad)
                self._own[place] = grad

    def finish(self, meet: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        met = meet()
        if met.reached != self._reached:
            self._lay_out(met.reached)
        for place, grad in enumerate(self._grads):
            if grad is not None:
                own = self._own.get(place)
                grad.zero_() if own is None else grad.copy_(own)
        self._group.all_reduce(self._buckets)
        if met.count is not None:
            divide(self._buckets, met.count)
        return self._grads

    def settle(self) -> None:
        self._own.clear()

    def abort(self) -> None:
        self._own.clear()
        self._lay_out([])  # new memory, because an exchange under way may still write into the old one
