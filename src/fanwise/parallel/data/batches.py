"""Batches of a data set, in the order of the run, already cut into the shards of a step.

    data set --order from a key--> places --cut into shards--> read, collated --> Batch

Each shard is read, and collated, by itself: so a shard is the same whether one process makes all of them or each makes
its own, also with a `collate_fn` that pads to the longest. A tuple of tensors, and torch's TensorDataset, are read by
one indexing a shard; any other map-style data set sample by sample, each with random streams of its own, from (seed,
epoch, index), so that augmentation does not depend on who reads it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from ...tensor.random import permutation
from ...tensor.random.keys import Key
from ..rng import sample_streams
from ..shards import cut
from .order import Pass
from .splitting import Content, arguments, joined, moved, part_of, samples_in

Data = Dataset[Any] | Sequence[Any] | tuple[Tensor, ...] | Tensor  # Any: samples of the user's making
Collate = Callable[[list[Any]], Content]  # Any: samples


class Batch:
    """One global batch, in shards. Iterates like the list of tensors that a DataLoader gives: `x, y = batch`.

    A shard is read when somebody asks for it, so a process reads only what it executes; it is then on the device.

    Attributes:
        sizes: samples of each shard.
        last: whether no other batch comes in this pass.
    """

    __slots__ = ("_contents", "_read", "last", "sizes")

    def __init__(self, sizes: tuple[int, ...], read: Callable[[int], Content], last: bool = False) -> None:
        self.sizes = sizes
        self.last = last
        self._read = read
        self._contents: dict[int, Content] = {}

    def shard(self, index: int) -> Content | None:
        """The content of a shard; None if it has no samples."""
        if not self.sizes[index]:
            return None
        if index not in self._contents:
            self._contents[index] = self._read(index)
        return self._contents[index]

    def whole(self) -> Content:
        """The content of all shards as one."""
        return joined([self.shard(index) for index, size in enumerate(self.sizes) if size])

    def __len__(self) -> int:
        """Its number of samples."""
        return sum(self.sizes)

    def __iter__(self) -> Iterator[Content]:
        return iter(arguments(self.whole()))


def batch_of(content: Content, shards: int, device: torch.device) -> Batch:
    """A batch that the user made, cut into shards. Raises as `samples_in`, and ValueError if it has no samples."""
    if isinstance(content, Batch):
        return content
    size = samples_in(content)
    if size == 0:
        raise ValueError("the batch has no samples")
    if shards == 1:
        return Batch((size,), lambda index: moved(content, device))
    ranges = cut(size, shards)
    return Batch(tuple(map(len, ranges)), lambda index: moved(part_of(content, ranges[index]), device))


class Reader(Protocol):
    """Reads samples of a data set."""

    def __len__(self) -> int: ...

    def read(self, indices: Tensor, key: Key) -> Content:
        """These samples as the content of one shard. What is random in it comes from `key` and the indices."""
        ...

    def order(self, indices: Tensor) -> Tensor:
        """An order of the samples, where `read` wants its parts to be."""
        ...


class TensorReader:
    """Tensors with one row for each sample."""

    def __init__(self, tensors: Sequence[Tensor], single: bool) -> None:
        self._tensors = tuple(tensors)
        self._single = single

    def __len__(self) -> int:
        return samples_in(self._tensors)

    def read(self, indices: Tensor, key: Key) -> Content:
        rows = tuple(tensor[indices] for tensor in self._tensors)
        return rows[0] if self._single else rows

    def order(self, indices: Tensor) -> Tensor:
        # Tensors of a GPU that are asked for with indices of the host would wait for it, batch by batch.
        devices = {tensor.device for tensor in self._tensors}
        return indices.to(devices.pop()) if len(devices) == 1 else indices


class SampleReader:
    """A map-style data set: `len(data)` and `data[index]`."""

    def __init__(self, data: Any, collate: Collate) -> None:  # Any: a Dataset, or anything with its two methods
        self._data = data
        self._collate = collate

    def __len__(self) -> int:
        return len(self._data)

    def read(self, indices: Tensor, key: Key) -> Content:
        samples = []
        with sample_streams() as begin:
            for index in indices.tolist():
                begin(key.fold_in(index))
                samples.append(self._data[index])
            begin(key.fold_in("collate").fold_in(int(indices[0])))
            return self._collate(samples)

    def order(self, indices: Tensor) -> Tensor:
        return indices


class MovingReader:
    """What another reader reads, on an accelerator."""

    def __init__(self, reader: Reader, device: torch.device) -> None:
        self._reader = reader
        self._device = device

    def __len__(self) -> int:
        return len(self._reader)

    def read(self, indices: Tensor, key: Key) -> Content:
        return moved(self._reader.read(indices, key), self._device)

    def order(self, indices: Tensor) -> Tensor:
        return self._reader.order(indices)


def reader_of(data: Data, collate_fn: Collate | None, device: torch.device) -> Reader:
    """How to read `data`, for this device.

    Raises:
        TypeError: it has no length or cannot be indexed. ValueError: tensors of different lengths.
    """
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise TypeError(
            f"the data must be a map-style data set, with len(data) and data[index], or a tuple of tensors; got "
            f"{type(data).__name__}.\nThe order is made here, so give the data set itself, not a loader of it."
        )
    reader = _reader_of(data, collate_fn)
    if len(reader) == 0:
        raise ValueError("the data set has no samples")
    return reader if device.type == "cpu" else MovingReader(reader, device)


def _reader_of(data: Any, collate_fn: Collate | None) -> Reader:  # Any: whatever has a length and can be indexed
    if collate_fn is not None:
        return SampleReader(data, collate_fn)
    if type(data) is TensorDataset:
        return TensorReader(data.tensors, single=False)
    if isinstance(data, Tensor):
        return TensorReader([data], single=True)
    if isinstance(data, tuple) and data and all(isinstance(member, Tensor) for member in data):
        return TensorReader(data, single=False)
    return SampleReader(data, default_collate)


def batches(
    reader: Reader, begun: Pass, batch_size: int, *, shards: Callable[[], int], shuffle: bool, drop_last: bool
) -> Iterator[Batch]:
    """The batches of a pass, from where it begins.

    Raises:
        ValueError: the data set does not have the length any more that it had when the pass began.
    """
    # In the order of the data set nothing is drawn; reading by slices of arange is as fast.
    order_N = permutation(begun.key, begun.length, engine="torch") if shuffle else torch.arange(begun.length)
    order_N = reader.order(order_N)
    reading = begun.key.fold_in("reading")
    for places in begun.batches(batch_size, drop_last):
        if len(reader) != begun.length:
            raise ValueError(
                f"the data set had {begun.length} samples when this pass began, and has {len(reader)} now.\n"
                f"A pass shows every sample once, so its length must stay. Change it between two passes."
            )
        ranges = cut(len(places), shards())

        def read(index: int, start: int = places.start, ranges: tuple[range, ...] = ranges) -> Content:
            indices = order_N[start + ranges[index].start : start + ranges[index].stop]
            return reader.read(indices, reading)

        last = begun.is_last(places, batch_size, drop_last)
        yield Batch(tuple(map(len, ranges)), read, last)
