"""`init_rpc` and `shutdown`: start and stop the worker of this process.

    init_rpc: validate, listen, join the group (blocks until it is complete), references, autograd
    shutdown: wait until all workers are ready and no call is open (graceful), release references, leave, stop threads

If a step fails, the process is not a worker afterwards.
"""

import logging
import numbers
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch

from ..base.errors import WorkerLostError
from ..base.text import counted
from ..links.hub import Hub
from ..links.runner_threads import RunnerThreads
from ..rendezvous.addresses import parse
from ..rendezvous.rendezvous import Rendezvous, open_rendezvous
from . import agent as _agent
from . import autograd, backend_registry, constants
from . import current as _process
from .actors.calls import Actors
from .calling import coroutines, futures, server
from .devices import check_local, check_targets
from .membership.group import Group
from .options import RpcBackendOptions, TensorPipeRpcBackendOptions
from .worker_info import WorkerInfo

_log = logging.getLogger("fanwise.rpc")

_MAX_LISTED_CALLS = 10

# A shutdown that takes longer logs the open calls.
_NOTICE_S = 10.0

# Time limit for joining if calls have no time limit.
_JOIN_S = 300.0


def init_rpc(
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
) -> None:
    """Make this process a worker. Blocks until all `world_size` workers have joined, at most `rpc_timeout`.

    Args:
        name: unique in the group; letters, digits, `_`, `:` and `-`, shorter than 128 characters.
        backend: a member of `BackendType`; `BackendType.TENSORPIPE` is the only one of fanwise.
        rank: unique in the group, from 0; -1 to read it from the address or the environment.
        world_size: number of workers; None for a dynamic group, which workers join and leave at any time.
        rpc_backend_options: timeouts, threads, rendezvous, device maps.

    Raises:
        TypeError, ValueError: a setting is invalid. RuntimeError: this process is already a worker; the name or rank is
        not unique; static and dynamic workers in one group. JoinError: not all workers joined in time; names those that
        did.
    """
    backend_type = backend_registry.BackendType
    if backend is not None and not isinstance(backend, backend_type):
        raise TypeError("Argument backend must be a member of BackendType")
    if rpc_backend_options is not None and not isinstance(rpc_backend_options, RpcBackendOptions):
        raise TypeError("Argument rpc_backend_options must be an instance of RpcBackendOptions")
    if backend is None:
        backend = backend_type.TENSORPIPE if rpc_backend_options is None else _backend_of(rpc_backend_options)
    if rpc_backend_options is None:
        rpc_backend_options = backend_registry.construct_rpc_backend_options(backend)
    init_rpc_backend(backend, None, name, rank, world_size, rpc_backend_options)


def _backend_of(options: RpcBackendOptions) -> Any:
    for candidate in backend_registry.BackendType:
        if isinstance(options, type(backend_registry.construct_rpc_backend_options(candidate))):
            return candidate
    raise TypeError(f"Could not infer backend for options {options}")


