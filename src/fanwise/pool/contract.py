"""What the layers above ask of an engine, and what they hear of it, be it local processes, a simulation or a cluster.

    prepare(packed)                  begin what takes long before the first job comes
    submit(request, events) --> Job  queued --> starting --> running --> over
    end(job, how)                    sooner than by itself

    events: on_ready? --> on_report, any number --> on_ended --> on_free

Nothing here knows of processes, links, files or threads, so a search that uses only this runs wherever an engine does.

What every engine keeps; `tests/support/engine_contract.py` checks it:
* It is used on its loop's thread, `capacity` and `output` on any. Events come on that thread, one after another, and
  never while `prepare`, `submit` or `end` is at work: whoever submits has its job in hand before it hears of it.
* `on_ended` and `on_free` come once for each job that was accepted, in this order, whatever happens; `on_ready` at most
  once, and not for a job that never began; `on_report` only between `on_ready` and `on_ended`.
* `on_free` means that nothing of the job is left, and that what it held can be given to the next.
* A job that dies, or whose node is lost, has an outcome like any other. The engine repeats nothing.
* What an event raises is logged, and changes nothing for anybody else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from ..base.errors import LeaseError
from .leases import Machine, Resources, check_fits, places
from .specs import How, Packed, RuntimeEnvironment

Decision = Literal["CONTINUE", "STOP", "PAUSE"]
Ending = Literal["terminate", "kill"]
JobState = Literal["queued", "starting", "running", "ending", "over"]
OutcomeKind = Literal["returned", "exception", "exit", "signal", "out-of-memory", "gpu-fault", "lost", "stopped"]

_DECISIONS = get_args(Decision)


# -- time and turns ----------------------------------------------------------------------------------------------------


class Timer(Protocol):
    """A call that is to come."""

    @property
    def when_s(self) -> float: ...

    def cancel(self) -> None:
        """It does not come any more; nothing happens when it has come."""


class Loop(Protocol):
    """The thread that events come on, and its clock. `links.Hub` is one in real time.

    A turn brings events, timers that are due and calls that were handed in, and then runs the hooks of its end: the
    place to commit once for all that came together. What a callback raises is logged and stops nothing.
    """

    def now_s(self) -> float:
        """Monotonic seconds; in a simulation virtual ones. By any thread."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` in this or the next turn. By any thread; when the loop is closed nothing happens."""

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Run `call` when the clock shows `when_s`. By the loop's thread."""

    def at_turn_end(self, hook: Callable[[], None]) -> None:
        """Run `hook` at the end of every turn, in the order of registration. By the loop's thread."""

    def not_at_turn_end(self, hook: Callable[[], None]) -> None:
        """Undo `at_turn_end`; ValueError when it was not done."""

    def check_usable(self) -> None:
        """Raise ClosedError when the loop is closed, or belongs to another process. By any thread."""


# -- what is asked -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job, as it is asked for.

    Attributes:
        packed: the function, and the arguments of its call.
        resources: what it needs.
        keywords: call it with these keyword arguments, plain values, instead of those that are packed.
        number: the submitter's own, as a trial's; None: counted by the engine.
        attempt: 0, 1, ... of the same number.
        seed: the job's random states are made from it, `number` and `attempt`; None: the engine's own.
        output: where what it prints is kept, a path without ending; None: as long as the job is there.
        reuse: it may run in a process that has run such a job before.
        context: plain values (JSON) that the job finds in `current().context`: its trial, folder, checkpoint.
        runtime_environment: the runtime environment of its submitter; None: that of the engine's process now.
        group: jobs of one group run on as few machines as have room for them, where there are several.
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
    """What an engine has; several machines when it spans them. A job runs on one of them."""

    machines: tuple[Machine, ...]

    @property
    def cpus(self) -> int:
        return sum(machine.cpus for machine in self.machines)

    @property
    def gpus(self) -> int:
        return sum(len(machine.gpus) for machine in self.machines)

    def fits(self, resources: Resources) -> int:
        """How many jobs that need this can run at once.

        >>> Capacity((Machine(cpus=5, memory_bytes=100), Machine(cpus=2, memory_bytes=10))).fits(Resources(cpus=2))
        3
        """
        return sum(places(machine, resources) for machine in self.machines)

    def check(self, resources: Resources, where: str = "this pool") -> None:
        """Raise LeaseError, which says what there is, when no machine can ever give what is asked for."""
        problem: LeaseError | None = None
        for machine in self.machines:
            try:
                return check_fits(machine, resources, where)
            except LeaseError as error:
                problem = problem or error
        raise problem or LeaseError("this pool has no machine now, so the job was refused. Wait until one has joined.")


