"""The public class `Pool`: runs functions in warm processes on the CPUs and GPUs of this machine or of several.

    with Pool() as pool:
        job = pool.submit(train, 0.1)
        print(job.result())

A pool created inside a job submits jobs that run beside that job, within its lease. All events of jobs are handled on
the pool's event loop thread. Methods may be called on any thread.
"""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from ..base.errors import ClosedError, SecretError
from ..base.nearest import names_nearest_option
from ..base.text import counted
from ..links.hub import Hub
from ..links.shared_secret import FILE_VARIABLE, read_secret
from .backend import Backend, Lifetime, PoolEngine, Running, closed_error, start_ahead
from .contract import Capacity, JobRequest
from .current import NestedHandle, current, in_job
from .devices import find_machine
from .engine import LocalEngine
from .functions import pack
from .handles import JobHandle, OnReport, Options, submit_job
from .leases import Gpu, Ledger, Machine, Resources
from .settings import ClusterSettings, ListenSettings, cluster_of, require_bool, require_int, split_address
from .specs import Packed

if TYPE_CHECKING:
    from .cluster.engine import ClusterEngine


class Submitter:
    """A pool with settings for the jobs that are submitted through it. Created by `Pool.needs`."""

    def __init__(self, pool: "Pool", resources: Resources, options: Options) -> None:
        self._pool = pool
        self._resources = resources
        self._options = options

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> JobHandle | NestedHandle:
        """Submit a call with these settings, like `Pool.submit`."""
        return self._pool._submit(pack(function, args, kwargs), self._resources, self._options)


