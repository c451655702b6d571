"""The tuner's decisions, one example each: schedules, limits, retries, pauses, checkpoints, commands, late facts."""

import heapq
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fanwise.tune.decisions import facts
from fanwise.tune.decisions.driving import handle
from fanwise.tune.decisions.facts import Fact, Outcome
from fanwise.tune.decisions.orders import (
    Answer,
    Best,
    Discard,
    Finish,
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
from fanwise.tune.decisions.tuning import Tuning
from fanwise.tune.schedulers import (
    Clone,
    Decision,
    Done,
    FIFOScheduler,
    New,
    NextTrial,
    RandomSearch,
    Resume,
    Scheduler,
    Status,
    Stop,
    Wait,
)
from fanwise.tune.searchers import Ask, Mode, Objective, Observation, Searcher
from fanwise.tune.spaces import Space, randint
from fanwise.tune.stopping import Counts, StoppingCriterion

SPACE = Space({"x": randint(0, 10**6)})
DONE = Outcome("returned")
CRASH = Outcome("signal", "ended by SIGSEGV", last_output="boom")
STOPPED = Outcome("stopped")
CRASHED = Reason("signal", "ended by SIGSEGV", last_output="boom")
CONTINUE, STOP, PAUSE = Decision.CONTINUE, Decision.STOP, Decision.PAUSE


class Scripted(Searcher):
    """Gives out x = 0, 1, 2, ..., as many as it has; raises what it is told to; notes what it hears."""

    def __init__(self, number: int = 10**6) -> None:
        self.left = number
        self.given = 0
        self.error: Exception | None = None
        self.error_on_observe: Exception | None = None
        self.heard: list[tuple[object, ...]] = []

    def suggest(self, ask: Ask) -> Mapping[str, object] | None:
        if self.error is not None:
            raise self.error
        if self.given == self.left:
            return None
        self.given += 1
        return {"x": self.given - 1}

    def observe(self, observation: Observation) -> None:
        if self.error_on_observe is not None:
            raise self.error_on_observe
        self.heard.append(("observe", observation.trial_id, observation.iter, observation.loss))

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        self.heard.append(("rewind", trial_id, to_iter))

    def on_end(self, trial_id: int, status: str) -> None:
        self.heard.append(("end", trial_id, status))


class Thinks(Scripted):
    """A searcher that has a thread of its own and two seconds."""

    budget_s = 2.0


class Told:
    """A scheduler that does what it is told: reports say what to answer, `plan` what runs next."""

    objectives: tuple[Objective, ...] = (Objective("loss"),)
    resource_attr: str | None = None
    max_resource: float | None = None

    def __init__(self, *plan: Any, searcher: Searcher | None = None, clones: bool = False) -> None:  # Any: wrong ones
        self.plan = list(plan)
        self.searcher = searcher
        self.clones = clones
        self.heard: list[tuple[object, ...]] = []
        self.asks: list[Ask] = []

    def check(self, space: Space) -> None: ...

    def begin(self, space: Space, seed: int) -> None: ...

    def next(self, ask: Ask) -> NextTrial:
        self.asks.append(ask)
        answer: NextTrial = self.plan.pop(0) if self.plan else New({"x": ask.trial_id})
        return answer

    def on_report(self, observation: Observation) -> Decision:
        self.heard.append(("report", observation.trial_id, observation.iter, observation.loss))
        decision: Decision = observation.values.get("answer", CONTINUE)  # type: ignore[assignment]
        return decision

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        self.heard.append(("rewind", trial_id, to_iter))

    def on_end(self, trial_id: int, status: Status) -> None:
        self.heard.append(("end", trial_id, status))

    def describe(self) -> dict[str, object]:
        return {}


class Search:
    """A Tuning and a searcher that answers at once, or when told to; each fact gives the orders that follow from it."""

    def __init__(self, tuning: Tuning, searcher: Searcher | None) -> None:
        self.tuning = tuning
        self.searcher = searcher if searcher is None or searcher.budget_s is None else None
        self.slow = self.searcher is None

    def hand(self, fact: Fact) -> list[Order]:
        orders: list[Order] = []
        if self.slow:
            return self.tuning.handle(fact)
        handle(self.tuning, fact, self.searcher, lambda _, made: orders.extend(made))
        return [order for order in orders if not isinstance(order, Suggest)]

    def begin(self, now_s: float = 0.0) -> list[Order]:
        return self.hand(facts.Begin(now_s))

    def ready(self, trial_id: int, attempt: int, *, now_s: float = 0.0) -> list[Order]:
        return self.hand(facts.Ready(now_s, trial_id, attempt))

    def report(
        self,
        trial_id: int,
        attempt: int,
        values: Mapping[str, object] | float,
        *,
        now_s: float = 0.0,
        checkpoint: str | None = None,
    ) -> list[Order]:
        given = values if isinstance(values, Mapping) else {"loss": values}
        return self.hand(facts.Reported(now_s, trial_id, attempt, given, checkpoint=checkpoint))

    def ended(self, trial_id: int, attempt: int, outcome: Outcome = DONE, *, now_s: float = 0.0) -> list[Order]:
        return self.hand(facts.Ended(now_s, trial_id, attempt, outcome))

    def free(self, trial_id: int, attempt: int, *, now_s: float = 0.0) -> list[Order]:
        return self.hand(facts.Free(now_s, trial_id, attempt))

    def tick(self, now_s: float) -> list[Order]:
        return self.hand(facts.Tick(now_s))

    def interrupt(self, now_s: float = 0.0) -> list[Order]:
        return self.hand(facts.Interrupt(now_s))

    def run(self, trial_id: int, *values: float, outcome: Outcome = DONE, attempt: int = 0) -> list[Order]:
        """All facts of an attempt at time 0; returns the orders from its end on."""
        self.ready(trial_id, attempt)
        for value in values:
            self.report(trial_id, attempt, value)
        return self.ended(trial_id, attempt, outcome) + self.free(trial_id, attempt)

    def pause(
        self, trial_id: int, value: float = 1.0, *, attempt: int = 0, checkpoint: str | None = None
    ) -> list[Order]:
        """A report that is answered PAUSE, and the end of the process."""
        self.report(trial_id, attempt, {"loss": value, "answer": PAUSE}, checkpoint=checkpoint)
        return self.ended(trial_id, attempt, STOPPED) + self.free(trial_id, attempt)

    @property
    def best(self) -> Best | None:
        return self.tuning.best

    @property
    def counts(self) -> Counts:
        return self.tuning.counts

    @property
    def next_tick_s(self) -> float | None:
        return self.tuning.next_tick_s


def tuning_of(  # the defaults of these tests: two workers, no end in sight
    searcher: Searcher | None = None,
    criterion: StoppingCriterion | None = None,
    *,
    scheduler: Scheduler | None = None,
    mode: Mode = "min",
    n_workers: int = 2,
    asynchronous: bool = True,
    trial_timeout_s: float | None = None,
    stop_grace_s: float = 5.0,
    max_equal_failures: int | None = 3,
    retries: int = 0,
    keep_checkpoints: bool = False,
) -> Search:
    if scheduler is None:
        scheduler = FIFOScheduler(searcher or Scripted(), metric="loss", mode=mode)
        scheduler.begin(SPACE, 0)
    tuning = Tuning(
        scheduler,
        SPACE,
        criterion or StoppingCriterion(max_wallclock_time=math.inf),
        n_workers=n_workers,
        asynchronous=asynchronous,
        trial_timeout_s=trial_timeout_s,
        stop_grace_s=stop_grace_s,
        max_equal_failures=max_equal_failures,
        retries=retries,
        keep_checkpoints=keep_checkpoints,
    )
    return Search(tuning, scheduler.searcher)


def start(trial_id: int, slot: int, attempt: int = 0, from_iter: int = 0, checkpoint: str | None = None) -> Start:
    return Start(trial_id, attempt, {"x": trial_id}, slot, from_iter, checkpoint)


def play(tuning: Search, durations_s: list[float]) -> tuple[list[tuple[int, int, float, float]], float]:
    """Workers without overhead: trial k reports and ends after durations_s[k], or at once when told to stop.

    Returns (slot, trial, from, to) of each trial, and the time of Finish.
    """
    events: list[tuple[float, int, str, int]] = []
    slots: dict[int, tuple[int, float]] = {}
    lines: list[tuple[int, int, float, float]] = []
    order_number = 0
    waiting: list[Order] = tuning.begin(0)
    now_s = 0.0

    def end(trial_id: int, outcome: Outcome) -> None:
        slot, since_s = slots.pop(trial_id)
        lines.append((slot, trial_id, since_s, now_s))
        waiting.extend(tuning.ended(trial_id, 0, outcome, now_s=now_s))
        waiting.extend(tuning.free(trial_id, 0, now_s=now_s))

    while True:
        while waiting:
            order = waiting.pop(0)
            order_number += 1
            if isinstance(order, Start):
                slots[order.trial_id] = order.slot, now_s
                waiting.extend(tuning.ready(order.trial_id, 0, now_s=now_s))
                heapq.heappush(events, (now_s + durations_s[order.trial_id], order_number, "done", order.trial_id))
            elif isinstance(order, Terminate):
                end(order.trial_id, STOPPED)
            elif isinstance(order, Finish):
                return lines, now_s
        tick_s = tuning.next_tick_s
        if tick_s is not None and tick_s < events[0][0]:
            now_s = tick_s
            waiting.extend(tuning.tick(now_s))
            continue
        now_s, _, _, trial_id = heapq.heappop(events)
        if trial_id in slots:
            waiting.extend(tuning.report(trial_id, 0, {"loss": 1.0}, now_s=now_s))
            end(trial_id, DONE)


# Schedules


def test_asynchronous_search_starts_a_trial_the_moment_a_worker_is_free() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_num_trials_started=5))
    lines, finished_s = play(tuning, [4, 1, 2, 2, 3])
    assert sorted(lines) == [(0, 0, 0, 4), (0, 4, 4, 7), (1, 1, 0, 1), (1, 2, 1, 3), (1, 3, 3, 5)]
    assert finished_s == 7