def init_rpc_backend(
    backend: Any,
    store: Any = None,
    name: str = "",
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Start a backend and make its agent the agent of this process."""
    if not isinstance(rank, numbers.Integral) or not isinstance(world_size, (numbers.Integral, type(None))):
        raise RuntimeError(f"rank and world_size must be ints, got {rank!r} and {world_size!r}")
    if _process.is_set():
        raise RuntimeError("RPC is already initialized")
    agent = backend_registry.init_backend(
        backend, store=store, name=name, rank=rank, world_size=world_size, rpc_backend_options=rpc_backend_options
    )
    if not _process.is_set():
        _set_agent(agent)


def _set_agent(agent: _agent.Agent | None) -> None:
    """Set or clear the agent of this process, and replace or restore torch's future functions."""
    _process.set_current(agent)
    if agent is None:
        futures.uninstall()
    else:
        futures.install()


def start(
    store: Any, name: str, rank: int, world_size: int | None, rpc_backend_options: TensorPipeRpcBackendOptions
) -> _agent.Agent:
    """Start a worker. The handler for `register_backend`; `store` is ignored."""
    options = rpc_backend_options
    if not isinstance(options, TensorPipeRpcBackendOptions):
        raise TypeError(f"`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`, got {options!r}")
    address, rank, world_size = parse(options.init_method, rank=rank, world_size=world_size)
    if rank < 0 or (world_size is not None and rank >= world_size):
        raise ValueError(f"rank {rank} is out of range: ranks start at 0, and world_size={world_size}.")
    return start_at(open_rendezvous(address), name, rank, world_size, options)


def start_at(
    rendezvous: Rendezvous, name: str, rank: int, world_size: int | None, options: TensorPipeRpcBackendOptions
) -> _agent.Agent:
    """Start a worker, with an open rendezvous."""
    if _process.is_set():
        raise RuntimeError("RPC is already initialized")
    info = WorkerInfo(name, rank)
    hub = Hub(name="rpc")
    runners = RunnerThreads(hub, name="rpc", limit=options.num_worker_threads)
    agent = _agent.Agent(info, hub, runners, options=options)
    try:
        address = rendezvous.listen(hub, agent.connections.accept)
        agent.actors = Actors(agent)
        autograd.attach(agent)
        runners.start()
        group = Group.join(
            hub,
            rendezvous,
            name=name,
            rank=rank,
            world_size=world_size,
            address=address,
            within_s=options.rpc_timeout or _JOIN_S,
            heartbeat_s=options.heartbeat_s,
            has_allow_list=options.allowed is not None,
        )
        _set_agent(agent)  # before early calls are served, because their functions may make calls
        agent.set_group(group)
        _check_devices(agent)
    except BaseException:
        _set_agent(None)
        autograd.detach()
        if agent.has_joined:
            agent.group.shutdown(graceful=False, within_s=None)
            agent.references.destroy()
        agent.close()
        raise
    return agent


def _check_devices(agent: _agent.Agent) -> None:
    """Check the device maps against the current group. Raises ValueError with torch's messages."""
    maps, own_name = agent.devices, agent.info.name
    names = None if agent.group.world_size is None else [worker.name for worker in agent.workers()]
    check_local(own_name, maps, names, torch.cuda.device_count())
    replies = {
        worker.name: agent.request(worker.id, "devices") for worker in agent.workers() if maps.map_to(worker.name)
    }
    for to, reply in replies.items():
        try:
            count, devices = reply.wait()
        except WorkerLostError:
            continue  # its own device maps may be invalid
        check_targets(own_name, to, maps.map_to(to), (count, devices))


def shutdown(graceful: bool = True, timeout: float = constants.DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Stop being a worker.

    Args:
        graceful: wait until all live workers have called this and no call is open in the group; in a dynamic group,
            until no call is open on this worker. False: leave at once; pending calls fail.
        timeout: maximum wait in seconds; 0 for no limit.

    Raises:
        RuntimeError: this process is no worker; a called function requested a graceful shutdown, which would wait for
            that call; references were left over (only if requested).
        DeadlineExceeded: not all workers called this in time; names the missing ones. This process has left anyway.
    """
    agent = _agent.current()
    if graceful and _is_in_call():
        raise RuntimeError(
            f"shutdown() was called on worker {agent.info.name} by a function that a call runs there. It waits until "
            f"no call is open, but that call is open until the function returns.\n"
            f"Return first, and call shutdown() in the program that called init_rpc; or leave at once, with "
            f"shutdown(graceful=False): then the call fails with a WorkerLostError."
        )
    with agent.waiting():
        _shut_down(agent, graceful, timeout)


def _shut_down(agent: _agent.Agent, graceful: bool, timeout: float) -> None:
    is_finished = threading.Event()
    if graceful:
        agent.call_later(_NOTICE_S, partial(_log_open_calls, agent, is_finished))
    try:
        if graceful:
            steps.wait_for_all(timeout)
        agent.group.shutdown(
            graceful=graceful,
            within_s=timeout or None,
            open_calls=agent.open_calls,
            before_leaving=partial(_release_all, agent),
        )
    finally:
        is_finished.set()
        try:
            agent.references.destroy(ignore_leak=steps.ignores_leaks())
        finally:
            autograd.detach()
            _set_agent(None)
            agent.close()


def _log_open_calls(agent: _agent.Agent, is_finished: threading.Event) -> None:
    """Log the calls of this worker that a graceful shutdown waits for."""
    calls = [
        f"{name} on {agent.worker(id).name}"
        for id, names in agent.connections.routes.open_calls().items()
        for name in names
    ]
    if calls and not is_finished.is_set():
        _log.warning(
            "shutdown has waited for %.0f s on worker %s, as %s made there %s open: %s.\n"
            "Their functions have not returned, or returned futures that are not done.",
            _NOTICE_S,
            agent.info.name,
            counted(len(calls), "call"),
            "is" if len(calls) == 1 else "are",
            ", ".join(calls[:_MAX_LISTED_CALLS]),
        )


def _is_in_call() -> bool:
    """Return True if this thread runs a call. Searches its stack, so that calls need not keep a record."""
    frame: FrameType | None = sys._getframe()
    modules = vars(server), vars(coroutines)
    while frame is not None and not any(frame.f_globals is module for module in modules):
        frame = frame.f_back
    return frame is not None


def _release_all(agent: _agent.Agent) -> None:
    """Release references when all calls have ended and the peers are still reachable."""
    if agent.group.world_size is not None:  # else remaining workers handle the departure
        steps.release()


class Steps:
    """Parts of a shutdown that programs written for torch replace, through `torch_compat`.

    Attributes:
        wait_for_all: called with the timeout in seconds before the wait of the group.
        release: releases all references once no call is open in the group.
        ignores_leaks: returns True if leftover references are only logged.
    """

    def __init__(self) -> None:
        self.wait_for_all: Callable[[float], None] = lambda timeout: None
        self.release: Callable[[], None] = lambda: (
            _agent.current().references.delete_all_user_and_unforked_owner_rrefs()
        )
        self.ignores_leaks: Callable[[], bool] = lambda: True


steps = Steps()
