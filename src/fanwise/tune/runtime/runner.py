"""Runs a search: turns messages of the pool into events for `SearchCore` and executes its actions.

    engine --ready, report, ended, free--> event -> SearchCore -> actions -> engine (submit, end), searcher, checkpoints
                                             '---- row of the record: the event and its actions
    end of a turn of the event loop: record.commit(), then the answers to the reports of the turn are sent

An answer is sent only after its report is committed. One write commits all reports of a turn. All methods run on the
thread of the engine's event loop, the pool's `Hub`, unless they say otherwise. Displays call `take_news` and
`take_snapshot` repeatedly.

Any error here, such as a full disk or a bug, ends the search. Nothing more is decided or written, the jobs are killed,
and then `finished` is set with the error in `failure`. So nothing waits for a failed search forever, and no exception
reaches the loop or the engine.
"""

import contextlib
import functools
import math
import reprlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from ...base.errors import ClosedError, RecordError
from ...base.tracebacks import before_traceback, of_the_user
from ...pool import contract
from ...pool.contract import Engine, Job, JobRequest, Ready, Reply, Report, Timer
from ...pool.leases import Resources
from ...pool.reporting import is_plain
from ..core import events
from ..core.actions import Action, Answer, Discard, Finish, Kill, Reject, SetStatus, Start, Suggest, Terminate
from ..core.events import Event
from ..core.search_core import SearchCore
from ..core.suggestions import call_searcher
from ..record.log import Record, Recorder
from ..record.names import output_stem
from ..record.state import SearchState
from ..record.trials import SearchSnapshot
from ..schedulers.scheduler import Decision
from ..searchers.searcher import Searcher
from .checkpoint_store import CheckpointStore
from .suggester import Suggester

# Seconds between two summaries in the record, which lists of experiments read.
_SUMMARY_INTERVAL_S = 5.0

_Method = TypeVar("_Method", bound=Callable[..., None])


def _end_search_on_error(method: _Method) -> _Method:
    """Decorate a method so that its exceptions end the search instead of reaching the loop or the engine."""

    @functools.wraps(method)
    def wrapper(self: "SearchRunner", *args: object) -> None:
        try:
            method(self, *args)
        except BaseException as error:
            self._fail(error)

    return cast(_Method, wrapper)


@dataclass(slots=True)
class _Attempt:
    """An attempt that has been submitted to the engine as a job."""

    trial_id: int
    number: int
    job: Job
    ready_s: float | None = None