def test_synchronous_search_waits_for_the_whole_batch() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_num_trials_started=5), asynchronous=False)
    lines, finished_s = play(tuning, [4, 1, 2, 2, 3])
    assert sorted(lines) == [(0, 0, 0, 4), (0, 2, 4, 6), (0, 4, 6, 9), (1, 1, 0, 1), (1, 3, 4, 6)]
    assert finished_s == 9


def test_the_books_search_starts_twelve_trials_and_completes_ten() -> None:
    durations_s = [108.0, 140.0, 190.0, 95.0, 150.0, 120.0, 130.0, 110.0, 135.0, 145.0, 120.0, 125.0]
    tuning = tuning_of(criterion=StoppingCriterion(max_wallclock_time=720))
    _, finished_s = play(tuning, durations_s)
    counts = tuning.counts
    assert finished_s == 720
    assert (counts.num_trials_started, counts.num_trials_completed, counts.num_trials_stopped) == (12, 10, 2)


def test_k_workers_do_k_times_as_many_trials() -> None:
    for n_workers in (1, 2, 4, 8):
        tuning = tuning_of(criterion=StoppingCriterion(max_wallclock_time=100), n_workers=n_workers)
        play(tuning, [7.0] * 200)
        assert tuning.counts.num_trials_completed == 14 * n_workers


def test_the_smallest_free_slot_is_taken_first_and_stays_busy_until_it_is_free() -> None:
    tuning = tuning_of(n_workers=3)
    assert tuning.begin(0) == [start(0, 0), start(1, 1), start(2, 2)]
    tuning.report(1, 0, {"loss": 1}, now_s=1)
    assert tuning.ended(1, 0, DONE, now_s=2) == [Judged(1, 0, Status.COMPLETED)]
    assert tuning.free(1, 0, now_s=3) == [start(3, 1)]


def test_random_search_runs_the_first_point_first() -> None:
    scheduler = RandomSearch(metric="loss", points_to_evaluate=[{"x": 5}])
    scheduler.begin(SPACE, 0)
    orders = tuning_of(scheduler=scheduler).begin()
    assert orders[0] == Start(0, 0, {"x": 5}, 0)
    assert len(orders) == 2


# Limits


def test_after_the_last_start_the_running_trials_finish() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_num_trials_started=2))
    reason = "max_num_trials_started=2 reached"
    assert tuning.begin(0) == [start(0, 0), start(1, 1), StopStarting(reason)]
    assert tuning.report(0, 0, {"loss": 1}, now_s=1) == [Answer(0, CONTINUE, 1)]
    assert tuning.run(0, 1.0) == [Judged(0, 0, Status.COMPLETED)]
    assert tuning.run(1, 1.0)[-1] == Finish(reason)
    assert tuning.tuning.is_finished


def test_the_wallclock_stops_the_running_trials_at_the_tick_it_asked_for() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_wallclock_time=0.7), n_workers=1)
    tuning.begin(0.1)
    tick_s = tuning.next_tick_s
    assert tick_s == 0.7, "times count from the beginning of the search"
    reason = "max_wallclock_time=0.7 s is over"
    assert tuning.tick(tick_s) == [StopStarting(reason), Terminate(0, reason)]
    assert tuning.run(0, outcome=STOPPED) == [
        Judged(0, 0, Status.STOPPED),
        Finish(reason),
    ]


def test_the_report_that_reaches_a_limit_is_answered_stop_and_the_others_are_terminated() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_num_evaluations=2))
    tuning.begin(0)
    assert tuning.report(0, 0, {"loss": 1}, now_s=1) == [Answer(0, CONTINUE, 1)]
    reason = "max_num_evaluations=2 reached"
    assert tuning.report(1, 0, {"loss": 1}, now_s=1) == [
        Answer(1, STOP, 1),
        StopStarting(reason),
        Terminate(0, reason),
    ]
    assert tuning.report(0, 0, {"loss": 0}, now_s=1) == [Answer(0, STOP, late=True)]
    assert tuning.counts.num_evaluations == 2


def test_a_report_after_the_wallclock_is_answered_stop_before_any_tick() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_wallclock_time=10), n_workers=1)
    tuning.begin(0)
    reason = "max_wallclock_time=10 s is over"
    assert tuning.report(0, 0, {"loss": 1}, now_s=11) == [Answer(0, STOP, 1), StopStarting(reason)]


def test_no_trial_starts_in_a_slot_that_becomes_free_after_the_wallclock() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_wallclock_time=10), n_workers=1)
    tuning.begin(0)
    tuning.report(0, 0, 1.0)
    tuning.ended(0, 0, now_s=1)
    reason = "max_wallclock_time=10 s is over"
    assert tuning.free(0, 0, now_s=11) == [StopStarting(reason), Finish(reason)]


def test_a_limit_reached_while_the_last_trials_finish_stops_them() -> None:
    criterion = StoppingCriterion(max_num_trials_started=2, min_metric_value=0.1)
    tuning = tuning_of(criterion=criterion)
    tuning.begin(0)
    reason = "loss 0.05 is at or below min_metric_value=0.1"
    assert tuning.report(0, 0, {"loss": 0.05}, now_s=0) == [Answer(0, STOP, 1), Terminate(1, reason)]
    tuning.run(0)
    assert tuning.run(1)[-1] == Finish(reason)


def test_an_exhausted_searcher_ends_the_search_when_nothing_runs() -> None:
    tuning = tuning_of(Scripted(3))
    tuning.begin(0)
    assert tuning.run(0, 1.0)[-1] == start(2, 0)
    assert tuning.run(2, 1.0) == [Judged(2, 0, Status.COMPLETED)]
    end = [StopStarting("searcher exhausted"), Finish("searcher exhausted")]
    assert tuning.run(1, 1.0)[1:] == end
    empty = tuning_of(Scripted(0))
    assert empty.begin(0) == end


def test_a_searcher_that_had_nothing_is_asked_again_when_something_was_reported_or_a_slot_is_free() -> None:
    searcher = Scripted(2)
    tuning = tuning_of(searcher, n_workers=4)
    assert tuning.begin(0) == [start(0, 0), start(1, 1)]
    assert tuning.tick(1) == tuning.ready(0, 0) == []
    searcher.left = 3
    assert tuning.report(0, 0, 1.0) == [Answer(0, CONTINUE, 1), start(2, 2)]
    searcher.left = 5
    assert tuning.run(1, outcome=STOPPED)[1:] == [start(3, 1), start(4, 3)]


# Stopped trials


def test_a_trial_that_the_scheduler_stops_has_its_grace_and_is_then_killed() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler, n_workers=1)
    tuning.begin(0)
    assert tuning.report(0, 0, {"loss": 1}, now_s=1) == [Answer(0, CONTINUE, 1)]
    assert tuning.report(0, 0, {"loss": 1, "answer": STOP}, now_s=2) == [Answer(0, STOP, 2)]
    assert tuning.next_tick_s == 7
    assert tuning.tick(6.9) == []
    why = "still running 5 s after it was told to stop (stop_grace_s)"
    assert tuning.tick(7) == [Kill(0, why)]
    assert tuning.next_tick_s is None
    assert tuning.ended(0, 0, CRASH, now_s=8) == [Judged(0, 0, Status.STOPPED)]
    assert scheduler.heard == [("report", 0, 1, 1.0), ("report", 0, 2, 1.0), ("end", 0, Status.STOPPED)]


