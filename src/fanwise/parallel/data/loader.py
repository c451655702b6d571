"""Loads the shards of a pass, in the step or ahead of it in the worker processes of torch's DataLoader.

    requests, one per batch: {shard: indices} --DataLoader--> MicroBatchDataset.__getitems__ --> {shard: content}

A process loads the shards that it executes. Each sample is seeded from (seed, epoch, index) and each shard is collated
by itself, so its bits do not depend on the number of workers. A shard that was not requested, because a process was
lost or the program reads the whole batch, is read in the step.
"""

import signal
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ...links.codec import pack_error, unpack_error
from ...pool.current import in_job
from ...tensor.random.keys import Key
from ..rng import forget_spare_normal
from ..step.tree import cut
from .batch import Batch, Content, DeviceCopy, Rows
from .dataset import Collate, PassReader, Reader, SampleReader, TensorReader
from .position import Pass
from .stream import StreamFetch, StreamReader, StreamShards

InitFn = Callable[[int], Any]
Requests = Iterable[Mapping[int, range]]  # per batch: the samples of each shard, in the order of the pass

_MAX_IDLE = 3  # sets of persistent workers that are kept, such as those for training, validation and test data


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
    """Options of torch's DataLoader, with their defaults. Raises what DataLoader raises for invalid values."""

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


class MicroBatchDataset(Dataset[Any]):
    """A data set whose items are the requested shards of one batch."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __getitems__(self, request: "_Request") -> "dict[int, Content] | _Failure":
        try:
            read = self._reader.read
            return {shard: read(torch.tensor(indices), request.key) for shard, indices in request.shards.items()}
        except Exception as error:
            return _failure(error)


@dataclass(frozen=True, slots=True)
class _Request:
    key: Key
    shards: dict[int, list[int]]


@dataclass(slots=True)
class _RequestSampler:
    """The batch sampler of a DataLoader. Persistent workers get the requests of several passes."""

    requests: Iterable[_Request] = ()

    def __iter__(self) -> Iterator[_Request]:
        return iter(self.requests)


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error, as a result: DataLoader would raise it without its arguments and notes."""

    error: bytes


def _failure(error: Exception) -> _Failure:
    info = get_worker_info()
    assert info is not None, "called in a worker"
    error.add_note(f"in worker {info.id} of a data loader")
    return _Failure(pack_error(error))


def _raise_failure(result: Any) -> Any:
    if isinstance(result, _Failure):
        raise unpack_error(result.error)
    return result


