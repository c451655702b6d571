"""The interface of engines, which run jobs in local processes, on a cluster, or in a simulation.

    prepare(packed)                  load a function before its first job
    submit(request, events) --> Job  queued --> starting --> running --> over
    end(job, how)                    stop or kill a job

    events: on_ready? --> on_report* --> on_ended --> on_free

Pure. `tests/support/engine_contract.py` checks these rules:
* An engine is used on its loop's thread; `capacity` and `output` may be called on any. Events are called on the loop's
  thread, one after another, and never during `prepare`, `submit` or `end`.
* `on_ended` and `on_free` are called exactly once for each accepted job, in this order; `on_ready` at most once, and
  not for a job that never began; `on_report` only between `on_ready` and `on_ended`.
* `on_free` means that nothing of the job is left and its resources are free.
* A job that dies, or whose node is lost, has an outcome like any other. The engine repeats no job.
* Errors of event handlers are logged and affect nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from ..base.errors import LeaseError
from .leases import Ledger, Machine, Resources, max_concurrent
from .specs import How, Packed, RuntimeEnvironment

Decision = Literal["CONTINUE", "STOP", "PAUSE"]
Ending = Literal["terminate", "kill"]
JobState = Literal["queued", "starting", "running", "ending", "over"]
OutcomeKind = Literal["returned", "exception", "exit", "signal", "out-of-memory", "gpu-fault", "lost", "stopped"]

_DECISIONS = get_args(Decision)


class Timer(Protocol):
    """A scheduled call."""

    @property
    def when_s(self) -> float: ...

    def cancel(self) -> None: ...


class Loop(Protocol):
    """The thread of the events, with a clock. `links.Hub` is one in real time.

    Each iteration handles events, due timers and queued calls, and then runs the hooks of its end, for example to
    write all events of the iteration at once. Errors of callbacks are logged.
    """

    def now_s(self) -> float:
        """Return monotonic seconds, virtual ones in a simulation. May be called on any thread."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` in this or the next iteration. May be called on any thread. A closed loop ignores it."""

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Run `call` when the clock reaches `when_s`."""

    def at_turn_end(self, hook: Callable[[], None]) -> None:
        """Run `hook` at the end of every iteration, in the order of registration."""

    def not_at_turn_end(self, hook: Callable[[], None]) -> None:
        """Undo `at_turn_end`. Raises ValueError if the hook is not registered."""

    def check_usable(self) -> None:
        """Raise ClosedError if the loop is closed or belongs to another process. May be called on any thread."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job to run.

    Attributes:
        packed: the serialized call.
        resources: the resources of its lease.
        keywords: keyword arguments (plain values) that replace the packed arguments.
        number: the submitter's number for the job, as a trial's; None: counted by the engine.
        attempt: 0, 1, ... for the same number.
        seed: seed that is combined with `number` and `attempt`; None: the engine's.
        output: path without extension for files with its output; None: temporary files.
        reuse: the job may run in a process that has run such a job before.
        context: plain values (JSON) for `current().context`, such as trial, folder and checkpoint.
        runtime_environment: environment of the submitter; None: that of the engine's process now.
        group: on a cluster, jobs of one group run on as few machines as possible.
    """

    packed: Packed
    resources: Resources
    keywords: Mapping[str, object] | None = None
    number: int | None = None
    attempt: int = 0
    seed: int | None = None
    output: str | None = None
    reuse: bool = False
    context: Mapping[str, object] | None = None
    runtime_environment: RuntimeEnvironment | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The machines of an engine. Each job runs on one of them."""

    machines: tuple[Machine, ...]

    @property
    def cpus(self) -> int:
        return sum(machine.cpus for machine in self.machines)

    @property
    def gpus(self) -> int:
        return sum(len(machine.gpus) for machine in self.machines)

    def fits(self, resources: Resources) -> int:
        """Return the number of jobs with these resources that can run at once.

        >>> Capacity((Machine(cpus=5, memory_bytes=100), Machine(cpus=2, memory_bytes=10))).fits(Resources(cpus=2))
        3
        """
        return sum(max_concurrent(machine, resources) for machine in self.machines)

    def check(self, resources: Resources, where: str = "this pool") -> None:
        """Raise LeaseError if no machine has these resources."""
        problem: LeaseError | None = None
        for machine in self.machines:
            try:
                return Ledger(machine, where).check(resources)
            except LeaseError as error:
                problem = problem or error
        raise problem or LeaseError("this pool has no machine now, so the job was refused. Wait until one has joined.")


