"""A host: a local engine on a node, which does what the pool at the other end of its link says, and tells what happens.

    pool --prepare, submit, end, output--> Host --> LocalEngine of this node
    pool <--ready, report, ended, free---- Host <-- its events

It begins with `join`. When its link ends, in whatever way, everything that runs here is ended (`serving`): a host that
nobody directs may not hold a node's devices. Runs on its hub's thread; knows nothing of who started it.
"""

from dataclasses import replace
from pathlib import Path

from ...base.errors import ClosedError, WorkerLostError
from ...links.codec import pack_error, with_note
from ...links.link import Link, Request
from ...links.link import Reply as Asked
from ..contract import GO_ON, Engine, Job, JobRequest, Outcome, Output, Ready, Reply, Report
from ..outcomes import exception_outcome, to_send
from ..specs import RuntimeEnvironment
from .hosts import HostFacts
from .surroundings import fitted


class Host:
    """See the module.

    Args:
        link: to the pool; its handler is this from now on.
        here: the folder and `sys.path` of this node.
    """

    def __init__(self, link: Link, engine: Engine, facts: HostFacts, here: RuntimeEnvironment) -> None:
        self._link = link
        self._engine = engine
        self._facts = facts
        self._here = here
        self._jobs: dict[int, Job] = {}
        link.handler = self._heard

    def join(self) -> Asked:
        """Say who this is. The answer comes when the pool has taken it in."""
        return self._link.call("join", self._facts)

    def _heard(self, request: Request) -> None:
        match request.method:
            case "prepare":
                self._engine.prepare(request.args[0])
            case "submit":
                self._submit(*request.args)
            case "end":
                job_id, how, grace_s = request.args
                if (job := self._jobs.get(job_id)) is not None:
                    self._engine.end(job, how, grace_s=grace_s)
            case "output":
                running = self._jobs.get(request.args[0])
                request.answer(None if running is None else self._engine.output(running))
            case other:
                request.fail(LookupError(f"no pool says {other!r}"))

    def _submit(self, job_id: int, request: JobRequest) -> None:
        assert request.runtime_environment is not None, "the pool's side says where its jobs run"
        here = replace(
            request,
            runtime_environment=fitted(request.runtime_environment, self._here),
            output=_kept_here(request.output),
        )
        try:
            self._jobs[job_id] = self._engine.submit(here, _Forwarded(self, job_id))
        except Exception as error:  # whatever it is, the job has ended and somebody waits for it
            self.tell("ended", job_id, exception_outcome(pack_error(error), None, ""), Output())
            self.tell("free", job_id, None)

    def tell(self, method: str, *args: object) -> None:
        """Tell the pool; when the link has ended, everything here ends too."""
        try:
            self._link.notify(method, *args)
        except (ClosedError, WorkerLostError):
            pass

    def ask(self, report: Report, job_id: int) -> None:
        """Hand a report to the pool, and its answer to the job."""

        def answered(asked: Asked) -> None:
            try:
                told = asked.result()
            except BaseException as error:
                report.refuse(error)
                return
            if told == "CONTINUE":
                report.answer(GO_ON)
            else:
                report.answer(Reply(*((told,) if isinstance(told, str) else told)))

        try:
            asked = self._link.call("report", job_id, report.values, report.worker_time_s, report.checkpoint)
        except (ClosedError, WorkerLostError):
            report.answer(Reply("STOP"))
            return
        asked.add_done_callback(answered)

    def where(self, outcome: Outcome) -> Outcome:
        """With the name of this node, where something has failed: it may be its files, its memory or its devices."""
        note = f"(on node {self._facts})"
        if outcome.kind in ("returned", "stopped"):
            return outcome
        if not outcome.payload:
            return replace(outcome, text=f"{outcome.text}\n{note}")
        trace = f"{outcome.traceback.rstrip()}\n{note}\n"
        return replace(outcome, traceback=trace, payload=with_note(outcome.payload, note))

    def printed(self, job: Job) -> Output:
        return self._engine.output(job)

    def age_s(self, ready: Ready) -> float:
        return self._engine.loop.now_s() - ready.started_s

    def forget(self, job_id: int) -> None:
        self._jobs.pop(job_id, None)


def _kept_here(output: str | None) -> str | None:
    """Where a job's output is kept; a node that does not see that folder keeps it as long as the job is there."""
    return output if output is not None and Path(output).parent.is_dir() else None


class _Forwarded:
    """What the engine of this node tells of a job, on its way to the pool."""

    def __init__(self, host: Host, job_id: int) -> None:
        self._host = host
        self._id = job_id
        self._printed = Output()

    def on_ready(self, job: Job, ready: Ready) -> None:
        self._host.tell("ready", self._id, ready.pid, self._host.age_s(ready), ready.how)

    def on_report(self, report: Report) -> None:
        self._host.ask(report, self._id)

    def on_ended(self, job: Job, outcome: Outcome) -> None:
        self._printed = self._host.printed(job)
        self._host.tell("ended", self._id, to_send(self._host.where(outcome)), self._printed)

    def on_free(self, job: Job) -> None:
        printed = self._host.printed(job)
        self._host.forget(self._id)
        self._host.tell("free", self._id, None if printed == self._printed else printed)
