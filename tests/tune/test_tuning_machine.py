"""Tuning against an obvious model, fact by fact: all orders and the whole state, also what should be forgotten.

The model forgets nothing: it keeps every attempt and every report for ever and works out each answer by going through
them all. Eleven broken versions of Tuning show that the comparison can fail.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fanwise.tune.orders import (
    Answer,
    Best,
    Ended,
    Finish,
    Kill,
    Order,
    Outcome,
    Reason,
    Reject,
    Start,
    StopStarting,
    Terminate,
)
from fanwise.tune.schedulers import Decision, Mode, Status
from fanwise.tune.spaces import Space
from fanwise.tune.stopping import StoppingCriterion
from fanwise.tune.tuning import Tuning

CRASHES = ("exception", "exit", "signal", "out-of-memory", "lost")
KINDS = ("returned", "stopped", *CRASHES)


@dataclass
class FakeScheduler:
    """Gives out {"n": 0}, {"n": 1}, ... and decides by what the report asks for. Notes every call."""

    mode: Mode
    supply: int
    metric: str = "loss"
    calls: list[tuple[object, ...]] = field(default_factory=list)

    def start(self, space: Space, seed: int) -> None: ...

    def suggest(self, trial_id: int) -> dict[str, object] | None:
        if trial_id >= self.supply:
            return None
        self.calls.append(("suggest", trial_id))
        return {"n": trial_id}

    def on_report(self, trial_id: int, config: Mapping[str, object], values: Mapping[str, object]) -> Decision:
        self.calls.append(("report", trial_id, config["n"], values["loss"]))
        if values.get("break"):
            raise ZeroDivisionError("fake")
        return Decision.STOP if values.get("stop") else Decision.CONTINUE

    def on_end(self, trial_id: int, status: Status) -> None:
        self.calls.append(("end", trial_id, status))

    def describe(self) -> dict[str, object]:
        return {}


@dataclass
class Attempt:
    """One attempt in the model's history."""

    trial: int
    number: int
    slot: int
    ready_s: float | None = None
    told_s: float | None = None
    killed: bool = False
    reports: int = 0
    fault: tuple[str, str] | None = None
    status: Status | None = None
    reason: Reason | None = None
    retry: bool = False
    freed: bool = False
    told: bool = False

    @property
    def alive(self) -> bool:
        return self.status is None


@dataclass(frozen=True)
class Settings:
    n_workers: int
    asynchronous: bool
    timeout_s: float | None
    grace_s: float
    equal: int | None
    retries: int
    mode: Mode
    supply: int
    started: int | None
    completed: int | None
    evaluations: int | None
    wallclock_s: float
    low: float | None
    high: float | None