@pytest.mark.parametrize("kind", ["returned", "stopped", "signal", "exit", "lost"])
def test_a_trial_told_to_stop_is_stopped_however_it_goes(kind: str) -> None:
    tuning = tuning_of(scheduler=Told(), n_workers=1, retries=3)
    tuning.begin(0)
    tuning.report(0, 0, {"loss": 1, "answer": STOP}, now_s=2)
    outcome = Outcome(kind)  # type: ignore[arg-type]
    assert tuning.ended(0, 0, outcome, now_s=3) == [Judged(0, 0, Status.STOPPED)]


@pytest.mark.parametrize("kind", ["exception", "out-of-memory"])
def test_a_trial_told_to_stop_that_breaks_on_the_way_failed_and_is_not_retried(kind: str) -> None:
    tuning = tuning_of(scheduler=Told(), n_workers=1, retries=3)
    tuning.begin(0)
    tuning.report(0, 0, {"loss": 1, "answer": STOP}, now_s=2)
    outcome = Outcome(kind, "no")  # type: ignore[arg-type]
    reason = Reason(kind, "no")  # type: ignore[arg-type]
    assert tuning.ended(0, 0, outcome, now_s=3) == [Judged(0, 0, Status.FAILED, reason)]


def test_a_trial_that_raises_trial_stopped_of_itself_is_stopped() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin(0)
    assert tuning.run(0, outcome=STOPPED)[0] == Judged(0, 0, Status.STOPPED)


# Time-outs


def test_a_trial_that_takes_too_long_is_terminated_killed_and_failed() -> None:
    tuning = tuning_of(n_workers=1, trial_timeout_s=30, stop_grace_s=2, retries=5)
    tuning.begin(0)
    assert tuning.next_tick_s is None, "the time-out counts from on_ready"
    tuning.ready(0, 0, now_s=10)
    tuning.ready(0, 0, now_s=20)
    assert tuning.next_tick_s == 40
    why = "still running 30 s after it began (trial_timeout_s)"
    assert tuning.tick(40) == [Terminate(0, why)]
    assert tuning.next_tick_s == 42
    assert tuning.tick(42) == [Kill(0, "still running 2 s after it was told to stop (stop_grace_s)")]
    reason = Reason("time-out", why, last_output="boom")
    assert tuning.ended(0, 0, CRASH, now_s=43) == [Judged(0, 0, Status.FAILED, reason)]
    assert tuning.free(0, 0, now_s=44) == [start(1, 0)]


def test_a_trial_that_ends_in_its_grace_after_a_time_out_failed_all_the_same() -> None:
    tuning = tuning_of(n_workers=1, trial_timeout_s=30)
    tuning.begin(0)
    tuning.ready(0, 0, now_s=0)
    tuning.report(0, 0, {"loss": 1}, now_s=1)
    tuning.tick(31)
    (ended,) = tuning.ended(0, 0, DONE, now_s=32)
    assert isinstance(ended, Judged)
    assert ended.reason is not None
    assert (ended.status, ended.reason.kind) == (Status.FAILED, "time-out")


# Retries


def test_a_crashed_trial_starts_again_in_the_turn_its_slot_becomes_free() -> None:
    tuning = tuning_of(n_workers=2, retries=1)
    tuning.begin(0)
    reason = Reason("signal", "ended by SIGSEGV", last_output="boom")
    assert tuning.ended(0, 0, CRASH, now_s=1) == [Judged(0, 0, Status.FAILED, reason, will_retry=True)]
    assert tuning.free(0, 0, now_s=2) == [start(0, 0, attempt=1)]
    assert tuning.ended(0, 1, CRASH, now_s=3) == [Judged(0, 1, Status.FAILED, reason)]
    assert tuning.free(0, 1, now_s=4) == [start(2, 0)]
    assert (tuning.counts.num_trials_started, tuning.counts.num_trials_failed) == (3, 1)


@pytest.mark.parametrize("kind", ["exception", "exit", "signal", "out-of-memory", "lost"])
def test_every_kind_of_crash_is_retried(kind: str) -> None:
    tuning = tuning_of(n_workers=1, retries=1)
    tuning.begin(0)
    outcome = Outcome(kind)  # type: ignore[arg-type]
    assert tuning.run(0, outcome=outcome)[-1] == start(0, 0, attempt=1)


def test_a_missing_report_and_a_nan_are_not_retried() -> None:
    tuning = tuning_of(n_workers=1, retries=5)
    tuning.begin(0)
    text = "the objective ended without reporting 'loss', and returned nothing"
    failed = Judged(0, 0, Status.FAILED, Reason("no-report", text), will_retry=False)
    assert tuning.run(0) == [failed, start(1, 0)]
    failed = Judged(1, 0, Status.FAILED, Reason("nan", "the objective reported loss=nan"), will_retry=False)
    assert tuning.run(1, math.nan) == [failed, start(2, 0)]


def test_a_second_attempt_must_report_too() -> None:
    tuning = tuning_of(n_workers=1, retries=1)
    tuning.begin(0)
    tuning.run(0, 1.0, outcome=CRASH)
    ended = tuning.run(0, attempt=1)[0]
    assert isinstance(ended, Judged)
    assert ended.reason is not None
    assert ended.reason.kind == "no-report"


def test_a_retry_goes_before_the_next_batch() -> None:
    tuning = tuning_of(n_workers=2, asynchronous=False, retries=1)
    tuning.begin(0)
    assert tuning.run(0, outcome=CRASH)[-1] == start(0, 0, attempt=1)
    assert tuning.run(1, 1.0)[1:] == []
    assert tuning.run(0, 1.0, attempt=1)[1:] == [start(2, 0), start(3, 1)]


def test_a_retry_is_kept_after_the_last_start_and_waits_when_the_search_is_stopped() -> None:
    scheduler = Told()
    criterion = StoppingCriterion(max_num_trials_started=1)
    tuning = tuning_of(scheduler=scheduler, criterion=criterion, n_workers=1, retries=2)
    tuning.begin(0)
    assert tuning.run(0, outcome=CRASH)[-1] == start(0, 0, attempt=1)
    tuning.ended(0, 1, CRASH, now_s=1)
    assert tuning.interrupt(1) == []
    assert scheduler.heard == []
    assert tuning.free(0, 1, now_s=1) == [Finish("interrupted")]
    assert scheduler.heard == [], "it is not over: a resumed search goes on with it"
    assert tuning.counts.num_trials_failed == 0
    assert tuning.hand(facts.Resumed(2))[-1] == start(0, 0, attempt=2)


# Reports


def test_nan_fails_the_trial_whatever_follows() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin(0)
    assert tuning.report(0, 0, {"loss": math.nan}, now_s=1) == [Answer(0, STOP, 1)]
    assert tuning.next_tick_s == 6
    (ended,) = tuning.ended(0, 0, Outcome("exception", "x", "tb", "out"), now_s=2)
    reason = Reason("nan", "the objective reported loss=nan", "tb", "out")
    assert ended == Judged(0, 0, Status.FAILED, reason)
    assert tuning.best is None
    assert tuning.counts.num_evaluations == 1


def test_a_metric_that_nobody_ever_reported_ends_the_search() -> None:
    tuning = tuning_of()
    tuning.begin(0)
    text = "report() gave 'epoch', 'losss', but not the scheduler's metric 'loss'; did you mean 'losss'?"
    reason = "the metric was not reported"
    assert tuning.report(0, 0, {"epoch": 1, "losss": 2}, now_s=0) == [
        Reject(0, text),
        StopStarting(reason),
        Terminate(1, reason),
    ]
    ended = tuning.run(0, outcome=Outcome("exception", f"ValueError: {text}"))[0]
    assert isinstance(ended, Judged)
    assert ended.status is Status.FAILED
    assert tuning.run(1, outcome=STOPPED)[-1] == Finish(reason, text, kind="no-metric")


def test_a_report_without_the_metric_is_refused_when_others_have_it() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin(0)
    tuning.report(0, 0, {"loss": 1}, now_s=0)
    hint = "report it under this name, or give the scheduler another one"
    for values, names in (({"epoch": 2}, "'epoch'"), ({}, "nothing")):
        text = f"report() gave {names}, but not the scheduler's metric 'loss'; {hint}"
        assert tuning.report(0, 0, values, now_s=0) == [Reject(0, text)]
    assert tuning.report(0, 0, {"loss": 0.5}, now_s=0) == [Answer(0, CONTINUE, 2)]
    assert tuning.counts.num_evaluations == 2


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5]])
def test_a_metric_that_is_no_number_is_refused(value: object) -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin(0)
    text = f"the metric 'loss' must be a number, got {value!r} of type {type(value).__name__}"
    assert tuning.report(0, 0, {"loss": value}, now_s=0) == [Reject(0, text)]