# -- what is heard -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """A job's function is about to be called.

    Attributes:
        pid: its process, on its node; None where there is none.
        started_s: when that process began, on the loop's clock.
        how: how it came to be.
        node: the machine, for people; empty: this one.
    """

    pid: int | None
    started_s: float
    how: How
    node: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a report. On any decision but CONTINUE the job is to end: `fanwise.report` raises `TrialStopped`.

    Args:
        decision: CONTINUE, STOP or PAUSE.
        body: plain values (JSON) that the job gets with it, such as a configuration to go on with.

    Raises:
        ValueError: there is no such decision.

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
        """Whether the job is to end."""
        return self.decision != "CONTINUE"


GO_ON = Reply()  # by far the commonest, so it is made once


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended.

    Attributes:
        kind: what happened; `returned` is the only success. `lost`: the node, or a process that it needs, is gone.
            `gpu-fault`: a CUDA error that another job on the same GPU may have caused. Submitters repeat it once.
        text: one line or a few, for people; empty for `returned`.
        traceback: of the worker, when there was an exception.
        last_output: the last lines it wrote, when it failed.
        payload, buffers: the packed result, or the packed error.
        objective_s: seconds inside the function, as the worker measured them; None when it could not tell.
        retry_alone: a job with a share of a GPU ran out of its memory, and its pool wants it to be repeated once with
            the whole GPU.
        threads: a line for each non-daemon thread that the function left running: its name and where it is. The
            process exits shortly afterwards, even if they are still running.
    """

    kind: OutcomeKind
    text: str = ""
    traceback: str = ""
    last_output: str = ""
    payload: bytes = b""
    buffers: Sequence[Any] = ()  # Any: bytes-like
    objective_s: float | None = None
    threads: tuple[str, ...] = ()
    retry_alone: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """The end of what a job has printed, fit to be shown."""

    out: str = ""
    err: str = ""


class Job(Protocol):
    """A job that was accepted; told apart by identity, until `on_free`."""

    @property
    def id(self) -> int:
        """The engine's number for it, never used twice."""

    @property
    def request(self) -> JobRequest: ...

    @property
    def seed(self) -> int:
        """What its random states are seeded with."""

    @property
    def state(self) -> JobState:
        """Where it is on its way. By any thread."""


class Report(Protocol):
    """What a job reported, which waits for the answer. `answer` or `refuse` it once, in this turn or later."""

    @property
    def job(self) -> Job: ...

    @property
    def values(self) -> Any: ...  # Any: whatever the job reported

    @property
    def worker_time_s(self) -> float:
        """Seconds since its function began, as the worker measured them."""

    @property
    def checkpoint(self) -> str | None:
        """Where the state is that goes with it, if the job has saved one."""

    def answer(self, reply: Reply) -> None:
        """The job's `report` returns `reply`."""

    def refuse(self, error: BaseException) -> None:
        """The job's `report` raises `error`."""


class JobEvents(Protocol):
    """What the submitter of a job hears, see the module."""

    def on_ready(self, job: Job, ready: Ready) -> None: ...
    def on_report(self, report: Report) -> None: ...
    def on_ended(self, job: Job, outcome: Outcome) -> None: ...
    def on_free(self, job: Job) -> None: ...


class Engine(Protocol):
    """What runs jobs, see the module."""

    @property
    def loop(self) -> Loop: ...

    def capacity(self) -> Capacity:
        """What there is, also what jobs hold now. It may change while nodes come and go."""

    def prepare(self, packed: Packed) -> None:
        """Begin to load what the function needs, where its jobs will run. Returns at once."""

    def submit(self, request: JobRequest, events: JobEvents) -> Job:
        """Queue a job; it starts when what it needs is free. Returns at once.

        Raises:
            LeaseError: nothing there can ever give what it needs.
            ClosedError: the engine is closed.
        """

    def end(self, job: Job, how: Ending, *, grace_s: float | None = None) -> None:
        """End a job. Returns at once; nothing happens when it has ended.

        `terminate` raises `TrialStopped` in its function; it is killed when it has not ended `grace_s` later. `kill`
        ends it now, with all it has started. One that has not begun never does.
        """

    def output(self, job: Job) -> Output:
        """What the job printed last. At hand from `on_ended` until `on_free` has returned; before, this may block."""

    def close(self) -> None:
        """End every job at once. Those that had not ended are told as stopped, and free, before this returns."""
