"""The pool whose jobs the ranks of a run are, and the GPUs that they lease.

Runs without `pool=` use pools that this process keeps for its next run: one for CPU devices, and one for each selection
of GPUs. Each GPU rank leases one GPU and sees only that one, as cuda:0. A pool of the user, or the job in which
`fanwise.run` is called, chooses the GPUs of the ranks itself.
"""

import atexit
import os
import threading
from collections.abc import Sequence

import torch

from ...base.errors import LeaseError
from ...pool import Pool
from ...pool.current import in_job
from ..devices import gpus_here

_CPUS = 1 << 16  # more than any run needs, so that runs never wait for each other's CPUs

_pools: dict[tuple[str, ...], Pool] = {}  # by GPUs
_pid = 0
_lock = threading.Lock()


def own_pool(gpus: tuple[str, ...] = ()) -> Pool:
    """Return a pool of this process. In a job, return the job's own, because a run may use only the job's lease.

    `gpus`: GPUs that the pool may lease, by their names in CUDA_VISIBLE_DEVICES. Runs on the same GPUs wait.
    """
    global _pid
    if in_job():
        return Pool()
    with _lock:
        if _pid != os.getpid():
            _pools.clear()  # this process was forked from the one to which the pools belong
            _pid = os.getpid()
        if gpus not in _pools:
            if not _pools:
                atexit.register(close_own_pool)
            _pools[gpus] = Pool(seed=0, cpus=_CPUS, gpus=gpus)
        return _pools[gpus]


def close_own_pool() -> None:
    """Close the pools that are kept for the next run. Blocks until their processes have ended."""
    with _lock:
        if _pid == os.getpid():
            for pool in _pools.values():
                pool.close()
        _pools.clear()
    atexit.unregister(close_own_pool)


def pool_for(
    devices: Sequence[torch.device], *, is_named: bool, pool: Pool | None
) -> tuple[Pool, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the pool of a run, and the fields `devices` and `gpu_names` of its `Settings`.

    `is_named`: the user has named each device. `pool`: the pool that the user has given.
    """
    names = tuple(map(str, devices))
    if devices[0].type != "cuda":
        return own_pool() if pool is None else pool, names, ()
    if pool is not None and pool._cluster_engine is not None:
        return pool, ("cuda:0",) * len(devices), ()
    visible_gpus = gpus_here()
    gpu_names = tuple((visible, f"cuda:{number}") for number, visible in enumerate(visible_gpus))
    numbers = [device.index for device in devices]
    if pool is None and not in_job():
        return own_pool(tuple(visible_gpus[number] for number in numbers)), names, gpu_names
    pool = own_pool() if pool is None else pool
    available = len(visible_gpus) if in_job() else len(pool.machine.gpus)
    check_leasable(numbers if is_named else None, len(numbers), available)
    return pool, ("cuda",) * len(devices), gpu_names


def check_leasable(named: Sequence[int] | None, count: int, available: int) -> None:
    """Check that a pool or job with `available` GPUs can lease `count`. `named`: GPUs that the user has named.

    Ranks with a GPU would wait forever for ranks without one. The pool chooses which GPUs it leases.
    """
    if count > available:
        raise LeaseError(f"{count} GPUs are needed at once, one for each process, and the pool has {available}")
    if named is not None and set(named) != set(range(available)):
        names = [f"cuda:{number}" for number in named]
        raise ValueError(
            f"devices={names!r}: the pool, or the job, decides which of its {available} GPUs the processes get, "
            f"because others may use its GPUs, too.\nGive a number: devices={count}."
        )
