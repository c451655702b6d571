"""The job that this process runs: the one place where a process knows that it is a worker.

`current()` is what user code and the layers above use: its number and seed, the CPUs and GPUs of its lease, `report`
to whoever submitted it, and `submit` for jobs of its own, which run beside it within its lease and end with it.

In a fork of the worker (a DataLoader's worker) all of this is inert: nothing is sent, use raises `ClosedError`.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..base.errors import ClosedError, DeadlineExceeded
from ..links.hub import Hub
from ..links.link import Link
from ..links.link import Reply as Asked
from .contract import GO_ON, Outcome, Reply
from .functions import pack
from .outcomes import value_of
from .runtime_environment import look
from .settings import grace_of, limit_of
from .specs import JobSpec, NestedJob
from .stopper import Stopper, Waiter


class CurrentJob:
    """The job of this process, as its own code sees it.

    Attributes:
        id: the pool's number for this job.
        number: the submitter's number (a tuner's trial id).
        attempt: 0, 1, ...: how often this number was tried before.
        context: plain values that the submitter gave it on its way.
        seed: what random, numpy and torch were seeded with.
        cpus: how many CPUs, and so threads, it may use.
        gpus: its GPUs as CUDA_VISIBLE_DEVICES names them; empty: none.
    """

    def __init__(self, hub: Hub, link: Link, spec: JobSpec, stopper: Stopper) -> None:
        self.id = spec.job_id
        self.number = spec.number
        self.attempt = spec.attempt
        self.context: Mapping[str, Any] = {} if spec.context is None else spec.context  # Any: plain values
        self.name = spec.name
        self.seed = spec.seed
        self.cpus = spec.cpus
        self.gpus = spec.gpus
        self._waiter = Waiter(hub, stopper)
        self._link = link
        self._stopper = stopper
        self._began_s = time.monotonic()

    def began(self, now_s: float) -> None:
        """The user's function begins at `now_s` (monotonic)."""
        self._began_s = now_s

    def report(self, values: object, *, checkpoint: str | None = None) -> Reply:
        """Send `values` to the submitter and wait for its reply. Blocks until it answers.

        Args:
            values: what `on_report` gets.
            checkpoint: where the state is that goes with them, if the job has saved one.

        Raises what the submitter raised when it refused the values; `TrialStopped` when a stop order came meanwhile.
        """
        with self._stopper.shield():
            worker_time_s = time.monotonic() - self._began_s
            answer = self._link.ask("report", self.id, values, worker_time_s, checkpoint)
        return self._obeyed(answer)

    def begin_report(self, values: object) -> "Reported":
        """As `report`, and the reply is asked for apart, by who has something else to do meanwhile."""
        with self._stopper.shield():
            asked = self._link.call("report", self.id, values, time.monotonic() - self._began_s, None)
        return _Reported(asked, self._waiter, self._obeyed)

    def _obeyed(self, answer: Any) -> Reply:  # Any: a decision, or a decision and a body, see `jobs.Report.answer`
        if answer == "CONTINUE":
            return GO_ON
        reply = Reply(*((answer,) if isinstance(answer, str) else answer))
        if reply.ends:
            if threading.current_thread() is threading.main_thread():
                self._stopper.stopped_in_report = True
                self._stopper.ignore()
            else:
                os.kill(os.getpid(), signal.SIGTERM)  # the function must end, not only the thread that reported
        return reply

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> "NestedHandle":  # Any: the user's
        """Run `function(*args, **kwargs)` in a process of its own beside this one, with 1 CPU of this job's lease."""
        return self.submit_needing(function, args, kwargs, cpus=1)

    def submit_needing(
        self,
        function: Callable[..., Any],  # Any: the user's function
        args: tuple[Any, ...],  # Any: the user's arguments
        kwargs: dict[str, Any],  # Any: the user's arguments
        *,
        cpus: int = 1,
        gpus: float = 0,
        memory_bytes: int = 0,
        number: int | None = None,
    ) -> "NestedHandle":
        """As `submit`, with what it needs, taken from this job's lease. Blocks until the pool has accepted it.

        Raises `LeaseError` when this job's lease can never hold it, `NotSendableError` when it cannot travel.
        """
        packed = pack(function, args, kwargs)
        nested = NestedJob(
            packed.function,
            packed.function_id,
            packed.name,
            packed.modules,
            packed.arguments,
            cpus,
            gpus,
            memory_bytes,
            number,
            look(),
        )
        with self._stopper.shield():
            job_id = self._link.ask("submit", self.id, nested)
            return NestedHandle(self._link, self._stopper, self._waiter, job_id, packed.name)