class Model:
    """What Tuning should do, from the whole history."""

    def __init__(self, given: Settings) -> None:
        self.given = given
        self.attempts: list[Attempt] = []
        self.reports: list[tuple[float, int, int]] = []
        self.finished: list[tuple[int, Status, Reason | None]] = []
        self.calls: list[tuple[object, ...]] = []
        self.began_s = 0.0
        self.looked_s = 0.0
        self.closed: str | None = None
        self.halted: str | None = None
        self.error: str | None = None
        self.interrupts = 0
        self.done = False
        self.out: list[Order] = []

    # Views of the history

    def busy(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if not attempt.freed]

    def find(self, trial: int, number: int) -> Attempt | None:
        return next((a for a in self.busy() if (a.trial, a.number) == (trial, number)), None)

    def free_slots(self) -> list[int]:
        taken = {attempt.slot for attempt in self.busy()}
        return [slot for slot in range(self.given.n_workers) if slot not in taken]

    def num_trials(self) -> int:
        return len({attempt.trial for attempt in self.attempts})

    def count(self, status: Status) -> int:
        return sum(ended is status for _, ended, _ in self.finished)

    def numbers(self) -> list[float]:
        return [value for value, _, _ in self.reports if not math.isnan(value)]

    def best(self) -> Best | None:
        sign = 1 if self.given.mode == "min" else -1
        last = {attempt.trial: attempt.number for attempt in self.attempts}
        counting = [
            (sign * value, place, trial)
            for place, (value, trial, number) in enumerate(self.reports)
            if math.isfinite(value) and number == last[trial]
        ]
        if not counting:
            return None
        loss, _, trial = min(counting)
        return Best(sign * loss, trial, {"n": trial})

    def deadline(self, attempt: Attempt) -> float | None:
        if not attempt.alive or attempt.killed:
            return None
        if attempt.told_s is not None:
            return attempt.told_s + self.given.grace_s
        if attempt.ready_s is not None and self.given.timeout_s is not None:
            return attempt.ready_s + self.given.timeout_s
        return None

    def next_tick_s(self) -> float | None:
        times = [time for attempt in self.busy() if (time := self.deadline(attempt)) is not None]
        if math.isfinite(self.given.wallclock_s) and self.halted is None and not self.done:
            times.append(self.began_s + self.given.wallclock_s)
        return min(times) if times else None

    # Facts

    def start(self, now_s: float) -> list[Order]:
        self.began_s = self.looked_s = now_s
        self.fill(now_s)
        return self.leave(now_s)

    def ready(self, trial: int, number: int, now_s: float) -> list[Order]:
        attempt = self.find(trial, number)
        if attempt is not None and attempt.alive and attempt.ready_s is None and not attempt.told:
            attempt.ready_s = now_s
        return self.leave(now_s)

    def report(self, trial: int, number: int, values: Mapping[str, Any], now_s: float) -> list[Order]:
        attempt = self.find(trial, number)
        if attempt is None or not attempt.alive or attempt.told:
            return [Answer(trial, Decision.STOP, late=True)]
        if "loss" not in values:
            text = "report() gave 'los', but not the scheduler's metric 'loss'; did you mean 'los'?"
            if not self.reports:
                self.tell(attempt, now_s)
                self.fail("the metric was not reported", text, now_s)
            return [Reject(trial, text), *self.leave(now_s)]
        if isinstance(values["loss"], str):
            text = f"the metric 'loss' must be a number, got {values['loss']!r} of type str"
            return [Reject(trial, text), *self.leave(now_s)]
        self.reports.append((values["loss"], trial, number))
        attempt.reports += 1
        stop = self.weigh(attempt, values, now_s)
        if stop:
            self.tell(attempt, now_s)
        return [Answer(trial, Decision.STOP if stop else Decision.CONTINUE), *self.leave(now_s)]

    def weigh(self, attempt: Attempt, values: Mapping[str, Any], now_s: float) -> bool:
        if math.isnan(values["loss"]):
            attempt.fault = "nan", "the objective reported loss=nan"
            return True
        self.calls.append(("report", attempt.trial, attempt.trial, values["loss"]))
        if values.get("break"):
            self.tell(attempt, now_s)
            self.fail("the scheduler failed", "the scheduler raised ZeroDivisionError: fake", now_s)
        return bool(values.get("stop") or values.get("break")) or self.limit(now_s) is not None

    def ended(self, trial: int, number: int, outcome: Outcome, now_s: float) -> list[Order]:
        attempt = self.find(trial, number)
        if attempt is not None and attempt.alive:
            self.end(attempt, outcome, now_s)
        return self.leave(now_s)

    def free(self, trial: int, number: int, now_s: float) -> list[Order]:
        attempt = self.find(trial, number)
        if attempt is None:
            return self.leave(now_s)
        if attempt.alive:
            self.end(attempt, Outcome("lost", "the worker was gone before it said how the trial ended"), now_s)
        self.obey(now_s)
        attempt.freed = True
        if attempt.retry and self.halted is None:
            self.begin(trial, number + 1, attempt.slot)
        elif attempt.retry:
            self.finish_trial(attempt, Status.FAILED, None)
        else:
            self.fill(now_s)
        return self.leave(now_s)

    def tick(self, now_s: float) -> list[Order]:
        for attempt in sorted(self.busy(), key=self.place):
            due = self.deadline(attempt)
            if due is None or due > now_s:
                continue
            if attempt.told:
                text = f"still running {self.given.grace_s:g} s after it was told to stop (stop_grace_s)"
                self.kill(attempt, text)
            else:
                text = f"still running {self.given.timeout_s:g} s after it began (trial_timeout_s)"
                attempt.fault = "time-out", text
                self.terminate(attempt, text, now_s)
        return self.leave(now_s)

    def interrupt(self, now_s: float) -> list[Order]:
        self.interrupts += 1
        if not self.done:
            self.halt("interrupted", now_s)
        if self.interrupts > 1:
            for attempt in sorted(self.busy(), key=self.place):
                if attempt.alive and not attempt.killed:
                    self.kill(attempt, "interrupted twice")
        return self.leave(now_s)

    # Steps

    def place(self, attempt: Attempt) -> int:
        """Orders about several trials go by when the trial first started."""
        return attempt.trial

    def begin(self, trial: int, number: int, slot: int) -> None:
        self.attempts.append(Attempt(trial, number, slot))
        self.out.append(Start(trial, number, {"n": trial}, slot))

    def fill(self, now_s: float) -> None:
        if not self.given.asynchronous and self.busy():
            return
        while self.free_slots() and self.closed is None:
            trial = self.num_trials()
            if trial >= self.given.supply:
                if not self.busy():
                    self.close("searcher exhausted")
                return
            self.calls.append(("suggest", trial))
            self.begin(trial, 0, self.free_slots()[0])
            self.obey(now_s)

    def limit(self, now_s: float) -> str | None:
        """The limit that stops everything, if one is reached."""
        self.looked_s = now_s
        given, numbers = self.given, self.numbers()
        if now_s - self.began_s >= given.wallclock_s:
            return f"max_wallclock_time={given.wallclock_s:g} s is over"
        if given.completed is not None and self.count(Status.COMPLETED) >= given.completed:
            return f"max_num_trials_completed={given.completed} reached"
        if given.evaluations is not None and len(self.reports) >= given.evaluations:
            return f"max_num_evaluations={given.evaluations} reached"
        if given.high is not None and numbers and max(numbers) >= given.high:
            return f"loss {max(numbers):g} is at or above max_metric_value={given.high:g}"
        if given.low is not None and numbers and min(numbers) <= given.low:
            return f"loss {min(numbers):g} is at or below min_metric_value={given.low:g}"
        return None

    def obey(self, now_s: float) -> None:
        if self.halted is not None or self.done:
            return
        reason = self.limit(now_s)
        if reason is not None:
            self.halt(reason, now_s)
        elif self.given.started is not None and self.num_trials() >= self.given.started:
            self.close(f"max_num_trials_started={self.given.started} reached")

    def close(self, reason: str) -> None:
        if self.closed is None:
            self.closed = reason
            self.out.append(StopStarting(reason))

    def halt(self, reason: str, now_s: float) -> None:
        if self.halted is not None:
            return
        self.close(reason)
        self.halted = reason
        for attempt in sorted(self.busy(), key=self.place):
            if attempt.alive and not attempt.told:
                self.terminate(attempt, reason, now_s)

    def fail(self, reason: str, error: str, now_s: float) -> None:
        self.error = self.error or error
        self.halt(reason, now_s)

    def tell(self, attempt: Attempt, now_s: float) -> None:
        attempt.told = True
        attempt.told_s = now_s

    def terminate(self, attempt: Attempt, why: str, now_s: float) -> None:
        self.tell(attempt, now_s)
        self.out.append(Terminate(attempt.trial, why))

    def kill(self, attempt: Attempt, why: str) -> None:
        attempt.told = attempt.killed = True
        self.out.append(Kill(attempt.trial, why))

    def end(self, attempt: Attempt, outcome: Outcome, now_s: float) -> None:
        status, kind, text = self.judge(attempt, outcome)
        reason = None if kind is None else Reason(kind, text, outcome.traceback, outcome.last_output)  # type: ignore[arg-type]
        retry = kind in CRASHES and attempt.fault is None and not attempt.told and attempt.number < self.given.retries
        attempt.status, attempt.reason, attempt.retry = status, reason, retry
        self.out.append(Ended(attempt.trial, attempt.number, status, reason, retry))
        if not retry:
            self.finish_trial(attempt, status, reason)
            self.compare_failures(now_s)

    def judge(self, attempt: Attempt, outcome: Outcome) -> tuple[Status, str | None, str]:
        if attempt.fault is not None:
            return Status.FAILED, *attempt.fault
        if attempt.told and outcome.kind not in ("exception", "out-of-memory"):
            return Status.STOPPED, None, ""
        if outcome.kind == "stopped":
            return Status.STOPPED, None, ""
        if outcome.kind in CRASHES:
            return Status.FAILED, outcome.kind, outcome.text
        if attempt.reports == 0:
            return Status.FAILED, "no-report", "the objective ended without reporting 'loss', and returned nothing"
        return Status.COMPLETED, None, ""

    def finish_trial(self, attempt: Attempt, status: Status, reason: Reason | None) -> None:
        self.finished.append((attempt.trial, status, reason))
        self.calls.append(("end", attempt.trial, status))

    def compare_failures(self, now_s: float) -> None:
        limit = self.given.equal
        if limit is None or len(self.finished) != limit or self.halted is not None:
            return
        alike = {(None, None) if why is None else (why.kind, why.text.split("\n")[0]) for _, _, why in self.finished}
        last = self.finished[-1][2]
        if len(alike) == 1 and last is not None:
            text = f"the first {limit} trials to finish all failed alike ({last.kind}): {last.text}"
            text += f"\n{last.traceback}" if last.traceback else ""
            text += "\nRepair the objective; or set max_equal_failures=None to go on whatever happens."
            self.fail(f"the first {limit} trials failed alike", text, now_s)

    def leave(self, now_s: float) -> list[Order]:
        self.obey(now_s)
        if self.closed is not None and not self.busy() and not self.done:
            self.done = True
            self.out.append(Finish(self.halted or self.closed, self.error))
        orders, self.out = self.out, []
        return orders

    def state(self) -> dict[str, object]:
        numbers = self.numbers()
        watched = self.given.low is not None or self.given.high is not None
        return {
            "trials": {a.trial: self.view(a) for a in self.busy()},
            "free": self.free_slots(),
            "stage": "finished"
            if self.done
            else "stopping"
            if self.halted is not None
            else "open"
            if self.closed is None
            else "draining",
            "counts": (
                self.looked_s - self.began_s,
                self.num_trials(),
                *(self.count(status) for status in (Status.COMPLETED, Status.STOPPED, Status.FAILED)),
                len(self.reports),
                {"loss": min(numbers)} if numbers and watched else {},
                {"loss": max(numbers)} if numbers and watched else {},
            ),
            "best": self.best(),
            "next tick": self.next_tick_s(),
            "interrupts": self.interrupts,
            "reason": self.halted or self.closed or "",
            "error": self.error,
            "metric seen": bool(self.reports),
            "orders left": [],
        }

    def view(self, a: Attempt) -> tuple[object, ...]:
        phase = "killed" if a.killed else "stopping" if a.told else "starting" if a.ready_s is None else "running"
        phase = phase if a.alive else "ended"
        return a.number, a.slot, {"n": a.trial}, phase, a.reports, self.deadline(a), a.fault, a.retry


