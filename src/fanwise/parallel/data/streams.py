"""Iterable data sets: a stream of samples, in its own order, cut into batches and shards.

    stream --places 0, 1, 2 ...--> batch k: places k * size to (k + 1) * size --cut--> shards, each collated by itself

The contract: iterating the data set again, with the same random numbers, gives the same samples in the same order. What
is drawn for the sample at a place comes from (seed, epoch, place). Each process, or its one DataLoader worker, iterates
the whole stream and collates its own shards: what is expensive belongs into `collate_fn`. Shards of a process that was
lost are read by the others from the beginning of the stream.

A resume goes on from the data set's own state where it, or its iterator, has state_dict and load_state_dict; else what
comes before is read and dropped.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch.utils.data import IterableDataset

from ...tensor.random.keys import Key
from ..rng import begin, kept_streams
from ..shards import cut
from .batches import Batch
from .order import Pass
from .reading import Collate, collated, noted, one_thread
from .splitting import Content
from .transfer import Transfer

_NOTHING: Any = object()  # Any: where there is no sample


@dataclass(frozen=True, slots=True)
class Part:
    """What one process needs of a batch.

    `rows`: samples of the whole batch; 0: the stream was over before it. `last`: no other batch comes. `state`: of the
    data set after it; None: it has none. `shards`: contents, of those that were asked for.
    """

    rows: int
    last: bool
    state: Any  # Any: of the data set's making
    shards: dict[int, Content]


@dataclass(frozen=True, slots=True)
class Where:
    """Some shards of a batch. `start`: the place where it begins. `pieces`: shards of a batch; `wanted`: of these."""

    start: int
    size: int
    drop_last: bool
    pieces: int
    wanted: tuple[int, ...]


class StreamSource:
    """One pass over a stream, read forwards; who asks for what lies behind has it read from the beginning."""

    def __init__(self, data: "IterableDataset[Any]", collate: Collate) -> None:
        self._data = data
        self._collate = collate

    def begin(self, key: Key, done: int, state: Any) -> None:  # Any: of the data set's making
        """A pass begins, after `done` samples. All random numbers come from `key`."""
        self._key = key
        self._done = 0 if state is None else done
        self._state = state
        self._iterator: Iterator[Any] | None = None  # Any: samples
        self._read: list[Any] = []  # Any: samples that were looked at, and are still to come
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
        """Its samples, whether it is the last one, and the state after it."""
        if self._iterator is None or self._place > where.start:
            self._begin_again()
        while self._place < where.start and self._look(1):
            del self._read[0]
            self._place += 1
        self._look(where.size)
        samples, self._read = self._read[: where.size], self._read[where.size :]
        self._place += len(samples)
        state = None if self._read else self._state_now()  # after what was looked at beyond it there is no state of it
        goes_on = self._look(where.size if where.drop_last else 1)
        return samples, not goes_on, state

    def _begin_again(self) -> None:
        self._read, self._place = [], self._done
        begin(self._key.fold_in("begin"))
        holder: Any = self._data  # Any: has load_state_dict
        if self._state is not None and _has_state(self._data):
            holder.load_state_dict(copy.deepcopy(self._state))
        self._iterator = holder = iter(self._data)
        if self._state is not None and _has_state(holder):
            holder.load_state_dict(copy.deepcopy(self._state))

    def _look(self, least: int) -> bool:
        """Read until so many samples are there. False: there are not so many."""
        assert self._iterator is not None, "it has begun"
        while len(self._read) < least:
            place = self._place + len(self._read)
            begin(self._key.fold_in(place))
            with noted(place):
                sample = next(self._iterator, _NOTHING)
            if sample is _NOTHING:
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
    """What a DataLoader worker iterates: the parts of all batches, with the shards that this process executes."""

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

    Without a worker a batch is read when the loop begins it, and a shard is collated when it is asked for.

    Args:
        parts: of all batches, from a worker; None without one. on_close: ends it.
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
        """What this process needs of the batch that the loop begins."""
        if self._parts is None:
            return self._source.read(self._where(number, ()))
        part = next(self._parts)
        self._number, self._shards = number, dict(part.shards)
        return part

    def shard(self, number: int, index: int) -> Content:
        """A shard. It is read again when it is asked for again, because the loss may have changed it."""
        if number == self._number and index in self._shards:
            return self._transfer.now(self._shards.pop(index))
        return self._transfer.now(self._source.read(self._where(number, (index,))).shards[index])

    def close(self) -> None:
        """The loop is over."""
        self._shards = {}
        if self._parts is not None:
            self._parts, self._number = None, -1
            self._on_close()


def stream_batches(
    begun: Pass, pieces: Callable[[], int], fetch: StreamFetch, *, size: int, drop_last: bool
) -> Iterator[Batch]:
    """The batches of a pass over a stream, from where it begins.

    Raises:
        ValueError: there is no sample in it.
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