class Reported(Protocol):
    """A report that is on its way to the submitter of the job."""

    def reply(self, within_s: float) -> Reply | None:
        """The submitter's; None if it has not come within this time. Raises as `CurrentJob.report`."""
        ...


class _Reported:
    def __init__(self, asked: Asked, waiter: Waiter, obeyed: Callable[[Any], Reply]) -> None:  # Any: what was answered
        self._asked = asked
        self._waiter = waiter
        self._obeyed = obeyed

    def reply(self, within_s: float) -> Reply | None:
        self._waiter.wait(self._asked, within_s)
        return self._obeyed(self._asked.result()) if self._asked.done() else None


class NestedHandle:
    """A job that this job submitted. It ends with this job at the latest."""

    def __init__(self, link: Link, stopper: Stopper, waiter: Waiter, job_id: int, name: str) -> None:
        self.id = job_id
        self.name = name
        self._link = link
        self._stopper = stopper
        self._waiter = waiter
        self._reply = link.call("result", job_id)

    def done(self) -> bool:
        """Whether the outcome has arrived here; it arrives while this process waits for or reports something."""
        return self._reply.done()

    def result(self, within_s: float | None = None) -> Any:  # Any: the function's result
        """Block until the job's process is gone; its result, or the error it ended with, in its original type.

        Raises:
            DeadlineExceeded: it has not ended within `within_s` seconds; it goes on.
            WorkerLostError: it died without a result.
            TrialStopped: it was stopped; or this job was told to stop meanwhile.
        """
        self._waiter.wait(self._reply, limit_of(within_s))
        # A result is loaded in one piece: what is half loaded when a stop comes may have opened, or changed, anything.
        with self._stopper.shield():
            if not self._reply.done():
                raise DeadlineExceeded(f"job {self.id} {self.name!r} has not ended within {within_s} s; it goes on.")
            outcome: Outcome = self._reply.result()
            return value_of(outcome)

    def stop(self, grace_s: float = 5.0) -> None:
        """Tell it to end: SIGTERM, and SIGKILL when it still lives after `grace_s`. Nothing happens when it has."""
        seconds = grace_of(grace_s)
        with self._stopper.shield():
            self._link.ask("stop", self.id, seconds)

    def __repr__(self) -> str:
        return f"<NestedHandle {self.id} {self.name!r}: {'ended' if self.done() else 'not ended as far as is known'}>"


_current: CurrentJob | None = None
_current_pid = 0


def enter(job: CurrentJob) -> None:
    """This process now runs `job`. Called by the worker."""
    global _current, _current_pid
    _current, _current_pid = job, os.getpid()


def leave() -> None:
    """The job of this process has ended. Called by the worker."""
    global _current
    _current = None


def in_job() -> bool:
    """Whether this process runs a job of a pool, or was forked from one that does."""
    return _current is not None


def current() -> CurrentJob:
    """The job this process runs.

    Raises `ClosedError` in a process that runs none, and in a fork of one that does.
    """
    if _current is None:
        raise ClosedError("this process runs no job of a pool; current() is for functions that a pool runs.")
    if _current_pid != os.getpid():
        raise ClosedError(
            f"process {os.getpid()} is a fork of the worker {_current_pid} and not the job itself.\n"
            f"Report from the function that the pool runs, not from its DataLoader workers."
        )
    return _current
