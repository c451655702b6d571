"""`spawn`: run a group of workers as jobs of a pool, on this machine or on the nodes of a cluster.

    spawn --job of rank 0--> listens, --address--> spawn --jobs of the other ranks, with the address-->
          <--results by rank, or the first error

The secret of the group is generated per call and sent with the jobs, over the authenticated links of the pool. Workers
of one host use Unix sockets, workers of different hosts TLS, as in any group.
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
from ..rendezvous import addresses
from . import starting
from .options import TensorPipeRpcBackendOptions

# Time for the other workers to report their errors when one has failed.
_GRACE_S = 10.0
_POLL_S = 0.5


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    world_size: int,
    pool: Pool | None = None,
    cpus: int = 1,
    rpc_backend_options: TensorPipeRpcBackendOptions | None = None,
) -> list[Any]:
    """Run `fn(rank, *args)` in each worker of a new group and return the results by rank. Blocks until all are done.

    The workers are named "worker0", "worker1" and so on; `init_rpc` and `shutdown` are called for them. With
    `pool=Pool(ray=...)` they run on the nodes of that cluster. If a node is lost, calls to its workers raise
    `WorkerLostError` and references to their values `OwnerLostError`.

    Args:
        fn, args: sent by value, like any job of a pool.
        pool: pool that runs the workers; by default a new one on this machine, for this call.
        cpus: CPUs per worker.
        rpc_backend_options: as in `init_rpc`; `init_method` is ignored.

    Raises:
        ValueError: `world_size` is not an integer of at least 1, or this is a job of a pool.
        LeaseError: the pool has too few free CPUs. JoinError: not all workers joined.
        WorkerLostError: a worker was lost; the others ran to their end.
        The first error of `fn`, in its own type; the other workers are stopped.

    >>> spawn(pow, (2,), world_size=2)
    [0, 1]
    """
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise ValueError(f"world_size must be a whole number of at least 1, got {world_size!r}")
    if in_job():
        raise ValueError(
            "rpc.spawn was called in a job of a pool, which cannot own workers.\n"
            "Call it in the program that made the pool."
        )
    with ExitStack() as stack:
        workers_pool = stack.enter_context(Pool(cpus=world_size * cpus)) if pool is None else pool
        capacity = workers_pool.capacity()
        if (num_free := capacity.fits(Resources(cpus=cpus))) < world_size:
            raise LeaseError(
                f"{world_size} workers with cpus={cpus} are needed at once, and the pool has room for {num_free}: "
                f"{counted(capacity.cpus, 'CPU')} on {counted(len(capacity.machines), 'machine')}.\n"
                f"Give a smaller world_size."
            )
        options = rpc_backend_options or TensorPipeRpcBackendOptions()
        return _Jobs(workers_pool, cpus, _Group(fn, tuple(args), world_size, options, new_secret())).run()


class _Address(NamedTuple):
    """Address of rank 0. A separate type, to distinguish it from reports of the user's function."""

    host: str
    port: int


class _Group(NamedTuple):
    """The function of a group and the settings of its workers, as they are sent to each."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    world_size: int
    options: TensorPipeRpcBackendOptions
    secret: str


class _Jobs:
    """The jobs of one group."""

    def __init__(self, pool: Pool, cpus: int, group: _Group) -> None:
        self._pool = pool
        self._cpus = cpus
        self._group = group
        self._handles: dict[int, JobHandle] = {}
        # (0, address) when rank 0 listens; (rank, None) when the job of a rank has ended.
        self._events: queue.SimpleQueue[tuple[int, _Address | None]] = queue.SimpleQueue()

    def run(self) -> list[Any]:
        cluster = self._pool._cluster_engine
        reachable_host = cluster.hosts[0].address if cluster is not None and cluster.hosts else "127.0.0.1"
        world_size, results = self._group.world_size, dict[int, Any]()
        try:
            self._submit(0, _Address(reachable_host, 0))
            while len(results) < world_size:
                rank, address = self._next_event()
                if address is not None:
                    for other_rank in range(1, world_size):
                        self._submit(other_rank, address)
                else:
                    results[rank] = self._result_of(rank)
                    if len(self._handles) < world_size:  # rank 0 was lost before it reported its address
                        raise results[rank]
        except BaseException:
            self._stop_all()
            raise
        losses = [result for result in results.values() if isinstance(result, WorkerLostError)]
        if losses:
            raise losses[0]
        return [results[rank] for rank in range(world_size)]

    def _next_event(self) -> tuple[int, _Address | None]:
        while True:
            with suppress(queue.Empty):
                return self._events.get(timeout=_POLL_S)  # in slices, so that Ctrl-C is handled

    def _submit(self, rank: int, address: _Address) -> None:
        def on_report(values: object) -> str:
            if type(values) is _Address:  # else ignore a report of the user's function
                self._events.put((rank, values))
            return "CONTINUE"

        needs = self._pool.needs(cpus=self._cpus, on_report=on_report)
        handle = needs.submit(_run_worker, self._group, rank, address)
        assert isinstance(handle, JobHandle), "spawn does not run in a job"
        self._handles[rank] = handle
        handle.add_done_callback(lambda handle: self._events.put((rank, None)))

    def _result_of(self, rank: int) -> Any:
        try:
            return self._handles[rank].result()
        except BaseException as error:
            error.add_note(f"in worker{rank} of {len(self._handles)}")
            if isinstance(error, WorkerLostError):
                return error
            raise

    def _stop_all(self) -> None:
        """Stop all jobs. Blocks until they have ended, or some seconds after the last was killed."""
        for handle in self._handles.values():
            handle.stop(grace_s=_GRACE_S)
        for handle in self._handles.values():
            with suppress(DeadlineExceeded):
                handle.outcome(within_s=2 * _GRACE_S)


def _run_worker(group: _Group, rank: int, address: _Address) -> Any:
    """Run one worker. `address` is that of rank 0; for rank 0 itself, of a host that must be able to reach it."""
    from ..rendezvous.tls import TlsRendezvous

    host, port = (addresses.address_towards(address.host), 0) if rank == 0 else address
    is_here = addresses.is_address_of_this_host(host)
    rendezvous = TlsRendezvous(
        addresses.Address(f"tcp://{host}:{port}", f"spawned:{host}:{port}", host, port, is_here),
        group.secret,
        ports=os.environ.get("FANWISE_PORTS", 0),
        on_open=_report_address if rank == 0 else None,
    )
    starting.start_at(rendezvous, f"worker{rank}", rank, group.world_size, group.options)
    try:
        result = group.fn(rank, *group.args)
    except BaseException:
        starting.shutdown(graceful=False)
        raise
    starting.shutdown()
    return result


def _report_address(host: str, port: int) -> None:
    current().report(_Address(host, port))
