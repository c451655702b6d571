"""Jobs and worker processes of a local engine, the tree of jobs, and the queue of jobs that wait for a lease.

A worker process holds a lease from its start until it is reaped. It usually runs one job. A reused worker runs several
jobs of the same resources, one after another, and keeps a `next` request open while it is idle.

Jobs that a job submits end with it at the latest. A job is finished when its process is reaped, its outcome is known
(which may be unread when the process is gone), and all jobs below it are finished, so a lease is returned only when
nothing runs inside it.
"""

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..links.codec import Beside
from ..links.hub import Timer
from ..links.link import Link, Request
from .contract import GO_ON, JobEvents, JobRequest, JobState, Outcome, Output, Ready, Reply, pack_reply
from .contract import Job as AnyJob
from .contract import Report as AnyReport
from .gpu_release import GpuReservation
from .leases import Lease, Ledger, Resources
from .outcomes import StopRequest
from .output import tail
from .specs import LINK_LOST, JobSpec

# Maximum size of the output that `output()` returns.
_MAX_OUTPUT_BYTES = 1 << 16
_MAX_OUTPUT_LINES = 2000

# Beginnings of the reason of a closed link if the process at its other end has exited. Other reasons are reported.
_EXIT_REASONS = ("the other side ended", "process ")


class Report:
    __slots__ = ("_request", "checkpoint", "job", "values", "worker_time_s")

    def __init__(self, job: AnyJob, request: Request) -> None:
        self.job = job
        self._request = request
        _, self.values, self.worker_time_s, self.checkpoint = request.args

    def answer(self, reply: Reply) -> None:
        self._request.answer(pack_reply(reply))

    def refuse(self, error: BaseException) -> None:
        self._request.fail(error)