@pytest.mark.parametrize(("mode", "value", "trial_id"), [("min", 0.25, 1), ("max", 0.75, 0)])
def test_the_best_report_is_kept_with_its_configuration(mode: Mode, value: float, trial_id: int) -> None:
    tuning = tuning_of(mode=mode)
    tuning.begin(0)
    for trial, loss in ((0, 0.5), (1, 0.25), (0, 0.75), (1, 0.75), (0, 0.25)):
        tuning.report(trial, 0, {"loss": loss}, now_s=0)
    best = tuning.best
    assert best is not None
    assert (best.value, best.trial_id, best.config) == (value, trial_id, {"x": trial_id})


# Failures of the whole search


def test_the_search_fails_when_its_first_trials_fail_alike() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin(0)
    for trial_id in range(3):
        outcome = Outcome("exception", f"KeyError: 'x'\nin trial {trial_id}", "Traceback ...", "last words")
        orders = tuning.run(trial_id, outcome=outcome)
    reason = "the first 3 trials to finish all failed alike"
    assert orders[1] == StopStarting(reason)
    finish = orders[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == reason
    assert finish.error == (
        "the first 3 trials to finish all failed alike (exception): KeyError: 'x'\nin trial 2\nTraceback ...\n"
        "last output:\nlast words\nRepair the objective; or set max_equal_failures=None to go on whatever happens."
    )


@pytest.mark.parametrize(
    "second", [Outcome("exception", "other"), Outcome("exit", "same"), Outcome("returned"), STOPPED]
)
def test_the_search_goes_on_when_one_of_the_first_trials_ended_otherwise(second: Outcome) -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin(0)
    same = Outcome("exception", "same")
    for trial_id, outcome in enumerate([same, second, same, same, same, same]):
        assert tuning.run(trial_id, 1.0, outcome=outcome)[-1] == start(trial_id + 1, 0)


def test_a_search_that_may_fail_for_ever_goes_on() -> None:
    tuning = tuning_of(n_workers=1, max_equal_failures=None)
    tuning.begin(0)
    for trial_id in range(20):
        assert tuning.run(trial_id, outcome=CRASH)[-1] == start(trial_id + 1, 0)


def test_attempts_of_one_trial_count_as_one_failure() -> None:
    tuning = tuning_of(n_workers=1, max_equal_failures=2, retries=3)
    tuning.begin(0)
    for attempt in range(4):
        orders = tuning.run(0, outcome=CRASH, attempt=attempt)
    assert orders[-1] == start(1, 0)


def test_what_the_searcher_raises_while_suggesting_ends_the_search_in_order() -> None:
    searcher = Scripted()
    tuning = tuning_of(searcher)
    tuning.begin(0)
    searcher.error = ZeroDivisionError("oops")
    reason = "the searcher failed"
    assert tuning.run(0, 1.0)[1:] == [StopStarting(reason), Terminate(1, reason)]
    text = "the searcher Scripted raised ZeroDivisionError: oops"
    assert tuning.run(1, outcome=STOPPED)[-1] == Finish(reason, text, kind="searcher")


def test_what_the_searcher_raises_while_observing_ends_the_search_in_order() -> None:
    searcher = Scripted()
    tuning = tuning_of(searcher)
    tuning.begin(0)
    searcher.error_on_observe = KeyError("oops")
    reason = "the scheduler failed"
    assert tuning.report(1, 0, {"loss": 1.0}, now_s=0) == [
        Answer(1, STOP, 1),
        StopStarting(reason),
        Terminate(0, reason),
    ]
    tuning.run(0)
    finish = tuning.run(1)[-1]
    assert isinstance(finish, Finish)
    assert finish.cause is searcher.error_on_observe


def test_the_first_error_of_a_search_is_the_one_that_is_told() -> None:
    class BreaksAtEnds(Told):
        def on_end(self, trial_id: int, status: Status) -> None:
            raise OSError(f"end of trial {trial_id}")

    tuning = tuning_of(scheduler=BreaksAtEnds())
    tuning.begin(0)
    tuning.run(1, 1.0)
    finish = tuning.run(0, 1.0)[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.error) == ("the scheduler failed", "the scheduler raised OSError: end of trial 1")


# Ctrl-C


def test_the_first_interrupt_stops_gently_and_the_second_kills() -> None:
    tuning = tuning_of()
    tuning.begin(0)
    assert tuning.interrupt(1) == [
        StopStarting("interrupted"),
        Terminate(0, "interrupted"),
        Terminate(1, "interrupted"),
    ]
    assert tuning.run(0, outcome=STOPPED) == [Judged(0, 0, Status.STOPPED)]
    assert tuning.interrupt(2) == [Kill(1, "interrupted twice")]
    assert tuning.interrupt(3) == []
    assert tuning.run(1, outcome=CRASH)[-1] == Finish("interrupted")
    assert tuning.interrupt(4) == []


def test_an_interrupt_while_the_last_trials_finish_stops_them() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_num_trials_started=1), n_workers=1)
    tuning.begin(0)
    assert tuning.interrupt(1) == [Terminate(0, "interrupted")]
    assert tuning.run(0)[-1] == Finish("interrupted")


def test_an_interrupt_before_the_start_finishes_at_once() -> None:
    tuning = tuning_of()
    assert tuning.interrupt(0) == [StopStarting("interrupted"), Finish("interrupted")]
    assert tuning.begin(1) == []


# Late facts


def test_late_and_repeated_facts_change_nothing() -> None:
    tuning = tuning_of(n_workers=1, retries=1)
    tuning.begin(0)
    tuning.run(0, 1.0, outcome=CRASH)  # attempt 1 runs now
    for trial_id, attempt in ((0, 0), (0, 2), (7, 0), (-1, 0)):
        assert tuning.ready(trial_id, attempt, now_s=1) == []
        late = tuning.report(trial_id, attempt, {"loss": -5}, now_s=1)
        assert late == [Answer(trial_id, STOP, late=True)]
        assert tuning.ended(trial_id, attempt, DONE, now_s=1) == []
        assert tuning.free(trial_id, attempt, now_s=1) == []
    assert tuning.ended(0, 1, DONE, now_s=1) != []
    assert tuning.ended(0, 1, DONE, now_s=1) == []
    assert tuning.report(0, 1, {"loss": -5}, now_s=1) == [Answer(0, STOP, late=True)]
    assert tuning.free(0, 1, now_s=1) == [start(1, 0)]
    assert tuning.best is None  # 1.0 was of an attempt that was started again


def test_a_slot_that_becomes_free_without_an_end_means_a_lost_trial() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin(0)
    ended, next_start = tuning.free(0, 0, now_s=1)
    assert isinstance(ended, Judged)
    assert ended.reason == Reason("lost", "the worker was gone before it said how the trial ended")
    assert next_start == start(1, 0)


def test_a_report_may_overtake_the_news_that_its_trial_is_ready() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin(0)
    assert tuning.report(0, 0, {"loss": 1}, now_s=1) == [Answer(0, CONTINUE, 1)]


