"""What the tuner's state machine should do, worked out from the whole history each time.

    model = TuningModel(settings)
    model.handle(fact)  ->  the same orders as Tuning.handle(fact)
    model.state()       ->  what the machine may know; `state_of(tuning)` is the same picture of the real one

The model forgets nothing: it keeps every attempt, report and checkpoint for ever. Which reports stand, how far a trial
is, from where it goes on, which checkpoints are needed, what is best, how many trials are over, which deadline is next
and which slot is free: all of it is found by going through them. Slow, and obvious. Loads no pytest.
"""

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..tune.decisions import facts
from ..tune.decisions.facts import Fact, Outcome
from ..tune.decisions.orders import (
    Answer,
    Best,
    Discard,
    Finish,
    FinishKind,
    Judged,
    Kill,
    Order,
    Reason,
    Reject,
    Start,
    StopStarting,
    Suggest,
    Terminate,
)
from ..tune.rng import KeyedRandom
from ..tune.schedulers import Clone, Decision, Done, New, Resume, Status, Stop, Wait
from ..tune.searchers import Mode, SuggestContext
from ..tune.space import Space, randint
from .scripted_search import planned_answer

SPACE = Space({"n": randint(0, 10**6)})
SEED = 7
REFERENCE = 2.5  # of one objective the hypervolume is how much better than this the best is
CRASHES = ("exception", "exit", "signal", "out-of-memory", "gpu-fault", "lost")
_END, _SUGGESTION = -1, -2  # the keys of deadlines that are no trial's


@dataclass(frozen=True)
class SearchSettings:
    """Of one search. `at_once`: the searcher's answer is the next fact. `bound`: of "cost", or None."""

    n_workers: int
    asynchronous: bool
    timeout_s: float | None
    grace_s: float
    equal: int | None
    retries: int
    keep: bool
    clones: bool
    mode: Mode
    maximum: float | None
    at_once: bool
    suggest_timeout_s: float | None
    started: int | None
    completed: int | None
    evaluations: int | None
    wallclock_s: float
    low: float | None
    high: float | None
    unimproved: int | None
    bound: float | None
    volume: float | None

    @property
    def waited_s(self) -> float | None:
        """How long a free worker waits for a suggestion: for one that comes at once there is no limit."""
        return None if self.at_once else self.suggest_timeout_s

    def limits(self) -> dict[str, Any]:
        """The arguments of the StoppingCriterion."""
        return {
            "max_wallclock_time": self.wallclock_s,
            "max_num_trials_started": self.started,
            "max_num_trials_completed": self.completed,
            "max_num_evaluations": self.evaluations,
            "min_metric_value": self.low,
            "max_metric_value": self.high,
            "max_num_trials_without_improvement": self.unimproved,
            "max_hypervolume": self.volume,
            "reference_point": None if self.volume is None else {"loss": REFERENCE},
        }


@dataclass(eq=False)
class _Report:
    """One that was accepted. `place`: among those of all trials."""

    trial: "_Trial"
    iter: int
    value: float
    place: int
    beyond: float  # the bound of "cost", measured by its size
    void: bool = False


@dataclass(eq=False)
class _Saved:
    """A checkpoint. `best`: the trial's best report until then."""

    name: str
    iter: int
    best: _Report | None


@dataclass(eq=False)
class _Attempt:
    """`taken`: which slot-taking it began with. `ready`, `told_at`: when, and at which step, to order equal times."""

    trial: "_Trial"
    number: int
    slot: int
    from_iter: int
    taken: int
    num_reports: int = 0
    ready: tuple[float, int] | None = None
    told: str = ""
    told_at: tuple[float, int] | None = None
    killed: bool = False
    at_maximum: bool = False
    fault: tuple[str, str] | None = None
    ended: bool = False
    retry: bool = False
    paused: bool = False
    freed: bool = False

    @property
    def iter(self) -> int:
        return self.from_iter + self.num_reports


@dataclass(eq=False)
class _Trial:
    """A trial, for ever.

    `where`: it runs, or is paused, suspended, waits to go on ("again") or is over. `base`: where a clone began.
    `ranked`: the reports among which the best is: those since the last rewind, and the one best then.
    """

    number: int
    config: Mapping[str, object]
    base: int = 0
    saved: list[_Saved] = field(default_factory=list)
    reports: list[_Report] = field(default_factory=list)
    ranked: list[_Report] = field(default_factory=list)
    attempts: list[_Attempt] = field(default_factory=list)
    where: str = "runs"
    status: Status | None = None
    counted: bool = False
    hold: bool = False
    wanted: bool = False
    dropped: bool = False
    given_up: bool = False
    alone: bool = False
    reserved: int | None = None

    @property
    def from_iter(self) -> int:
        return self.saved[-1].iter if self.saved else 0

    @property
    def reached(self) -> int:
        return max([self.base, *(report.iter for report in self.reports if not report.void)])

    @property
    def last(self) -> _Attempt:
        return self.attempts[-1]


