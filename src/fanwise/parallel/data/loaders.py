"""The loops over data that a run has under way, and the workers that read for them.

Each loop has workers of its own, or takes those that a loop before it has left for it. When the run is over, well or
not, none is left.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from ...tensor.random.keys import Key
from .batches import ByWorkers, Cut, Fetch, InStep
from .loading import Loading, workers_within
from .reading import PassReader, Reader, SampleReader, TensorReader
from .streams import StreamByWorkers, StreamFetch, StreamInStep, StreamSource, WhereOf
from .transfer import Transfer
from .workers import LoaderWorkers


class Loaders:
    """See the module.

    Args:
        spare_cpus: how many a job has leased for workers of this process; None: there is no lease.
    """

    def __init__(self, device: torch.device, spare_cpus: int | None) -> None:
        self._device = device
        self._spare_cpus = spare_cpus
        self._kept: dict[tuple[object, ...], LoaderWorkers] = {}
        self._open: weakref.WeakSet[ByWorkers | StreamByWorkers] = weakref.WeakSet()
        self._tried: set[tuple[type, int]] = set()

    def fetch(
        self,
        reader: Reader,
        data: object,
        begun: tuple[Key, int, Key | None],
        cut_of: Cut,
        own: Callable[[int], range],
        loading: Loading,
    ) -> Fetch:
        """Where the shards of a pass come from.

        Args:
            data: what `reader` reads. begun: the pass, as `PassReader.begin` takes it.
            cut_of: the places of the shards of a batch. own: which of so many shards this process executes.
        """
        source = PassReader(reader)
        source.begin(*begun)
        transfer = Transfer(self._device, pin=loading.pin_memory is not False)
        count = 0
        if loading.num_workers and not isinstance(reader, TensorReader):
            count = workers_within(loading.num_workers, self._spare_cpus)
        if not count:
            return InStep(source, transfer)
        init, timeout_s = loading.worker_init_fn, loading.timeout
        name = (id(data), count, id(loading.collate_fn), id(init), timeout_s)
        # Those of a loop that is still under way are its own: they are kept when it is over.
        workers = self._kept.pop(name, None) if loading.persistent_workers else None
        if workers is None:
            workers = LoaderWorkers(PassReader(reader), count, init=init, timeout_s=timeout_s)
        workers.begin(*begun)
        let_go = partial(self._keep, name) if loading.persistent_workers else LoaderWorkers.close
        made = ByWorkers(source, transfer, workers, cut_of, own, ahead=loading.ahead, let_go=let_go)
        self._open.add(made)
        return made

    def tried(self, reader: Reader, data: object) -> Reader:
        """The reader of a data set, of which the first shard of the first pass is read twice, and compared."""
        name = type(data), len(reader)  # not its id: others, made for each pass, may come to lie there or not
        if isinstance(reader, SampleReader):
            reader.is_tried = name not in self._tried
        self._tried.add(name)
        return reader

    def _keep(self, name: tuple[object, ...], workers: LoaderWorkers) -> None:
        """For the next loop over the same data set, which their reader keeps, so that its id is nobody else's."""
        if name in self._kept:
            workers.close()
        else:
            self._kept[name] = workers

    def stream(
        self,
        data: "IterableDataset[Any]",  # Any: samples
        begun: tuple[Key, int, Any],  # Any: the state of a stream
        where: WhereOf,
        own: Callable[[], range],
        loading: Loading,
    ) -> StreamFetch:
        """Where the batches of a pass over a stream come from.

        Args:
            begun: the pass, as `StreamSource.begin` takes it. where: parts of batches. own: as for `fetch`, now.
        """
        source = StreamSource(data, loading.collate_fn or default_collate)
        source.begin(*begun)
        transfer = Transfer(self._device, pin=loading.pin_memory is not False)
        in_step = StreamInStep(source, transfer, where)
        count = workers_within(loading.num_workers, self._spare_cpus)
        if not count:
            return in_step
        read = StreamSource(data, loading.collate_fn or default_collate)
        workers = LoaderWorkers(read, count, init=loading.worker_init_fn, timeout_s=loading.timeout)
        workers.begin(*begun)
        made = StreamByWorkers(in_step, transfer, workers, where, own, ahead=loading.ahead)
        self._open.add(made)
        return made

    def close(self) -> None:
        """End all workers. Blocks until they are gone: for a sample, and for 2 s at most."""
        for each in list(self._open):
            each.close()
        for workers in self._kept.values():
            workers.close()
        self._kept.clear()
