"""The tuner's decisions: which trial starts in which slot, who is told to stop, and when the search is over.

    facts  (start, on_ready, on_report, on_ended, on_free, on_tick, interrupt; each with now_s)
      -> orders  (Start, Answer, Reject, Terminate, Kill, Ended, StopStarting, Finish), in the order to carry them out

A trial runs in a slot, once or, after a crash and with retries, several times (attempts):

    Start -> STARTING -> RUNNING -> ENDED -> slot free        told to stop: STOPPING -> (grace over) KILLED -> ENDED

Knows trials, slots, times and reports as plain values; knows nothing of processes, links, the record or the screen.
Facts may come late, twice, or for trials that were never there: such a fact changes nothing and never raises.

Invariants: a slot is busy from Start until on_free; every on_report is answered by exactly one Answer or Reject, which
comes first; StopStarting and then Finish are ordered once, Finish only when no slot is busy; a finished trial leaves
counters and, if it is the best, its configuration.
"""

import enum
import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

from ..base.nearest import nearest
from .failure_texts import equal_failures_text
from .orders import Answer as Answer
from .orders import Best as Best
from .orders import Ended as Ended
from .orders import Finish as Finish
from .orders import FinishKind
from .orders import Kill as Kill
from .orders import Order as Order
from .orders import Outcome as Outcome
from .orders import Reason as Reason
from .orders import Reject as Reject
from .orders import Start as Start
from .orders import StopStarting as StopStarting
from .orders import Terminate as Terminate
from .schedulers import Decision, Scheduler, Status
from .stopping import Counts, StoppingCriterion, Verdict
from .values import at_least, is_number, seconds

# A crash may be bad luck; a time-out, a NaN or a missing report comes from the configuration or the program.
_RETRIED = ("exception", "exit", "signal", "out-of-memory", "lost")
# How a trial may end that was told to stop: by TrialStopped, by our signal, or because it was done anyway.
_OBEYED = ("stopped", "signal", "exit", "lost", "returned")


