"""The node's side of a pool on a cluster: a local engine behind a link to the pool.

The first message is `join`. When the link ends, `serve` ends everything on this node, because a host without a pool
must not hold its devices. Used on the event loop's thread, except `serve`, which blocks. Does not depend on Ray.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...base.errors import ClosedError, WorkerLostError
from ...links.codec import pack_error, with_note
from ...links.hub import Hub
from ...links.link import Link, Request
from ...links.link import Reply as Asked
from ...links.peers import Ending as LinkEnding
from ..backend import Lifetime
from ..contract import Job, JobRequest, Outcome, Output, Ready, Reply, Report, unpack_reply
from ..devices import find_machine
from ..engine import LocalEngine
from ..jobs import to_send
from ..leases import Machine
from ..outcomes import exception_outcome
from ..runtime_environment import capture_environment, localize
from ..specs import RuntimeEnvironment


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host's description of itself when it joins a pool.

    Attributes:
        key: identifies the host process. A new process for the same node has a new key.
        node: Ray's id of its node; empty without Ray.
        address: empty: the one from which it connects.
        hostname: name in messages.
        machine: the resources that its jobs share.
    """

    key: str
    node: str
    address: str
    hostname: str
    pid: int
    machine: Machine

    def __str__(self) -> str:
        node = f"node {self.node[:8]}" if self.node else ""
        details = ", ".join(filter(None, (self.address, node)))
        return f"{self.hostname} ({details})" if details != self.hostname else self.hostname


class Host:
    """Runs the jobs of a pool on this node.

    Args:
        link: link to the pool, whose handler is replaced.
        node_environment: working folder and `sys.path` of this node.
    """

    def __init__(self, link: Link, engine: LocalEngine, facts: HostFacts, node_environment: RuntimeEnvironment) -> None:
        self._link = link
        self.engine = engine
        self._facts = facts
        self._node_environment = node_environment
        self.jobs: dict[int, Job] = {}
        link.handler = self._on_request

    def join(self) -> Asked:
        """Send `join`. The reply arrives when the pool has accepted this host."""
        return self._link.call("join", self._facts)

    def _on_request(self, request: Request) -> None:
        match request.method:
            case "prepare":
                packed, environment = request.args
                self.engine.worker_set.warm_up(packed, localize(environment, self._node_environment))
            case "submit":
                self._submit(*request.args)
            case "end":
                job_id, how, grace_s = request.args
                if (job := self.jobs.get(job_id)) is not None:
                    self.engine.end(job, how, grace_s=grace_s)
            case "output":
                running = self.jobs.get(request.args[0])
                request.answer(None if running is None else self.engine.output(running))
            case method:
                request.fail(LookupError(f"unknown message of a pool: {method!r}"))

    def _submit(self, job_id: int, request: JobRequest) -> None:
        assert request.runtime_environment is not None, "set by the pool's side"
        local = replace(
            request,
            runtime_environment=localize(request.runtime_environment, self._node_environment),
            # Temporary files if this node does not have the folder.
            output=request.output if request.output is not None and Path(request.output).parent.is_dir() else None,
        )
        try:
            self.jobs[job_id] = self.engine.submit(local, _Forwarded(self, job_id))
        except Exception as error:
            self.notify("ended", job_id, exception_outcome(pack_error(error), None, ""), Output())
            self.notify("free", job_id, None)

    def notify(self, method: str, *args: object) -> None:
        """Send a notification. If the link has ended, everything on this node ends anyway."""
        try:
            self._link.notify(method, *args)
        except (ClosedError, WorkerLostError):
            pass

    def forward(self, report: Report, job_id: int) -> None:
        """Send a report to the pool, and its answer to the job."""

        def on_answer(reply: Asked) -> None:
            try:
                report.answer(unpack_reply(reply.result()))
            except BaseException as error:
                report.refuse(error)

        try:
            reply = self._link.call("report", job_id, report.values, report.worker_time_s, report.checkpoint)
        except (ClosedError, WorkerLostError):
            report.answer(Reply("STOP"))
            return
        reply.add_done_callback(on_answer)

    def with_node(self, outcome: Outcome) -> Outcome:
        """Add the name of this node to a failure, which may be caused by its files, memory or devices."""
        note = f"(on node {self._facts})"
        if outcome.kind in ("returned", "stopped"):
            return outcome
        if not outcome.payload:
            return replace(outcome, text=f"{outcome.text}\n{note}")
        trace = f"{outcome.traceback.rstrip()}\n{note}\n"
        return replace(outcome, traceback=trace, payload=with_note(outcome.payload, note))


