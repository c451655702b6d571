"""Hosts that train apart for some steps, and are then brought together: `reduce=EverySteps(8)`.

    step, step, ... step                each host by the mean gradient of its own shards
    brought together                    parameters, and the state of the optimizer, become the mean over the hosts

Each host counts as much as it had samples (Stich 2019, "Local SGD converges fast and communicates little", arXiv
1805.09767; the state of momentum methods is averaged as in Yu et al. 2019, arXiv 1905.03817). When they are brought
together all hosts are the same again, so a checkpoint, or a measure, does that first. A mean counts when all have come
to its end, and until then nothing has changed: when a host is lost meanwhile, the others make theirs again. Knows no
links.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .feedback import cut


class Apart:
    """The parameters of one step and their optimizer.

    Attributes:
        count: what the losses of this host have counted since all were the same.

    Args:
        every: so many updates. together: makes the mean over the hosts, and has it `put` here. Blocks.
    """

    def __init__(
        self, every: int, params: Sequence[nn.Parameter], optimizer: Optimizer, together: Callable[["Apart"], None]
    ) -> None:
        self.count = 0.0
        self._every = every
        self._updates = 0
        self._params = params
        self._optimizer = optimizer
        self._together = together

    def updated(self, *, last: bool) -> None:
        """The optimizer has made a step; `last`: of this pass over the data."""
        self._updates += 1
        if last or self._updates >= self._every:
            self.bring_together()

    def bring_together(self) -> None:
        """All hosts are the same afterwards. Blocks until all have come here; at once if they are."""
        if self._updates:
            self._together(self)
            self._updates, self.count = 0, 0.0

    def flats(self) -> list[Tensor]:
        """What may differ between hosts, copied into one flat tensor of main memory for each type."""
        return [torch.cat([each.detach().reshape(-1) for each in same]).cpu() for same in self._by_type()]

    def put(self, flats: Sequence[Tensor]) -> None:
        """What it becomes."""
        with torch.no_grad():
            for same, flat in zip(self._by_type(), flats, strict=True):
                for each, part in zip(same, cut(flat, [each.numel() for each in same]), strict=True):
                    each.copy_(part.view(each.shape))

    def _by_type(self) -> list[list[Tensor]]:
        found: dict[torch.dtype, list[Tensor]] = {}
        for param in self._params:
            state = self._optimizer.state.get(param, {})
            # Numbers of steps have no axes, and are the same everywhere.
            kept = [state[name] for name in sorted(state) if isinstance(state[name], Tensor) and state[name].dim()]
            for each in (param, *kept):
                if each.is_floating_point():
                    found.setdefault(each.dtype, []).append(each)
        return list(found.values())