def kind_of(error: str | None) -> str:
    """What made a search fail, from what it says."""
    if error is None:
        return "limit"
    kinds = {"the first ": "equal-failures", "the scheduler raised ": "scheduler", "report() gave ": "no-metric"}
    return next(kind for beginning, kind in kinds.items() if error.startswith(beginning))


def state_of(tuning: Any) -> dict[str, object]:  # Any: it looks at what is private
    """The same picture of the machine under test."""
    counts = tuning.counts
    return {
        "trials": {
            t: (
                trial.attempt,
                trial.slot,
                trial.config,
                trial.phase.value,
                trial.num_reports,
                trial.deadline_s,
                None if trial.fault is None else (trial.fault.kind, trial.fault.text),
                trial.will_retry,
            )
            for t, trial in tuning._trials.items()
        },
        "free": sorted(tuning._free_slots),
        "stage": tuning._stage.value,
        "counts": (
            counts.wallclock_s,
            counts.num_trials_started,
            counts.num_trials_completed,
            counts.num_trials_stopped,
            counts.num_trials_failed,
            counts.num_evaluations,
            counts.smallest,
            counts.largest,
        ),
        "best": tuning.best,
        "next tick": tuning.next_tick_s,
        "interrupts": tuning._interrupts,
        "reason": tuning._reason,
        "error": tuning._error,
        "metric seen": tuning._metric_seen,
        "orders left": tuning._orders,
    }