# Settings


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: tuning_of(n_workers=-1), ValueError, "n_workers must be at least 0, got -1"),
        (lambda: tuning_of(n_workers=2.0), TypeError, "n_workers must be an int"),  # type: ignore[arg-type]
        (lambda: tuning_of(retries=-1), ValueError, "retries must be at least 0, got -1"),
        (lambda: tuning_of(max_equal_failures=0), ValueError, "max_equal_failures must be at least 1"),
        (lambda: tuning_of(trial_timeout_s=0), ValueError, "trial_timeout_s must be above 0; None"),
        (lambda: tuning_of(trial_timeout_s=-1), ValueError, "trial_timeout_s must be finite"),
        (lambda: tuning_of(trial_timeout_s="1h"), TypeError, "must be seconds, got '1h'"),  # type: ignore[arg-type]
        (lambda: tuning_of(stop_grace_s=math.nan), ValueError, "stop_grace_s must be finite"),
    ],
)
def test_wrong_settings_are_refused_at_once(make: Callable[[], Search], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_without_grace_the_kill_is_due_at_once() -> None:
    tuning = tuning_of(n_workers=1, stop_grace_s=0)
    tuning.begin(0)
    tuning.interrupt(3)
    assert tuning.next_tick_s == 3
    (kill,) = tuning.tick(3)
    assert isinstance(kill, Kill)


# What a lost attempt reported


def test_what_a_retried_trial_had_reported_leaves_scheduler_searcher_and_best() -> None:
    searcher = Scripted()
    scheduler = Told(searcher=searcher)
    tuning = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    tuning.begin()
    assert tuning.report(0, 0, 0.001) == [Answer(0, CONTINUE, 1)]
    assert tuning.ended(0, 0, CRASH) == [Judged(0, 0, Status.FAILED, CRASHED, will_retry=True)]
    assert tuning.best is None
    assert tuning.free(0, 0) == [start(0, 0, attempt=1)]
    assert tuning.report(0, 1, 0.5) == [Answer(0, CONTINUE, 1)]
    assert tuning.best == Best(0.5, 0, {"x": 0}, 1)
    assert searcher.heard == [("observe", 0, 1, 0.001), ("rewind", 0, 0), ("observe", 0, 1, 0.5)]
    assert scheduler.heard == [("report", 0, 1, 0.001), ("rewind", 0, 0), ("report", 0, 1, 0.5)]
    assert tuning.counts.num_evaluations == 2


def test_a_crashed_trial_goes_on_from_its_last_checkpoint_and_only_later_reports_are_void() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    tuning.begin()
    tuning.report(0, 0, 0.3)
    tuning.report(0, 0, 0.4, checkpoint="a")
    tuning.report(0, 0, 0.2)
    tuning.ended(0, 0, CRASH)
    assert tuning.best == Best(0.3, 0, {"x": 0}, 1)
    assert tuning.free(0, 0) == [start(0, 0, attempt=1, from_iter=2, checkpoint="a")]
    assert tuning.report(0, 1, 0.25) == [Answer(0, CONTINUE, 3)]
    assert scheduler.heard[-2:] == [("rewind", 0, 2), ("report", 0, 3, 0.25)]


def test_nothing_is_void_when_the_checkpoint_came_with_the_last_report() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    tuning.begin()
    tuning.report(0, 0, 0.3, checkpoint="a")
    tuning.run(0, outcome=CRASH)
    assert scheduler.heard == [("report", 0, 1, 0.3)]
    assert tuning.best == Best(0.3, 0, {"x": 0}, 1)


def test_a_checkpoint_on_the_way_there_again_does_not_keep_what_was_reported_beyond_it() -> None:
    scheduler = Told(New({"x": 0}), Resume(0))
    tuning = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    tuning.begin()
    tuning.report(0, 0, 0.5)
    assert tuning.pause(0, 0.1)[-1] == start(0, 0, attempt=1)
    assert tuning.report(0, 1, 0.5, checkpoint="a") == [Answer(0, CONTINUE, 1, repeated=True)]
    assert tuning.best == Best(0.1, 0, {"x": 0}, 2)
    tuning.ended(0, 1, CRASH)
    assert scheduler.heard[-1] == ("rewind", 0, 1)
    assert tuning.best is None or tuning.best.value > 0.1


# Pause and go on


def test_a_paused_trial_gives_its_slot_back_and_goes_on_from_its_checkpoint() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Resume(0))
    tuning = tuning_of(scheduler=scheduler, n_workers=1)
    tuning.begin()
    orders = tuning.report(0, 0, {"loss": 1.0, "answer": PAUSE}, checkpoint="a", now_s=1)
    assert orders == [Answer(0, PAUSE, 1)]
    assert tuning.next_tick_s == 6
    assert tuning.ended(0, 0, STOPPED, now_s=2) == [Judged(0, 0, Status.PAUSED)]
    assert tuning.free(0, 0, now_s=2) == [start(1, 0)]
    assert tuning.run(1, 1.0)[-1] == start(0, 0, attempt=1, from_iter=1, checkpoint="a")
    assert tuning.report(0, 1, 0.5) == [Answer(0, CONTINUE, 2)]
    assert tuning.counts.num_trials_finished == 1


def test_what_a_trial_repeats_on_the_way_there_is_answered_and_not_told_again() -> None:
    searcher = Scripted()
    scheduler = Told(New({"x": 0}), Resume(0), searcher=searcher)
    tuning = tuning_of(scheduler=scheduler, n_workers=1)
    tuning.begin()
    tuning.report(0, 0, 3.0, checkpoint="a")
    tuning.report(0, 0, 2.0)
    assert tuning.pause(0, 1.0)[-1] == start(0, 0, attempt=1, from_iter=1, checkpoint="a")
    assert tuning.report(0, 1, 2.0) == [Answer(0, CONTINUE, 2, repeated=True)]
    assert tuning.report(0, 1, {"loss": 1.0, "answer": STOP}) == [Answer(0, CONTINUE, 3, repeated=True)]
    assert tuning.report(0, 1, 0.5) == [Answer(0, CONTINUE, 4)]
    told = [(0, 1, 3.0), (0, 2, 2.0), (0, 3, 1.0), (0, 4, 0.5)]
    assert scheduler.heard == [("report", *report) for report in told]
    assert searcher.heard == [("observe", *report) for report in told]
    assert tuning.counts.num_evaluations == 4


def test_a_trial_that_is_to_go_on_while_its_process_winds_down_keeps_a_slot_waiting() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Resume(0), New({"x": 2}))
    tuning = tuning_of(scheduler=scheduler)
    tuning.begin()
    tuning.report(0, 0, {"loss": 1.0, "answer": PAUSE}, checkpoint="a")
    assert tuning.run(1, 1.0) == [Judged(1, 0, Status.COMPLETED)], "slot 1 waits for trial 0"
    assert tuning.ended(0, 0, STOPPED) == [Judged(0, 0, Status.PAUSED)]
    assert tuning.free(0, 0) == [start(0, 0, attempt=1, from_iter=1, checkpoint="a"), start(2, 1)]


def test_a_trial_that_breaks_while_it_pauses_has_failed_and_its_waiting_slot_is_free() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Resume(0))
    tuning = tuning_of(scheduler=scheduler, retries=3)
    tuning.begin()
    tuning.report(0, 0, {"loss": 1.0, "answer": PAUSE})
    tuning.run(1, 1.0)
    reason = Reason("exception", "no")
    assert tuning.ended(0, 0, Outcome("exception", "no")) == [Judged(0, 0, Status.FAILED, reason)]
    assert tuning.free(0, 0) == [start(2, 0), start(3, 1)]
    assert scheduler.heard[-1] == ("end", 0, Status.FAILED)


def test_a_paused_trial_that_the_scheduler_gives_up_is_over_and_its_checkpoint_goes() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Stop(0))
    tuning = tuning_of(scheduler=scheduler, n_workers=1)
    tuning.begin()
    tuning.run(1)
    tuning.pause(0, 1.0, checkpoint="a")
    assert tuning.run(1, 0.5) == [
        Judged(1, 0, Status.COMPLETED),
        Judged(0, 0, Status.STOPPED),
        Discard(0, "a"),
        start(2, 0),
    ]
    assert scheduler.heard[-1] == ("end", 0, Status.STOPPED)


def test_a_trial_that_is_given_up_while_it_pauses_is_over_when_its_slot_is_free() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Stop(0))
    tuning = tuning_of(scheduler=scheduler)
    tuning.begin()
    tuning.report(0, 0, {"loss": 1.0, "answer": PAUSE})
    assert tuning.run(1, 1.0) == [Judged(1, 0, Status.COMPLETED), start(2, 1)]
    assert tuning.ended(0, 0, STOPPED) == [Judged(0, 0, Status.PAUSED)]
    assert tuning.free(0, 0) == [Judged(0, 0, Status.STOPPED), start(3, 0)]


# Clones


def test_a_clone_starts_from_the_last_checkpoint_of_its_source_and_counts_on() -> None:
    scheduler = Told(New({"x": 0}), Clone(0, {"x": 7}), clones=True)
    tuning = tuning_of(scheduler=scheduler, n_workers=1)
    tuning.begin()
    tuning.report(0, 0, 0.5, checkpoint="a")
    assert tuning.run(0, 0.25)[-1] == Start(1, 0, {"x": 7}, 0, 1, "a", source=0)
    assert tuning.report(1, 0, 0.4) == [Answer(1, CONTINUE, 2)]
    assert scheduler.heard[-1] == ("report", 1, 2, 0.4)


def test_a_clone_of_a_trial_that_has_just_ended_starts_from_its_checkpoint_too() -> None:
    scheduler = Told(New({"x": 0}), Wait(), clones=True)
    tuning = tuning_of(scheduler=scheduler)
    tuning.begin()
    scheduler.plan = [Wait()]
    tuning.report(0, 0, 0.5, checkpoint="a")
    tuning.ended(0, 0)
    scheduler.plan = [Clone(0, {"x": 7})]
    assert tuning.hand(facts.Settings(0, n_workers=2)) == [Start(1, 0, {"x": 7}, 1, 1, "a", source=0)]


