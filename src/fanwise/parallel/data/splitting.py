"""Batches as trees of tensors: how many samples they have, cutting one into shards, joining shards again.

A batch is a tensor, or lists, tuples and dicts of tensors and of other batches, and every tensor has one row (its
first axis) for each sample. A list of numbers or strings, as torch's default collate makes of them, is one row each.
Knows nothing of models or steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_ALIGNED_BYTES = 64

Content = Any  # Any: a tree of tensors, of the user's own making


class Rows(NamedTuple):
    """Samples of a data set on the device. `indices` of the batch are there, too; `single`: content is one tensor."""

    tensors: tuple[Tensor, ...]
    indices: Tensor
    single: bool

    def content(self, places: range) -> Content:
        """Return the samples at these places of the batch."""
        indices = self.indices[places.start : places.stop]
        rows = tuple(tensor[indices] for tensor in self.tensors)
        return rows[0] if self.single else rows


def samples_in(content: Content) -> int:
    """The number of samples.

    Raises:
        TypeError: something in it cannot be cut into samples. ValueError: parts of different lengths.
    """
    lengths = [(path, length) for path, length in _lengths(content, "batch")]
    if not lengths:
        raise ValueError("the batch holds no tensor, so there is no telling how many samples it has")
    if len({length for _, length in lengths}) > 1:
        said = ", ".join(f"{path} {length}" for path, length in lengths)
        raise ValueError(f"the first axis of every part of a batch is the sample; these have different lengths: {said}")
    return lengths[0][1]


def part_of(content: Content, samples: range) -> Content:
    """The samples of a shard, each tensor beginning at an address as a fresh one does."""
    if isinstance(content, Tensor):
        part = content[samples.start : samples.stop]
        # A library may choose its way of adding by the address, so a shard must not depend on where it was cut out.
        return part if part.data_ptr() % _ALIGNED_BYTES == 0 else part.clone()
    if isinstance(content, Mapping):
        return {name: part_of(value, samples) for name, value in content.items()}
    if is_column(content):
        return content[samples.start : samples.stop]
    return tuple(part_of(value, samples) for value in content)


def aligned(content: Content) -> Content:
    """The content, with tensors copied that do not begin at an aligned address.

    A library may choose its way of adding by the address, so it must not depend on the process that has read them.
    """
    if all(map(_is_aligned, tensors_in(content))):
        return content
    if isinstance(content, Tensor):
        return content.clone()
    if isinstance(content, Mapping):
        return {name: aligned(value) for name, value in content.items()}
    return tuple(map(aligned, content)) if isinstance(content, list | tuple) else content


def _is_aligned(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type != "cpu":
        return True
    return tensor.data_ptr() % _ALIGNED_BYTES == tensor.untyped_storage().data_ptr() % _ALIGNED_BYTES == 0


def moved(content: Content, device: torch.device, *, pin: bool = True) -> Content:
    """The content on an accelerator, by way of pinned memory, so that nobody waits; for a CPU device as it is."""
    if device.type == "cpu":
        return content
    if isinstance(content, Tensor):
        return _moved(content, device, pin)
    if isinstance(content, Mapping):
        return {name: moved(value, device, pin=pin) for name, value in content.items()}
    if isinstance(content, list | tuple) and not is_column(content):
        return tuple(moved(value, device, pin=pin) for value in content)
    return content.to(device) if hasattr(content, "to") else content  # what a collate_fn has made


def _moved(tensor: Tensor, device: torch.device, pin: bool) -> Tensor:
    is_pinnable = device.type == "cuda" and tensor.device.type == "cpu" and tensor.layout == torch.strided
    if pin and is_pinnable and not tensor.is_pinned():
        # torch keeps this memory until the copy is done, and then for the next one.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def joined(parts: Sequence[Content]) -> Content:
    """The whole batch, from the contents of its shards in order."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, Mapping):
        return {name: joined([part[name] for part in parts]) for name in first}
    if is_column(first):
        return [value for part in parts for value in part]
    return tuple(joined([part[place] for part in parts]) for place in range(len(first)))


def tensors_in(content: Content) -> Iterator[Tensor]:
    """All tensors of a batch, however nested."""
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, Mapping):
        for value in content.values():
            yield from tensors_in(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from tensors_in(value)


def arguments(content: Content) -> tuple[Content, ...]:
    """What a function of the user's is called with: the members of a list or tuple; anything else as one."""
    is_members = isinstance(content, list | tuple) and not is_column(content)
    return tuple(content) if is_members else (content,)


def _lengths(content: Content, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(content, Tensor):
        if content.ndim == 0:
            raise TypeError(f"{path} is a tensor without axes; every part of a batch has one row for each sample")
        yield path, len(content)
    elif isinstance(content, Mapping):
        for name, value in content.items():
            yield from _lengths(value, f"{path}[{name!r}]")
    elif isinstance(content, list | tuple):
        if is_column(content):
            yield path, len(content)
        else:
            for place, value in enumerate(content):
                yield from _lengths(value, f"{path}[{place}]")
    else:
        raise TypeError(
            f"{path} is a {type(content).__name__}, which cannot be cut into samples.\n"
            f"Make tensors, or lists, tuples and dicts of tensors of it, for example with collate_fn="
        )


def is_column(content: Content) -> bool:
    """A list or tuple of plain values, one a sample."""
    return isinstance(content, list | tuple) and all(isinstance(value, str | bytes | int | float) for value in content)