# What Tuning may keep: a new attribute must be compared above, or named among the settings.
COMPARED = {"_trials", "_free_slots", "_stage", "_counts", "_best", "_interrupts", "_reason", "_error", "_metric_seen"}
COMPARED |= {"_orders", "_started_s", "_search_deadline_s", "_first_failure", "_cause", "_kind"}
SETTINGS = {"_scheduler", "_criterion", "_asynchronous", "_timeout_s", "_grace_s", "_max_equal_failures", "_retries"}

# Limits are seldom set, and seldom more than one: else most searches are over before anything happens.
MAYBE = st.sampled_from([None, None, None, None, None, 1, 3, 5])
SETTINGS_OF_A_SEARCH = st.builds(
    Settings,
    n_workers=st.sampled_from([2, 3, 1]),
    asynchronous=st.booleans(),
    timeout_s=st.sampled_from([None, 6.0]),
    grace_s=st.sampled_from([0.0, 2.0]),
    equal=st.sampled_from([None, 2, 3]),
    retries=st.integers(0, 2),
    mode=st.sampled_from(["min", "max"]),
    supply=st.sampled_from([1000, 1000, 1000, 1000, 3, 0]),
    started=MAYBE,
    completed=MAYBE,
    evaluations=MAYBE,
    wallclock_s=st.sampled_from([math.inf, math.inf, math.inf, 20.0, 60.0]),
    low=st.sampled_from([None, None, None, None, 0.0]),
    high=st.sampled_from([None, None, None, None, 9.0]),
)
# Most reports are good ones with few different values, and most failures are alike: else a search ends before the
# interesting things happen, or equals never meet.
GOOD = st.fixed_dictionaries(
    {"loss": st.sampled_from([1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 0.0, 9.0, math.inf, math.nan])},
    optional={"stop": st.just(True)},
)
BAD = st.sampled_from([{"los": 1.0}, {"loss": "low"}, {"loss": 1.0, "break": True}])
VALUES = st.integers(0, 15).flatmap(lambda drawn: BAD if drawn == 7 else GOOD)
OUTCOMES = st.builds(
    Outcome,
    kind=st.sampled_from([*KINDS, "exception", "exception", "exception", "exception", "returned", "returned"]),
    text=st.sampled_from(["boom", "boom\nin detail", "boom", "bang"]),
    traceback=st.sampled_from(["", "Traceback"]),
)
RARELY = st.integers(0, 15).map(lambda drawn: drawn == 7)


