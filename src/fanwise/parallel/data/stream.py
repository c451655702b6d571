"""Iterable data sets: a stream of samples in its own order, cut into batches and shards.

Iterating the data set again with the same random numbers must give the same samples in the same order. The random
numbers of each sample are derived from (seed, epoch, number of the sample). Each process, or its one DataLoader worker,
iterates the whole stream and collates its own shards, so expensive work belongs into `collate_fn`. If a process is
lost, the others read its shards from the beginning of the stream.

A resumed run restores the state of the data set or of its iterator, if they have `state_dict` and `load_state_dict`.
Otherwise it reads and drops the samples before the checkpoint.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch.utils.data import IterableDataset

from ..rng import begin, forget_spare_normal, kept_streams
from ..step.tree import cut
from .batch import Batch, Content, DeviceCopy
from .dataset import Collate, collate, note_sample, one_thread
from .position import Pass

_END: Any = object()  # of the stream


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """Some shards of a batch.

    Args:
        num_samples: of the whole batch. 0: the stream ended before it.
        is_last: True for the last batch.
        state: state of the data set after the batch. None: it has no state.
    """

    num_samples: int
    is_last: bool
    state: Any
    shards: dict[int, Content]


class StreamReader:
    """Reads the batches of one pass over a stream. Reading an earlier batch restarts the stream.

    Args:
        started: the pass, at the position where reading starts.
        size: number of samples of a batch.
        num_shards: number of shards of a batch.
    """

    def __init__(
        self,
        data: "IterableDataset[Any]",
        collate_fn: Collate,
        started: Pass,
        *,
        size: int,
        drop_last: bool,
        num_shards: int,
    ) -> None:
        self._data = data
        self._collate_fn = collate_fn
        self._size = size
        self._drop_last = drop_last
        self._num_shards = num_shards
        self._key = started.key.fold_in("reading")
        self._done = started.done
        self._state = started.stream
        self._iterator: Iterator[Any] | None = None
        self._buffer: list[Any] = []  # samples that were read ahead
        self._number = 0  # of the first sample in the buffer, or of the next sample
        self._batch: tuple[int, list[Any], bool, Any] = (-1, [], False, None)  # number, samples, is_last, state

    def read(self, number: int, shards: Sequence[int]) -> StreamBatch:
        """Read the batch with this number in the pass, and collate the given shards."""
        with kept_streams(), one_thread():
            start = self._done + number * self._size
            if self._batch[0] != number:
                self._batch = (number, *self._next_batch(start))
            _, samples, is_last, state = self._batch
            ranges, contents = cut(len(samples), self._num_shards), {}
            for index in shards:
                if ranges[index]:
                    begin(self._key.fold_in("collate").fold_in(start + ranges[index].start))
                    contents[index] = collate(self._collate_fn, samples[ranges[index].start : ranges[index].stop])
        return StreamBatch(len(samples), is_last, state, contents)

    def _next_batch(self, start: int) -> tuple[list[Any], bool, Any]:
        if self._iterator is None or self._number > start:
            self._restart()
        while self._number < start and self._fill_buffer(1):
            del self._buffer[0]
            self._number += 1
        self._fill_buffer(self._size)
        samples, self._buffer = self._buffer[: self._size], self._buffer[self._size :]
        self._number += len(samples)
        state = None if self._buffer else self._current_state()  # with a buffer, the state is that of a later sample
        has_next = self._fill_buffer(self._size if self._drop_last else 1)
        return samples, not has_next, state

    def _restart(self) -> None:
        self._buffer, self._number = [], 0 if self._state is None else self._done
        begin(self._key.fold_in("begin"))
        self._restore(self._data)
        self._iterator = iter(self._data)
        self._restore(self._iterator)

    def _restore(self, stateful: Any) -> None:
        if self._state is not None and _has_state(stateful):
            stateful.load_state_dict(copy.deepcopy(self._state))

    def _fill_buffer(self, size: int) -> bool:
        """Read until `size` samples are buffered. Return False if the stream ends before."""
        assert self._iterator is not None, "the pass has started"
        while len(self._buffer) < size:
            number = self._number + len(self._buffer)
            begin(self._key.fold_in(number))
            with note_sample(number):
                sample = next(self._iterator, _END)
            if sample is _END:
                return False
            self._buffer.append(sample)
        return True

    def _current_state(self) -> Any:
        stateful: Any
        for stateful in (self._iterator, self._data):
            if _has_state(stateful):
                return copy.deepcopy(stateful.state_dict())
        return None


def _has_state(stateful: Any) -> bool:
    return hasattr(stateful, "state_dict") and hasattr(stateful, "load_state_dict")


class StreamShards(IterableDataset[Any]):
    """The data set of a DataLoader worker: all batches, with the given shards.

    Args:
        on_error: returns the item that stands for an exception.
    """

    def __init__(self, reader: StreamReader, shards: Sequence[int], on_error: Callable[[Exception], Any]) -> None:
        self._reader = reader
        self._shards = shards
        self._on_error = on_error

    def __iter__(self) -> Iterator[Any]:
        for number in count():
            try:
                batch = self._reader.read(number, self._shards)
            except Exception as error:
                yield self._on_error(error)
                return
            yield batch
            if batch.is_last or not batch.num_samples:
                return


class StreamFetch:
    """Provides the batches of a stream, with shards on the device.

    Without a worker, a batch is read when the loop starts it, and a shard is collated when it is used.

    Args:
        loaded: all batches, from a worker. None: there is no worker.
    """

    def __init__(
        self,
        reader: StreamReader,
        device_copy: DeviceCopy,
        loaded: Iterator[StreamBatch] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._reader = reader
        self._device_copy = device_copy
        self._loaded = loaded
        self._on_close = on_close
        self._number = -1
        self._shards: dict[int, Content] = {}

    def start_batch(self, number: int) -> StreamBatch:
        forget_spare_normal()
        if self._loaded is None:
            return self._reader.read(number, ())
        batch = next(self._loaded)
        self._number, self._shards = number, dict(batch.shards)
        return batch

    def shard(self, number: int, index: int) -> Content:
        """Return a shard. A second call reads it again, because the loss may have changed it in place."""
        forget_spare_normal()
        if number == self._number and index in self._shards:
            return self._device_copy.copy(self._shards.pop(index))
        return self._device_copy.copy(self._reader.read(number, (index,)).shards[index])

    def close(self) -> None:
        """End the loop and its worker."""
        self._shards = {}
        if self._loaded is not None:
            self._loaded, self._number = None, -1
            self._on_close()


def iterate_stream(started: Pass, shards: int, fetch: StreamFetch, *, size: int, drop_last: bool) -> Iterator[Batch]:
    """Yield the batches of a pass over a stream. Raises ValueError if the stream has no samples."""
    try:
        for number in count():
            if started.is_finished:
                return
            batch = fetch.start_batch(number)
            if batch.num_samples == 0 and started.done == 0:
                raise ValueError("the data set has no samples")
            if batch.num_samples < (size if drop_last else 1):
                started.is_finished = True
                return

            def shard(index: int, number: int = number) -> Content:
                return fetch.shard(number, index)

            started.start_batch(started.done + batch.num_samples, batch.state)
            yield Batch(tuple(map(len, cut(batch.num_samples, shards))), shard, batch.is_last)
            started.finish_batch()
            started.is_finished = batch.is_last
    finally:
        fetch.close()
