"""The engine of a local pool: which job runs where and when, from submit to its end. Runs on the hub's thread only.

    submit --> backlog --lease free--> worker set starts a process --> ready, reports --> done --> exited --> lease back
                          \\-> an idle reused worker of the same resources takes it at once

It joins two quiet books - `JobTree` (who started whom), `Ledger` (leases) - with the processes of the worker set. Why
a job died is found out in `endings`. Everything that it learns comes as a message or an exit, in either order.
Jobs of the user and jobs that jobs submit are the same here: the latter have a parent and take their lease from its.

Invariant: a job that has finished is in no table here, and an outcome is told once, before the end.
"""

import logging
import math
import pickle
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..base.errors import ClosedError, LeaseError
from ..links.link import Link, Request
from ..links.peers import Ending
from .backend import Backend
from .backlog import Backlog
from .contract import Capacity, JobEvents, JobRequest, Outcome, Output, Ready, Reply
from .contract import Ending as HowToEnd
from .contract import Job as AnyJob
from .devices import find_machine
from .endings import as_gpu_fault, death_of, has_cuda_error, is_gpu_oom, never_began, remove_output
from .interpreters import after_turns
from .jobs import Job, NestedEvents, Report, Worker
from .leased_workers import LeasedWorkers
from .leases import Ledger, Machine, Resources
from .leftovers import GRACE_S
from .outcomes import end_of_stderr, exception_outcome
from .runtime_environment import look
from .seeds import job_seed
from .specs import How, NestedJob, Packed, RuntimeEnvironment
from .tree import End, JobTree, Order

_log = logging.getLogger(__name__)

# What the jobs of a job get to end, when that one has ended.
_NESTED_GRACE_S = 1.0

# After so long a job that was told to end, and has not, is told once more.
_AGAIN_S = 1.0

# Jobs that share a GPU and fail on it within this time may have failed by one fault.
_TOGETHER_S = 5.0


