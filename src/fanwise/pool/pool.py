"""The pool, as its users see it: this machine's CPUs and GPUs, and functions that run on them in warm processes.

    with Pool() as pool:
        job = pool.submit(train, 0.1)
        print(job.result())

A pool made inside a job of another pool is that job's own: it starts jobs beside the one that asks, within its lease.
Everything that happens to jobs happens on the pool's hub thread; methods here may be called by any thread.
"""

import os
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..base.errors import ClosedError, DeadlineExceeded
from ..links import Hub, new_key, private_folder
from .current import NestedHandle, current, in_job
from .devices import find_machine
from .engine import Engine, Job, Report
from .functions import Packed, pack
from .leases import Machine, Need
from .outcomes import Outcome
from .output import tail
from .specs import How

# Failures that say nothing against the function itself: `retries=` repeats these and exceptions alike.
_FAILED = frozenset(("exception", "exit", "signal", "out-of-memory", "lost"))


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool has done so far."""

    jobs_finished: int
    jobs_retried: int
    started_by_fork: int
    started_in_spare: int
    started_by_reuse: int
    connections_refused: int


class JobHandle:
    """A submitted job.

    Attributes:
        id: the pool's number for it; a retry gets a new one.
        seed: what random, numpy and torch are seeded with in its process.
    """

    def __init__(self, pool: "Pool", packed: Packed, need: Need, options: "_Options") -> None:
        self.name = packed.name
        self.id = 0
        self.seed = 0
        self.pid: int | None = None
        self.how: How | None = None
        self._pool = pool
        self._packed = packed
        self._need = need
        self._options = options
        self._attempt = 0
        self._job: Job | None = None
        self._outcome: Outcome | None = None
        self._finished = threading.Event()
        self._began = threading.Event()
        self._callbacks: list[Callable[[JobHandle], None]] = []
        self._output = ("", "")
        self._stopped = False

    def result(self, within_s: float | None = None) -> Any:  # Any: the function's result
        """Block until the job's process is gone; its result, or what it raised, in the original type.

        Raises:
            DeadlineExceeded: it has not ended within `within_s` seconds; it goes on.
            WorkerLostError: it died without a result; the text says how.
            TrialStopped: it was stopped.
        """
        return self.outcome(within_s).value()

    def outcome(self, within_s: float | None = None) -> Outcome:
        """Block until the job's process is gone; how it ended, without raising."""
        if not self._finished.wait(within_s):
            raise DeadlineExceeded(f"job {self.id} {self.name!r} has not ended within {within_s} s; it goes on.")
        assert self._outcome is not None, "finished jobs have an outcome"
        return self._outcome

    def done(self) -> bool:
        """Whether the job's process is gone."""
        return self._finished.is_set()

    def wait_began(self, within_s: float | None = None) -> bool:
        """Block until the job's process is about to call the function; False when the time ran out."""
        return self._began.wait(within_s)

    def add_done_callback(self, callback: "Callable[[JobHandle], None]") -> None:
        """Call `callback(self)` on the pool's thread when the job is done. It must not block."""
        self._pool._call(lambda: self._callbacks.append(callback) if not self.done() else callback(self))

    def stop(self, grace_s: float = 5.0) -> None:
        """Tell the job to end: SIGTERM raises `TrialStopped` in it; SIGKILL follows after `grace_s`. Does not block."""
        self._stopped = True
        self._pool._call(lambda: self._job is not None and self._pool._engine_here.stop(self._job, grace_s))

    def kill(self) -> None:
        """End the job and all it started by SIGKILL, now. Does not block."""
        self._stopped = True
        self._pool._call(lambda: self._job is not None and self._pool._engine_here.kill(self._job))

    def output(self) -> tuple[str, str]:
        """The last 64 KiB of its standard output and of its standard error."""
        return self._output if self.done() else self._read_output()

    def _read_output(self) -> tuple[str, str]:
        if self._job is None:
            return ("", "")
        out, err = (tail(Path(self._job.output + end), max_bytes=1 << 16, max_lines=2000) for end in (".out", ".err"))
        return out, err

    def _submit(self) -> None:
        options = self._options
        job = self._pool._engine_here.submit(
            self._packed,
            self._packed.arguments,
            self._need,
            self,
            number=options.number,
            attempt=self._attempt,
            reuse=options.reuse,
        )
        self._job = job
        self.id, self.seed = job.id, job.seed

    # -- what the engine tells, on the hub's thread ----------------------------------------------------------------

    def on_ready(self, job: Job, pid: int, started_s: float, how: How) -> None:
        self.pid, self.how = pid, how
        self._began.set()

    def on_report(self, report: Report) -> None:
        if self._options.on_report is None:
            report.answer("CONTINUE")
            return
        try:
            report.answer(self._options.on_report(report.values))
        except Exception as error:
            report.refuse(error)

    def on_outcome(self, job: Job, outcome: Outcome) -> None:
        self._outcome = outcome
        self._job = self._job or job
        self._output = self._read_output()

    def on_finished(self, job: Job) -> None:
        assert self._outcome is not None, "the outcome comes first"
        if self._outcome.kind in _FAILED and self._attempt < self._options.retries and not self._stopped:
            self._attempt += 1
            self._pool._engine_here.retried += 1
            self._submit()
            return
        self._finished.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


