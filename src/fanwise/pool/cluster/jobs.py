"""What the pool's side knows of a job that runs on another machine, and what it tells whoever submitted it."""

from dataclasses import dataclass, field
from typing import Any

from ...links.link import Request
from ..contract import JobEvents, JobRequest, JobState, Outcome, Output, Reply


@dataclass(slots=True, eq=False)
class ClusterJob:
    """One job, see `contract.Job`.

    Attributes:
        request: as it was submitted; sent: as its host gets it.
        host: where it runs, from the moment it was placed.
        asked: it was told to end.
        begun: its function is about to be called, or was.
        outcome: how it ended, once that is known.
        printed: the end of its output, as its host told it last.
    """

    id: int
    request: JobRequest
    sent: JobRequest
    events: JobEvents
    seed: int
    host: str | None = None
    asked: bool = False
    begun: bool = False
    over: bool = False
    outcome: Outcome | None = None
    printed: Output = field(default_factory=Output)

    @property
    def state(self) -> JobState:
        """See `contract.Job`."""
        if self.over:
            return "over"
        if self.outcome is not None or self.asked:
            return "ending"
        if self.host is None:
            return "queued"
        return "running" if self.begun else "starting"


class ClusterReport:
    """What a job reported, see `contract.Report`. The answer goes to its host, which has asked."""

    __slots__ = ("_request", "checkpoint", "job", "values", "worker_time_s")

    def __init__(self, job: ClusterJob, request: Request) -> None:
        self.job = job
        self._request = request
        self.values: Any  # Any: whatever the job reported
        _, self.values, self.worker_time_s, self.checkpoint = request.args

    def answer(self, reply: Reply) -> None:
        self._request.answer(reply.decision if reply.body is None else (reply.decision, reply.body))

    def refuse(self, error: BaseException) -> None:
        self._request.fail(error)
