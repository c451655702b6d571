"""The pool, as its users see it: CPUs and GPUs of this machine or of a cluster, and functions that run on them, warm.

    with Pool() as pool:
        job = pool.submit(train, 0.1)
        print(job.result())

A pool made inside a job of another pool is that job's own: it starts jobs beside the one that asks, within its lease.
Everything that happens to jobs happens on the pool's hub thread; methods here may be called by any thread.
"""

import os
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from ..base.errors import ClosedError
from ..base.nearest import names_nearest_option
from ..base.text import counted
from ..links.hub import Hub
from .backend import Backend, start_ahead, take
from .cluster.settings import cluster_of
from .contract import Capacity
from .current import CurrentJob, NestedHandle, current, in_job
from .devices import find_machine
from .functions import pack
from .handles import Call, JobHandle, OnReport, Options, submit_call
from .leases import Gpu, Ledger, Machine, Resources
from .lifetime import Lifetime, Local, PoolEngine, Running, closed_error
from .settings import require_bool, require_int, require_int_or_none
from .specs import How

if TYPE_CHECKING:
    from .cluster.engine import ClusterEngine


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool has done so far."""

    jobs_finished: int
    jobs_retried: int
    started_by_fork: int
    started_in_spare: int
    started_by_reuse: int
    connections_refused: int


class Submitter:
    """A pool together with what each job submitted through it needs. Made by `Pool.needs`."""

    def __init__(self, pool: "Pool", resources: Resources, options: Options) -> None:
        self._pool = pool
        self._resources = resources
        self._options = options

    def submit(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> JobHandle | NestedHandle:  # Any: user's
        """As `Pool.submit`, with these resources."""
        return self._pool._submit(function, args, kwargs, self._resources, self._options)


class Pool:
    """What a person has: the CPUs and GPUs of this machine, and processes that are warm before they are needed.

    Args:
        seed: all jobs' seeds are made from it and the number of the job; None draws one (see `seed`).
        cpus: count this many CPUs, fewer or more than there are; None: all this process may use.
        gpus: count these GPUs, each as CUDA_VISIBLE_DEVICES names it, and no others; None: all this process may use.
        ray: run jobs on the nodes of a Ray cluster instead: "auto" or its address, "10.0.0.1:6379". Each node that has
            CPUs, also one that comes later, has a host that takes all its CPUs and GPUs. The first use connects.
        bundles: have a host for each of these instead, wherever Ray places it: [{"CPU": 4, "GPU": 1}, {"CPU": 4}].
        runtime_env: Ray's, as {"working_dir": "."} for code that the nodes do not have.
        start_within_s: how long to wait for hosts; and later for one that could run a job at all, when it was lost.
        mps: run jobs that share a GPU under NVIDIA's Multi-Process Service, at the same time. Without it, or where it
            cannot be used, they take turns. Always True with `ray`.
        on_oom: "retry_alone": a job that runs out of memory on its share of a GPU is repeated once with the whole GPU,
            when the other jobs on it have ended. "fail": it is not.

    Attributes:
        seed: the seed in use, so that a run can be repeated.
        machine: what was found; a job of a pool finds its lease here. With `ray`, the largest of its hosts' machines.

    Raises:
        TypeError, ValueError: an unknown setting, or one that makes no sense.
        NotInstalled, ClusterError: on first use, with `ray`: Ray is not there, or its cluster cannot be used.

    Closing (or the end of a `with` block) ends every job. The warm process, which is started in the background when a
    pool is made, is kept for the next pool of this process for a minute. If this process dies, so does everything.

    >>> with Pool(cpus=1, seed=7) as pool:
    ...     pool.submit(divmod, 7, 2).result(within_s=60)
    (3, 1)
    """

    @names_nearest_option
    def __init__(
        self,
        *,
        seed: int | None = None,
        cpus: int | None = None,
        gpus: Sequence[str] | None = None,
        ray: str | None = None,
        bundles: Sequence[Mapping[str, float]] | None = None,
        runtime_env: Mapping[str, Any] | None = None,  # Any: Ray's
        start_within_s: float = 60.0,
        mps: bool = True,
        on_oom: Literal["fail", "retry_alone"] = "fail",
    ) -> None:
        require_int_or_none("seed", seed)
        require_int_or_none("cpus", cpus, least=1)
        require_bool("mps", mps)
        if on_oom not in ("fail", "retry_alone"):
            raise ValueError(f"on_oom must be 'fail' or 'retry_alone', got {on_oom!r}")
        is_list = isinstance(gpus, list | tuple) and all(isinstance(each, str) for each in gpus)
        if gpus is not None and not is_list:
            raise TypeError(f'gpus is a list of names, as ["0", "1"] or their UUIDs, got {gpus!r}')
        self._job = current() if in_job() else None
        self.seed = secrets.randbits(32) if seed is None else seed
        self._cluster = cluster_of(ray, bundles, runtime_env, start_within_s)
        if self._cluster is not None and (cpus is not None or gpus is not None):
            raise ValueError("cpus and gpus are of this machine; with ray= say bundles=[{'CPU': 4, 'GPU': 1}].")
        if self._cluster is not None and not mps:
            raise ValueError("mps=False is for a pool of this machine; nodes of a cluster use MPS where they can.")
        if self._cluster is not None and on_oom != "fail":
            raise ValueError(f"on_oom={on_oom!r} is for a pool of this machine, not for one with ray=")
        self._on_oom = on_oom
        self._mps = mps
        if self._cluster is not None and self._job is not None:
            raise ClosedError(
                "a pool on a cluster cannot be made inside a job: jobs of a job run beside it. Pool() submits those."
            )
        self._machine = Machine(self._job.cpus, 0) if self._job is not None else _counting(find_machine(), cpus, gpus)
        if self._cluster is not None:
            self._life = Lifetime(self._make_on_cluster)
            return
        self._life = Lifetime(self._make, take)
        start_ahead()

    def _make(self, backend: Backend) -> Running:
        retries_alone = self._on_oom == "retry_alone"
        return Local(
            backend,
            seed=self.seed,
            machine=self._machine,
            mps=self._mps,
            retries_alone=retries_alone,
            keeps=True,
        )

    def _make_on_cluster(self, backend: Backend) -> Running:
        assert self._cluster is not None, "made for one"
        from .cluster.starting import ClusterStart

        return ClusterStart(backend.hub, backend.folder, self._cluster, self.seed)

    def capacity(self) -> Capacity:
        """What there is for jobs: this machine, or those of the cluster's hosts now. With `ray` the first use connects.

        >>> Pool(cpus=3).capacity().cpus
        3
        """
        return Capacity((self._machine,)) if self._cluster is None else self._started().capacity()

    @property
    def machine(self) -> Machine:
        """What one job can have at most."""
        machines = self.capacity().machines
        return max(machines, key=lambda machine: (len(machine.gpus), machine.cpus), default=Machine(0, 0))

    @property
    def cluster_settings(self) -> Mapping[str, Any]:  # Any: JSON
        """What it was told of its cluster, for another pool there: `Pool(**pool.cluster_settings)`; empty: none.

        >>> dict(Pool(ray="10.0.0.1:6379", bundles=[{"CPU": 4}]).cluster_settings)
        {'ray': '10.0.0.1:6379', 'bundles': [{'CPU': 4.0}], 'runtime_env': None, 'start_within_s': 60.0}
        """
        return {} if self._cluster is None else self._cluster.as_arguments(os.path.abspath)

    # -- submitting ------------------------------------------------------------------------------------------------

    def submit(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> JobHandle | NestedHandle:  # Any: user's
        """Run `function(*args, **kwargs)` in a process of its own, on one CPU. Returns at once.

        The function travels by value, with its closure and defaults; what cannot travel is named by a
        `NotSendableError` here, not in the worker. The job is queued until its lease is free.
        """
        return self._submit(function, args, kwargs, Resources(), Options())

    @names_nearest_option
    def needs(
        self,
        *,
        cpus: int = 1,
        gpus: int | float = 0,
        memory: int = 0,
        reuse: bool = False,
        retries: int = 0,
        number: int | None = None,
        on_report: OnReport | None = None,
    ) -> Submitter:
        """What each job submitted through the returned object needs.

        Args:
            cpus: CPUs, and so threads.
            gpus: GPUs; below 1 a share of one GPU's memory, beside other jobs.
            memory: bytes of host memory, 0: not limited.
            reuse: run in a process that has run such a job before (keeps the CUDA context), if there is one.
            retries: repeat a job that failed or died so many times.
            number: number the jobs with this, instead of counting; their seed is made from it.
            on_report: called on the pool's thread with what a job reports; returns "CONTINUE", or "STOP" or "PAUSE",
                which both end the job, or a `Reply` with something for the job to know.

        Raises:
            LeaseError: this pool can never give it; says what there is. Inside a job `submit` raises it.
            TypeError, ValueError: an unknown setting, or one that makes no sense.
        """
        require_int("memory", memory, least=0)
        resources = Resources(cpus=cpus, gpus=gpus, memory_bytes=memory)
        if self._job is None:
            self._check(resources)
        return Submitter(self, resources, Options(number, reuse, retries, on_report))

    def _check(self, resources: Resources) -> None:
        """Raise LeaseError for what it can never give; a cluster is asked by the submit."""
        if self._cluster is None:
            Ledger(self._machine, "this pool").check(resources)

    def _submit(
        self,
        function: Callable[..., Any],  # Any: the user's
        args: tuple[Any, ...],  # Any: the user's
        kwargs: dict[str, Any],  # Any: the user's
        resources: Resources,
        options: Options,
    ) -> JobHandle | NestedHandle:
        if self._job is not None:
            return self._submit_nested(self._job, function, args, kwargs, resources, options)
        self._check(resources)
        engine = self._started()
        call = Call(pack(function, args, kwargs), resources, options, engine.runtime_environment())
        return submit_call(self._life, call)

    def _submit_nested(
        self,
        job: CurrentJob,
        function: Callable[..., Any],  # Any: the user's
        args: tuple[Any, ...],  # Any: the user's
        kwargs: dict[str, Any],  # Any: the user's
        resources: Resources,
        options: Options,
    ) -> NestedHandle:
        if self._life.closed:
            raise closed_error()
        if options.reuse or options.retries or options.on_report is not None:
            raise ValueError("inside a job, needs() takes no reuse, retries or on_report: its jobs end with this job.")
        return job.submit_needing(
            function,
            args,
            kwargs,
            cpus=resources.cpus,
            gpus=resources.gpus,
            memory_bytes=resources.memory_bytes,
            number=options.number,
        )

    # -- for the layers above --------------------------------------------------------------------------------------

    @property
    def hub(self) -> Hub:
        """The hub of this pool, whose thread runs all callbacks."""
        self._started()
        assert self._life.hub is not None, "comes with the engine"
        return self._life.hub

    @property
    def engine(self) -> PoolEngine:
        """The engine of this pool; to be used on the hub's thread only."""
        return self._started()

    @property
    def cluster(self) -> "ClusterEngine | None":
        """The engine, where jobs run on the hosts of a cluster. The first use connects."""
        from .cluster.engine import ClusterEngine

        engine = self._started() if self._cluster is not None else None
        assert engine is None or isinstance(engine, ClusterEngine), "such pools have no other"
        return engine

    # -- the end ---------------------------------------------------------------------------------------------------

    def stats(self) -> PoolStats:
        """What this pool has done so far."""
        engine = self._life.engine
        started: Counter[How] = engine.started if engine else Counter()
        return PoolStats(
            jobs_finished=engine.finished if engine else 0,
            jobs_retried=self._life.retried,
            started_by_fork=started["fork"],
            started_in_spare=started["spare"],
            started_by_reuse=started["reuse"],
            connections_refused=engine.connections_refused if engine else 0,
        )

    def close(self) -> None:
        """End every job of this pool and wait until they are gone. May be called twice.

        Inside a job it only ends the use of this object: the jobs that were submitted go on, and end with this job.
        """
        self._life.close()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        has = self._has()
        if self._job is not None:
            return f"<Pool: {has}, inside job {self._job.id} {self._job.name!r}>"
        return f"<Pool: {has}, seed {self.seed}: {self._state()}>"

    def _has(self) -> str:
        if self._cluster is None:
            return f"{counted(self._machine.cpus, 'CPU')}, {counted(len(self._machine.gpus), 'GPU')}"
        there = Capacity(()) if self._life.engine is None else self._life.engine.capacity()
        hosts = counted(len(there.machines), "host")
        return f"ray {self._cluster.address}: {hosts}, {counted(there.cpus, 'CPU')}, {counted(there.gpus, 'GPU')}"

    def _state(self) -> str:
        if self._life.is_forked:
            return "of another process"
        if self._life.closed:
            return "closed"
        if self._life.engine is None:
            return "not used yet"
        running, waiting = self._life.engine.counts()
        return f"{running} running, {waiting} waiting, {self._life.engine.finished} finished"

    def _started(self) -> PoolEngine:
        """Return the engine, which is made at first use."""
        self._life.check_process()
        if self._job is not None:
            raise ClosedError("inside a job only submit and needs may be used; the engine is in the pool's process.")
        return self._life.start()


def _counting(machine: Machine, cpus: int | None, gpus: Sequence[str] | None) -> Machine:
    """The machine as if it had so many CPUs, and these GPUs. One that NVML does not know is taken as it is named."""
    notes = machine.notes
    if cpus is not None and cpus > machine.cpus:
        notes = (*notes, f"The pool counts {cpus} CPUs, and {machine.cpus} were found: jobs share them and run slower.")
    known = {gpu.visible: gpu for gpu in machine.gpus}
    chosen = machine.gpus
    if gpus is not None:
        chosen = tuple(known.get(name, Gpu(index, name, "", 0, name)) for index, name in enumerate(gpus))
    return Machine(machine.cpus if cpus is None else cpus, machine.memory_bytes, chosen, notes)
