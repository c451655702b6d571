"""The engine of a local pool: which job runs where and when, from submit to its end. Runs on the hub's thread only.

    submit --> queue --lease free--> crew starts a process --> ready, reports --> done --> exited --> lease back
                        \\-> an idle reused worker of the same need takes it at once

It joins three quiet books - `JobTree` (who started whom), `Ledger` (leases), `deaths` (why) - with the crew's
processes. Everything it learns comes as a message or an exit; the order of the two does not matter. Jobs of the user
and jobs that jobs submit are the same here: the latter have a parent and take their lease from its lease.
"""

import logging
import os
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from ..base.errors import LeaseError
from ..links import Ending, Hub, Link, Request, Timer
from ..links.codec import pack_error
from .crew import Crew
from .deaths import explain
from .devices import find_machine, gpu_memory_used, gpu_pids, ooms_so_far
from .functions import Packed
from .leases import Ledger, Lease, Machine, Need
from .outcomes import Outcome, exception_outcome
from .output import tail
from .seeds import job_seed
from .specs import How, JobSpec, NestedJob
from .tree import End, JobTree, Order

_log = logging.getLogger(__name__)

# A function has ended, its process has not: something it left running keeps it. Then it is killed.
_LEAVE_S = 5.0
# A process may be gone before the link it opened has been greeted here.
_GREETING_S = 0.25
# How long a GPU lease waits for the driver to forget the dead process.
_GPU_BACK_S = 5.0


class Report:
    """What a job reported; `answer` or `refuse` it once, now or later in the same or another turn."""

    __slots__ = ("_request", "job", "values", "worker_time_s")

    def __init__(self, job: "Job", request: Request) -> None:
        self.job = job
        self._request = request
        _, self.values, self.worker_time_s = request.args

    def answer(self, decision: str) -> None:
        """The job's `report` returns `decision`."""
        self._request.answer(decision)

    def refuse(self, error: BaseException) -> None:
        """The job's `report` raises `error`."""
        self._request.fail(error)


class JobEvents(Protocol):
    """What the submitter of a job hears, on the hub's thread."""

    def on_ready(self, job: "Job", pid: int, started_s: float, how: How) -> None: ...
    def on_report(self, report: Report) -> None: ...
    def on_outcome(self, job: "Job", outcome: Outcome) -> None: ...
    def on_finished(self, job: "Job") -> None: ...


@dataclass(slots=True, eq=False)
class Job:
    """One job of the engine's table. `worker_id`: the id of the first job of its process, for reused ones."""

    id: int
    packed: Packed
    arguments: bytes
    need: Need
    events: JobEvents
    number: int
    attempt: int
    seed: int
    output: str
    reuse: bool
    parent: int | None = None
    worker_id: int = 0
    lease: Lease | None = None
    inner: Ledger | None = None
    link: Link | None = None
    asked: Literal[None, "terminate", "kill"] = None
    ooms_before: int = 0
    gpus: "_Gpus | None" = None
    outcome: Outcome | None = None
    exited: tuple[int, str] | None = None
    timer: Timer | None = None
    nested: dict[int, "_NestedEvents"] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Reusable:
    """A worker process that may take another job; `request` is its open question for one while it is idle."""

    worker_id: int
    need: Need
    lease: Lease
    parent: int | None
    ledger: Ledger
    gpus: "_Gpus"
    link: Link | None = None
    request: Request | None = None
    leaving: bool = False

    def dismiss(self) -> None:
        """Answer its question for another job with None: it ends."""
        request, self.request = self.request, None
        self.leaving = True
        if request is not None:
            request.answer(None)


