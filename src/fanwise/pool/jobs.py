"""What the engine knows of a job and of the worker process that runs it, and what it tells whoever submitted the job.

A worker process holds a lease from its start to its end; as a rule it runs one job, a reused one runs many of the same
resources, one after another, and waits in between with an open question for the next.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..links.hub import Timer
from ..links.link import Link, Request
from .contract import GO_ON, JobEvents, JobRequest, JobState, Outcome, Output, Ready, Reply
from .contract import Job as AnyJob
from .contract import Report as AnyReport
from .gpu_return import HeldGpus
from .leases import Lease, Ledger, Resources
from .outcomes import to_send
from .output import tail
from .specs import JobSpec, RuntimeEnvironment

# How much of what a job has printed is shown.
_SHOWN_BYTES = 1 << 16
_SHOWN_LINES = 2000


class Report:
    """What a job reported, see `contract.Report`."""

    __slots__ = ("_request", "checkpoint", "job", "values", "worker_time_s")

    def __init__(self, job: "Job", request: Request) -> None:
        self.job = job
        self._request = request
        _, self.values, self.worker_time_s, self.checkpoint = request.args

    def answer(self, reply: Reply) -> None:
        # A bare word is packed several times faster than anything else, and as a rule there is no more to say.
        self._request.answer(reply.decision if reply.body is None else (reply.decision, reply.body))

    def refuse(self, error: BaseException) -> None:
        self._request.fail(error)


class NestedEvents:
    """What the submitter of a nested job hears: its outcome, once it has asked and the process is gone."""

    def __init__(self) -> None:
        self._outcome: Outcome | None = None
        self._finished = False
        self._request: Request | None = None

    def ask(self, request: Request) -> None:
        """The submitter wants the outcome; it asks once."""
        self._request = request
        self._tell()

    def on_ready(self, job: AnyJob, ready: Ready) -> None:
        """The submitter is not told."""

    def on_report(self, report: AnyReport) -> None:
        report.answer(GO_ON)

    def on_ended(self, job: AnyJob, outcome: Outcome) -> None:
        self._outcome = outcome

    def on_free(self, job: AnyJob) -> None:
        self._finished = True
        self._tell()

    def _tell(self) -> None:
        if self._request is not None and self._outcome is not None and self._finished:
            self._request.answer(to_send(self._outcome))


@dataclass(slots=True, eq=False)
class Worker:
    """A worker process.

    Attributes:
        id: that of its first job.
        job: the one it runs, or is about to; None while it is idle or leaves.
        request: its open question for another job, while it is idle.
        killed: it was killed because it did not leave when it should.
        gone: it and all it started are reaped.
    """

    id: int
    resources: Resources
    lease: Lease
    parent: int | None
    ledger: Ledger
    gpus: HeldGpus
    link: Link | None = None
    job: "Job | None" = None
    request: Request | None = None
    timer: Timer | None = None
    killed: bool = False
    gone: bool = False

    @property
    def cut_off(self) -> bool:
        """Whether nothing can come from it any more, though it may still be there."""
        return self.link is not None and self.link.ending is not None

    def set_timer(self, timer: Timer | None) -> None:
        """At most one is kept: when it is killed because it does not leave."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer


@dataclass(slots=True, eq=False)
class Job:
    """One job of the engine's table.

    Attributes:
        arguments: of its call, packed.
        output: where its output is kept, without ending.
        worker: its process, from the moment it has a lease; None while it is queued.
        begun: the worker said that it is about to call the function.
        over: it is in no table any more.
        inner: the leases of the jobs that this one submits, within its own.
        asked: what was sent to end it.
        again_s, until_s: when it is told once more, and when it is killed, because it has not ended.
        exited: the exit status of its process, and why when that is known from elsewhere.
    """

    id: int
    request: JobRequest
    events: JobEvents
    number: int
    seed: int
    arguments: bytes
    output: str
    runtime_environment: RuntimeEnvironment
    parent: int | None = None
    worker: Worker | None = None
    begun: bool = False
    over: bool = False
    inner: Ledger | None = None
    asked: Literal[None, "terminate", "kill"] = None
    again_s: float | None = None
    until_s: float | None = None
    ooms_before: int = 0
    outcome: Outcome | None = None
    exited: tuple[int, str] | None = None
    timer: Timer | None = None
    nested: dict[int, NestedEvents] = field(default_factory=dict)

    @property
    def state(self) -> JobState:
        """See `contract.Job`."""
        if self.over:
            return "over"
        if self.outcome is not None or self.asked is not None:
            return "ending"
        if self.worker is None:
            return "queued"
        return "running" if self.begun else "starting"

    def set_timer(self, timer: Timer | None) -> None:
        """At most one is kept: when it is told again to stop, or killed because it does not."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def printed(self) -> Output:
        """The end of its output files."""
        paths = (Path(self.output + ending) for ending in (".out", ".err"))
        return Output(*(tail(path, max_bytes=_SHOWN_BYTES, max_lines=_SHOWN_LINES) for path in paths))

    def spec(self) -> JobSpec:
        """What its process is told."""
        assert self.worker is not None, "a job that starts has a lease"
        lease = self.worker.lease
        return JobSpec(
            job_id=self.id,
            number=self.number,
            attempt=self.request.attempt,
            name=self.request.packed.name,
            seed=self.seed,
            function_id=self.request.packed.function_id,
            arguments=self.arguments,
            cpus=lease.cpus,
            gpus=tuple(share.visible for share in lease.gpus),
            gpu_fraction=lease.gpus[0].fraction if lease.gpus else 1.0,
            memory_bytes=lease.memory_bytes,
            output=self.output,
            reuse=self.request.reuse,
            runtime_environment=self.runtime_environment,
            context=self.request.context,
        )
