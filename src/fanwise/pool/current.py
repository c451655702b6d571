"""The job that this process runs, from the point of view of its own code, and stop requests to it.

`current()` gives access to the job's number and seed, the CPUs and GPUs of its lease, and `report`. `Pool()` inside a
job submits further jobs, which share its lease and end with it. In a process forked from the worker, such as a
DataLoader's worker, all of this raises `ClosedError` and nothing is sent.

A stop request is a SIGTERM. It raises `TrialStopped` in the main thread, once, also while the job waits for the result
of another job. It is deferred while a message is sent, so that each call gets its reply. In processes that user code
forks from the job, SIGTERM has its usual meaning.
"""

import contextlib
import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Protocol

from ..base.errors import ClosedError, DeadlineExceeded, TrialStopped
from ..links.link import Link
from ..links.link import Reply as LinkReply
from .contract import Outcome, Reply, unpack_reply
from .leases import Ledger, Resources
from .outcomes import value_of
from .runtime_environment import capture_environment
from .settings import grace_of, limit_of
from .specs import JobSpec, NestedJob, Packed

_WAIT_SLICE_S = 1.0


class CurrentJob:
    """The job of this process.

    Attributes:
        id: the pool's number for the job.
        number: the submitter's number, such as a trial's id.
        attempt: 0, 1, ... for the same number.
        name: name of the function.
        context: plain values from the submitter.
        seed: seed of random, numpy and torch.
        cpus: number of CPUs and threads.
        gpus: its GPUs as in CUDA_VISIBLE_DEVICES; empty: none.
    """

    def __init__(self, link: Link, spec: JobSpec, stop_signal: "StopSignal") -> None:
        self.id = spec.job_id
        self.number = spec.number
        self.attempt = spec.attempt
        self.context: Mapping[str, Any] = {} if spec.context is None else spec.context
        self.name = spec.name
        self.seed = spec.seed
        self.cpus = spec.lease.cpus
        self.gpus = tuple(share.visible for share in spec.lease.gpus)
        self._lease = spec.lease
        self._nested_ids = itertools.count(1)
        self._link = link
        self._stop_signal = stop_signal
        self._began_s = time.monotonic()

    def report(self, values: object, *, checkpoint: str | None = None) -> Reply:
        """Send values to the submitter. Blocks until it replies.

        Args:
            values: argument of the submitter's `on_report`.
            checkpoint: path of the checkpoint that was saved with them.

        Raises:
            TrialStopped: a stop request arrived meanwhile.
            Exception: the error with which the submitter refused the values.
        """
        with self._stop_signal.shield():
            worker_time_s = time.monotonic() - self._began_s
            answer = self._link.ask("report", self.id, values, worker_time_s, checkpoint)
        return self._apply_reply(answer)

    def begin_report(self, values: object) -> "Reported":
        """Send values like `report`, without waiting for the reply."""
        with self._stop_signal.shield():
            sent = self._link.call("report", self.id, values, time.monotonic() - self._began_s, None)
        return _Reported(sent, self._apply_reply)

    def _apply_reply(self, answer: Any) -> Reply:
        """Return the reply. If the job should end, prepare for it."""
        reply = unpack_reply(answer)
        if reply.ends:
            if threading.current_thread() is threading.main_thread():
                self._stop_signal.stopped_in_report = True
                self._stop_signal.ignore()
            else:
                os.kill(os.getpid(), signal.SIGTERM)  # end the function, not only the thread that reported
        return reply

    def _submit(self, packed: Packed, resources: Resources, number: int | None) -> "NestedHandle":
        """Submit a job that runs beside this one, within its lease. Raises LeaseError."""
        Ledger.within(self._lease).check(resources)
        nested = NestedJob(next(self._nested_ids), packed, resources, number, capture_environment())
        with self._stop_signal.shield():
            reply = self._link.call("submit", self.id, nested)
            return NestedHandle(self, nested.nested_id, packed.name, reply)


class Reported(Protocol):
    """A report whose reply has not arrived."""

    def reply(self, within_s: float) -> Reply | None:
        """Return the reply, or None if there is none within this time. Blocks. Raises like `CurrentJob.report`."""


class _Reported:
    def __init__(self, sent: LinkReply, apply_reply: Callable[[Any], Reply]) -> None:
        self._sent = sent
        self._apply_reply = apply_reply

    def reply(self, within_s: float) -> Reply | None:
        return self._apply_reply(self._sent.result()) if self._sent.wait(within_s) else None