class Pool:
    """CPUs and GPUs, and warm processes that run functions on them.

    Closing the pool, or leaving its `with` block, ends every job. A warm process is started in the background when a
    pool is created, and kept for a minute for the next pool of this process. If this process dies, so do all others.

    Args:
        seed: combined with the number of each job to its seed; None: a random one.
        cpus: number of CPUs to use, also more than there are; None: all that this process may use. With `listen`, 0
            uses only hosts that join.
        gpus: GPUs to use, named as in CUDA_VISIBLE_DEVICES; None: all that this process may use.
        ray: run jobs on the nodes of a Ray cluster: "auto" or its address, "10.0.0.1:6379". The pool connects on first
            use and starts a host process on every node with CPUs, also on those that join later. A host holds all CPUs
            and GPUs of its node.
        bundles: start a host for each of these instead, where Ray places it: [{"CPU": 4, "GPU": 1}, {"CPU": 4}].
        runtime_env: Ray's `runtime_env`, such as {"working_dir": "."} to send code to the nodes.
        listen: "host:port" of this machine, where other hosts join the pool with `fanwise join`. "0.0.0.0:7070" listens
            on all networks. The pool listens from its first use.
        secret_file: file of `fanwise secret` with the secret that hosts must have; None: FANWISE_SECRET or
            FANWISE_SECRET_FILE.
        start_within_s: timeout in seconds for the first host and, with `ray`, for a replacement when the only node that
            could run a job was lost.
        mps: run jobs that share a GPU concurrently under NVIDIA's Multi-Process Service. Without it, or where it is not
            available, they take turns. Always True with `ray` and `listen`.
        on_oom: "retry_alone": repeat a job that runs out of memory on its share of a GPU once with the whole GPU, when
            the other jobs on it have ended. "fail": do not.

    Attributes:
        seed: the seed in use.

    Raises:
        TypeError, ValueError: unknown or invalid setting.
        SecretError: with `listen`, there is no secret, or others may read its file.
        NotInstalled, ClusterError: on first use, with `ray`: Ray or the cluster cannot be used; with `listen`: the
            address cannot be used, or no host has joined.

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
        runtime_env: Mapping[str, Any] | None = None,
        listen: str | None = None,
        secret_file: str | os.PathLike[str] | None = None,
        start_within_s: float = 60.0,
        mps: bool = True,
        on_oom: Literal["fail", "retry_alone"] = "fail",
    ) -> None:
        require_int("seed", seed, or_none=True)
        require_int("cpus", cpus, least=1 if listen is None else 0, or_none=True)
        require_bool("mps", mps)
        if on_oom not in ("fail", "retry_alone"):
            raise ValueError(f"on_oom must be 'fail' or 'retry_alone', got {on_oom!r}")
        is_list = isinstance(gpus, list | tuple) and all(isinstance(name, str) for name in gpus)
        if gpus is not None and not is_list:
            raise TypeError(f'gpus is a list of names, as ["0", "1"] or their UUIDs, got {gpus!r}')
        self._job = current() if in_job() else None
        self.seed = secrets.randbits(32) if seed is None else seed
        self._cluster: ClusterSettings | ListenSettings | None
        self._cluster = cluster_of(ray, bundles, runtime_env, start_within_s)
        if listen is not None:
            if ray is not None:
                raise ValueError("ray= and listen= cannot be combined: Ray starts the hosts of its pool.")
            self._cluster = ListenSettings(
                *split_address("listen", listen), secret_of(secret_file), float(start_within_s)
            )
        elif secret_file is not None:
            raise ValueError("secret_file is for hosts that join: say Pool(listen='0.0.0.0:7070', secret_file=...).")
        self._on_oom = on_oom
        self._mps = mps
        if self._cluster is not None:
            if ray is not None and (cpus is not None or gpus is not None):
                raise ValueError("cpus and gpus are of this machine; with ray= say bundles=[{'CPU': 4, 'GPU': 1}].")
            if not mps:
                raise ValueError("mps=False is for a pool of this machine; hosts of others use MPS where they can.")
            if on_oom != "fail":
                raise ValueError(f"on_oom={on_oom!r} is for a pool of this machine, not for one with ray= or listen=")
            if self._job is not None:
                raise ClosedError(
                    "a pool on a cluster cannot be made inside a job: jobs of a job run beside it. Use Pool() for them."
                )
        self._machine = Machine(self._job.cpus, 0) if self._job is not None else offer(find_machine(), cpus, gpus)
        self._life = Lifetime(self._make, shares_backend=self._cluster is None)
        if ray is None and self._machine.cpus:
            start_ahead()

    def _make(self, backend: Backend) -> Running:
        if isinstance(self._cluster, ListenSettings):
            from .cluster.listening import ListeningStart

            backend.folder.rmdir()  # not needed, and this process would leave it behind if it were killed
            return ListeningStart(backend.hub, self._cluster, self.seed, self._machine)
        if self._cluster is not None:
            from .cluster.starting import ClusterStart

            return ClusterStart(backend.hub, backend.folder, self._cluster, self.seed)
        retries_alone = self._on_oom == "retry_alone"
        return LocalEngine(backend, seed=self.seed, machine=self._machine, mps=self._mps, retries_alone=retries_alone)

    def capacity(self) -> Capacity:
        """Return this machine, or all hosts now. With `ray` or `listen`, the first use blocks until there is a host.

        >>> Pool(cpus=3).capacity().cpus
        3
        """
        return Capacity((self._machine,)) if self._cluster is None else self._engine.capacity()

    @property
    def machine(self) -> Machine:
        """The largest machine that a job can run on: this one, or the cluster's. Inside a job, its lease."""
        machines = self.capacity().machines
        return max(machines, key=lambda machine: (len(machine.gpus), machine.cpus), default=Machine(0, 0))

    @property
    def _cluster_settings(self) -> Mapping[str, Any]:
        """Arguments for another pool on the same cluster. Empty without `ray`."""
        return self._cluster.as_arguments(os.path.abspath) if isinstance(self._cluster, ClusterSettings) else {}

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> JobHandle | NestedHandle:
        """Run `function(*args, **kwargs)` in its own process on one CPU. Does not block.

        The function is sent by value, with its closure and defaults. The job is queued until its lease is free.

        Raises:
            NotSendableError: the function or an argument cannot be sent.
            LeaseError: the pool cannot provide the resources.
            ClosedError: the pool is closed.
        """
        return self._submit(pack(function, args, kwargs), Resources(), Options())

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
        """Return an object that submits jobs with these settings.

        Args:
            cpus: number of CPUs and threads.
            gpus: number of GPUs; below 1: a share of one GPU's memory, beside other jobs.
            memory: host memory in bytes; 0: unlimited.
            reuse: run in a process that has run such a job before, if possible. It keeps its CUDA context.
            retries: number of repetitions of a job that failed or died.
            number: number of the jobs, from which their seed is derived; None: counted by the pool.
            on_report: called on the pool's thread with the values of each report. Returns "CONTINUE", or "STOP" or
                "PAUSE", which both end the job, or a `Reply` with values for the job. It must not block.

        Raises:
            LeaseError: this pool cannot provide the resources. Inside a job, `submit` raises it.
            TypeError, ValueError: unknown or invalid setting.
        """
        require_int("memory", memory, least=0)
        resources = Resources(cpus=cpus, gpus=gpus, memory_bytes=memory)
        if self._job is None and self._cluster is None:
            Ledger(self._machine, "this pool").check(resources)
        return Submitter(self, resources, Options(number, reuse, retries, on_report))

    def _submit(self, packed: Packed, resources: Resources, options: Options) -> JobHandle | NestedHandle:
        if self._job is not None:
            if self._life.closed:
                raise closed_error()
            if options.reuse or options.retries or options.on_report is not None:
                raise ValueError(
                    "inside a job, needs() takes no reuse, retries or on_report: its jobs end with this job."
                )
            return self._job._submit(packed, resources, options.number)
        request = JobRequest(packed, resources, number=options.number, reuse=options.reuse)
        return submit_job(self._life, request, options)

    @property
    def _engine(self) -> PoolEngine:
        self._life.check_process()
        if self._job is not None:
            raise ClosedError("inside a job only submit and needs may be used; the engine is in the pool's process.")
        return self._life.start()

    @property
    def _hub(self) -> Hub:
        return self._engine.loop

    @property
    def _cluster_engine(self) -> "ClusterEngine | None":
        """The engine if jobs run on several hosts. The first use connects and blocks."""
        from .cluster.engine import ClusterEngine

        engine = self._engine if self._cluster is not None else None
        assert engine is None or isinstance(engine, ClusterEngine), "the engine of a pool with a cluster"
        return engine

    def close(self) -> None:
        """End every job of this pool. Blocks until they are gone. May be called twice.

        Inside a job, only this object is closed. Submitted jobs continue and end with this job.
        """
        self._life.close()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        engine = self._life.engine
        if self._cluster is None:
            machines = f"{counted(self._machine.cpus, 'CPU')}, {counted(len(self._machine.gpus), 'GPU')}"
        else:
            capacity = Capacity(()) if engine is None else engine.capacity()
            hosts, cpus = counted(len(capacity.machines), "host"), counted(capacity.cpus, "CPU")
            machines = f"{self._cluster}: {hosts}, {cpus}, {counted(capacity.gpus, 'GPU')}"
        if self._job is not None:
            return f"<Pool: {machines}, inside job {self._job.id} {self._job.name!r}>"
        if self._life.is_forked:
            state = "of another process"
        elif self._life.closed:
            state = "closed"
        elif engine is None:
            state = "not used yet"
        else:
            running, waiting = engine.counts()
            state = f"{running} running, {waiting} waiting, {engine.finished} finished"
        return f"<Pool: {machines}, seed {self.seed}: {state}>"


def secret_of(file: str | os.PathLike[str] | None) -> str:
    """Return the secret of this file, or else of the environment. Raises `SecretError` if it has none."""
    secret = read_secret(os.environ if file is None else {FILE_VARIABLE: os.fspath(file)})
    if secret is None:
        raise SecretError(
            f"hosts join with a secret, and none was given. Make one with `fanwise secret --file ~/.fanwise-secret`, "
            f"and give its path as secret_file (--secret-file), or in {FILE_VARIABLE}."
        )
    return secret


def offer(machine: Machine, cpus: int | None, gpus: Sequence[str] | None) -> Machine:
    """Return the machine with this number of CPUs and these GPUs, also GPUs that NVML does not know."""
    notes = machine.notes
    if cpus is not None and cpus > machine.cpus:
        notes = (*notes, f"The pool counts {cpus} CPUs, and {machine.cpus} were found: jobs share them and run slower.")
    known = {gpu.visible: gpu for gpu in machine.gpus}
    chosen = machine.gpus
    if gpus is not None:
        chosen = tuple(known.get(name, Gpu(index, name, "", 0, name)) for index, name in enumerate(gpus))
    return Machine(machine.cpus if cpus is None else cpus, machine.memory_bytes, chosen, notes)
