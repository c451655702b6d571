"""The pool, as its users see it: this machine's CPUs and GPUs, and functions that run on them in warm processes.

    with Pool() as pool:
        job = pool.submit(train, 0.1)
        print(job.result())

A pool made inside a job of another pool is that job's own: it starts jobs beside the one that asks, within its lease.
Everything that happens to jobs happens on the pool's hub thread; methods here may be called by any thread.
"""

import logging
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
from .current import CurrentJob, NestedHandle, current, in_job
from .devices import find_machine
from .engine import Engine
from .functions import Packed, pack
from .jobs import Job, Report
from .leases import Machine, Need
from .outcomes import Outcome
from .output import tail
from .specs import How, Surroundings

_log = logging.getLogger(__name__)

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
        pid, how: its process, and how that came to be; None until it is about to call the function.
    """

    def __init__(self, pool: "Pool", call: "_Call") -> None:
        self.name = call.packed.name
        self.id = 0
        self.seed = 0
        self.pid: int | None = None
        self.how: How | None = None
        self._pool = pool
        self._call: _Call | None = call
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
            ClosedError: this process was forked from the one that submitted it, before it ended.
        """
        return self.outcome(within_s).value()

    def outcome(self, within_s: float | None = None) -> Outcome:
        """Block until the job's process is gone; how it ended, without raising."""
        if not self._finished.is_set():
            self._pool._check_process()
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
        """Call `callback(self)` on the pool's thread when the job is done; at once when it is. It must not block."""
        if not self._pool._on_hub(lambda: callback(self) if self.done() else self._callbacks.append(callback)):
            callback(self)

    def stop(self, grace_s: float = 5.0) -> None:
        """Tell the job to end: SIGTERM raises `TrialStopped` in it; SIGKILL follows after `grace_s`. Does not block."""
        self._end(lambda engine, job: engine.stop(job, grace_s))

    def kill(self) -> None:
        """End the job and all it started by SIGKILL, now. Does not block."""
        self._end(lambda engine, job: engine.kill(job))

    def _end(self, how: Callable[[Engine, Job], None]) -> None:
        self._stopped = True
        self._pool._on_hub(lambda: how(self._pool._engine_here, self._job) if self._job is not None else None)

    def output(self) -> tuple[str, str]:
        """The last 64 KiB of its standard output and of its standard error."""
        job = self._job
        return self._output if job is None else _output_of(job)

    # -- on the hub's thread ---------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Raises what the engine raises."""
        call = self._call
        assert call is not None, "kept until the last attempt has ended"
        self._job = self._pool._engine_here.submit(
            call.packed,
            call.packed.arguments,
            call.need,
            self,
            number=call.options.number,
            attempt=self._attempt,
            reuse=call.options.reuse,
            surroundings=call.surroundings,
        )
        self.id, self.seed = self._job.id, self._job.seed

    def on_ready(self, job: Job, pid: int, started_s: float, how: How) -> None:
        self.pid, self.how = pid, how
        self._began.set()

    def on_report(self, report: Report) -> None:
        on_report = self._call.options.on_report if self._call is not None else None
        if on_report is None:
            report.answer("CONTINUE")
            return
        try:
            report.answer(on_report(report.values))
        except Exception as error:
            report.refuse(error)

    def on_outcome(self, job: Job, outcome: Outcome) -> None:
        self._outcome = outcome

    def on_finished(self, job: Job) -> None:
        self._output = _output_of(job)
        if self._tries_again():
            return
        self._job = self._call = None  # whoever keeps the handle shall not keep the arguments and the link
        self._finished.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                _log.exception("a done callback of job %d %r failed", self.id, self.name)

    def _tries_again(self) -> bool:
        assert self._outcome is not None and self._call is not None, "the outcome comes first"
        failed = self._outcome.kind in _FAILED and self._attempt < self._call.options.retries
        if not failed or self._stopped or self._pool._closed:
            return False
        self._attempt += 1
        self._pool._engine_here.retried += 1
        self._submit()
        return True


def _output_of(job: Job) -> tuple[str, str]:
    out, err = (tail(Path(job.output + end), max_bytes=1 << 16, max_lines=2000) for end in (".out", ".err"))
    return out, err