class SearchRunner:
    """A running search. When it has ended, `finished` is set and `failure` is its error, or None.

    Args:
        state: the state of the search after the events in the record.
        job: the job of every trial, without the configuration: packed objective, resources, seed and reuse.
        listener: called with every event and its actions on the loop's thread. Must not block.
    """

    def __init__(
        self,
        engine: Engine,
        record: Record,
        state: SearchState,
        job: JobRequest,
        checkpoints: CheckpointStore,
        listener: Callable[[Event, list[Action]], None] | None = None,
    ) -> None:
        self.finished = threading.Event()
        self.finish: Finish | None = None
        self.failure: BaseException | None = None
        self._is_over = False  # equal to `finished`, but cheaper to read on every turn
        self._engine = engine
        self._loop = engine.loop
        self._record = record
        self._trial_job = job
        self._checkpoints = checkpoints
        self._recorder = Recorder(record, state, listener)
        self._zero_s = engine.loop.now_s() - state.last_s  # the loop's time at time 0 of the search
        self._core: SearchCore | None = None
        self._suggester: Suggester | None = None  # None: the searcher runs inline
        self._attempts: dict[int, _Attempt] = {}  # by job id
        self._job_ids: dict[int, int] = {}  # trial id -> id of its current job
        self._answers: list[tuple[Report, Answer | Reject]] = []  # sent after the next commit
        self._discards: list[str] = []
        self._report: Report | None = None  # the report whose event is being applied
        self._timer: Timer | None = None
        self._timer_due_s: float | None = None  # `next_tick_s` of the core at the last call of `_set_timer`
        self._after_commit: list[Callable[[], None]] = []
        self._early_commands: list[Callable[[], None]] = []  # received before `begin`, e.g. from `on_start`
        self._summary_due_s = -math.inf

    @property
    def state(self) -> SearchState:
        """The state of the search after all recorded events. Only for the loop's thread."""
        return self._recorder.state

    def set_resources(self, resources: Resources) -> None:
        """Set the resources of trials that start from now on. Must be called on the loop's thread."""
        self._trial_job = replace(self._trial_job, resources=resources)

    def wait_for_searcher(self) -> BaseException | None:
        """After the search, block for up to 10 s until the searcher is idle. Return its exception, or None."""
        if self._suggester is None:
            return None
        self._suggester.finish_observations()
        return self._suggester.failure

    def now_s(self) -> float:
        """Return the seconds since the search began (see `events`). Can be called from any thread."""
        return self._loop.now_s() - self._zero_s

    @_end_search_on_error
    def begin(
        self,
        core: SearchCore,
        searcher: Searcher,
        make_first_event: Callable[[float], Event],
        earlier: Sequence[Event] = (),
    ) -> None:
        """Start the search. Apply the `earlier` events, and then `make_first_event(now_s)`."""
        self._core = core
        self._loop.at_turn_end(self._on_turn_end)
        self._searcher = searcher
        if not searcher.runs_inline:
            self._suggester = Suggester(searcher, self._deliver_suggestion)
            core.send_results_to(self._suggester)
        self._engine.prepare(self._trial_job.packed)
        for event in earlier:
            self._apply(event)
        self._apply(make_first_event(self.now_s()))
        for command in self._early_commands:
            command()

    @_end_search_on_error
    def apply_command(self, make_event: Callable[[float], Event], on_commit: Callable[[], None] | None = None) -> None:
        """Apply `make_event(now_s)`, a user's command such as Ctrl-C or pause. Must be called on the loop's thread.

        `on_commit` is called when the command has been committed, but not if the search is over or fails first.
        """
        if self._core is None:
            self._early_commands.append(lambda: self.apply_command(make_event, on_commit))
        elif self.failure is None and not self.finished.is_set():
            self._apply(make_event(self.now_s()))
            if on_commit is not None:
                self._after_commit.append(on_commit)

    def abandon(self) -> None:
        """Kill the running trials and finish at once. Must be called on the loop's thread, or after that has ended."""
        if not self.finished.is_set():
            self._fail(ClosedError(f"the search {self.state.name!r} was abandoned."))
            with contextlib.suppress(ClosedError):  # the pool is closed, so no trial waits for an answer
                self._send_answers()
            self._close()

    @_end_search_on_error
    def on_ready(self, job: Job, ready: Ready) -> None:
        attempt = self._attempts.get(job.id)
        if attempt is not None and self.failure is None:
            attempt.ready_s = now_s = self.now_s()
            trial_id, pid, host = attempt.trial_id, ready.pid or 0, ready.node or None
            self._apply(events.Ready(now_s, trial_id, attempt.number, pid, ready.started_s, ready.how, host))

    def on_report(self, report: Report) -> None:
        try:  # same as `_end_search_on_error`, inlined because reports are by far the most frequent event
            attempt = self._attempts.get(report.job.id)
            if attempt is None:
                report.answer(Reply("STOP"))
            elif self.failure is not None:
                self._answers.append((report, Reject(attempt.trial_id, "")))
            elif (problem := _problem_with(report.values)) is not None:
                report.refuse(TypeError(problem))
            else:
                self._report = report
                now_s = self._loop.now_s() - self._zero_s
                values, objective_s, checkpoint = report.values, report.worker_time_s, report.checkpoint
                self._apply(events.Reported(now_s, attempt.trial_id, attempt.number, values, objective_s, checkpoint))
        except BaseException as error:
            self._fail(error)

    @_end_search_on_error
    def on_ended(self, job: Job, outcome: contract.Outcome) -> None:
        attempt = self._attempts.get(job.id)
        if attempt is None or self.failure is not None:
            return
        now_s = self.now_s()
        objective_s = outcome.objective_s
        if objective_s is None and attempt.ready_s is not None:
            objective_s = now_s - attempt.ready_s
        result = events.Outcome(
            outcome.kind,
            outcome.text,
            of_the_user(outcome.traceback),
            before_traceback(outcome.traceback, outcome.last_output),
            outcome.threads,
            outcome.retry_alone,
        )
        self._apply(events.Ended(now_s, attempt.trial_id, attempt.number, result, objective_s), job)

    @_end_search_on_error
    def on_free(self, job: Job) -> None:
        attempt = self._attempts.get(job.id)
        if attempt is None:
            return
        if self._job_ids.get(attempt.trial_id) == job.id:
            del self._job_ids[attempt.trial_id]
        try:
            if self.failure is None:
                self._apply(events.Free(self.now_s(), attempt.trial_id, attempt.number))
        finally:
            del self._attempts[job.id]

    @_end_search_on_error
    def _tick(self) -> None:
        self._timer = self._timer_due_s = None
        if self.failure is None:
            self._apply(events.Tick(self.now_s()))

    def _deliver_suggestion(self, event: events.Suggested) -> None:
        self._loop.call_soon(lambda: self._apply_suggestion(event))

    @_end_search_on_error
    def _apply_suggestion(self, event: events.Suggested) -> None:
        if self.failure is None and not self.finished.is_set():
            self._apply(replace(event, now_s=self.now_s()))

    def _apply(self, event: Event, job: Job | None = None) -> None:
        """Handle the event and the suggestions that an inline searcher returns. Record them and execute their actions.

        `job`: the job that has ended, if the event is `Ended`.
        """
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
                    last_seq = self._record.next_seq - 1
                    if self._suggester is None:
                        queue.append(call_searcher(self._searcher, action, event.now_s, last_seen_seq=last_seq))
                    else:
                        self._suggester.ask(action, last_seen_seq=last_seq)
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
        folder = self._record.folder
        request = replace(
            self._trial_job,
            resources=replace(self._trial_job.resources, gpus=1) if action.alone else self._trial_job.resources,
            keywords=action.config,
            number=action.trial_id,
            attempt=action.attempt,
            output=output_stem(folder, action.trial_id, action.attempt),
            context={
                "experiment": str(folder),
                "checkpoints": self._checkpoints.root,
                "checkpoint": action.checkpoint,
                "from_iter": action.from_iter,
            },
        )
        job = self._engine.submit(request, self)
        self._attempts[job.id] = _Attempt(action.trial_id, action.attempt, job)
        self._job_ids[action.trial_id] = job.id

    def _end_job(self, trial_id: int, ending: contract.Ending) -> None:
        job_id = self._job_ids.get(trial_id)
        if job_id is not None:
            self._engine.end(self._attempts[job_id].job, ending)

    def _with_last_output(self, event: events.Ended, actions: list[Action], job: Job) -> events.Ended:
        """Return the event. Add the last output of the job if the attempt failed and the event has no output."""
        has_failed = any(isinstance(action, SetStatus) and action.reason is not None for action in actions)
        if not has_failed or event.outcome.last_output:
            return event
        output = self._engine.output(job)
        text = output.err or output.out
        return replace(event, outcome=replace(event.outcome, last_output=text)) if text else event

    def _on_turn_end(self) -> None:
        """Commit the rows of this turn, then send its answers."""
        if self._is_over:
            return
        try:
            if self.failure is None:
                self._record.commit()
                now_s = self._loop.now_s() - self._zero_s
                if now_s >= self._summary_due_s:
                    self._summary_due_s = now_s + _SUMMARY_INTERVAL_S
                    self._record.set_summary(self.state.summary(now_s=now_s))
        except BaseException as error:
            self._fail(error)
        try:
            if self._answers or self._after_commit:
                self._send_answers()
            if self._discards and self.failure is None:
                names, self._discards = self._discards, []
                self._checkpoints.discard(names)
            if self.finish is not None or (self.failure is not None and not self._attempts):
                self._close()
        except BaseException as error:
            self._fail(error)

    def _send_answers(self) -> None:
        callbacks, self._after_commit = self._after_commit, []
        if self.failure is None:
            for callback in callbacks:
                callback()
        answers, self._answers = self._answers, []
        for report, action in answers:
            if self.failure is not None:
                message = getattr(self.failure, "message", self.failure)
                report.refuse(RecordError(f"this report was not kept: {message}"))
            elif type(action) is Answer:
                report.answer(_REPLIES[action.decision])
            else:
                assert type(action) is Reject
                report.refuse(ValueError(action.message))

    def _set_timer(self, next_s: float | None) -> None:
        """Set the timer for the next tick. Keep a timer that is set earlier, because an early tick is harmless."""
        self._timer_due_s = next_s
        if next_s is None or self.finish is not None:
            return
        when_s = self._zero_s + next_s
        if self._timer is not None:
            if self._timer.when_s <= when_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when_s, self._tick)

    def _fail(self, error: BaseException) -> None:
        if self.failure is not None or self.finished.is_set():
            return
        self.failure = error
        for attempt in list(self._attempts.values()):
            with contextlib.suppress(Exception):  # the link may be closed; then the process ends too
                self._engine.end(attempt.job, "kill")

    def _close(self) -> None:
        """Stop the timer and the suggester, and set `finished`. Nothing is written after this."""
        if self._timer is not None:
            self._timer.cancel()
        if self._suggester is not None:
            self._suggester.close()
        if self._core is not None:
            self._loop.call_soon(lambda: self._loop.not_at_turn_end(self._on_turn_end))
        self._is_over = True
        self.finished.set()

    def take_news(self) -> list[str]:
        """Return the lines of text since the last call. Must be called on the loop's thread."""
        return self._recorder.news.take()

    def take_snapshot(self) -> SearchSnapshot:
        """Must be called on the loop's thread."""
        return self.state.snapshot(now_s=self.now_s())


_REPLIES = {
    decision: contract.GO_ON if decision is Decision.CONTINUE else Reply(cast(contract.Decision, str(decision)))
    for decision in Decision
}


def _problem_with(values: object) -> str | None:
    """Return the problem with a report's values, or None. They come from the trial's process, which is not trusted."""
    if type(values) is not dict:
        return f"a report must be a dict of names and numbers, got a {type(values).__name__}"
    for name, value in values.items():
        if type(name) is not str or (type(value) is not float and not is_plain(value)):
            return f"a report must have names with numbers or short strings, got {name!r}: {reprlib.repr(value)}"
    return None
