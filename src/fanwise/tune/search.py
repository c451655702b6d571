"""One search at work: facts from the pool go into `Tuning`, its orders are carried out. Runs on the pool's hub thread.

    pool --ready, report, outcome, finished--> Tuning --orders--> pool (start, stop, kill)
                                                  |------> record (every event)
                                                  |------> held answers
    end of the hub's turn: record.commit(), then all held answers leave

So no answer leaves before what it answers is committed, and one transaction serves all reports that came together.
Decides nothing itself; `tuning` does. Knows no terminal: what is to be shown is taken by `look()`.

Whatever breaks here - the disk, a scheduler that gives out nonsense, a bug - ends the search: from then on nothing is
asked of `tuning` or written, its jobs are killed, and when they are gone `finished` is set, with the error in
`failure`. So a search may fail, but nobody waits for it for ever; and the hub and the engine never see an exception.
"""

import contextlib
import functools
import reprlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar, cast

from ..base.errors import ClosedError, RecordError
from ..pool import Outcome as JobOutcome
from ..pool.contract import GO_ON, Ending, Engine, Job, JobRequest, Ready, Reply, Report, Timer
from ..pool.leases import Resources
from ..pool.outcomes import last_words
from ..pool.seeds import job_seed
from ..pool.specs import Packed
from . import orders
from .orders import Answer, Ended, Finish, Kill, Order, Reject, Start, StopStarting, Terminate
from .progress import Progress, Running
from .record import Record
from .reporting import is_plain
from .table import SearchSnapshot
from .tuning import Tuning


@dataclass(frozen=True, slots=True)
class Plan:
    """What a search runs: the packed objective, what each trial needs, and where things are kept."""

    name: str
    packed: Packed
    need: Resources
    seed: int
    n_workers: int
    reuse: bool
    folder: Path
    metric: str
    config_names: tuple[str, ...]
    limit_s: float | None


_Fact = TypeVar("_Fact", bound=Callable[..., None])


def _breaks_off(fact: _Fact) -> _Fact:
    """What goes wrong while a fact is handled ends the search, and not the hub's thread or the engine's turn."""

    @functools.wraps(fact)
    def handled(self: "Search", *args: object) -> None:
        try:
            fact(self, *args)
        except BaseException as error:
            self._break_off(error)

    return cast(_Fact, handled)


