"""Buffers of modules during a step. Every shard starts with the same values. After the step they are combined.

    before the step   B                      save
    shard 0           B -> B0                collect B0, restore B
    shard 1           B -> B1                collect B1, restore B
    after the step    (n0 B0 + n1 B1) / n    commit; n0, n1: number of samples of the shards

Statistics of batch normalization and the buffers of `mean_buffers` are averaged in float64. `num_batches_tracked` takes
the value of the first shard. All other buffers must be equal after every shard.

Changes are detected by comparing bits, because batch normalization updates its statistics without incrementing torch's
version counters.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ...base.nearest import did_you_mean
from ..validation.fingerprints import as_integers, have_same_bits
from .gradients import BufferUpdate, Rule


class Buffers:
    """The buffers of modules, which are given by their names in messages, on one device."""

    def __init__(self, modules: Mapping[str, nn.Module], mean_buffers: Sequence[str] = ()) -> None:
        known: dict[int, tuple[nn.Module, str, str, Tensor]] = {}
        for prefix, model in modules.items():
            for path, module in model.named_modules():
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        full_name = ".".join(filter(None, (prefix, path, name)))
                        known.setdefault(id(buffer), (module, name, full_name, buffer))
        self._owners = [(module, name) for module, name, _, _ in known.values()]
        self._names = [full_name for _, _, full_name, _ in known.values()]
        _check_mean_buffers(mean_buffers, {full_name: buffer for _, _, full_name, buffer in known.values()})
        self._rules = [_rule(module, name, full_name in mean_buffers) for module, name, full_name, _ in known.values()]
        self._original_tensors: list[Tensor | None] = []  # None for a buffer that the user has set to None
        self._saved_values: list[Tensor | None] = []
        self._known_to_change: set[int] = set()  # indices of buffers that a shard has ever changed

    def save(self) -> None:
        self._original_tensors = [self._buffer(index) for index in range(len(self._owners))]
        self._saved_values = [None if tensor is None else tensor.detach().clone() for tensor in self._original_tensors]

    def collect_and_restore(self, samples: int) -> dict[int, BufferUpdate]:
        """Return the buffers that a shard with this number of samples changed, by index. Restore the saved values."""
        updates = {index: self._update(index, samples) for index in self._changed_indices()} if self._owners else {}
        self._known_to_change.update(updates)
        self._restore(updates)
        return updates

    def _update(self, index: int, samples: int) -> BufferUpdate:
        buffer, rule = self._buffer(index), self._rules[index]
        if buffer is None:
            return BufferUpdate(torch.empty(0), samples, "same", is_same=False)  # no rule combines it with tensors
        if rule == "mean" and self._original_tensors[index] is not None:
            return BufferUpdate(_wide(buffer.detach()) * samples, samples)
        return BufferUpdate(buffer.detach().clone(), samples, "same" if rule == "mean" else rule)

    def note_changes(self) -> None:
        """Remember which buffers a step has changed. `copied` needs to know them."""
        self._known_to_change.update(self._changed_indices())

    def restore(self) -> None:
        self._restore(self._changed_indices())

    def _restore(self, indices: Iterable[int]) -> None:
        for index in indices:
            original, saved = self._original_tensors[index], self._saved_values[index]
            self._set(index, original)
            if original is not None and saved is not None:
                with torch.no_grad():
                    original.copy_(saved)

    @contextmanager
    def copied(self) -> Iterator[None]:
        """Replace the buffers that shards have ever changed by copies during the block."""
        for index in sorted(self._known_to_change):
            original = self._original_tensors[index]
            self._set(index, None if original is None else original.detach().clone())
        try:
            yield
        finally:
            for index in self._known_to_change:
                self._set(index, self._original_tensors[index])

    def collect(self, samples: int) -> dict[int, BufferUpdate]:
        """Return the copies after a shard with this number of samples, by index. Does not wait for a GPU."""
        updates = {}
        for index in sorted(self._known_to_change):
            if (buffer := self._buffer(index)) is not None:
                is_mean = self._rules[index] == "mean" and self._original_tensors[index] is not None
                value = _wide(buffer.detach()) * samples if is_mean else buffer.detach()
                updates[index] = BufferUpdate(value, samples, "mean" if is_mean else "first")
        return updates

    def commit(self, updates: Mapping[int, BufferUpdate], samples: int) -> None:
        """Store the combined values of all shards. `samples`: number of samples of the whole batch.

        A shard that did not change a buffer contributes the saved value to the mean.
        """
        with torch.no_grad():
            for index, (value, num_changed_samples, rule, _) in updates.items():
                original, saved = self._original_tensors[index], self._saved_values[index]
                if original is None or saved is None:
                    self._set(index, value)
                    continue
                if rule == "mean":
                    num_unchanged = samples - num_changed_samples
                    value = (value + (_wide(saved) * num_unchanged if num_unchanged else 0)) / samples
                original.copy_(value)

    def explain_difference(self, index: int) -> str:
        buffer, full_name = self._buffer(index), self._names[index]
        kind = "None" if buffer is None else f"{str(buffer.dtype).removeprefix('torch.')} {tuple(buffer.shape)}"
        return (
            f"the buffer {full_name!r}, {kind}, is not the same after every shard of the batch. It is not a statistic "
            f"of batch normalization, and averaging it may be meaningless, as for a queue or a codebook.\n"
            f"  wrong:  self.{self._owners[index][1]} = ...        # in forward, from the samples of a shard\n"
            f"  right:  change it between two steps, from the whole batch\n"
            f"  right:  run.step(..., mean_buffers=[{full_name!r}])    # if the mean over the shards is correct\n"
            f"  right:  fanwise.run(..., shards=1)"
        )

    def _changed_indices(self) -> list[int]:
        current = [self._buffer(index) for index in range(len(self._saved_values))]
        return [index for index, is_same in enumerate(_compare_pairs(current, self._saved_values)) if not is_same]

    def _buffer(self, index: int) -> Tensor | None:
        module, name = self._owners[index]
        return module._buffers[name]

    def _set(self, index: int, buffer: Tensor | None) -> None:
        module, name = self._owners[index]
        module._buffers[name] = buffer


def _compare_pairs(left: Sequence[Tensor | None], right: Sequence[Tensor | None]) -> list[bool]:
    """Return `have_same_bits` of each pair. Waits for an accelerator once, not for each pair. None equals only None."""
    results: list[bool | Tensor] = []
    for one, other in zip(left, right, strict=True):
        if one is None or other is None:
            results.append(one is other)
        elif one.device.type == "cpu" or (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
            results.append(have_same_bits(one, other))
        else:
            results.append((as_integers(one) == as_integers(other)).all())
    pending = [result for result in results if isinstance(result, Tensor)]
    values = iter(torch.stack(pending).cpu().tolist() if pending else ())
    return [next(values) if isinstance(result, Tensor) else result for result in results]


def _check_mean_buffers(mean_buffers: Sequence[str], buffers: Mapping[str, Tensor]) -> None:
    if isinstance(mean_buffers, str):
        raise TypeError(f"mean_buffers must be a list of names, got the string {mean_buffers!r}")
    for name in mean_buffers:
        if name not in buffers:
            raise ValueError(f"mean_buffers: there is no buffer {name!r}{did_you_mean(name, list(buffers))}")
        if not (buffers[name].is_floating_point() or buffers[name].is_complex()):
            raise ValueError(f"mean_buffers: {name!r} is {buffers[name].dtype}, which cannot be averaged")


def _rule(module: nn.Module, name: str, is_mean: bool) -> Rule:
    if isinstance(module, _NormBase) and name in ("running_mean", "running_var"):
        return "mean"
    if isinstance(module, _NormBase) and name == "num_batches_tracked":
        return "first"
    return "mean" if is_mean else "same"


def _wide(buffer: Tensor) -> Tensor:
    return buffer.to(torch.complex128 if buffer.is_complex() else torch.float64)
