"""What the engine knows of a job and of the worker process that runs it, and what it tells whoever submitted the job.

A worker process holds a lease from its start to its end; as a rule it runs one job, a reused one runs many of the same
need, one after another, and waits in between with an open question for the next.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from ..links import Link, Request, Timer
from .functions import Packed
from .gpu_return import HeldGpus
from .leases import Lease, Ledger, Need
from .outcomes import Outcome
from .specs import How, JobSpec, Surroundings


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

    def on_ready(self, job: "Job", pid: int, started_s: float, how: How) -> None:
        """The submitter is not told."""

    def on_report(self, report: Report) -> None:
        report.answer("CONTINUE")

    def on_outcome(self, job: "Job", outcome: Outcome) -> None:
        self._outcome = outcome

    def on_finished(self, job: "Job") -> None:
        self._finished = True
        self._tell()

    def _tell(self) -> None:
        if self._request is not None and self._outcome is not None and self._finished:
            self._request.answer(self._outcome.to_send())


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
    need: Need
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
        worker: its process, from the moment it has a lease; None while it is queued.
        begun: the worker said that it is about to call the function.
        inner: the leases of the jobs that this one submits, within its own.
        asked: what was sent to end it.
        again_s, until_s: when it is told once more, and when it is killed, because it has not ended.
        exited: the exit status of its process, and why when that is known from elsewhere.
    """

    id: int
    packed: Packed
    arguments: bytes
    need: Need
    events: JobEvents
    number: int
    attempt: int
    seed: int
    output: str
    keep_output: bool
    reuse: bool
    surroundings: Surroundings
    parent: int | None = None
    worker: Worker | None = None
    begun: bool = False
    inner: Ledger | None = None
    asked: Literal[None, "terminate", "kill"] = None
    again_s: float | None = None
    until_s: float | None = None
    ooms_before: int = 0
    outcome: Outcome | None = None
    exited: tuple[int, str] | None = None
    timer: Timer | None = None
    nested: dict[int, NestedEvents] = field(default_factory=dict)

    def set_timer(self, timer: Timer | None) -> None:
        """At most one is kept: when it is told again to stop, or killed because it does not."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def spec(self) -> JobSpec:
        """What its process is told."""
        assert self.worker is not None, "a job that starts has a lease"
        lease = self.worker.lease
        return JobSpec(
            job_id=self.id,
            number=self.number,
            name=self.packed.name,
            seed=self.seed,
            function_id=self.packed.function_id,
            arguments=self.arguments,
            cpus=lease.cpus,
            gpus=tuple(share.visible for share in lease.gpus),
            gpu_fraction=lease.gpus[0].fraction if lease.gpus else 1.0,
            memory_bytes=lease.memory_bytes,
            output=self.output,
            reuse=self.reuse,
            surroundings=self.surroundings,
        )