class TuningModel:
    """See the module."""

    def __init__(self, given: SearchSettings) -> None:
        self.given = given
        self.n_workers = given.n_workers
        self.limits = given.limits()
        self.plan: deque[tuple[str, int]] = deque()
        self.trials: list[_Trial] = []
        self.reports: list[_Report] = []
        self.happened: list[tuple[int, tuple[float, float] | None]] = []  # reports, and None where a trial was over
        self.reasons: list[tuple[Reason | None, bool]] = []  # how trials first paused or were over; had they reported
        self.again: list[_Trial] = []
        self.suspended: list[_Trial] = []
        self.enqueued: list[Mapping[str, object]] = []
        self.scheduler_calls: list[tuple[object, ...]] = []
        self.searcher_calls: list[tuple[object, ...]] = []
        self.begun = self.done = self.metric_seen = False
        self.looked_s = 0.0
        self.step = self.num_taken = self.num_asked = self.interrupts = 0
        self.closed: str | None = None
        self.halted: str | None = None
        self.error: str | None = None
        self.kind: FinishKind = "limit"
        self.asked: int | None = None
        self.suggestion: Mapping[str, object] | None = None
        self.wants: bool = False
        self.due: tuple[float, int] | None = None  # the suggestion
        self.exhausted = self.in_batch = self.nothing_left = False
        self.is_offered = False  # one more trial than there are workers may start
        self.out: list[Order] = []

    def handle(self, fact: Fact) -> list[Order]:
        """What is to be done because of the fact."""
        name = type(fact).__name__.lower()
        getattr(self, f"_{name}")(fact)
        if not isinstance(fact, facts.Reported):
            self._obey(fact.now_s)
        if not self.running() and (self.stage == "stopping" or (self.stage == "draining" and not self.held())):
            self.done = True
            self.due = None
            if self.error is None and (text := self._all_failed()) is not None:
                self.error, self.kind = text, "all-failed"
            self.out.append(Finish(self.halted or self.closed or "", self.error, None, self.kind))
        orders, self.out = self.out, []
        return orders

    # -- what the history says --------------------------------------------------------------------------------------

    def running(self) -> list[_Attempt]:
        """The attempts that hold a slot, by when they took it."""
        all_ = [attempt for trial in self.trials for attempt in trial.attempts if not attempt.freed]
        return sorted(all_, key=lambda attempt: attempt.taken)

    def find(self, trial_id: int, number: int) -> _Attempt | None:
        return next((a for a in self.running() if (a.trial.number, a.number) == (trial_id, number)), None)

    def free_slots(self) -> list[int]:
        """The slots in which trials may start now, in the order in which they are taken."""
        busy = self.busy_slots()
        num_free = max(0, self.n_workers - len(busy)) + self.is_offered
        return [slot for slot in range(len(busy) + num_free) if slot not in busy][:num_free]

    def busy_slots(self) -> set[int]:
        busy = {attempt.slot for attempt in self.running()}
        return busy | {trial.reserved for trial in self.trials if trial.reserved is not None}

    @property
    def stage(self) -> str:
        if self.done:
            return "finished"
        return "stopping" if self.halted is not None else "open" if self.closed is None else "draining"

    def count(self, status: Status) -> int:
        stopped = sum(trial.counted for trial in self.trials) if status is Status.STOPPED else 0
        return stopped + sum(trial.status is status for trial in self.trials)

    def loss(self, report: _Report) -> float:
        loss = report.value if self.given.mode == "min" else -report.value
        return abs(loss) if math.isinf(loss) else loss

    def best_of(self, trials: list[_Trial]) -> _Report | None:
        """The best finite report that stands, one that keeps the bound before all others; of equals the earliest."""
        ranked = [report for trial in trials for report in trial.ranked if math.isfinite(report.value + report.beyond)]
        return min(ranked, key=lambda report: (report.beyond, self.loss(report), report.place), default=None)

    def best(self) -> Best | None:
        report = self.best_of(self.trials)
        if report is None:
            return None
        return Best(report.value, report.trial.number, report.trial.config, report.iter, report.beyond)

    def needed(self) -> dict[str, int]:
        """Checkpoints, and how many need them: who may go on from there, all that are kept, the best's."""
        over = [trial for trial in self.trials if trial.where == "over"]
        keepers = [trial for trial in self.trials if trial.where != "over"]
        if self.given.keep or self.given.clones:
            keepers += over
        elif (best := self.best_of(over)) is not None:
            keepers.append(best.trial)
        names = [trial.saved[-1].name for trial in keepers if trial.saved]
        return {name: names.count(name) for name in names}

    def deadlines(self) -> dict[int, tuple[float, int]]:
        """When what is due, and the step that said so."""
        dues = {}
        for attempt in self.running():
            if attempt.ended or attempt.killed:
                continue
            if attempt.told_at is not None:
                dues[attempt.trial.number] = (attempt.told_at[0] + self.given.grace_s, attempt.told_at[1])
            elif attempt.ready is not None and self.given.timeout_s is not None:
                dues[attempt.trial.number] = (attempt.ready[0] + self.given.timeout_s, attempt.ready[1])
        if self.due is not None:
            dues[_SUGGESTION] = self.due
        if self.begun and self.stage in ("open", "draining") and math.isfinite(self.limits["max_wallclock_time"]):
            dues[_END] = (self.limits["max_wallclock_time"], 0)
        return dues

    def next_tick_s(self) -> float | None:
        return min((at_s for at_s, _ in self.deadlines().values()), default=None)

    def paused_by_scheduler(self) -> list[int]:
        """Those that it may go on with."""
        found = []
        for trial in self.trials:
            pauses = trial.where == "runs" and trial.last.told == "pause" and not trial.dropped
            if (pauses or trial.where == "paused") and not trial.wanted and trial.reserved is None:
                found.append(trial.number)
        return found

    def held(self) -> bool:
        """Whether a person keeps a trial that would go on."""
        return any(trial.where == "paused" and trial.hold and trial.wanted for trial in self.trials)

    def record(self) -> tuple[tuple[float, float], int | None, int]:
        """The best report's rank, whose it was first, and how many others were over since."""
        ranks = [(rank, place) for place, (_, rank) in enumerate(self.happened) if rank is not None]
        finite = [(rank, place) for rank, place in ranks if math.isfinite(rank[0] + rank[1])]
        rank, place = min(finite, default=((math.inf, math.inf), -1))
        whose = None if place < 0 else self.happened[place][0]
        return rank, whose, sum(x is None and trial != whose for trial, x in self.happened[place + 1 :])

    def numbers(self) -> list[float]:
        return [report.value for report in self.reports if math.isfinite(report.value) and report.beyond == 0.0]

    def volume(self) -> float:
        """How much better than the reference the best of all reports is, void ones too, in either mode."""
        sign = 1.0 if self.given.mode == "min" else -1.0
        return max([0.0, *(sign * (REFERENCE - value) for value in self.numbers())])

    # -- limits -----------------------------------------------------------------------------------------------------

    def _limit(self, now_s: float) -> str | None:
        """The limit that stops everything, if one is reached."""
        if not self.begun or self.stage in ("stopping", "finished"):
            return None
        self.looked_s = now_s
        given, numbers, limits = self.given, self.numbers(), self.limits
        completed, evaluations = limits["max_num_trials_completed"], limits["max_num_evaluations"]
        if now_s >= limits["max_wallclock_time"]:
            return f"max_wallclock_time={limits['max_wallclock_time']:g} s is over"
        if completed is not None and self.count(Status.COMPLETED) >= completed:
            return f"max_num_trials_completed={completed} reached"
        if evaluations is not None and len(self.reports) >= evaluations:
            return f"max_num_evaluations={evaluations} reached"
        if given.high is not None and numbers and max(numbers) >= given.high:
            return f"loss {max(numbers):g} is at or above max_metric_value={given.high:g}"
        if given.low is not None and numbers and min(numbers) <= given.low:
            return f"loss {min(numbers):g} is at or below min_metric_value={given.low:g}"
        if given.volume is not None and self.volume() >= given.volume:
            return f"hypervolume {self.volume():g} is at or above max_hypervolume={given.volume:g}"
        return None

    def _obey(self, now_s: float) -> None:
        if not self.begun or self.stage in ("stopping", "finished"):
            return
        reason, started = self._limit(now_s), self.limits["max_num_trials_started"]
        unimproved = self.limits["max_num_trials_without_improvement"]
        if reason is not None:
            self._halt(reason, now_s)
        elif started is not None and len(self.trials) >= started:
            self._close(f"max_num_trials_started={started} reached")
        elif unimproved is not None and self.record()[2] >= unimproved:
            self._close(f"max_num_trials_without_improvement={unimproved} reached")

    def _close(self, reason: str) -> None:
        if self.stage == "open":
            self.closed = reason
            self.out.append(StopStarting(reason))

    def _halt(self, reason: str, now_s: float) -> None:
        if self.stage in ("stopping", "finished"):
            return
        self._close(reason)
        self.halted = reason
        self.due = None
        for attempt in self.running():
            if not attempt.ended and attempt.told_at is None:
                attempt.told = "suspend"
                self._terminate(attempt, reason, now_s)

    def _fail(self, kind: FinishKind, reason: str, error: str, now_s: float) -> None:
        if self.error is None and not self.done:
            self.kind, self.error = kind, error
        self._halt(reason, now_s)

    # -- facts ------------------------------------------------------------------------------------------------------

    def _begin(self, fact: facts.Begin) -> None:
        self.begun = True
        if not self.done:
            self._ask_ahead(fact.now_s)
            self._fill(fact.now_s)

    def _suggested(self, fact: facts.Suggested) -> None:
        if fact.number != self.asked:
            return
        self.asked, self.due = None, None
        if fact.error is not None:
            self._fail("searcher", "the searcher failed", fact.error, fact.now_s)
        elif fact.config is None:
            self.exhausted, self.wants = True, False
        else:
            self.suggestion = fact.config
        self._fill(fact.now_s)
        self._withdraw()

    def _asked(self, fact: facts.Asked) -> None:
        self.is_offered = True
        self._fill(fact.now_s)
        self._withdraw()

    def _withdraw(self) -> None:
        if not self.wants:
            self.is_offered = False

    def _take(self) -> int:
        """The first of the free slots."""
        slot = self.free_slots()[0]
        if len(self.busy_slots()) >= self.n_workers:
            self.is_offered = False
        return slot

    def _ready(self, fact: facts.Ready) -> None:
        attempt = self.find(fact.trial_id, fact.attempt)
        if attempt is not None and not attempt.ended and attempt.ready is None and attempt.told_at is None:
            attempt.ready = self._at(fact.now_s)

    def _reported(self, fact: facts.Reported) -> None:
        attempt, now_s = self.find(fact.trial_id, fact.attempt), fact.now_s
        if attempt is None or attempt.told_at is not None or attempt.ended:
            self.out.append(Answer(fact.trial_id, Decision.STOP, late=True))
            self._discard(fact.trial_id, fact.checkpoint)
            return
        trial, value, cost = attempt.trial, fact.values.get("loss"), self._cost(fact)
        if not isinstance(value, float) or cost is None:
            self._reject(attempt, fact, value)
            return
        self.metric_seen = True
        attempt.num_reports += 1
        if attempt.iter <= trial.reached:
            self.out.append(Answer(trial.number, Decision.CONTINUE, attempt.iter, repeated=True))
            self._save(trial, attempt.iter, fact.checkpoint)
            return
        bound = self.given.bound or 0.0
        report = _Report(trial, attempt.iter, value, len(self.reports), max(cost - bound, 0.0) / (bound or 1.0))
        self.reports.append(report)
        trial.reports.append(report)
        trial.ranked.append(report)
        self.happened.append((trial.number, (report.beyond, self.loss(report))))
        decision = self._decide(attempt, fact, report)
        self._save(trial, attempt.iter, fact.checkpoint)
        if decision is Decision.CONTINUE and self._limit(now_s) is not None:
            decision, attempt.told = Decision.STOP, "suspend"
            self._tell(attempt, now_s)
        self.out.insert(0, Answer(trial.number, decision, attempt.iter))
        self.exhausted = False
        self._obey(now_s)
        if self.free_slots():
            self._fill(now_s)

    def _cost(self, fact: facts.Reported) -> float | None:
        """What is bounded; None: it is missing."""
        if self.given.bound is None:
            return 0.0
        cost = fact.values.get("cost")
        return cost if isinstance(cost, float) else None

    def _reject(self, attempt: _Attempt, fact: facts.Reported, value: object) -> None:
        missing = "constraint's value 'cost'" if isinstance(value, float) else "metric 'loss'"
        if isinstance(value, float):
            bound, value = self.given.bound, None
            what = f"'cost' of the constraint 'cost <= {bound!r}'"
            names = ", ".join(map(repr, fact.values))
            text = f"the objective reported {names}, but not {what}; report it, or change the constraint"
        elif value is None:
            text = "the objective reported 'los', but not the scheduler's metric 'loss'; did you mean 'los'?"
        else:
            text = f"the metric 'loss' must be a number, got {value!r} of type str"
        self.out.append(Reject(attempt.trial.number, text))
        self._discard(attempt.trial.number, fact.checkpoint)
        if value is None and not self.metric_seen:
            attempt.told = "suspend"
            self._tell(attempt, fact.now_s)
            self._fail("no-metric", f"the {missing} was not reported", text, fact.now_s)

    def _decide(self, attempt: _Attempt, fact: facts.Reported, report: _Report) -> Decision:
        trial, asked, now_s = attempt.trial, fact.values.get("ask", ""), fact.now_s
        if math.isnan(report.value) or math.isnan(report.beyond):
            name = "loss" if math.isnan(report.value) else "cost"
            attempt.fault, attempt.told = ("nan", f"the objective reported {name}=nan"), "stop"
            self._tell(attempt, now_s)
            return Decision.STOP
        call = ("report", trial.number, report.iter, self.loss(report), report.beyond)
        self.searcher_calls.append(call)
        self.scheduler_calls.append(call)
        if asked in ("break", "wrong"):
            error = "ZeroDivisionError: scripted"
            if asked == "wrong":
                allowed = "Decision.CONTINUE, Decision.STOP, Decision.PAUSE"
                who = f"ScriptedScheduler.on_report() for trial {trial.number}"
                error = f"TypeError: {who} must return one of {allowed}, got 'stop'"
            attempt.told = "suspend"
            self._tell(attempt, now_s)
            self._fail("scheduler", "the scheduler failed", f"the scheduler raised {error}", now_s)
            return Decision.STOP
        if asked not in ("stop", "pause") and not trial.hold:
            return Decision.CONTINUE
        decision = Decision.STOP if asked == "stop" else Decision.PAUSE
        trial.wanted = asked not in ("stop", "pause")
        attempt.told = "stop" if asked == "stop" else "pause"
        attempt.at_maximum = asked == "stop" and self.given.maximum is not None and report.iter >= self.given.maximum
        self._tell(attempt, now_s)
        return decision

    def _ended(self, fact: facts.Ended) -> None:
        attempt = self.find(fact.trial_id, fact.attempt)
        if attempt is not None and not attempt.ended:
            self._end(attempt, fact.outcome, fact.now_s)

    def _free(self, fact: facts.Free) -> None:
        attempt, now_s = self.find(fact.trial_id, fact.attempt), fact.now_s
        if attempt is None:
            return
        if not attempt.ended:
            self._end(attempt, Outcome("lost", "the worker was gone before it said how the trial ended"), now_s)
        self._obey(now_s)
        gives_up = self.stage == "stopping" or attempt.trial.given_up
        if attempt.retry and not gives_up and len(self.busy_slots()) <= self.n_workers:
            attempt.freed = True
            self._attempt(attempt.trial, attempt.slot, attempt.taken)
            return
        self._release(attempt, now_s)
        self.exhausted = False
        self._fill(now_s)

    def _tick(self, fact: facts.Tick) -> None:
        now_s = fact.now_s
        dues = sorted((due, key) for key, due in self.deadlines().items() if due[0] <= now_s)
        for _, key in dues:
            if key < 0:
                continue
            attempt = self.trials[key].last
            if attempt.told_at is not None:
                self._kill(attempt, f"still running {self.given.grace_s:g} s after it was told to stop (stop_grace_s)")
            else:
                text = f"still running {self.given.timeout_s:g} s after it began (trial_timeout_s)"
                attempt.fault = "time-out", text
                self._terminate(attempt, text, now_s)
        if any(key == _SUGGESTION for _, key in dues):
            self.due = None
            self._obey(now_s)
            self._fall_back(now_s)

    def _fall_back(self, now_s: float) -> None:
        if self.asked is None or not self.wants or self.stage != "open":
            return
        number, self.asked, self.wants = self.asked, None, False
        if self.free_slots():
            self._new(SPACE.sample(KeyedRandom(f"{SEED}/fallback/{number}")), fallback=True)
            self._obey(now_s)
        self._ask_ahead(now_s)
        self._fill(now_s)

    def _interrupt(self, fact: facts.Interrupt) -> None:
        self.interrupts += 1
        self._halt(fact.who, fact.now_s)
        if self.interrupts > 1:
            for attempt in self.running():
                if not attempt.ended and not attempt.killed:
                    self._kill(attempt, "interrupted twice")

    def _command(self, fact: facts.Command) -> None:
        if not 0 <= fact.trial_id < len(self.trials):
            return
        trial = self.trials[fact.trial_id]
        if trial.where in ("over", "suspended"):
            return
        if fact.what == "stop":
            self._stop_by_hand(trial, fact.now_s)
            return
        trial.hold = fact.what == "pause"
        if trial.hold and trial.where == "again":
            self.again.remove(trial)
            trial.where, trial.wanted = "paused", True
        elif not trial.hold and trial.wanted and trial.where == "paused":
            trial.where = "again"
            self.again.append(trial)
            self._fill(fact.now_s)

    def _stop_by_hand(self, trial: _Trial, now_s: float) -> None:
        if trial.where != "runs":
            self.again = [other for other in self.again if other is not trial]
            self._over_paused(trial)
        elif not trial.last.ended and trial.last.told_at is None:
            trial.last.told = "stop"
            self._terminate(trial.last, "stopped by hand", now_s)
        elif trial.last.told == "pause" or trial.last.retry:
            trial.given_up = True

    def _enqueued(self, fact: facts.Enqueued) -> None:
        if self.stage == "open":
            self.enqueued.append(fact.config)
            self.exhausted = False
            self._fill(fact.now_s)

    def _workers(self, fact: facts.Workers) -> None:
        if not self.free_slots():  # a full batch stays as it is
            self.in_batch = False
        self.n_workers = fact.n_workers
        self._fill(fact.now_s)

    def _resumed(self, fact: facts.Resumed) -> None:
        now_s = fact.now_s
        self.closed = self.halted = self.error = None
        self.kind, self.done, self.interrupts, self.begun = "limit", False, 0, True
        gone = self.running()
        told = [a for a in gone if not a.ended and a.told_at and (a.told in ("stop", "pause") or a.fault)]
        for attempt in gone:
            if not attempt.ended and attempt not in told:
                attempt.ended, attempt.told = True, "suspend"
        for attempt in told:
            self._end(attempt, Outcome("lost", "its tuner was gone before it said how the trial ended"), now_s)
        for attempt in gone:
            self._release(attempt, now_s)
        for trial in self.suspended:
            trial.counted = False
            self._rewind(trial)
        self.again = sorted([*self.again, *self.suspended], key=lambda trial: trial.number)
        for trial in self.again:
            trial.where = "again"
        self.suspended = []
        self.asked = self.due = None
        self.wants = self.exhausted = self.nothing_left = False
        self._obey(now_s)
        self._ask_ahead(now_s)
        self._fill(now_s)

    # -- what runs next ---------------------------------------------------------------------------------------------

    def _fill(self, now_s: float) -> None:
        self.in_batch = self.in_batch or not self.running()
        if not self.given.asynchronous and not self.in_batch:
            return
        while True:
            self._obey(now_s)
            if not self.free_slots() or self.stage not in ("open", "draining") or not self.begun:
                return
            if self.again:
                self._attempt(self.again.pop(0), self._take())
            elif not self._next(now_s):
                return

    def _next(self, now_s: float) -> bool:
        drains = self.stage == "draining"
        if drains and (self.nothing_left or all(trial.where != "paused" for trial in self.trials)):
            return False
        if self.wants and not drains:
            return self._suggestion(now_s)
        pending = {attempt.trial.number: attempt.trial.config for attempt in self.running()}
        trial_id = len(self.trials)
        self.scheduler_calls.append(("next", self.num_taken, trial_id, self.exhausted or drains, not drains, pending))
        what, which = self.plan.popleft() if self.plan else ("new", 0)
        answer = planned_answer(what, which, trial_id, self.paused_by_scheduler())
        if isinstance(answer, str):
            allowed = "New(...), Resume(trial_id), Clone(trial_id, config), Stop(trial_id), Wait() or Done()"
            error = f"the scheduler raised TypeError: ScriptedScheduler.next() must return {allowed}, got 'next'"
            self._fail("scheduler", "the scheduler failed", error, now_s)
            return False
        if drains and isinstance(answer, New | Clone):
            answer = Wait()
        if isinstance(answer, New) and answer.config is not None:
            self._new(answer.config)
        elif isinstance(answer, New) and (not self.exhausted or self.enqueued):
            return self._suggestion(now_s)
        elif isinstance(answer, Clone):
            self._new(answer.config, source=answer.trial_id)
        elif isinstance(answer, Resume):
            self._resume(self.trials[answer.trial_id])
        elif isinstance(answer, Stop):
            self._drop(self.trials[answer.trial_id])
        elif isinstance(answer, Done):
            self.nothing_left = True
            self._close("the scheduler has no more trials")
            return False
        else:
            if drains and not self.running() and not self.held():
                self.nothing_left = True
            if not drains and not self.running() and self.asked is None and not self.held():
                self._close("searcher exhausted" if self.exhausted else "the scheduler has nothing left to run")
            return False
        return True

    def _resume(self, trial: _Trial) -> None:
        if trial.where == "runs":
            trial.reserved = self._take()
        elif trial.hold:
            trial.wanted = True
        else:
            self._attempt(trial, self._take())

    def _drop(self, trial: _Trial) -> None:
        if trial.where == "runs":
            trial.dropped = True
        else:
            self._over_paused(trial)

    def _suggestion(self, now_s: float) -> bool:
        if self.enqueued:
            self.wants = False
            self._new(self.enqueued.pop(0))
            return True
        if self.suggestion is not None:
            config, self.suggestion, self.wants = self.suggestion, None, False
            self._new(config)
            self._ask_ahead(now_s)
            return True
        if self.given.waited_s is not None and not self.wants:
            self.due = self._at(now_s + self.given.waited_s)
        self.wants = True
        self._ask(now_s)
        return False

    def _ask(self, now_s: float) -> None:
        if self.asked is None:
            self.asked = self.num_asked
            self.num_asked += 1
            pending = {attempt.trial.number: attempt.trial.config for attempt in self.running()}
            suggest_timeout_s = self.given.waited_s
            ask = SuggestContext(
                self.asked,
                len(self.trials),
                SPACE,
                seed=SEED,
                pending=pending,
                now_s=now_s,
                suggest_timeout_s=suggest_timeout_s,
            )
            self.out.append(Suggest(self.asked, ask))

    def _ask_ahead(self, now_s: float) -> None:
        if self.given.waited_s is not None and self.stage == "open" and self.suggestion is None:
            self._ask(now_s)

    def _new(self, config: Mapping[str, object], *, source: int | None = None, fallback: bool = False) -> None:
        trial = _Trial(len(self.trials), config)
        given = [] if source is None else self.trials[source].saved
        if given and (self.trials[source or 0].where != "over" or self.given.keep or self.given.clones):
            trial.base = given[-1].iter
            trial.saved.append(_Saved(given[-1].name, given[-1].iter, None))
        self.trials.append(trial)
        self._attempt(trial, self._take(), source=source, fallback=fallback)

    def _attempt(
        self,
        trial: _Trial,
        slot: int,
        taken: int | None = None,
        *,
        source: int | None = None,
        fallback: bool = False,
    ) -> None:
        number = len(trial.attempts)
        name = trial.saved[-1].name if trial.saved else None
        if taken is None:
            taken, self.num_taken = self.num_taken, self.num_taken + 1
        trial.where, trial.status, trial.wanted = "runs", None, False
        trial.attempts.append(_Attempt(trial, number, slot, trial.from_iter, taken))
        self.out.append(
            Start(trial.number, number, trial.config, slot, trial.from_iter, name, source, fallback, trial.alone)
        )

    # -- stopping and ending ----------------------------------------------------------------------------------------

    def _at(self, now_s: float) -> tuple[float, int]:
        self.step += 1
        return now_s, self.step

    def _tell(self, attempt: _Attempt, now_s: float) -> None:
        attempt.told_at = self._at(now_s)

    def _terminate(self, attempt: _Attempt, why: str, now_s: float) -> None:
        self._tell(attempt, now_s)
        self.out.append(Terminate(attempt.trial.number, why))

    def _kill(self, attempt: _Attempt, why: str) -> None:
        attempt.killed = True
        self.out.append(Kill(attempt.trial.number, why))

    def _end(self, attempt: _Attempt, outcome: Outcome, now_s: float) -> None:
        trial = attempt.trial
        status, kind, text = self._judge(attempt, outcome)
        reason = None if kind is None else Reason(kind, text, outcome.traceback, outcome.last_output)  # type: ignore[arg-type]
        tried = sum(earlier.retry for earlier in trial.attempts)
        once = kind == "gpu-fault" or (kind == "out-of-memory" and outcome.retry_alone)
        allowed = max(1, self.given.retries) if once else self.given.retries
        attempt.retry = kind in CRASHES and attempt.fault is None and attempt.told_at is None and tried < allowed
        if status not in (Status.PAUSED, Status.STOPPED):
            attempt.told = ""
        attempt.ended = True
        self.out.append(Judged(trial.number, attempt.number, status, reason, attempt.retry))
        if attempt.retry:
            trial.alone = trial.alone or outcome.retry_alone
            self._rewind(trial)
        elif attempt.told == "suspend":
            trial.counted = True
        else:
            if status is not Status.PAUSED:
                self._over(trial, status)
            if not any(earlier.paused for earlier in trial.attempts):
                self.reasons.append((reason, attempt.iter > 0))
                self._compare_failures(now_s)
            attempt.paused = status is Status.PAUSED

    def _judge(self, attempt: _Attempt, outcome: Outcome) -> tuple[Status, str | None, str]:
        if attempt.fault is not None:
            return Status.FAILED, *attempt.fault
        told = attempt.told_at is not None
        if outcome.kind == "stopped" or (told and outcome.kind not in ("exception", "out-of-memory")):
            if attempt.at_maximum:
                return Status.COMPLETED, None, ""
            return Status.PAUSED if attempt.told == "pause" else Status.STOPPED, None, ""
        if outcome.kind in CRASHES:
            return Status.FAILED, outcome.kind, outcome.text
        if attempt.iter == 0:
            return Status.FAILED, "no-report", "the objective ended without reporting 'loss', and returned nothing"
        return Status.COMPLETED, None, ""

    def _rewind(self, trial: _Trial) -> None:
        reached, to_iter = trial.reached, trial.from_iter
        best = trial.saved[-1].best if trial.saved else None
        trial.ranked = [] if best is None else [best]
        for report in trial.reports:
            report.void = report.void or report.iter > to_iter
        if reached != to_iter:
            self.searcher_calls.append(("rewind", trial.number, to_iter))
            self.scheduler_calls.append(("rewind", trial.number, to_iter))

    def _save(self, trial: _Trial, iter: int, name: str | None) -> None:
        if name is not None:
            before, best = self.needed(), self.best_of([trial])
            if best is not None and best.iter > iter:  # on the way there again: what it was before is not remembered
                best = trial.saved[-1].best if trial.saved else None
            trial.saved.append(_Saved(name, iter, best))
            self._discard_unneeded(before, trial)

    def _discard_unneeded(self, before: Mapping[str, int], trial: _Trial) -> None:
        for name in before.keys() - self.needed().keys():
            self.out.append(Discard(trial.number, name))

    def _discard(self, trial_id: int, name: str | None) -> None:
        if name is not None:
            self.out.append(Discard(trial_id, name))

    def _over(self, trial: _Trial, status: Status) -> None:
        before = self.needed()
        trial.status = status
        trial.where = "over"
        self.happened.append((trial.number, None))
        self._discard_unneeded(before, trial)
        self.searcher_calls.append(("end", trial.number, str(status)))
        self.scheduler_calls.append(("end", trial.number, str(status)))

    def _over_paused(self, trial: _Trial) -> None:
        self.out.append(Judged(trial.number, trial.last.number, Status.STOPPED))
        self._over(trial, Status.STOPPED)

    def _release(self, attempt: _Attempt, now_s: float) -> None:
        trial = attempt.trial
        self.in_batch = False
        attempt.freed = True
        reserved, trial.reserved = trial.reserved, None
        if attempt.retry and trial.given_up:
            self.out.append(Judged(trial.number, attempt.number, Status.FAILED))
            self._over(trial, Status.FAILED)
        elif attempt.retry:
            trial.where = "again"
            self.again.append(trial)
        elif attempt.told == "suspend":
            trial.where = "suspended"
            self.suspended.append(trial)
        elif attempt.told == "pause" and (trial.dropped or trial.given_up):
            self._over_paused(trial)
        elif attempt.told == "pause":
            trial.wanted = trial.wanted or reserved is not None
            trial.where = "paused"
            if trial.wanted and not trial.hold:
                trial.where = "again"
                self.again.append(trial)

    # -- failures of the search -------------------------------------------------------------------------------------

    def kinds(self) -> list[tuple[str, str]]:
        """Of each trial that failed and never paused, when that says something of the program: its reason but for
        numbers.
        """
        failed = [reason for reason, had in self.reasons if reason and not (reason.kind == "time-out" and had)]
        return [(reason.kind, re.sub(r"\d+", "#", reason.text.split("\n")[0])) for reason in failed]

    def _compare_failures(self, now_s: float) -> None:
        limit, kinds = self.given.equal, self.kinds()
        if limit is None or len(self.reasons) != limit or len(kinds) != limit or len(set(kinds)) > 1:
            return
        last = self.reasons[-1][0]
        if last is not None and self.stage != "stopping":
            why = f"the first {limit} trials to finish all failed alike"
            text = f"{why} ({last.kind}): {last.text}" + (f"\n{last.traceback}" if last.traceback else "")
            text += "\nRepair the objective; or set max_equal_failures=None to go on whatever happens."
            self._fail("equal-failures", why, text, now_s)

    def _all_failed(self) -> str | None:
        kinds, number = self.kinds(), len(self.trials)
        if self.given.equal is None or not number or len(kinds) < number:
            return None
        commonest = max(dict.fromkeys(kinds), key=kinds.count)
        first = self.reasons[kinds.index(commonest)][0]
        assert first is not None
        many = "the only trial" if number == 1 else f"all {number} trials"
        count = kinds.count(commonest)
        often = "" if count == number else f"; the commonest reason, {count} times,"
        text = f"{many} failed{often} ({first.kind}): {first.text}"
        return text + (f"\n{first.traceback}" if first.traceback else "")
