"""The buffers of a model during a step: every shard begins with the same ones, and their mean stays.

    before the step   B                      kept
    shard 0           B -> B0                taken down, B put back
    shard 1           B -> B1                taken down, B put back
    after the step    (n0 B0 + n1 B1) / n    n0, n1: samples of the shards

This is what batch normalisation needs: its running mean becomes what one pass over the whole batch would give, its
running variance the mean of the shards' variances. The mean is taken in float64, so equal values stay what they
are. A counter, index or mask takes the value of the first shard that changed it. A buffer that the forward pass does
not change keeps its bits. Whether it did is seen from its values: batch normalisation writes its statistics past
torch's version counters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .gradients import is_averaged

_NOTHING = torch.empty(0)  # a buffer that the user has set to None


class Buffers:
    """The buffers of one model on one device."""

    def __init__(self, model: nn.Module) -> None:
        found: dict[int, tuple[nn.Module, str, Tensor]] = {}
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    found.setdefault(id(buffer), (module, name, buffer))
        self._homes = [(module, name) for module, name, _ in found.values()]
        self._before: list[Tensor] = []
        self._kept: list[Tensor] = []

    def keep(self) -> None:
        """A step begins: remember what is there."""
        self._before = [self._buffer(place) for place in range(len(self._homes))]
        self._kept = [buffer.detach().clone() for buffer in self._before]

    def take(self, samples: int) -> dict[int, tuple[Tensor, int]]:
        """What a shard of so many samples has changed, times that number; and put back what was before."""
        if not self._homes:
            return {}
        taken = {}
        changed = self._changed()
        for place in changed:
            buffer = self._buffer(place).detach()
            taken[place] = (_wide(buffer) * samples if is_averaged(buffer) else buffer.clone(), samples)
        self._put_back(changed)
        return taken

    def put_back(self) -> None:
        """All buffers are as at the beginning of the step."""
        self._put_back(self._changed())

    def _put_back(self, changed: Sequence[int]) -> None:
        for place in changed:
            module, name = self._homes[place]
            module._buffers[name] = self._before[place]
            with torch.no_grad():
                self._before[place].copy_(self._kept[place])

    def settle(self, sums: dict[int, tuple[Tensor, int]], samples: int) -> None:
        """The step is done: the mean over all its samples. A shard that left a buffer as it was counts with that."""
        with torch.no_grad():
            for place, (value, of_samples) in sums.items():
                if is_averaged(value):
                    unchanged = _wide(self._kept[place]) * (samples - of_samples) if of_samples < samples else 0
                    value = (value + unchanged) / samples
                self._before[place].copy_(value)

    def _changed(self) -> list[int]:
        now = [self._buffer(place) for place in range(len(self._kept))]
        return [place for place, is_same in enumerate(_are_equal(now, self._kept)) if not is_same]

    def _buffer(self, place: int) -> Tensor:
        module, name = self._homes[place]
        buffer = module._buffers[name]
        return _NOTHING if buffer is None else buffer


def _are_equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> list[bool]:
    """As torch.equal for each pair. An accelerator is waited for once, not for each."""
    if all(tensor.device.type == "cpu" for tensor in others):
        return list(map(torch.equal, some, others))
    found = [
        (one == other).all() if (one.shape, one.device) == (other.shape, other.device) else other.new_zeros(()).bool()
        for one, other in zip(some, others, strict=True)
    ]
    return torch.stack(found).cpu().tolist()


def _wide(buffer: Tensor) -> Tensor:
    return buffer.to(torch.complex128 if buffer.is_complex() else torch.float64)
