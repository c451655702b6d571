"""An engine without processes: jobs are generators, time is virtual, and whatever can befall a job can be chosen.

    def train(job):                             # a program: what the function of the job would do
        for epoch in range(1, 4):
            yield Wait(60.0)                    # virtual seconds
            reply = yield Say({"loss": 1 / epoch})
            if reply.ends:
                raise TrialStopped("told to")

    engine = SimulatedEngine(train, fate=lambda job: Fate(start_s=5.0))
    job = engine.submit(request, events)
    engine.loop.run(lambda: job.state == "over")

A program that catches `TrialStopped` is deaf to `terminate`; one that raises `Dies` has died with any outcome that one
likes. `lose_node` takes a machine away with all that runs on it. Without a program the test plays each job itself:
`ready`, `report`, `ended`, `free`, each in a turn of the loop.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial

from simulated_loop import SimulatedLoop, SimulatedTimer

from fanwise.base.errors import ClosedError, LeaseError, TrialStopped
from fanwise.links.codec import dumps_by_value, pack_error
from fanwise.pool import Machine
from fanwise.pool.contract import Capacity, Ending, Job, JobEvents, JobRequest, JobState, Outcome, Output, Ready, Reply
from fanwise.pool.leases import Ledger
from fanwise.pool.outcomes import exception_outcome
from fanwise.pool.seeds import job_seed
from fanwise.pool.specs import Packed

_log = logging.getLogger(__name__)

_CRASH = Outcome("signal", "ended by SIGSEGV.")


@dataclass(frozen=True, slots=True)
class Wait:
    """Step: virtual seconds pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Say:
    """Step: report, and wait for the reply, which the program gets."""

    values: object
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Print:
    """Step: print a text, to standard output or as an error."""

    text: str
    is_error: bool = False


Step = Wait | Say | Print


