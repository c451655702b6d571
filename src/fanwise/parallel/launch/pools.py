"""The pools that runs use which are given none: of this process, made at the first run, warm for the next.

One for CPU devices, and one for each choice of GPUs, which offers these and no others.
"""

import atexit
import os
import threading

from ...pool import Pool
from ...pool.current import in_job

# Ranks of several runs at once must never wait for each other's places, so there are more than anybody asks for.
_PLACES = 1 << 16

_pools: dict[tuple[str, ...], Pool] = {}
_pid = 0
_making = threading.Lock()


def own_pool(gpus: tuple[str, ...] = ()) -> Pool:
    """The pool of this process; in a job, that job's: its lease is what a run may use.

    Args:
        gpus: that its jobs may lease, as CUDA_VISIBLE_DEVICES names them. Runs on the same ones at once wait for each
            other; in a job these are those of its lease.
    """
    global _pid
    if in_job():
        return Pool()
    with _making:
        if _pid != os.getpid():
            _pools.clear()  # of the process that this is a fork of
            _pid = os.getpid()
        if gpus not in _pools:
            if not _pools:
                atexit.register(close_own_pool)
            _pools[gpus] = Pool(seed=0, cpus=_PLACES, gpus=gpus)
        return _pools[gpus]


def close_own_pool() -> None:
    """End the processes that this one keeps warm for its runs; the next run starts others. Blocks until it is done."""
    with _making:
        if _pid == os.getpid():
            for pool in _pools.values():
                pool.close()
        _pools.clear()
    atexit.unregister(close_own_pool)
