"""The arguments of torch's DataLoader that `run.batches` and `run.mean` take.

    Loading(num_workers=2, prefetch_factor=4, ...)      validated arguments
    settings_of(loader)                                 the data set and arguments of a DataLoader

Names and meanings are those of DataLoader. The run determines the order of the samples, so a DataLoader with a sampler,
batch sampler or generator of its own is refused.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from ...pool.current import current, in_job
from ..validation.arguments import whole_number
from .reading import Collate

InitFn = Callable[[int], Any]  # Any: its result is not used

_log = logging.getLogger(__name__)

_INSTEAD = {
    "sampler": "the order is made here, from (seed, epoch), so that it is the same on any number of devices: "
    "shuffle=True, or a data set whose data[index] is in the order that you want, and shuffle=False",
    "batch_sampler": "batches are cut here: batch_size=, drop_last=, and shuffle=",
    "generator": "all random numbers come from the seed of the run: fanwise.run(train, seed=...)",
    "multiprocessing_context": "workers are forked from the process that trains; leave it out",
    "in_order": "batches always come in order; leave it out",
    "pin_memory_device": "batches are brought to run.device; leave it out",
}


@dataclass(frozen=True, slots=True)
class Loading:
    """Arguments for loading samples. `worker_init_fn` is called with the number of each worker."""

    collate_fn: Collate | None = None
    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool = False
    timeout: float = 0
    worker_init_fn: InitFn | None = field(default=None)

    def __post_init__(self) -> None:
        whole_number("num_workers", self.num_workers, least=0)
        if self.prefetch_factor is not None:
            whole_number("prefetch_factor", self.prefetch_factor, least=1)
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not self.timeout >= 0:
            raise ValueError(f"timeout is a number of seconds, 0 for no limit, got {self.timeout!r}")
        for name in ("pin_memory", "persistent_workers"):
            if not isinstance(getattr(self, name), bool | None):
                raise TypeError(f"{name} is True or False, got {getattr(self, name)!r}")
        if not self.num_workers:
            for name in ("prefetch_factor", "persistent_workers", "timeout", "worker_init_fn"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name}={getattr(self, name)!r} is about workers, and num_workers is 0: say num_workers=2, or "
                        f"leave {name} out"
                    )


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """The data set and arguments of a DataLoader."""

    data: Any  # Any: its data set
    batch_size: int
    shuffle: bool | None
    drop_last: bool
    loading: Loading


def settings_of(loader: "DataLoader[Any]", arguments: Loading) -> LoaderSettings:
    """Return the settings of a DataLoader. Its batches become global batches, over all devices.

    Args:
        arguments: the arguments that were passed beside the DataLoader, which must be the defaults.

    Raises:
        ValueError: the DataLoader has its own order or batches, or other arguments were passed.
    """
    if arguments != Loading():
        raise ValueError("the arguments of a DataLoader are its own: give them to the DataLoader, or give its data set")
    _refuse(generator=loader.generator, multiprocessing_context=loader.multiprocessing_context)
    _refuse(pin_memory_device=getattr(loader, "pin_memory_device", None) or None)
    if not getattr(loader, "in_order", True):
        _refuse(in_order=False)
    if loader.batch_size is None or (
        not isinstance(loader.dataset, IterableDataset) and type(loader.batch_sampler) is not BatchSampler
    ):
        raise _refused("batch_sampler", "a DataLoader with batches of its own")
    return LoaderSettings(
        loader.dataset,
        loader.batch_size,
        _shuffles(loader),
        loader.drop_last,
        Loading(
            None if loader.collate_fn is default_collate else loader.collate_fn,
            loader.num_workers,
            loader.prefetch_factor,
            loader.pin_memory or None,
            loader.persistent_workers,
            loader.timeout,
            loader.worker_init_fn,
        ),
    )


def _shuffles(loader: "DataLoader[Any]") -> bool | None:
    if isinstance(loader.dataset, IterableDataset):
        return None
    sampler = loader.sampler
    if type(sampler) is SequentialSampler:
        return False
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(loader.dataset):  # type: ignore[arg-type]  # sized
        _refuse(generator=sampler.generator)
        return True
    raise _refused("sampler", f"a DataLoader with a {type(sampler).__name__}")


def _refuse(**values: object) -> None:
    for name, value in values.items():
        if value is not None:
            shown = repr(value) if isinstance(value, bool | str) else ""  # not where an object lies, in each process
            raise _refused(name, f"a DataLoader with {name}={shown}")


def _refused(name: str, loader: str) -> ValueError:
    return ValueError(f"{loader} is not supported: {_INSTEAD[name]}.\n  right:  run.batches(data, batch_size, ...)")


def check_stream(shuffle: bool | None, loading: Loading) -> None:
    """Raise ValueError for arguments that an IterableDataset does not support."""
    if shuffle:
        raise ValueError(
            "shuffle=True: an IterableDataset has its own order, and cannot be indexed. Leave shuffle out, and shuffle "
            "in its __iter__: the global random numbers of torch, numpy and Python come from (seed, epoch) there."
        )
    if loading.num_workers > 1:
        raise ValueError(
            f"num_workers={loading.num_workers}: an IterableDataset is read by one worker, because its order must not "
            f"depend on the number of workers. Use num_workers=1."
        )
    if loading.persistent_workers:
        raise ValueError("persistent_workers=True: an IterableDataset begins in a new worker in each pass")


def spare_cpus(threads: int, processes: int = 1) -> int | None:
    """Return the number of leased CPUs that workers of each process of a run may use. None: this is not a job.

    Args:
        threads: number of threads with which each process computes.
    """
    if not in_job():
        return None
    return max(0, current().cpus // processes - threads)


def workers_within(num_workers: int, spare: int | None) -> int:
    """Return the number of workers: `num_workers`, but in a job at most `spare`.

    Args:
        spare: number of leased CPUs that do not train. None: there is no lease.
    """
    if spare is None or num_workers <= spare:
        return num_workers
    _log.warning(
        "num_workers=%d, and the CPUs that this job has leased leave %d for workers in each process of the run: %s. "
        "The batches are the same. Lease one CPU for each worker beside those that train.",
        num_workers,
        spare,
        f"there are {spare}" if spare else "samples are read in the step",
    )
    return spare
