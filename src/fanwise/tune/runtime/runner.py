"""Runs a search: turns messages of the pool into events for `SearchCore` and executes its actions.

    engine --ready, report, ended, free--> event -> SearchCore -> actions -> engine (submit, end), searcher, checkpoints
                                             '---- row of the record: the event and its actions
    end of the loop's turn: record.commit(), then all held answers are sent

An answer is sent only after its report is committed, and one write commits all reports of a turn. Decisions are made in
`core`. Display code polls the search through `look()`.

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

from ...base.errors import ClosedError, RecordError
from ...base.tracebacks import before_traceback, of_the_user
from ...pool import contract
from ...pool.contract import Engine, Job, JobRequest, Ready, Reply, Report, Timer
from ...pool.leases import Resources
from ...pool.reporting import is_plain
from ...pool.specs import Packed
from ..core import events
from ..core.actions import Action, Answer, Discard, Finish, Judged, Kill, Reject, Start, Suggest, Terminate
from ..core.events import Event
from ..core.search_core import SearchCore
from ..record.log import Record, Recorder
from ..record.names import output_stem
from ..record.state import SearchState
from ..record.trials import SearchSnapshot
from ..schedulers.scheduler import Decision
from ..searchers.searcher import Searcher
from .suggester import Suggester, suggester_for


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a running search: the packed objective, the resources of a trial, and the folders.

    Args:
        checkpoints: the root folder of the checkpoints, a path or any URL that fsspec supports.
        summary_interval_s: seconds between two summaries in the record, which lists of experiments read.
    """

    name: str
    packed: Packed
    resources: Resources
    seed: int
    reuse: bool
    folder: Path
    checkpoints: str
    summary_interval_s: float = 5.0


class Checkpoints(Protocol):
    """Deletes checkpoints. Implemented by `CheckpointStore`."""

    def discard(self, names: list[str]) -> None:
        """Delete these checkpoints in the background. Does not block."""


_Method = TypeVar("_Method", bound=Callable[..., None])


