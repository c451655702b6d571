"""The engine of a pool on a cluster: assigns jobs to hosts and passes on their events.

Each host is a local engine behind a link (`host`). Jobs that a job submits stay on its host. Does not depend on Ray:
any process that has the pool's secret and sends `join` is a host. Before that, `versions` asks for those of this
program. Used on the event loop's thread, except where stated.

Invariant: a job is in the table until it is free, and its outcome is reported once, before that.
"""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...base.errors import ClosedError, LeaseError, NotSendableError, WorkerLostError
from ...base.text import counted
from ...links.codec import pack_error
from ...links.hub import Hub, Timer
from ...links.link import Link, Request
from ...links.peers import Ending as LinkEnding
from ..contract import Capacity, Ending, JobEvents, JobRequest, JobState, Outcome, Output, Ready
from ..contract import Job as AnyJob
from ..jobs import Report
from ..leases import Machine
from ..outcomes import exception_outcome, never_began
from ..runtime_environment import capture_environment, without_python
from ..seeds import job_seed
from ..specs import Packed, RuntimeEnvironment
from .host import HostFacts
from .placement import JobPlacement
from .versions import versions

_log = logging.getLogger(__name__)

# Timeout of a request for the output of a running job.
_OUTPUT_S = 10.0


@dataclass(slots=True, eq=False)
class ClusterJob:
    """A job, see `contract.Job`.

    Attributes:
        sent: the request as its host gets it.
        host: where it was placed.
        is_ending: the user has stopped it.
        begun: its function is about to be called, or was.
        printed: the end of its output, as its host sent it last.
    """

    id: int
    request: JobRequest
    sent: JobRequest
    events: JobEvents
    seed: int
    host: str | None = None
    is_ending: bool = False
    begun: bool = False
    over: bool = False
    outcome: Outcome | None = None
    printed: Output = field(default_factory=Output)

    @property
    def state(self) -> JobState:
        if self.over:
            return "over"
        if self.outcome is not None or self.is_ending:
            return "ending"
        if self.host is None:
            return "queued"
        return "running" if self.begun else "starting"