class Dies(BaseException):
    """Raised by a program: its process is gone at once, with this outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.text)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Fate:
    """What befalls a job beside its program.

    Args:
        start_s: seconds from its lease to its function; infinity: it never begins.
        leave_s: seconds from the end of its function until nothing of it is left.
        dies_s: seconds after its function began at which it dies with `outcome`; infinity: it does not.
        outcome: see `dies_s`.
    """

    start_s: float = 0.01
    leave_s: float = 0.0
    dies_s: float = math.inf
    outcome: Outcome = _CRASH


class SimulatedJob:
    """A job of a simulated engine.

    Attributes:
        told: how it was told to end, in order.
        machine: where it runs; None while it is queued.
    """

    def __init__(self, id: int, request: JobRequest, events: JobEvents, number: int, seed: int) -> None:
        self.id = id
        self.request = request
        self.number = number
        self.seed = seed
        self.told: list[Ending] = []
        self.machine: Machine | None = None
        self.ready_s: float | None = None
        self.outcome: Outcome | None = None
        self.printed = Output()
        self.over = False
        self.events = events
        self._fate = Fate()
        self._steps: Generator[Step, Reply | None, object] | None = None
        self._waits: SimulatedTimer | None = None
        self._asks = False
        self._stops = False
        self._timers: list[SimulatedTimer] = []

    @property
    def state(self) -> JobState:
        if self.over:
            return "over"
        if self.outcome is not None or self.told:
            return "ending"
        if self.machine is None:
            return "queued"
        return "starting" if self.ready_s is None else "running"


Program = Callable[[SimulatedJob], Generator[Step, Reply | None, object]]


class SimulatedReport:
    """A report; `answers` is what it was answered with, and `on_answer` hears of it at once."""

    def __init__(
        self,
        engine: "SimulatedEngine",
        job: SimulatedJob,
        said: Say,
        on_answer: Callable[[Reply | BaseException], None] | None = None,
    ) -> None:
        self.job = job
        self.values = said.values
        self.checkpoint = said.checkpoint
        self.worker_time_s = engine.loop.now_s() - (job.ready_s or 0.0)
        self.answers: list[Reply | BaseException] = []
        self._engine = engine
        self._on_answer = on_answer

    def answer(self, reply: Reply) -> None:
        self._answered(reply)

    def refuse(self, error: BaseException) -> None:
        self._answered(error)

    def _answered(self, answer: Reply | BaseException) -> None:
        self.answers.append(answer)
        if self._on_answer is not None:
            self._on_answer(answer)
        if len(self.answers) == 1:
            self._engine.loop.call_soon(lambda: self._engine._answered(self.job, answer))


class SimulatedEngine:
    """See the module.

    Args:
        program: what the jobs do; None: the test plays them.
        machines: what there is.
        fate: what befalls each job; None: nothing.
        seed: of jobs whose request names none.

    Attributes:
        jobs: all that were accepted, in order.
        prepared: what it was told to prepare.
        error: raised by the next submits.
    """

    def __init__(
        self,
        program: Program | None = None,
        *,
        machines: tuple[Machine, ...] = (Machine(1_000_000, 1 << 50),),
        fate: Callable[[SimulatedJob], Fate] | None = None,
        seed: int = 0,
    ) -> None:
        self.loop = SimulatedLoop()
        self.jobs: list[SimulatedJob] = []
        self.prepared: list[Packed] = []
        self.error: BaseException | None = None
        self._program = program
        self._fate = fate or (lambda job: Fate())
        self._seed = seed
        self._nodes = [(machine, Ledger(machine, "this pool")) for machine in machines]
        self._queue: deque[SimulatedJob] = deque()
        self._closed = False

    # -- what an engine does ---------------------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        return Capacity(tuple(machine for machine, _ in self._nodes))

    def prepare(self, packed: Packed) -> None:
        self.prepared.append(packed)

    def submit(self, request: JobRequest, events: JobEvents) -> SimulatedJob:
        if self.error is not None:
            raise self.error
        if self._closed:
            raise ClosedError("this engine is closed. Make a new one.")
        self.capacity().check(request.resources)
        id = len(self.jobs) + 1
        number = id - 1 if request.number is None else request.number
        seed = job_seed(self._seed if request.seed is None else request.seed, number, request.attempt)
        job = SimulatedJob(id, request, events, number, seed)
        self.jobs.append(job)
        self._queue.append(job)
        self.loop.call_soon(self._start_jobs)
        return job

    def end(self, job: Job, how: Ending, *, grace_s: float | None = None) -> None:
        assert isinstance(job, SimulatedJob), "a job of this engine"
        if job.outcome is not None or job.told[-1:] == ["kill"]:
            return
        if how not in job.told:
            job.told.append(how)
            if self._program is not None:
                self.loop.call_soon(lambda: self._end(job, how))
        if grace_s is not None and how == "terminate":
            job._timers.append(self.loop.call_at(self.loop.now_s() + grace_s, lambda: self.end(job, "kill")))

    def output(self, job: Job) -> Output:
        assert isinstance(job, SimulatedJob), "a job of this engine"
        return job.printed

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for job in self.jobs:
            if not job.over:
                self.ended(job, Outcome("stopped", f"job {job.id} was ended because its pool was closed"))
                self.free(job)

    # -- what a test does with it; in a turn of the loop -----------------------------------------------------------

    def lose_node(self, machine: Machine) -> None:
        """A machine is gone, with all that ran there."""
        self._nodes = [(other, ledger) for other, ledger in self._nodes if other is not machine]
        for job in self.jobs:
            if job.machine is machine and not job.over:
                self.ended(job, Outcome("lost", "its node was lost"))
                self.free(job)

    def add_node(self, machine: Machine) -> None:
        """A machine has joined."""
        self._nodes.append((machine, Ledger(machine, "this pool")))
        self._start_jobs()

    def ready(self, job: SimulatedJob) -> None:
        """Its function is about to be called."""
        if job.outcome is None and job.ready_s is None:
            job.ready_s = self.loop.now_s()
            self._tell(lambda: job.events.on_ready(job, Ready(None, job.ready_s or 0.0, "simulated")))

    def report(self, job: SimulatedJob, values: object, *, checkpoint: str | None = None) -> SimulatedReport:
        """It reports."""
        report = SimulatedReport(self, job, Say(values, checkpoint))
        self._tell(lambda: job.events.on_report(report))
        return report

    def ended(self, job: SimulatedJob, outcome: Outcome) -> None:
        """Its end is known."""
        if job.outcome is None:
            job.outcome = outcome
            self._leave_queue(job)
            job._steps = None
            for timer in job._timers:
                timer.cancel()
            self._tell(lambda: job.events.on_ended(job, outcome))

    def free(self, job: SimulatedJob) -> None:
        """Nothing of it is left."""
        if job.over:
            return
        job.over = True
        for _, ledger in self._nodes:
            ledger.give_back(job.id)
        self._tell(lambda: job.events.on_free(job))
        if not self._closed:
            self._start_jobs()

    # -- the programs ----------------------------------------------------------------------------------------------

    def _start_jobs(self) -> None:
        while self._queue and self._place(self._queue[0]):
            job = self._queue.popleft()
            if self._program is not None:
                job._fate = self._fate(job)
                self._later(job, job._fate.start_s, partial(self._begin, job))

    def _place(self, job: SimulatedJob) -> bool:
        for machine, ledger in self._nodes:
            try:
                lease = ledger.take(job.request.resources, job.id)
            except LeaseError:
                continue  # another machine can give it
            if lease is not None:
                job.machine = machine
                return True
        return False

    def _begin(self, job: SimulatedJob) -> None:
        assert self._program is not None, "begun only for a program"
        self.ready(job)
        job._steps = self._program(job)
        self._later(job, job._fate.dies_s, lambda: self._over(job, job._fate.outcome))
        self._go_on(job, None)

    def _answered(self, job: SimulatedJob, answer: Reply | BaseException) -> None:
        job._asks = False
        self._go_on(job, TrialStopped("this trial was told to stop") if job._stops else answer)

    def _go_on(self, job: SimulatedJob, answer: Reply | BaseException | None) -> None:
        """The program's next steps, until one that takes time."""
        steps = job._steps
        if steps is None or job.outcome is not None:
            return
        job._asks = False
        if job._waits is not None:
            job._waits.cancel()
        try:
            while True:
                step = steps.throw(answer) if isinstance(answer, BaseException) else steps.send(answer)
                answer = None
                if isinstance(step, Print):
                    self._print(job, step)
                    continue
                if isinstance(step, Wait):
                    job._waits = self._later(job, step.seconds, lambda: self._go_on(job, None))
                else:
                    job._asks = True
                    self.report(job, step.values, checkpoint=step.checkpoint)
                return
        except StopIteration as returned:
            payload, buffers = dumps_by_value(returned.value)
            outcome = Outcome("returned", payload=payload, buffers=buffers, objective_s=self._objective_s(job))
        except TrialStopped:
            outcome = Outcome("stopped", "stopped", objective_s=self._objective_s(job))
        except Dies as death:
            outcome = death.outcome
        except BaseException as error:  # of the program: what it raises is the job's failure
            job.printed = Output(job.printed.out, f"{job.printed.err}{type(error).__name__}: {error}\n")
            outcome = exception_outcome(pack_error(error), self._objective_s(job), job.printed.err.rstrip("\n"))
        self._over(job, outcome)

    def _over(self, job: SimulatedJob, outcome: Outcome) -> None:
        if job.outcome is None:
            self.ended(job, outcome)
            self.loop.call_at(self.loop.now_s() + job._fate.leave_s, lambda: self.free(job))

    def _end(self, job: SimulatedJob, how: Ending) -> None:
        if job.ready_s is None:
            self._over(job, Outcome("stopped", f"job {job.id} was stopped before it began"))
        elif how == "kill":
            self._over(job, Outcome("signal", "ended by SIGKILL, because it did not end in time after a stop."))
        else:
            job._stops = True
            self._stop(job)

    def _stop(self, job: SimulatedJob) -> None:
        """A stop that comes while a report is on its way is held back until it is answered."""
        if job._stops and not job._asks:
            job._stops = False
            self._go_on(job, TrialStopped("this trial was told to stop"))

    def _objective_s(self, job: SimulatedJob) -> float:
        return self.loop.now_s() - (job.ready_s or 0.0)

    def _print(self, job: SimulatedJob, step: Print) -> None:
        out, err = job.printed.out, job.printed.err
        job.printed = Output(out, err + step.text) if step.is_error else Output(out + step.text, err)

    def _later(self, job: SimulatedJob, delay_s: float, call: Callable[[], None]) -> SimulatedTimer | None:
        if delay_s == math.inf:
            return None
        job._timers = [timer for timer in job._timers if timer.call is not None]
        job._timers.append(self.loop.call_at(self.loop.now_s() + delay_s, call))
        return job._timers[-1]

    def _leave_queue(self, job: SimulatedJob) -> None:
        if job in self._queue:
            self._queue.remove(job)

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException:  # as the contract says: nobody else is to suffer from it
            _log.exception("whoever submitted a job failed when it was told of it; the simulated engine goes on")