class NestedHandle:
    """A job that this job submitted. It ends with this job at the latest.

    Attributes:
        id: 1, 2, ... in the order of submission by this job.
    """

    def __init__(self, job: CurrentJob, nested_id: int, name: str, reply: LinkReply) -> None:
        self.id = nested_id
        self.name = name
        self._job = job
        self._reply = reply

    def done(self) -> bool:
        """Return whether the outcome has arrived, which happens while this process waits or reports."""
        return self._reply.done()

    def result(self, within_s: float | None = None) -> Any:
        """Return the result of the job. Blocks until its process is gone.

        Args:
            within_s: timeout in seconds.

        Raises:
            DeadlineExceeded: it has not ended in time. It continues.
            WorkerLostError: it died without a result.
            TrialStopped: it was stopped, or this job must stop.
            Exception: the error of its function, in its original type.
        """
        limit_s = limit_of(within_s)
        until_s = math.inf if limit_s is None else time.monotonic() + limit_s
        # In slices, because a signal that arrives just before the main thread sleeps does not wake it.
        while not self._reply.wait(max(0.0, min(_WAIT_SLICE_S, until_s - time.monotonic()))):
            if time.monotonic() >= until_s:
                break
        # A stop must not interrupt unpickling, which may have side effects.
        with self._job._stop_signal.shield():
            if not self._reply.done():
                raise DeadlineExceeded(f"job {self.id} {self.name!r} has not ended within {within_s} s; it continues.")
            outcome: Outcome = self._reply.result()
            return value_of(outcome)

    def stop(self, grace_s: float = 5.0) -> None:
        """Send SIGTERM, which raises `TrialStopped` in the job, and SIGKILL after `grace_s` seconds."""
        seconds = grace_of(grace_s)
        with self._job._stop_signal.shield():
            self._job._link.notify("stop", self._job.id, self.id, seconds)

    def __repr__(self) -> str:
        return f"<NestedHandle {self.id} {self.name!r}: {'ended' if self.done() else 'not ended as far as is known'}>"


_current: CurrentJob | None = None
_current_pid = 0


def enter(job: CurrentJob) -> None:
    global _current, _current_pid
    _current, _current_pid = job, os.getpid()


def leave() -> None:
    global _current
    _current = None


def in_job() -> bool:
    """Return whether this process runs a job of a pool, or was forked from one that does."""
    return _current is not None


def current() -> CurrentJob:
    """Return the job of this process. Raises ClosedError if there is none, or if it was forked from a job's process."""
    if _current is None:
        raise ClosedError("this process runs no job of a pool; current() is for functions that a pool runs.")
    if _current_pid != os.getpid():
        raise ClosedError(
            f"process {os.getpid()} is a fork of the worker {_current_pid} and not the job itself.\n"
            f"Report from the function that the pool runs, not from its DataLoader workers."
        )
    return _current


# -- stop requests -----------------------------------------------------------------------------------------------------


class StopSignal:
    """Raises `TrialStopped` on SIGTERM, once, and never inside `shield`.

    Attributes:
        stopped_in_report: the job learned of the stop from the reply to a report.
    """

    def __init__(self) -> None:
        self.stopped_in_report = False
        self._pid = os.getpid()
        self._shielded = 1  # until `begin`
        self._pending = False
        self._ignoring = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # in a child that user code forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._shielded:
            self._pending = True
        elif not self._ignoring:
            self._raise()

    def begin(self) -> None:
        """Start raising, when the function is called. Raise at once if a stop is pending."""
        self._shielded -= 1
        self._raise_pending()

    @contextlib.contextmanager
    def shield(self) -> Iterator[None]:
        """Defer the exception until the block is left. Has no effect in other threads than the main one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._shielded += 1
        try:
            yield
        finally:
            self._shielded -= 1
            self._raise_pending()

    @property
    def pending(self) -> bool:
        """True if a stop was deferred and not raised yet."""
        return self._pending and not self._ignoring

    def ignore(self) -> None:
        """Stop raising, because the function has ended or is about to."""
        self._ignoring = True

    def _raise_pending(self) -> None:
        if self.pending and not self._shielded:
            self._raise()

    def _raise(self) -> None:
        self._ignoring = True
        raise TrialStopped("this trial was stopped")


_handling = False


@contextlib.contextmanager
def stop_by_signal() -> Iterator[StopSignal]:
    """Handle SIGTERM by a `StopSignal` inside the block."""
    global _handling
    stop_signal = StopSignal()
    previous = signal.signal(signal.SIGTERM, stop_signal.handle)
    _handling = True
    try:
        yield stop_signal
    finally:
        stop_signal.ignore()
        signal.signal(signal.SIGTERM, previous)
        _handling = False


# SIGTERM gets its default action in a child that user code forks, before it can arrive. It is blocked meanwhile,
# because Python discards pending handlers in a forked child.


def _before_fork() -> None:
    if _handling:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork_in_parent() -> None:
    if _handling:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _after_fork_in_child() -> None:
    global _handling
    if _handling:
        _handling = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
