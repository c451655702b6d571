"""Runs a search: turns events of the pool into facts for `Tuning` and executes its orders.

    engine --ready, report, ended, free--> fact --> Tuning --> orders --> engine (submit, end), searcher, checkpoints
                                             '---- row of the record: the fact and its orders
    end of the loop's turn: record.commit(), then all held answers are sent

An answer is sent only after its report is committed, and one write commits all reports of a turn. Decisions are made in
`decisions`. Display code polls the search through `look()`.

Any error here (a full disk, an invalid answer of a scheduler, a bug) ends the search: nothing more is decided or
written, the jobs are killed, and then `finished` is set with the error in `failure`. So nothing waits for a failed
search forever, and no exception reaches the loop or the engine.
"""

import contextlib
import functools
import math
import reprlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar, cast

from ..base.errors import ClosedError, RecordError
from ..pool import contract
from ..pool.contract import Engine, Job, JobRequest, Ready, Reply, Report, Timer
from ..pool.leases import Resources
from ..pool.specs import Packed
from .decisions import facts
from .decisions.facts import Fact
from .decisions.orders import Answer, Discard, Finish, Judged, Kill, Order, Reject, Start, Suggest, Terminate
from .decisions.tuning import Tuning
from .record.log import Record
from .record.names import output_stem
from .record.recorder import Recorder
from .record.snapshot import SearchSnapshot
from .record.state import SearchState
from .reporting import is_plain
from .schedulers.base import Decision
from .searchers.base import Searcher
from .suggesting import Suggester, suggester_for
from .tracebacks import before_traceback, of_the_user


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a running search: the packed objective, the resources of a trial, and the folders.

    Args:
        checkpoints: the root folder of the checkpoints, a path or any URL that fsspec supports.
        summary_interval_s: seconds between two summaries in the record, which lists of experiments read.
    """

    name: str
    packed: Packed
    need: Resources
    seed: int
    reuse: bool
    folder: Path
    checkpoints: str
    summary_interval_s: float = 5.0


class Checkpoints(Protocol):
    """Deletes checkpoints. Implemented by `CheckpointStore`."""

    def discard(self, names: list[str]) -> None:
        """Delete these checkpoints in the background. Does not block."""


_Fact = TypeVar("_Fact", bound=Callable[..., None])


def _breaks_off(fact: _Fact) -> _Fact:
    """Decorator: an exception ends the search instead of reaching the loop or the engine."""

    @functools.wraps(fact)
    def handled(self: "Search", *args: object) -> None:
        try:
            fact(self, *args)
        except BaseException as error:
            self._break_off(error)

    return cast(_Fact, handled)


@dataclass(slots=True)
class _Attempt:
    """An attempt that has been submitted to the engine as a job."""

    trial_id: int
    number: int
    job: Job | None = None
    ready_s: float | None = None


class Search:
    """A running search; see the module. `finished` is set when it is over. `failure` is then its error, or None.

    Args:
        engine: the engine of the pool.
        record: the open record.
        plan: the settings.
        state: the folded contents of the record.
        began_s: start of the search's clock in seconds: 0, or the last time of a resumed search.
        checkpoints: deletes checkpoints.
        listener: called with every fact and its orders on the loop's thread. Must not block.
    """

    def __init__(
        self,
        engine: Engine,
        record: Record,
        plan: Plan,
        state: SearchState,
        *,
        began_s: float = 0.0,
        checkpoints: Checkpoints,
        listener: Callable[[Fact, list[Order]], None] | None = None,
    ) -> None:
        self.finished = threading.Event()
        self.finish: Finish | None = None
        self.failure: BaseException | None = None
        self._is_over = False  # same as `finished`, cheaper to test on every turn
        self._engine = engine
        self._loop = engine.loop
        self._record = record
        self._plan = plan
        self._checkpoints = checkpoints
        self._recorder = Recorder(record, state, listener)
        self._zero_s = engine.loop.now_s() - began_s
        self._tuning: Tuning | None = None
        self._suggester: Suggester | None = None
        self._attempts: dict[int, _Attempt] = {}  # by job id
        self._job_of: dict[int, int] = {}  # trial id -> id of its current job
        self._answers: list[tuple[Report, Answer | Reject]] = []
        self._discards: list[str] = []
        self._report: Report | None = None
        self._timer: Timer | None = None
        self._armed_s: float | None = None  # the due time for which the timer was set
        self._told: list[Callable[[], None]] = []
        self._early: list[Callable[[], None]] = []  # commands received before `begin`
        self._summary_due_s = -math.inf

    @property
    def state(self) -> SearchState:
        """The folded contents of the record. Only for the loop's thread."""
        return self._recorder.state

    @property
    def num_trials(self) -> int:
        """Number of started trials. Can be read from any thread."""
        return self._recorder.num_trials

    @property
    def searcher_failure(self) -> BaseException | None:
        """The exception raised by the searcher, or None."""
        return None if self._suggester is None else self._suggester.failure

    def suggester(self, searcher: Searcher | None) -> Suggester | None:
        """Create the suggester that runs the searcher. It is the listener of `Tuning`."""
        if searcher is not None:
            self._suggester = suggester_for(searcher, self._suggested_later, self.now_s)
        return self._suggester

    def settle(self) -> None:
        """Block until the searcher has processed its queue. For use after the end of the search."""
        if self._suggester is not None:
            self._suggester.settle()

    def now_s(self) -> float:
        """Return the seconds since the search began, excluding interruptions. Can be called from any thread."""
        return self._loop.now_s() - self._zero_s

    @_breaks_off
    def begin(self, tuning: Tuning, first: Callable[[float], Fact], before: Sequence[Fact] = ()) -> None:
        """Start the search: apply the facts `before`, then the one that `first` makes from the time."""
        self._tuning = tuning
        self._loop.at_turn_end(self._turn_end)
        self._engine.prepare(self._plan.packed)
        for fact in before:
            self._hand_in(fact)
        self._hand_in(first(self.now_s()))
        for command in self._early:
            command()

    @_breaks_off
    def command(self, make: Callable[[float], Fact], then: Callable[[], None] | None = None) -> None:
        """Apply a user's command, such as Ctrl-C, stop or pause. Must be called on the loop's thread.

        Args:
            make: makes the fact from the time.
            then: called when the command has been committed; not called if the search is over or fails first.
        """
        if self._tuning is None:
            self._early.append(lambda: self.command(make, then))
        elif self.failure is None and not self.finished.is_set():
            self._hand_in(make(self.now_s()))
            if then is not None:
                self._told.append(then)

    def abandon(self) -> None:
        """Kill the running trials and finish at once. Must be called on the loop's thread, or after it has ended."""
        if not self.finished.is_set():
            self._break_off(ClosedError(f"the search {self._plan.name!r} was broken off."))
            with contextlib.suppress(ClosedError):  # the pool is closed, so no trial waits for an answer
                self._release_answers()
            self._let_go()

    # -- events of the engine --------------------------------------------------------------------------------------

    @_breaks_off
    def on_ready(self, job: Job, ready: Ready) -> None:
        attempt = self._attempts.get(job.id)
        if attempt is not None and self.failure is None:
            attempt.ready_s = now_s = self.now_s()
            pid = 0 if ready.pid is None else ready.pid
            self._hand_in(facts.Ready(now_s, attempt.trial_id, attempt.number, pid, ready.started_s, ready.how))

    def on_report(self, report: Report) -> None:
        try:  # same as `_breaks_off`, inlined because reports are by far the most frequent event
            attempt = self._attempts.get(report.job.id)
            if attempt is None:
                report.answer(Reply("STOP"))
            elif self.failure is not None:
                self._answers.append((report, Reject(attempt.trial_id, "")))
            elif (problem := _problem_with(report.values)) is not None:
                report.refuse(TypeError(problem))
            else:
                self._report = report
                self._hand_in(
                    facts.Reported(
                        self._loop.now_s() - self._zero_s,
                        attempt.trial_id,
                        attempt.number,
                        report.values,
                        report.worker_time_s,
                        report.checkpoint,
                    )
                )
        except BaseException as error:
            self._break_off(error)

    @_breaks_off
    def on_ended(self, job: Job, outcome: contract.Outcome) -> None:
        attempt = self._attempts.get(job.id)
        if attempt is None or self.failure is not None:
            return
        now_s = self.now_s()
        seconds = outcome.objective_s
        if seconds is None and attempt.ready_s is not None:
            seconds = now_s - attempt.ready_s
        where, printed = of_the_user(outcome.traceback), before_traceback(outcome.traceback, outcome.last_output)
        result = facts.Outcome(outcome.kind, outcome.text, where, printed, outcome.threads, outcome.retry_alone)
        self._hand_in(facts.Ended(now_s, attempt.trial_id, attempt.number, result, seconds), job)

    @_breaks_off
    def on_free(self, job: Job) -> None:
        attempt = self._attempts.get(job.id)
        if attempt is None:
            return
        if self._job_of.get(attempt.trial_id) == job.id:
            del self._job_of[attempt.trial_id]
        try:
            if self.failure is None:
                self._hand_in(facts.Free(self.now_s(), attempt.trial_id, attempt.number))
        finally:
            del self._attempts[job.id]

    @_breaks_off
    def _tick(self) -> None:
        self._timer = self._armed_s = None
        if self.failure is None:
            self._hand_in(facts.Tick(self.now_s()))

    def _suggested_later(self, fact: facts.Suggested) -> None:
        """Pass a suggestion from the searcher's thread to the loop."""

        @_breaks_off
        def hand_in(self: "Search") -> None:
            if self.failure is None and not self.finished.is_set():
                self._hand_in(replace(fact, now_s=self.now_s()))

        with contextlib.suppress(ClosedError):
            self._loop.call_soon(lambda: hand_in(self))

    # -- from facts to orders --------------------------------------------------------------------------------------

    def _hand_in(self, fact: Fact, job: Job | None = None) -> None:
        """Decide, record and execute, also for immediate suggestions. `job` is the job that has ended, if any."""
        tuning, todo = self._tuning, [fact]
        assert tuning is not None, "facts come after begin()"
        for fact in todo:
            orders = tuning.handle(fact)
            if type(fact) is facts.Ended and job is not None:
                fact = self._with_last_output(fact, orders, job)
            self._recorder.write(fact, orders)
            for order in orders:
                if self.failure is not None:
                    return
                if type(order) is Answer or type(order) is Reject:
                    assert self._report is not None, "orders answer the report that was handed in last"
                    self._answers.append((self._report, order))
                    self._report = None
                elif type(order) is Suggest:
                    assert self._suggester is not None, "a suggestion was ordered without a searcher"
                    answer = self._suggester.ask(order, now_s=fact.now_s, seen=self._record.next_seq - 1)
                    if answer is not None:
                        todo.append(answer)
                else:
                    self._obey(order)
        if tuning.next_tick_s != self._armed_s:
            self._arm(tuning.next_tick_s)

    def _obey(self, order: Order) -> None:
        match order:
            case Start():
                self._start(order)
            case Terminate():
                self._end_job(order.trial_id, "terminate")
            case Kill():
                self._end_job(order.trial_id, "kill")
            case Discard():
                self._discards.append(order.checkpoint)
            case Finish():
                self.finish = order

    def _start(self, order: Start) -> None:
        plan = self._plan
        request = JobRequest(
            plan.packed,
            replace(plan.need, gpus=1) if order.alone else plan.need,
            keywords=order.config,
            number=order.trial_id,
            attempt=order.attempt,
            seed=plan.seed,
            output=output_stem(plan.folder, order.trial_id, order.attempt),
            reuse=plan.reuse,
            context={
                "experiment": str(plan.folder),
                "checkpoints": plan.checkpoints,
                "checkpoint": order.checkpoint,
                "from_iter": order.from_iter,
                "config": dict(order.config),
            },
        )
        job = self._engine.submit(request, self)
        self._attempts[job.id] = _Attempt(order.trial_id, order.attempt, job)
        self._job_of[order.trial_id] = job.id

    def _end_job(self, trial_id: int, how: contract.Ending) -> None:
        job_id = self._job_of.get(trial_id)
        if job_id is not None and (job := self._attempts[job_id].job) is not None:
            self._engine.end(job, how)

    def _with_last_output(self, fact: facts.Ended, orders: list[Order], job: Job) -> facts.Ended:
        """Add the job's last output to a failure that came without any, such as a timeout."""
        failed = any(isinstance(order, Judged) and order.reason is not None for order in orders)
        if not failed or fact.outcome.last_output:
            return fact
        printed = self._engine.output(job)
        last = printed.err or printed.out
        return replace(fact, outcome=replace(fact.outcome, last_output=last)) if last else fact

    # -- the record and the clock ----------------------------------------------------------------------------------

    def _turn_end(self) -> None:
        """Commit the rows of this turn, then send the held answers."""
        if self._is_over:
            return
        try:
            if self.failure is None:
                self._record.commit()
                now_s = self._loop.now_s() - self._zero_s
                if now_s >= self._summary_due_s:
                    self._summary_due_s = now_s + self._plan.summary_interval_s
                    self._record.set_summary(self.state.summary(now_s=now_s))
        except BaseException as error:
            self._break_off(error)
        try:
            if self._answers or self._told:
                self._release_answers()
            if self._discards and self.failure is None:
                names, self._discards = self._discards, []
                self._checkpoints.discard(names)
            if self.finish is not None or (self.failure is not None and not self._attempts):
                self._let_go()
        except BaseException as error:
            self._break_off(error)

    def _release_answers(self) -> None:
        callbacks, self._told = self._told, []
        if self.failure is None:
            for callback in callbacks:
                callback()
        answers, self._answers = self._answers, []
        for report, order in answers:
            if self.failure is not None:
                report.refuse(
                    RecordError(f"this report was not kept: {getattr(self.failure, 'message', self.failure)}")
                )
            elif type(order) is Answer:
                report.answer(_REPLIES[order.decision])
            else:
                assert type(order) is Reject
                report.refuse(ValueError(order.message))

    def _arm(self, next_s: float | None) -> None:
        """Set the timer for the next due time of `Tuning`. Keep an earlier timer: an early tick is harmless."""
        self._armed_s = next_s
        if next_s is None or self.finish is not None:
            return
        when_s = self._zero_s + next_s
        if self._timer is not None:
            if self._timer.when_s <= when_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self._tick)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _break_off(self, error: BaseException) -> None:
        """Fail the search with this error and kill its jobs."""
        if self.failure is not None or self.finished.is_set():
            return
        self.failure = error
        for attempt in list(self._attempts.values()):
            if attempt.job is not None:
                with contextlib.suppress(Exception):  # the link may have ended, and then its process ends too
                    self._engine.end(attempt.job, "kill")

    def _let_go(self) -> None:
        """Stop the timer and the suggester, and set `finished`. Nothing is written after this."""
        if self._timer is not None:
            self._timer.cancel()
        if self._suggester is not None:
            self._suggester.close()
        with contextlib.suppress(ClosedError):
            self._loop.check_usable()
            self._loop.call_soon(self._unhook)
        self._is_over = True
        self.finished.set()

    def _unhook(self) -> None:
        with contextlib.suppress(ValueError):  # the search never began
            self._loop.not_at_turn_end(self._turn_end)

    # -- display ---------------------------------------------------------------------------------------------------

    def look(self) -> tuple[list[str], SearchSnapshot]:
        """Return the lines of news since the last call, and a snapshot. Must be called on the loop's thread."""
        state = self.state
        return state.news.take(), state.snapshot(now_s=self.now_s())


_REPLIES = {
    decision: contract.GO_ON if decision is Decision.CONTINUE else Reply(cast(contract.Decision, str(decision)))
    for decision in Decision
}


def _problem_with(values: object) -> str | None:
    """Return the problem with a report's values, or None. `report` validates them, `current().report` does not."""
    if type(values) is not dict:
        return f"a trial reports a dict of names and numbers, got a {type(values).__name__}"
    for name, value in values.items():
        if type(name) is not str or (type(value) is not float and not is_plain(value)):
            return f"a trial reports names with numbers or short strings, got {name!r}: {reprlib.repr(value)}"
    return None
