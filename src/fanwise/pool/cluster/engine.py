"""The engine of a pool over many hosts: which host runs which job, and what is told of it. On the hub's thread only.

    submit --> placement --a host has room--> submit on its link --> ready, reports, ended, free come back
    a link ends --> each job of that host ends as lost, and is free
    a host joins --> jobs that wait are placed there in the same turn

Each host is a local engine behind a link (`host`), and this forwards: a job that was placed is as good as one of a
local pool, jobs that it submits itself stay on its host, and its reports are calls that wait for their answers. Knows
nothing of who starts hosts, and so nothing of Ray: whoever holds the pool's secret and says `join` is one.

Invariant: a job is in the table until it is free, and an outcome is told once, before that.
"""

import functools
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from ...base.errors import ClosedError, ClusterError, LeaseError, NotSendableError, WorkerLostError
from ...base.text import counted
from ...links.codec import pack_error
from ...links.hub import Hub, Timer
from ...links.link import Link, Reply, Request
from ...links.peers import Ending
from ..contract import Capacity, JobEvents, JobRequest, Outcome, Output, Ready
from ..contract import Ending as HowToEnd
from ..contract import Job as AnyJob
from ..leases import Machine
from ..outcomes import exception_outcome
from ..runtime_environment import look
from ..seeds import job_seed
from ..specs import How, Packed, RuntimeEnvironment
from .hosts import HostFacts
from .jobs import ClusterJob, ClusterReport
from .placement import JobPlacement
from .surroundings import of_the_user

_log = logging.getLogger(__name__)

# How long to wait for what a job that still runs has printed.
_OUTPUT_WITHIN_S = 10.0

HostsChanged = Callable[[tuple[HostFacts, ...]], None]


def _result_of(reply: Reply) -> Output | None:
    """What a host says a job has printed; None when it says nothing."""
    try:
        printed: Output | None = reply.result()
    except Exception:
        return None
    return printed


