"""Reading the samples of a data set: a shard of a batch, collated.

A tuple of tensors, and torch's TensorDataset, are read by one indexing a shard; any other map-style data set sample by
sample, each with random streams of its own, from (seed, epoch, index), so that augmentation does not depend on who
reads it, nor when. What draws from elsewhere does: so the first shard of a data set is read twice, and compared.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from ...tensor.random import permutation
from ...tensor.random.keys import Key
from ..checks.agreement import first_difference
from ..checks.checksums import marks_of_batch
from ..rng import begin, kept_streams
from .arrays import is_array, tensor_of
from .splitting import Content, Rows, aligned, samples_in

# Any: samples of the user's making
Data = Dataset[Any] | Sequence[Any] | tuple[Any, ...] | Tensor | npt.NDArray[Any] | DataLoader[Any]
Collate = Callable[[list[Any]], Content]  # Any: samples


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
    """Tensors and NumPy arrays with one row for each sample. It returns tensors."""

    def __init__(self, arrays: Sequence[Any], single: bool) -> None:
        self._tensors = tuple(map(tensor_of, arrays))
        self._single = single

    def __len__(self) -> int:
        return samples_in(self._tensors)

    def read(self, indices: Tensor, key: Key) -> Content:
        rows = tuple(tensor[indices] for tensor in self._tensors)
        return rows[0] if self._single else rows

    def rows(self, indices: Tensor) -> Rows:
        """Return where these samples are."""
        return Rows(self._tensors, indices, self._single)

    def order(self, indices: Tensor) -> Tensor:
        # Tensors of a GPU that are asked for with indices of the host would wait for it, batch by batch.
        devices = {tensor.device for tensor in self._tensors}
        return indices.to(devices.pop()) if len(devices) == 1 else indices


class SampleReader:
    """A map-style data set: `len(data)` and `data[index]`.

    Samples are read with one thread, wherever that is: a sum over several threads is another one.

    Attributes:
        is_tried: whether the next shard is read twice, to see whether it depends on who reads it, and how often.
    """

    def __init__(self, data: Any, collate: Collate) -> None:  # Any: a Dataset, or anything with its two methods
        self._data = data
        self._collate = collate
        self.is_tried = False

    def __len__(self) -> int:
        return len(self._data)

    def read(self, indices: Tensor, key: Key) -> Content:
        content = self._read(indices, key)
        if self.is_tried:
            self.is_tried = False
            _check_same(content, self._read(indices, key))
        return content

    def _read(self, indices: Tensor, key: Key) -> Content:
        samples = []
        with kept_streams(), one_thread():
            for index in indices.tolist():
                begin(key.fold_in(index))
                with noted(index):
                    samples.append(self._data[index])
            begin(key.fold_in("collate").fold_in(int(indices[0])))
            return collated(self._collate, samples)

    def order(self, indices: Tensor) -> Tensor:
        return indices


def collated(collate: Collate, samples: list[Any]) -> Content:  # Any: samples
    """Raises TypeError if nothing was returned."""
    content = collate(samples)
    if content is None:
        raise TypeError(
            f"collate_fn returned None for {len(samples)} samples: a shard of a batch is made of what it returns, as a "
            f"tensor, or a tuple or dict of tensors"
        )
    return aligned(content)


def _check_same(content: Content, again: Content) -> None:
    """Raises ValueError if a shard that was read twice is not the same."""
    difference = first_difference([marks_of_batch(each, "the shard") for each in (content, again)])
    if difference is None:
        return
    refusal = ValueError(
        "samples of the data set were read twice, and are not the same: they depend on something besides their index "
        "and the random numbers of torch, numpy and Python, such as a generator or a counter of the data set's own, or "
        "the time. Who reads which sample, and when, depends on the devices and workers, and so would the samples.\n"
        "  wrong:  self.rng = np.random.default_rng(0)       # in __init__; then, in __getitem__: self.rng.normal()\n"
        "  right:  np.random.normal(), torch.randn(1)        # in __getitem__ and collate_fn: from (seed, epoch, index)"
    )
    first, second = difference.values
    refusal.add_note(f"{difference.name} was {first}, and then {second}")
    raise refusal


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes with one thread in this block."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def noted(index: int) -> Iterator[None]:
    """What is raised in this block says which sample it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while sample {index} of the data set was read")
        raise


class PassReader:
    """One pass over a data set: reads what lies at some places of its order."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def begin(self, key: Key, length: int, order: Key | None) -> None:
        """A pass over so many samples begins. Samples draw from `key`, their order from `order`; None: as they lie."""
        # In the order of the data set nothing is drawn; reading by slices of arange is as fast.
        order_N = torch.arange(length) if order is None else permutation(order, length, engine="torch")
        self._order_N = self._reader.order(order_N)
        self._key = key

    def read(self, places: range) -> Content:
        return self._reader.read(self._order_N[places.start : places.stop], self._key)

    def rows(self, places: range) -> Rows | None:
        """Return where these samples are on an accelerator; None if they are elsewhere."""
        if not isinstance(self._reader, TensorReader) or self._order_N.device.type == "cpu":
            return None
        return self._reader.rows(self._order_N[places.start : places.stop])

    def indices(self, places: range) -> list[int]:
        """The samples at these places."""
        indices: list[int] = self._order_N[places.start : places.stop].tolist()
        return indices


def reader_of(data: Data, collate_fn: Collate | None) -> Reader:
    """How to read `data`.

    Raises:
        TypeError: it has no length or cannot be indexed. ValueError: tensors of different lengths.
    """
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise TypeError(
            f"the data must be a map-style data set, with len(data) and data[index], or a tuple of tensors; got "
            f"{type(data).__name__}.\nThe order is made here, so give the data set itself. run.batches takes a stream, "
            f"an IterableDataset, too; run.mean and run.sum take what is indexed."
        )
    if isinstance(data, Mapping):
        raise TypeError(
            "the data must be a map-style data set, with len(data) and data[index], or a tuple of tensors; got a "
            f"{type(data).__name__}, which is indexed by its names.\n"
            "  wrong:  run.batches({'image': images, 'label': labels}, 32)\n"
            "  right:  run.batches((images, labels), 32)            # or a data set whose data[index] is a dict"
        )
    reader = _reader_of(data, collate_fn)
    if len(reader) == 0:
        raise ValueError("the data set has no samples")
    return reader


def _reader_of(data: Any, collate_fn: Collate | None) -> Reader:  # Any: whatever has a length and can be indexed
    if collate_fn is not None:
        return SampleReader(data, collate_fn)
    if type(data) is TensorDataset:
        return TensorReader(data.tensors, single=False)
    if is_array(data):
        return TensorReader([data], single=True)
    if isinstance(data, tuple) and data and all(map(is_array, data)):
        return TensorReader(data, single=False)
    for part in data if isinstance(data, tuple) else (data,):
        if hasattr(part, "__array__") and getattr(part, "ndim", 0) > 0 and not isinstance(part, np.ndarray | Tensor):
            raise TypeError(
                f"the data is, or contains, a {type(part).__name__}: give tensors, or NumPy arrays.\n"
                f"  right:  run.batches((np.asarray(x), np.asarray(y)), 32)"
            )
    return SampleReader(data, default_collate)