@dataclass(frozen=True, slots=True)
class _Options:
    """What goes with a submit beside the needs."""

    number: int | None = None
    reuse: bool = False
    retries: int = 0
    on_report: Callable[[Any], str] | None = None  # Any: what the job reports


class Needs:
    """A pool together with what each job submitted through it needs. Made by `Pool.needs`."""

    def __init__(self, pool: "Pool", need: Need, options: _Options) -> None:
        self._pool = pool
        self._need = need
        self._options = options

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> JobHandle | NestedHandle:  # Any: user's
        """As `Pool.submit`, with these needs."""
        return self._pool._submit(function, args, kwargs, self._need, self._options)


class Pool:
    """What a person has: the CPUs and GPUs of this machine, and processes that are warm before they are needed.

    Args:
        seed: all jobs' seeds are made from it and the number of the job; None draws one (see `seed`).
        cpus: count this many CPUs, fewer or more than there are; None: all this process may use.

    Attributes:
        seed: the seed in use, so that a run can be repeated.
        machine: what was found; a job of a pool finds its lease here.

    Raises:
        ValueError: `cpus` is below 1.

    Closing (or the end of a `with` block) ends every job and process. If this process dies instead, so do they.

    >>> with Pool(cpus=1, seed=7) as pool:
    ...     pool.submit(divmod, 7, 2).result(within_s=60)
    (3, 1)
    """

    def __init__(self, *, seed: int | None = None, cpus: int | None = None) -> None:
        self._job = current() if in_job() else None
        self.seed = secrets.randbits(32) if seed is None else seed
        self._closed = False
        self._engine: Engine | None = None
        if self._job is not None:
            self.machine = Machine(self._job.cpus, 0)
            return
        self.machine = _limited(find_machine(), cpus)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._hub = Hub(name="pool")
        self._folder = private_folder()

    # -- submitting ------------------------------------------------------------------------------------------------

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> JobHandle | NestedHandle:  # Any: user's
        """Run `function(*args, **kwargs)` in a process of its own, on one CPU. Returns at once.

        The function travels by value, with its closure and defaults; what cannot travel is named by a
        `NotSendableError` here, not in the worker. The job is queued until its lease is free.
        """
        return self._submit(function, args, kwargs, Need(), _Options())

    def needs(
        self,
        *,
        cpus: int = 1,
        gpus: int | float = 0,
        memory: int = 0,
        reuse: bool = False,
        retries: int = 0,
        number: int | None = None,
        on_report: Callable[[Any], str] | None = None,  # Any: what the job reports
    ) -> Needs:
        """What each job submitted through the returned object needs.

        Args:
            cpus: CPUs, and so threads.
            gpus: GPUs; below 1 a share of one GPU's memory, beside other jobs.
            memory: bytes of host memory, 0: not limited.
            reuse: run in a process that has run such a job before (keeps the CUDA context), if there is one.
            retries: repeat a job that failed or died so many times.
            number: number the jobs with this, instead of counting; their seed is made from it.
            on_report: called on the pool's thread with what a job reports; returns "CONTINUE" or "STOP".

        Raises:
            LeaseError: this machine can never give it.
        """
        need = Need(cpus=cpus, gpus=gpus, memory_bytes=memory)
        if retries < 0:
            raise ValueError(f"retries must be at least 0, got {retries}")
        return Needs(self, need, _Options(number, reuse, retries, on_report))

    def _submit(
        self,
        function: Callable[..., Any],  # Any: the user's
        args: tuple[Any, ...],  # Any: the user's
        kwargs: dict[str, Any],  # Any: the user's
        need: Need,
        options: _Options,
    ) -> JobHandle | NestedHandle:
        if self._job is not None:
            return self._job.submit_needing(
                function,
                args,
                kwargs,
                cpus=need.cpus,
                gpus=need.gpus,
                memory_bytes=need.memory_bytes,
                number=options.number,
            )
        engine = self._started()
        engine.ledger.check(need)
        handle = JobHandle(self, pack(function, args, kwargs), need, options)
        accepted = threading.Event()

        def submit() -> None:
            handle._submit()
            accepted.set()

        self._call(submit)
        accepted.wait()
        return handle

    # -- for the layers above --------------------------------------------------------------------------------------

    @property
    def hub(self) -> Hub:
        """The hub of this pool, whose thread runs all callbacks."""
        self._started()
        return self._hub

    @property
    def engine(self) -> Engine:
        """The engine of this pool; to be used on the hub's thread only."""
        return self._started()

    # -- the end ---------------------------------------------------------------------------------------------------

    def stats(self) -> PoolStats:
        """What this pool has done so far."""
        engine = self._engine
        started: Counter[How] = engine.crew.started if engine else Counter()
        return PoolStats(
            jobs_finished=engine.finished if engine else 0,
            jobs_retried=engine.retried if engine else 0,
            started_by_fork=started["fork"],
            started_in_spare=started["spare"],
            started_by_reuse=started["reuse"],
            connections_refused=engine.crew.refused.total() if engine else 0,
        )

    def close(self) -> None:
        """End every job and process of this pool and wait until they are gone. May be called twice."""
        if self._closed or self._job is not None or self._pid != os.getpid():
            return
        self._closed = True
        engine = self._engine
        if engine is not None:
            self._hub.call_soon(engine.close)
            self._hub.close()
            engine.crew.wait_closed()
        else:
            self._hub.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _engine_here(self) -> Engine:
        assert self._engine is not None, "jobs exist only when the engine does"
        return self._engine

    def _call(self, call: Callable[[], object]) -> None:
        if not self._closed:
            self._hub.call_soon(lambda: call() and None)

    def _started(self) -> Engine:
        """The engine, made at first use: a pool that is never used starts no process."""
        if self._job is not None:
            raise ClosedError("inside a job only submit and needs may be used; the engine is in the pool's process.")
        if self._closed:
            raise ClosedError("this pool is closed. Make a new one.")
        self._hub.check_usable()
        with self._lock:
            if self._engine is None:
                self._engine = Engine(self._hub, self._folder, new_key(), seed=self.seed, machine=self.machine)
                self._hub.start()
        return self._engine


def _limited(machine: Machine, cpus: int | None) -> Machine:
    if cpus is None:
        return machine
    if cpus < 1:
        raise ValueError(f"cpus must be at least 1, got {cpus}")
    return Machine(cpus, machine.memory_bytes, machine.gpus, machine.notes)

