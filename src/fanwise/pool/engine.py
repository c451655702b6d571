"""The engine of a local pool: runs jobs in processes of this machine.

Messages and exits of a process arrive in any order. Jobs that jobs submit are handled like those of the user; they have
a parent and take their lease from its lease. Used on the event loop's thread, except where stated.

Invariant: a finished job is in no table, and its outcome is reported once, before `on_free`.
"""

import logging
import math
import pickle
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..base.errors import LeaseError
from ..links.link import Link, Request
from ..links.peers import Ending as LinkEnding
from .backend import Backend, closed_error
from .contract import Capacity, Ending, JobEvents, JobRequest, Outcome, Output, Ready, Reply
from .contract import Job as AnyJob
from .devices import find_machine, ooms_so_far
from .interpreters import after_turns
from .jobs import Backlog, Job, NestedEvents, Report
from .leases import Ledger, Machine
from .leftovers import GRACE_S
from .outcomes import (
    as_gpu_fault,
    death_of,
    end_of_stderr,
    exception_outcome,
    has_cuda_error,
    is_gpu_oom,
    never_began,
)
from .runtime_environment import capture_environment
from .seeds import job_seed
from .specs import JobSpec, NestedJob, Packed, RuntimeEnvironment
from .workers import LeasedWorkers

_log = logging.getLogger(__name__)

# Grace period of jobs whose submitting job has ended.
_NESTED_GRACE_S = 1.0

# SIGTERM is repeated if a job has not ended after this time.
_REPEAT_S = 1.0

# Jobs that share a GPU and fail on it within this time may have failed by the same fault.
_SAME_FAULT_S = 5.0


