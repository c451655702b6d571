"""`init_rpc` and `shutdown`: how a process becomes a worker of a group, and stops being one.

    init_rpc: check, listen, join the group (blocks until it is complete), references, autograd
    shutdown: all are there and nothing is open (graceful), references released, group left, threads ended

Whatever fails on the way, the process is no worker afterwards.
"""

import logging
import numbers
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch

from ..base.errors import WorkerLostError
from ..base.text import counted
from ..links.hub import Hub
from ..links.runner_threads import RunnerThreads
from . import agent as _agent
from . import autograd, backend_registry, constants
from . import current as _process
from .actors.calls import Actors
from .calling import coroutines, serving, torch_futures
from .devices.device_maps import check_here, check_there
from .membership.group import Group
from .options import RpcBackendOptions, TensorPipeRpcBackendOptions
from .rendezvous.addresses import parse
from .rendezvous.choosing import meeting_at
from .rendezvous.entrance import Meeting
from .worker_info import WorkerInfo

_log = logging.getLogger("fanwise.rpc")

_MOST_SAID = 10  # of open calls

# How long the generators of streams that nobody reads any more may take to end.
_STREAMS_END_S, _PAUSE_S = 5.0, 0.002

# After this time a shutdown says what it waits for.
_NOTICE_S = 10.0

# How long to wait for the others when calls may take for ever.
_JOIN_S = 300.0


def init_rpc(
    name: str,
    backend: Any = None,  # Any: a member of BackendType
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
) -> None:
    """Make this process a worker. Blocks until all `world_size` workers are there, at most the options' `rpc_timeout`.

    Args:
        name: unique in the group; of letters, digits, `_`, `:` and `-`, shorter than 128 characters.
        backend: there is one; `BackendType.TENSORPIPE` names it.
        rank: unique in the group, from 0; -1: from the address or the environment.
        world_size: how many workers; None: a dynamic group, which workers join and leave at any time.
        rpc_backend_options: time-outs, threads, where to meet, device maps.

    Raises:
        TypeError, ValueError: a setting of the wrong kind. RuntimeError: this process is a worker already; the name or
        rank is not unique; static and dynamic workers in one group. JoinError: not all came in time; says who did.
    """
    kind = backend_registry.BackendType
    if backend is not None and not isinstance(backend, kind):
        raise TypeError("Argument backend must be a member of BackendType")
    if rpc_backend_options is not None and not isinstance(rpc_backend_options, RpcBackendOptions):
        raise TypeError("Argument rpc_backend_options must be an instance of RpcBackendOptions")
    if backend is None:
        backend = kind.TENSORPIPE if rpc_backend_options is None else _backend_of(rpc_backend_options)
    if rpc_backend_options is None:
        rpc_backend_options = backend_registry.construct_rpc_backend_options(backend)
    init_rpc_backend(backend, None, name, rank, world_size, rpc_backend_options)


def _backend_of(options: RpcBackendOptions) -> Any:  # Any: a member of BackendType
    for candidate in backend_registry.BackendType:
        if isinstance(options, type(backend_registry.construct_rpc_backend_options(candidate))):
            return candidate
    raise TypeError(f"Could not infer backend for options {options}")


def init_rpc_backend(
    backend: Any,  # Any: a member of BackendType
    store: Any = None,  # Any: torch's; taken and not used
    name: str = "",
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,  # Any: the backend's own
) -> None:
    """Start a backend and make its agent the one of this process."""
    if not isinstance(rank, numbers.Integral) or not isinstance(world_size, (numbers.Integral, type(None))):
        raise RuntimeError(f"rank and world_size must be ints, got {rank!r} and {world_size!r}")
    if _process.is_set():
        raise RuntimeError("RPC is already initialized")
    agent = backend_registry.init_backend(
        backend, store=store, name=name, rank=rank, world_size=world_size, rpc_backend_options=rpc_backend_options
    )
    if not _process.is_set():
        _become(agent)


def _become(agent: _agent.Agent | None) -> None:
    """From now on this process is a worker, or none."""
    _process.set_current(agent)
    if agent is None:
        torch_futures.remove()
    else:
        torch_futures.install()


def start(
    store: Any,  # Any: torch's; not used
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: TensorPipeRpcBackendOptions,
) -> _agent.Agent:
    """Listen, join, and be ready. What `register_backend` takes: the store is torch's, and not used."""
    options = rpc_backend_options
    if not isinstance(options, TensorPipeRpcBackendOptions):
        raise TypeError(f"`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`, got {options!r}")
    where, rank, world_size = parse(options.init_method, rank=rank, world_size=world_size)
    if rank < 0 or (world_size is not None and rank >= world_size):
        raise ValueError(f"rank {rank} is out of range: ranks begin at 0, and world_size={world_size}.")
    return _start(meeting_at(where), name, rank, world_size, options)


def init_at(
    meeting: Meeting, name: str, rank: int, world_size: int, rpc_backend_options: TensorPipeRpcBackendOptions
) -> None:
    """As `init_rpc`, where there is a place to meet already."""
    if _process.is_set():
        raise RuntimeError("RPC is already initialized")
    _start(meeting, name, rank, world_size, rpc_backend_options)


