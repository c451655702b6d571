"""Reads the shards of a pass over a data set, in the step or ahead of it in worker processes of torch's DataLoader.

    request for each batch: {shard: indices} --DataLoader--> ShardDataset.__getitems__ --> {shard: content}

The workers of a process read the shards that this process executes. Each sample is seeded from (seed, epoch, index) and
each shard is collated by itself, so the bits of a shard do not depend on the number of workers. The step reads shards
that no worker has read: those of a lost process, and those of other processes if the program uses the whole batch.
"""

import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypedDict

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ...links.codec import pack_error, unpack_error
from ...pool.current import in_job
from ...tensor.random.keys import Key
from ..rng import forget_spare_normal
from ..step.tree import cut
from .batch import Batch, Content, DeviceCopy, LoadedBatch, identity
from .dataset import Collate, PassReader, Reader, SampleReader, TensorReader
from .position import Pass
from .stream import StreamReader

InitFn = Callable[[int], Any]
Requests = Iterable[Mapping[int, range]]  # for each batch: shard -> range of its samples in the order of the pass

_MAX_IDLE = 3  # data sets whose persistent workers are kept, such as those for training, validation and test


class LoaderArguments(TypedDict, total=False):
    collate_fn: Collate | None
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool | None
    persistent_workers: bool
    timeout: float
    worker_init_fn: InitFn | None


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """Options of torch's DataLoader, with their defaults. Raises the errors of DataLoader for invalid values."""

    collate_fn: Collate | None = None
    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool = False
    timeout: float = 0
    worker_init_fn: InitFn | None = None

    def __post_init__(self) -> None:
        DataLoader(
            [None],  # type: ignore[arg-type]  # a data set
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            timeout=self.timeout,
        )


@dataclass(frozen=True, slots=True)
class _Request:
    """The indices of the samples of some shards of a batch. `key`: of the random numbers of the pass."""

    key: Key
    shards: dict[int, list[int]]


@dataclass(slots=True)
class _RequestSampler:
    """The batch sampler of a DataLoader. Each pass sets its own requests, also for workers that it takes over."""

    requests: Iterable[_Request] = ()

    def __iter__(self) -> Iterator[_Request]:
        return iter(self.requests)


class ShardDataset(Dataset[Any]):
    """The data set of a DataLoader worker: an item is the requested shards of one batch."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __getitems__(self, request: _Request) -> "LoadedBatch | _Failure":
        try:
            read = self._reader.read
            return LoadedBatch({i: read(torch.tensor(indices), request.key) for i, indices in request.shards.items()})
        except Exception as error:
            return _failure(error)


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error of a worker, sent as a result. DataLoader would raise the error without its arguments and notes."""

    error: bytes


def _failure(error: Exception) -> _Failure:
    info = get_worker_info()
    assert info is not None, "called in a worker"
    error.add_note(f"in worker {info.id} of a data loader")
    return _Failure(pack_error(error))


class StreamShards(IterableDataset[Any]):
    """The data set of the DataLoader worker of a stream: all batches, with the shards that its process executes."""

    def __init__(self, reader: StreamReader, shards: Sequence[int]) -> None:
        self._reader = reader
        self._shards = shards

    def __iter__(self) -> Iterator[LoadedBatch | _Failure]:
        for number in count():
            try:
                batch = self._reader.read(number, self._shards)
            except Exception as error:
                yield _failure(error)
                return
            yield batch
            if batch.is_last or not batch.num_samples:
                return


def _raise_failure(result: Any) -> LoadedBatch:
    if isinstance(result, _Failure):
        raise unpack_error(result.error)
    loaded: LoadedBatch = result
    return loaded


