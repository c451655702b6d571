"""The handle of a submitted job: its result, output and state, and its repetition after a failure.

Users may call a handle on any thread. The engine calls it on the event loop's thread. A finished handle keeps the
outcome and the end of the output, but neither the arguments nor the link.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from ..base.errors import DeadlineExceeded
from ..links.codec import pack_error
from .backend import Lifetime, closed_error
from .contract import GO_ON, Decision, Engine, Job, JobRequest, JobState, Outcome, Output, Ready, Reply, Report
from .leftovers import GRACE_S
from .outcomes import exception_outcome, value_of
from .settings import grace_of, limit_of, require_bool, require_int
from .specs import How

_log = logging.getLogger(__name__)

_MAX_REASON_CHARS = 100  # in a repr

OnReport = Callable[[Any], str | Reply]


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a job besides its resources."""

    number: int | None = None
    reuse: bool = False
    retries: int = 0
    on_report: OnReport | None = None

    def __post_init__(self) -> None:
        require_int("number", self.number, least=0, or_none=True)
        require_bool("reuse", self.reuse)
        require_int("retries", self.retries, least=0)
        if self.on_report is not None and not callable(self.on_report):
            kind = type(self.on_report).__name__
            raise TypeError(f"on_report must be a function or None, got {self.on_report!r} ({kind})")