class Phase(enum.Enum):
    """Where an attempt is between Start and on_free."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    KILLED = "killed"
    ENDED = "ended"


class Stage(enum.Enum):
    """Where the search is."""

    OPEN = "open"
    DRAINING = "draining"
    STOPPING = "stopping"
    FINISHED = "finished"


class Ranked(NamedTuple):
    """A report and where it stands: the smallest is the best, of equals the first."""

    loss: float
    number: int
    report: Best


@dataclass(slots=True)
class Trial:
    """A trial that holds a slot. `deadline_s`: its time-out when RUNNING, its Kill when STOPPING."""

    trial_id: int
    config: Mapping[str, object]
    slot: int
    attempt: int = 0
    phase: Phase = Phase.STARTING
    num_reports: int = 0
    deadline_s: float | None = None
    fault: Reason | None = None
    will_retry: bool = False
    best: Ranked | None = None

    @property
    def was_told(self) -> bool:
        """Whether it was told to stop, and has not ended."""
        return self.phase in (Phase.STOPPING, Phase.KILLED)


@final
class Tuning:
    """The state machine of one search. Call `scheduler.start` before, then hand in facts and carry out the orders.

    Args:
        scheduler: chooses configurations and answers reports; what it raises ends the search.
        criterion: when the search ends.
        n_workers: slots.
        asynchronous: False: the next batch starts when every slot of the last one is free.
        trial_timeout_s: seconds from on_ready until the attempt is terminated; None: never.
        stop_grace_s: seconds from being told to stop until Kill.
        max_equal_failures: the search fails when the first so many finished trials all failed alike; None: never.
        retries: further attempts of a trial that crashed.

    Raises:
        TypeError, ValueError: a setting of the wrong type or size.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        criterion: StoppingCriterion,
        *,
        n_workers: int,
        asynchronous: bool = True,
        trial_timeout_s: float | None = None,
        stop_grace_s: float = 5.0,
        max_equal_failures: int | None = 3,
        retries: int = 0,
    ) -> None:
        self._scheduler = scheduler
        self._criterion = criterion
        self._asynchronous = asynchronous
        self._timeout_s = None if trial_timeout_s is None else seconds("trial_timeout_s", trial_timeout_s)
        if self._timeout_s == 0.0:
            raise ValueError("trial_timeout_s must be above 0; None lets a trial take as long as it likes")
        self._grace_s = seconds("stop_grace_s", stop_grace_s)
        self._max_equal_failures = (
            None if max_equal_failures is None else at_least("max_equal_failures", max_equal_failures, 1)
        )
        self._retries = at_least("retries", retries, 0)
        self._counts = Counts(scheduler.metric, criterion.watched(scheduler.metric))
        self._trials: dict[int, Trial] = {}
        self._free_slots = list(range(at_least("n_workers", n_workers, 1)))
        self._stage = Stage.OPEN
        self._started_s: float | None = None
        self._search_deadline_s: float | None = None
        self._interrupts = 0
        self._metric_seen = False
        self._first_failure: tuple[str, str] | None = None
        self._best: Ranked | None = None  # of the trials that hold no slot any more
        self._reason = ""
        self._error: str | None = None
        self._cause: Exception | None = None
        self._kind: FinishKind = "limit"
        self._orders: list[Order] = []

    @property
    def best(self) -> Best | None:
        """The best finite report so far; the earlier one of equals. Attempts that were started again do not count."""
        ranked = [trial.best for trial in self._trials.values() if trial.best is not None]
        if self._best is not None:
            ranked.append(self._best)
        return min(ranked).report if ranked else None

    @property
    def counts(self) -> Counts:
        """What was started, reported and finished so far. Owned by the machine: read only."""
        return self._counts

    @property
    def is_finished(self) -> bool:
        """Whether Finish was ordered."""
        return self._stage is Stage.FINISHED

    @property
    def next_tick_s(self) -> float | None:
        """When on_tick must next be called; None: not before another fact has come in."""
        times = [trial.deadline_s for trial in self._trials.values() if trial.deadline_s is not None]
        if self._search_deadline_s is not None and self._stage in (Stage.OPEN, Stage.DRAINING):
            times.append(self._search_deadline_s)
        return min(times, default=None)

    def start(self, *, now_s: float) -> list[Order]:
        """The search begins: its wallclock starts, and the first trials."""
        assert self._started_s is None, "start() is called once"
        self._started_s = now_s
        self._search_deadline_s = _first_moment(now_s, self._criterion.max_wallclock_time)
        self._fill(now_s)
        return self._settle(now_s)

    def on_ready(self, trial_id: int, attempt: int, *, now_s: float) -> list[Order]:
        """The objective is about to begin in the worker. The time-out counts from here."""
        trial = self._find(trial_id, attempt)
        if trial is not None and trial.phase is Phase.STARTING:
            trial.phase = Phase.RUNNING
            trial.deadline_s = None if self._timeout_s is None else now_s + self._timeout_s
        return self._settle(now_s)

    def on_report(self, trial_id: int, attempt: int, values: Mapping[str, object], *, now_s: float) -> list[Order]:
        """A trial waits for the answer to its report. The first order is Answer or Reject."""
        trial = self._find(trial_id, attempt)
        if trial is None or trial.phase not in (Phase.STARTING, Phase.RUNNING):
            return [Answer(trial_id, Decision.STOP, late=True)]
        problem = self._problem_with(values)
        if problem is not None:
            self._refused(trial, values, problem, now_s)
            return [Reject(trial_id, problem), *self._settle(now_s)]
        decision, verdict = self._decide(trial, values, now_s)
        self._obey(verdict, now_s)
        return [Answer(trial_id, decision), *self._ordered()]

    def on_ended(self, trial_id: int, attempt: int, outcome: Outcome, *, now_s: float) -> list[Order]:
        """The attempt's process ended. Its slot stays busy until on_free."""
        trial = self._find(trial_id, attempt)
        if trial is not None and trial.phase is not Phase.ENDED:
            self._end(trial, outcome, now_s)
        return self._settle(now_s)

    def on_free(self, trial_id: int, attempt: int, *, now_s: float) -> list[Order]:
        """The attempt's process tree is reaped and its lease came back: the slot may be used again."""
        trial = self._find(trial_id, attempt)
        if trial is None:
            return self._settle(now_s)
        if trial.phase is not Phase.ENDED:
            self._end(trial, Outcome("lost", "the worker was gone before it said how the trial ended"), now_s)
        self._obey_criterion(now_s)
        if trial.will_retry and self._stage is not Stage.STOPPING:
            self._start_again(trial)
        else:
            self._release(trial, now_s)
            self._fill(now_s)
        return self._settle(now_s)

    def on_tick(self, *, now_s: float) -> list[Order]:
        """Time has passed: time-outs, ends of grace, the end of the search."""
        for trial in self._trials.values():
            if trial.deadline_s is None or now_s < trial.deadline_s:
                continue
            if trial.phase is Phase.RUNNING:
                why = f"still running {self._timeout_s:g} s after it began (trial_timeout_s)"
                trial.fault = Reason("time-out", why)
                self._terminate(trial, why, now_s)
            else:
                self._kill(trial, f"still running {self._grace_s:g} s after it was told to stop (stop_grace_s)")
        return self._settle(now_s)

    def interrupt(self, *, now_s: float) -> list[Order]:
        """Ctrl-C. The first stops all trials gently; the second kills them."""
        self._interrupts += 1
        if self._stage is not Stage.FINISHED:
            self._halt("interrupted", now_s)
        if self._interrupts > 1:
            for trial in self._trials.values():
                if trial.phase not in (Phase.KILLED, Phase.ENDED):
                    self._kill(trial, "interrupted twice")
        return self._settle(now_s)

    def _find(self, trial_id: int, attempt: int) -> Trial | None:
        """The trial, if this attempt of it holds a slot. Facts about any other are late."""
        trial = self._trials.get(trial_id)
        return trial if trial is not None and trial.attempt == attempt else None

    # New trials, limits, the end.

    def _settle(self, now_s: float) -> list[Order]:
        self._obey_criterion(now_s)
        return self._ordered()

    def _ordered(self) -> list[Order]:
        """What is to be done, all of it; the last order of a search is that it is over."""
        if self._stage in (Stage.DRAINING, Stage.STOPPING) and not self._trials:
            self._stage = Stage.FINISHED
            self._orders.append(Finish(self._reason, self._error, self._cause, self._kind))
        orders, self._orders = self._orders, []
        return orders

    def _verdict(self, now_s: float) -> Verdict | None:
        if self._started_s is None or self._stage in (Stage.STOPPING, Stage.FINISHED):
            return None
        self._counts.wallclock_s = now_s - self._started_s
        return self._criterion.verdict(self._counts)

    def _obey_criterion(self, now_s: float) -> None:
        self._obey(self._verdict(now_s), now_s)

    def _obey(self, verdict: Verdict | None, now_s: float) -> None:
        if verdict is not None and verdict.lets_running_finish:
            self._stop_starting(verdict.reason)
        elif verdict is not None:
            self._halt(verdict.reason, now_s)

    def _fill(self, now_s: float) -> None:
        if not self._asynchronous and self._trials:
            return
        while self._free_slots and self._stage is Stage.OPEN:
            config = self._suggest(now_s)
            if config is None:
                if not self._trials:
                    self._stop_starting("searcher exhausted")
                return
            trial = Trial(self._counts.num_trials_started, config, heapq.heappop(self._free_slots))
            self._trials[trial.trial_id] = trial
            self._counts.num_trials_started += 1
            self._orders.append(Start(trial.trial_id, 0, config, trial.slot))
            self._obey_criterion(now_s)

    def _stop_starting(self, reason: str) -> None:
        if self._stage is Stage.OPEN:
            self._stage = Stage.DRAINING
            self._reason = reason
            self._orders.append(StopStarting(reason))

    def _halt(self, reason: str, now_s: float) -> None:
        """Start nothing more and stop what runs. The first reason to do so is the one that is told."""
        if self._stage is Stage.STOPPING:
            return
        self._stop_starting(reason)
        self._stage = Stage.STOPPING
        self._reason = reason
        for trial in self._trials.values():
            if trial.phase in (Phase.STARTING, Phase.RUNNING):
                self._terminate(trial, reason, now_s)

    def _fail_search(
        self, kind: FinishKind, reason: str, error: str, now_s: float, *, cause: Exception | None = None
    ) -> None:
        if self._error is None:
            self._kind, self._error, self._cause = kind, error, cause
        self._halt(reason, now_s)

    # Telling a trial to stop.

    def _tell_to_stop(self, trial: Trial, now_s: float) -> None:
        trial.phase = Phase.STOPPING
        trial.deadline_s = now_s + self._grace_s

    def _terminate(self, trial: Trial, why: str, now_s: float) -> None:
        self._tell_to_stop(trial, now_s)
        self._orders.append(Terminate(trial.trial_id, why))

    def _kill(self, trial: Trial, why: str) -> None:
        trial.phase = Phase.KILLED
        trial.deadline_s = None
        self._orders.append(Kill(trial.trial_id, why))

    # Reports.

    def _problem_with(self, values: Mapping[str, object]) -> str | None:
        metric = self._scheduler.metric
        if metric not in values:
            names = ", ".join(map(repr, values)) or "nothing"
            near = nearest(metric, values)
            hint = f"did you mean {near!r}?" if near else "report it under this name, or give the scheduler another one"
            return f"report() gave {names}, but not the scheduler's metric {metric!r}; {hint}"
        if not is_number(values[metric]):
            kind = type(values[metric]).__name__
            return f"the metric {metric!r} must be a number, got {values[metric]!r} of type {kind}"
        return None

    def _refused(self, trial: Trial, values: Mapping[str, object], problem: str, now_s: float) -> None:
        """A metric that nobody has ever reported is misspelt: no further trial can do better."""
        if self._scheduler.metric not in values and not self._metric_seen:
            self._tell_to_stop(trial, now_s)
            self._fail_search("no-metric", "the metric was not reported", problem, now_s)

    def _decide(self, trial: Trial, values: Mapping[str, object], now_s: float) -> tuple[Decision, Verdict | None]:
        """What to answer, and what the stopping criterion says after this report."""
        metric = self._scheduler.metric
        value = float(values[metric])  # type: ignore[arg-type]  # _problem_with saw a number
        self._metric_seen = True
        trial.num_reports += 1
        self._counts.add_report(values)
        if math.isnan(value):
            trial.fault = Reason("nan", f"the objective reported {metric}=nan")
            self._tell_to_stop(trial, now_s)
            return Decision.STOP, self._verdict(now_s)
        self._keep_best(trial, value)
        decision = self._consult(trial, values, now_s)
        verdict = self._verdict(now_s)
        if decision == Decision.STOP or (verdict is not None and not verdict.lets_running_finish):
            self._tell_to_stop(trial, now_s)
            decision = Decision.STOP
        return decision, verdict

    def _keep_best(self, trial: Trial, value: float) -> None:
        loss = value if self._scheduler.mode == "min" else -value
        # An infinity says that something went wrong, not that it went well.
        if math.isfinite(value) and (trial.best is None or loss < trial.best.loss):
            trial.best = Ranked(loss, self._counts.num_evaluations, Best(value, trial.trial_id, trial.config))

    # Ends.

    def _end(self, trial: Trial, outcome: Outcome, now_s: float) -> None:
        status, reason = self._judge(trial, outcome)
        trial.will_retry = reason is not None and self._may_retry(trial, reason)
        trial.phase = Phase.ENDED
        trial.deadline_s = None
        self._orders.append(Ended(trial.trial_id, trial.attempt, status, reason, trial.will_retry))
        if not trial.will_retry:
            self._count_end(trial, status, now_s)
            self._watch_metrics(status, now_s)
            self._watch_failures(reason, now_s)

    def _judge(self, trial: Trial, outcome: Outcome) -> tuple[Status, Reason | None]:
        if trial.fault is not None:
            fault = trial.fault
            return Status.FAILED, Reason(fault.kind, fault.text, outcome.traceback, outcome.last_output)
        if outcome.kind == "stopped" or (trial.was_told and outcome.kind in _OBEYED):
            return Status.STOPPED, None
        if outcome.kind != "returned":
            return Status.FAILED, Reason(outcome.kind, outcome.text, outcome.traceback, outcome.last_output)
        if trial.num_reports == 0:
            text = f"the objective ended without reporting {self._scheduler.metric!r}, and returned nothing"
            return Status.FAILED, Reason("no-report", text, outcome.traceback, outcome.last_output)
        return Status.COMPLETED, None

    def _may_retry(self, trial: Trial, reason: Reason) -> bool:
        return reason.kind in _RETRIED and trial.attempt < self._retries and not trial.was_told

    def _count_end(self, trial: Trial, status: Status, now_s: float) -> None:
        self._counts.num_trials_completed += status is Status.COMPLETED
        self._counts.num_trials_stopped += status is Status.STOPPED
        self._counts.num_trials_failed += status is Status.FAILED
        try:
            self._scheduler.on_end(trial.trial_id, status)
        except Exception as error:  # user code: whatever it raises ends the search, in order
            self._scheduler_failed(error, now_s)

    def _watch_metrics(self, status: Status, now_s: float) -> None:
        """Fails the search when a whole trial had no sign of a metric that the stopping criterion waits for."""
        problem = self._counts.missing_metric() if status is Status.COMPLETED else None
        if problem is not None and self._stage is not Stage.STOPPING:
            self._fail_search("no-metric", "a metric of the stopping criterion was not reported", problem, now_s)

    def _watch_failures(self, reason: Reason | None, now_s: float) -> None:
        """Fails the search when the first max_equal_failures trials to finish all failed alike."""
        limit, finished = self._max_equal_failures, self._counts.num_trials_finished
        if limit is None or finished > limit or self._stage is Stage.STOPPING:
            return
        failure = None if reason is None else (reason.kind, reason.text.partition("\n")[0])
        if finished == 1:
            self._first_failure = failure
        elif failure != self._first_failure:
            self._first_failure = None
        if reason is not None and self._first_failure is not None and finished == limit:
            text = equal_failures_text(limit, reason)
            self._fail_search("equal-failures", f"the first {limit} trials failed alike", text, now_s)

    def _start_again(self, trial: Trial) -> None:
        again = Trial(trial.trial_id, trial.config, trial.slot, trial.attempt + 1)
        self._trials[trial.trial_id] = again
        self._orders.append(Start(again.trial_id, again.attempt, again.config, again.slot))

    def _release(self, trial: Trial, now_s: float) -> None:
        del self._trials[trial.trial_id]
        if trial.best is not None and (self._best is None or trial.best < self._best):
            self._best = trial.best
        heapq.heappush(self._free_slots, trial.slot)
        if trial.will_retry:  # promised, but the search has stopped in the meantime
            self._count_end(trial, Status.FAILED, now_s)

    # The scheduler is partly user code (a searcher of one's own): what it raises ends the search, in order.

    def _suggest(self, now_s: float) -> dict[str, object] | None:
        try:
            return self._scheduler.suggest(self._counts.num_trials_started)
        except Exception as error:  # user code, see above
            self._scheduler_failed(error, now_s)
            return None

    def _consult(self, trial: Trial, values: Mapping[str, object], now_s: float) -> Decision:
        try:
            return self._scheduler.on_report(trial.trial_id, trial.config, values)
        except Exception as error:  # user code, see above
            self._tell_to_stop(trial, now_s)
            self._scheduler_failed(error, now_s)
            return Decision.STOP

    def _scheduler_failed(self, error: Exception, now_s: float) -> None:
        text = f"the scheduler raised {type(error).__name__}: {error}"
        self._fail_search("scheduler", "the scheduler failed", text, now_s, cause=error)


def _first_moment(start_s: float, after_s: float | None) -> float | None:
    """The earliest time that is at least after_s later, also when the sum is rounded down."""
    if after_s is None or math.isinf(after_s):
        return None
    moment_s = start_s + after_s
    while moment_s - start_s < after_s:
        moment_s = math.nextafter(moment_s, math.inf)
    return moment_s