class LocalEngine:
    """Runs jobs in processes of this machine, see `contract.Engine` and `backend.Running`.

    Args:
        mps: run jobs that share a GPU under MPS.
        retries_alone: ask submitters to repeat a job that runs out of memory on its share of a GPU.
    """

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
        self._jobs: dict[int, Job] = {}
        self._backlog = Backlog()
        self._unsettled: set[Job] = set()
        self._cuda_errors: dict[str, float] = {}  # by GPU: time of the last failure of a job that shared it
        self._last_id = 0
        self._scheduling = False
        self._schedule_again = False
        self._closed = False
        self._retries_alone = retries_alone
        self.worker_set = backend.worker_set
        self._workers = LeasedWorkers(hub, self.worker_set)
        backend.on_hub(lambda: self.worker_set.attach(self, self.machine.gpus, mps=mps))

    def capacity(self) -> Capacity:
        return Capacity((self.machine,))

    def prepare(self, packed: Packed) -> None:
        self.worker_set.warm_up(packed)

    def submit(self, request: JobRequest, events: JobEvents) -> Job:
        return self._submit(request, events)

    def _submit(
        self, request: JobRequest, events: JobEvents, parent: Job | None = None, nested_id: int | None = None
    ) -> Job:
        if self._closed:
            raise closed_error()
        self._ledger_of(parent).check(request.resources)
        job_id = self._last_id + 1
        packed, number, arguments = request.packed, request.number, request.packed.arguments
        if number is None:
            number = job_id - 1
        if request.keywords is not None:
            arguments = pickle.dumps(((), dict(request.keywords)), protocol=5)
        spec = JobSpec(
            job_id,
            number,
            request.attempt,
            packed.name,
            job_seed(self.seed if request.seed is None else request.seed, number, request.attempt),
            packed.function_id,
            arguments,
            request.output or str(self._folder / f"job-{job_id}"),
            request.reuse,
            request.runtime_environment or self.runtime_environment(),
            request.context,
        )
        job = Job(request, events, spec, parent, nested_id)
        self._last_id = job_id
        self._jobs[job_id] = job
        self._backlog.append(job)
        if parent is not None:
            parent.children.append(job)
            if parent.is_ending or parent.is_reaped or parent.outcome is not None:
                self._end_nested(job)
        self._schedule()
        return job

    def runtime_environment(self) -> RuntimeEnvironment:
        return capture_environment(self.worker_set.interpreters.environment)

    def counts(self) -> tuple[int, int]:
        jobs = list(self._jobs.values())
        running = sum(job.begun for job in jobs)
        return running, len(jobs) - running

    def end(self, job: AnyJob, how: Ending, *, grace_s: float | None = None) -> None:
        own = self._jobs.get(job.id)
        if own is not job or own is None:
            return
        if how == "kill":
            self._kill(own)
        else:
            self._terminate(own, grace_s)

    def output(self, job: AnyJob) -> Output:
        assert isinstance(job, Job), "a job of this engine"
        return job.printed()

    def _terminate(self, job: Job, grace_s: float | None) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s`. A job without a process never begins.

        SIGTERM is repeated once: if it arrives just before a blocking call, Python handles it only when that call
        returns or another signal interrupts it. A job that has handled the first one ignores the second.
        """
        if job.stop_request is None:
            job.stop_request = "terminate"
            if self._signal_or_drop(job, signal.SIGTERM):
                self._signal_later(job.id, signal.SIGTERM, _REPEAT_S)
        if grace_s is not None and job.id in self._jobs and job.outcome is None:
            self._signal_later(job.id, signal.SIGKILL, grace_s)

    def _signal_later(self, job_id: int, number: int, after_s: float) -> None:
        """Signal a job after a time if it was stopped and has not ended until then."""

        def signal_job() -> None:
            job = self._jobs.get(job_id)
            if job is None or job.outcome is not None or job.stop_request != "terminate":
                return
            if number == signal.SIGKILL:
                self._kill(job)
            elif job.worker is not None:
                self.worker_set.signal(job.worker.id, job.worker.link, number)

        self.loop.call_at(self.loop.now_s() + after_s, signal_job)

    def _kill(self, job: Job) -> None:
        if job.stop_request != "kill":
            is_first = job.stop_request is None
            job.stop_request = "kill"
            if is_first or job.worker is not None:
                self._signal_or_drop(job, signal.SIGKILL)

    def _signal_or_drop(self, job: Job, number: int) -> bool:
        """Signal the job's process, or cancel a job without one. Return whether it was signaled."""
        worker = job.worker
        is_canceled = worker is not None and worker.link is None and self.worker_set.cancel(worker.id)
        is_dropped = is_canceled or self._backlog.remove(job)
        if is_dropped:
            # Not now, because the caller may be updating its own tables.
            self.loop.call_soon(lambda: self._finish_unstarted(job, never_began(job.id)))
        elif worker is not None:
            self.worker_set.signal(worker.id, worker.link, number)
        return not is_dropped

    def _finish_unstarted(self, job: Job, outcome: Outcome) -> None:
        if job.id not in self._jobs:
            return
        if job.worker is not None:
            self._workers.remove(job.worker.id)
        self._set_outcome(job, outcome)
        self._on_reaped(job)

    def _schedule(self) -> None:
        """Start all jobs that can start now. Nested calls make the outermost one repeat the search."""
        self._schedule_again = True
        if self._scheduling or self._closed:
            return
        self._scheduling = True
        try:
            while self._schedule_again:
                self._schedule_again = False
                for job in self._backlog.heads():
                    self._try_start(job)
        finally:
            self._scheduling = False

    def _ledger_of(self, parent: Job | None) -> Ledger:
        if parent is None:
            return self.ledger
        assert parent.worker is not None, "a job that submits jobs is running"
        if parent.inner is None:
            parent.inner = Ledger.within(parent.worker.lease)
        return parent.inner

    def _try_start(self, job: Job) -> None:
        is_handed_over = job.request.reuse and self._workers.hand_over(job)
        if is_handed_over or self._workers.start(job, self._ledger_of(job.parent)):
            self._backlog.remove(job)

    def _next(self, job: Job, request: Request) -> None:
        worker = job.worker
        if worker is None or job.outcome is None or job.stop_request is not None:
            request.answer(None)  # its kill timer runs
            return
        worker.set_timer(None)
        worker.request = request
        self._on_reaped(job)
        self._schedule()

    def on_started(self, job_id: int, pid: int) -> None:
        """Handle the start of a job's process. Its first message may have arrived before."""
        job = self._jobs.get(job_id)
        if job is not None and job.worker is not None and job.stop_request is not None:  # stopped during the start
            number = signal.SIGTERM if job.stop_request == "terminate" else signal.SIGKILL
            self.worker_set.signal(job_id, job.worker.link, number)

    def on_not_started(self, job_id: int, error: bytes) -> None:
        """Handle a function that cannot be loaded, or a process that cannot be started."""
        if (job := self._jobs.get(job_id)) is not None:
            # Not now, because `submit` must return before the events of its job.
            self.loop.call_soon(lambda: self._finish_unstarted(job, exception_outcome(error, None, "")))

    def has_begun(self, job_id: int) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and job.begun

    def on_request(self, request: Request) -> None:
        """Handle a message of a worker. Its first argument is the id of a job."""
        job = self._jobs.get(request.args[0])
        match request.method:
            case "report" if job is not None:  # by far the most frequent
                report = Report(job, request)
                if job.outcome is None:
                    job.events.on_report(report)
                else:
                    report.answer(Reply("STOP"))  # to a thread that the function left running
            case "next" if job is None:
                request.answer(None)
            case method if job is None:
                request.fail(LookupError(f"job {request.args[0]} has ended; {method!r} comes too late"))
            case "ready":
                self._ready(job, request)
            case "done":
                self._done(job, request)
            case "killed":
                _log.warning(
                    "job %d %r left processes running that did not end within %g s of SIGTERM; they are killed: %s",
                    *(job.spec.number, job.spec.name, GRACE_S, "; ".join(request.args[1])),
                )
            case "next":
                self._next(job, request)
            case "function":
                request.answer(job.request.packed.function)
            case "submit":
                self._submit_nested(job, request)
            case "stop":
                for child in job.children:
                    if child.nested_id == request.args[1]:
                        self._terminate(child, request.args[2])
            case method:
                request.fail(LookupError(f"unknown message of a worker: {method!r}"))

    def on_link_ended(self, link: Link, _ending: LinkEnding) -> None:
        """Handle the end of a worker's link, before or after the exit. A process that lives on is killed."""
        worker = self._workers.of_link(link)
        if worker is not None and not self._closed:
            worker.request = None
            self._workers.kill_later(worker)
        for job in [job for job in self._unsettled if job.worker is not None and job.worker.link is link]:
            self._settle(job)

    def on_exited(self, job_id: int, status: int, why: str) -> None:
        """Handle the exit of the process that was started for `job_id`. A reused one may have run other jobs since.

        Its last messages may be unread, so a job without an outcome waits for the end of the link.
        """
        worker = self._workers.remove(job_id)
        if worker is None:
            return
        job = worker.job
        if job is None:
            self._workers.return_lease(worker, self._schedule)
            return
        job.exited = (status, why)
        self._unsettled.add(job)
        if job.outcome is not None or worker.is_cut_off:
            self._settle(job)
        elif worker.link is None:
            after_turns(self.loop, lambda: self._settle(job) if worker.link is None or worker.is_cut_off else None)

    def _settle(self, job: Job) -> None:
        """Finish a job whose process has exited and whose link is drained."""
        worker = job.worker
        self._unsettled.discard(job)
        if job.id not in self._jobs or worker is None:
            return
        assert job.exited is not None, "called after the exit"
        if job.outcome is None and not job.begun and worker.id != job.id:
            self._queue_again(job)
            self._workers.return_lease(worker, self._schedule)
            return
        status, why = job.exited
        if job.outcome is None and job.stop_request is not None and not job.begun:
            self._set_outcome(job, never_began(job.id))
        elif job.outcome is None:
            lost = f"it was lost: {why}" if why else job.how_lost(status)
            ooms = ooms_so_far() - job.ooms_before
            death = death_of(status, stop_request=job.stop_request, ooms=ooms, stderr=job.stderr, lost=lost)
            self._set_outcome(job, death)
        self._on_reaped(job)

    def _ready(self, job: Job, request: Request) -> None:
        _, pid, started_s, how = request.args
        worker = job.worker
        assert worker is not None, "a worker sends `ready` for its own job"
        worker.link = request.link
        worker.gpus.pids.add(pid)
        job.begun = True
        self._notify(lambda: job.events.on_ready(job, Ready(pid, started_s, how)))

    def _queue_again(self, job: Job) -> None:
        self._workers.take_back(job)
        if job.stop_request is not None:
            self._finish_unstarted(job, never_began(job.id))
        else:
            self._backlog.put_back(job)

    def _done(self, job: Job, request: Request) -> None:
        if job.outcome is not None or job.worker is None:
            return
        _, kind, payload, buffers, objective_s, threads = request.args
        if kind == "exception":
            outcome = exception_outcome(payload, objective_s, end_of_stderr(job.stderr), threads=threads)
        else:
            text = "" if kind == "returned" else "stopped"
            outcome = Outcome(kind, text, payload=payload, buffers=buffers, objective_s=objective_s, threads=threads)
        self._workers.kill_later(job.worker)
        self._set_outcome(job, outcome)
        if job.exited is not None:
            self._settle(job)

    def _attribute(self, job: Job, outcome: Outcome) -> Outcome:
        """Return the outcome, as a `gpu-fault` if another job may have caused it.

        Under MPS, all clients of a GPU fail together, and the driver does not report which one caused the fault.
        """
        worker = job.worker
        if worker is None or not self.worker_set.mps.is_used or not job.shares_gpu or not has_cuda_error(outcome):
            return outcome
        gpu, now_s = worker.lease.gpus[0].visible, self.loop.now_s()
        failed_together = now_s - self._cuda_errors.get(gpu, -math.inf) < _SAME_FAULT_S
        self._cuda_errors[gpu] = now_s
        return as_gpu_fault(outcome) if failed_together or self._workers.has_neighbor(worker) else outcome

    def _set_outcome(self, job: Job, outcome: Outcome) -> None:
        outcome = self._attribute(job, outcome)
        if self._retries_alone and job.parent is None and job.shares_gpu and is_gpu_oom(outcome):
            outcome = replace(outcome, retry_alone=True)
        job.outcome = outcome
        self._notify(lambda: job.events.on_ended(job, outcome))
        self._end_descendants(job)

    def _on_reaped(self, job: Job) -> None:
        job.is_reaped = True
        self._end_descendants(job)

    def _end_descendants(self, job: Job) -> None:
        """End all jobs below a job that has ended for any reason. Finish it if nothing is left.

        A parent ends before its children, because it could report the death of a child as a failure, or start it again.
        """
        for nested in job.descendants():
            self._end_nested(nested)
        for finished in job.pop_finished():
            self._finish(finished)

    def _end_nested(self, job: Job) -> None:
        if not job.is_ending and not job.is_reaped:
            job.is_ending = True
            if job.outcome is None:
                self._terminate(job, _NESTED_GRACE_S)

    def _finish(self, job: Job) -> None:
        """Forget a job. If its worker has exited, return the lease before `on_free`."""
        del self._jobs[job.id]
        job.over = True
        self.finished += 1
        worker = job.worker
        if worker is not None:
            worker.job = None
        if worker is not None and worker.is_reaped:
            self._workers.return_lease(worker, lambda: self._on_free(job))
        else:
            self._on_free(job)

    def _on_free(self, job: Job) -> None:
        self._notify(lambda: job.events.on_free(job))
        job.remove_output()
        self._schedule()

    def _notify(self, call: Callable[[], None]) -> None:
        """Call an event handler. Its errors must not leave the tables half updated."""
        try:
            call()
        except BaseException:  # of user code: sys.exit in a callback must not end the pool's thread
            _log.exception("an event handler of a job failed; the pool continues")

    def _submit_nested(self, parent: Job, request: Request) -> None:
        nested: NestedJob = request.args[1]
        job_request = JobRequest(
            nested.packed,
            nested.resources,
            number=nested.number,
            seed=parent.seed,
            runtime_environment=nested.runtime_environment,
        )
        try:
            self._submit(job_request, NestedEvents(request), parent, nested.nested_id)
        except (LeaseError, TypeError, ValueError) as error:
            request.fail(error)

    @property
    def engine(self) -> "LocalEngine":
        return self

    def begin(self) -> None:
        pass  # processes are started by the first job

    def wait_closed(self) -> None:
        pass  # processes end with the backend

    def leave(self) -> bool | None:
        if self._closed or self._jobs or self.loop.has_hooks:  # a search uses the loop
            return False
        self._workers.dismiss_idle()
        if self.ledger.leases or not self.worker_set.is_settled():
            return None
        self._closed = True
        return True

    def close(self) -> None:
        """End every job and process now. Running jobs end as stopped."""
        if self._closed:
            return
        self._closed = True
        self._backlog = Backlog()
        self.worker_set.close()
        self._workers.close()
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            job.over = True
            if job.outcome is None:
                outcome = Outcome("stopped", f"job {job.id} was ended because its pool was closed")
                self._notify(partial(job.events.on_ended, job, outcome))
            self._notify(partial(job.events.on_free, job))
