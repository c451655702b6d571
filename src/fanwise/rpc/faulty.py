"""A backend that drops and delays messages by torch's names for them: a drop-in for `torch.distributed.rpc._testing`.

    from fanwise.rpc import faulty      # registers BackendType.FAULTY_TENSORPIPE
    options = faulty.FaultyTensorPipeRpcBackendOptions(messages_to_fail=["RREF_FORK_REQUEST"], num_fail_sends=3)
    rpc.init_rpc("worker0", rank=0, world_size=2, rpc_backend_options=options)

For tests of programs that must live with a bad network. What carries several of torch's messages at once, as the
batches of references do, is dropped when one of them is to fail. Of each kind the first `num_fail_sends` to each worker
are lost. The links to all who are there are made by `init_rpc`: a call leaves at once, or does not on purpose.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..base.errors import FanwiseError
from . import backend_registry, constants
from .agent import Agent
from .options import TensorPipeRpcBackendOptions
from .references.orders import Batch, ChildAccepted, ForkRequest, Release
from .references.rref import value_on_owner
from .starting import start

_FETCHES = ("SCRIPT_RREF_FETCH_CALL", "PYTHON_RREF_FETCH_CALL")
_OF_REFERENCES = {ForkRequest: "RREF_FORK_REQUEST", ChildAccepted: "RREF_CHILD_ACCEPT", Release: "RREF_USER_DELETE"}
_OF_AUTOGRAD = {"autograd.release": "CLEANUP_AUTOGRAD_CONTEXT_REQ", "autograd.gradients": "BACKWARD_AUTOGRAD_REQ"}


class ByMessageType:
    """Faults by torch's names of messages.

    Args:
        messages_to_fail: names of what is dropped.
        messages_to_delay: seconds by name.
        num_fail_sends: how many of each are dropped, for each worker they go to.
    """

    def __init__(
        self, messages_to_fail: Iterable[str], messages_to_delay: Mapping[str, float], num_fail_sends: int
    ) -> None:
        self._fail = frozenset(messages_to_fail)
        self._delay_s = dict(messages_to_delay)
        self._num_fail_sends = num_fail_sends
        self._lock = threading.Lock()
        self._failed: Counter[tuple[int, str]] = Counter()

    def drops_call(self, to: int, function: Callable[..., Any], *, is_remote: bool) -> bool:  # Any: the user's
        return self._drops(to, call_types(function, is_remote=is_remote))

    def drops_message(self, to: int, method: str, args: tuple[object, ...]) -> bool:
        return self._drops(to, message_types(method, args))

    def delay_s(self, function: Callable[..., Any], *, is_remote: bool) -> float:  # Any: the user's
        return max(self._delay_s.get(name, 0.0) for name in call_types(function, is_remote=is_remote))

    def _drops(self, to: int, names: Iterable[str]) -> bool:
        with self._lock:
            lost = [name for name in names if name in self._fail and self._failed[to, name] < self._num_fail_sends]
            self._failed.update((to, name) for name in lost)
        return bool(lost)


def call_types(function: Callable[..., Any], *, is_remote: bool) -> tuple[str, ...]:  # Any: the user's
    """Torch's names for a call: SCRIPT_ for operators and scripted functions, PYTHON_ for all others."""
    if function is value_on_owner:
        return _FETCHES
    of_torch = isinstance(function, torch.jit.ScriptFunction) or _is_operator(function)
    return (f"{'SCRIPT' if of_torch else 'PYTHON'}_{'REMOTE_' if is_remote else ''}CALL",)


def _is_operator(function: object) -> bool:
    return bool(torch.jit._builtins._find_builtin(function))  # type: ignore[no-untyped-call]  # torch's


def message_types(method: str, args: tuple[object, ...]) -> set[str]:
    """Torch's names for what a message of ours carries."""
    batches = [arg for arg in args if isinstance(arg, Batch)]
    kinds = {type(message) for batch in batches for message in batch.messages}
    return {_OF_REFERENCES[kind] for kind in kinds if kind in _OF_REFERENCES} | (
        {_OF_AUTOGRAD[method]} if method in _OF_AUTOGRAD else set()
    )


class FaultyTensorPipeRpcBackendOptions(TensorPipeRpcBackendOptions):
    """As `TensorPipeRpcBackendOptions`, and what goes wrong: see `ByMessageType`."""

    def __init__(
        self,
        *,
        num_worker_threads: int = constants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = constants.DEFAULT_INIT_METHOD,
        messages_to_fail: Iterable[str] = (),
        messages_to_delay: Mapping[str, float] | None = None,
        num_fail_sends: int = 0,
    ) -> None:
        super().__init__(num_worker_threads=num_worker_threads, rpc_timeout=rpc_timeout, init_method=init_method)
        self.messages_to_fail = list(messages_to_fail)
        self.messages_to_delay = dict(messages_to_delay or {})
        self.num_fail_sends = num_fail_sends
        self.faults = ByMessageType(self.messages_to_fail, self.messages_to_delay, num_fail_sends)


def _options(rpc_timeout: float, init_method: str, **kwargs: Any) -> FaultyTensorPipeRpcBackendOptions:  # Any: options
    return FaultyTensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def _start(
    store: Any,  # Any: torch's; not used
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: FaultyTensorPipeRpcBackendOptions,
) -> Agent:
    agent = start(store, name, rank, world_size, rpc_backend_options)
    for worker in agent.workers():
        with contextlib.suppress(FanwiseError):  # it is lost: whoever calls it is told
            agent.connections.to(worker.id)
    return agent


if not backend_registry.backend_registered("FAULTY_TENSORPIPE"):
    backend_registry.register_backend("FAULTY_TENSORPIPE", _options, _start)
