"""The pools whose jobs the ranks of a run are, and the GPUs that the ranks lease from them.

Runs without `pool=` use pools of this process, made at the first run and kept for the next: one for CPU devices, and
one for each choice of GPUs, which offers only these. Each GPU rank leases one GPU and sees it alone, as cuda:0. A pool
of the user's, or the job in which `fanwise.run` is called, chooses itself which GPUs the ranks get.
"""

import atexit
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...base.errors import LeaseError
from ...pool import Pool
from ...pool.current import in_job
from ..devices import gpus_here

_PLACES = 1 << 16  # more CPUs than anybody asks for, so that ranks of several runs never wait for each other's places

_pools: dict[tuple[str, ...], Pool] = {}
_pid = 0
_making = threading.Lock()


def own_pool(gpus: tuple[str, ...] = ()) -> Pool:
    """Return the pool of this process; in a job, that of the job, whose lease is what a run may use.

    Args:
        gpus: that its jobs may lease, as CUDA_VISIBLE_DEVICES names them. Runs on the same GPUs wait for each other.
    """
    global _pid
    if in_job():
        return Pool()
    with _making:
        if _pid != os.getpid():
            _pools.clear()  # those of the process from which this one was forked
            _pid = os.getpid()
        if gpus not in _pools:
            if not _pools:
                atexit.register(close_own_pool)
            _pools[gpus] = Pool(seed=0, cpus=_PLACES, gpus=gpus)
        return _pools[gpus]


def close_own_pool() -> None:
    """End the processes that are kept for the next run. Blocks until they have ended."""
    with _making:
        if _pid == os.getpid():
            for pool in _pools.values():
                pool.close()
        _pools.clear()
    atexit.unregister(close_own_pool)


@dataclass(frozen=True, slots=True)
class Lease:
    """Where the ranks of a run get their devices.

    Attributes:
        pool: whose jobs they are.
        names: of the devices, for people; "cuda" where the pool chooses.
        gpus: how many each rank leases.
        gpu_names: names of GPUs for people, by what CUDA_VISIBLE_DEVICES calls them.
    """

    pool: Pool
    names: tuple[str, ...]
    gpus: int = 0
    gpu_names: tuple[tuple[str, str], ...] = ()


def lease_for(devices: Sequence[torch.device], *, is_named: bool, pool: Pool | None) -> Lease:
    """Return the lease of a run in several processes.

    Args:
        devices: of all ranks, of one kind. is_named: the user has named each of them. pool: of the user's.

    Raises:
        LeaseError, ValueError: as `check_leased`.
    """
    names = tuple(map(str, devices))
    if devices[0].type != "cuda":
        return Lease(own_pool() if pool is None else pool, names)
    if pool is not None and pool.cluster is not None:
        return Lease(pool, ("cuda:0",) * len(devices), 1)
    here = gpus_here()
    gpu_names = tuple((visible, f"cuda:{number}") for number, visible in enumerate(here))
    numbers = [device.index for device in devices]
    if pool is None and not in_job():
        return Lease(own_pool(tuple(here[number] for number in numbers)), names, 1, gpu_names)
    used = own_pool() if pool is None else pool
    check_leased(numbers if is_named else None, len(numbers), len(here) if in_job() else len(used.machine.gpus))
    return Lease(used, ("cuda",) * len(devices), 1, gpu_names)


def check_leased(named: Sequence[int] | None, count: int, available: int) -> None:
    """Check that a pool or job with `available` GPUs can lease `count`. `named`: the numbers that the user gave.

    Raises:
        LeaseError: it has fewer, so that ranks which got one would wait forever.
        ValueError: GPUs were named, and the pool chooses which ones are leased.
    """
    if count > available:
        raise LeaseError(f"{count} GPUs are needed at once, one for each process, and the pool has {available}")
    if named is not None and set(named) != set(range(available)):
        asked = [f"cuda:{number}" for number in named]
        raise ValueError(
            f"devices={asked!r}: which of its {available} GPUs the processes get is decided by the pool, or the job, "
            f"whose GPUs others may use too.\nGive a number: devices={count}."
        )
