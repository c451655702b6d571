"""Iterable data sets: a stream of samples, in its own order, cut into batches and shards.

    stream --places 0, 1, 2 ...--> batch k: places k * size to (k + 1) * size --cut--> shards, each collated by itself

The contract: iterating the data set again with the same random numbers gives the same samples in the same order. Random
numbers for the sample at a place are seeded from (seed, epoch, place). Each process, or its one DataLoader worker,
iterates the whole stream and collates its own shards, so expensive work belongs in `collate_fn`. If a process is lost,
the others read its shards from the beginning of the stream.

A resume restores the state of the data set or its iterator, if they have state_dict and load_state_dict. Otherwise it
reads and drops the samples before the checkpoint.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch.utils.data import IterableDataset

from ...tensor.random.keys import Key
from ..rng import begin, forget_spare_normal, kept_streams
from ..shards import cut
from .batches import Batch
from .order import Pass
from .reading import Collate, collated, noted, one_thread
from .splitting import Content
from .transfer import Transfer

_END: Any = object()  # of the stream


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a batch that one process needs.

    Args:
        rows: number of samples in the whole batch; 0 if the stream ended before it.
        last: True for the last batch.
        state: state of the data set after the batch. None: it has none.
        shards: the requested shards.
    """

    rows: int
    last: bool
    state: Any  # Any: of the data set's making
    shards: dict[int, Content]


@dataclass(frozen=True, slots=True)
class Where:
    """A request for some shards of a batch.

    Args:
        start: place of its first sample in the stream.
        pieces: number of shards of a batch. wanted: the requested ones.
    """

    start: int
    size: int
    drop_last: bool
    pieces: int
    wanted: tuple[int, ...]


class StreamSource:
    """One pass over a stream. A request for an earlier batch reads the stream from the beginning."""

    def __init__(self, data: "IterableDataset[Any]", collate: Collate) -> None:
        self._data = data
        self._collate = collate

    def begin(self, key: Key, done: int, state: Any) -> None:  # Any: of the data set's making
        """Begin a pass after its first `done` samples. All random numbers are derived from `key`."""
        self._key = key
        self._done = 0 if state is None else done
        self._state = state
        self._iterator: Iterator[Any] | None = None  # Any: samples
        self._read: list[Any] = []  # samples that were read ahead
        self._place = 0  # of the first of these, or of the next one
        self._batch: tuple[int, list[Any], bool, Any] = (-1, [], False, None)  # Any: the last one, with its samples

    def read(self, where: Where) -> Part:
        with kept_streams(), one_thread():
            if self._batch[0] != where.start:
                self._batch = (where.start, *self._next_batch(where))
            _, samples, last, state = self._batch
            ranges, shards = cut(len(samples), where.pieces), {}
            for index in where.wanted:
                if ranges[index]:
                    begin(self._key.fold_in("collate").fold_in(where.start + ranges[index].start))
                    shards[index] = collated(self._collate, samples[ranges[index].start : ranges[index].stop])
        return Part(len(samples), last, state, shards)

    def _next_batch(self, where: Where) -> tuple[list[Any], bool, Any]:  # Any: samples
        """Return the samples of the batch, whether it is the last one, and the state after it."""
        if self._iterator is None or self._place > where.start:
            self._begin_again()
        while self._place < where.start and self._read_ahead(1):
            del self._read[0]
            self._place += 1
        self._read_ahead(where.size)
        samples, self._read = self._read[: where.size], self._read[where.size :]
        self._place += len(samples)
        state = None if self._read else self._state_now()  # the state of a data set that was read ahead is too late
        has_next = self._read_ahead(where.size if where.drop_last else 1)
        return samples, not has_next, state

    def _begin_again(self) -> None:
        self._read, self._place = [], self._done
        begin(self._key.fold_in("begin"))
        holder: Any = self._data  # Any: has load_state_dict
        if self._state is not None and _has_state(self._data):
            holder.load_state_dict(copy.deepcopy(self._state))
        self._iterator = holder = iter(self._data)
        if self._state is not None and _has_state(holder):
            holder.load_state_dict(copy.deepcopy(self._state))

    def _read_ahead(self, count: int) -> bool:
        """Read until `count` samples are buffered. Return False if the stream ends before."""
        assert self._iterator is not None, "it has begun"
        while len(self._read) < count:
            place = self._place + len(self._read)
            begin(self._key.fold_in(place))
            with noted(place):
                sample = next(self._iterator, _END)
            if sample is _END:
                return False
            self._read.append(sample)
        return True

    def _state_now(self) -> Any:  # Any: of the data set's making
        for holder in (self._iterator, self._data):
            if _has_state(holder):
                return copy.deepcopy(holder.state_dict())  # type: ignore[union-attr]  # it has one
        return None