class Engine:
    """See the module."""

    def __init__(self, hub: Hub, folder: Path, key: bytes, *, seed: int, machine: Machine | None = None) -> None:
        self.machine = machine or find_machine()
        self.seed = seed
        self.retried = 0
        self.finished = 0
        self._hub = hub
        self._folder = folder
        self.ledger = Ledger(self.machine)
        self._tree = JobTree()
        self._jobs: dict[int, Job] = {}
        self._queue: deque[Job] = deque()
        self._workers: dict[int, _Reusable] = {}
        self._functions: dict[str, Packed] = {}
        self._last_id = 0
        self._scheduling = False
        self.crew = Crew(hub, folder, key, self)

    # -- submitting ------------------------------------------------------------------------------------------------

    def submit(
        self,
        packed: Packed,
        arguments: bytes,
        need: Need,
        events: JobEvents,
        *,
        number: int | None = None,
        attempt: int = 0,
        seed: int | None = None,
        output: str | None = None,
        reuse: bool = False,
        parent: int | None = None,
    ) -> Job:
        """Queue a job. `seed` is that of the experiment; the job's own is made from it, `number` and `attempt`."""
        self._last_id += 1
        job_id = self._last_id
        number = job_id - 1 if number is None else number
        job = Job(
            job_id,
            packed,
            arguments,
            need,
            events,
            number,
            attempt,
            job_seed(self.seed if seed is None else seed, number, attempt),
            output or str(self._folder / f"job-{job_id}"),
            reuse,
            parent,
        )
        self._jobs[job_id] = job
        self._functions[packed.function_id] = packed
        self._obey(self._tree.add(job_id, parent))
        self._queue.append(job)
        self._schedule()
        return job

    def stop(self, job: Job, grace_s: float) -> None:
        """End a job: SIGTERM, and SIGKILL when it still lives `grace_s` later. Ended jobs: nothing happens."""
        if self.terminate(job):
            self._kill_at(job, grace_s)

    def terminate(self, job: Job) -> bool:
        """Send a job SIGTERM, once; one that waits for its lease is dropped. True when a process was told."""
        if job.id not in self._jobs:
            return False
        if job in self._queue:
            self._drop_queued(job)
            return False
        if job.asked is not None:
            return False
        job.asked = "terminate"
        self.crew.signal(job.id, job.link, signal.SIGTERM)
        return True

    def kill(self, job: Job) -> None:
        """End a job by SIGKILL now."""
        if job.id not in self._jobs:
            return
        if job in self._queue:
            self._drop_queued(job)
            return
        job.asked = "kill"
        self.crew.signal(job.id, job.link, signal.SIGKILL)

    def _kill_at(self, job: Job, grace_s: float) -> None:
        if job.timer is not None:
            job.timer.cancel()
        job.timer = self._hub.call_at(self._hub.clock.now_s() + grace_s, lambda: self.kill(job))

    def _drop_queued(self, job: Job) -> None:
        self._queue.remove(job)
        self._set_outcome(job, Outcome("stopped", f"job {job.id} was stopped before it began"))
        self._obey(self._tree.reaped(job.id))

    # -- scheduling ------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Start what can be started, in the order of the queue; one ledger's queue does not hold up another's."""
        if self._scheduling:
            return
        self._scheduling = True
        try:
            blocked: set[int] = set()
            for job in list(self._queue):
                ledger = self._ledger_of(job.parent)
                if id(ledger) in blocked:
                    continue
                if job in self._queue and not self._try_start(job, ledger):
                    blocked.add(id(ledger))
        finally:
            self._scheduling = False

    def _ledger_of(self, parent: int | None) -> Ledger:
        if parent is None:
            return self.ledger
        above = self._jobs[parent]
        assert above.lease is not None, "a job that submits jobs is running"
        if above.inner is None:
            above.inner = Ledger.within(above.lease)
        return above.inner

    def _try_start(self, job: Job, ledger: Ledger) -> bool:
        if job.reuse:
            for worker in self._workers.values():
                if worker.request is not None and worker.need == job.need and worker.parent == job.parent:
                    self._hand_over(job, worker)
                    return True
        lease = ledger.take(job.need, job.id)
        if lease is None:
            self._dismiss_idle(ledger)
            return False
        self._queue.remove(job)
        job.lease = lease
        job.worker_id = job.id
        job.ooms_before = ooms_so_far()
        gpus = _Gpus(lease)
        job.gpus = gpus
        if job.reuse:
            self._workers[job.id] = _Reusable(job.id, job.need, lease, job.parent, ledger, gpus)
        self.crew.start(self._spec_of(job), job.packed)
        return True

    def _hand_over(self, job: Job, worker: _Reusable) -> None:
        self._queue.remove(job)
        job.lease, job.worker_id, job.link = worker.lease, worker.worker_id, worker.link
        job.ooms_before = ooms_so_far()
        request, worker.request = worker.request, None
        assert request is not None, "an idle worker has an open question"
        self.crew.started["reuse"] += 1
        request.answer(self._spec_of(job))

    def _dismiss_idle(self, ledger: Ledger) -> None:
        """Let one idle reused worker go; its lease comes back when it has ended, and then the queue is looked at."""
        workers = [worker for worker in self._workers.values() if worker.ledger is ledger]
        if any(worker.leaving for worker in workers):
            return
        for worker in workers:
            if worker.request is not None:
                worker.dismiss()
                return

    def _spec_of(self, job: Job) -> JobSpec:
        assert job.lease is not None, "a job that starts has a lease"
        shares = job.lease.gpus
        return JobSpec(
            job_id=job.id,
            number=job.number,
            name=job.packed.name,
            seed=job.seed,
            function_id=job.packed.function_id,
            arguments=job.arguments,
            cpus=job.lease.cpus,
            gpus=tuple(share.visible for share in shares),
            gpu_fraction=shares[0].fraction if shares else 1.0,
            memory_bytes=job.lease.memory_bytes,
            output=job.output,
            reuse=job.reuse,
        )

    # -- what the crew tells ---------------------------------------------------------------------------------------

    def on_started(self, job_id: int, pid: int) -> None:
        job = self._jobs.get(job_id)
        if job is not None and job.asked is not None:  # it was stopped while its process was on its way
            self.crew.signal(job_id, job.link, signal.SIGKILL)

    def on_not_started(self, job_id: int, error: bytes) -> None:
        # Later in this turn: whoever submits shall have its job in hand before it hears of its end.
        self._hub.call_soon(lambda: self._not_started(job_id, error))

    def _not_started(self, job_id: int, error: bytes) -> None:
        job = self._jobs.get(job_id)
        if job is None:
            return
        worker = self._workers.pop(job_id, None)
        self._set_outcome(job, exception_outcome(error, None, ""))
        self._obey(self._tree.reaped(job_id))
        if worker is not None:
            self._give_back(worker.ledger, worker.worker_id, worker.gpus, self._schedule)

    def on_request(self, request: Request) -> None:
        """A message of a worker; its first argument is the job it speaks for."""
        job = self._jobs.get(request.args[0])
        if request.method == "next":
            self._next(request)
        elif request.method == "function":
            request.answer(self._functions[request.args[0]].function)
        elif request.method == "result":
            self._result(request)
        elif job is None:
            request.fail(LookupError(f"job {request.args[0]} has ended; {request.method!r} comes too late"))
        elif request.method == "ready":
            self._ready(job, request)
        elif request.method == "report":
            job.events.on_report(Report(job, request))
        elif request.method == "done":
            self._done(job, *request.args[1:])
        elif request.method == "submit":
            self._submit_nested(job, request)
        elif request.method == "stop":
            nested = self._jobs.get(request.args[0])
            if nested is not None:
                self.stop(nested, request.args[1])
            request.answer(None)

    def on_link_ended(self, link: Link, _ending: Ending) -> None:
        """A worker's link is gone. Its exit tells why, before or after; a process that lives on is ended."""
        for job in [job for job in self._jobs.values() if job.link is link]:
            if job.exited is not None:
                self._settle(job)
            elif job.outcome is None:
                self._kill_at(job, _LEAVE_S)

    def on_exited(self, job_id: int, status: int, why: str) -> None:
        """The process that was started for `job_id` is gone with all it started; a reused one may have run others.

        What it said last may still lie unread in its link, so a job without an outcome waits for the link's end.
        """
        worker = self._workers.pop(job_id, None)
        for job in [job for job in self._jobs.values() if job.worker_id == job_id]:
            job.exited = (status, why)
            if job.outcome is not None or (job.link is not None and job.link.ending is not None):
                self._settle(job)
            elif job.link is None:
                self._hub.call_at(self._hub.clock.now_s() + _GREETING_S, lambda job=job: self._settle_unless_linked(job))
        if worker is not None:
            self._give_back(worker.ledger, worker.worker_id, worker.gpus, self._schedule)

    def _settle_unless_linked(self, job: Job) -> None:
        if job.link is None or job.link.ending is not None:
            self._settle(job)

    def _settle(self, job: Job) -> None:
        """Its process is gone and its link has nothing more to say."""
        if job.id not in self._jobs:
            return
        assert job.exited is not None, "called after the exit"
        if job.outcome is None:
            self._set_outcome(job, self._death_of(job, *job.exited))
        self._obey(self._tree.reaped(job.id))

    def _death_of(self, job: Job, status: int, why: str) -> Outcome:
        if job.asked == "terminate" and status in (0, -signal.SIGTERM):
            return Outcome("stopped", "ended by SIGTERM after a stop")
        last = tail(Path(job.output + ".err"))
        death = explain(status, asked=job.asked, ooms=ooms_so_far() - job.ooms_before, last_output=last)
        text = f"{death.text} ({why})" if why else death.text
        return Outcome(death.kind, text, last_output=last)

    # -- the life of a job -----------------------------------------------------------------------------------------

    def _ready(self, job: Job, request: Request) -> None:
        _, pid, started_s, how = request.args
        job.link = request.link
        if job.gpus is not None:
            job.gpus.pids.add(pid)
        worker = self._workers.get(job.worker_id)
        if worker is not None:
            worker.link = request.link
        self._obey(self._tree.begin(job.id))
        job.events.on_ready(job, pid, started_s, how)

    def _done(self, job: Job, kind: str, payload: bytes, buffers: list[object], objective_s: float) -> None:
        if job.outcome is not None:
            return
        if kind == "returned":
            outcome = Outcome("returned", payload=payload, buffers=buffers, objective_s=objective_s)
        elif kind == "stopped":
            outcome = Outcome("stopped", "stopped", objective_s=objective_s)
        else:
            outcome = exception_outcome(payload, objective_s, tail(Path(job.output + ".err")))
        self._set_outcome(job, outcome)
        if job.exited is not None:
            self._settle(job)
        elif not job.reuse and job.id in self._jobs:
            self._kill_at(job, _LEAVE_S)

    def _set_outcome(self, job: Job, outcome: Outcome) -> None:
        job.outcome = outcome
        if job.timer is not None:
            job.timer.cancel()
        job.events.on_outcome(job, outcome)
        self._obey(self._tree.outcome(job.id))

    def _next(self, request: Request) -> None:
        """A reused worker has ended a job and asks for another; `fit` says whether it may have one."""
        job_id, fit = request.args
        job = self._jobs.get(job_id)
        worker = self._workers.get(job.worker_id) if job is not None else None
        if job is None or worker is None:
            request.answer(None)
            return
        worker.request = request
        if not fit or job.asked is not None:
            worker.dismiss()
        self._obey(self._tree.reaped(job_id))
        self._schedule()

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            job = self._jobs.get(order.job)
            if job is None:
                continue
            if isinstance(order, End):
                if job.outcome is None:
                    self.stop(job, grace_s=1.0)
            else:
                self._finish(job)

    def _finish(self, job: Job) -> None:
        del self._jobs[job.id]
        self.finished += 1
        if job.timer is not None:
            job.timer.cancel()
        for ending in (".out", ".err"):
            _remove_if_empty(job.output + ending)
        if job.lease is not None and job.worker_id == job.id and not job.reuse:
            assert job.gpus is not None, "comes with the lease"
            self._give_back(self._ledger_of(job.parent), job.id, job.gpus, lambda: self._tell_finished(job))
        else:
            self._tell_finished(job)

    def _tell_finished(self, job: Job) -> None:
        job.events.on_finished(job)
        self._schedule()

    def _give_back(self, ledger: Ledger, holder: int, gpus: "_Gpus", then: Callable[[], None]) -> None:
        """The lease comes back, for GPUs when the driver has forgotten our process, at most `_GPU_BACK_S` later."""
        until_s = self._hub.clock.now_s() + _GPU_BACK_S

        def look() -> None:
            still = gpus.still_held()
            now_s = self._hub.clock.now_s()
            if still and now_s < until_s:
                self._hub.call_at(now_s + 0.05, look)
                return
            if still:
                _log.warning("the lease of job %d comes back although %s", holder, still)
            ledger.give_back(holder)
            then()

        look()

    # -- jobs inside jobs ------------------------------------------------------------------------------------------

    def _submit_nested(self, parent: Job, request: Request) -> None:
        asked: NestedJob = request.args[1]
        packed = Packed(asked.function, asked.arguments, asked.function_id, asked.name, asked.modules)
        try:
            need = Need(cpus=asked.cpus, gpus=asked.gpus, memory_bytes=asked.memory_bytes)
            self._ledger_of(parent.id).check(need)
        except (LeaseError, TypeError, ValueError) as error:
            request.fail(error)
            return
        events = _NestedEvents()
        job = self.submit(
            packed, asked.arguments, need, events, number=asked.number, seed=parent.seed, parent=parent.id
        )
        parent.nested[job.id] = events
        request.answer(job.id)

    def _result(self, request: Request) -> None:
        for job in self._jobs.values():
            if request.args[0] in job.nested:
                job.nested[request.args[0]].ask(request)
                return
        request.fail(LookupError(f"job {request.args[0]} is not one of this job's own"))

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every job and process now. Jobs that still ran are told as stopped."""
        self._queue.clear()
        self.crew.close()
        for job in list(self._jobs.values()):
            if job.outcome is None:
                job.outcome = Outcome("stopped", f"job {job.id} was ended because its pool was closed")
                job.events.on_outcome(job, job.outcome)
            job.events.on_finished(job)
        self._jobs.clear()


class _Gpus:
    """The GPUs of a lease, and how to see that a dead process no longer holds their memory."""

    _NOISE_BYTES = 64 << 20

    def __init__(self, lease: Lease) -> None:
        self.pids: set[int] = set()
        self._shares = lease.gpus
        self._used_before = {share.visible: gpu_memory_used(share.visible) for share in lease.gpus}

    def still_held(self) -> str:
        """What is still there, for people; empty when the GPUs are free. Without GPUs nothing is asked."""
        for share in self._shares:
            pids = gpu_pids(share.visible)
            if pids is not None:
                if pids & self.pids:
                    return f"process {min(pids & self.pids)} is still listed on GPU {share.visible}"
            elif share.fraction == 1.0 and self._has_not_fallen(share.visible):
                return f"the memory of GPU {share.visible} has not come back"
        return ""

    def _has_not_fallen(self, visible: str) -> bool:
        before, now = self._used_before[visible], gpu_memory_used(visible)
        return before is not None and now is not None and now > before + self._NOISE_BYTES


class _NestedEvents:
    """Keeps the outcome of a nested job until its submitter asks, and then for as long as the submitter lives."""

    def __init__(self) -> None:
        self._outcome: Outcome | None = None
        self._asked: list[Request] = []

    def ask(self, request: Request) -> None:
        self._asked.append(request)
        self._answer()

    def on_ready(self, job: Job, pid: int, started_s: float, how: How) -> None:
        """Nobody asks."""

    def on_report(self, report: Report) -> None:
        report.answer("CONTINUE")

    def on_outcome(self, job: Job, outcome: Outcome) -> None:
        self._outcome = outcome

    def on_finished(self, job: Job) -> None:
        self._answer()

    def _answer(self) -> None:
        outcome = self._outcome
        if outcome is None:
            return
        asked, self._asked = self._asked, []
        for request in asked:
            if outcome.kind in ("returned", "exception"):
                request.answer((outcome.kind == "returned", outcome.payload, list(outcome.buffers)))
            else:
                request.answer((False, pack_error(outcome.as_lost()), []))


def _remove_if_empty(path: str) -> None:
    try:
        if os.path.getsize(path) == 0:
            os.unlink(path)
    except OSError:
        pass  # never made, or not ours to remove