class TuningMachine(RuleBasedStateMachine):
    """Facts in any order to Tuning and to the model; every answer and the whole state must agree."""

    tuning_class: ClassVar[type[Tuning]] = Tuning

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.started = False

    @initialize(given=SETTINGS_OF_A_SEARCH)
    def begin(self, given: Settings) -> None:
        self.scheduler = FakeScheduler(given.mode, given.supply)
        criterion = StoppingCriterion(
            max_wallclock_time=given.wallclock_s,
            max_num_trials_started=given.started,
            max_num_trials_completed=given.completed,
            max_num_evaluations=given.evaluations,
            min_metric_value=given.low,
            max_metric_value=given.high,
        )
        self.tuning = self.tuning_class(
            self.scheduler,
            criterion,
            n_workers=given.n_workers,
            asynchronous=given.asynchronous,
            trial_timeout_s=given.timeout_s,
            stop_grace_s=given.grace_s,
            max_equal_failures=given.equal,
            retries=given.retries,
        )
        self.model = Model(given)
        self.finishes = 0
        self.started = True
        self.agree(self.tuning.start(now_s=self.now_s), self.model.start(self.now_s))

    def agree(self, orders: list[Order], expected: list[Order]) -> None:
        assert [self.without_cause(order) for order in orders] == expected
        self.finishes += sum(isinstance(order, Finish) for order in orders)

    def without_cause(self, order: Order) -> Order:
        if not isinstance(order, Finish):
            return order
        assert (order.cause is not None) == (order.error is not None and order.error.startswith("the scheduler raised"))
        assert order.kind == kind_of(order.error)
        return Finish(order.reason, order.error)

    def pick(self, which: int) -> tuple[int, int]:
        """An attempt that holds a slot, if any does."""
        busy = self.model.busy()
        chosen = busy[which % len(busy)] if busy else None
        return (chosen.trial, chosen.number) if chosen is not None else (which, 0)

    @rule(by_s=st.sampled_from([0.5, 1.0, 2.0, 5.0]))
    def time_passes(self, by_s: float) -> None:
        self.now_s += by_s

    @rule(which=st.integers(0, 2))
    def ready(self, which: int) -> None:
        at = self.pick(which)
        self.agree(self.tuning.on_ready(*at, now_s=self.now_s), self.model.ready(*at, self.now_s))

    @rule(which=st.integers(0, 2), values=VALUES)
    def report(self, which: int, values: dict[str, object]) -> None:
        at = self.pick(which)
        orders = self.tuning.on_report(*at, values, now_s=self.now_s)
        assert isinstance(orders[0], Answer | Reject)
        assert sum(isinstance(order, Answer | Reject) for order in orders) == 1
        self.agree(orders, self.model.report(*at, values, self.now_s))

    @rule(which=st.integers(0, 2), outcome=OUTCOMES)
    def ended(self, which: int, outcome: Outcome) -> None:
        at = self.pick(which)
        self.agree(self.tuning.on_ended(*at, outcome, now_s=self.now_s), self.model.ended(*at, outcome, self.now_s))

    @rule(which=st.integers(0, 2), in_order=RARELY.map(lambda rare: not rare), outcome=OUTCOMES)
    def free(self, which: int, in_order: bool, outcome: Outcome) -> None:
        if in_order:
            self.ended(which, outcome)
        at = self.pick(which)
        self.agree(self.tuning.on_free(*at, now_s=self.now_s), self.model.free(*at, self.now_s))

    @rule()
    def tick(self) -> None:
        self.agree(self.tuning.on_tick(now_s=self.now_s), self.model.tick(self.now_s))

    @rule()
    def tick_when_it_is_due(self) -> None:
        due_s = self.tuning.next_tick_s
        if due_s is not None:
            self.now_s = max(self.now_s, due_s)
            orders = self.tuning.on_tick(now_s=self.now_s)
            self.agree(orders, self.model.tick(self.now_s))
            assert orders or self.tuning.next_tick_s != due_s, "a tick that is due does something, or none is due"

    @rule(really=RARELY)
    def interrupt(self, really: bool) -> None:
        if really:
            self.agree(self.tuning.interrupt(now_s=self.now_s), self.model.interrupt(self.now_s))

    @rule(trial=st.integers(-1, 8), number=st.integers(0, 2), fact=st.integers(0, 3), values=VALUES, outcome=OUTCOMES)
    def stray_fact(self, trial: int, number: int, fact: int, values: dict[str, object], outcome: Outcome) -> None:
        """Late, doubled, or about a trial that never was."""
        if self.model.find(trial, number) is not None:
            return
        now_s = self.now_s
        if fact == 0:
            self.agree(self.tuning.on_ready(trial, number, now_s=now_s), self.model.ready(trial, number, now_s))
        elif fact == 1:
            orders = self.tuning.on_report(trial, number, values, now_s=now_s)
            self.agree(orders, self.model.report(trial, number, values, now_s))
        elif fact == 2:
            orders = self.tuning.on_ended(trial, number, outcome, now_s=now_s)
            self.agree(orders, self.model.ended(trial, number, outcome, now_s))
        else:
            self.agree(self.tuning.on_free(trial, number, now_s=now_s), self.model.free(trial, number, now_s))

    @invariant()
    def the_whole_state_is_the_models(self) -> None:
        if not self.started:
            return
        assert state_of(self.tuning) == self.model.state()
        assert self.scheduler.calls == self.model.calls
        assert vars(self.tuning).keys() == COMPARED | SETTINGS

    @invariant()
    def nothing_runs_after_the_one_finish(self) -> None:
        if self.started:
            assert self.finishes == self.tuning.is_finished
            assert not (self.tuning.is_finished and self.model.busy())


TuningMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestTuningAgainstTheModel = TuningMachine.TestCase


# Broken versions, each with one method replaced. Any: they reach into what is private.


def starts_before_the_slot_is_free(self: Any, trial: Any, outcome: Outcome, now_s: float) -> None:
    Tuning._end(self, trial, outcome, now_s)
    if not trial.will_retry:
        Tuning._release(self, trial, now_s)
        Tuning._fill(self, now_s)


def takes_late_facts_for_current_ones(self: Any, trial_id: int, attempt: int) -> Any:
    return self._trials.get(trial_id)


def retries_whatever_failed(self: Any, trial: Any, reason: Reason) -> bool:
    return bool(trial.attempt < self._retries and not trial.was_told)


def retries_for_ever(self: Any, trial: Any, reason: Reason) -> bool:
    return reason.kind in CRASHES and not trial.was_told


def fills_a_batch_that_is_not_over(self: Any, now_s: float) -> None:
    asynchronous, self._asynchronous = self._asynchronous, True
    Tuning._fill(self, now_s)
    self._asynchronous = asynchronous


def forgets_the_grace(self: Any, trial: Any, now_s: float) -> None:
    Tuning._tell_to_stop(self, trial, now_s)
    trial.deadline_s = None


def leaves_running_trials_alone(self: Any, reason: str, now_s: float) -> None:
    self._stop_starting(reason)