def _fails_search(method: _Method) -> _Method:
    """Decorator: an exception ends the search instead of reaching the loop or the engine."""

    @functools.wraps(method)
    def handled(self: "Search", *args: object) -> None:
        try:
            method(self, *args)
        except BaseException as error:
            self._fail(error)

    return cast(_Method, handled)


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
        listener: called with every event and its actions on the loop's thread. Must not block.
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
        listener: Callable[[Event, list[Action]], None] | None = None,
    ) -> None:
        self.finished = threading.Event()
        self.resources = plan.resources  # of trials that start from now on
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
        self._core: SearchCore | None = None
        self._suggester: Suggester | None = None
        self._attempts: dict[int, _Attempt] = {}  # by job id
        self._job_of: dict[int, int] = {}  # trial id -> id of its current job
        self._answers: list[tuple[Report, Answer | Reject]] = []
        self._discards: list[str] = []
        self._report: Report | None = None
        self._timer: Timer | None = None
        self._timer_due_s: float | None = None  # the due time for which the timer was set
        self._after_commit: list[Callable[[], None]] = []
        self._early_commands: list[Callable[[], None]] = []  # commands received before `begin`
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
        """Create the suggester that runs the searcher. It is the listener of `SearchCore`."""
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

    @_fails_search
    def begin(self, core: SearchCore, make_first: Callable[[float], Event], earlier: Sequence[Event] = ()) -> None:
        """Start the search: apply the events `earlier`, then the one that `make_first` makes from the time."""
        self._core = core
        self._loop.at_turn_end(self._turn_end)
        self._engine.prepare(self._plan.packed)
        for event in earlier:
            self._apply(event)
        self._apply(make_first(self.now_s()))
        for command in self._early_commands:
            command()

    @_fails_search
    def command(self, make: Callable[[float], Event], on_commit: Callable[[], None] | None = None) -> None:
        """Apply a user's command, such as Ctrl-C, stop or pause. Must be called on the loop's thread.

        Args:
            make: makes the event from the time.
            on_commit: called when the command has been committed; not called if the search is over or fails first.
        """
        if self._core is None:
            self._early_commands.append(lambda: self.command(make, on_commit))
        elif self.failure is None and not self.finished.is_set():
            self._apply(make(self.now_s()))
            if on_commit is not None:
                self._after_commit.append(on_commit)

    def abandon(self) -> None:
        """Kill the running trials and finish at once. Must be called on the loop's thread, or after it has ended."""
        if not self.finished.is_set():
            self._fail(ClosedError(f"the search {self._plan.name!r} was broken off."))
            with contextlib.suppress(ClosedError):  # the pool is closed, so no trial waits for an answer
                self._release_answers()
            self._close()

    # -- events of the engine --------------------------------------------------------------------------------------

    @_fails_search
    def on_ready(self, job: Job, ready: Ready) -> None:
        attempt = self._attempts.get(job.id)
        if attempt is not None and self.failure is None:
            attempt.ready_s = now_s = self.now_s()
            pid = 0 if ready.pid is None else ready.pid
            self._apply(events.Ready(now_s, attempt.trial_id, attempt.number, pid, ready.started_s, ready.how))

    def on_report(self, report: Report) -> None:
        try:  # same as `_fails_search`, inlined because reports are by far the most frequent event
            attempt = self._attempts.get(report.job.id)
            if attempt is None:
                report.answer(Reply("STOP"))
            elif self.failure is not None:
                self._answers.append((report, Reject(attempt.trial_id, "")))
            elif (problem := _problem_with(report.values)) is not None:
                report.refuse(TypeError(problem))
            else:
                self._report = report
                self._apply(
                    events.Reported(
                        self._loop.now_s() - self._zero_s,
                        attempt.trial_id,
                        attempt.number,
                        report.values,
                        report.worker_time_s,
                        report.checkpoint,
                    )
                )
        except BaseException as error:
            self._fail(error)

    @_fails_search
    def on_ended(self, job: Job, outcome: contract.Outcome) -> None:
        attempt = self._attempts.get(job.id)
        if attempt is None or self.failure is not None:
            return
        now_s = self.now_s()
        seconds = outcome.objective_s
        if seconds is None and attempt.ready_s is not None:
            seconds = now_s - attempt.ready_s
        user_traceback = of_the_user(outcome.traceback)
        output = before_traceback(outcome.traceback, outcome.last_output)
        result = events.Outcome(
            outcome.kind, outcome.text, user_traceback, output, outcome.threads, outcome.retry_alone
        )
        self._apply(events.Ended(now_s, attempt.trial_id, attempt.number, result, seconds), job)

    @_fails_search
    def on_free(self, job: Job) -> None:
        attempt = self._attempts.get(job.id)
        if attempt is None:
            return
        if self._job_of.get(attempt.trial_id) == job.id:
            del self._job_of[attempt.trial_id]
        try:
            if self.failure is None:
                self._apply(events.Free(self.now_s(), attempt.trial_id, attempt.number))
        finally:
            del self._attempts[job.id]

    @_fails_search
    def _tick(self) -> None:
        self._timer = self._timer_due_s = None
        if self.failure is None:
            self._apply(events.Tick(self.now_s()))

    def _suggested_later(self, event: events.Suggested) -> None:
        """Pass a suggestion from the searcher's thread to the loop."""

        @_fails_search
        def apply(self: "Search") -> None:
            if self.failure is None and not self.finished.is_set():
                self._apply(replace(event, now_s=self.now_s()))

        with contextlib.suppress(ClosedError):
            self._loop.call_soon(lambda: apply(self))

    # -- from events to actions --------------------------------------------------------------------------------------

    def _apply(self, event: Event, job: Job | None = None) -> None:
        """Decide, record and execute, also for immediate suggestions. `job` is the job that has ended, if any."""
        core, queue = self._core, [event]
        assert core is not None, "events come after begin()"
        for event in queue:
            actions = core.handle(event)
            if type(event) is events.Ended and job is not None:
                event = self._with_last_output(event, actions, job)
            self._recorder.write(event, actions)
            for action in actions:
                if self.failure is not None:
                    return
                if type(action) is Answer or type(action) is Reject:
                    assert self._report is not None, "actions answer the last report"
                    self._answers.append((self._report, action))
                    self._report = None
                elif type(action) is Suggest:
                    assert self._suggester is not None, "a suggestion was ordered without a searcher"
                    answer = self._suggester.ask(action, now_s=event.now_s, seen=self._record.next_seq - 1)
                    if answer is not None:
                        queue.append(answer)
                else:
                    self._execute(action)
        if core.next_tick_s != self._timer_due_s:
            self._set_timer(core.next_tick_s)

    def _execute(self, action: Action) -> None:
        match action:
            case Start():
                self._start(action)
            case Terminate():
                self._end_job(action.trial_id, "terminate")
            case Kill():
                self._end_job(action.trial_id, "kill")
            case Discard():
                self._discards.append(action.checkpoint)
            case Finish():
                self.finish = action

    def _start(self, action: Start) -> None:
        plan = self._plan
        request = JobRequest(
            plan.packed,
            replace(self.resources, gpus=1) if action.alone else self.resources,
            keywords=action.config,
            number=action.trial_id,
            attempt=action.attempt,
            seed=plan.seed,
            output=output_stem(plan.folder, action.trial_id, action.attempt),
            reuse=plan.reuse,
            context={
                "experiment": str(plan.folder),
                "checkpoints": plan.checkpoints,
                "checkpoint": action.checkpoint,
                "from_iter": action.from_iter,
                "config": dict(action.config),
            },
        )
        job = self._engine.submit(request, self)
        self._attempts[job.id] = _Attempt(action.trial_id, action.attempt, job)
        self._job_of[action.trial_id] = job.id

    def _end_job(self, trial_id: int, how: contract.Ending) -> None:
        job_id = self._job_of.get(trial_id)
        if job_id is not None and (job := self._attempts[job_id].job) is not None:
            self._engine.end(job, how)

    def _with_last_output(self, event: events.Ended, actions: list[Action], job: Job) -> events.Ended:
        """Add the job's last output to a failure that came without any, such as a timeout."""
        failed = any(isinstance(action, Judged) and action.reason is not None for action in actions)
        if not failed or event.outcome.last_output:
            return event
        output = self._engine.output(job)
        last = output.err or output.out
        return replace(event, outcome=replace(event.outcome, last_output=last)) if last else event

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
            self._fail(error)
        try:
            if self._answers or self._after_commit:
                self._release_answers()
            if self._discards and self.failure is None:
                names, self._discards = self._discards, []
                self._checkpoints.discard(names)
            if self.finish is not None or (self.failure is not None and not self._attempts):
                self._close()
        except BaseException as error:
            self._fail(error)

    def _release_answers(self) -> None:
        callbacks, self._after_commit = self._after_commit, []
        if self.failure is None:
            for callback in callbacks:
                callback()
        answers, self._answers = self._answers, []
        for report, action in answers:
            if self.failure is not None:
                report.refuse(
                    RecordError(f"this report was not kept: {getattr(self.failure, 'message', self.failure)}")
                )
            elif type(action) is Answer:
                report.answer(_REPLIES[action.decision])
            else:
                assert type(action) is Reject
                report.refuse(ValueError(action.message))

    def _set_timer(self, next_s: float | None) -> None:
        """Set the timer for the next due time of `SearchCore`. Keep an earlier timer: an early tick is harmless."""
        self._timer_due_s = next_s
        if next_s is None or self.finish is not None:
            return
        when_s = self._zero_s + next_s
        if self._timer is not None:
            if self._timer.when_s <= when_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self._tick)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Fail the search with this error and kill its jobs."""
        if self.failure is not None or self.finished.is_set():
            return
        self.failure = error
        for attempt in list(self._attempts.values()):
            if attempt.job is not None:
                with contextlib.suppress(Exception):  # the link may have ended, and then its process ends too
                    self._engine.end(attempt.job, "kill")

    def _close(self) -> None:
        """Stop the timer and the suggester, and set `finished`. Nothing is written after this."""
        if self._timer is not None:
            self._timer.cancel()
        if self._suggester is not None:
            self._suggester.close()
        with contextlib.suppress(ClosedError):
            self._loop.check_usable()
            self._loop.call_soon(self._remove_turn_hook)
        self._is_over = True
        self.finished.set()

    def _remove_turn_hook(self) -> None:
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
