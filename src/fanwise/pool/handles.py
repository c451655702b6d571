r"""The handle of a submitted job: what its submitter asks and tells, and what becomes of it, retries included.

    Pool.submit --> JobHandle --submit--> engine --on_ready, on_report, on_ended, on_free--> JobHandle
                        \-- retries left and it failed: submitted again

Its user may be any thread; what the engine tells comes on the hub's thread. A handle that is done keeps the outcome and
the end of the output, and neither the arguments nor the link.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from ..base.errors import DeadlineExceeded
from ..links.codec import pack_error
from .contract import GO_ON, Decision, Engine, Job, JobRequest, JobState, Outcome, Output, Ready, Reply, Report
from .leases import Resources
from .leftovers import GRACE_S
from .lifetime import Lifetime, closed_error
from .outcomes import exception_outcome, value_of
from .settings import grace_of, limit_of, require_bool, require_callable_or_none, require_int, require_int_or_none
from .specs import How, Packed, RuntimeEnvironment

_log = logging.getLogger(__name__)

# Failures that say nothing against the function itself: `retries=` repeats these and exceptions alike.
_FAILED = frozenset(("exception", "exit", "signal", "out-of-memory", "gpu-fault", "lost"))

_SHOWN = 100  # characters of a failure in a repr


OnReport = Callable[[Any], str | Reply]  # Any: what the job reports


@dataclass(frozen=True, slots=True)
class Options:
    """What goes with a submit beside the resources."""

    number: int | None = None
    reuse: bool = False
    retries: int = 0
    on_report: OnReport | None = None

    def __post_init__(self) -> None:
        require_int_or_none("number", self.number, least=0)
        require_bool("reuse", self.reuse)
        require_int("retries", self.retries, least=0)
        require_callable_or_none("on_report", self.on_report)


@dataclass(frozen=True, slots=True)
class Call:
    """All of a submit."""

    packed: Packed
    resources: Resources
    options: Options
    runtime_environment: RuntimeEnvironment


class JobHandle:
    """A submitted job.

    Attributes:
        id: the pool's number for it; a retry gets a new one.
        seed: what random, numpy and torch are seeded with in its process.
        pid, how: its process, and how that came to be; None until it is about to call the function.
    """

    def __init__(self, life: Lifetime, call: Call) -> None:
        self.name = call.packed.name
        self.id = 0
        self.seed = 0
        self.pid: int | None = None
        self.how: How | None = None
        self._life = life
        self._call: Call | None = call
        self._attempt = 0
        self._job: Job | None = None
        self._outcome: Outcome | None = None
        self._finished = threading.Event()
        self._began = threading.Event()
        self._callbacks: list[Callable[[JobHandle], None]] = []
        self._output = Output()
        self._stopped = False
        self._is_alone = False  # it gets the whole GPU instead of its share

    def result(self, within_s: float | None = None) -> Any:  # Any: the function's result
        """Block until the job's process is gone; its result, or what it raised, in the original type.

        Raises:
            DeadlineExceeded: it has not ended within `within_s` seconds; it goes on.
            WorkerLostError: it died without a result; the text says how.
            TrialStopped: it was stopped.
            ClosedError: this process was forked from the one that submitted it, before it ended.
        """
        return value_of(self.outcome(within_s))

    def outcome(self, within_s: float | None = None) -> Outcome:
        """Block until the job's process is gone; how it ended, without raising."""
        if not self._finished.is_set():
            self._life.check_process()
        if not self._finished.wait(limit_of(within_s)):
            raise DeadlineExceeded(f"job {self.id} {self.name!r} has not ended within {within_s} s; it goes on.")
        assert self._outcome is not None, "finished jobs have an outcome"
        return self._outcome

    def done(self) -> bool:
        """Whether the job's process is gone."""
        return self._finished.is_set()

    def queued(self) -> bool:
        """Whether it waits for CPUs, GPUs or memory that other jobs hold."""
        return self._where() == "queued"

    def wait_began(self, within_s: float | None = None) -> bool:
        """Block until the job's process is about to call the function; False when the time ran out."""
        return self._began.wait(limit_of(within_s))

    def add_done_callback(self, callback: "Callable[[JobHandle], None]") -> None:
        """Call `callback(self)` on the pool's thread when the job is done; at once when it is. It must not block."""
        if not self._life.on_hub(
            lambda: self._call_back(callback) if self.done() else self._callbacks.append(callback)
        ):
            callback(self)

    def stop(self, grace_s: float = 5.0) -> None:
        """Tell the job to end: SIGTERM raises `TrialStopped` in it; SIGKILL follows after `grace_s`. Does not block.

        A job that still lives after a second gets SIGTERM once more; only one that has not seen the first notices.

        Raises TypeError or ValueError when `grace_s` is not a number of seconds.
        """
        seconds = grace_of(grace_s)
        self._end(lambda engine, job: engine.end(job, "terminate", grace_s=seconds))

    def kill(self) -> None:
        """End the job and all it started by SIGKILL, now. Does not block."""
        self._end(lambda engine, job: engine.end(job, "kill"))

    def _end(self, how: Callable[[Engine, Job], None]) -> None:
        self._stopped = True
        self._life.on_hub(lambda: how(self._life.engine_here, self._job) if self._job is not None else None)

    def output(self) -> tuple[str, str]:
        """The last 64 KiB of its standard output and of its standard error."""
        job = self._job
        printed = self._output if job is None else self._life.engine_here.output(job)
        return printed.out, printed.err

    def __repr__(self) -> str:
        tried = f", try {self._attempt + 1}" if self._attempt else ""
        process = f", pid {self.pid}" if self.pid is not None else ""
        return f"<JobHandle {self.id} {self.name!r}: {self._state()}{process}{tried}>"

    def _state(self) -> str:
        outcome = self._outcome
        if self.done() and outcome is not None:
            line = outcome.text.partition("\n")[0]
            shown = line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
            return outcome.kind if outcome.kind == "returned" else f"{outcome.kind} ({shown})"
        return self._where()

    def _where(self) -> JobState:
        job = self._job
        if self.done():
            return "over"
        return "queued" if job is None else job.state

    # -- on the hub's thread ---------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Raises what the engine raises."""
        call = self._call
        assert call is not None, "kept until the last attempt has ended"
        wanted = JobRequest(
            call.packed,
            replace(call.resources, gpus=1) if self._is_alone else call.resources,
            number=call.options.number,
            attempt=self._attempt,
            reuse=call.options.reuse,
            runtime_environment=call.runtime_environment,
        )
        self._job = self._life.engine_here.submit(wanted, self)
        self.id, self.seed = self._job.id, self._job.seed

    def on_ready(self, job: Job, ready: Ready) -> None:
        self.pid, self.how = ready.pid, ready.how
        self._began.set()

    def on_report(self, report: Report) -> None:
        on_report = self._call.options.on_report if self._call is not None else None
        if on_report is None:
            report.answer(GO_ON)
            return
        try:
            told = on_report(report.values)
            if not isinstance(told, Reply):
                told = GO_ON if told == "CONTINUE" else Reply(cast(Decision, told))  # which checks it
            report.answer(told)
        except BaseException as error:  # on our own thread: also what leaves by sys.exit is for the job that reported
            report.refuse(error)

    def on_ended(self, job: Job, outcome: Outcome) -> None:
        self._outcome = outcome
        if outcome.threads:
            _log.warning(
                "job %d %r has ended and left a thread running: %s. Its process exits after %g s even if the thread is "
                "still running. Join the thread before the function returns, or make it a daemon.",
                *(self.id, self.name, "; ".join(outcome.threads), GRACE_S),
            )

    def on_free(self, job: Job) -> None:
        self._output = self._life.engine_here.output(job)
        if self._tries_again():
            return
        self._job = self._call = None  # whoever keeps the handle shall not keep the arguments and the link
        self._finished.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call_back(callback)

    def _call_back(self, callback: "Callable[[JobHandle], None]") -> None:
        try:
            callback(self)
        except BaseException:
            _log.exception("a done callback of job %d %r failed", self.id, self.name)

    def _tries_again(self) -> bool:
        assert self._outcome is not None and self._call is not None, "the outcome comes first"
        allowed = self._call.options.retries
        if (self._outcome.kind == "gpu-fault" or self._outcome.retry_alone) and self._attempt == 0:
            allowed = max(allowed, 1)  # another job may have caused it, or it had too small a share
        failed = self._outcome.kind in _FAILED and self._attempt < allowed
        if not failed or self._stopped or self._life.closed:
            return False
        if self._outcome.kind == "gpu-fault":
            _log.warning("job %d %r is repeated: %s", self.id, self.name, self._outcome.text)
        if self._outcome.retry_alone:
            _log.warning("job %d %r is repeated with the whole GPU: %s", self.id, self.name, self._outcome.text)
            self._is_alone = True
        self._attempt += 1
        self._life.retried += 1
        try:
            self._submit()
        except Exception as error:
            self._outcome = exception_outcome(pack_error(error), None, "")
            return False
        return True


def submit_call(life: Lifetime, call: Call) -> JobHandle:
    """Submit a call, and again when it fails and `retries` says so. Blocks until the engine has accepted it.

    Raises:
        LeaseError, ClosedError: what the engine raises.
    """
    handle = JobHandle(life, call)
    trouble: list[BaseException] = []
    accepted = threading.Event()

    def submit() -> None:
        try:
            handle._submit()
        except BaseException as error:
            trouble.append(error)
        accepted.set()

    if not life.on_hub(submit):
        raise closed_error()
    accepted.wait()
    if trouble:
        raise trouble[0]
    return handle