def keeps_the_last_of_equals(self: Any, trial: Any, value: float) -> None:
    Tuning._keep_best(self, trial, value)
    if trial.best is not None:
        trial.best = trial.best._replace(number=-abs(trial.best.number))


def keeps_the_best_of_a_discarded_attempt(self: Any, trial: Any) -> None:
    Tuning._start_again(self, trial)
    self._trials[trial.trial_id].best = trial.best


def forgets_to_tell_the_scheduler(self: Any, trial: Any, status: Status, now_s: float) -> None:
    on_end, self._scheduler.on_end = self._scheduler.on_end, lambda *_: None
    Tuning._count_end(self, trial, status, now_s)
    self._scheduler.on_end = on_end


def keeps_a_list_of_finished_trials(self: Any, trial: Any, now_s: float) -> None:
    Tuning._release(self, trial, now_s)
    self.__dict__.setdefault("_finished", []).append(trial)


def counts_only_the_first_failure(self: Any, reason: Reason | None, now_s: float) -> None:
    if self._counts.num_trials_finished != 2:
        Tuning._watch_failures(self, reason, now_s)


MUTANTS: dict[str, Callable[..., Any]] = {  # Any: each has the signature of what it replaces
    "_end": starts_before_the_slot_is_free,
    "_find": takes_late_facts_for_current_ones,
    "_may_retry": retries_whatever_failed,
    "_may_retry ": retries_for_ever,
    "_fill": fills_a_batch_that_is_not_over,
    "_tell_to_stop": forgets_the_grace,
    "_halt": leaves_running_trials_alone,
    "_keep_best": keeps_the_last_of_equals,
    "_start_again": keeps_the_best_of_a_discarded_attempt,
    "_count_end": forgets_to_tell_the_scheduler,
    "_release": keeps_a_list_of_finished_trials,
    "_watch_failures": counts_only_the_first_failure,
}


@pytest.mark.parametrize("method", MUTANTS, ids=lambda method: MUTANTS[method].__name__)
def test_the_machine_catches_a_tuning_that(method: str) -> None:
    broken = type("Broken", (Tuning,), {method.strip(): MUTANTS[method]})
    machine = type("BrokenMachine", (TuningMachine,), {"tuning_class": broken})
    quickly = settings(
        max_examples=2000,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quickly)