def test_a_clone_of_a_trial_without_checkpoint_starts_from_scratch() -> None:
    scheduler = Told(New({"x": 0}), Clone(0, {"x": 7}))
    tuning = tuning_of(scheduler=scheduler)
    assert tuning.begin() == [start(0, 0), Start(1, 0, {"x": 7}, 1, source=0)]
    assert tuning.report(1, 0, 0.4) == [Answer(1, CONTINUE, 1)]


def test_a_clone_that_crashes_begins_again_where_it_began() -> None:
    scheduler = Told(New({"x": 0}), Clone(0, {"x": 7}), clones=True)
    tuning = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    tuning.begin()
    tuning.report(0, 0, 0.5, checkpoint="a")
    tuning.run(0)
    tuning.report(1, 0, 0.1)
    orders = tuning.run(1, outcome=CRASH)
    assert orders[-1] == Start(1, 1, {"x": 7}, 0, 1, "a")
    assert scheduler.heard[-1] == ("rewind", 1, 1)
    assert tuning.best == Best(0.5, 0, {"x": 0}, 1)


# Checkpoints that nobody needs


def test_a_checkpoint_is_discarded_when_the_next_one_is_there() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin()
    assert tuning.report(0, 0, 0.5, checkpoint="a") == [Answer(0, CONTINUE, 1)]
    assert tuning.report(0, 0, 0.5, checkpoint="b") == [Answer(0, CONTINUE, 2), Discard(0, "a")]
    assert tuning.tuning.checkpoints == {"b"}


def test_of_the_finished_trials_only_the_best_keeps_its_checkpoint() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin()
    tuning.report(0, 0, 0.5, checkpoint="a")
    tuning.run(0)
    tuning.report(1, 0, 0.6, checkpoint="b")
    assert tuning.run(1)[:2] == [Judged(1, 0, Status.COMPLETED), Discard(1, "b")]
    tuning.report(2, 0, 0.4, checkpoint="c")
    assert tuning.run(2)[:2] == [Judged(2, 0, Status.COMPLETED), Discard(2, "a")]
    assert tuning.tuning.checkpoints == {"c"}


def test_a_checkpoint_stays_as_long_as_a_clone_may_begin_there_again() -> None:
    scheduler = Told(New({"x": 0}), Clone(0, {"x": 7}))
    tuning = tuning_of(scheduler=scheduler, n_workers=2, retries=1)
    tuning.begin()
    scheduler.plan = [Clone(0, {"x": 7})]
    tuning.report(0, 0, 0.5, checkpoint="a")
    tuning.run(1)
    assert tuning.report(0, 0, 0.5, checkpoint="b") == [Answer(0, CONTINUE, 2)]
    assert tuning.tuning.checkpoints == {"a", "b"}
    assert tuning.report(2, 0, 0.5, checkpoint="c") == [Answer(2, CONTINUE, 2), Discard(2, "a")]


@pytest.mark.parametrize("keep", [True, False])
def test_checkpoints_of_finished_trials_are_kept_on_demand_and_for_clones(keep: bool) -> None:
    tuning = tuning_of(scheduler=Told(clones=not keep), n_workers=1, keep_checkpoints=keep)
    tuning.begin()
    for trial_id, name in enumerate("abc"):
        tuning.report(trial_id, 0, 0.5 + trial_id, checkpoint=name)
        tuning.run(trial_id)
    assert tuning.tuning.checkpoints == {"a", "b", "c"}


def test_the_checkpoint_of_a_report_that_does_not_count_is_discarded() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin()
    tuning.report(0, 0, 0.5)
    rejected, discard = tuning.report(0, 0, {"loss": None}, checkpoint="a")
    assert isinstance(rejected, Reject)
    assert discard == Discard(0, "a")
    tuning.interrupt()
    assert tuning.report(0, 0, 0.1, checkpoint="b") == [Answer(0, STOP, late=True), Discard(0, "b")]
    assert tuning.tuning.checkpoints == frozenset()


# Wrong answers


def test_the_text_of_a_decision_is_taken_for_it() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler)
    tuning.begin()
    (answer,) = tuning.report(0, 0, {"loss": 1.0, "answer": "CONTINUE"})
    assert isinstance(answer, Answer)
    assert answer.decision is CONTINUE
    (answer,) = tuning.report(0, 0, {"loss": 1.0, "answer": "STOP"})
    assert isinstance(answer, Answer)
    assert answer.decision is STOP
    assert tuning.next_tick_s == 5.0, "told to stop, it has its grace"
    tuning.run(0, outcome=STOPPED)
    assert scheduler.heard[-1] == ("end", 0, "Stopped")


@pytest.mark.parametrize(
    ("answer", "shown"),
    [("stop", "'stop'"), (None, "None"), (True, "True"), ("Decision.STOP", "'Decision.STOP'"), (["STOP"], "['STOP']")],
)
def test_a_wrong_decision_ends_the_search_and_names_the_right_ones(answer: object, shown: str) -> None:
    tuning = tuning_of(scheduler=Told())
    tuning.begin()
    reason = "the scheduler failed"
    orders = tuning.report(0, 0, {"loss": 1.0, "answer": answer})
    assert orders == [Answer(0, STOP, 1), StopStarting(reason), Terminate(1, reason)]
    tuning.run(0, outcome=STOPPED)
    finish = tuning.run(1, outcome=STOPPED)[-1]
    assert isinstance(finish, Finish)
    assert finish.error == (
        "the scheduler raised TypeError: Told.on_report() for trial 0 must return one of "
        f"Decision.CONTINUE, Decision.STOP, Decision.PAUSE, got {shown}"
    )
    assert isinstance(finish.cause, TypeError)
    assert finish.kind == "scheduler"


NO_ANSWER = "must return New(...), Resume(trial_id), Clone(trial_id, config), Stop(trial_id), Wait() or Done(), got"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, f"TypeError: Told.next() {NO_ANSWER} None"),
        ({"x": 3}, f"TypeError: Told.next() {NO_ANSWER} {{'x': 3}}"),
        (Resume(0), "ValueError: Told.next() returned Resume(trial_id=0), but that trial is not paused; paused are: 1"),
        (Stop(9), "ValueError: Told.next() returned Stop(trial_id=9), but that trial is not paused; paused are: 1"),
        (
            Clone(3, {"x": 1}),
            "ValueError: Told.next() returned Clone(trial_id=3, config={'x': 1}), but there is no such trial: "
            "2 trials have started, from 0 on",
        ),
        (
            New(),
            "ValueError: Told.next() returned New() without a configuration, but it has no searcher to ask for one",
        ),
        (
            New({"x": -1}),
            "ValueError: the configuration of Told.next() for trial 2 gave {'x': -1}: ",
        ),
        (
            New({"y": 1}),
            "ValueError: the configuration of Told.next() for trial 2 gave {'y': 1}: ",
        ),
        (
            Clone(0, None),  # type: ignore[arg-type]
            "TypeError: the configuration of Told.next() for trial 2 must be a dict of hyperparameters, got None",
        ),
    ],
)
def test_a_wrong_answer_ends_the_search_and_says_what_is_allowed(answer: Any, error: str) -> None:  # Any: wrong
    tuning = tuning_of(scheduler=Told(New({"x": 0}), New({"x": 1}), answer))
    tuning.begin()
    orders = tuning.pause(1)
    assert [type(order) for order in orders] == [Judged, StopStarting, Terminate]
    finish = tuning.run(0, outcome=STOPPED)[-1]
    assert isinstance(finish, Finish)
    assert finish.error is not None
    assert finish.error.startswith(f"the scheduler raised {error}")
    assert finish.kind == "scheduler"


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"x": 0.5}, "Scripted.suggest() for trial 0 gave {'x': 0.5}: "),
        ({}, "Scripted.suggest() for trial 0 gave {}: "),
        (17, "Scripted.suggest() for trial 0 must be a dict of hyperparameters, got 17"),
    ],
)
def test_a_wrong_suggestion_ends_the_search_and_says_what_is_wrong(config: Any, error: str) -> None:  # Any: wrong
    tuning = tuning_of(n_workers=1)
    (suggest,) = tuning.tuning.handle(facts.Begin(0))
    assert isinstance(suggest, Suggest)
    stop, finish = tuning.hand(facts.Suggested(0, suggest.number, config))
    assert stop == StopStarting("the searcher failed")
    assert isinstance(finish, Finish)
    assert finish.error is not None
    assert finish.error.startswith(error)
    assert finish.kind == "searcher"


# A searcher that thinks


def asked(orders: list[Order]) -> list[int]:
    return [order.number for order in orders if isinstance(order, Suggest)]


def suggested(number: int, x: int | None, now_s: float = 0.0, error: str | None = None) -> facts.Suggested:
    return facts.Suggested(now_s, number, None if x is None else {"x": x}, error=error)