def _start(
    meeting: Meeting, name: str, rank: int, world_size: int | None, options: TensorPipeRpcBackendOptions
) -> _agent.Agent:
    info = WorkerInfo(name, rank)
    hub = Hub(name="rpc")
    runners = RunnerThreads(hub, name="rpc", limit=options.num_worker_threads)
    agent = _agent.Agent(info, hub, runners, options=options)
    try:
        address = meeting.listen(hub, agent.connections.accept)
        agent.actors = Actors(agent)
        autograd.attach(agent)
        runners.start()
        group = Group.join(
            hub,
            meeting,
            name=name,
            rank=rank,
            world_size=world_size,
            address=address,
            within_s=options.rpc_timeout or _JOIN_S,
            heartbeat_s=options.heartbeat_s,
        )
        _become(agent)  # before the calls that came early are run: their functions may make calls of their own
        agent.joined(group)
        _check_devices(agent)
    except BaseException:
        _leave(agent)
        raise
    return agent


def _check_devices(agent: _agent.Agent) -> None:
    """The device maps, against the group that there is now. ValueError in torch's words."""
    maps, me = agent.devices, agent.info.name
    names = None if agent.group.world_size is None else [worker.name for worker in agent.workers()]
    check_here(me, maps, names, torch.cuda.device_count())
    asked = {worker.name: agent.request(worker.id, "devices") for worker in agent.workers() if maps.map_to(worker.name)}
    for to, about in asked.items():
        try:
            count, devices = about.wait()
        except WorkerLostError:
            continue  # it may have found its own maps to be wrong
        check_there(me, to, maps.map_to(to), (count, devices))


def _leave(agent: _agent.Agent) -> None:
    """What was begun is ended, when the rest fails."""
    _become(None)
    autograd.detach()
    if agent.has_joined:
        agent.group.shutdown(graceful=False, within_s=None)
        agent.references.destroy()
    agent.close()


def shutdown(graceful: bool = True, timeout: float = constants.DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Stop being a worker.

    Args:
        graceful: wait until all workers that are alive have called this and no call is open anywhere; in a dynamic
            group, until none is open here. False: leave at once; what waits fails.
        timeout: seconds to wait at most; 0: as long as it takes.

    Raises:
        RuntimeError: this process is no worker; a graceful one was called by a function that a call runs here, and that
            call is open for as long as this waits; references were left over (only when that is asked for).
        DeadlineExceeded: not all came in time; says who is missing. This process has left all the same.
    """
    agent = _agent.current()
    if graceful and _is_in_a_call():
        raise RuntimeError(
            f"shutdown() was called on worker {agent.info.name} by a function that a call runs there. It waits until "
            f"no call is open, and that one is open until the function returns.\n"
            f"Return first, and call shutdown() in the program that called init_rpc; or leave at once, with "
            f"shutdown(graceful=False): then the call fails with a WorkerLostError."
        )
    with agent.waiting():
        _shut_down(agent, graceful, timeout)


def _shut_down(agent: _agent.Agent, graceful: bool, timeout: float) -> None:
    is_over = threading.Event()
    if graceful:
        agent.later(_NOTICE_S, partial(_say_what_is_open, agent, is_over))
    try:
        agent.sender.close_streams(of_calls=False)
        if graceful:
            steps.wait_for_all(timeout)
        agent.group.shutdown(
            graceful=graceful,
            within_s=timeout or None,
            open_calls=agent.open_calls,
            when_quiet=partial(_when_quiet, agent),
        )
    finally:
        is_over.set()
        try:
            agent.references.destroy(ignore_leak=steps.ignores_leaks())
        finally:
            autograd.detach()
            _become(None)
            agent.close()


def _say_what_is_open(agent: _agent.Agent, is_over: threading.Event) -> None:
    """Log which calls of this worker a graceful shutdown waits for."""
    calls = [
        f"{name} on {agent.worker(id).name}" for id, names in agent.connections.open_calls().items() for name in names
    ]
    if calls and not is_over.is_set():
        _log.warning(
            "shutdown has waited for %.0f s on worker %s, as %s made there %s open: %s.\n"
            "Their functions have not returned, or the futures that they returned are not done.",
            _NOTICE_S,
            agent.info.name,
            counted(len(calls), "call"),
            "is" if len(calls) == 1 else "are",
            ", ".join(calls[:_MOST_SAID]),
        )


def _is_in_a_call() -> bool:
    """Whether this thread is below the server of calls. Looked for on its stack, so that no call pays for it."""
    frame: FrameType | None = sys._getframe()
    homes = vars(serving), vars(coroutines)
    while frame is not None and not any(frame.f_globals is home for home in homes):
        frame = frame.f_back
    return frame is not None


def _when_quiet(agent: _agent.Agent) -> None:
    """All calls have ended, and the others can still be reached: what is kept ends. Not longer than 5 s."""
    if agent.group.world_size is not None:  # else those who stay learn from our leaving
        steps.release()
    agent.sender.close_streams(of_calls=True)
    until_s = time.monotonic() + _STREAMS_END_S
    while agent.num_streams and time.monotonic() < until_s:
        time.sleep(_PAUSE_S)


class Steps:
    """Parts of a shutdown in whose place programs written for torch put functions of their own; `torch_compat` asks.

    Attributes:
        wait_for_all: (timeout in seconds), before the wait of our own.
        release: when no call is open anywhere: give back all references.
        ignores_leaks: whether references that are left over are only logged.
    """

    def __init__(self) -> None:
        self.wait_for_all: Callable[[float], None] = lambda timeout: None
        self.release: Callable[[], None] = lambda: (
            _agent.current().references.delete_all_user_and_unforked_owner_rrefs()
        )
        self.ignores_leaks: Callable[[], bool] = lambda: True


steps = Steps()