@dataclass(frozen=True, slots=True)
class Ready:
    """A job's function is about to be called.

    Attributes:
        pid: its process; None in a simulation.
        started_s: start of the process on the loop's clock.
        how: how the process was started.
        node: name of the machine in messages; empty: this one.
    """

    pid: int | None
    started_s: float
    how: How
    node: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a report. STOP and PAUSE make `fanwise.report` raise `TrialStopped` in the job.

    Args:
        decision: CONTINUE, STOP or PAUSE.
        body: plain values (JSON) for the job, such as a new configuration.

    Raises:
        ValueError: unknown decision.

    >>> Reply("stop")
    Traceback (most recent call last):
    ValueError: the answer to a report is CONTINUE, STOP or PAUSE, got 'stop'
    """

    decision: Decision = "CONTINUE"
    body: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        if self.decision not in _DECISIONS:
            raise ValueError(f"the answer to a report is CONTINUE, STOP or PAUSE, got {self.decision!r}")

    @property
    def ends(self) -> bool:
        """True if the job should end."""
        return self.decision != "CONTINUE"


GO_ON = Reply()  # the most frequent reply, created once


def pack_reply(reply: Reply) -> str | tuple[str, Mapping[str, object]]:
    """Return the form in which a reply is sent: a string is serialized fastest, and most replies have no body."""
    return reply.decision if reply.body is None else (reply.decision, reply.body)


def unpack_reply(packed: Any) -> Reply:
    if packed == "CONTINUE":
        return GO_ON
    return Reply(*((packed,) if isinstance(packed, str) else packed))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a job.

    Attributes:
        kind: `returned` is the only success. `lost`: the node, or a process that the job needs, is gone. `gpu-fault`:
            a CUDA error that another job on the same GPU may have caused, so submitters repeat the job once.
        text: the reason, one line or a few; empty for `returned`.
        traceback: traceback of the worker, if there was an exception.
        last_output: last lines of the output of a failed job.
        payload, buffers: the serialized result or error.
        objective_s: seconds inside the function, measured by the worker; None if unknown.
        retry_alone: a job with a share of a GPU ran out of its memory, and its pool asks the submitter to repeat it
            once with the whole GPU.
        threads: name and location of each non-daemon thread that the function left running.
    """

    kind: OutcomeKind
    text: str = ""
    traceback: str = ""
    last_output: str = ""
    payload: bytes = b""
    buffers: Sequence[Any] = ()
    objective_s: float | None = None
    threads: tuple[str, ...] = ()
    retry_alone: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """The end of a job's standard output and standard error, escaped for display."""

    out: str = ""
    err: str = ""


class Job(Protocol):
    """An accepted job. Compared by identity until `on_free`. `state` may be read on any thread.

    Attributes:
        id: the engine's number for the job, never reused.
        seed: seed of its random generators.
    """

    @property
    def id(self) -> int: ...
    @property
    def request(self) -> JobRequest: ...
    @property
    def seed(self) -> int: ...
    @property
    def state(self) -> JobState: ...


class Report(Protocol):
    """A report of a job, which waits for the answer. Call `answer` or `refuse` once, now or later.

    Attributes:
        worker_time_s: seconds since the start of the function, measured by the worker.
        checkpoint: path of the checkpoint that was saved with the report, if any.
    """

    @property
    def job(self) -> Job: ...
    @property
    def values(self) -> Any: ...
    @property
    def worker_time_s(self) -> float: ...
    @property
    def checkpoint(self) -> str | None: ...

    def answer(self, reply: Reply) -> None:
        """Make `report` return `reply` in the job."""

    def refuse(self, error: BaseException) -> None:
        """Make `report` raise `error` in the job."""


class JobEvents(Protocol):
    """Event handlers of the submitter of a job. See the rules above."""

    def on_ready(self, job: Job, ready: Ready) -> None: ...
    def on_report(self, report: Report) -> None: ...
    def on_ended(self, job: Job, outcome: Outcome) -> None: ...
    def on_free(self, job: Job) -> None: ...


class Engine(Protocol):
    """Runs jobs. See the rules above."""

    @property
    def loop(self) -> Loop: ...

    def capacity(self) -> Capacity:
        """Return all machines, with resources in use. On a cluster they change as nodes join and leave."""

    def prepare(self, packed: Packed) -> None:
        """Start loading a function where its jobs will run. Does not block."""

    def submit(self, request: JobRequest, events: JobEvents) -> Job:
        """Queue a job, which starts when its resources are free. Does not block.

        Raises:
            LeaseError: no machine has these resources.
            ClosedError: the engine is closed.
        """

    def end(self, job: Job, how: Ending, *, grace_s: float | None = None) -> None:
        """End a job. Does not block. A job that has not begun never begins.

        Args:
            how: `terminate` raises `TrialStopped` in its function. `kill` kills the process and all that it started.
            grace_s: seconds after which a job that ignores `terminate` is killed.
        """

    def output(self, job: Job) -> Output:
        """Return the end of the job's output. Before `on_ended`, this may block. Not available after `on_free`."""

    def close(self) -> None:
        """End every job now. Unfinished jobs get their events, as stopped, before this returns."""
