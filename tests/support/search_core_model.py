"""Reference model of `SearchCore`: it keeps the whole history, and derives its actions from that.

    model = SearchModel(settings)
    model.handle(event)  ->  the same actions as SearchCore.handle(event)

It computes the valid reports, the needed checkpoints, the best report and the deadlines by going through all trials
each time, which is slow but simple. `Slots`, `SuggestionSource`, `Counts`, `Failures` and the validation of reports
are those of the library, and have their own tests.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scripted_search import SEED, SPACE, SearchSettings, planned_answer

from fanwise.tune.core import actions, events
from fanwise.tune.core.equal_failures import Failures
from fanwise.tune.core.slots import Slots
from fanwise.tune.core.suggestions import SuggestionSource
from fanwise.tune.core.validation import problem_with, required_values
from fanwise.tune.schedulers import Clone, Decision, Done, New, Resume, Status, Stop, Wait
from fanwise.tune.stopping import Counts, StoppingCriterion, reached_limit, reference_losses

CRASHES = ("exception", "exit", "signal", "out-of-memory", "gpu-fault", "lost")
Config = Mapping[str, object]
Time = tuple[float, int]  # in seconds, and the step, which orders equal times


@dataclass(eq=False)
class Report:
    """A valid report. `number`: number of the report among the valid reports of all trials, from 1."""

    trial_id: int
    config: Config
    iter: int
    value: float
    loss: float
    number: int
    excess: float
    is_void: bool = False


@dataclass(eq=False)
class Checkpoint:
    """A checkpoint. `best`: the trial's best report up to then."""

    name: str
    iter: int
    best: Report | None


@dataclass(eq=False)
class Trial:
    """A trial and its last attempt. `state`: "active", "paused", "queued", "suspended" or "finished".

    `request`: "stop", "pause" or "suspend". `runs_for_scheduler`: only a user has paused it. `candidates`: its reports
    since the last rollback, and the best report at that time.
    """

    trial_id: int
    config: Config
    first_iter: int = 0
    state: str = ""
    uses_slot: bool = False
    slot: int = -1
    reserved_slot: int | None = None
    order: int = -1
    attempt: int = -1
    iter: int = 0
    ready: Time | None = None
    stopping: Time | None = None
    request: str = ""
    at_maximum: bool = False
    is_killed: bool = False
    is_ended: bool = False
    will_retry: bool = False
    fault: tuple[str, str] | None = None
    num_retries: int = 0
    has_counted_outcome: bool = False
    needs_whole_gpu: bool = False
    hold: bool = False
    runs_for_scheduler: bool = False
    is_dropped: bool = False
    finish_when_free: bool = False
    checkpoints: list[Checkpoint] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    candidates: list[Report] = field(default_factory=list)

    @property
    def from_iter(self) -> int:
        return self.checkpoints[-1].iter if self.checkpoints else 0

    @property
    def reached(self) -> int:
        return max([self.first_iter, *(report.iter for report in self.reports if not report.is_void)])

    @property
    def is_running(self) -> bool:
        return self.uses_slot and not self.is_ended and self.stopping is None


