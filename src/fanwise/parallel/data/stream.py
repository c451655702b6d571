"""Reads the batches of an iterable data set: a stream of samples in its own order, cut into batches and shards.

Iterating the data set again with the same random numbers must give the same samples in the same order. The random
numbers of each sample are derived from (seed, epoch, index of the sample). Each process, or its one DataLoader worker,
iterates the whole stream and collates its own shards, so put expensive work into `collate_fn`. If a process is lost,
the others read its shards by iterating the stream from its beginning.

A resumed run restores the state of the data set or of its iterator, if they have `state_dict` and `load_state_dict`.
Otherwise it reads and drops the samples before the checkpoint.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset

from ..rng import isolated_generators, seed_generators
from ..step.tree import cut
from .batch import LoadedBatch
from .dataset import Collate, collate, note_sample, one_thread
from .position import Pass

_END: Any = object()  # of the stream


class StreamReader:
    """Reads the batches of one pass over a stream, from its position on. `size`: number of samples of a batch.

    Reading an earlier batch iterates the stream anew.
    """

    def __init__(
        self,
        data: "IterableDataset[Any]",
        collate_fn: Collate,
        current_pass: Pass,
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
        self._key = current_pass.key.fold_in("reading")
        self._done = current_pass.done
        self._state = current_pass.stream_state
        self._iterator: Iterator[Any] | None = None
        self._buffer: list[Any] = []  # samples that were read and are not part of a batch yet
        self._number = 0  # of the first sample in the buffer, or of the next sample
        self._batch: tuple[int, list[Any], bool, Any] = (-1, [], False, None)  # number, samples, is_last, state

    def read(self, number: int, shards: Sequence[int]) -> LoadedBatch:
        """Read the batch with this number, counted from where reading starts. Collate only the given shards."""
        with isolated_generators(), one_thread():
            start = self._done + number * self._size
            if self._batch[0] != number:
                self._batch = (number, *self._next_batch(start))
            _, samples, is_last, state = self._batch
            ranges, contents = cut(len(samples), self._num_shards), {}
            for index in shards:
                if ranges[index]:
                    seed_generators(self._key.fold_in("collate").fold_in(start + ranges[index].start))
                    contents[index] = collate(self._collate_fn, samples[ranges[index].start : ranges[index].stop])
        return LoadedBatch(contents, len(samples), is_last, state)

    def _next_batch(self, start: int) -> tuple[list[Any], bool, Any]:
        """Return the samples of the batch that begins at `start`, whether it is the last, and the state after it."""
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
        seed_generators(self._key.fold_in("begin"))
        self._restore(self._data)
        self._iterator = iter(self._data)
        self._restore(self._iterator)

    def _restore(self, stateful: Any) -> None:
        if self._state is not None and _has_state(stateful):
            stateful.load_state_dict(copy.deepcopy(self._state))

    def _fill_buffer(self, size: int) -> bool:
        """Read until the buffer has `size` samples. Return False if the stream ends before."""
        assert self._iterator is not None, "the pass has started"
        while len(self._buffer) < size:
            number = self._number + len(self._buffer)
            seed_generators(self._key.fold_in(number))
            with note_sample(number):
                sample = next(self._iterator, _END)
            if sample is _END:
                return False
            self._buffer.append(sample)
        return True

    def _current_state(self) -> Any:
        for stateful in (self._iterator, self._data):
            if _has_state(stateful):
                return copy.deepcopy(stateful.state_dict())  # type: ignore[union-attr]  # it has one
        return None


def _has_state(stateful: Any) -> bool:
    return hasattr(stateful, "state_dict") and hasattr(stateful, "load_state_dict")
