"""The pool that runs use which are given none: one for this process, made at the first run, warm for the next."""

import atexit
import os
import threading

from ...pool import Pool
from ...pool.current import in_job

# Ranks of several runs at once must never wait for each other's places, so there are more than anybody asks for.
_PLACES = 1 << 16

_pool: Pool | None = None
_pid = 0
_making = threading.Lock()


def own_pool() -> Pool:
    """The pool of this process; in a job, that job's: its lease is what a run may use."""
    global _pool, _pid
    if in_job():
        return Pool()
    with _making:
        if _pool is None or _pid != os.getpid():
            _pool, _pid = Pool(seed=0, cpus=_PLACES), os.getpid()
            atexit.register(close_own_pool)
        return _pool


def close_own_pool() -> None:
    """End the processes that this one keeps warm for its runs; the next run starts others. Blocks until it is done."""
    global _pool
    with _making:
        if _pool is not None and _pid == os.getpid():
            _pool.close()
        _pool = None
    atexit.unregister(close_own_pool)