class SearchModel:
    def __init__(self, settings: SearchSettings) -> None:
        self.settings = settings
        self.keeps_all = settings.keeps_checkpoints or settings.clones
        self.criterion = StoppingCriterion(**settings.limits)
        scheduler = settings.scheduler()
        self.objective, self.constraints = scheduler.objectives[0], scheduler.constraints
        self.counts = Counts("loss")
        self.counts.track_hypervolume(reference_losses(self.criterion, [self.objective]))
        self.failures = Failures(settings.max_equal_failures)
        self.plan: list[tuple[str, int]] = []
        self.calls: list[tuple[object, ...]] = []  # of the scheduler; the searcher gets all but "next"
        self.trials: list[Trial] = []
        self.queue: list[Trial] = []
        self.suspended: list[Trial] = []
        self.stage = "open"
        self.is_interrupted = False
        self.step = self.num_starts = 0
        self.reason = ""
        self.error: str | None = None
        self.kind: actions.FinishKind = "limit"
        self.output: list[actions.Action] = []
        self.slots = Slots(settings.n_workers, asynchronous=settings.asynchronous)
        self.source = SuggestionSource(scheduler.searcher, SPACE, SEED, self.output)

    def handle(self, event: events.Event) -> list[actions.Action]:
        self.output.clear()
        getattr(self, f"_{type(event).__name__.lower()}")(event)
        if not isinstance(event, events.Reported):
            self._apply_limits(event.now_s)
        is_idle = self.stage in ("draining", "closing") and not self.queue and not self.has_held_trials()
        if not self.active() and (self.stage == "stopping" or is_idle):
            self.stage, self.source.deadline_s = "finished", None
            if self.error is None and (text := self.failures.all_failed(len(self.trials))) is not None:
                self.error, self.kind = text, "all-failed"
            self.output.append(actions.Finish(self.reason, self.error, None, self.kind))
        return list(self.output)

    # Derived from the history.

    def active(self) -> list[Trial]:
        return sorted((trial for trial in self.trials if trial.uses_slot), key=lambda trial: trial.order)

    def pending(self) -> dict[int, Config]:
        return {trial.trial_id: trial.config for trial in self.active()}

    def find(self, trial_id: int, attempt: int) -> Trial | None:
        return next((t for t in self.active() if (t.trial_id, t.attempt) == (trial_id, attempt)), None)

    def best_of(self, trials: list[Trial]) -> Report | None:
        """The best finite valid report, a feasible one before all others, the earliest on ties."""
        reports = [report for trial in trials for report in trial.candidates]
        finite = [report for report in reports if math.isfinite(report.value) and math.isfinite(report.excess)]
        return min(finite, key=lambda report: (report.excess, report.loss, report.number), default=None)

    def references(self) -> dict[str, int]:
        """The references to each checkpoint: of trials that may continue, of all that are kept, and of the best."""
        finished = [trial for trial in self.trials if trial.state == "finished"]
        holders = [trial for trial in self.trials if trial.state != "finished" or self.keeps_all]
        if not self.keeps_all and (best := self.best_of(finished)) is not None:
            holders.append(self.trials[best.trial_id])
        names = [trial.checkpoints[-1].name for trial in holders if trial.checkpoints]
        return {name: names.count(name) for name in names}

    def deadlines(self) -> dict[int, Time]:
        deadlines = {}
        for trial in self.active():
            if trial.stopping is not None and not trial.is_ended and not trial.is_killed:
                deadlines[trial.trial_id] = (trial.stopping[0] + self.settings.grace_s, trial.stopping[1])
            elif trial.is_running and trial.ready is not None and self.settings.timeout_s is not None:
                deadlines[trial.trial_id] = (trial.ready[0] + self.settings.timeout_s, trial.ready[1])
        return deadlines

    def resumable(self) -> list[int]:
        scheduler_paused = [trial for trial in self.trials if trial.state == "paused" or trial.request == "pause"]
        undecided = [t for t in scheduler_paused if t.reserved_slot is None and not t.is_dropped]
        return [trial.trial_id for trial in undecided if trial.state != "finished" and not trial.runs_for_scheduler]

    def has_held_trials(self) -> bool:
        return any(trial.state == "paused" and trial.runs_for_scheduler for trial in self.trials)

    def _apply_limits(self, now_s: float) -> None:
        if self.stage in ("stopping", "finished"):
            return
        self.counts.wallclock_s = now_s
        limit = reached_limit(self.criterion, self.counts, is_draining=self.stage != "open")
        if limit is not None and limit.lets_running_finish:
            self._stop_starting(limit.reason)
        elif limit is not None:
            self._halt(limit.reason, now_s)

    def _stop_starting(self, reason: str) -> None:
        if self.stage == "open":
            self.stage, self.reason = "draining", reason
            self.output.append(actions.StopStarting(reason))

    def _halt(self, reason: str, now_s: float) -> None:
        if self.stage not in ("stopping", "finished"):
            self._stop_starting(reason)
            self.stage, self.reason, self.source.deadline_s = "stopping", reason, None
            for trial in filter(lambda trial: trial.is_running, self.active()):
                self._terminate(trial, "suspend", reason, now_s)

    def _fail(self, kind: actions.FinishKind, reason: str, error: str, now_s: float) -> None:
        if self.error is None and self.stage != "finished":
            self.kind, self.error = kind, error
        self._halt(reason, now_s)

    def _fail_scheduler(self, error: str, now_s: float) -> None:
        self._fail("scheduler", "the scheduler failed", f"the scheduler raised {error}", now_s)

    # Events.

    def _begin(self, event: events.Begin) -> None:
        self._request_ahead(event.now_s)
        self._fill(event.now_s)

    def _suggested(self, event: events.Suggested) -> None:
        if self.source.is_requested(event.number):
            self.source.receive(event, len(self.trials))
            if event.error is not None:
                self._fail("searcher", "the searcher failed", event.error, event.now_s)
            self._fill(event.now_s)
            self.slots.has_request = self.slots.has_request and self.source.is_awaited

    def _trialrequested(self, event: events.TrialRequested) -> None:
        self.slots.has_request = True
        self._fill(event.now_s)
        self.slots.has_request = self.slots.has_request and self.source.is_awaited

    def _ready(self, event: events.Ready) -> None:
        trial = self.find(event.trial_id, event.attempt)
        if trial is not None and trial.is_running and trial.ready is None:
            self.step += 1
            trial.ready = (event.now_s, self.step)

    def _reported(self, event: events.Reported) -> None:
        trial, now_s = self.find(event.trial_id, event.attempt), event.now_s
        if trial is None or not trial.is_running:
            self._answer_invalid(event, actions.Answer(event.trial_id, Decision.STOP, late=True))
            return
        problem = problem_with(event.values, required_values([self.objective], self.constraints, None))
        if problem is not None:
            self._answer_invalid(event, actions.Reject(trial.trial_id, problem))
            name = "cost" if isinstance(event.values.get("loss"), float) else "loss"
            if not self.counts.num_evaluations and name not in event.values:
                self._begin_stopping(trial, "suspend", now_s)
                label = "metric 'loss'" if name == "loss" else "constraint's value 'cost'"
                self._fail("no-metric", f"the {label} was not reported", problem, now_s)
            return
        trial.iter += 1
        if trial.iter <= trial.reached:
            self.output.append(actions.Answer(trial.trial_id, Decision.CONTINUE, trial.iter, repeated=True))
            self._save(trial, event.checkpoint)
            return
        decision = self._decide(trial, event.values, now_s)
        self._save(trial, event.checkpoint)
        if self.stage in ("open", "draining", "closing"):
            self.counts.wallclock_s = now_s
            if decision is Decision.CONTINUE and reached_limit(self.criterion, self.counts, is_draining=True):
                decision = Decision.STOP
                self._begin_stopping(trial, "suspend", now_s)
        self.output.insert(0, actions.Answer(trial.trial_id, decision, trial.iter))
        self.source.refresh()
        self._apply_limits(now_s)
        if self.slots.has_room:
            self._fill(now_s)

    def _answer_invalid(self, event: events.Reported, answer: actions.Action) -> None:
        self.output.append(answer)
        if event.checkpoint is not None:
            self.output.append(actions.Discard(event.trial_id, event.checkpoint))

    def _decide(self, trial: Trial, values: Mapping[str, Any], now_s: float) -> Decision:
        value, cost, bound = values["loss"], values.get("cost", 0.0), self.settings.bound
        excess = 0.0 if bound is None or cost <= bound else (cost - bound) / (bound or 1.0)
        number, loss = self.counts.num_evaluations + 1, self.objective.loss(value)
        report = Report(trial.trial_id, trial.config, trial.iter, value, loss, number, excess)
        trial.reports.append(report)
        trial.candidates.append(report)
        self.counts.num_evaluations += 1
        if math.isnan(value) or math.isnan(excess):
            trial.fault = ("nan", f"the objective reported {'loss' if math.isnan(value) else 'cost'}=nan")
            self._begin_stopping(trial, "stop", now_s)
            return Decision.STOP
        self.counts.add_result(trial.trial_id, excess, [loss], value)
        self.calls.append(("report", trial.trial_id, trial.iter, loss, excess))
        script = values.get("ask", "")
        if script == "break":
            self._begin_stopping(trial, "suspend", now_s)
            self._fail_scheduler("ZeroDivisionError: scripted", now_s)
            return Decision.STOP
        if script not in ("stop", "pause") and not trial.hold:
            return Decision.CONTINUE
        trial.runs_for_scheduler = script not in ("stop", "pause")
        trial.at_maximum = script == "stop" and trial.iter >= (self.settings.max_resource or math.inf)
        self._begin_stopping(trial, "stop" if script == "stop" else "pause", now_s)
        return Decision.STOP if script == "stop" else Decision.PAUSE

    def _ended(self, event: events.Ended) -> None:
        trial = self.find(event.trial_id, event.attempt)
        if trial is not None and not trial.is_ended:
            self._end(trial, event.outcome, event.now_s)

    def _free(self, event: events.Free) -> None:
        trial, now_s = self.find(event.trial_id, event.attempt), event.now_s
        if trial is None:
            return
        if not trial.is_ended:
            self._end(trial, events.Outcome("lost", "the worker exited before it reported how the trial ended"), now_s)
        self._apply_limits(now_s)
        may_start = self.stage != "stopping" and self.slots.num_used <= self.slots.n_workers
        if trial.will_retry and may_start and not trial.finish_when_free:
            self._start(trial, trial.slot, trial.order)
            return
        self._release(trial)
        self.source.refresh()
        self._fill(now_s)

    def _tick(self, event: events.Tick) -> None:
        now_s, timeout_s, grace_s = event.now_s, self.settings.timeout_s, self.settings.grace_s
        for _, trial_id in sorted((due, key) for key, due in self.deadlines().items() if due[0] <= now_s):
            trial = self.trials[trial_id]
            if trial.stopping is not None:
                self._kill(trial, f"still running {grace_s:g} s after it was asked to stop (stop_grace_s)")
            else:
                trial.fault = (
                    "time-out",
                    f"still running {timeout_s:g} s after the objective of this attempt was called (trial_timeout_s)",
                )
                self._terminate(trial, "stop", trial.fault[1], now_s)
        if self.source.take_deadline(now_s):
            self._apply_limits(now_s)
            if self.source.state == "requested" and self.source.is_awaited and self.stage == "open":
                config = self.source.fall_back()
                if self.slots.has_room:
                    self._start_new(config, fallback=True)
                    self._apply_limits(now_s)
                self._request_ahead(now_s)
                self._fill(now_s)

    def _interrupt(self, event: events.Interrupt) -> None:
        self._halt(event.reason, event.now_s)
        for trial in self.active():
            if self.is_interrupted and not trial.is_ended and not trial.is_killed:
                self._kill(trial, "interrupted twice")
        self.is_interrupted = True

    def _command(self, event: events.Command) -> None:
        trial = next((trial for trial in self.trials if trial.trial_id == event.trial_id), None)
        if trial is None or trial.state in ("finished", "suspended"):
            return
        if event.command != "stop":
            trial.hold = event.command == "pause"
            if trial.hold and trial.state == "queued":
                self.queue.remove(trial)
                trial.state, trial.runs_for_scheduler = "paused", True
            elif not trial.hold and trial.runs_for_scheduler and trial.state == "paused":
                self._queue(trial)
                self._fill(event.now_s)
        elif trial.state != "active":
            self._stop_idle(trial)
        elif trial.is_running:
            self._terminate(trial, "stop", "stopped by hand", event.now_s)
        elif trial.request == "pause" or trial.will_retry:
            trial.finish_when_free = True

    def _enqueued(self, event: events.Enqueued) -> None:
        if self.stage == "open":
            self.source.enqueue(event.config)
            self._fill(event.now_s)

    def _workerschanged(self, event: events.WorkersChanged) -> None:
        self.slots.resize(event.n_workers)
        self._fill(event.now_s)

    def _resumed(self, event: events.Resumed) -> None:
        now_s, lost = event.now_s, self.active()
        self.stage, self.reason, self.error, self.kind = "open", "", None, "limit"
        self.is_interrupted = False
        self.counts.num_trials_stopped -= len(self.suspended)
        self.counts.num_trials_stopped -= sum(trial.is_ended and trial.request == "suspend" for trial in lost)
        for trial in lost:
            if trial.is_running or trial.request == "suspend":
                trial.is_ended, trial.request = True, "suspend"
        for trial in lost:
            if not trial.is_ended:
                self._end(
                    trial, events.Outcome("lost", "the tuner exited before it recorded how the trial ended"), now_s
                )
        for trial in lost:
            self._release(trial)
        for trial in self.suspended:
            self._rollback(trial)
        trials = [*self.queue, *self.suspended]
        self.queue, self.suspended = [], []
        for trial in sorted(trials, key=lambda trial: trial.trial_id):
            self._queue(trial)
        self.source.reset()
        self._apply_limits(now_s)
        self._request_ahead(now_s)
        self._fill(now_s)

    # Starting trials.

    def _fill(self, now_s: float) -> None:
        while self.slots.open_batch():
            self._apply_limits(now_s)
            if not self.slots.has_room or self.stage in ("stopping", "finished"):
                return
            if self.queue:
                self._start(self.queue.pop(0), self.slots.take())
            elif not self._start_next(now_s):
                return

    def _start_next(self, now_s: float) -> bool:
        drains = self.stage == "draining"
        if self.stage == "closing" or (drains and all(trial.state != "paused" for trial in self.trials)):
            return False
        if self.source.is_awaited and not drains:
            return self._start_suggested(now_s)
        trial_id, exhausted = len(self.trials), self.source.state == "exhausted" or drains
        self.calls.append(("next", self.num_starts, trial_id, exhausted, not drains, self.pending()))
        word, number = self.plan.pop(0) if self.plan else ("new", 0)
        answer = planned_answer(word, number, trial_id, self.resumable())
        if isinstance(answer, str):
            allowed = "New(...), Resume(trial_id), Clone(trial_id, config), Stop(trial_id), Wait() or Done()"
            self._fail_scheduler(f"TypeError: ScriptedScheduler.next() must return {allowed}, got 'next'", now_s)
            return False
        if (drains and isinstance(answer, New | Clone)) or (answer == New() and exhausted and not self.source.enqueued):
            answer = Wait()
        if answer == New():
            return self._start_suggested(now_s)
        if isinstance(answer, New | Clone):
            assert answer.config is not None
            self._start_new(answer.config, source=answer.trial_id if isinstance(answer, Clone) else None)
        elif isinstance(answer, Resume | Stop):
            trial = self.trials[answer.trial_id]
            if isinstance(answer, Stop) and trial.state == "paused":
                self._stop_idle(trial)
            elif isinstance(answer, Stop):
                trial.is_dropped = True
            elif trial.state == "active":
                trial.reserved_slot = self.slots.take()
            elif trial.hold:
                trial.runs_for_scheduler = True
            else:
                self._start(trial, self.slots.take())
        elif isinstance(answer, Done):
            self._stop_starting("the scheduler has no more trials")
            self.stage = "closing"
        elif not self.active() and not self.has_held_trials() and drains:
            self.stage = "closing"
        elif not self.active() and not self.has_held_trials() and self.source.state != "requested":
            self._stop_starting("searcher exhausted" if exhausted else "the scheduler has nothing left to run")
        return not isinstance(answer, Done | Wait)

    def _start_suggested(self, now_s: float) -> bool:
        if self.source.enqueued:
            self._start_new(self.source.take_enqueued())
        elif self.source.state == "ready":
            self._start_new(self.source.take_suggestion())
            self._request_ahead(now_s)
        else:
            self.source.wait(len(self.trials), self.pending(), now_s)
            return False
        return True

    def _request_ahead(self, now_s: float) -> None:
        if self.stage == "open" and self.source.timeout_s is not None:
            self.source.request(len(self.trials), self.pending(), now_s)

    def _start_new(self, config: Config, *, source: int | None = None, fallback: bool = False) -> None:
        trial = Trial(len(self.trials), config)
        origin = None if source is None else self.trials[source]
        if origin is not None and origin.checkpoints and (origin.state != "finished" or self.keeps_all):
            trial.first_iter = origin.from_iter
            trial.checkpoints.append(Checkpoint(origin.checkpoints[-1].name, origin.from_iter, None))
        self.trials.append(trial)
        self.counts.num_trials_started += 1
        self._start(trial, self.slots.take(), source=source, fallback=fallback)

    def _start(self, trial: Trial, slot: int, order: int | None = None, **more: Any) -> None:
        if order is None:
            order, self.num_starts = self.num_starts, self.num_starts + 1
        trial.state, trial.slot, trial.order, trial.uses_slot = "active", slot, order, True
        trial.attempt, trial.iter = trial.attempt + 1, trial.from_iter
        trial.ready = trial.stopping = trial.fault = None
        trial.request, trial.runs_for_scheduler = "", False
        trial.is_killed = trial.is_ended = trial.at_maximum = trial.will_retry = False
        name = trial.checkpoints[-1].name if trial.checkpoints else None
        start = actions.Start(
            trial.trial_id, trial.attempt, trial.config, slot, trial.iter, name, alone=trial.needs_whole_gpu, **more
        )
        self.output.append(start)

    # Ends of attempts and trials.

    def _begin_stopping(self, trial: Trial, request: str, now_s: float) -> None:
        self.step += 1
        trial.request, trial.stopping = request, (now_s, self.step)

    def _terminate(self, trial: Trial, request: str, why: str, now_s: float) -> None:
        self._begin_stopping(trial, request, now_s)
        self.output.append(actions.Terminate(trial.trial_id, why))

    def _kill(self, trial: Trial, why: str) -> None:
        trial.is_killed = True
        self.output.append(actions.Kill(trial.trial_id, why))

    def _end(self, trial: Trial, outcome: events.Outcome, now_s: float) -> None:
        status, kind, text = self._judge(trial, outcome)
        reason = None if kind is None else actions.Reason(kind, text, outcome.traceback, outcome.last_output)
        is_retried_once = kind == "gpu-fault" or (kind == "out-of-memory" and outcome.retry_alone)
        limit = max(1, self.settings.retries) if is_retried_once else self.settings.retries
        trial.will_retry = kind in CRASHES and trial.stopping is None and trial.num_retries < limit
        trial.num_retries += trial.will_retry
        trial.needs_whole_gpu = trial.needs_whole_gpu or (trial.will_retry and outcome.retry_alone)
        trial.is_ended = True
        if status not in (Status.PAUSED, Status.STOPPED):
            trial.request = ""
        self.output.append(actions.SetStatus(trial.trial_id, trial.attempt, status, reason, trial.will_retry))
        if trial.will_retry:
            self._rollback(trial)
        elif trial.request == "suspend":
            self.counts.num_trials_stopped += 1
        else:
            if status is not Status.PAUSED:
                self._finish(trial, status)
            failure = None if trial.has_counted_outcome else self.failures.add(reason, has_reported=trial.iter > 0)
            trial.has_counted_outcome = True
            if failure is not None and self.stage != "stopping":
                self._fail("equal-failures", failure.partition(" (")[0], failure, now_s)

    def _judge(self, trial: Trial, outcome: events.Outcome) -> tuple[Status, Any, str]:
        if trial.fault is not None:
            return Status.FAILED, *trial.fault
        if outcome.kind == "stopped" or (trial.stopping and outcome.kind not in ("exception", "out-of-memory")):
            if trial.at_maximum:
                return Status.COMPLETED, None, ""
            return Status.PAUSED if trial.request == "pause" else Status.STOPPED, None, ""
        if outcome.kind in CRASHES:
            return Status.FAILED, outcome.kind, outcome.text
        if trial.iter == 0:
            return Status.FAILED, "no-report", "the objective ended without reporting 'loss', and returned nothing"
        return Status.COMPLETED, None, ""

    def _rollback(self, trial: Trial) -> None:
        reached, to_iter = trial.reached, trial.from_iter
        best = trial.checkpoints[-1].best if trial.checkpoints else None
        trial.candidates = [] if best is None else [best]
        for report in trial.reports:
            report.is_void = report.is_void or report.iter > to_iter
        if reached != to_iter:
            self.calls.append(("rewind", trial.trial_id, to_iter))

    def _save(self, trial: Trial, name: str | None) -> None:
        if name is not None:
            previous, best = self.references(), self.best_of([trial])
            if best is not None and best.iter > trial.iter:  # a repeated report: the best report up to it is unknown
                best = trial.checkpoints[-1].best if trial.checkpoints else None
            trial.checkpoints.append(Checkpoint(name, trial.iter, best))
            self._discard_unneeded(trial, previous)

    def _discard_unneeded(self, trial: Trial, previous: Mapping[str, int]) -> None:
        unneeded = previous.keys() - self.references().keys()
        self.output += [actions.Discard(trial.trial_id, name) for name in unneeded]

    def _finish(self, trial: Trial, status: Status) -> None:
        previous, trial.state = self.references(), "finished"
        self.counts.num_trials_completed += status is Status.COMPLETED
        self.counts.num_trials_stopped += status is Status.STOPPED
        self.counts.num_trials_failed += status is Status.FAILED
        self.counts.add_end(trial.trial_id)
        self._discard_unneeded(trial, previous)
        self.calls.append(("end", trial.trial_id, str(status)))

    def _stop_idle(self, trial: Trial, status: Status = Status.STOPPED) -> None:
        self.queue = [queued for queued in self.queue if queued is not trial]
        self.output.append(actions.SetStatus(trial.trial_id, trial.attempt, status))
        self._finish(trial, status)

    def _queue(self, trial: Trial) -> None:
        trial.state = "queued"
        self.queue.append(trial)

    def _release(self, trial: Trial) -> None:
        trial.uses_slot = False
        self.slots.release(trial.slot)
        if trial.reserved_slot is not None:
            self.slots.release(trial.reserved_slot)
        is_resumed, trial.reserved_slot = trial.reserved_slot is not None, None
        if trial.will_retry and trial.finish_when_free:
            self._stop_idle(trial, Status.FAILED)
        elif trial.will_retry:
            self._queue(trial)
        elif trial.request == "suspend":
            trial.state = "suspended"
            self.suspended.append(trial)
        elif trial.request == "pause" and (trial.is_dropped or trial.finish_when_free):
            self._stop_idle(trial)
        elif trial.request == "pause":
            trial.state = "paused"
            trial.runs_for_scheduler = trial.runs_for_scheduler or is_resumed
            if trial.runs_for_scheduler and not trial.hold:
                self._queue(trial)
