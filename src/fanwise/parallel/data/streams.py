"""Iterable data sets: a stream of samples, in its own order, cut into batches and shards.

    stream --places 0, 1, 2 ...--> batch k: places k * size to (k + 1) * size --cut--> shards, each collated by itself

The contract: iterating the data set again, with the same random numbers, gives the same samples in the same order. What
is drawn for the sample at a place comes from (seed, epoch, place). Each process that reads - of the run, and of its
workers - iterates the whole stream, and collates what it was asked for: so nobody hands samples on, and whoever dies is
replaced by somebody who reads from the beginning. What is expensive belongs into `collate_fn`, which is called for own
shards alone.

A resume goes on from the data set's own state where it, or its iterator, has state_dict and load_state_dict; else what
comes before is read and dropped.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from torch.utils.data import IterableDataset

from ...tensor.random.keys import Key
from ..rng import begin, kept_streams
from ..shards import cut
from .ahead import Shard
from .batches import Batch
from .order import Pass
from .reading import Collate, collated, noted, one_thread
from .splitting import Content
from .transfer import Transfer
from .workers import LoaderWorkers

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
        self._watch: Callable[[int], None] = lambda place: None

    def begin(self, key: Key, done: int, state: Any) -> None:  # Any: of the data set's making
        """A pass begins, after `done` samples. All random numbers come from `key`."""
        self._key = key
        self._done = 0 if state is None else done
        self._state = state
        self._iterator: Iterator[Any] | None = None  # Any: samples
        self._read: list[Any] = []  # Any: samples that were looked at, and are still to come
        self._place = 0  # of the first of these, or of the next one
        self._batch: tuple[int, list[Any], bool, Any] = (-1, [], False, None)  # Any: the last one, with its samples

    def watched(self, watch: Callable[[int], None]) -> None:
        self._watch = watch

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
            self._watch(place)
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


class StreamFetch(Protocol):
    """Where the batches of a stream come from."""

    def batch(self, number: int) -> Part:
        """What this process needs of this batch, which the loop has in hand now."""
        ...

    def shard(self, number: int, index: int) -> Content:
        """A shard of a batch, on the device."""
        ...

    def close(self) -> None:
        """The loop is over, well or not."""
        ...


WhereOf = Callable[[int, tuple[int, ...]], Where]  # of a batch, by its number, and shards of it


class StreamInStep:
    """Read when the loop asks for a batch, collated when a step asks for a shard."""

    def __init__(self, source: StreamSource, transfer: Transfer, where: WhereOf) -> None:
        self._source = source
        self._transfer = transfer
        self._where = where

    def batch(self, number: int) -> Part:
        return self._source.read(self._where(number, ()))

    def shard(self, number: int, index: int) -> Content:
        return self._transfer.now(self._source.read(self._where(number, (index,))).shards[index])

    def close(self) -> None:
        pass


class StreamByWorkers:
    """Read ahead by workers, each of which iterates the stream, and collates what is asked of the batches that it gets.

    Args:
        own: which shards this process executes as things are now; those that a step asked for besides are collated in
            the next batch, too. ahead: batches beyond the one in hand.
    """

    def __init__(
        self,
        spare: StreamInStep,
        transfer: Transfer,
        workers: LoaderWorkers,
        where: WhereOf,
        own: Callable[[], range],
        *,
        ahead: int,
    ) -> None:
        self._spare = spare
        self._transfer = transfer
        self._workers = workers
        self._where = where
        self._own = own
        self._ahead = ahead
        self._number = 0  # of the batch in hand
        self._part = Part(0, True, None, {})
        self._asked: set[int] = set()
        self._is_over = False

    def batch(self, number: int) -> Part:
        self._number = number
        self._workers.drop_before(number)
        wanted = tuple(sorted(self._asked.union(self._own())))
        self._asked = set()
        ahead = range(number, number + self._ahead + 1)
        self._workers.want({(each, 0): (self._where(each, wanted),) for each in ahead})
        self._part = self._taken((number, 0), number, wanted)
        return self._part

    def _taken(self, key: Shard, number: int, wanted: tuple[int, ...]) -> Part:
        self._workers.want({key: (self._where(number, wanted),)})
        part: Part = self._workers.take(key)
        return part

    def shard(self, number: int, index: int) -> Content:
        if self._is_over or number < self._number:  # the loop has let go of it
            return self._spare.shard(number, index)
        self._asked.add(index)
        if index not in self._part.shards:
            self._part.shards.update(self._taken((number, 1 + index), number, (index,)).shards)
        return self._transfer.now(self._part.shards[index])

    def close(self) -> None:
        self._is_over = True
        self._workers.close()


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