class JobHandle:
    """A submitted job.

    Attributes:
        id: the pool's number for the job. A repetition gets a new one.
        seed: seed of random, numpy and torch in its process.
        attempt: number of repetitions after failures.
        pid, how: its process, and how it was started; None until the process is about to call the function.
    """

    def __init__(self, life: Lifetime, request: JobRequest, options: Options) -> None:
        self.name = request.packed.name
        self.id = 0
        self.seed = 0
        self.pid: int | None = None
        self.how: How | None = None
        self._life = life
        self._request: JobRequest | None = request  # None when the job is done
        self._options: Options | None = options
        self.attempt = 0
        self._job: Job | None = None
        self._outcome: Outcome | None = None
        self._finished = threading.Event()
        self._began = threading.Event()
        self._lock = threading.Lock()  # guards `_finished` and `_callbacks`
        self._callbacks: list[Callable[[JobHandle], None]] = []
        self._output = Output()
        self._stopped = False

    def result(self, within_s: float | None = None) -> Any:
        """Return the result of the function. Blocks until the job's process is gone.

        Args:
            within_s: timeout in seconds.

        Raises:
            DeadlineExceeded: the job has not ended in time. It continues.
            WorkerLostError: the process died without a result. The message has the reason.
            TrialStopped: the job was stopped.
            ClosedError: this process was forked from the submitter before the job ended.
            Exception: the error of the function, in its original type.
        """
        return value_of(self.outcome(within_s))

    def outcome(self, within_s: float | None = None) -> Outcome:
        """Return how the job ended. Blocks until its process is gone.

        Raises DeadlineExceeded and ClosedError like `result`.
        """
        if not self._finished.is_set():
            self._life.check_process()
        if not self._finished.wait(limit_of(within_s)):
            raise DeadlineExceeded(f"job {self.id} {self.name!r} has not ended within {within_s} s; it continues.")
        assert self._outcome is not None, "finished jobs have an outcome"
        return self._outcome

    def done(self) -> bool:
        """Return whether the job's process is gone."""
        return self._finished.is_set()

    def queued(self) -> bool:
        """Return whether the job waits for CPUs, GPUs or memory that other jobs hold."""
        return self._state() == "queued"

    def wait_began(self, within_s: float | None = None) -> bool:
        """Block until the job's process is about to call the function. Return False after a timeout in seconds.

        Also return False if the job ends before it has begun.
        """
        self._began.wait(limit_of(within_s))
        return self.pid is not None

    def add_done_callback(self, callback: "Callable[[JobHandle], None]") -> None:
        """Call `callback(self)` on the pool's thread when the job is done, here if it is. It must not block."""
        if not self.done():
            self._life.check_process()
            with self._lock:
                if not self.done():
                    self._callbacks.append(callback)
                    return
        self._call_back(callback)

    def stop(self, grace_s: float = 5.0) -> None:
        """Stop the job: SIGTERM raises `TrialStopped` in it. Does not block.

        SIGTERM is sent again after a second, which has no effect on a job that has handled the first one.

        Args:
            grace_s: seconds after which the job is killed.
        """
        seconds = grace_of(grace_s)
        self._end(lambda engine, job: engine.end(job, "terminate", grace_s=seconds))

    def kill(self) -> None:
        """Kill the job and everything that it started. Does not block."""
        self._end(lambda engine, job: engine.end(job, "kill"))

    def _end(self, end: Callable[[Engine, Job], None]) -> None:
        self._stopped = True
        self._life.on_hub(lambda: end(self._life.started_engine, self._job) if self._job is not None else None)

    def output(self) -> tuple[str, str]:
        """Return the last 64 KiB of its standard output and of its standard error."""
        job = self._job
        printed = self._output if job is None else self._life.started_engine.output(job)
        return printed.out, printed.err

    def __repr__(self) -> str:
        attempt = f", try {self.attempt + 1}" if self.attempt else ""
        process = f", pid {self.pid}" if self.pid is not None else ""
        state: str = self._state()
        if self.done() and self._outcome is not None:
            reason = self._outcome.text.partition("\n")[0]
            if len(reason) > _MAX_REASON_CHARS:
                reason = f"{reason[: _MAX_REASON_CHARS - 3]}..."
            state = self._outcome.kind if self._outcome.kind == "returned" else f"{self._outcome.kind} ({reason})"
        return f"<JobHandle {self.id} {self.name!r}: {state}{process}{attempt}>"

    def _state(self) -> JobState:
        job = self._job
        if self.done():
            return "over"
        return "queued" if job is None else job.state

    # -- on the event loop's thread --------------------------------------------------------------------------------

    def _submit(self) -> None:
        assert self._request is not None, "kept until the last attempt has ended"
        self._job = self._life.started_engine.submit(self._request, _Events(self))
        self.id, self.seed = self._job.id, self._job.seed

    def _on_ready(self, job: Job, ready: Ready) -> None:
        self.pid, self.how = ready.pid, ready.how
        self._began.set()

    def _on_report(self, report: Report) -> None:
        on_report = self._options.on_report if self._options is not None else None
        if on_report is None:
            report.answer(GO_ON)
            return
        try:
            answer = on_report(report.values)
            if not isinstance(answer, Reply):
                answer = GO_ON if answer == "CONTINUE" else Reply(cast(Decision, answer))
            report.answer(answer)
        except BaseException as error:  # also sys.exit, because this is the pool's thread
            report.refuse(error)

    def _on_ended(self, job: Job, outcome: Outcome) -> None:
        self._outcome = outcome
        if outcome.threads:
            _log.warning(
                "job %d %r has ended and left a thread running: %s. Its process exits after %g s even if the thread is "
                "still running. Join the thread before the function returns, or make it a daemon.",
                *(self.id, self.name, "; ".join(outcome.threads), GRACE_S),
            )

    def _on_free(self, job: Job) -> None:
        self._output = self._life.started_engine.output(job)
        if self._retry():
            return
        self._job = self._request = self._options = None
        self._began.set()
        with self._lock:
            self._finished.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call_back(callback)

    def _call_back(self, callback: "Callable[[JobHandle], None]") -> None:
        try:
            callback(self)
        except BaseException:
            _log.exception("a done callback of job %d %r failed", self.id, self.name)

    def _retry(self) -> bool:
        """Submit a failed job again if retries are left. Return whether it was submitted."""
        outcome, request = self._outcome, self._request
        assert outcome is not None and request is not None and self._options is not None, "the outcome comes first"
        allowed = self._options.retries
        if (outcome.kind == "gpu-fault" or outcome.retry_alone) and self.attempt == 0:
            allowed = max(allowed, 1)  # another job may have caused it, or its share was too small
        is_repeated = outcome.kind not in ("returned", "stopped") and self.attempt < allowed
        if not is_repeated or self._stopped or self._life.closed:
            return False
        if outcome.kind == "gpu-fault":
            _log.warning("job %d %r is repeated: %s", self.id, self.name, outcome.text)
        if outcome.retry_alone:
            _log.warning("job %d %r is repeated with the whole GPU: %s", self.id, self.name, outcome.text)
            request = replace(request, resources=replace(request.resources, gpus=1))
        self.attempt += 1
        self._request = replace(request, attempt=self.attempt)
        try:
            self._submit()
        except Exception as error:
            self._outcome = exception_outcome(pack_error(error), None, "")
            return False
        return True


class _Events:
    """Passes the events of a job to its handle, without making their handlers public."""

    def __init__(self, handle: JobHandle) -> None:
        self.on_ready = handle._on_ready
        self.on_report = handle._on_report
        self.on_ended = handle._on_ended
        self.on_free = handle._on_free


def submit_job(life: Lifetime, request: JobRequest, options: Options) -> JobHandle:
    """Submit a job. Blocks until the engine has accepted it. Raises like `Engine.submit` and `Lifetime.start`."""
    life.start()
    handle = JobHandle(life, request, options)
    errors: list[BaseException] = []
    accepted = threading.Event()

    def submit() -> None:
        try:
            handle._submit()
        except BaseException as error:
            errors.append(error)
        accepted.set()

    if not life.on_hub(submit):
        raise closed_error()
    accepted.wait()
    if errors:
        raise errors[0]
    return handle