class Fetch:
    """Provides the shards of one loop over data, on the device of the run.

    Args:
        loaded: the batches that workers read. None: there are no workers, and the step reads all shards.
        on_close: ends the workers, or keeps them for another loop.
    """

    def __init__(
        self,
        device_copy: DeviceCopy,
        loaded: Iterator[LoadedBatch] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._device_copy = device_copy
        self._loaded = None if loaded is None else device_copy.ahead(loaded)
        self._on_close = on_close
        self._batch = -1
        self._shards: dict[int, Callable[[], Content]] = {}

    def start_batch(self, batch: int) -> LoadedBatch | None:
        """Block until the workers have read the next batch, and return it. Return None if there are no workers."""
        if self._loaded is None:
            return None
        loaded = next(self._loaded)
        self._batch, self._shards = batch, dict(loaded.shards)
        return loaded

    def shard(self, batch: int, index: int, read: Callable[[], Content]) -> Content:
        """Return a shard, from a worker or from `read`.

        A second call for the same shard reads it again, because the loss may have changed the content in place.
        """
        forget_spare_normal()
        if batch == self._batch and index in self._shards:
            return self._shards.pop(index)()
        return self._device_copy.copy(read())

    def close(self) -> None:
        self._shards = {}
        if self._loaded is not None:
            self._loaded, self._batch = None, -1
            self._on_close()


class Loaders:
    """The loops over data of a run and their workers, which `close` ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle: dict[tuple[object, ...], DataLoader[Any]] = {}  # with persistent workers, oldest first
        self._open: weakref.WeakSet[Fetch] = weakref.WeakSet()
        self._checked: list[weakref.ref[object]] = []

    def fetch(self, source: PassReader, data: object, requests: Requests, options: LoaderOptions) -> Fetch:
        """Start the workers of a pass over a map-style data set, unless it is read without workers."""
        num_workers = options.num_workers
        if not num_workers or isinstance(source.reader, TensorReader):
            return Fetch(self._device_copy(options))
        # The loader that is kept refers to these objects, so their ids stay unique.
        key = (id(data), num_workers, id(options.collate_fn), id(options.worker_init_fn), options.timeout)
        # A loop that has not ended still uses its own workers.
        loader = self._idle.pop(key, None) if options.persistent_workers else None
        if loader is None:
            loader = self._new_loader(
                ShardDataset(source.reader), num_workers, options, batch_sampler=_RequestSampler()
            )
        sampler: Any = loader.batch_sampler
        sampler.requests = (
            _Request(source.key, {shard: source.indices(samples) for shard, samples in shards.items()})
            for shards in requests
        )
        release = partial(self._release, key, loader) if options.persistent_workers else None
        return self._start(loader, options, release)

    def check_once(self, reader: Reader, data: object) -> Reader:
        """Return the reader. In the first pass over `data` it reads its first shard twice and compares the results."""
        self._checked = [known for known in self._checked if known() is not None]
        if isinstance(reader, SampleReader) and not any(known() is data for known in self._checked):
            reader.is_checked = True
            with suppress(TypeError):  # a list has no weak references: it is checked in each pass
                self._checked.append(weakref.ref(data))
        return reader

    def fetch_stream(
        self, new_reader: Callable[[], StreamReader], own_shards: Callable[[], range], options: LoaderOptions
    ) -> Fetch:
        """Start the worker of a pass over an iterable data set, unless it is read without a worker."""
        if not options.num_workers:
            return Fetch(self._device_copy(options))
        dataset = StreamShards(new_reader(), own_shards())
        return self._start(self._new_loader(dataset, 1, options, batch_size=None), options)

    def close(self) -> None:
        """End all workers. Block until they have ended, at most 5 s, then terminate them."""
        for fetch in list(self._open):
            fetch.close()
        for loader in self._idle.values():
            _end(loader._iterator)
        self._idle.clear()

    def _device_copy(self, options: LoaderOptions) -> DeviceCopy:
        return DeviceCopy(self._device, pin=options.pin_memory is not False)

    def _new_loader(
        self, dataset: "Dataset[Any]", num_workers: int, options: LoaderOptions, **batches: Any
    ) -> "DataLoader[Any]":
        return DataLoader(
            dataset,
            num_workers=num_workers,
            collate_fn=identity,
            pin_memory=self._device.type == "cuda" and options.pin_memory is not False,
            timeout=options.timeout,
            worker_init_fn=partial(_init_worker, options.worker_init_fn),
            multiprocessing_context="fork",  # the data set need not be picklable
            generator=torch.Generator(),  # otherwise it would draw from the generator of the program
            prefetch_factor=options.prefetch_factor,
            persistent_workers=options.persistent_workers,
            **batches,
        )

    def _start(
        self, loader: "DataLoader[Any]", options: LoaderOptions, release: Callable[[], None] | None = None
    ) -> Fetch:
        """`release`: called at the end of the loop. By default the workers end."""
        iterator = _start_workers(loader)
        fetch = Fetch(self._device_copy(options), map(_raise_failure, iterator), release or partial(_end, iterator))
        self._open.add(fetch)
        return fetch

    def _release(self, key: tuple[object, ...], loader: "DataLoader[Any]") -> None:
        """Keep the workers for the next loop over the same data set, with the same functions.

        The program may create the data set or its functions again for each pass, so the oldest workers end.
        """
        iterator: Any = loader._iterator
        if key in self._idle or not all(worker.is_alive() for worker in iterator._workers):
            _end(iterator)
            return
        self._idle[key] = loader
        if len(self._idle) > _MAX_IDLE:
            _end(self._idle.pop(next(iter(self._idle)))._iterator)


def iterate_batches(
    current_pass: Pass, size: int, shards: int, source: PassReader, fetch: Fetch, *, drop_last: bool
) -> Iterator[Batch]:
    """Yield the batches of a pass. Raise ValueError if the length of the data set has changed since the pass began."""
    try:
        for number, batch in enumerate(current_pass.ranges(size, drop_last)):
            if (length := len(source.reader)) != current_pass.length:
                raise ValueError(
                    f"the length of the data set changed from {current_pass.length} to {length} during a pass.\n"
                    f"Change the data set between two calls of run.batches."
                )
            shard_ranges = cut_range(batch, shards)
            fetch.start_batch(number)

            def shard(index: int, number: int = number, ranges: tuple[range, ...] = shard_ranges) -> Content:
                return fetch.shard(number, index, lambda: source.read(ranges[index]))

            yield Batch(tuple(map(len, shard_ranges)), shard, source.rows(batch))
    finally:
        fetch.close()


def iterate_stream(
    current_pass: Pass, size: int, shards: int, reader: StreamReader, fetch: Fetch, *, drop_last: bool
) -> Iterator[Batch]:
    """Yield the batches of a pass over a stream. Raise ValueError if the stream has no samples."""
    try:
        for number in count():
            if current_pass.is_finished:
                return
            forget_spare_normal()
            loaded = fetch.start_batch(number) or reader.read(number, ())
            if loaded.num_samples == 0 and current_pass.done == 0:
                raise ValueError("the data set has no samples")
            if loaded.num_samples < (size if drop_last else 1):
                current_pass.is_finished = True
                return

            def shard(index: int, number: int = number) -> Content:
                return fetch.shard(number, index, lambda: reader.read(number, (index,)).shards[index])

            current_pass.start_batch(current_pass.done + loaded.num_samples, loaded.state)
            yield Batch(tuple(map(len, cut(loaded.num_samples, shards))), shard)
            current_pass.advance()
            current_pass.is_finished = loaded.is_last
    finally:
        fetch.close()


def cut_range(batch: range, shards: int) -> tuple[range, ...]:
    return tuple(batch[part.start : part.stop] for part in cut(len(batch), shards))


def _init_worker(init_fn: InitFn | None, number: int) -> None:
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if in_job():
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    if init_fn is not None:
        init_fn(number)


def _start_workers(loader: "DataLoader[Any]") -> Iterator[Any]:
    """Start the workers, or another pass of persistent ones. If this fails, end them."""
    iterator = loader._iterator
    try:
        with warnings.catch_warnings(), _ctrl_c_deferred() if iterator is None else nullcontext():
            # Python warns about a fork of a process with several threads. Workers do not use these threads.
            warnings.filterwarnings("ignore", message=".*fork")
            iterator = iter(loader)
        return iterator
    except BaseException as error:
        _end(iterator)
        # An iterator that was not returned ends its workers when the last reference to it, in these frames, is gone.
        traceback.clear_frames(error.__traceback__)
        raise


@contextmanager
def _ctrl_c_deferred() -> Iterator[None]:
    """Deliver Ctrl-C at the end of the block: an interrupted fork would leave a process that nobody can end."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is None:  # not from Python
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)


def _end(iterator: Any) -> None:
    """End the workers now, even if a traceback still refers to the iterator. None if no worker was started."""
    if iterator is not None:
        iterator._shutdown_workers()