class ClusterEngine:
    """Jobs on hosts that have joined; an engine as `contract` says.

    Args:
        patience_s: a job waits so long for a host that could run it at all, when there was one and it was lost.
        on_hosts: is told all hosts whenever one has joined or was lost. On the hub's thread.
    """

    def __init__(self, hub: Hub, *, seed: int, patience_s: float, on_hosts: HostsChanged = lambda hosts: None) -> None:
        self.loop = hub
        self.seed = seed
        self.finished = 0
        self.started: Counter[How] = Counter()
        self.connections_refused = 0
        self.hosts: tuple[HostFacts, ...] = ()
        self._patience_s = patience_s
        self._on_hosts = on_hosts
        self._placement = JobPlacement()
        self._links: dict[str, Link] = {}
        self._facts: dict[str, HostFacts] = {}  # of `hosts`, by their keys
        self._jobs: dict[int, ClusterJob] = {}
        self._seen: dict[Machine, None] = {}  # machines of all hosts that were ever here
        self._ever = Capacity(())  # of these
        self._prepared: Packed | None = None
        self._last_id = 0
        self._stuck: tuple[int, Timer] | None = None
        self._environment = dict(os.environ)
        self._given_up = ""
        self._closed = False

    def capacity(self) -> Capacity:
        """What the hosts have that are here now. May be called by any thread."""
        return Capacity(tuple(host.machine for host in self.hosts))

    def runtime_environment(self) -> RuntimeEnvironment:
        """That of this process now, as jobs elsewhere are told it. May be called by any thread."""
        return of_the_user(look(self._environment), (sys.prefix, sys.base_prefix))

    def counts(self) -> tuple[int, int]:
        """How many jobs run, and how many wait to begin. May be called by any thread."""
        jobs = list(self._jobs.values())
        running = sum(job.begun for job in jobs)
        return running, len(jobs) - running

    def prepare(self, packed: Packed) -> None:
        """Begin to load a function on every host, and on those that join later."""
        self._prepared = packed
        for link in self._links.values():
            _tell(link, "prepare", packed)

    # -- submitting and ending ---------------------------------------------------------------------------------------

    def submit(self, request: JobRequest, events: JobEvents) -> ClusterJob:
        """Queue a job, see `contract.Engine`. One that only a lost host could run waits for such a host to come."""
        if self._closed:
            raise ClosedError("this pool is closed. Make a new one.")
        if self._given_up and not self._links:
            raise ClusterError(self._given_up)
        self._ever.check(request.resources)
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

    def end(self, job: AnyJob, how: HowToEnd, *, grace_s: float | None = None) -> None:
        """End a job, see `contract.Engine`."""
        own = self._jobs.get(job.id)
        if own is not job or own is None:
            return
        own.asked = True
        if self._placement.withdraw(own.id):
            stopped = Outcome("stopped", f"job {own.id} was stopped before it began")
            # Later in this turn: whoever stops it may be in the middle of its own book-keeping.
            self.loop.call_soon(lambda: self._over(own, stopped))
        elif own.host in self._links:
            _tell(self._links[own.host], "end", own.id, how, grace_s)

    def output(self, job: AnyJob) -> Output:
        """What a job printed last; of one that runs its host is asked, which blocks. By any thread.

        On the hub's thread, which must not block, what the host has told last.
        """
        assert isinstance(job, ClusterJob), "a job of this engine"
        if job.outcome is None and job.begun and not self.loop.is_loop_thread:
            asked = threading.Event()
            self.loop.call_soon(lambda: self._ask_output(job, asked.set))
            asked.wait(_OUTPUT_WITHIN_S)
        return job.printed

    def _ask_output(self, job: ClusterJob, then: Callable[[], None]) -> None:
        link = self._links.get(job.host or "")
        if link is None or job.outcome is not None:
            then()
            return

        def told(printed: Output | None) -> None:
            if printed is not None and job.outcome is None:
                job.printed = printed
            then()

        try:
            reply = link.call("output", job.id)
        except (ClosedError, WorkerLostError):
            then()
            return
        reply.add_done_callback(lambda reply: told(_result_of(reply)))

    # -- hosts -------------------------------------------------------------------------------------------------------

    def on_link(self, link: Link) -> None:
        """Somebody who holds the secret has connected."""
        link.handler = self._first_words

    def _first_words(self, request: Request) -> None:
        if request.method != "join" or self._closed:
            request.fail(ClosedError("this pool is closed.") if self._closed else LookupError("a host says join first"))
            return
        facts: HostFacts = request.args[0]
        link = request.link
        if facts.key in self._links:
            request.fail(ClosedError(f"a host with the key {facts.key!r} has joined already."))
            return
        link.handler = functools.partial(self._heard, facts.key)
        self._links[facts.key] = link
        if facts.machine not in self._seen:
            self._seen[facts.machine] = None
            self._ever = Capacity(tuple(self._seen))
        self._placement.join(facts.key, facts.machine)
        request.answer()
        if self._prepared is not None:
            _tell(link, "prepare", self._prepared)
        self._facts[facts.key] = facts
        self._set_hosts()
        link.on_ended(lambda link, ending: self.loop.call_soon(lambda: self._lost(facts, ending)))
        self._place()

    def _set_hosts(self) -> None:
        self.hosts = tuple(self._facts.values())
        self._on_hosts(self.hosts)

    def _lost(self, facts: HostFacts, ending: Ending) -> None:
        """A host is gone, with all that ran on it."""
        if self._links.pop(facts.key, None) is None:
            return
        del self._facts[facts.key]
        self._set_hosts()
        jobs = self._placement.leave(facts.key)
        if not self._closed:
            _log.warning("node %s was lost (%s), and %s with it", facts, ending.reason, counted(len(jobs), "job"))
        outcome = Outcome("lost", f"it was lost with its node, {facts}: {ending.reason}")
        for job_id in jobs:
            self._over(self._jobs[job_id], outcome)
        self._drop_waiting()
        self._place()

    # -- what hosts tell ---------------------------------------------------------------------------------------------

    def _heard(self, host: str, request: Request) -> None:
        """A message about a job; one about a job that is over, or has moved, comes too late."""
        job = self._jobs.get(request.args[0])
        if job is None or job.host != host:
            request.fail(LookupError(f"job {request.args[0]} has ended; {request.method!r} comes too late"))
            return
        match request.method:
            case "ready":
                self._ready(job, *request.args[1:])
            case "report" if job.outcome is None:
                job.events.on_report(ClusterReport(job, request))
            case "ended":
                self._ended(job, *request.args[1:])
            case "free":
                self._free(job, request.args[1])
            case other:
                request.fail(LookupError(f"no host says {other!r} now"))

    def _ready(self, job: ClusterJob, pid: int, age_s: float, how: How) -> None:
        job.begun = True
        self.started[how] += 1
        facts = self._facts.get(job.host or "")
        node = "" if facts is None else str(facts)
        self._call(lambda: job.events.on_ready(job, Ready(pid, self.loop.now_s() - age_s, how, node)))

    def _ended(self, job: ClusterJob, outcome: Outcome, printed: Output) -> None:
        if job.outcome is None:
            job.outcome, job.printed = outcome, printed
            self._call(lambda: job.events.on_ended(job, outcome))

    def _free(self, job: ClusterJob, printed: Output | None) -> None:
        if printed is not None:
            job.printed = printed
        self._placement.release(job.id)
        self._over(job, Outcome("lost", "its host has forgotten it"))

    def _over(self, job: ClusterJob, outcome: Outcome) -> None:
        """Nothing of it is left. `outcome`: if none was told before."""
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
        """A submitter that fails must not leave the books half-written."""
        try:
            call()
        except BaseException:  # of user code, on our own thread
            _log.exception("whoever submitted a job failed when it was told of it; the pool goes on")

    # -- placing -----------------------------------------------------------------------------------------------------

    def _place(self) -> None:
        if self._closed:
            return
        for placed in self._placement.place():
            job = self._jobs[placed.job]
            job.host = placed.host
            self._send(job, self._links[placed.host])
        self._mind_stuck()

    def _send(self, job: ClusterJob, link: Link) -> None:
        try:
            _tell(link, "submit", job.id, job.sent)
        except NotSendableError as error:
            outcome = exception_outcome(pack_error(error), None, "")
            self._placement.release(job.id)
            self.loop.call_soon(lambda: self._over(job, outcome))

    def _mind_stuck(self) -> None:
        """The first job in line may need what no host here has: wait for one that has, and not for ever."""
        job_id = self._placement.stuck
        if self._stuck is not None and self._stuck[0] != job_id:
            self._stuck[1].cancel()
            self._stuck = None
        if job_id is not None and self._stuck is None:
            timer = self.loop.call_at(self.loop.now_s() + self._patience_s, lambda: self._give_up(job_id))
            self._stuck = (job_id, timer)

    def _give_up(self, job_id: int) -> None:
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
        self._over(job, Outcome("lost", text))

    # -- the end -----------------------------------------------------------------------------------------------------

    def give_up(self, reason: str) -> None:
        """No host will join any more. Once all are lost, jobs that wait end as lost, and new ones are refused."""
        self._given_up = reason
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        if self._given_up and not self._links:
            for job in [job for job in self._jobs.values() if self._placement.withdraw(job.id)]:
                self._over(job, Outcome("lost", self._given_up))

    def close(self) -> None:
        """End every job now, and let the hosts go: they end what runs there, and themselves, when their links end."""
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


def _tell(link: Link, method: str, *args: object) -> None:
    """Tell a host; when its link has ended, its loss is on its way."""
    try:
        link.notify(method, *args)
    except (ClosedError, WorkerLostError):
        pass