class Search:
    """See the module. `finished` is set when the search is over, `failure` then says whether it went wrong."""

    def __init__(self, engine: Engine, record: Record, tuning: Tuning, plan: Plan) -> None:
        self.finished = threading.Event()
        self.finish: Finish | None = None
        self.failure: BaseException | None = None
        self._engine = engine
        self._loop = engine.loop
        self._record = record
        self._tuning = tuning
        self._plan = plan
        self._began_s = engine.loop.now_s()
        self._progress = Progress(
            plan.name, plan.metric, plan.config_names, n_workers=plan.n_workers, limit_s=plan.limit_s
        )
        self._trials: dict[int, Running] = {}  # both by the id of the job
        self._jobs: dict[int, Job] = {}
        self._answers: list[tuple[Report, Answer | Reject]] = []
        self._report: Report | None = None
        self._timer: Timer | None = None

    @_breaks_off
    def begin(self) -> None:
        """Start the first trials."""
        self._loop.at_turn_end(self._turn_end)
        self._engine.prepare(self._plan.packed)
        self._obey(self._tuning.start(now_s=self._now_s()))

    @_breaks_off
    def interrupt(self) -> None:
        """Ctrl-C: the first time gently, then hard."""
        if self.failure is None:
            self._obey(self._tuning.interrupt(now_s=self._now_s()))

    def abandon(self) -> None:
        """Nobody waits any more: kill what runs and let go of the record at once. On the hub's thread, or after it."""
        if not self.finished.is_set():
            self._break_off(ClosedError(f"the search {self._plan.name!r} was broken off."))
            with contextlib.suppress(ClosedError):  # the pool is closed: nobody waits for an answer
                self._release_answers()
            self._let_go()

    def _now_s(self) -> float:
        return self._loop.now_s() - self._began_s

    # -- facts: what the pool tells --------------------------------------------------------------------------------

    @_breaks_off
    def on_ready(self, job: Job, ready: Ready) -> None:
        trial = self._trials.get(job.id)
        if trial is None or self.failure is not None:
            return
        now_s = self._now_s()
        self._progress.ready(trial, now_s)
        body = {"attempt": trial.attempt, "pid": ready.pid, "process_started_s": ready.started_s, "how": ready.how}
        self._append(now_s, "ready", trial.trial_id, body)
        self._obey(self._tuning.on_ready(trial.trial_id, trial.attempt, now_s=now_s))

    @_breaks_off
    def on_report(self, report: Report) -> None:
        trial = self._trials.get(report.job.id)
        if trial is None:
            report.answer(Reply("STOP"))
        elif self.failure is not None:
            self._answers.append((report, Reject(trial.trial_id, "")))
        elif (problem := _problem_with(report.values)) is not None:
            report.refuse(TypeError(problem))
        else:
            self._report = report
            self._obey(self._tuning.on_report(trial.trial_id, trial.attempt, report.values, now_s=self._now_s()))

    @_breaks_off
    def on_ended(self, job: Job, outcome: JobOutcome) -> None:
        trial = self._trials.get(job.id)
        if trial is None or self.failure is not None:
            return
        now_s = self._now_s()
        trial.ended_s = now_s
        trial.objective_s = outcome.objective_s
        if outcome.objective_s is None and trial.ready_s is not None:
            trial.objective_s = now_s - trial.ready_s
        told = orders.Outcome(outcome.kind, outcome.text, outcome.traceback, outcome.last_output)
        self._obey(self._tuning.on_ended(trial.trial_id, trial.attempt, told, now_s=now_s))

    @_breaks_off
    def on_free(self, job: Job) -> None:
        trial = self._trials.get(job.id)
        if trial is None:
            return
        try:
            if self.failure is None:
                now_s = self._now_s()
                self._append(now_s, "free", trial.trial_id, {"slot": trial.slot})
                self._obey(self._tuning.on_free(trial.trial_id, trial.attempt, now_s=now_s))
        finally:
            del self._trials[job.id], self._jobs[job.id]

    @_breaks_off
    def _tick(self) -> None:
        self._timer = None
        if self.failure is None:
            self._obey(self._tuning.on_tick(now_s=self._now_s()))

    # -- orders ----------------------------------------------------------------------------------------------------

    def _obey(self, todo: list[Order]) -> None:
        for order in todo:
            if self.failure is not None:
                return
            match order:
                case Answer() | Reject():
                    self._hold(order)
                case Start():
                    self._start(order)
                case Terminate():
                    self._end_jobs(order.trial_id, "terminate")
                case Kill():
                    self._end_jobs(order.trial_id, "kill")
                case Ended():
                    self._ended(order)
                case StopStarting():
                    now_s = self._now_s()
                    self._append(now_s, "stop", None, {"reason": order.reason})
                    self._progress.stopped(order.reason, now_s)
                case Finish():
                    self._append(self._now_s(), "finish", None, {"reason": order.reason})
                    self.finish = order
        self._arm()

    def _hold(self, order: Answer | Reject) -> None:
        """The answer to the report that was just handed in; it leaves after the commit at the end of the turn."""
        report, self._report = self._report, None
        assert report is not None, "orders answer the report that was handed in last"
        trial = self._trials[report.job.id]
        if isinstance(order, Answer) and not order.late:
            self._progress.reported(trial, report.values, report.worker_time_s)
            body = {
                "attempt": trial.attempt,
                "values": report.values,
                "decision": order.decision,
                "worker_time": report.worker_time_s,
                "iter": trial.iter,
            }
            self._append(self._now_s(), "report", trial.trial_id, body)
        self._answers.append((report, order))

    def _start(self, order: Start) -> None:
        plan = self._plan
        seed = job_seed(plan.seed, order.trial_id, order.attempt)
        body = {"config": order.config, "attempt": order.attempt, "slot": order.slot, "seed": seed}
        self._append(self._now_s(), "start", order.trial_id, body)
        trial = Running(order.trial_id, order.attempt, order.config, order.slot)
        self._progress.scheduled(trial)
        suffix = f"-{order.attempt}" if order.attempt else ""
        wanted = JobRequest(
            plan.packed,
            plan.need,
            keywords=order.config,
            number=order.trial_id,
            attempt=order.attempt,
            seed=plan.seed,
            output=str(plan.folder / "output" / f"{order.trial_id}{suffix}"),
            reuse=plan.reuse,
        )
        job = self._engine.submit(wanted, self)
        self._trials[job.id], self._jobs[job.id] = trial, job

    def _end_jobs(self, trial_id: int, how: Ending) -> None:
        for job_id, trial in list(self._trials.items()):
            if trial.trial_id == trial_id:
                self._engine.end(self._jobs[job_id], how)

    def _ended(self, order: Ended) -> None:
        asked = (order.trial_id, order.attempt)
        job_id, trial = next((i, t) for i, t in self._trials.items() if (t.trial_id, t.attempt) == asked)
        now_s, best = self._now_s(), self._tuning.best
        body = {
            "attempt": order.attempt,
            "status": order.status,
            "reason": None if order.reason is None else self._told(order.reason, self._jobs[job_id]),
            "objective_s": trial.objective_s or 0.0,
            "will_retry": order.will_retry,
        }
        self._append(now_s, "end", order.trial_id, body)
        is_best = best is not None and best.trial_id == order.trial_id
        self._progress.ended(
            trial, order.status, order.reason, will_retry=order.will_retry, now_s=now_s, is_best=is_best
        )

    def _told(self, reason: orders.Reason, job: Job) -> dict[str, str]:
        """A reason for the record. One that is not the process's own fault, as a time-out, comes without its output."""
        return {**asdict(reason), "last_output": reason.last_output or last_words(self._engine.output(job))}

    # -- the record and the clock ----------------------------------------------------------------------------------

    def _append(self, t_s: float, kind: str, trial_id: int | None, body: Mapping[str, object]) -> None:
        self._record.append(t_s, kind, trial_id, body)

    @_breaks_off
    def _turn_end(self) -> None:
        """Commit what this turn brought, then let the answers go."""
        if self.finished.is_set():
            return
        try:
            if self.failure is None:
                self._record.commit()
        except BaseException as error:
            self._break_off(error)
        self._release_answers()
        if self.finish is not None or (self.failure is not None and not self._trials):
            self._let_go()

    def _release_answers(self) -> None:
        answers, self._answers = self._answers, []
        for report, order in answers:
            if self.failure is not None:
                report.refuse(
                    RecordError(f"this report was not kept: {getattr(self.failure, 'message', self.failure)}")
                )
            elif isinstance(order, Answer):
                report.answer(GO_ON if order.decision == "CONTINUE" else Reply(order.decision.value))
            else:
                report.refuse(ValueError(order.message))

    def _arm(self) -> None:
        """Keep a timer no later than `Tuning` next wants to look at the clock. One that comes early does no harm."""
        next_s = self._tuning.next_tick_s
        if next_s is None or self.finish is not None:
            return
        when_s = self._began_s + next_s
        if self._timer is not None:
            if self._timer.when_s <= when_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self._tick)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _break_off(self, error: BaseException) -> None:
        """Something that the search cannot go on without broke: kill what runs, say why at the end."""
        if self.failure is not None or self.finished.is_set():
            return
        self.failure = error
        for job in list(self._jobs.values()):
            with contextlib.suppress(Exception):  # a link that has just ended; its process ends too
                self._engine.end(job, "kill")

    def _let_go(self) -> None:
        """Nothing is written and nothing happens here after this."""
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(ClosedError):
            self._loop.check_usable()
            self._loop.call_soon(self._unhook)
        self.finished.set()

    def _unhook(self) -> None:
        with contextlib.suppress(ValueError):  # it never began
            self._loop.not_at_turn_end(self._turn_end)

    # -- what is shown ---------------------------------------------------------------------------------------------

    def look(self) -> tuple[list[str], SearchSnapshot]:
        """The news since the last look, in lines, and the state. On the hub's thread."""
        tuning = self._tuning
        snapshot = self._progress.snapshot(self._trials.values(), tuning.counts, tuning.best, now_s=self._now_s())
        return self._progress.news(), snapshot


def _problem_with(values: object) -> str | None:
    """Why these are no values of a report. `report` sends none such; `current().report` can."""
    if type(values) is not dict:
        return f"a trial reports a dict of names and numbers, got a {type(values).__name__}"
    for name, value in values.items():
        if type(name) is not str or not is_plain(value):
            return f"a trial reports names and numbers, got {name!r}: {reprlib.repr(value)}"
    return None