def test_a_searcher_that_thinks_is_asked_ahead_and_nothing_waits_for_it_but_the_free_slot() -> None:
    tuning = tuning_of(Thinks(), n_workers=1)
    (suggest,) = tuning.begin()
    assert isinstance(suggest, Suggest)
    assert (suggest.number, suggest.ask.trial_id, suggest.ask.budget_s) == (0, 0, 2.0)
    assert tuning.next_tick_s == 2
    start_0, ahead = tuning.hand(suggested(0, 0, 1))
    assert start_0 == start(0, 0)
    assert asked([ahead]) == [1]
    assert tuning.next_tick_s is None, "no slot waits"
    assert tuning.report(0, 0, 1.0, now_s=9) == [Answer(0, CONTINUE, 1)]
    assert tuning.hand(suggested(1, 1, 10)) == []
    assert tuning.ended(0, 0, now_s=11) == [Judged(0, 0, Status.COMPLETED)]
    start_1, ahead = tuning.free(0, 0, now_s=11)
    assert start_1 == start(1, 0)
    assert asked([ahead]) == [2]


def test_when_the_budget_is_over_a_random_configuration_is_used_and_the_late_answer_is_ignored() -> None:
    tuning = tuning_of(Thinks(), n_workers=1)
    tuning.begin()
    assert tuning.tick(1.9) == []
    start_0, ahead = tuning.tick(2)
    assert isinstance(start_0, Start)
    assert start_0.fallback
    assert start_0.config == SPACE.check(start_0.config)
    assert asked([ahead]) == [1]
    assert tuning.hand(suggested(0, 5, 3)) == []
    assert tuning.hand(suggested(0, 5, 3, error="too late to matter")) == []
    other = tuning_of(Thinks(), n_workers=1)
    other.begin()
    assert other.tick(2)[0] == start_0, "the same seed draws the same"


def test_reports_in_the_meantime_do_not_put_the_fallback_off() -> None:
    tuning = tuning_of(Thinks(), n_workers=2)
    tuning.begin()
    tuning.hand(suggested(0, 0))
    assert tuning.next_tick_s == 2
    for now_s in (0.5, 1.0, 1.5):
        assert tuning.report(0, 0, 1.0, now_s=now_s)[0] == Answer(0, CONTINUE, int(2 * now_s))
    assert tuning.next_tick_s == 2
    start_1 = tuning.tick(2)[0]
    assert isinstance(start_1, Start)
    assert (start_1.trial_id, start_1.fallback) == (1, True)


def test_a_searcher_that_fails_after_the_end_changes_nothing() -> None:
    tuning = tuning_of(Thinks(), StoppingCriterion(max_num_evaluations=1), n_workers=1)
    tuning.begin()
    tuning.hand(suggested(0, 0))
    tuning.report(0, 0, 1.0)
    reason = "max_num_evaluations=1 reached"
    assert tuning.run(0)[-1] == Finish(reason)
    assert tuning.hand(suggested(1, None, 1, "oops")) == []
    assert tuning.tuning.is_finished


# Killed, and on again


def resumed(tuning: Search, now_s: float = 0.0) -> list[Order]:
    return tuning.hand(facts.Resumed(now_s))


def test_after_a_kill_what_ran_runs_first_from_its_checkpoints_in_order() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler, n_workers=3)
    tuning.begin()
    tuning.report(0, 0, 0.5)
    tuning.report(2, 0, 0.4, checkpoint="c")
    tuning.report(2, 0, 0.3)
    assert resumed(tuning) == [
        start(0, 0, attempt=1),
        start(1, 1, attempt=1),
        start(2, 2, attempt=1, from_iter=1, checkpoint="c"),
    ]
    assert scheduler.heard[-2:] == [("rewind", 0, 0), ("rewind", 2, 1)]
    assert tuning.best == Best(0.4, 2, {"x": 2}, 1)
    assert tuning.counts.num_trials_finished == 0
    assert tuning.report(0, 0, 0.1) == [Answer(0, STOP, late=True)], "of a process that is gone"


def test_a_search_that_was_interrupted_goes_on_where_it_was() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler, n_workers=1)
    tuning.begin()
    tuning.report(0, 0, 0.5, checkpoint="a")
    tuning.interrupt()
    assert tuning.ended(0, 0, STOPPED) == [Judged(0, 0, Status.STOPPED)]
    assert tuning.free(0, 0) == [Finish("interrupted")]
    assert tuning.counts.num_trials_stopped == 1
    assert ("end", 0, Status.STOPPED) not in scheduler.heard
    assert resumed(tuning) == [start(0, 0, attempt=1, from_iter=1, checkpoint="a")]
    assert tuning.counts.num_trials_stopped == 0
    assert tuning.run(0, 0.4, attempt=1) == [Judged(0, 1, Status.COMPLETED), start(1, 0)]


def test_the_last_trials_of_a_killed_search_come_to_their_end() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_num_trials_started=2))
    tuning.begin()
    tuning.run(0, 1.0)
    reason = "max_num_trials_started=2 reached"
    assert resumed(tuning) == [StopStarting(reason), start(1, 0, attempt=1)]
    assert tuning.run(1, 1.0, attempt=1) == [Judged(1, 1, Status.COMPLETED), Finish(reason)]


def test_a_search_whose_time_is_over_ends_at_once_when_it_is_resumed() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_wallclock_time=10))
    tuning.begin()
    reason = "max_wallclock_time=10 s is over"
    assert resumed(tuning, 11) == [StopStarting(reason), Finish(reason)]


def test_a_retry_that_was_promised_happens_after_a_kill() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    tuning.begin()
    tuning.report(0, 0, 0.5)
    tuning.ended(0, 0, CRASH)
    assert resumed(tuning) == [start(0, 0, attempt=1)]
    assert scheduler.heard == [("report", 0, 1, 0.5), ("rewind", 0, 0)]


def test_who_was_told_to_stop_or_pause_before_the_kill_does_not_run_again() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), New({"x": 2}), Wait())
    tuning = tuning_of(scheduler=scheduler, n_workers=3, trial_timeout_s=9)
    tuning.begin()
    tuning.report(0, 0, {"loss": 1.0, "answer": STOP})
    tuning.report(1, 0, {"loss": 1.0, "answer": PAUSE}, checkpoint="b")
    tuning.ready(2, 0)
    tuning.tick(9)
    late = Reason("time-out", "still running 9 s after it began (trial_timeout_s)")
    assert resumed(tuning, 10) == [
        Judged(0, 0, Status.STOPPED),
        Judged(1, 0, Status.PAUSED),
        Judged(2, 0, Status.FAILED, late),
        StopStarting("the scheduler has nothing left to run"),
        Finish("the scheduler has nothing left to run"),
    ]
    assert tuning.tuning.checkpoints == {"b"}


def test_a_suggestion_made_ahead_outlasts_the_kill() -> None:
    tuning = tuning_of(Thinks(), n_workers=1)
    tuning.begin()
    tuning.hand(suggested(0, 0))
    tuning.hand(suggested(1, 1))
    assert resumed(tuning) == [start(0, 0, attempt=1)]
    assert tuning.run(0, 1.0, attempt=1)[1] == start(1, 0)


def test_a_search_that_was_killed_before_it_began_begins() -> None:
    assert resumed(tuning_of(n_workers=1)) == [start(0, 0)]


# A person's commands


def command(tuning: Search, what: Any, trial_id: int) -> list[Order]:  # Any: one of three words
    return tuning.hand(facts.Command(0.0, what, trial_id))


def test_a_trial_paused_by_hand_pauses_at_its_next_report_and_goes_on_by_hand_alone() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler, n_workers=1)
    tuning.begin()
    assert command(tuning, "pause", 0) == []
    assert tuning.report(0, 0, 1.0, checkpoint="a") == [Answer(0, PAUSE, 1)]
    assert tuning.ended(0, 0, STOPPED) + tuning.free(0, 0) == [Judged(0, 0, Status.PAUSED), start(1, 0)]
    assert command(tuning, "resume", 0) == [], "no slot is free"
    assert tuning.run(1, 1.0)[-1] == start(0, 0, attempt=1, from_iter=1, checkpoint="a")
    assert scheduler.heard == [("report", 0, 1, 1.0), ("report", 1, 1, 1.0), ("end", 1, Status.COMPLETED)]


def test_a_hold_outlasts_the_schedulers_wish_to_go_on() -> None:
    tuning = tuning_of(scheduler=Told(New({"x": 0}), New({"x": 1}), Resume(0)), n_workers=1)
    tuning.begin()
    tuning.pause(0)
    command(tuning, "pause", 0)
    assert tuning.run(1, 1.0)[-1] == start(2, 0)
    command(tuning, "resume", 0)
    assert tuning.run(2, 1.0)[-1] == start(0, 0, attempt=1)


