"""Load the shards of a pass: in the step, or ahead of it by the worker processes of torch's DataLoader.

    requests, one per batch: {shard: indices} --DataLoader--> MicroBatchDataset.__getitems__ --> {shard: content}

A process loads the shards that it executes. Each sample is seeded from (seed, epoch, index) and each shard is collated
by itself, so its bits do not depend on the number of workers. A shard that was not requested, because another process
was lost or the program looks at the whole batch, is read in the step.
"""

import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

from ...links.codec import pack_error, unpack_error
from ...pool.current import in_job
from ...tensor.random.keys import Key
from .arguments import InitFn, Loading, workers_within
from .batches import ShardFetch
from .reading import PassReader, Reader, SampleReader, TensorReader
from .splitting import Content
from .streams import StreamFetch, StreamParts, StreamSource, WhereOf
from .transfer import Transfer

Requests = Iterable[Mapping[int, range]]  # per batch: the places of each shard


class MicroBatchDataset(Dataset[Any]):
    """A data set whose items are requests: the shards of one batch that a process executes."""

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
class _Pass:
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


def _checked(loaded: Any) -> Any:  # Any: what a worker has loaded
    """Raise the error of the data set."""
    if isinstance(loaded, _Failure):
        raise unpack_error(loaded.error)
    return loaded


class Loaders:
    """The loops over data of a run and their workers, which `close` ends.

    Args:
        spare_cpus: number of leased CPUs for workers of this process. None: there is no lease.
    """

    def __init__(self, device: torch.device, spare_cpus: int | None) -> None:
        self._device = device
        self._spare_cpus = spare_cpus
        self._kept: dict[tuple[object, ...], DataLoader[Any]] = {}
        self._open: weakref.WeakSet[ShardFetch | StreamFetch] = weakref.WeakSet()
        self._tried: set[tuple[type, int]] = set()

    def fetch(
        self, reader: Reader, data: object, begun: tuple[Key, int, Key | None], requests: Requests, loading: Loading
    ) -> ShardFetch:
        """Begin a pass.

        Args:
            data: what `reader` reads. begun: the pass, as `PassReader.begin` takes it.
        """
        source = PassReader(reader)
        source.begin(*begun)
        transfer = self._transfer(loading)
        count = 0
        if loading.num_workers and not isinstance(reader, TensorReader):
            count = workers_within(loading.num_workers, self._spare_cpus)
        if not count:
            return ShardFetch(source, transfer, None, lambda: None)
        name = (id(data), count, id(loading.collate_fn), id(loading.worker_init_fn), loading.timeout)
        # The workers of a loop that is not over are its own: they are kept when it is over.
        loader = self._kept.pop(name, None) if loading.persistent_workers else None
        if loader is None:
            loader = _loader(MicroBatchDataset(reader), count, loading, self._device, batch_sampler=_Pass())
        sampler: Any = loader.batch_sampler  # Any: a _Pass
        sampler.requests = (
            _Request(begun[0], {shard: source.indices(places) for shard, places in shards.items()})
            for shards in requests
        )
        iterator = _started(loader)
        on_close = partial(self._keep, name, loader) if loading.persistent_workers else partial(_end, iterator)
        made = ShardFetch(source, transfer, _on_device(map(_checked, iterator), transfer), on_close)
        self._open.add(made)
        return made

    def tried(self, reader: Reader, data: object) -> Reader:
        """Return the reader. It reads the first shard of the first pass twice and compares the results."""
        name = type(data), len(reader)  # not its id: others, made for each pass, may come to lie there or not
        if isinstance(reader, SampleReader):
            reader.is_tried = name not in self._tried
        self._tried.add(name)
        return reader

    def stream(
        self,
        data: "IterableDataset[Any]",  # Any: samples
        begun: tuple[Key, int, Any],  # Any: the state of a stream
        where: WhereOf,
        own: Callable[[], range],
        loading: Loading,
    ) -> StreamFetch:
        """Begin a pass over a stream.

        Args:
            begun: the pass, as `StreamSource.begin` takes it. where: parts of batches. own: shards of this process.
        """
        source = StreamSource(data, loading.collate_fn or default_collate)
        source.begin(*begun)
        transfer = self._transfer(loading)
        if not workers_within(loading.num_workers, self._spare_cpus):
            return StreamFetch(source, transfer, where, None, lambda: None)
        parts = StreamSource(data, loading.collate_fn or default_collate)
        parts.begin(*begun)
        loader = _loader(StreamParts(parts, where, own, _failure), 1, loading, self._device, batch_size=None)
        iterator = _started(loader)
        made = StreamFetch(source, transfer, where, map(_checked, iterator), partial(_end, iterator))
        self._open.add(made)
        return made

    def close(self) -> None:
        """End all workers. Blocks until they are gone: for 5 s at most, then they are terminated."""
        for each in list(self._open):
            each.close()
        for loader in self._kept.values():
            _end(loader._iterator)
        self._kept.clear()

    def _transfer(self, loading: Loading) -> Transfer:
        return Transfer(self._device, pin=loading.pin_memory is not False)

    def _keep(self, name: tuple[object, ...], loader: "DataLoader[Any]") -> None:
        """Keep the workers for the next loop over the same data set. The loader holds it, so its id stays unique."""
        iterator: Any = loader._iterator  # Any: torch's, with its workers
        if name not in self._kept and all(worker.is_alive() for worker in iterator._workers):
            self._kept[name] = loader
        else:
            _end(iterator)


def _loader(
    dataset: "Dataset[Any]",
    count: int,
    loading: Loading,
    device: torch.device,
    **batches: Any,  # Any: batch_sampler or batch_size
) -> "DataLoader[Any]":
    return DataLoader(
        dataset,
        num_workers=count,
        collate_fn=_as_it_is,
        pin_memory=device.type == "cuda" and loading.pin_memory is not False,
        timeout=loading.timeout,
        worker_init_fn=partial(_begin_worker, loading.worker_init_fn),
        multiprocessing_context="fork",  # the data set need not be picklable
        generator=torch.Generator(),  # else it would draw from the program's
        prefetch_factor=loading.prefetch_factor,
        persistent_workers=loading.persistent_workers,
        **batches,
    )


def _as_it_is(content: Any) -> Any:  # Any: a batch
    return content


def _begin_worker(init: InitFn | None, number: int) -> None:
    """Reset the inherited signal handlers and streams of a worker, and call `init`."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if in_job():
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    if init is not None:
        init(number)


def _started(loader: "DataLoader[Any]") -> Iterator[Any]:  # Any: as its data set gives
    with warnings.catch_warnings():
        # Python warns where the process has other threads. Workers use none of them.
        warnings.filterwarnings("ignore", message=".*fork")
        return iter(loader)


def _end(iterator: Any) -> None:  # Any: of a DataLoader; None: it was never started
    """End the workers now, even if a traceback still refers to the iterator."""
    if iterator is not None:
        iterator._shutdown_workers()


def _on_device(loaded: Iterator[dict[int, Content]], transfer: Transfer) -> Iterator[dict[int, Callable[[], Content]]]:
    """Begin to copy each batch to an accelerator one batch ahead of the loop."""
    ahead = None
    for shards in loaded:
        moving = {shard: transfer.begin(content) for shard, content in shards.items()}
        if not transfer.is_needed:
            yield moving
            continue
        if ahead is not None:
            yield ahead
        ahead = moving
    if ahead is not None:
        yield ahead
