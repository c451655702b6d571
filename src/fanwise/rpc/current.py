"""Which worker this process is: the one process-wide fact of the layer.

Set by `init_rpc`, taken back by `shutdown`. A process that was forked from a worker is none. Whoever is below the agent
asks here, and names by a protocol of its own what it asks of a worker. `agent.current` is the same, with its type.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..base.errors import ClosedError
from .worker_info import WorkerInfo

_worker: Any = None
_is_inherited = False  # it is that of a process which this one was forked from
# How often this process was forked since the first one. An agent is of use where it was made.
num_forks = 0


def _after_fork_in_child() -> None:
    global num_forks, _is_inherited
    num_forks += 1
    _is_inherited = _worker is not None


# To ask the system for the number of this process costs more than half of the rest that is done for a call.
os.register_at_fork(after_in_child=_after_fork_in_child)


def set_current(worker: Any) -> None:
    """This process is, or is no longer, a worker. Called by `init_rpc` and `shutdown`."""
    global _worker, _is_inherited
    _worker, _is_inherited = worker, False


def is_set() -> bool:
    """Whether this process is a worker."""
    return _worker is not None and not _is_inherited


def current() -> Any:
    """The agent of this process. RuntimeError when `init_rpc` was not called, after `shutdown`, and in a fork."""
    if _worker is None:
        raise RuntimeError("RPC has not been initialized. Call fanwise.rpc.init_rpc first.")
    if _is_inherited:
        raise is_a_fork(_worker.info)
    return _worker


def waiting() -> AbstractContextManager[None]:
    """Around a wait of this thread: where it runs a call, its place is free. Nothing in a process that is no worker."""
    if not is_set():
        return nullcontext()
    entered: AbstractContextManager[None] = _worker.waiting()
    return entered


def is_a_fork(worker: WorkerInfo) -> ClosedError:
    """The error of a process that was forked from a worker, and uses rpc."""
    return ClosedError(
        f"process {os.getpid()} was forked from worker {worker.name}, and is no worker itself: it cannot use rpc.\n"
        f"Call from the worker, not from processes that it forks, as a DataLoader does; or call init_rpc here first."
    )