class _Forwarded:
    """Forwards the events of a job to the pool."""

    def __init__(self, host: Host, job_id: int) -> None:
        self._host = host
        self._id = job_id
        self._printed = Output()

    def on_ready(self, job: Job, ready: Ready) -> None:
        self._host.notify("ready", self._id, ready.pid, self._host.engine.loop.now_s() - ready.started_s, ready.how)

    def on_report(self, report: Report) -> None:
        self._host.forward(report, self._id)

    def on_ended(self, job: Job, outcome: Outcome) -> None:
        self._printed = self._host.engine.output(job)
        self._host.notify("ended", self._id, to_send(self._host.with_node(outcome)), self._printed)

    def on_free(self, job: Job) -> None:
        printed = self._host.engine.output(job)
        del self._host.jobs[self._id]
        self._host.notify("free", self._id, None if printed == self._printed else printed)


# -- the process of a host ---------------------------------------------------------------------------------------------


def serve(key: str, node: str, address: str, bundle: Mapping[str, float], listener: Mapping[str, Any]) -> str:
    """Run jobs on a node of Ray's for a pool. Blocks until the link ends. Return the reason of the end.

    Args:
        node, address: the cluster's id and address of this machine.
        bundle: amounts of CPU, GPU and memory that belong to the pool.
        listener: host, port and secret of the pool.
    """
    from ...links.security.certificates import Identity
    from ...links.transports.tcp import dial_tcp

    machine = machine_of(find_machine(), bundle)
    facts = HostFacts(key, node, address, socket.gethostname(), os.getpid(), machine)
    identity = Identity(listener["secret"])
    return run_host(facts, lambda hub: dial_tcp(hub, listener["host"], listener["port"], identity)).reason


def run_host(
    facts: HostFacts, dial: Callable[[Hub], Link], on_open: Callable[[Link], None] = lambda link: None
) -> LinkEnding:
    """Run jobs on this machine for a pool. Blocks until the link ends, or an exception such as KeyboardInterrupt.

    Args:
        dial: returns a link to the pool that is not open yet.
        on_open: called before this machine joins. If it raises, this machine does not join.

    Raises:
        ClosedError, WorkerLostError: the pool was closed, or the link ended, before this machine had joined.
    """
    life = Lifetime(lambda backend: LocalEngine(backend, seed=0, machine=facts.machine))
    try:
        engine = life.start()
        assert isinstance(engine, LocalEngine) and life.hub is not None, "comes with the engine"
        link = dial(life.hub)
        host = Host(link, engine, facts, capture_environment())
        ended = threading.Event()
        link.on_ended(lambda link, ending: ended.set())
        try:
            link.open()
            on_open(link)
            host.join().result()
            ended.wait()
        finally:
            # Before the jobs end, so that they are reported as lost and not as stopped.
            link.close("its host was ended")
        assert link.ending is not None, "it has ended"
        return link.ending
    finally:
        life.close()


def machine_of(machine: Machine, bundle: Mapping[str, float]) -> Machine:
    """Return the part of a machine that a bundle contains.

    >>> machine_of(Machine(cpus=8, memory_bytes=64), {"CPU": 2}).cpus
    2
    """
    gpus = machine.gpus[: int(bundle.get("GPU", 0))]
    memory = int(bundle.get("memory", 0)) or machine.memory_bytes
    return Machine(int(bundle.get("CPU", 1)), memory, gpus)