class ShardFetch:
    """Provides the shards of a pass, on the device.

    Args:
        loaded: the requested shards of each batch. None: there are no workers, and shards are read in the step.
    """

    def __init__(
        self,
        source: PassReader,
        device_copy: DeviceCopy,
        loaded: Iterator[dict[int, Callable[[], Content]]] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._device_copy = device_copy
        self._loaded = loaded
        self._on_close = on_close
        self._batch = -1
        self._shards: dict[int, Callable[[], Content]] = {}

    def start_batch(self, batch: int) -> None:
        """Block until the shards of the next batch are loaded. Raises the error of the data set or of DataLoader."""
        self._batch = batch
        if self._loaded is not None:
            self._shards = next(self._loaded)

    def read(self, batch: int, shard: int, samples: range) -> Content:
        """Return a shard. A second call reads it again, because the loss may have changed it in place."""
        forget_spare_normal()
        if batch == self._batch and shard in self._shards:
            return self._shards.pop(shard)()
        return self._device_copy.copy(self._source.read(samples))

    def rows(self, samples: range) -> Rows | None:
        """Return where the samples are on an accelerator; None if they are elsewhere."""
        return self._source.rows(samples)

    def close(self) -> None:
        """End the loop."""
        self._shards = {}
        if self._loaded is not None:
            self._loaded = None
            self._on_close()


class Loaders:
    """The loops over data of a run and their workers, which `close` ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle: dict[tuple[object, ...], DataLoader[Any]] = {}  # with persistent workers, oldest first
        self._open: weakref.WeakSet[ShardFetch | StreamFetch] = weakref.WeakSet()
        self._checked: list[weakref.ref[object]] = []

    def fetch(self, source: PassReader, data: object, requests: Requests, options: LoaderOptions) -> ShardFetch:
        device_copy = self._device_copy(options)
        count = options.num_workers
        if not count or isinstance(source.reader, TensorReader):
            return ShardFetch(source, device_copy)
        key = (id(data), count, id(options.collate_fn), id(options.worker_init_fn), options.timeout)
        # A loop that has not ended needs its workers for itself.
        loader = self._idle.pop(key, None) if options.persistent_workers else None
        if loader is None:
            dataset = MicroBatchDataset(source.reader)
            loader = _new_loader(dataset, count, options, self._device, batch_sampler=_RequestSampler())
        sampler: Any = loader.batch_sampler
        sampler.requests = (
            _Request(source.key, {shard: source.indices(samples) for shard, samples in shards.items()})
            for shards in requests
        )
        iterator = _start(loader)
        on_close = partial(self._release, key, loader) if options.persistent_workers else partial(_end, iterator)
        loaded = _copy_ahead(map(_raise_failure, iterator), device_copy)
        fetch = ShardFetch(source, device_copy, loaded, on_close)
        self._open.add(fetch)
        return fetch

    def check_once(self, reader: Reader, data: object) -> Reader:
        """Return the reader. It reads the first shard of the first pass over `data` twice and compares the results."""
        self._checked = [known for known in self._checked if known() is not None]
        if isinstance(reader, SampleReader) and not any(known() is data for known in self._checked):
            reader.is_checked = True
            with suppress(TypeError):  # a list has no weak references: it is checked in each pass
                self._checked.append(weakref.ref(data))
        return reader

    def fetch_stream(
        self, new_reader: Callable[[], StreamReader], own_shards: Callable[[], range], options: LoaderOptions
    ) -> StreamFetch:
        device_copy = self._device_copy(options)
        if not options.num_workers:
            return StreamFetch(new_reader(), device_copy)
        dataset = StreamShards(new_reader(), own_shards(), _failure)
        iterator = _start(_new_loader(dataset, 1, options, self._device, batch_size=None))
        fetch = StreamFetch(new_reader(), device_copy, map(_raise_failure, iterator), partial(_end, iterator))
        self._open.add(fetch)
        return fetch

    def close(self) -> None:
        """End all workers. Blocks until they have ended, at most 5 s. Then they are terminated."""
        for fetch in list(self._open):
            fetch.close()
        for loader in self._idle.values():
            _end(loader._iterator)
        self._idle.clear()

    def _device_copy(self, options: LoaderOptions) -> DeviceCopy:
        return DeviceCopy(self._device, pin=options.pin_memory is not False)

    def _release(self, key: tuple[object, ...], loader: "DataLoader[Any]") -> None:
        """Keep the workers for the next loop over the same data set. The loader refers to it, so its id is unique.

        The program may create the data set or its functions again for each pass, so old workers end.
        """
        iterator: Any = loader._iterator
        if key in self._idle or not all(worker.is_alive() for worker in iterator._workers):
            _end(iterator)
            return
        self._idle[key] = loader
        if len(self._idle) > _MAX_IDLE:
            _end(self._idle.pop(next(iter(self._idle)))._iterator)


def iterate_batches(
    started: Pass, batch_size: int, shards: int, fetch: ShardFetch, length_now: Callable[[], int], *, drop_last: bool
) -> Iterator[Batch]:
    """Yield the batches of a pass. Raises ValueError if the length of the data set has changed since it started."""
    try:
        for number, batch in enumerate(started.ranges(batch_size, drop_last)):
            if (length := length_now()) != started.length:
                raise ValueError(
                    f"the length of the data set changed from {started.length} to {length} during a pass.\n"
                    f"Change the data set between two calls of run.batches."
                )
            shard_ranges = cut_range(batch, shards)
            fetch.start_batch(number)

            def read(index: int, number: int = number, ranges: tuple[range, ...] = shard_ranges) -> Content:
                return fetch.read(number, index, ranges[index])

            is_last = started.range_at(batch.stop, batch_size, drop_last) is None
            yield Batch(tuple(map(len, shard_ranges)), read, is_last, fetch.rows(batch))
    finally:
        fetch.close()


def cut_range(batch: range, shards: int) -> tuple[range, ...]:
    return tuple(batch[part.start : part.stop] for part in cut(len(batch), shards))


def _new_loader(
    dataset: "Dataset[Any]", count: int, options: LoaderOptions, device: torch.device, **batches: Any
) -> "DataLoader[Any]":
    """`batches`: `batch_sampler` or `batch_size`."""
    return DataLoader(
        dataset,
        num_workers=count,
        collate_fn=_identity,
        pin_memory=device.type == "cuda" and options.pin_memory is not False,
        timeout=options.timeout,
        worker_init_fn=partial(_init_worker, options.worker_init_fn),
        multiprocessing_context="fork",  # the data set need not be picklable
        generator=torch.Generator(),  # otherwise it would draw from the generator of the program
        prefetch_factor=options.prefetch_factor,
        persistent_workers=options.persistent_workers,
        **batches,
    )


def _identity(content: Any) -> Any:
    return content


def _init_worker(init_fn: InitFn | None, number: int) -> None:
    """Reset the inherited signal handlers and output streams of a worker, and call `init_fn`."""
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if in_job():
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    if init_fn is not None:
        init_fn(number)


def _start(loader: "DataLoader[Any]") -> Iterator[Any]:
    """Start the workers, or another pass of persistent ones. If this fails, end them."""
    iterator = loader._iterator
    # Ctrl-C waits until the workers are known: an interrupted fork leaves a process that nobody can end.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT} if iterator is None else ())
    try:
        with warnings.catch_warnings():
            # Python warns about a fork of a process with several threads. Workers do not use these threads.
            warnings.filterwarnings("ignore", message=".*fork")
            try:
                iterator = iter(loader)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # raises KeyboardInterrupt after Ctrl-C
        return iterator
    except BaseException as error:
        _end(iterator)
        # An iterator that was not returned ends its workers when the last reference to it, in these frames, is gone.
        traceback.clear_frames(error.__traceback__)
        raise


def _end(iterator: Any) -> None:
    """End the workers now, even if a traceback still refers to the iterator. None: it was never started."""
    if iterator is not None:
        iterator._shutdown_workers()


def _copy_ahead(
    loaded: Iterator[dict[int, Content]], device_copy: DeviceCopy
) -> Iterator[dict[int, Callable[[], Content]]]:
    """Start to copy each batch to an accelerator one batch ahead of the loop."""
    previous = None
    for shards in loaded:
        copies = {shard: device_copy.start(content) for shard, content in shards.items()}
        if not device_copy.is_needed:
            yield copies
            continue
        if previous is not None:
            yield previous
        previous = copies
    if previous is not None:
        yield previous