class LocalEngine:
    """Jobs in processes of this machine; an engine as `contract` says."""

    def __init__(
        self,
        backend: Backend,
        *,
        seed: int,
        machine: Machine | None = None,
        mps: bool = True,
        retries_alone: bool = False,
    ) -> None:
        self.machine = machine or find_machine()
        self.seed = seed
        self.finished = 0
        self.loop = hub = backend.hub
        self._folder = backend.folder
        self.ledger = Ledger(self.machine, "this pool")
        self._tree = JobTree()
        self._jobs: dict[int, Job] = {}
        self._backlog: Backlog[Job] = Backlog()
        self._unsettled: set[Job] = set()
        self._cuda_errors: dict[str, float] = {}  # when the last job that shared a GPU failed on it
        self._last_id = 0
        self._scheduling = False
        self._schedule_again = False
        self._closed = False
        self._retries_alone = retries_alone
        self.worker_set = backend.worker_set
        self._workers = LeasedWorkers(hub, self.worker_set)
        backend.on_hub(lambda: self.worker_set.attach(self, self.machine.gpus, mps=mps))
        self.started: Counter[How] = self.worker_set.started  # how the processes of jobs came to be
        self._refused_before = self.worker_set.num_refused

    def capacity(self) -> Capacity:
        """What there is on this machine. May be called by any thread."""
        return Capacity((self.machine,))

    def prepare(self, packed: Packed) -> None:
        """Begin to load a function in the warm process before its first job comes."""
        self.worker_set.warm_up(packed)

    # -- submitting ------------------------------------------------------------------------------------------------

    def submit(self, request: JobRequest, events: JobEvents) -> Job:
        """Queue a job, see `contract.Engine`."""
        return self._submit(request, events, None)

    def _submit(self, request: JobRequest, events: JobEvents, parent: int | None) -> Job:
        if self._closed:
            raise ClosedError("this pool is closed. Make a new one.")
        self._ledger_of(parent).check(request.resources)
        job_id = self._last_id + 1
        number = job_id - 1 if request.number is None else request.number
        job = Job(
            job_id,
            request,
            events,
            number,
            job_seed(self.seed if request.seed is None else request.seed, number, request.attempt),
            _arguments_of(request),
            request.output or str(self._folder / f"job-{job_id}"),
            request.runtime_environment or self.runtime_environment(),
            parent,
        )
        self._last_id = job_id
        self._jobs[job_id] = job
        self._backlog.append(parent, job)
        self._obey(self._tree.add(job_id, parent))
        self._schedule()
        return job

    def runtime_environment(self) -> RuntimeEnvironment:
        """Those of this process now, as jobs are told them. May be called by any thread."""
        return look(self.worker_set.environment)

    @property
    def connections_refused(self) -> int:
        """How many connections were closed because they did not prove themselves."""
        return self.worker_set.num_refused - self._refused_before

    def counts(self) -> tuple[int, int]:
        """How many jobs run, and how many wait to begin. May be called by any thread."""
        jobs = list(self._jobs.values())
        running = sum(job.begun for job in jobs)
        return running, len(jobs) - running

    # -- ending ----------------------------------------------------------------------------------------------------

    def end(self, job: AnyJob, how: HowToEnd, *, grace_s: float | None = None) -> None:
        """End a job, see `contract.Engine`."""
        own = self._jobs.get(job.id)
        if own is not job or own is None:
            return
        if how == "kill":
            self._kill(own)
        else:
            self._terminate(own, grace_s)

    def output(self, job: AnyJob) -> Output:
        """What a job printed last. May be called by any thread; reads two files."""
        assert isinstance(job, Job), "a job of this engine"
        return job.printed()

    def _terminate(self, job: Job, grace_s: float | None) -> None:
        """SIGTERM, and SIGKILL when it still lives `grace_s` later; one that has no process yet never gets one.

        It is sent once more: one that came just before a call that blocks is seen by Python when that has returned,
        unless another interrupts it. A job that has seen the first is not disturbed by the second.
        """
        if job.asked is None:
            job.asked = "terminate"
            job.again_s = self.loop.now_s() + _AGAIN_S
            if self._signal_or_drop(job, signal.SIGTERM):
                self._arm(job)
        if grace_s is not None and job.id in self._jobs and job.asked == "terminate" and job.outcome is None:
            until_s = self.loop.now_s() + grace_s
            if job.until_s is None or until_s < job.until_s:
                job.until_s = until_s
                self._arm(job)

    def _arm(self, job: Job) -> None:
        """For what comes next to a job that was told to end: to be told again, or to be killed."""
        moments = [moment_s for moment_s in (job.again_s, job.until_s) if moment_s is not None]
        job.set_timer(self.loop.call_at(min(moments), lambda: self._insist(job)) if moments else None)

    def _insist(self, job: Job) -> None:
        """It has not ended yet."""
        if job.until_s is not None and self.loop.now_s() >= job.until_s:
            self._kill(job)
        elif job.asked == "terminate":
            job.again_s = None
            if job.worker is not None:
                self.worker_set.signal(job.worker.id, job.worker.link, signal.SIGTERM)
            self._arm(job)

    def _kill(self, job: Job) -> None:
        """SIGKILL, now."""
        if job.asked != "kill":
            first = job.asked is None
            job.asked = "kill"
            if first or job.worker is not None:
                self._signal_or_drop(job, signal.SIGKILL)

    def _signal_or_drop(self, job: Job, number: int) -> bool:
        dropped = self._backlog.remove(job.parent, job) or (
            job.worker is not None and job.worker.link is None and self.worker_set.cancel(job.worker.id)
        )
        if dropped:
            # Later in this turn: whoever stops it may be in the middle of its own book-keeping.
            self.loop.call_soon(lambda: self._drop(job))
        elif job.worker is not None:
            self.worker_set.signal(job.worker.id, job.worker.link, number)
        return not dropped

    def _drop(self, job: Job) -> None:
        self._never_began(job, never_began(job))

    def _never_began(self, job: Job, outcome: Outcome) -> None:
        """It has no process and will not get one."""
        if job.id not in self._jobs:
            return
        if job.worker is not None:
            self._workers.gone(job.worker.id)
        self._set_outcome(job, outcome)
        self._obey(self._tree.reaped(job.id))

    # -- scheduling ------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Start what can be started. What is asked for meanwhile is looked at when this is done."""
        self._schedule_again = True
        if self._scheduling or self._closed:
            return
        self._scheduling = True
        try:
            while self._schedule_again:
                self._schedule_again = False
                for parent, _ in self._backlog.heads():
                    while (job := self._backlog.head(parent)) is not None and self._try_start(job):
                        pass
        finally:
            self._scheduling = False

    def _ledger_of(self, parent: int | None) -> Ledger:
        if parent is None:
            return self.ledger
        above = self._jobs[parent]
        assert above.worker is not None, "a job that submits jobs is running"
        if above.inner is None:
            above.inner = Ledger.within(above.worker.lease)
        return above.inner

    def _try_start(self, job: Job) -> bool:
        if not (job.request.reuse and self._workers.hand_over(job)) and not self._workers.start(
            job, self._ledger_of(job.parent)
        ):
            return False
        self._backlog.remove(job.parent, job)
        return True

    def _next(self, job: Job, request: Request) -> None:
        """A reused worker has ended a job and asks for another."""
        worker = job.worker
        if worker is None or job.outcome is None or job.asked is not None:
            request.answer(None)  # its timer runs: it leaves by itself or is killed
            return
        worker.set_timer(None)
        worker.request = request
        self._obey(self._tree.reaped(job.id))
        self._schedule()

    # -- what the worker set tells ---------------------------------------------------------------------------------

    def on_started(self, job_id: int, pid: int) -> None:
        """Its process is there, and has not said anything yet, or has."""
        job = self._jobs.get(job_id)
        if job is not None and job.worker is not None and job.asked is not None:  # stopped while it was on its way
            number = signal.SIGTERM if job.asked == "terminate" else signal.SIGKILL
            self.worker_set.signal(job_id, job.worker.link, number)

    def on_not_started(self, job_id: int, error: bytes) -> None:
        """Its function cannot be loaded, or there is no process to be had."""
        # Later in this turn: whoever submits shall have its job in hand before it hears of its end.
        self.loop.call_soon(lambda: self._not_started(job_id, error))

    def _not_started(self, job_id: int, error: bytes) -> None:
        job = self._jobs.get(job_id)
        if job is not None:
            self._never_began(job, exception_outcome(error, None, ""))

    def has_begun(self, job_id: int) -> bool:
        """Whether its process has said that it is about to call the function."""
        job = self._jobs.get(job_id)
        return job is not None and job.begun

    def on_request(self, request: Request) -> None:
        """A message of a worker; its first argument is the job it speaks for, or asks about."""
        job = self._jobs.get(request.args[0])
        if request.method == "report" and job is not None and job.outcome is None:  # by far the most that comes
            job.events.on_report(Report(job, request))
        elif request.method == "result":
            self._result(request)
        elif request.method == "stop":
            if job is not None and job.parent is not None:
                self._terminate(job, request.args[1])
            request.answer(None)
        elif job is not None:
            self._on_request_of(job, request)
        elif request.method == "next":
            request.answer(None)
        else:
            request.fail(LookupError(f"job {request.args[0]} has ended; {request.method!r} comes too late"))

    def _on_request_of(self, job: Job, request: Request) -> None:
        match request.method:
            case "ready":
                self._ready(job, request)
            case "report":  # of a thread that the function left running
                Report(job, request).answer(Reply("STOP"))
            case "done":
                self._done(job, *request.args[1:])
            case "killed":
                _log.warning(
                    "job %d %r left processes running that did not end within %g s of SIGTERM; they are killed: %s",
                    *(job.number, job.request.packed.name, GRACE_S, "; ".join(request.args[1])),
                )
            case "next":
                self._next(job, request)
            case "declined":
                self._declined(job)
            case "function":
                request.answer(job.request.packed.function)
            case "submit":
                self._submit_nested(job, request)
            case other:
                request.fail(LookupError(f"no worker says {other!r}"))

    def on_link_ended(self, link: Link, _ending: Ending) -> None:
        """A worker's link is gone. Its exit tells why, before or after; a process that lives on is ended."""
        worker = self._workers.of_link(link)
        if worker is not None and not self._closed:
            worker.request = None
            self._workers.kill_later(worker)
        for job in [job for job in self._unsettled if job.worker is not None and job.worker.link is link]:
            self._settle(job)

    def on_exited(self, job_id: int, status: int, why: str) -> None:
        """The process that was started for `job_id` is gone with all it started; a reused one may have run others.

        What it said last may still lie unread in its link, so a job without an outcome waits for the link's end.
        """
        worker = self._workers.gone(job_id)
        if worker is None:
            return
        job = worker.job
        if job is None:
            self._workers.give_back(worker, self._schedule)
            return
        job.exited = (status, why)
        self._unsettled.add(job)
        if job.outcome is not None or worker.cut_off:
            self._settle(job)
        elif worker.link is None:
            after_turns(self.loop, lambda: self._settle_unless_linked(job, worker))

    def _settle_unless_linked(self, job: Job, worker: Worker) -> None:
        if worker.link is None or worker.cut_off:
            self._settle(job)

    def _settle(self, job: Job) -> None:
        """Its process is gone and its link has nothing more to say."""
        worker = job.worker
        self._unsettled.discard(job)
        if job.id not in self._jobs or worker is None:
            return
        assert job.exited is not None, "called after the exit"
        if job.outcome is None and not job.begun and worker.id != job.id:
            self._queue_again(job)
            self._workers.give_back(worker, self._schedule)
            return
        if job.outcome is None:
            self._set_outcome(job, death_of(job, *job.exited))
        self._obey(self._tree.reaped(job.id))

    # -- the life of a job -----------------------------------------------------------------------------------------

    def _ready(self, job: Job, request: Request) -> None:
        _, pid, started_s, how = request.args
        worker = job.worker
        assert worker is not None, "a worker speaks for its own job"
        worker.link = request.link
        worker.gpus.pids.add(pid)
        job.begun = True
        self._tell(lambda: job.events.on_ready(job, Ready(pid, started_s, how)))

    def _declined(self, job: Job) -> None:
        """A reused worker has imported what was edited since, and leaves."""
        worker = job.worker
        if worker is not None and not job.begun and job.outcome is None:
            self._workers.kill_later(worker)
            self._queue_again(job)
            self._schedule()

    def _queue_again(self, job: Job) -> None:
        """The reused worker that was handed it is gone or out of date; it is the first of its queue again."""
        self._workers.take_back(job)
        if job.asked is not None:
            self._drop(job)
        else:
            self._backlog.put_back(job.parent, job)

    def _done(
        self,
        job: Job,
        kind: str,
        payload: bytes,
        buffers: list[object],
        objective_s: float,
        threads: tuple[str, ...],
    ) -> None:
        if job.outcome is not None or job.worker is None:
            return
        if kind == "returned":
            outcome = Outcome("returned", payload=payload, buffers=buffers, objective_s=objective_s, threads=threads)
        elif kind == "stopped":
            outcome = Outcome("stopped", "stopped", objective_s=objective_s, threads=threads)
        else:
            outcome = exception_outcome(payload, objective_s, end_of_stderr(Path(job.output + ".err")), threads=threads)
        self._workers.kill_later(job.worker)
        self._set_outcome(job, outcome)
        if job.exited is not None:
            self._settle(job)

    def _has_share(self, job: Job) -> bool:
        shares = () if job.worker is None else job.worker.lease.gpus
        return bool(shares) and shares[0].fraction < 1

    def _blame(self, job: Job, outcome: Outcome) -> Outcome:
        """Return the outcome, as a `gpu-fault` if another job may have caused it.

        Under MPS, clients of one GPU fail together, and none of them is told which one was at fault.
        """
        worker = job.worker
        if worker is None or not self.worker_set.uses_mps or not self._has_share(job) or not has_cuda_error(outcome):
            return outcome
        gpu, now_s = worker.lease.gpus[0].visible, self.loop.now_s()
        failed_together = now_s - self._cuda_errors.get(gpu, -math.inf) < _TOGETHER_S
        self._cuda_errors[gpu] = now_s
        return as_gpu_fault(outcome) if failed_together or self._workers.has_neighbor(worker) else outcome

    def _set_outcome(self, job: Job, outcome: Outcome) -> None:
        outcome = self._blame(job, outcome)
        if self._retries_alone and job.parent is None and self._has_share(job) and is_gpu_oom(outcome):
            outcome = replace(outcome, retry_alone=True)
        job.outcome = outcome
        job.set_timer(None)
        self._tell(lambda: job.events.on_ended(job, outcome))
        self._obey(self._tree.outcome(job.id))

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            job = self._jobs.get(order.job)
            if job is None:
                continue
            if isinstance(order, End):
                if job.outcome is None:
                    self._terminate(job, _NESTED_GRACE_S)
            else:
                self._finish(job)

    def _finish(self, job: Job) -> None:
        """Nothing of it is left. A worker that is gone gives its lease back before the end is told."""
        del self._jobs[job.id]
        job.over = True
        self.finished += 1
        job.set_timer(None)
        worker = job.worker
        if worker is not None:
            worker.job = None
        if worker is not None and worker.gone:
            self._workers.give_back(worker, lambda: self._tell_finished(job))
        else:
            self._tell_finished(job)

    def _tell_finished(self, job: Job) -> None:
        self._tell(lambda: job.events.on_free(job))
        remove_output(job)
        self._schedule()

    def _tell(self, call: Callable[[], None]) -> None:
        """A submitter that fails must not leave the books half-written."""
        try:
            call()
        except BaseException:  # of user code, on our own thread: sys.exit in a callback would stop the pool half-way
            _log.exception("whoever submitted a job failed when it was told of it; the pool goes on")

    # -- jobs inside jobs ------------------------------------------------------------------------------------------

    def _submit_nested(self, parent: Job, request: Request) -> None:
        asked: NestedJob = request.args[1]
        events = NestedEvents()
        try:
            wanted = JobRequest(
                Packed(asked.function, asked.arguments, asked.function_id, asked.name, asked.modules),
                Resources(cpus=asked.cpus, gpus=asked.gpus, memory_bytes=asked.memory_bytes),
                number=asked.number,
                seed=parent.seed,
                runtime_environment=asked.runtime_environment,
            )
            job = self._submit(wanted, events, parent.id)
        except (LeaseError, TypeError, ValueError) as error:
            request.fail(error)
            return
        parent.nested[job.id] = events
        request.answer(job.id)

    def _result(self, request: Request) -> None:
        """A job wants the outcome of one that it submitted."""
        job_id = request.args[0]
        worker = self._workers.of_link(request.link)
        if worker is not None and worker.job is not None and job_id in worker.job.nested:
            worker.job.nested.pop(job_id).ask(request)
            return
        request.fail(LookupError(f"job {job_id} is not one of this job's own"))

    # -- the end ---------------------------------------------------------------------------------------------------

    def leave(self) -> bool | None:
        """Close without ending the warm process, so that another engine can use it.

        Returns:
            True if this engine is closed, False if it cannot be: it has jobs, or a search uses its loop. None if
            processes are leaving: ask again.
        """
        if self._closed or self._jobs or self.loop.has_hooks:
            return False
        self._workers.dismiss_idle()
        if self.ledger.leases or not self.worker_set.is_settled():
            return None
        self._closed = True
        return True

    def close(self) -> None:
        """End every job and process now. Jobs that still ran are told as stopped."""
        if self._closed:
            return
        self._closed = True
        self._backlog.clear()
        self.worker_set.close()
        self._workers.close()
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            self._end_at_close(job)

    def _end_at_close(self, job: Job) -> None:
        job.set_timer(None)
        job.over = True
        if job.outcome is None:
            outcome = Outcome("stopped", f"job {job.id} was ended because its pool was closed")
            self._tell(lambda: job.events.on_ended(job, outcome))
        self._tell(lambda: job.events.on_free(job))


def _arguments_of(request: JobRequest) -> bytes:
    """Those of the call, packed."""
    if request.keywords is None:
        return request.packed.arguments
    return pickle.dumps(((), dict(request.keywords)), protocol=5)
