"""Private names of `torch.distributed.rpc` that programs and torch's own tests use.

    torch.distributed.rpc.api, torch.distributed.rpc.internal   this module
    torch.distributed.rpc._names                                this module, through `fanwise.rpc`

This module contains no behavior of its own. Names that programs assign to (`_ignore_rref_leak`, `_wait_all_workers` and
others) are read from here on each use, so assignments take effect. `enable_gil_profiling` is accepted and ignored.
"""

import contextlib
from collections import namedtuple
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import Any

import torch

from . import agent as _agent
from . import autograd as _autograd
from . import current as _process
from .calls import get_rpc_timeout as get_rpc_timeout
from .calls import get_worker_info as get_worker_info
from .calls import remote as remote
from .calls import rpc_async as rpc_async
from .calls import rpc_sync as rpc_sync
from .calls import set_rpc_timeout as _set_rpc_timeout  # noqa: F401  # re-exported under torch's name, like those below
from .calls import thread_local_var as _thread_local_var  # noqa: F401
from .calls import wait_all as _wait_all  # noqa: F401
from .constants import DEFAULT_SHUTDOWN_TIMEOUT, UNSET_RPC_TIMEOUT
from .gathering import AllGatherStates as AllGatherStates
from .gathering import Gatherer
from .messages import pickling as _pickling
from .options import RpcBackendOptions as RpcBackendOptions
from .options import TensorPipeRpcBackendOptions as TensorPipeRpcBackendOptions
from .references.rref import RRef as RRef
from .starting import init_rpc_backend as _init_rpc_backend  # noqa: F401
from .starting import shutdown as shutdown
from .starting import steps as _steps
from .worker_info import WorkerInfo as WorkerInfo

PyRRef = RRef

# If False, `shutdown` raises when a reference is left over.
_ignore_rref_leak = True
_UNSET_RPC_TIMEOUT = UNSET_RPC_TIMEOUT

PythonUDF = namedtuple("PythonUDF", ["func", "args", "kwargs"])


# -- gathering ----------------------------------------------------------------------------------------------------


def _gather_to_leader(
    sequence_id: str, worker_name: str, obj: object, worker_names: Collection[str] | None = None
) -> None:
    _gatherer.add_value(sequence_id, worker_name, obj, worker_names)


def _broadcast_to_followers(sequence_id: str, objects_map: dict[str, Any]) -> None:
    _gatherer.finish(sequence_id, objects_map)


_gatherer = Gatherer(_gather_to_leader, _broadcast_to_followers)


def _all_gather(
    obj: object, worker_names: Collection[str] | None = None, timeout: float = UNSET_RPC_TIMEOUT
) -> dict[str, Any]:
    """Block until all workers, or `worker_names`, have called this. Return their values by name."""
    return _gatherer.all_gather(obj, worker_names, timeout)


def _barrier(worker_names: Collection[str]) -> None:
    """Block until all these workers have called this."""
    _all_gather(None, set(worker_names))


def _wait_all_workers(timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Block until all workers have called this."""
    _all_gather(None, timeout=timeout)


def _wait_if_replaced(timeout: float) -> None:
    """Call a replacement of `_wait_all_workers`. The original is part of every graceful shutdown."""
    if _wait_all_workers is not _own_wait_all_workers:
        _wait_all_workers(timeout)


_own_wait_all_workers = _wait_all_workers
_steps.wait_for_all = _wait_if_replaced
_steps.release = lambda: _delete_all_user_and_unforked_owner_rrefs()
_steps.ignores_leaks = lambda: _ignore_rref_leak


# -- the agent ----------------------------------------------------------------------------------------------------


class TensorPipeAgent:
    """The agent of this process with the methods of torch's agent."""

    def __init__(self, agent: _agent.Agent) -> None:
        self._agent = agent

    def get_worker_info(self, worker: "str | int | WorkerInfo | None" = None) -> WorkerInfo:
        """Return this worker, or the one with that name or id."""
        return self._agent.info if worker is None else self._agent.worker(worker)

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return all workers."""
        return self._agent.workers()

    def get_debug_info(self) -> dict[str, str]:
        """Return counters of this agent as strings."""
        return {key: str(value) for key, value in self._agent.debug_counts().items()}


RpcAgent = TensorPipeAgent


def _get_current_rpc_agent() -> TensorPipeAgent:
    return TensorPipeAgent(_agent.current())


def _is_current_rpc_agent_set() -> bool:
    return _process.is_set()


def _set_and_start_rpc_agent(agent: _agent.Agent) -> None:
    _process.set_current(agent)


def enable_gil_profiling(flag: bool) -> None:
    """No effect."""


# -- references and debugging -------------------------------------------------------------------------------------


def _delete_all_user_and_unforked_owner_rrefs() -> None:
    _agent.current().references.delete_all_user_and_unforked_owner_rrefs()


def _rref_context_get_debug_info() -> dict[str, str]:
    return _agent.current().references.debug_info()


def _get_debug_info() -> dict[str, str]:
    agent = _get_current_rpc_agent()
    return {**_rref_context_get_debug_info(), **agent.get_debug_info(), **_autograd._get_debug_info()}


# -- pickling -----------------------------------------------------------------------------------------------------


class RPCExecMode(Enum):
    """The kind of a call."""

    SYNC = "sync"
    ASYNC = "async"
    ASYNC_JIT = "async_jit"
    REMOTE = "remote"


def _build_rpc_profiling_key(
    exec_type: RPCExecMode, func_name: str, current_worker_name: str, dst_worker_name: str
) -> str:
    return f"rpc_{exec_type.value}#{func_name}({current_worker_name} -> {dst_worker_name})"


class _InternalRPCPickler:
    """Serializes objects as a call does, to bytes and a tensor table. Users build picklers on it."""

    def __init__(self) -> None:
        self._class_reducer_dict: dict[type, Callable[[Any], Any]] = {}

    def _register_reducer(self, obj_class: type, reducer: Callable[[Any], Any]) -> None:
        self._class_reducer_dict.setdefault(obj_class, reducer)

    def serialize(self, obj: object) -> tuple[bytes, list[torch.Tensor]]:
        """Return the pickle and its tensors, which are separate."""
        return _pickling.encode_alone(obj, self._class_reducer_dict)

    def deserialize(self, binary_data: bytes, tensor_table: list[torch.Tensor]) -> Any:
        """Inverse of `serialize`."""
        return _pickling.decode(binary_data, tensor_table, ())


_internal_rpc_pickler = _InternalRPCPickler()
_default_pickler: Any = _internal_rpc_pickler
serialize, deserialize = _internal_rpc_pickler.serialize, _internal_rpc_pickler.deserialize


@contextlib.contextmanager
def _use_rpc_pickler(rpc_pickler: Any) -> Iterator[None]:
    """Pickle calls of this process with `rpc_pickler.serialize((func, args, kwargs))` while the context is active."""
    global _default_pickler
    _default_pickler = _pickling.custom_pickler = rpc_pickler
    try:
        yield
    finally:
        _default_pickler, _pickling.custom_pickler = _internal_rpc_pickler, None
