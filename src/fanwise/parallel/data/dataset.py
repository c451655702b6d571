"""Reads the samples of a map-style data set and collates each shard of a batch by itself.

Tensors, NumPy arrays and torch's TensorDataset are read with one indexing operation per shard. Any other data set is
read sample by sample. The random numbers of a sample are derived from (seed, epoch, index), so augmentation does not
depend on which process or worker reads the sample. To detect other randomness, the first shard of a data set is read
twice, and both results must be equal.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from ...tensor.random import permutation
from ...tensor.random.keys import Key
from ..rng import isolated_generators, seed_generators
from ..validation.fingerprints import batch_fingerprints
from .batch import Content, Rows, align, as_tensor, is_array, num_samples

Data = Dataset[Any] | Sequence[Any] | tuple[Any, ...] | Tensor | npt.NDArray[Any]
Collate = Callable[[list[Any]], Content]

_CPU = torch.device("cpu")


class TensorReader:
    """Reads tensors or NumPy arrays, which have one row per sample."""

    def __init__(self, arrays: Sequence[Any], *, is_single: bool) -> None:
        self._tensors = tuple(map(as_tensor, arrays))
        self._is_single = is_single

    def __len__(self) -> int:
        return num_samples(self._tensors)

    def read(self, indices: Tensor, key: Key) -> Content:
        return self.rows(indices).content(range(len(indices)))

    def rows(self, indices: Tensor) -> Rows:
        return Rows(self._tensors, indices, self._is_single)

    @property
    def device(self) -> torch.device:
        """The device of the tensors, or the CPU if they are on several devices."""
        devices = {tensor.device for tensor in self._tensors}
        return devices.pop() if len(devices) == 1 else _CPU


class SampleReader:
    """Reads a data set that has `len(data)` and `data[index]`.

    Samples are read with one thread of torch, because sums depend on the number of threads.
    """

    device = _CPU

    def __init__(self, data: Any, collate_fn: Collate) -> None:
        self._data = data
        self._collate_fn = collate_fn
        self.is_checked = False  # read the next shard twice and compare the results

    def __len__(self) -> int:
        return len(self._data)

    def read(self, indices: Tensor, key: Key) -> Content:
        """Return these samples as one shard. Their random numbers are derived from `key` and the indices."""
        content = self._read(indices, key)
        if self.is_checked:
            self.is_checked = False
            _check_equal(content, self._read(indices, key))
        return content

    def _read(self, indices: Tensor, key: Key) -> Content:
        samples = []
        with isolated_generators(), one_thread():
            for index in indices.tolist():
                seed_generators(key.fold_in(index))
                with note_sample(index):
                    samples.append(self._data[index])
            seed_generators(key.fold_in("collate").fold_in(int(indices[0])))
            return collate(self._collate_fn, samples)


Reader = TensorReader | SampleReader


def collate(collate_fn: Collate, samples: list[Any]) -> Content:
    content = collate_fn(samples)
    if content is None:
        raise TypeError(
            f"collate_fn returned None for {len(samples)} samples. It must return the content of a shard: a tensor, or "
            f"a tuple or dict of tensors."
        )
    return align(content)


def _check_equal(first: Content, second: Content) -> None:
    once, twice = (dict(batch_fingerprints(content, "the shard")) for content in (first, second))
    if once == twice:
        return
    error = ValueError(
        "the data set returned different samples when the same indices were read twice. A sample may depend only on "
        "its index and on random numbers from the global functions of torch, numpy and random. It must not depend on a "
        "generator or counter of the data set, or on the time.\n"
        "  wrong:  self.rng = np.random.default_rng(0)       # in __init__; then, in __getitem__: self.rng.normal()\n"
        "  right:  np.random.normal(), torch.randn(1)        # in __getitem__ and collate_fn: from (seed, epoch, index)"
    )
    name = next(name for name in once | twice if once.get(name) != twice.get(name))
    error.add_note(f"{name} was {once.get(name)}, then {twice.get(name)}")
    raise error


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)


@contextmanager
def note_sample(index: int) -> Iterator[None]:
    """Add a note with the index of the sample to exceptions from this block."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while sample {index} of the data set was read")
        raise


class PassReader:
    """Reads the samples of one pass, given ranges in the order of the pass.

    `key` determines the random numbers of the samples, `order_key` their order. None keeps that of the data set.
    """

    def __init__(self, reader: Reader, length: int, key: Key, order_key: Key | None) -> None:
        self.reader = reader
        self.key = key
        order_N = torch.arange(length) if order_key is None else permutation(order_key, length, engine="torch")
        # Indexing a tensor on a GPU with indices on the CPU would wait for the GPU in every batch.
        self._order_N = order_N.to(reader.device)

    def read(self, samples: range) -> Content:
        return self.reader.read(self._order_N[samples.start : samples.stop], self.key)

    def rows(self, samples: range) -> Rows | None:
        """Return the samples as rows of tensors on an accelerator. Return None if they are elsewhere."""
        if not isinstance(self.reader, TensorReader) or self._order_N.device.type == "cpu":
            return None
        return self.reader.rows(self._order_N[samples.start : samples.stop])

    def indices(self, samples: range) -> list[int]:
        indices: list[int] = self._order_N[samples.start : samples.stop].tolist()
        return indices


def reader_of(data: Data, collate_fn: Collate | None) -> Reader:
    expected = "the data must be a map-style data set, with len(data) and data[index], or a tuple of tensors"
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise TypeError(
            f"{expected}; got {type(data).__name__}.\n"
            f"Instead of a DataLoader, pass its data set and its options. Only run.batches takes an IterableDataset."
        )
    if isinstance(data, Mapping):
        raise TypeError(
            f"{expected}; got a {type(data).__name__}, which is indexed by names.\n"
            "  wrong:  run.batches({'image': images, 'label': labels}, 32)\n"
            "  right:  run.batches((images, labels), 32)            # or a data set whose data[index] is a dict"
        )
    reader = _reader_of(data, collate_fn)
    if len(reader) == 0:
        raise ValueError("the data set has no samples")
    return reader


def _reader_of(data: Any, collate_fn: Collate | None) -> Reader:
    if collate_fn is not None:
        return SampleReader(data, collate_fn)
    if type(data) is TensorDataset:
        return TensorReader(data.tensors, is_single=False)
    if is_array(data):
        return TensorReader([data], is_single=True)
    if isinstance(data, tuple) and data and all(map(is_array, data)):
        return TensorReader(data, is_single=False)
    return SampleReader(data, default_collate)