def test_a_command_to_pause_can_be_taken_back() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin()
    command(tuning, "pause", 0)
    command(tuning, "resume", 0)
    assert tuning.report(0, 0, 1.0) == [Answer(0, CONTINUE, 1)]


def test_the_search_waits_for_the_person_who_holds_its_only_trial() -> None:
    tuning = tuning_of(Scripted(1), n_workers=1)
    tuning.begin()
    command(tuning, "pause", 0)
    tuning.report(0, 0, 1.0)
    assert tuning.ended(0, 0, STOPPED) + tuning.free(0, 0) == [Judged(0, 0, Status.PAUSED)]
    assert command(tuning, "resume", 0) == [start(0, 0, attempt=1)]


def test_a_running_trial_stopped_by_hand_is_terminated_and_over() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    tuning.begin()
    assert command(tuning, "stop", 0) == [Terminate(0, "stopped by hand")]
    assert command(tuning, "stop", 0) == []
    assert tuning.run(0, outcome=CRASH) == [Judged(0, 0, Status.STOPPED), start(1, 0)]
    assert scheduler.heard == [("end", 0, Status.STOPPED)]


def test_a_paused_trial_stopped_by_hand_is_over_and_on_record() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler, n_workers=1)
    tuning.begin()
    tuning.pause(0, checkpoint="a")
    tuning.report(1, 0, 0.5)
    assert command(tuning, "stop", 0) == [Judged(0, 0, Status.STOPPED)]
    assert tuning.tuning.checkpoints == {"a"}, "of the best trial that is over"
    assert scheduler.heard[-1] == ("end", 0, Status.STOPPED)
    assert tuning.counts.num_trials_stopped == 1
    assert command(tuning, "stop", 0) == []


def test_a_trial_stopped_by_hand_while_it_pauses_does_not_go_on_although_the_scheduler_says_so() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Resume(0), New({"x": 2}), New({"x": 3}))
    tuning = tuning_of(scheduler=scheduler)
    tuning.begin()
    tuning.report(0, 0, {"loss": 1.0, "answer": PAUSE})
    command(tuning, "stop", 0)
    assert tuning.run(1, 1.0) == [Judged(1, 0, Status.COMPLETED)]
    tuning.ended(0, 0, STOPPED)
    assert tuning.free(0, 0) == [Judged(0, 0, Status.STOPPED), start(2, 0), start(3, 1)]


def test_a_trial_stopped_by_hand_between_its_crash_and_its_retry_does_not_start_again() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    tuning.begin()
    tuning.ended(0, 0, CRASH)
    command(tuning, "stop", 0)
    assert tuning.free(0, 0) == [Judged(0, 0, Status.FAILED), start(1, 0)]
    assert scheduler.heard == [("end", 0, Status.FAILED)]


def test_a_trial_that_waits_for_a_slot_can_be_paused_and_stopped_by_hand() -> None:
    tuning = tuning_of(n_workers=3)
    tuning.begin()
    tuning.hand(facts.Settings(0, n_workers=1))
    assert resumed(tuning) == [start(0, 0, attempt=1)]
    assert command(tuning, "pause", 1) == []
    assert command(tuning, "stop", 2) == [Judged(2, 0, Status.STOPPED)]
    assert tuning.run(0, 1.0, attempt=1)[-1] == start(3, 0)
    command(tuning, "resume", 1)
    assert tuning.run(3, 1.0)[-1] == start(1, 0, attempt=1)


def test_a_clone_of_a_trial_paused_by_hand_starts_from_its_checkpoint_too() -> None:
    scheduler = Told()
    tuning = tuning_of(scheduler=scheduler, n_workers=1)
    tuning.begin()
    command(tuning, "pause", 0)
    scheduler.plan = [Clone(0, {"x": 7})]
    tuning.report(0, 0, 1.0, checkpoint="a")
    tuning.ended(0, 0, STOPPED)
    assert tuning.free(0, 0) == [Start(1, 0, {"x": 7}, 0, 1, "a", source=0)]


def test_commands_about_trials_that_are_over_or_never_were_change_nothing() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin()
    tuning.run(0, 1.0)
    for what in ("pause", "resume", "stop"):
        assert command(tuning, what, 0) == command(tuning, what, 9) == []


def test_an_enqueued_configuration_is_the_next_new_trial() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin()
    assert tuning.hand(facts.Enqueued(0, {"x": 77})) == []
    assert tuning.run(0, 1.0)[-1] == Start(1, 0, {"x": 77}, 0)
    assert tuning.run(1, 1.0)[-1] == Start(2, 0, {"x": 1}, 0)


def test_an_enqueued_configuration_starts_at_once_where_the_searcher_has_nothing() -> None:
    tuning = tuning_of(Scripted(1))
    tuning.begin()
    assert tuning.hand(facts.Enqueued(0, {"x": 77})) == [Start(1, 0, {"x": 77}, 1)]


# Other settings on the way


def test_more_workers_start_more_trials_and_fewer_let_the_running_ones_end() -> None:
    tuning = tuning_of(n_workers=1, retries=1)
    tuning.begin()
    assert tuning.hand(facts.Settings(0, n_workers=3)) == [start(1, 1), start(2, 2)]
    assert tuning.hand(facts.Settings(0, n_workers=1)) == []
    assert tuning.run(2, 1.0) == [Judged(2, 0, Status.COMPLETED)]
    assert tuning.run(1, outcome=CRASH) == [Judged(1, 0, Status.FAILED, CRASHED, will_retry=True)]
    assert tuning.run(0, 1.0) == [Judged(0, 0, Status.COMPLETED), start(1, 0, attempt=1)]


def test_another_limit_holds_from_now_on() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin()
    stop = StoppingCriterion(max_wallclock_time=20, max_num_evaluations=2).to_json()
    assert tuning.hand(facts.Settings(1, stop=stop)) == []
    assert tuning.next_tick_s == 20
    tuning.report(0, 0, 1.0)
    reason = "max_num_evaluations=2 reached"
    assert tuning.report(0, 0, 1.0) == [Answer(0, STOP, 2), StopStarting(reason)]


def test_a_search_that_has_ended_goes_on_with_another_limit() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_num_trials_started=1), n_workers=1)
    tuning.begin()
    tuning.run(0, 1.0)
    stop = StoppingCriterion(max_num_trials_started=2).to_json()
    assert tuning.hand(facts.Settings(1, stop=stop)) == []
    assert resumed(tuning) == [start(1, 0), StopStarting("max_num_trials_started=2 reached")]


# Schedulers that have nothing more


def test_a_scheduler_that_is_done_lets_the_running_trials_end() -> None:
    tuning = tuning_of(scheduler=Told(New({"x": 0}), Done()))
    reason = "the scheduler has no more trials"
    assert tuning.begin() == [start(0, 0), StopStarting(reason)]
    assert tuning.run(0, 1.0)[-1] == Finish(reason)


def test_a_scheduler_that_waits_is_asked_again_at_each_report_and_each_free_slot() -> None:
    scheduler = Told(New({"x": 0}), Wait(), Wait(), New({"x": 1}))
    tuning = tuning_of(scheduler=scheduler)
    assert tuning.begin() == [start(0, 0)]
    assert tuning.report(0, 0, 1.0) == [Answer(0, CONTINUE, 1)]
    assert tuning.report(0, 0, 1.0) == [Answer(0, CONTINUE, 2), start(1, 1)]
    assert [(ask.number, ask.trial_id) for ask in scheduler.asks] == [(0, 0), (1, 1), (1, 1), (1, 1)]


def test_a_trial_that_reached_the_maximum_has_completed_though_it_was_told_to_stop() -> None:
    scheduler = Told()
    scheduler.max_resource, scheduler.resource_attr = 3.0, "epoch"
    tuning = tuning_of(scheduler=scheduler)
    tuning.begin()
    tuning.report(0, 0, {"loss": 1.0, "epoch": 3, "answer": STOP})
    tuning.report(1, 0, {"loss": 1.0, "epoch": 2, "answer": STOP})
    assert tuning.ended(0, 0, STOPPED) == [Judged(0, 0, Status.COMPLETED)]
    assert tuning.ended(1, 0, STOPPED) == [Judged(1, 0, Status.STOPPED)]


# When every trial fails


def test_a_search_whose_trials_all_fail_ends_with_the_commonest_reason() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_num_trials_started=4), n_workers=1)
    tuning.begin()
    for trial_id, text in enumerate(["one", "two 1", "two 2", "three"]):
        orders = tuning.run(trial_id, outcome=Outcome("exception", text))
    error = "all 4 trials failed; the commonest reason, 2 times, (exception): two 1"
    assert orders[-1] == Finish("max_num_trials_started=4 reached", error, kind="all-failed")
