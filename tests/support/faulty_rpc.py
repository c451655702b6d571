"""A backend of `fanwise.rpc` that drops and delays messages, for torch's own tests with faults.

    options = FaultyTensorPipeRpcBackendOptions(messages_to_fail=["RREF_FORK_REQUEST"], num_fail_sends=3)
    rpc.init_rpc("worker0", rank=0, world_size=2, rpc_backend_options=options)

It has the interface of `torch.distributed.rpc._testing`; importing it registers `BackendType.FAULTY_TENSORPIPE`. A
message is dropped if any of the messages of torch that it carries is to fail. The first `num_fail_sends` of each kind
to each worker are dropped. `init_rpc` connects to all workers, so a call is never late for want of a link.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.futures import Future

from fanwise.base.errors import DeadlineExceeded, FanwiseError
from fanwise.rpc import backend_registry, constants
from fanwise.rpc.agent import Agent
from fanwise.rpc.calling import server
from fanwise.rpc.calling.call import Call, ChainedCall
from fanwise.rpc.messages.ids import Invocation
from fanwise.rpc.options import TensorPipeRpcBackendOptions
from fanwise.rpc.references.protocol import Batch, ChildAccepted, ForkRequest, Release
from fanwise.rpc.references.rref import value_on_owner
from fanwise.rpc.starting import start
from fanwise.rpc.worker_info import WorkerInfo

_FETCHES = ("SCRIPT_RREF_FETCH_CALL", "PYTHON_RREF_FETCH_CALL")
_OF_REFERENCES = {ForkRequest: "RREF_FORK_REQUEST", ChildAccepted: "RREF_CHILD_ACCEPT", Release: "RREF_USER_DELETE"}
_OF_AUTOGRAD = {"autograd.release": "CLEANUP_AUTOGRAD_CONTEXT_REQ", "autograd.gradients": "BACKWARD_AUTOGRAD_REQ"}


class Faults:
    """Which messages are dropped or delayed.

    Args:
        messages_to_fail: torch's names of messages that are dropped.
        messages_to_delay: {torch's name of a message: delay in seconds}.
        num_fail_sends: how many messages of each name are dropped per receiver.
    """

    def __init__(
        self, messages_to_fail: Iterable[str], messages_to_delay: Mapping[str, float], num_fail_sends: int
    ) -> None:
        self._fail = frozenset(messages_to_fail)
        self._delay_s = dict(messages_to_delay)
        self._num_fail_sends = num_fail_sends
        self._lock = threading.Lock()
        self._failed: Counter[tuple[int, str]] = Counter()

    def drops_call(self, to: int, function: Callable[..., Any], *, is_remote: bool) -> bool:
        """Return whether this call is dropped. `is_remote`: its value would stay at worker `to`."""
        return self._drops(to, call_types(function, is_remote=is_remote))

    def drops_request(self, to: int, method: str, args: tuple[object, ...]) -> bool:
        return self._drops(to, message_types(method, args))

    def delay_s(self, function: Callable[..., Any], *, is_remote: bool) -> float:
        return max(self._delay_s.get(name, 0.0) for name in call_types(function, is_remote=is_remote))

    def _drops(self, to: int, names: Iterable[str]) -> bool:
        with self._lock:
            dropped = [name for name in names if name in self._fail and self._failed[to, name] < self._num_fail_sends]
            self._failed.update((to, name) for name in dropped)
        return bool(dropped)


def call_types(function: Callable[..., Any], *, is_remote: bool) -> tuple[str, ...]:
    """Return torch's names for a call: SCRIPT_ for operators and scripted functions, PYTHON_ for all others."""
    if function is value_on_owner:
        return _FETCHES
    is_script = isinstance(function, torch.jit.ScriptFunction) or _is_operator(function)
    return (f"{'SCRIPT' if is_script else 'PYTHON'}_{'REMOTE_' if is_remote else ''}CALL",)


def _is_operator(function: object) -> bool:
    return bool(torch.jit._builtins._find_builtin(function))  # type: ignore[no-untyped-call]


def message_types(method: str, args: tuple[object, ...]) -> set[str]:
    """Return torch's names for the messages that a request of fanwise carries."""
    batches = [arg for arg in args if isinstance(arg, Batch)]
    kinds = {type(message) for batch in batches for message in batch.messages}
    names = {_OF_REFERENCES[kind] for kind in kinds if kind in _OF_REFERENCES}
    return names | ({_OF_AUTOGRAD[method]} if method in _OF_AUTOGRAD else set())


class FaultyTensorPipeRpcBackendOptions(TensorPipeRpcBackendOptions):
    """`TensorPipeRpcBackendOptions` with the arguments of `Faults`."""

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


def _options(rpc_timeout: float, init_method: str, **kwargs: Any) -> FaultyTensorPipeRpcBackendOptions:
    return FaultyTensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def _start(
    store: Any,
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: FaultyTensorPipeRpcBackendOptions,
) -> Agent:
    options = rpc_backend_options
    faults = Faults(options.messages_to_fail, options.messages_to_delay, options.num_fail_sends)
    _delay_calls(faults)  # first: other workers may call as soon as this one has joined
    agent = start(store, name, rank, world_size, options)
    _drop_messages(agent, faults)
    for worker in agent.workers():
        with contextlib.suppress(FanwiseError):  # a lost worker: calls of it will raise
            agent.connections.to(worker.id)
    return agent


_run_call = server.ReceivedCall.run


def _delay_calls(faults: Faults) -> None:
    """Delay calls between the moment that they are opened and their execution."""

    def run(call: Any, opened: Any) -> None:
        runners = call._server._runners
        delay_s = faults.delay_s(opened.value[0], is_remote=call._creation is not None)
        run_now = partial(_run_call, call, opened)
        if delay_s:
            timer = threading.Timer(delay_s, lambda: runners.call(partial(server.call_in_default_state, run_now)))
            timer.daemon = True
            timer.start()
        else:
            run_now()

    server.ReceivedCall.run = run  # type: ignore[assignment, method-assign]


def _drop_messages(agent: Agent, faults: Faults) -> None:
    """Replace the methods of an agent by which calls and requests leave."""
    send_call, send_request = agent.call, agent.request

    def call(to: WorkerInfo, invocation: Invocation, **kwargs: Any) -> Call[Any]:
        if faults.drops_call(to.id, invocation[0], is_remote=kwargs.get("remote") is not None):
            name = getattr(invocation[0], "__name__", repr(invocation[0]))
            return ChainedCall.failed(DeadlineExceeded(f"the call of {name} on {to.name} was dropped, on purpose"))
        return send_call(to, invocation, **kwargs)

    def call_sync(to: WorkerInfo, invocation: Invocation, **kwargs: Any) -> Any:
        return call(to, invocation, **kwargs).wait()

    def request(to: int, method: str, *args: object) -> "Future[Any]":
        if faults.drops_request(to, method, args):
            future: Future[Any] = Future()
            future.set_exception(DeadlineExceeded(f"{method} to worker {to} was dropped, on purpose"))
            return future
        return send_request(to, method, *args)

    changed: Any = agent
    changed.call, changed.call_sync, changed.request = call, call_sync, request


if not backend_registry.backend_registered("FAULTY_TENSORPIPE"):
    backend_registry.register_backend("FAULTY_TENSORPIPE", _options, _start)