class NestedEvents:
    """Events of a job that another job submitted. The answer to its `submit` is the outcome."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._outcome: Outcome | None = None

    def on_ready(self, job: AnyJob, ready: Ready) -> None:
        pass

    def on_report(self, report: AnyReport) -> None:
        report.answer(GO_ON)

    def on_ended(self, job: AnyJob, outcome: Outcome) -> None:
        self._outcome = outcome

    def on_free(self, job: AnyJob) -> None:
        assert self._outcome is not None, "on_ended comes first"
        self._request.answer(to_send(self._outcome))


def to_send(outcome: Outcome) -> Outcome:
    """Return the outcome with its buffers out of band, so that sending it copies nothing."""
    return replace(outcome, buffers=[Beside(buffer) for buffer in outcome.buffers])


@dataclass(slots=True, eq=False)
class Worker:
    """A worker process.

    Attributes:
        id: id of its first job.
        parent, ledger: of its jobs, which all have the same.
        job: the job that it runs or is starting; None while it is idle or exits.
        request: its open `next` request, while it is idle.
        timer: kills it if it does not exit.
        killed: the pool killed it because it did not exit in time.
    """

    id: int
    resources: Resources
    lease: Lease
    parent: "Job | None"
    ledger: Ledger
    gpus: GpuReservation
    link: Link | None = None
    job: "Job | None" = None
    request: Request | None = None
    timer: Timer | None = None
    killed: bool = False
    is_reaped: bool = False

    @property
    def is_cut_off(self) -> bool:
        return self.link is not None and self.link.ending is not None

    def set_timer(self, timer: Timer | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer


@dataclass(slots=True, eq=False)
class Job:
    """One job.

    Attributes:
        spec: the message to its worker, without the lease.
        parent: the job that submitted it; None: the user did.
        nested_id: the parent's number for it.
        children: its unfinished nested jobs.
        worker: its process; None while the job is queued.
        begun: the worker has announced that it is about to call the function.
        is_ending: it is being ended because its parent has ended.
        is_reaped: its process and everything that it started are gone.
        over: the job is in no table any more.
        inner: ledger of its nested jobs, inside its own lease.
        ooms_before: the kernel's count of OOM kills when the job began.
        exited: exit status of its process, and the reason if another process caused the exit.
    """

    request: JobRequest
    events: JobEvents
    spec: JobSpec
    parent: "Job | None" = None
    nested_id: int | None = None
    children: "list[Job]" = field(default_factory=list)
    worker: Worker | None = None
    begun: bool = False
    is_ending: bool = False
    is_reaped: bool = False
    over: bool = False
    inner: Ledger | None = None
    stop_request: StopRequest | None = None
    ooms_before: int = 0
    outcome: Outcome | None = None
    exited: tuple[int, str] | None = None

    @property
    def id(self) -> int:
        return self.spec.job_id

    @property
    def seed(self) -> int:
        return self.spec.seed

    @property
    def state(self) -> JobState:
        if self.over:
            return "over"
        if self.outcome is not None or self.stop_request is not None:
            return "ending"
        if self.worker is None:
            return "queued"
        return "running" if self.begun else "starting"

    def descendants(self) -> "list[Job]":
        """Return all unfinished jobs below this one, from the top down, and from older to younger jobs."""
        jobs: list[Job] = []
        level = self.children
        while level:
            jobs += level
            level = sorted((child for job in level for child in job.children), key=lambda job: job.id)
        return jobs

    def pop_finished(self) -> "list[Job]":
        """Take this job out of the tree if it is finished, then its parent, which may have waited only for this one."""
        finished: list[Job] = []
        job: Job | None = self
        while job is not None and job.is_reaped and job.outcome is not None and not job.children:
            finished.append(job)
            if job.parent is not None:
                job.parent.children.remove(job)
            job = job.parent
        return finished

    @property
    def stderr(self) -> Path:
        return Path(f"{self.spec.output}.err")

    @property
    def shares_gpu(self) -> bool:
        return self.worker is not None and self.worker.lease.shares_gpu

    def printed(self) -> Output:
        paths = (Path(f"{self.spec.output}.out"), self.stderr)
        return Output(*(tail(path, max_bytes=_MAX_OUTPUT_BYTES, max_lines=_MAX_OUTPUT_LINES) for path in paths))

    def remove_output(self) -> None:
        """Delete the output files; if the submitter chose their path, only empty ones."""
        for path in (f"{self.spec.output}.out", f"{self.spec.output}.err"):
            with contextlib.suppress(OSError):  # missing, or owned by another user
                if self.request.output is None or os.path.getsize(path) == 0:
                    os.unlink(path)

    def how_lost(self, status: int) -> str:
        """Describe why the link to the process was lost; empty if the process died by itself."""
        worker, folder = self.worker, Path(self.spec.output).parent
        if not self.begun and not folder.is_dir():
            return f"it could not begin, because the folder {folder} was removed. Make a new pool."
        if worker is None or self.stop_request is not None:
            return ""
        if worker.killed:
            return "it had closed its link to the pool, so it was killed"
        if status not in (0, LINK_LOST):
            return ""
        if worker.link is None:
            return "its link to the pool broke before it sent a message"
        ending = worker.link.ending
        if ending is None or ending.reason.startswith(_EXIT_REASONS):
            return ""
        return f"its link to the pool broke: {ending.reason}"


class Backlog:
    """Jobs that wait for a lease: one FIFO queue for the user's jobs and one for the jobs of each submitting job.

    A queue whose head does not fit does not block the others.
    """

    def __init__(self) -> None:
        self._queues: dict[Job | None, deque[Job]] = {}

    def append(self, job: Job) -> None:
        self._queues.setdefault(job.parent, deque()).append(job)

    def put_back(self, job: Job) -> None:
        self._queues.setdefault(job.parent, deque()).appendleft(job)

    def heads(self) -> Iterator[Job]:
        """Yield the heads of all queues, and from each queue that has got a new head meanwhile, that one, too."""
        for parent in list(self._queues):
            head: Job | None = None
            while (queue := self._queues.get(parent)) and queue[0] is not head:
                head = queue[0]
                yield head

    def remove(self, job: Job) -> bool:
        queue = self._queues.get(job.parent)
        if queue is None or job not in queue:
            return False
        queue.remove(job)
        if not queue:
            del self._queues[job.parent]
        return True