def _has_state(holder: Any) -> bool:  # Any: a data set or an iterator
    return hasattr(holder, "state_dict") and hasattr(holder, "load_state_dict")


WhereOf = Callable[[int, tuple[int, ...]], Where]  # of a batch, by its number, and shards of it


class StreamParts(IterableDataset[Any]):
    """The data set of a DataLoader worker: the parts of all batches, with the shards that this process executes."""

    def __init__(
        self,
        source: StreamSource,
        where: WhereOf,
        own: Callable[[], range],
        failure: Callable[[Exception], Any],  # Any: of the caller's making
    ) -> None:
        self._source = source
        self._where = where
        self._own = tuple(own())
        self._failure = failure

    def __iter__(self) -> Iterator[Any]:  # Any: a Part, or a failure
        for number in count():
            try:
                part = self._source.read(self._where(number, self._own))
            except Exception as error:
                yield self._failure(error)
                return
            yield part
            if part.last or not part.rows:
                return


class StreamFetch:
    """The batches of a stream, with shards on the device.

    Without a worker, a batch is read when the loop begins it, and a shard is collated when it is used.

    Args:
        parts: the parts of all batches, from a worker. None: there is no worker.
        on_close: called at the end of the loop.
    """

    def __init__(
        self,
        source: StreamSource,
        transfer: Transfer,
        where: WhereOf,
        parts: Iterator[Part] | None,
        on_close: Callable[[], None],
    ) -> None:
        self._source = source
        self._transfer = transfer
        self._where = where
        self._parts = parts
        self._on_close = on_close
        self._number = -1
        self._shards: dict[int, Content] = {}

    def batch(self, number: int) -> Part:
        """Return the part of this process, when the loop begins a batch."""
        forget_spare_normal()
        if self._parts is None:
            return self._source.read(self._where(number, ()))
        part = next(self._parts)
        self._number, self._shards = number, dict(part.shards)
        return part

    def shard(self, number: int, index: int) -> Content:
        """Return a shard. A second call reads it again, because the loss may have changed it in place."""
        forget_spare_normal()
        if number == self._number and index in self._shards:
            return self._transfer.now(self._shards.pop(index))
        return self._transfer.now(self._source.read(self._where(number, (index,))).shards[index])

    def close(self) -> None:
        """End the loop, and its worker."""
        self._shards = {}
        if self._parts is not None:
            self._parts, self._number = None, -1
            self._on_close()


def stream_batches(
    begun: Pass, pieces: Callable[[], int], fetch: StreamFetch, *, size: int, drop_last: bool
) -> Iterator[Batch]:
    """Yield the batches of a pass over a stream.

    Raises:
        ValueError: the stream has no samples.
    """
    try:
        for number in count():
            if begun.finished:
                return
            part = fetch.batch(number)
            if part.rows == 0 and begun.done == 0:
                raise ValueError("the data set has no samples")
            if part.rows < (size if drop_last else 1):
                begun.finished = True
                return

            def shard(index: int, number: int = number) -> Content:
                return fetch.shard(number, index)

            begun.takes(begun.done + part.rows, part.state)
            yield Batch(tuple(map(len, cut(part.rows, pieces()))), shard, part.last)
            begun.passes_on()
            begun.finished = part.last
    finally:
        fetch.close()
