"""State machine of a search: assigns trials to slots, stops and pauses trials, and ends the search.

    handle(event)  ->  actions, to be executed in this order

    stage      new trials   paused trials   queued trials   next stage
    --------   ----------   -------------   -------------   -----------------------------------------------------------
    open       start        may resume      start           draining when no more new trials may start
    draining   -            may resume      start           closing when the scheduler resumes no more trials
    closing    -            -               start           finished when no trial runs or is held by a user
    stopping   -            -               -               finished when no trial runs
    finished   -            -               -               open when a new process resumes the search (Resumed)

The first three stages change to `stopping` when a limit that stops running trials is reached, when the search fails, or
on an Interrupt. Queued trials have run before and wait for a slot. They were retried, interrupted, or unpaused by a
user.

`SearchCore` connects the scheduler, the searcher and the stopping criterion with `SuggestionSource` (configurations of
new trials), `Slots` (one for each running trial) and `Trials` (unfinished trials). It validates reports before the
scheduler and the searcher receive them, and validates the answers of both.

The state machine performs no I/O and is deterministic, so a replay of the recorded events restores its state. Late
events, duplicates, and events about unknown trials change nothing and never raise.

Invariants: A slot is used from Start until Free. The first action after a Reported is its only Answer or Reject.
Before the next Resumed, there is at most one StopStarting and then at most one Finish, which is issued only when no
slot is used.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol, final

from ..constraints import Constraint, infeasibility_of, violations_of
from ..schedulers.scheduler import (
    CONTINUE,
    PAUSE,
    STOP,
    Clone,
    Decision,
    Done,
    New,
    NextTrial,
    Resume,
    Scheduler,
    Status,
    Stop,
    Wait,
)  # fmt: skip
from ..searchers.searcher import Observation, SuggestContext
from ..space import Space
from ..stopping import Counts, ReachedLimit, StoppingCriterion, reached_limit, reference_losses
from ..values import is_number, round_resource
from . import events
from .actions import Action, Answer, Discard, Finish, FinishKind, Reason, Reject, StopStarting
from .equal_failures import Failures
from .events import Event, Outcome
from .slots import Slots
from .suggestions import SuggestionSource
from .trials import RankedReport, Trial, Trials
from .validation import InvalidAnswer, checked_config, checked_decision, problem_with, required_values


class Listener(Protocol):
    """The methods of a searcher that receive results. The core requests suggestions by the action `Suggest` instead."""

    def observe(self, observation: Observation) -> None: ...
    def on_rollback(self, trial_id: int, to_iter: int) -> None: ...
    def on_end(self, trial_id: int, status: str) -> None: ...


@final
class SearchCore:
    """The state machine of one search. Pass it events and execute the actions that it returns.

    The first events are one `EarlierTrial` per trial of a warm start, and then `Begin`.

    Args:
        scheduler: a scheduler whose `begin` has been called. Its exceptions end the search.
        n_workers: number of slots. With 0, a trial starts only after an event `TrialRequested`.
        constraints: constraints on every report. None: those of the scheduler.

    The other arguments are those of `Tuner`.

    Attributes:
        counts: progress of the search. Read only.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        space: Space,
        criterion: StoppingCriterion,
        *,
        n_workers: int,
        constraints: Sequence[Constraint] | None = None,
        seed: int = 0,
        asynchronous: bool = True,
        trial_timeout_s: float | None = None,
        stop_grace_s: float = 5.0,
        max_equal_failures: int | None = 3,
        retries: int = 0,
        keep_checkpoints: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._listener: Listener = scheduler.searcher
        self._space = space
        self._criterion = criterion
        self._seed = seed
        self._objectives = scheduler.objectives
        self._constraints = tuple(scheduler.constraints if constraints is None else constraints)
        self._resource_attr = scheduler.resource_attr
        self._required = required_values(self._objectives, self._constraints, self._resource_attr)
        self._metric = self._objectives[0].metric
        # (metric, sign): the loss is sign * value.
        self._signs = [(objective.metric, 1.0 if objective.mode == "min" else -1.0) for objective in self._objectives]
        self.counts = Counts(self._metric)
        self.counts.track_hypervolume(reference_losses(criterion, self._objectives))
        self._failures = Failures(max_equal_failures)
        self._actions: list[Action] = []  # of the current event
        self._slots = Slots(n_workers, asynchronous=asynchronous)
        self._suggestions = SuggestionSource(scheduler.searcher, space, seed, self._actions)
        self._trials = Trials(
            self._actions,
            self._metric,
            timeout_s=trial_timeout_s,
            grace_s=stop_grace_s,
            retries=retries,
            keeps_checkpoints=keep_checkpoints or scheduler.clones,
        )
        self._has_begun = False
        self._stage: Literal["open", "draining", "closing", "stopping", "finished"] = "open"
        self._is_interrupted = False
        self._num_starts = 0
        self._reason = ""
        self._error: str | None = None
        self._cause: BaseException | None = None
        self._kind: FinishKind = "limit"
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.EarlierTrial: self._on_earlier, events.Begin: self._on_begin, events.Suggested: self._on_suggested,
            events.Ready: self._trials.on_ready, events.Reported: self._on_reported, events.Ended: self._on_ended,
            events.Free: self._on_free, events.Tick: self._on_tick, events.Interrupt: self._on_interrupt,
            events.Command: self._on_command, events.Enqueued: self._on_enqueued, events.Resumed: self._on_resumed,
            events.WorkersChanged: self._on_workers_changed, events.TrialRequested: self._on_trial_requested,
        }  # fmt: skip

    def handle(self, event: Event) -> list[Action]:
        self._handlers[type(event)](event)
        if type(event) is not events.Reported and (limit := self._reached_limit(event.now_s)) is not None:
            self._apply_limit(limit, event.now_s)
        if not self._trials.active and self._stage not in ("open", "finished"):
            self._finish()
        actions = self._actions[:]
        self._actions.clear()
        return actions

    def send_results_to(self, listener: Listener) -> None:
        """From now on, pass results to `listener`, a proxy of a searcher that runs in another thread."""
        self._listener = listener

    @property
    def best(self) -> RankedReport | None:
        """The best finite report by the first objective, the earliest on ties. Infeasible reports rank last."""
        return self._trials.best

    def problem_with(self, values: Mapping[str, object]) -> str | None:
        """Return the reason why a report with these values would be rejected, or None."""
        return problem_with(values, self._required)

    @property
    def is_finished(self) -> bool:
        return self._stage == "finished"

    @property
    def next_tick_s(self) -> float | None:
        """Time in seconds when the next Tick is due. None: no deadline is pending."""
        next_s, suggestion_s = self._trials.deadlines.next_s, self._suggestions.deadline_s
        if suggestion_s is not None and (next_s is None or suggestion_s < next_s):
            next_s = suggestion_s
        end_s = self._criterion.max_wallclock_time
        if end_s is None or end_s == math.inf or not self._has_begun or self._stage in ("stopping", "finished"):
            return next_s
        return end_s if next_s is None or end_s < next_s else next_s

    @property
    def checkpoints(self) -> frozenset[str]:
        """Names of all checkpoints that may still be needed."""
        return frozenset(self._trials.checkpoint_refs)

    # Events of the search.

    def _on_earlier(self, event: events.EarlierTrial) -> None:
        try:
            for number, values in enumerate(event.reports, start=1):
                self._listener.observe(self._observation(event.trial_id, event.config, number, values))
            self._listener.on_end(event.trial_id, event.status)
        except Exception as error:  # user code may raise any exception, which ends the search
            self._fail_on_exception("searcher", error, event.now_s)

    def _on_begin(self, event: events.Begin) -> None:
        assert not self._has_begun, "a search begins once"
        self._has_begun = True
        if self._stage == "open":  # not interrupted before it began
            self._request_ahead(event.now_s)
            self._fill(event.now_s)

    def _on_suggested(self, event: events.Suggested) -> None:
        if not self._suggestions.is_requested(event.number):
            return  # a late answer; the trial has started with a random configuration
        try:
            self._suggestions.receive(event, self._next_id)
        except InvalidAnswer as error:
            self._fail("searcher", "the searcher failed", str(error), event.now_s, error.cause)
        if event.error is not None:
            self._fail("searcher", "the searcher failed", event.error, event.now_s, event.cause)
        self._fill(event.now_s)
        self._slots.has_request &= self._suggestions.is_awaited  # dropped unless a trial awaits a suggestion

    def _on_enqueued(self, event: events.Enqueued) -> None:
        if self._stage == "open":
            self._suggestions.enqueue(event.config)
            self._fill(event.now_s)

    def _on_trial_requested(self, event: events.TrialRequested) -> None:
        self._slots.has_request = True
        self._fill(event.now_s)
        self._slots.has_request &= self._suggestions.is_awaited  # dropped unless a trial awaits a suggestion

    def _on_workers_changed(self, event: events.WorkersChanged) -> None:
        self._slots.resize(event.n_workers)
        self._fill(event.now_s)

    def _on_tick(self, event: events.Tick) -> None:
        now_s, suggestions = event.now_s, self._suggestions
        self._trials.tick(now_s)
        if not suggestions.take_deadline(now_s):
            return
        self._check_limits(now_s)
        if suggestions.state == "requested" and suggestions.is_awaited and self._stage == "open":
            config = suggestions.fall_back()
            if self._slots.has_room:
                self._start_new(config, fallback=True)
                self._check_limits(now_s)
            self._request_ahead(now_s)
            self._fill(now_s)

    def _on_interrupt(self, event: events.Interrupt) -> None:
        self._halt(event.reason, event.now_s)
        if self._is_interrupted:
            for trial in self._trials.active.values():
                self._trials.kill(trial, "interrupted twice")
        self._is_interrupted = True

    def _on_resumed(self, event: events.Resumed) -> None:
        now_s = event.now_s
        self._has_begun, self._stage, self._is_interrupted = True, "open", False
        self._reason, self._error, self._cause, self._kind = "", None, None, "limit"
        if event.stop is not None:
            self._criterion = StoppingCriterion(**event.stop)
            self.counts.track_hypervolume(reference_losses(self._criterion, self._objectives))
        if event.n_workers is not None:
            self._slots.n_workers = event.n_workers
        # Some suspended trials were counted as stopped, but will run again.
        self.counts.num_trials_stopped -= self._trials.suspend_active()
        active = list(self._trials.active.values())
        outcome = Outcome("lost", "the tuner exited before it recorded how the trial ended")
        for trial in active:
            if trial.state in ("stopping", "killed"):
                self._end_attempt(trial, outcome, now_s)
        for trial in active:
            self._release(trial, now_s)
        for trial in self._trials.suspended.values():
            self._rewind(trial, now_s)
        self._trials.queue_suspended()
        self._suggestions.reset()
        self._check_limits(now_s)
        self._request_ahead(now_s)
        self._fill(now_s)

    # Events of trials.

    def _on_reported(self, event: events.Reported) -> None:
        trial, now_s = self._trials.active.get(event.trial_id), event.now_s
        if trial is None or trial.attempt != event.attempt or trial.state not in ("starting", "running"):
            self._answer_uncounted(event, Answer(event.trial_id, STOP, 0, late=True))
            return
        problem = problem_with(event.values, self._required)
        if problem is not None:
            self._answer_uncounted(event, Reject(event.trial_id, problem))
            self._check_names(trial, event.values, problem, now_s)
            return
        trial.iter += 1
        if trial.iter <= trial.last_observed_iter:
            self._actions.append(Answer(trial.trial_id, CONTINUE, trial.iter, repeated=True))
            if event.checkpoint is not None:
                self._trials.keep_checkpoint(trial, event.checkpoint)
            return
        trial.last_observed_iter = trial.iter
        decision = self._decide(trial, event.values, now_s)
        if event.checkpoint is not None:
            self._trials.keep_checkpoint(trial, event.checkpoint)
        limit = self._reached_limit(now_s)
        if limit is not None and not limit.lets_running_finish and decision is CONTINUE:
            decision = STOP
            self._trials.begin_stopping(trial, "suspend", now_s)
        self._actions.insert(0, Answer(trial.trial_id, decision, trial.iter))
        if self._suggestions.state == "exhausted":
            self._suggestions.refresh()
        if limit is not None:
            self._apply_limit(limit, now_s)
        if self._slots.has_room:
            self._fill(now_s)
            self._check_limits(now_s)

    def _on_ended(self, event: events.Ended) -> None:
        trial = self._trials.find_active(event.trial_id, event.attempt)
        if trial is not None and trial.state not in ("attempt-ended", "finished"):
            self._end_attempt(trial, event.outcome, event.now_s)

    def _on_free(self, event: events.Free) -> None:
        trial, now_s = self._trials.find_active(event.trial_id, event.attempt), event.now_s
        if trial is None:
            return
        if trial.state not in ("attempt-ended", "finished"):
            self._end_attempt(trial, Outcome("lost", "the worker exited before it reported how the trial ended"), now_s)
        self._check_limits(now_s)
        may_start = self._stage != "stopping" and self._slots.num_used <= self._slots.n_workers
        if trial.plan == "retry" and may_start and not trial.finish_when_free:
            self._trials.start(trial, trial.slot)
            return
        self._release(trial, now_s)
        self._suggestions.refresh()
        self._fill(now_s)

    def _on_command(self, event: events.Command) -> None:
        trial = self._trials.find_controllable(event.trial_id)
        if trial is None:
            return
        if event.command == "stop":
            if self._trials.stop_for_user(trial, event.now_s):
                self._finish_trial(trial, Status.STOPPED, event.now_s)
        elif self._trials.set_hold(trial, event.command == "pause"):
            self._fill(event.now_s)

    # Starting trials.

    @property
    def _next_id(self) -> int:
        return self.counts.num_trials_started

    def _fill(self, now_s: float) -> None:
        """Start the queued trials in free slots, then the trials that the scheduler chooses."""
        if not self._slots.open_batch():
            return
        while self._slots.has_room:
            self._check_limits(now_s)
            if self._stage in ("stopping", "finished") or not self._has_begun:
                return
            if self._trials.queued:
                self._start(next(iter(self._trials.queued.values())))
            elif not self._start_next(now_s):
                return

    def _start_next(self, now_s: float) -> bool:
        """Apply the scheduler's next answer. Return False if nothing can start before another event arrives."""
        if self._stage == "closing" or (self._stage == "draining" and not self._trials.paused):
            return False
        if self._suggestions.is_awaited and self._stage == "open":
            return self._start_suggested(now_s)
        answer = self._ask_scheduler(now_s)
        if isinstance(answer, New):
            if answer.config is None:
                return self._start_suggested(now_s)
            self._start_new(answer.config)
        elif isinstance(answer, Clone):
            self._start_new(answer.config, source=answer.trial_id)
        elif isinstance(answer, (Resume, Stop)):
            self._resume_or_stop(answer, now_s)
        elif isinstance(answer, Done):
            self._stop_starting("the scheduler has no more trials")
            self._stage = "closing"
        elif isinstance(answer, Wait) and not self._trials.active and not self._trials.has_held_trials:
            if self._stage == "draining":  # nothing runs, so no event can change this answer
                self._stage = "closing"
            elif self._suggestions.state == "exhausted":
                self._stop_starting("searcher exhausted")
            elif self._suggestions.state != "requested":
                self._stop_starting("the scheduler has nothing left to run")
        return isinstance(answer, (New, Clone, Resume, Stop))

    def _ask_scheduler(self, now_s: float) -> NextTrial | None:
        """Return the scheduler's answer, or None if the scheduler failed."""
        context = SuggestContext(
            self._num_starts,
            self._next_id,
            self._space,
            seed=self._seed,
            purpose="next",
            pending=MappingProxyType(self._trials.pending_configs),
            now_s=now_s,
            no_new_configs=self._suggestions.state == "exhausted" or self._stage == "draining",
            can_start_trial=self._stage == "open",
        )
        try:
            return self._checked_next(self._scheduler.next(context))
        except Exception as error:  # user code may raise any exception, which ends the search
            self._fail_on_exception("scheduler", error, now_s)
            return None

    def _checked_next(self, answer: NextTrial) -> NextTrial:
        """Validate the answer, or raise InvalidAnswer. Replace `New` and `Clone` by `Wait` if no trial may start."""
        if type(answer) is Wait or (self._stage == "draining" and isinstance(answer, (New, Clone))):
            return Wait()
        if isinstance(answer, (Resume, Stop)):
            if not self._trials.is_paused_by_scheduler(answer.trial_id):
                trial_ids = [*self._trials.paused, *self._trials.active]
                trial_ids = sorted(filter(self._trials.is_paused_by_scheduler, trial_ids))
                paused = ", ".join(map(str, trial_ids[:20])) or "none"
                raise self._invalid_answer(f"returned {answer!r}, but that trial is not paused; paused are: {paused}")
            return answer
        if isinstance(answer, Clone) and not 0 <= answer.trial_id < self._next_id:
            trials = f"{self._next_id} trials have started, numbered from 0"
            raise self._invalid_answer(f"returned {answer!r}, but there is no such trial; {trials}")
        if isinstance(answer, Clone) or (isinstance(answer, New) and answer.config is not None):
            origin = f"the configuration of {type(self._scheduler).__name__}.next()"
            config = checked_config(answer.config, self._space, origin, self._next_id)
            return New(config) if isinstance(answer, New) else Clone(answer.trial_id, config)
        if isinstance(answer, New) and self._suggestions.state == "exhausted" and not self._suggestions.enqueued:
            return Wait()
        if isinstance(answer, (New, Wait, Done)):
            return answer
        allowed = "New(...), Resume(trial_id), Clone(trial_id, config), Stop(trial_id), Wait() or Done()"
        raise self._invalid_answer(f"must return {allowed}, got {answer!r}", TypeError)

    def _invalid_answer(self, problem: str, error_type: type[Exception] = ValueError) -> InvalidAnswer:
        return InvalidAnswer(error_type(f"{type(self._scheduler).__name__}.next() {problem}"))

    def _start_suggested(self, now_s: float) -> bool:
        """Start a trial with the next configuration. If there is none yet, let the slot wait, and return False."""
        suggestions = self._suggestions
        if suggestions.enqueued:
            self._start_new(suggestions.take_enqueued())
            return True
        if suggestions.state == "ready":
            self._start_new(suggestions.take_suggestion())
            self._request_ahead(now_s)
            return True
        suggestions.wait(self._next_id, self._trials.pending_configs, now_s)
        return False

    def _request_ahead(self, now_s: float) -> None:
        """Request a suggestion before a slot is free, if the searcher has a time limit."""
        if self._stage == "open" and self._suggestions.timeout_s is not None:
            self._suggestions.request(self._next_id, self._trials.pending_configs, now_s)

    def _start_new(self, config: Mapping[str, object], *, source: int | None = None, fallback: bool = False) -> None:
        trial = self._trials.create(self._next_id, config, source)
        self.counts.num_trials_started += 1
        self._start(trial, source=source, fallback=fallback)

    def _start(self, trial: Trial, *, source: int | None = None, fallback: bool = False) -> None:
        self._num_starts += 1
        self._trials.start(trial, self._slots.take(), source=source, fallback=fallback)

    def _resume_or_stop(self, answer: Resume | Stop, now_s: float) -> None:
        """Resume or stop a paused trial, now or when its process has exited."""
        trial = self._trials.active.get(answer.trial_id) or self._trials.paused[answer.trial_id]
        if isinstance(answer, Stop):
            if self._trials.stop_for_scheduler(trial):
                self._finish_trial(trial, Status.STOPPED, now_s)
        elif trial.state != "paused":
            trial.reserved_slot = self._slots.take()
        elif trial.hold:
            trial.state = "held"  # it starts when the user removes the hold
        else:
            self._start(trial)

    # Reports.

    def _answer_uncounted(self, event: events.Reported, answer: Answer | Reject) -> None:
        """Answer a report that does not count, because it is late or invalid, and discard its checkpoint."""
        self._actions.append(answer)
        if event.checkpoint is not None:
            self._actions.append(Discard(event.trial_id, event.checkpoint))

    def _check_names(self, trial: Trial, values: Mapping[str, object], problem: str, now_s: float) -> None:
        """Fail the search if no report has been valid and a value is missing, probably because of a misspelled name."""
        invalid_value = next((item for item in self._required if not is_number(values.get(item.name))), None)
        if not self.counts.num_evaluations and invalid_value is not None and invalid_value.name not in values:
            self._trials.begin_stopping(trial, "suspend", now_s)
            self._fail("no-metric", f"the {invalid_value.role} {invalid_value.name!r} was not reported", problem, now_s)

    def _observation(
        self, trial_id: int, config: Mapping[str, object], iter: int, values: Mapping[str, Any]
    ) -> Observation:
        violations = violations_of(self._constraints, values) if self._constraints else ()
        infeasibility = infeasibility_of(self._constraints, violations) if violations else 0.0
        losses = tuple([sign * values[metric] for metric, sign in self._signs])
        if -math.inf in losses:  # as in Objective.loss, an infinite value is never the best
            losses = tuple([math.inf if loss == -math.inf else loss for loss in losses])
        attr = self._resource_attr
        resource = float(iter) if attr is None else round_resource(float(values[attr]))
        return Observation(trial_id, config, iter, resource, losses, values, violations, infeasibility)

    def _decide(self, trial: Trial, values: Mapping[str, Any], now_s: float) -> Decision:
        """Count and rank a new report, and return the decision about it."""
        report = self._observation(trial.trial_id, trial.config, trial.iter, values)
        losses, infeasibility = report.losses, report.infeasibility
        counts, loss, best = self.counts, losses[0], trial.best
        counts.num_evaluations += 1
        if any(map(math.isnan, losses + report.violations)):
            name = next(item.name for item in self._required if math.isnan(values[item.name]))
            trial.fault = Reason("nan", f"the objective reported {name}=nan")
            self._trials.begin_stopping(trial, "stop", now_s)
            return STOP
        number, value = counts.num_evaluations, values[self._metric]
        counts.add_result(trial.trial_id, infeasibility, losses, value)
        is_better = best is None or (infeasibility, loss, number) < best
        if is_better and math.isfinite(loss) and math.isfinite(infeasibility):
            trial.best = RankedReport(infeasibility, loss, number, value, trial.trial_id, trial.iter, trial.config)
        callee: Literal["searcher", "scheduler"] = "searcher"
        try:
            self._listener.observe(report)
            callee = "scheduler"
            decision = self._scheduler.on_report(report)
            if type(decision) is not Decision:
                decision = checked_decision(decision, type(self._scheduler).__name__, trial.trial_id)
        except Exception as error:  # user code may raise any exception, which ends the search
            self._trials.begin_stopping(trial, "suspend", now_s)
            self._fail_on_exception(callee, error, now_s)
            return STOP
        if decision is STOP:
            max_resource = self._scheduler.max_resource
            is_complete = max_resource is not None and report.resource >= round_resource(float(max_resource))
            self._trials.begin_stopping(trial, "complete" if is_complete else "stop", now_s)
        elif decision is PAUSE or trial.hold:
            self._trials.begin_stopping(trial, "pause" if decision is PAUSE else "hold", now_s)
            return PAUSE
        return decision

    # Ends of trials.

    def _end_attempt(self, trial: Trial, outcome: Outcome, now_s: float) -> None:
        """End the attempt. Finish the trial too, unless it will be resumed or retried."""
        status, reason = self._trials.end(trial, outcome)
        if trial.plan == "retry":
            self._rewind(trial, now_s)
            return
        if trial.plan == "suspend":
            self.counts.num_trials_stopped += 1
            return
        if trial.state == "finished":
            self._finish_trial(trial, status, now_s)
        if not trial.has_counted_outcome:  # trials count once, when they first pause or finish
            failure = self._failures.add(reason, has_reported=trial.iter > 0)
            if failure is not None and self._stage != "stopping":
                self._fail("equal-failures", failure.partition(" (")[0], failure, now_s)
        trial.has_counted_outcome = True

    def _rewind(self, trial: Trial, now_s: float) -> None:
        if not trial.rewind():
            return
        callee: Literal["searcher", "scheduler"] = "searcher"
        try:
            self._listener.on_rollback(trial.trial_id, trial.iter)
            callee = "scheduler"
            self._scheduler.on_rollback(trial.trial_id, trial.iter)
        except Exception as error:  # user code may raise any exception, which ends the search
            self._fail_on_exception(callee, error, now_s)

    def _release(self, trial: Trial, now_s: float) -> None:
        self._slots.release(trial.slot)
        if trial.reserved_slot is not None:
            self._slots.release(trial.reserved_slot)
        status = self._trials.release(trial)
        if status is not None:
            self._finish_trial(trial, status, now_s)

    def _finish_trial(self, trial: Trial, status: Status, now_s: float) -> None:
        self.counts.num_trials_completed += status is Status.COMPLETED
        self.counts.num_trials_stopped += status is Status.STOPPED
        self.counts.num_trials_failed += status is Status.FAILED
        self.counts.add_end(trial.trial_id)
        self._trials.finish(trial)
        callee: Literal["searcher", "scheduler"] = "searcher"
        try:
            self._listener.on_end(trial.trial_id, str(status))
            callee = "scheduler"
            self._scheduler.on_end(trial.trial_id, status)
        except Exception as error:  # user code may raise any exception, which ends the search
            self._fail_on_exception(callee, error, now_s)

    # Limits and the end of the search.

    def _reached_limit(self, now_s: float) -> ReachedLimit | None:
        """Update the wall-clock time of the counts. Return the limit that was reached, or None."""
        if not self._has_begun or self._stage in ("stopping", "finished"):
            return None
        self.counts.wallclock_s = now_s
        return reached_limit(self._criterion, self.counts, is_draining=self._stage != "open")

    def _check_limits(self, now_s: float) -> None:
        limit = self._reached_limit(now_s)
        if limit is not None:
            self._apply_limit(limit, now_s)

    def _apply_limit(self, limit: ReachedLimit, now_s: float) -> None:
        self._stop_starting(limit.reason)
        if not limit.lets_running_finish:
            self._halt(limit.reason, now_s)

    def _stop_starting(self, reason: str) -> None:
        if self._stage == "open":
            self._stage = "draining"
            self._reason = reason
            self._actions.append(StopStarting(reason))

    def _halt(self, reason: str, now_s: float) -> None:
        """Start no more trials and stop the running ones. Later calls have no effect."""
        if self._stage not in ("stopping", "finished"):
            self._stop_starting(reason)
            self._stage, self._reason = "stopping", reason
            self._suggestions.deadline_s = None
            for trial in self._trials.active.values():
                if trial.state in ("starting", "running"):
                    self._trials.terminate(trial, "suspend", reason, now_s)

    def _fail(
        self, kind: FinishKind, reason: str, error: str, now_s: float, cause: BaseException | None = None
    ) -> None:
        """End the search with an error. Only the first error is recorded."""
        if self._error is None and self._stage != "finished":
            self._kind, self._error, self._cause = kind, error, cause
        self._halt(reason, now_s)

    def _fail_on_exception(self, callee: Literal["searcher", "scheduler"], error: Exception, now_s: float) -> None:
        error = error.cause if isinstance(error, InvalidAnswer) else error
        name = f"searcher {type(self._scheduler.searcher).__name__}" if callee == "searcher" else "scheduler"
        text = f"the {name} raised {type(error).__name__}: {error}"
        self._fail(callee, f"the {callee} failed", text, now_s, error)

    def _finish(self) -> None:
        """End the search now that no trial runs, unless a trial is queued or held by a user."""
        if self._stage != "stopping" and (self._trials.queued or self._trials.has_held_trials):
            return
        if self._stage == "draining" and self._slots.n_workers == 0 and self._trials.paused:
            return  # the next TrialRequested may resume a paused trial
        self._stage = "finished"
        self._suggestions.deadline_s = None
        if self._error is None and (text := self._failures.all_failed(self.counts.num_trials_started)) is not None:
            self._kind, self._error = "all-failed", text
        self._actions.append(Finish(self._reason, self._error, self._cause, self._kind))