class ClusterEngine:
    """Runs jobs on hosts that have joined, see `contract.Engine`.

    Args:
        patience_s: how long a job waits for a host that can run it, if the only one was lost.
        description: where its hosts come from, for messages.

    Attributes:
        host_listeners: called on the loop's thread when a host has joined or was lost.
    """

    def __init__(self, hub: Hub, *, seed: int, patience_s: float, description: str = "") -> None:
        self.loop = hub
        self.seed = seed
        self.finished = 0
        self.hosts: tuple[HostFacts, ...] = ()
        self._patience_s = patience_s
        self.description = description
        self.host_listeners: list[Callable[[], None]] = []
        self._placement = JobPlacement()
        self._links: dict[str, Link] = {}
        self._facts: dict[str, HostFacts] = {}  # of `hosts`, by key
        self._jobs: dict[int, ClusterJob] = {}
        self._seen: dict[Machine, None] = {}  # machines of all hosts that ever joined
        self._seen_capacity = Capacity(())
        self._prepared: tuple[Packed, RuntimeEnvironment] | None = None
        self._last_id = 0
        self._stuck: tuple[int, Timer] | None = None
        self._environment = dict(os.environ)
        self._closed = False

    def capacity(self) -> Capacity:
        return Capacity(tuple(host.machine for host in self.hosts))

    def runtime_environment(self) -> RuntimeEnvironment:
        return without_python(capture_environment(self._environment), (sys.prefix, sys.base_prefix))

    def counts(self) -> tuple[int, int]:
        jobs = list(self._jobs.values())
        running = sum(job.begun for job in jobs)
        return running, len(jobs) - running

    def prepare(self, packed: Packed) -> None:
        self._prepared = packed, self.runtime_environment()
        for link in self._links.values():
            _notify(link, "prepare", *self._prepared)

    def submit(self, request: JobRequest, events: JobEvents) -> ClusterJob:
        """Queue a job, see `contract.Engine`. If only a lost host could run it, it waits for such a host."""
        if self._closed:
            raise ClosedError("this pool is closed. Make a new one.")
        self._seen_capacity.check(request.resources)
        self._last_id += 1
        number = self._last_id - 1 if request.number is None else request.number
        seed = self.seed if request.seed is None else request.seed
        sent = replace(
            request,
            number=number,
            seed=seed,
            runtime_environment=request.runtime_environment or self.runtime_environment(),
        )
        job = ClusterJob(self._last_id, request, sent, events, job_seed(seed, number, request.attempt))
        self._jobs[job.id] = job
        self._placement.add(job.id, request.resources, request.group)
        self._place()
        return job

    def end(self, job: AnyJob, how: Ending, *, grace_s: float | None = None) -> None:
        own = self._jobs.get(job.id)
        if own is not job or own is None:
            return
        own.is_ending = True
        if self._placement.withdraw(own.id):
            # Not now, because the caller may be updating its own tables.
            self.loop.call_soon(lambda: self._finish(own, never_began(own.id)))
        elif own.host in self._links:
            _notify(self._links[own.host], "end", own.id, how, grace_s)

    def output(self, job: AnyJob) -> Output:
        """Return the end of a job's output. Off the loop's thread, this asks the host of a running job."""
        assert isinstance(job, ClusterJob), "a job of this engine"
        link = self._links.get(job.host or "")
        if link is not None and job.outcome is None and job.begun and not self.loop.is_loop_thread:
            with contextlib.suppress(Exception):  # the last known output follows
                printed: Output | None = link.ask("output", job.id, within_s=_OUTPUT_S)
                if printed is not None and job.outcome is None:
                    return printed
        return job.printed

    def on_link(self, link: Link) -> None:
        link.handler = self._on_first_message

    def _on_first_message(self, request: Request) -> None:
        if self._closed:
            request.fail(ClosedError("this pool is closed."))
            return
        if request.method == "versions":
            request.answer(versions())
            return
        if request.method != "join":
            request.fail(LookupError("the first message of a host must be `versions` or `join`"))
            return
        facts: HostFacts = request.args[0]
        link = request.link
        if not facts.address:
            facts = replace(facts, address=link.peer.address.rpartition(":")[0].strip("[]"))
        if facts.key in self._links:
            request.fail(ClosedError(f"a host with the key {facts.key!r} has joined already."))
            return
        link.handler = functools.partial(self._on_message, facts.key)
        self._links[facts.key] = link
        if facts.machine not in self._seen:
            self._seen[facts.machine] = None
            self._seen_capacity = Capacity(tuple(self._seen))
        self._placement.join(facts.key, facts.machine)
        if self._prepared is not None:
            _notify(link, "prepare", *self._prepared)
        self._facts[facts.key] = facts
        self._update_hosts()
        request.answer()
        link.on_ended(lambda link, ending: self.loop.call_soon(lambda: self._on_host_lost(facts, ending)))
        self._place()

    def _update_hosts(self) -> None:
        self.hosts = tuple(self._facts.values())
        for listener in self.host_listeners[:]:
            self._call(listener)

    def _on_host_lost(self, facts: HostFacts, ending: LinkEnding) -> None:
        if self._links.pop(facts.key, None) is None:
            return
        del self._facts[facts.key]
        self._update_hosts()
        jobs = self._placement.leave(facts.key)
        if not self._closed:
            _log.warning("node %s was lost (%s), and %s with it", facts, ending.reason, counted(len(jobs), "job"))
        outcome = Outcome("lost", f"it was lost with its node, {facts}: {ending.reason}")
        for job_id in jobs:
            self._finish(self._jobs[job_id], outcome)
        self._place()

    def _on_message(self, host: str, request: Request) -> None:
        """Handle a message about a job. Messages about finished or moved jobs come too late."""
        job = self._jobs.get(request.args[0])
        if job is None or job.host != host:
            request.fail(LookupError(f"job {request.args[0]} has ended; {request.method!r} comes too late"))
            return
        match request.method:
            case "ready":
                _, pid, age_s, how = request.args
                job.begun = True
                ready = Ready(pid, self.loop.now_s() - age_s, how, str(self._facts.get(host, "")))
                self._call(lambda: job.events.on_ready(job, ready))
            case "report" if job.outcome is None:
                job.events.on_report(Report(job, request))
            case "ended" if job.outcome is None:
                _, outcome, job.printed = request.args
                job.outcome = outcome
                self._call(lambda: job.events.on_ended(job, outcome))
            case "free":
                job.printed = request.args[1] or job.printed
                self._placement.release(job.id)
                self._finish(job, Outcome("lost", "its host has forgotten it"))
            case method:
                request.fail(LookupError(f"unexpected message of a host: {method!r}"))

    def _finish(self, job: ClusterJob, outcome: Outcome) -> None:
        if self._jobs.pop(job.id, None) is None:
            return
        if job.outcome is None:
            job.outcome = outcome
            self._call(lambda: job.events.on_ended(job, outcome))
        job.over = True
        self.finished += 1
        self._call(lambda: job.events.on_free(job))
        self._place()

    def _call(self, call: Callable[[], None]) -> None:
        """Call an event handler. Its errors must not leave the tables half updated."""
        try:
            call()
        except BaseException:  # of user code, on our thread
            _log.exception("an event handler of a job failed; the pool continues")

    def _place(self) -> None:
        if self._closed:
            return
        for placed in self._placement.place():
            job = self._jobs[placed.job]
            job.host = placed.host
            try:
                _notify(self._links[placed.host], "submit", job.id, job.sent)
            except NotSendableError as error:
                self._placement.release(job.id)
                outcome = exception_outcome(pack_error(error), None, "")
                self.loop.call_soon(functools.partial(self._finish, job, outcome))
        self._watch_stuck()

    def _watch_stuck(self) -> None:
        """Limit the time for which the first queued job waits for a host that can run it."""
        job_id = self._placement.stuck
        if self._stuck is not None and self._stuck[0] != job_id:
            self._stuck[1].cancel()
            self._stuck = None
        if job_id is not None and self._stuck is None:
            timer = self.loop.call_at(self.loop.now_s() + self._patience_s, lambda: self._on_patience_over(job_id))
            self._stuck = (job_id, timer)

    def _on_patience_over(self, job_id: int) -> None:
        self._stuck = None
        if self._closed or self._placement.stuck != job_id:
            return
        job = self._jobs[job_id]
        self._placement.withdraw(job_id)
        try:
            self.capacity().check(job.request.resources)
            why = ""
        except LeaseError as error:
            why = error.message
        text = f"no node came within {self._patience_s:g} s that could run it, after one was lost: {why}"
        self._finish(job, Outcome("lost", text))

    def close(self) -> None:
        """End every job now. Hosts end their jobs and themselves when their links end."""
        if self._closed:
            return
        self._closed = True
        links, self._links = self._links, {}
        for link in links.values():
            link.close("the pool was closed")
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            job.over = True
            if job.outcome is None:
                outcome = job.outcome = Outcome("stopped", f"job {job.id} was ended because its pool was closed")
                self._call(functools.partial(job.events.on_ended, job, outcome))
            self._call(functools.partial(job.events.on_free, job))


def _notify(link: Link, method: str, *args: object) -> None:
    with contextlib.suppress(ClosedError, WorkerLostError):
        link.notify(method, *args)