@dataclass(frozen=True, slots=True)
class _Options:
    """What goes with a submit beside the needs."""

    number: int | None = None
    reuse: bool = False
    retries: int = 0
    on_report: Callable[[Any], str] | None = None  # Any: what the job reports


@dataclass(frozen=True, slots=True)
class _Call:
    """All of a submit."""

    packed: Packed
    need: Need
    options: _Options
    surroundings: Surroundings


class Needs:
    """A pool together with what each job submitted through it needs. Made by `Pool.needs`."""

    def __init__(self, pool: "Pool", need: Need, options: _Options) -> None:
        self._pool = pool
        self._need = need
        self._options = options

    def submit(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> JobHandle | NestedHandle:  # Any: user's
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
        self._hub: Hub | None = None
        self._folder = Path()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.machine = Machine(self._job.cpus, 0) if self._job is not None else _limited(find_machine(), cpus)

    # -- submitting ------------------------------------------------------------------------------------------------

    def submit(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> JobHandle | NestedHandle:  # Any: user's
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
            return self._submit_nested(self._job, function, args, kwargs, need, options)
        engine = self._started()
        engine.ledger.check(need)
        handle = JobHandle(self, _Call(pack(function, args, kwargs), need, options, engine.surroundings()))
        trouble: list[BaseException] = []
        accepted = threading.Event()

        def submit() -> None:
            try:
                handle._submit()
            except BaseException as error:
                trouble.append(error)
            accepted.set()

        if not self._on_hub(submit):
            raise _closed_error()
        accepted.wait()
        if trouble:
            raise trouble[0]
        return handle

    def _submit_nested(
        self,
        job: CurrentJob,
        function: Callable[..., Any],  # Any: the user's
        args: tuple[Any, ...],  # Any: the user's
        kwargs: dict[str, Any],  # Any: the user's
        need: Need,
        options: _Options,
    ) -> NestedHandle:
        if self._closed:
            raise _closed_error()
        if options.reuse or options.retries or options.on_report is not None:
            raise ValueError("inside a job, needs() takes no reuse, retries or on_report: its jobs end with this job.")
        return job.submit_needing(
            function,
            args,
            kwargs,
            cpus=need.cpus,
            gpus=need.gpus,
            memory_bytes=need.memory_bytes,
            number=options.number,
        )

    # -- for the layers above --------------------------------------------------------------------------------------

    @property
    def hub(self) -> Hub:
        """The hub of this pool, whose thread runs all callbacks."""
        self._started()
        assert self._hub is not None, "comes with the engine"
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
        """End every job and process of this pool and wait until they are gone. May be called twice.

        Inside a job it only ends the use of this object: the jobs that were submitted go on, and end with this job.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            engine, hub = self._engine, self._hub
        if engine is None or hub is None:
            return
        if hub.is_loop_thread:
            engine.close()
        else:
            ended = threading.Event()
            hub.call_soon(engine.close)
            hub.call_soon(ended.set)  # runs whatever becomes of the call before it
            ended.wait()
        hub.close()
        engine.crew.wait_closed()
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

    def _on_hub(self, call: Callable[[], None]) -> bool:
        """Run `call` on the hub's thread, before the pool closes. False when it is closed."""
        self._check_process()
        with self._lock:
            if self._closed or self._hub is None:
                return False
            self._hub.call_soon(call)
            return True

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(
                f"this pool belongs to process {self._pid}; process {os.getpid()} was forked from it and cannot use it."
            )

    def _started(self) -> Engine:
        """The engine, made at first use: a pool that is never used starts no process."""
        self._check_process()
        if self._job is not None:
            raise ClosedError("inside a job only submit and needs may be used; the engine is in the pool's process.")
        with self._lock:
            if self._closed:
                raise _closed_error()
            if self._engine is None:
                self._hub = Hub(name="pool")
                self._folder = private_folder()
                self._engine = Engine(self._hub, self._folder, new_key(), seed=self.seed, machine=self.machine)
                self._hub.start()
            return self._engine


def _closed_error() -> ClosedError:
    return ClosedError("this pool is closed. Make a new one.")


def _limited(machine: Machine, cpus: int | None) -> Machine:
    if cpus is None:
        return machine
    if cpus < 1:
        raise ValueError(f"cpus must be at least 1, got {cpus}")
    return Machine(cpus, machine.memory_bytes, machine.gpus, machine.notes)
