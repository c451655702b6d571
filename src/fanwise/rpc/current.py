"""The agent of this process: the only process-wide state of the layer.

Set by `init_rpc` and cleared by `shutdown`. A forked child of a worker is not a worker. `agent.current` is the same
function with a precise type; parts below the agent use this one.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..base.errors import ClosedError
from .worker_info import WorkerInfo

_worker: Any = None
# Number of forks between the first process and this one, and when the agent was set: it works only in that process.
num_forks = _num_forks_of_worker = 0


def _after_fork_in_child() -> None:
    global num_forks
    num_forks += 1


# os.getpid() would take half as long as the rest of a call.
os.register_at_fork(after_in_child=_after_fork_in_child)


def set_current(worker: Any) -> None:
    """Set or clear the agent of this process. Called by `init_rpc` and `shutdown`."""
    global _worker, _num_forks_of_worker
    _worker, _num_forks_of_worker = worker, num_forks


def is_set() -> bool:
    """Return True if this process is a worker."""
    return _worker is not None and _num_forks_of_worker == num_forks


def current() -> Any:
    """Return the agent of this process. Raises RuntimeError before `init_rpc`, after `shutdown` and in a fork."""
    if _worker is None:
        raise RuntimeError("RPC has not been initialized. Call fanwise.rpc.init_rpc first.")
    if _num_forks_of_worker != num_forks:
        raise forked_error(_worker.info)
    return _worker


def waiting() -> AbstractContextManager[None]:
    """Release the slot of this thread, if it runs a call, during a wait. No effect if the process is no worker."""
    if not is_set():
        return nullcontext()
    entered: AbstractContextManager[None] = _worker.waiting()
    return entered


def forked_error(worker: WorkerInfo) -> ClosedError:
    """Return the error for the use of rpc in a process that was forked from a worker."""
    return ClosedError(
        f"process {os.getpid()} was forked from worker {worker.name} and is no worker itself: it cannot use rpc.\n"
        f"Call from the worker, not from processes that it forks, such as those of a DataLoader, or call init_rpc."
    )
