"""`spawn`: a group of workers that are jobs of a pool, on this machine or on the nodes of a cluster.

    spawn --job of rank 0--> listens, says where --report--> spawn --jobs of the others, who are told where-->
          <--results, by rank; or what went wrong first

The secret of the group is drawn for it and goes with the jobs, over the pool's own links. Workers of one host have Unix
sockets between them, those of several TLS, as in any group.
"""

import os
import queue
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

from ..base.errors import DeadlineExceeded, LeaseError, WorkerLostError
from ..base.text import counted
from ..links.shared_secret import new_secret
from ..pool import Pool
from ..pool.current import current, in_job
from ..pool.handles import JobHandle
from ..pool.leases import Resources
from . import starting
from .options import TensorPipeRpcBackendOptions
from .rendezvous.addresses import Rendezvous, is_address_of_this_host

# What the other workers get when one has failed: they learn of it from their links, and may still tell why they fail.
_ECHO_S = 10.0
_LOOK_S = 0.5


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    world_size: int,
    pool: Pool | None = None,
    cpus: int = 1,
    rpc_backend_options: TensorPipeRpcBackendOptions | None = None,
) -> list[Any]:
    """Run `fn(rank, *args)` in each worker of a new group, and return what they return, by rank. Blocks until then.

    The workers are "worker0", "worker1" and so on; `init_rpc` and `shutdown` are called for them. With
    `pool=Pool(ray=...)` they are on the nodes of that cluster; when a node is lost its workers are, calls to them raise
    a `WorkerLostError`, and references to what was there an `OwnerLostError`.

    Args:
        fn, args: travel by value, as any job of a pool.
        pool: whose jobs the workers are; by default one on this machine, for this call.
        cpus: of each.
        rpc_backend_options: as of `init_rpc`; `init_method` is not asked.

    Raises:
        ValueError: `world_size` is not a whole number of at least 1, or this is a job of a pool.
        LeaseError: the pool has no room for so many. JoinError: not all came together.
        WorkerLostError: a worker was lost; the others were let come to their end.
        What `fn` raised first, in its own type; then the others are stopped.

    >>> spawn(pow, (2,), world_size=2)
    [0, 1]
    """
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size must be a whole number of at least 1, got {world_size!r}")
    if in_job():
        raise ValueError(
            "rpc.spawn was called in a job of a pool, whose jobs end with it and are nobody else's.\n"
            "Call it in the program that made the pool."
        )
    with ExitStack() as stack:
        used = stack.enter_context(Pool(cpus=world_size * cpus)) if pool is None else pool
        there = used.capacity()
        if (room := there.fits(Resources(cpus=cpus))) < world_size:
            raise LeaseError(
                f"{world_size} workers with cpus={cpus} are needed at once, and the pool has room for {room}: "
                f"{counted(there.cpus, 'CPU')} on {counted(len(there.machines), 'machine')}.\n"
                f"Give a smaller world_size."
            )
        return _Spawned(used, cpus).run(fn, tuple(args), world_size, rpc_backend_options)


class _Address(NamedTuple):
    """Where rank 0 listens. A type of its own: whatever the user's function reports is no address."""

    host: str
    port: int


class _Spawned:
    """The jobs of one group."""

    def __init__(self, pool: Pool, cpus: int) -> None:
        self._pool = pool
        self._cpus = cpus
        self._handles: dict[int, JobHandle] = {}
        # (0, its address) when rank 0 listens; (rank, None) when the job of that rank is over.
        self._events: queue.SimpleQueue[tuple[int, _Address | None]] = queue.SimpleQueue()

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        world_size: int,
        options: TensorPipeRpcBackendOptions | None,
    ) -> list[Any]:
        cluster = self._pool.cluster
        towards = cluster.hosts[0].address if cluster is not None and cluster.hosts else "127.0.0.1"
        secret, results = new_secret(), dict[int, Any]()
        try:
            self._submit(0, fn, args, world_size, secret, _Address(towards, 0), options)
            while len(results) < world_size:
                rank, address = self._next()
                if address is not None:
                    for other in range(1, world_size):
                        self._submit(other, fn, args, world_size, secret, address, options)
                else:
                    results[rank] = self._result(rank)
                    if len(self._handles) < world_size:  # rank 0 was lost before it had said where it is
                        raise results[rank]
        except BaseException:
            self._let_end()
            raise
        lost = [result for result in results.values() if isinstance(result, WorkerLostError)]
        if lost:
            raise lost[0]
        return [results[rank] for rank in range(world_size)]

    def _next(self) -> tuple[int, _Address | None]:
        while True:
            try:
                return self._events.get(timeout=_LOOK_S)  # in pieces, so that Ctrl-C comes through
            except queue.Empty:
                continue

    def _submit(
        self,
        rank: int,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        world_size: int,
        secret: str,
        address: _Address,
        options: TensorPipeRpcBackendOptions | None,
    ) -> None:
        def on_report(values: object) -> str:
            if type(values) is _Address:  # else it is a report of the user's function, for which nobody asked
                self._events.put((rank, values))
            return "CONTINUE"

        needs = self._pool.needs(cpus=self._cpus, on_report=on_report)
        handle = needs.submit(_work, fn, args, rank, world_size, secret, address, options)
        assert isinstance(handle, JobHandle), "such a pool is not made inside a job"
        self._handles[rank] = handle
        handle.add_done_callback(lambda handle: self._events.put((rank, None)))

    def _result(self, rank: int) -> Any:
        try:
            return self._handles[rank].result()
        except BaseException as error:
            error.add_note(f"in worker{rank} of {len(self._handles)}")
            if isinstance(error, WorkerLostError):
                return error
            raise

    def _let_end(self) -> None:
        """Nothing is left of the group. Blocks until then, or for some seconds after the last was to be killed."""
        for handle in self._handles.values():
            handle.stop(grace_s=_ECHO_S)
        for handle in self._handles.values():
            with suppress(DeadlineExceeded):
                handle.outcome(within_s=2 * _ECHO_S)


def _work(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    rank: int,
    world_size: int,
    secret: str,
    address: _Address,
    options: TensorPipeRpcBackendOptions | None,
) -> Any:
    """Run one worker. `address`: where rank 0 listens; for rank 0, an address that has to be able to reach it."""
    from .rendezvous.entrance_tls import TlsMeeting, address_towards

    host, port = (address_towards(address.host), 0) if rank == 0 else address
    where = Rendezvous(f"tcp://{host}:{port}", f"spawned:{host}:{port}", host, port, is_address_of_this_host(host))
    on_open = _report_address if rank == 0 else None
    meeting = TlsMeeting(where, secret, ports=os.environ.get("FANWISE_PORTS", 0), on_open=on_open)
    starting.init_at(meeting, f"worker{rank}", rank, world_size, options or TensorPipeRpcBackendOptions())
    try:
        result = fn(rank, *args)
    except BaseException:
        starting.shutdown(graceful=False)
        raise
    starting.shutdown()
    return result


def _report_address(host: str, port: int) -> None:
    current().report(_Address(host, port))
