"""The buffers of modules during a step: every shard begins with the same ones, and one value stays.

    before the step   B                      kept
    shard 0           B -> B0                taken down, B put back
    shard 1           B -> B1                taken down, B put back
    after the step    (n0 B0 + n1 B1) / n    n0, n1: samples of the shards

This is what batch normalisation needs: its running mean becomes what one pass over the whole batch would give, its
running variance the mean of the shards' variances. The mean is taken in float64, so equal values stay what they are. It
is taken of these, and of buffers that the program names; of others it might be nonsense, as of a queue or a codebook.
They have to be the same after every shard, as counters and what follows from weights are, else the step is refused. A
buffer that the forward pass does not change keeps its bits. Whether it did is seen from its values: batch normalisation
writes its statistics past torch's version counters.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ...base.nearest import did_you_mean
from ..validation.fingerprints import as_integers, have_same_bits
from .gradients import Changed, Rule

_NOTHING = torch.empty(0)  # a buffer that the user has set to None


class Buffers:
    """The buffers of modules on one device.

    Args:
        modules: by name in messages; "" for the model. means: names of buffers that the mean over the shards is for.

    Raises:
        ValueError: there is no buffer of such a name, or it is no number to take the mean of.
    """

    def __init__(self, modules: Mapping[str, nn.Module], means: Sequence[str] = ()) -> None:
        found: dict[int, tuple[nn.Module, str, str, Tensor]] = {}
        for prefix, model in modules.items():
            for path, module in model.named_modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        called = ".".join(filter(None, (prefix, path, name)))
                        found.setdefault(id(buffer), (module, name, called, buffer))
        self._homes = [(module, name) for module, name, _, _ in found.values()]
        self._names = [called for _, _, called, _ in found.values()]
        _check_means(means, {called: buffer for _, _, called, buffer in found.values()})
        self._rules = [_rule(module, name, called in means) for module, name, called, _ in found.values()]
        self._before: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._changing: set[int] = set()  # places of buffers that a shard has changed before

    def keep(self) -> None:
        """A step begins: remember what is there."""
        self._before = [self._buffer(place) for place in range(len(self._homes))]
        self._kept = [buffer.detach().clone() for buffer in self._before]

    def take(self, samples: int) -> dict[int, Changed]:
        """What a shard of so many samples has changed, times that number; and put back what was before."""
        if not self._homes:
            return {}
        taken = {}
        changed = self._changed()
        self._changing.update(changed)
        for place in changed:
            buffer, rule = self._buffer(place).detach(), self._rules[place]
            taken[place] = Changed(_wide(buffer) * samples if rule == "mean" else buffer.clone(), samples, rule)
        self._put_back(changed)
        return taken

    def note_changes(self) -> None:
        """Remember which buffers the step has changed since `keep`."""
        self._changing.update(self._changed())

    def put_back(self) -> None:
        """All buffers are as at the beginning of the step."""
        self._put_back(self._changed())

    def _put_back(self, changed: Sequence[int]) -> None:
        for place in changed:
            module, name = self._homes[place]
            module._buffers[name] = self._before[place]
            with torch.no_grad():
                self._before[place].copy_(self._kept[place])

    @contextmanager
    def copied(self) -> Iterator[None]:
        """Give the block copies of those buffers that shards are known to change."""
        for place in sorted(self._changing):
            module, name = self._homes[place]
            module._buffers[name] = self._before[place].detach().clone()
        try:
            yield
        finally:
            for place in self._changing:
                module, name = self._homes[place]
                module._buffers[name] = self._before[place]

    def collect(self, samples: int) -> dict[int, Changed]:
        """What a shard of so many samples has made of the copies. It does not look at their values."""
        collected = {}
        for place in sorted(self._changing):
            buffer, rule = self._buffer(place).detach(), self._rules[place]
            value = _wide(buffer) * samples if rule == "mean" else buffer
            collected[place] = Changed(value, samples, "mean" if rule == "mean" else "first")
        return collected

    def settle(self, sums: dict[int, Changed], samples: int) -> None:
        """The step is done: the mean over all its samples. A shard that left a buffer as it was counts with that."""
        with torch.no_grad():
            for place, (value, of_samples, rule, _) in sums.items():
                if rule == "mean":
                    unchanged = _wide(self._kept[place]) * (samples - of_samples) if of_samples < samples else 0
                    value = (value + unchanged) / samples
                self._before[place].copy_(value)

    def why_not_same(self, place: int) -> str:
        """What is wrong with a buffer that is not the same after every shard, and what to do."""
        buffer, called = self._buffer(place), self._names[place]
        return (
            f"the buffer {called!r}, {str(buffer.dtype).removeprefix('torch.')} {tuple(buffer.shape)}, is not the same "
            f"after every shard of the batch, and it is no statistic of batch normalisation: what it becomes would "
            f"depend on the order of the shards, and their mean may be nonsense, as of a queue or a codebook.\n"
            f"  wrong:  self.{self._homes[place][1]} = ...        # in forward, from the samples of a shard\n"
            f"  right:  change it between two steps, from the whole batch\n"
            f"  right:  run.step(..., mean_buffers=[{called!r}])    # where the mean over the shards is meant\n"
            f"  right:  fanwise.run(..., shards=1)"
        )

    def _changed(self) -> list[int]:
        now = [self._buffer(place) for place in range(len(self._kept))]
        return [place for place, is_same in enumerate(_have_same_bits(now, self._kept)) if not is_same]

    def _buffer(self, place: int) -> Tensor:
        module, name = self._homes[place]
        buffer = module._buffers[name]
        return _NOTHING if buffer is None else buffer


def _have_same_bits(some: Sequence[Tensor], others: Sequence[Tensor]) -> list[bool]:
    """As `have_same_bits` for each pair. Waits once for an accelerator."""
    if all(tensor.device.type == "cpu" for tensor in others):
        return list(map(have_same_bits, some, others))
    results = [
        (as_integers(one) == as_integers(other)).all()
        if (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
        else torch.zeros((), dtype=torch.bool, device=other.device)
        for one, other in zip(some, others, strict=True)
    ]
    return torch.stack(results).cpu().tolist()


def _check_means(means: Sequence[str], buffers: Mapping[str, Tensor]) -> None:
    if isinstance(means, str):
        raise TypeError(f"mean_buffers must be a list of names, got the text {means!r}")
    for name in means:
        if name not in buffers:
            raise ValueError(f"mean_buffers: there is no buffer {name!r}{did_you_mean(name, list(buffers))}")
        if not (buffers[name].is_floating_point() or buffers[name].is_complex()):
            raise ValueError(f"mean_buffers: {name!r} is {buffers[name].dtype}, of which no mean is taken")


def _rule(module: nn.Module, name: str, is_mean: bool) -> Rule:
    if isinstance(module, _NormBase) and name in ("running_mean", "running_var"):
        return "mean"
    if isinstance(module, _NormBase) and name == "num_batches_tracked":
        return "first"
    return "mean" if is_mean else "same"


def _wide(buffer: Tensor) -> Tensor:
    return buffer.to(torch.complex128 if buffer.is_complex() else torch.float64)
