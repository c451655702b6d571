"""Batches of nested tensors, which are cut into shards and joined again.

The content of a batch is a tensor, or a list, tuple or dict of tensors and of such containers. The first axis of every
tensor is the sample. A list or tuple of numbers or strings, as torch's `default_collate` returns it, is called a
column: it has one value per sample.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..step.tree import cut

_ALIGNED_BYTES = 64
_NOT_NUMBERS = "OSUMmV"  # kinds of NumPy types that have no counterpart in torch

Content = Any


class Rows(NamedTuple):
    """The samples of a batch, as rows of the tensors of a data set, on their device."""

    tensors: tuple[Tensor, ...]
    indices: Tensor
    is_single: bool  # the content of the batch is one tensor instead of a tuple

    def content(self, samples: range) -> Content:
        indices = self.indices[samples.start : samples.stop]
        rows = tuple(tensor[indices] for tensor in self.tensors)
        return rows[0] if self.is_single else rows


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """Some shards of a batch, by index, as they are read from a data set. The other fields are set for streams."""

    shards: Mapping[int, Any]
    num_samples: int = 0  # of the whole batch. 0 if the stream ended before it
    is_last: bool = False
    state: Any = None  # of the data set after the batch, if it has one


class Batch:
    """One global batch, in shards. Iterates like the list of tensors of a DataLoader: `x, y = batch`.

    A shard is read when it is needed, so a process reads only the shards that it executes.

    Attributes:
        sizes: number of samples of each shard.
        rows: the samples of the batch, if the data set is on an accelerator. None otherwise.
    """

    __slots__ = ("_contents", "_read", "rows", "sizes")

    def __init__(self, sizes: tuple[int, ...], read: Callable[[int], Content], rows: Rows | None = None) -> None:
        self.sizes = sizes
        self.rows = rows
        self._read = read
        self._contents: dict[int, Content] = {}

    def shard(self, index: int) -> Content | None:
        """Return the content of a shard, on the device of the run. Return None if the shard has no samples."""
        if not self.sizes[index]:
            return None
        if index not in self._contents:
            self._contents[index] = self._read(index)
        return self._contents[index]

    def whole(self) -> Content:
        """Return the content of the whole batch, on the device of the run."""
        return join([self.shard(index) for index, size in enumerate(self.sizes) if size])

    def __len__(self) -> int:
        return sum(self.sizes)

    def __iter__(self) -> Iterator[Content]:
        return iter(as_arguments(self.whole()))


def discard_contents(batch: Batch) -> None:
    """Let the next use of each shard read it again. Called before a step is repeated."""
    batch._contents.clear()


def as_batch(content: Content, shards: int, device: torch.device) -> Batch:
    """Return a batch in shards. `content`: a `Batch`, which is returned as it is, or a tree of tensors.

    Raises the errors of `num_samples`, and ValueError if there are no samples.
    """
    if isinstance(content, Batch):
        return content
    size = num_samples(content)
    if size == 0:
        raise ValueError("the batch has no samples")
    ranges = cut(size, shards)
    return Batch(tuple(map(len, ranges)), lambda index: copy_to_device(select(content, ranges[index]), device))


def num_samples(content: Content) -> int:
    """Return the number of samples. Raise TypeError or ValueError if the parts do not have one length."""
    lengths = list(_lengths(content, "batch"))
    if not lengths:
        raise ValueError("the batch contains no tensors, so its number of samples is unknown")
    if len({length for _, length in lengths}) > 1:
        parts = ", ".join(f"{path} {length}" for path, length in lengths)
        raise ValueError(f"the first axis of all parts of a batch must have the same length, got {parts}")
    return lengths[0][1]


def _lengths(content: Content, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(content, Tensor):
        if content.ndim == 0:
            raise TypeError(f"{path} is a tensor without axes, but the first axis of every part must be the sample")
        yield path, len(content)
    elif isinstance(content, Mapping):
        for name, value in content.items():
            yield from _lengths(value, f"{path}[{name!r}]")
    elif is_column(content):
        yield path, len(content)
    elif isinstance(content, list | tuple):
        for index, value in enumerate(content):
            yield from _lengths(value, f"{path}[{index}]")
    else:
        raise TypeError(
            f"{path} is a {type(content).__name__}, which cannot be cut into samples.\n"
            f"Use tensors, or lists, tuples and dicts of tensors. collate_fn= can convert it."
        )


def select(content: Content, samples: range) -> Content:
    def select_rows(tensor: Tensor) -> Tensor:
        rows = tensor[samples.start : samples.stop]
        # Kernels may choose the order of additions by the address, so it must not depend on the offset in the batch.
        return rows if rows.data_ptr() % _ALIGNED_BYTES == 0 else rows.clone()

    return _map(content, select_rows, on_column=lambda column: column[samples.start : samples.stop])


def align(content: Content) -> Content:
    """Return content with aligned addresses on the CPU, because the result of a kernel may depend on the address."""
    return content if all(map(_is_aligned, tensors_in(content))) else _map(content, Tensor.clone)


def _is_aligned(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type != "cpu":
        return True
    return tensor.data_ptr() % _ALIGNED_BYTES == tensor.untyped_storage().data_ptr() % _ALIGNED_BYTES == 0


def copy_to_device(content: Content, device: torch.device, *, pin: bool = True) -> Content:
    """Return a copy on an accelerator, or the content itself for a CPU. With `pin`, does not wait for the copy."""
    if device.type == "cpu":
        return content

    def copy(tensor: Tensor) -> Tensor:
        is_pinnable = device.type == "cuda" and tensor.device.type == "cpu" and tensor.layout == torch.strided
        if pin and is_pinnable and not tensor.is_pinned():
            tensor = tensor.pin_memory()  # torch frees this memory after the copy
        return tensor.to(device, non_blocking=True)

    return _map(content, copy, on_other=lambda value: value.to(device) if hasattr(value, "to") else value)


class DeviceCopy:
    """Copies content to one device. `pin`: see `copy_to_device`."""

    def __init__(self, device: torch.device, *, pin: bool = True) -> None:
        self._device = device
        self._pin = pin
        self._stream: Any = None

    def copy(self, content: Content) -> Content:
        """Copy on the current stream."""
        return copy_to_device(content, self._device, pin=self._pin)

    def ahead(self, loaded: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
        """Yield the batches, with functions in place of the shards. A function returns its shard on the device.

        Copies to an accelerator begin one batch before the loop needs them, on a stream of their own.
        """
        pending: deque[LoadedBatch] = deque()
        for batch in loaded:
            pending.append(replace(batch, shards={index: self._start(shard) for index, shard in batch.shards.items()}))
            if self._device.type == "cpu" or len(pending) > 1:
                yield pending.popleft()
        yield from pending

    def _start(self, content: Content) -> Callable[[], Content]:
        """Start a copy beside the kernels of the current stream. The returned function makes later kernels wait."""
        if self._device.type == "cpu":
            return lambda: content
        module: Any = torch.get_device_module(self._device)
        if self._stream is None:
            self._stream = module.Stream(self._device)
        with module.stream(self._stream):
            copied = self.copy(content)
            finished = self._stream.record_event()

        def wait() -> Content:
            current = module.current_stream(self._device)
            current.wait_event(finished)
            for tensor in tensors_in(copied):
                tensor.record_stream(current)  # otherwise its memory could be reused while a kernel reads it
            return copied

        return wait


def identity(value: Content) -> Content:
    return value


def _map(
    content: Content,
    on_tensor: Callable[[Tensor], Tensor],
    on_column: Callable[[Content], Content] = identity,
    on_other: Callable[[Content], Content] = identity,
) -> Content:
    """Apply functions to the leaves of nested content. Lists become tuples."""
    if isinstance(content, Tensor):
        return on_tensor(content)
    if isinstance(content, Mapping):
        return {name: _map(value, on_tensor, on_column, on_other) for name, value in content.items()}
    if is_column(content):
        return on_column(content)
    if isinstance(content, list | tuple):
        return tuple(_map(value, on_tensor, on_column, on_other) for value in content)
    return on_other(content)


def join(contents: Sequence[Content]) -> Content:
    """Return the content of a batch, given the contents of its shards."""
    first = contents[0]
    if len(contents) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(contents))
    if isinstance(first, np.ndarray):
        return np.concatenate(contents)
    if isinstance(first, Mapping):
        return {name: join([content[name] for content in contents]) for name in first}
    if is_column(first):
        return [value for content in contents for value in content]
    return tuple(map(join, zip(*contents, strict=True)))


def tensors_in(content: Content) -> Iterator[Tensor]:
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, Mapping | list | tuple):
        for value in content.values() if isinstance(content, Mapping) else content:
            yield from tensors_in(value)


def as_arguments(content: Content) -> tuple[Content, ...]:
    """Return the arguments for a function of the user: the items of a list or tuple, or the content itself."""
    return tuple(content) if isinstance(content, list | tuple) and not is_column(content) else (content,)


def is_column(content: Content) -> bool:
    """Return True for a list or tuple of numbers or strings, one per sample."""
    return isinstance(content, list | tuple) and all(isinstance(value, str | bytes | int | float) for value in content)


def is_array(value: object) -> bool:
    """Return True for a tensor or a NumPy array of numbers."""
    return isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind not in _NOT_NUMBERS)


def as_tensor(array: Any) -> Tensor:
    """Return a tensor itself, or a NumPy array as a tensor: in the same memory if torch supports it, or copied."""
    if isinstance(array, Tensor):
        return array
    if array.flags.writeable:
        try:
            return torch.from_numpy(array)
        except (TypeError, ValueError):  # another byte order, or negative strides
            pass
    return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
