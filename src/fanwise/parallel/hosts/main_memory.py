"""Gradients on a GPU, added over hosts: they go through main memory, where the links are.

    ready   gradients --queued copy--> pinned memory, one area for each own node --> the other `AllReduce`
    finish  the stream is waited for; its sum --queued copy--> memory of the device, kept; divided there

All that is known of the device is here: what adds over hosts sees tensors of main memory. Additions round alike on both
sides. A division need not, so the sum is divided on the device, as on one host.

The same code runs with memory of the CPU in the place of the GPU's.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..all_reduce.contract import AllReduce, AllReducePlan
from ..comm.flat_layout import Layout, flat_gradient
from ..comm.team import divide


class ThroughMainMemory:
    """The `AllReduce` of gradients on `device`, which another one adds in main memory.

    The sum is divided on the device.
    """

    def __init__(self, inner: AllReduce, params: Sequence[nn.Parameter], device: torch.device) -> None:
        self._inner = inner
        self._params = list(params)
        self._device = device
        self._layout = Layout(self._params)
        self._areas: dict[int, Tensor] = {}  # in main memory, by node
        self._sum = torch.empty(self._layout.size_bytes, dtype=torch.uint8, device=device)
        self._grads = self._layout.shaped(self._sum)
        self.begin = inner.begin
        self.settle = inner.settle

    def ready(self, number: int, first: int, grads: Sequence[Tensor | None]) -> None:
        if number not in self._areas:
            pins = self._device.type == "cuda"
            self._areas[number] = torch.empty(self._layout.size_bytes, dtype=torch.uint8, pin_memory=pins)
        area, layout = self._areas[number], self._layout
        found: list[Tensor | None] = []
        for place, grad in enumerate(grads, first):
            if grad is not None:
                layout.flat(area, place).copy_(flat_gradient(self._params[place], grad), non_blocking=True)
            found.append(None if grad is None else layout.whole(area, place))
        self._inner.ready(number, first, found)

    def finish(self, meet: Callable[[], AllReducePlan]) -> list[Tensor | None]:
        count: list[float | None] = [None]

        def met() -> AllReducePlan:
            plan = meet()
            count[0] = plan.count
            return replace(plan, count=None)

        self._synchronize()
        sums = self._inner.finish(met)
        grads = [None if each is None else mine for each, mine in zip(sums, self._grads, strict=True)]
        for each, mine in zip(sums, grads, strict=True):
            if each is not None and mine is not None:
                mine.copy_(each, non_blocking=True)
        if count[0] is not None:
            divide(grads, count[0])
        return grads

    def abort(self) -> None:
        self._synchronize()
        self._inner.abort()

    def _synchronize(self) -> None:
        """Nothing is under way to or from main memory: neither these gradients, nor the sum of the step before."""
        if self._device.type != "cpu":
            torch.get_device_module(self._device).current_stream(self._device).synchronize()
