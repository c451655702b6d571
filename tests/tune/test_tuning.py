"""The tuner's decisions, one example each: schedules, time-outs, retries, failures, stops, Ctrl-C, late facts."""

import heapq
import math
from collections.abc import Callable, Mapping

import pytest

from fanwise.tune.orders import (
    Answer,
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
from fanwise.tune.schedulers import Decision, FIFOScheduler, Mode, RandomSearch, Scheduler, Status
from fanwise.tune.searchers import Ask, Searcher
from fanwise.tune.spaces import Space, randint
from fanwise.tune.stopping import StoppingCriterion
from fanwise.tune.tuning import Tuning

SPACE = Space({"x": randint(0, 10**6)})
DONE = Outcome("returned")
CRASH = Outcome("signal", "ended by SIGSEGV", last_output="boom")
CONTINUE, STOP = Decision.CONTINUE, Decision.STOP


class Scripted(Searcher):
    """Gives out x = 0, 1, 2, ..., as many as it has; raises what it is told to."""

    def __init__(self, number: int = 10**6) -> None:
        self.left = number
        self.given = 0
        self.error: Exception | None = None
        self.error_on_observe: Exception | None = None

    def suggest(self, ask: Ask) -> Mapping[str, object] | None:
        if self.error is not None:
            raise self.error
        if self.given == self.left:
            return None
        self.given += 1
        return {"x": self.given - 1}

    def observe(self, trial_id: int, config: Mapping[str, object], loss: float) -> None:
        if self.error_on_observe is not None:
            raise self.error_on_observe


class StopsAtTwo:
    """A scheduler of another kind: stops each trial at epoch 2; notes the ends."""

    metric = "loss"
    mode: Mode = "min"

    def __init__(self) -> None:
        self.ends: list[tuple[int, Status]] = []

    def start(self, space: Space, seed: int) -> None: ...

    def suggest(self, trial_id: int) -> dict[str, object] | None:
        return {"x": trial_id}

    def on_report(self, trial_id: int, config: Mapping[str, object], values: Mapping[str, object]) -> Decision:
        return STOP if values.get("epoch") == 2 else CONTINUE

    def on_end(self, trial_id: int, status: Status) -> None:
        self.ends.append((trial_id, status))

    def describe(self) -> dict[str, object]:
        return {}


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
) -> Tuning:
    if scheduler is None:
        scheduler = FIFOScheduler(searcher or Scripted(), metric="loss", mode=mode)
        scheduler.start(SPACE, 0)
    return Tuning(
        scheduler,
        criterion or StoppingCriterion(max_wallclock_time=math.inf),
        n_workers=n_workers,
        asynchronous=asynchronous,
        trial_timeout_s=trial_timeout_s,
        stop_grace_s=stop_grace_s,
        max_equal_failures=max_equal_failures,
        retries=retries,
    )


def start(trial_id: int, slot: int, attempt: int = 0) -> Start:
    return Start(trial_id, attempt, {"x": trial_id}, slot)


def run_trial(tuning: Tuning, trial_id: int, *values: float, outcome: Outcome = DONE, attempt: int = 0) -> list[Order]:
    """All facts of an attempt at time 0; returns the orders from its end on."""
    tuning.on_ready(trial_id, attempt, now_s=0)
    for value in values:
        tuning.on_report(trial_id, attempt, {"loss": value}, now_s=0)
    return tuning.on_ended(trial_id, attempt, outcome, now_s=0) + tuning.on_free(trial_id, attempt, now_s=0)


def play(tuning: Tuning, durations_s: list[float]) -> tuple[list[tuple[int, int, float, float]], float]:
    """Workers without overhead: trial k reports and ends after durations_s[k], or at once when told to stop.

    Returns (slot, trial, from, to) of each trial, and the time of Finish.
    """
    events: list[tuple[float, int, str, int]] = []
    slots: dict[int, tuple[int, float]] = {}
    lines: list[tuple[int, int, float, float]] = []
    order_number = 0
    waiting: list[Order] = tuning.start(now_s=0)
    now_s = 0.0

    def end(trial_id: int, outcome: Outcome) -> None:
        slot, since_s = slots.pop(trial_id)
        lines.append((slot, trial_id, since_s, now_s))
        waiting.extend(tuning.on_ended(trial_id, 0, outcome, now_s=now_s))
        waiting.extend(tuning.on_free(trial_id, 0, now_s=now_s))

    while True:
        while waiting:
            order = waiting.pop(0)
            order_number += 1
            if isinstance(order, Start):
                slots[order.trial_id] = order.slot, now_s
                waiting.extend(tuning.on_ready(order.trial_id, 0, now_s=now_s))
                heapq.heappush(events, (now_s + durations_s[order.trial_id], order_number, "done", order.trial_id))
            elif isinstance(order, Terminate):
                end(order.trial_id, Outcome("stopped"))
            elif isinstance(order, Finish):
                return lines, now_s
        tick_s = tuning.next_tick_s
        if tick_s is not None and tick_s < events[0][0]:
            now_s = tick_s
            waiting.extend(tuning.on_tick(now_s=now_s))
            continue
        now_s, _, _, trial_id = heapq.heappop(events)
        if trial_id in slots:
            waiting.extend(tuning.on_report(trial_id, 0, {"loss": 1.0}, now_s=now_s))
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
    assert tuning.start(now_s=0) == [start(0, 0), start(1, 1), start(2, 2)]
    tuning.on_report(1, 0, {"loss": 1}, now_s=1)
    assert tuning.on_ended(1, 0, DONE, now_s=2) == [Ended(1, 0, Status.COMPLETED, None, will_retry=False)]
    assert tuning.on_free(1, 0, now_s=3) == [start(3, 1)]


def test_random_search_runs_the_first_point_first() -> None:
    scheduler = RandomSearch(metric="loss", points_to_evaluate=[{"x": 5}])
    scheduler.start(SPACE, 0)
    orders = tuning_of(scheduler=scheduler).start(now_s=0)
    assert orders[0] == Start(0, 0, {"x": 5}, 0)
    assert len(orders) == 2


# Limits


def test_after_the_last_start_the_running_trials_finish() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_num_trials_started=2))
    reason = "max_num_trials_started=2 reached"
    assert tuning.start(now_s=0) == [start(0, 0), start(1, 1), StopStarting(reason)]
    assert tuning.on_report(0, 0, {"loss": 1}, now_s=1) == [Answer(0, CONTINUE)]
    assert run_trial(tuning, 0, 1.0) == [Ended(0, 0, Status.COMPLETED, None, will_retry=False)]
    assert run_trial(tuning, 1, 1.0)[-1] == Finish(reason)
    assert tuning.is_finished


def test_the_wallclock_stops_the_running_trials_at_the_tick_it_asked_for() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_wallclock_time=0.7), n_workers=1)
    tuning.start(now_s=0.1)
    tick_s = tuning.next_tick_s
    assert tick_s is not None
    assert tick_s == pytest.approx(0.8)
    reason = "max_wallclock_time=0.7 s is over"
    assert tuning.on_tick(now_s=tick_s) == [StopStarting(reason), Terminate(0, reason)]
    assert run_trial(tuning, 0, outcome=Outcome("stopped")) == [
        Ended(0, 0, Status.STOPPED, None, will_retry=False),
        Finish(reason),
    ]


@pytest.mark.parametrize("start_s", [0.1, 0.3, 1e9 + 0.1, 123456.789])
@pytest.mark.parametrize("limit_s", [0.1, 0.2, 0.7, 720.1])
def test_one_tick_is_enough_whatever_the_sum_rounds_to(start_s: float, limit_s: float) -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_wallclock_time=limit_s))
    tuning.start(now_s=start_s)
    tick_s = tuning.next_tick_s
    assert tick_s is not None
    assert isinstance(tuning.on_tick(now_s=tick_s)[0], StopStarting)


def test_the_report_that_reaches_a_limit_is_answered_stop_and_the_others_are_terminated() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_num_evaluations=2))
    tuning.start(now_s=0)
    assert tuning.on_report(0, 0, {"loss": 1}, now_s=1) == [Answer(0, CONTINUE)]
    reason = "max_num_evaluations=2 reached"
    assert tuning.on_report(1, 0, {"loss": 1}, now_s=1) == [
        Answer(1, STOP),
        StopStarting(reason),
        Terminate(0, reason),
    ]
    assert tuning.on_report(0, 0, {"loss": 0}, now_s=1) == [Answer(0, STOP, late=True)]
    assert tuning.counts.num_evaluations == 2


def test_a_report_after_the_wallclock_is_answered_stop_before_any_tick() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_wallclock_time=10), n_workers=1)
    tuning.start(now_s=0)
    reason = "max_wallclock_time=10 s is over"
    assert tuning.on_report(0, 0, {"loss": 1}, now_s=11) == [Answer(0, STOP), StopStarting(reason)]


def test_no_trial_starts_in_a_slot_that_becomes_free_after_the_wallclock() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_wallclock_time=10), n_workers=1)
    tuning.start(now_s=0)
    tuning.on_ended(0, 0, CRASH, now_s=1)
    reason = "max_wallclock_time=10 s is over"
    assert tuning.on_free(0, 0, now_s=11) == [StopStarting(reason), Finish(reason)]


def test_a_limit_reached_while_the_last_trials_finish_stops_them() -> None:
    criterion = StoppingCriterion(max_num_trials_started=2, min_metric_value=0.1)
    tuning = tuning_of(criterion=criterion)
    tuning.start(now_s=0)
    reason = "loss 0.05 is at or below min_metric_value=0.1"
    assert tuning.on_report(0, 0, {"loss": 0.05}, now_s=0) == [Answer(0, STOP), Terminate(1, reason)]
    run_trial(tuning, 0)
    assert run_trial(tuning, 1)[-1] == Finish(reason)


def test_an_exhausted_searcher_ends_the_search_when_nothing_runs() -> None:
    tuning = tuning_of(Scripted(3))
    tuning.start(now_s=0)
    assert run_trial(tuning, 0, 1.0)[-1] == start(2, 0)
    assert run_trial(tuning, 2, 1.0) == [Ended(2, 0, Status.COMPLETED, None, will_retry=False)]
    end = [StopStarting("searcher exhausted"), Finish("searcher exhausted")]
    assert run_trial(tuning, 1, 1.0)[1:] == end
    empty = tuning_of(Scripted(0))
    assert empty.start(now_s=0) == end


def test_a_searcher_that_had_nothing_is_asked_again_at_the_next_free_slot() -> None:
    searcher = Scripted(2)
    tuning = tuning_of(searcher, n_workers=3)
    assert tuning.start(now_s=0) == [start(0, 0), start(1, 1)]
    searcher.left = 5
    assert run_trial(tuning, 1, 1.0)[1:] == [start(2, 1), start(3, 2)]


# Stopped trials


def test_a_trial_that_the_scheduler_stops_has_its_grace_and_is_then_killed() -> None:
    scheduler = StopsAtTwo()
    tuning = tuning_of(scheduler=scheduler, n_workers=1)
    tuning.start(now_s=0)
    assert tuning.on_report(0, 0, {"loss": 1, "epoch": 1}, now_s=1) == [Answer(0, CONTINUE)]
    assert tuning.on_report(0, 0, {"loss": 1, "epoch": 2}, now_s=2) == [Answer(0, STOP)]
    assert tuning.next_tick_s == 7
    assert tuning.on_tick(now_s=6.9) == []
    why = "still running 5 s after it was told to stop (stop_grace_s)"
    assert tuning.on_tick(now_s=7) == [Kill(0, why)]
    assert tuning.next_tick_s is None
    assert tuning.on_ended(0, 0, CRASH, now_s=8) == [Ended(0, 0, Status.STOPPED, None, will_retry=False)]
    assert scheduler.ends == [(0, Status.STOPPED)]


@pytest.mark.parametrize("kind", ["returned", "stopped", "signal", "exit", "lost"])
def test_a_trial_told_to_stop_is_stopped_however_it_goes(kind: str) -> None:
    tuning = tuning_of(scheduler=StopsAtTwo(), n_workers=1, retries=3)
    tuning.start(now_s=0)
    tuning.on_report(0, 0, {"loss": 1, "epoch": 2}, now_s=2)
    outcome = Outcome(kind)  # type: ignore[arg-type]
    assert tuning.on_ended(0, 0, outcome, now_s=3) == [Ended(0, 0, Status.STOPPED, None, will_retry=False)]


@pytest.mark.parametrize("kind", ["exception", "out-of-memory"])
def test_a_trial_told_to_stop_that_breaks_on_the_way_failed_and_is_not_retried(kind: str) -> None:
    tuning = tuning_of(scheduler=StopsAtTwo(), n_workers=1, retries=3)
    tuning.start(now_s=0)
    tuning.on_report(0, 0, {"loss": 1, "epoch": 2}, now_s=2)
    outcome = Outcome(kind, "no")  # type: ignore[arg-type]
    reason = Reason(kind, "no")  # type: ignore[arg-type]
    assert tuning.on_ended(0, 0, outcome, now_s=3) == [Ended(0, 0, Status.FAILED, reason, will_retry=False)]


def test_a_trial_that_raises_trial_stopped_of_itself_is_stopped() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.start(now_s=0)
    assert run_trial(tuning, 0, outcome=Outcome("stopped"))[0] == Ended(0, 0, Status.STOPPED, None, will_retry=False)


# Time-outs


def test_a_trial_that_takes_too_long_is_terminated_killed_and_failed() -> None:
    tuning = tuning_of(n_workers=1, trial_timeout_s=30, stop_grace_s=2, retries=5)
    tuning.start(now_s=0)
    assert tuning.next_tick_s is None, "the time-out counts from on_ready"
    tuning.on_ready(0, 0, now_s=10)
    tuning.on_ready(0, 0, now_s=20)
    assert tuning.next_tick_s == 40
    why = "still running 30 s after it began (trial_timeout_s)"
    assert tuning.on_tick(now_s=40) == [Terminate(0, why)]
    assert tuning.next_tick_s == 42
    assert tuning.on_tick(now_s=42) == [Kill(0, "still running 2 s after it was told to stop (stop_grace_s)")]
    reason = Reason("time-out", why, last_output="boom")
    assert tuning.on_ended(0, 0, CRASH, now_s=43) == [Ended(0, 0, Status.FAILED, reason, will_retry=False)]
    assert tuning.on_free(0, 0, now_s=44) == [start(1, 0)]


def test_a_trial_that_ends_in_its_grace_after_a_time_out_failed_all_the_same() -> None:
    tuning = tuning_of(n_workers=1, trial_timeout_s=30)
    tuning.start(now_s=0)
    tuning.on_ready(0, 0, now_s=0)
    tuning.on_report(0, 0, {"loss": 1}, now_s=1)
    tuning.on_tick(now_s=31)
    (ended,) = tuning.on_ended(0, 0, DONE, now_s=32)
    assert isinstance(ended, Ended)
    assert ended.reason is not None
    assert (ended.status, ended.reason.kind) == (Status.FAILED, "time-out")


# Retries


def test_a_crashed_trial_starts_again_in_the_turn_its_slot_becomes_free() -> None:
    tuning = tuning_of(n_workers=2, retries=1)
    tuning.start(now_s=0)
    reason = Reason("signal", "ended by SIGSEGV", last_output="boom")
    assert tuning.on_ended(0, 0, CRASH, now_s=1) == [Ended(0, 0, Status.FAILED, reason, will_retry=True)]
    assert tuning.on_free(0, 0, now_s=2) == [start(0, 0, attempt=1)]
    assert tuning.on_ended(0, 1, CRASH, now_s=3) == [Ended(0, 1, Status.FAILED, reason, will_retry=False)]
    assert tuning.on_free(0, 1, now_s=4) == [start(2, 0)]
    assert (tuning.counts.num_trials_started, tuning.counts.num_trials_failed) == (3, 1)


@pytest.mark.parametrize("kind", ["exception", "exit", "signal", "out-of-memory", "lost"])
def test_every_kind_of_crash_is_retried(kind: str) -> None:
    tuning = tuning_of(n_workers=1, retries=1)
    tuning.start(now_s=0)
    outcome = Outcome(kind)  # type: ignore[arg-type]
    assert run_trial(tuning, 0, outcome=outcome)[-1] == start(0, 0, attempt=1)


def test_a_missing_report_and_a_nan_are_not_retried() -> None:
    tuning = tuning_of(n_workers=1, retries=5)
    tuning.start(now_s=0)
    text = "the objective ended without reporting 'loss', and returned nothing"
    failed = Ended(0, 0, Status.FAILED, Reason("no-report", text), will_retry=False)
    assert run_trial(tuning, 0) == [failed, start(1, 0)]
    failed = Ended(1, 0, Status.FAILED, Reason("nan", "the objective reported loss=nan"), will_retry=False)
    assert run_trial(tuning, 1, math.nan) == [failed, start(2, 0)]


def test_a_second_attempt_must_report_too() -> None:
    tuning = tuning_of(n_workers=1, retries=1)
    tuning.start(now_s=0)
    run_trial(tuning, 0, 1.0, outcome=CRASH)
    ended = run_trial(tuning, 0, attempt=1)[0]
    assert isinstance(ended, Ended)
    assert ended.reason is not None
    assert ended.reason.kind == "no-report"


def test_a_retry_goes_before_the_next_batch() -> None:
    tuning = tuning_of(n_workers=2, asynchronous=False, retries=1)
    tuning.start(now_s=0)
    assert run_trial(tuning, 0, outcome=CRASH)[-1] == start(0, 0, attempt=1)
    assert run_trial(tuning, 1, 1.0)[1:] == []
    assert run_trial(tuning, 0, 1.0, attempt=1)[1:] == [start(2, 0), start(3, 1)]


def test_a_retry_is_kept_after_the_last_start_and_dropped_when_the_search_is_stopped() -> None:
    scheduler = StopsAtTwo()
    criterion = StoppingCriterion(max_num_trials_started=1)
    tuning = tuning_of(scheduler=scheduler, criterion=criterion, n_workers=1, retries=2)
    tuning.start(now_s=0)
    assert run_trial(tuning, 0, outcome=CRASH)[-1] == start(0, 0, attempt=1)
    tuning.on_ended(0, 1, CRASH, now_s=1)
    assert tuning.interrupt(now_s=1) == []
    assert scheduler.ends == []
    assert tuning.on_free(0, 1, now_s=1) == [Finish("interrupted")]
    assert scheduler.ends == [(0, Status.FAILED)]
    assert tuning.counts.num_trials_failed == 1


# Reports


def test_nan_fails_the_trial_whatever_follows() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.start(now_s=0)
    assert tuning.on_report(0, 0, {"loss": math.nan}, now_s=1) == [Answer(0, STOP)]
    assert tuning.next_tick_s == 6
    (ended,) = tuning.on_ended(0, 0, Outcome("exception", "x", "tb", "out"), now_s=2)
    reason = Reason("nan", "the objective reported loss=nan", "tb", "out")
    assert ended == Ended(0, 0, Status.FAILED, reason, will_retry=False)
    assert tuning.best is None
    assert tuning.counts.num_evaluations == 1


def test_a_metric_that_nobody_ever_reported_ends_the_search() -> None:
    tuning = tuning_of()
    tuning.start(now_s=0)
    text = "report() gave 'epoch', 'losss', but not the scheduler's metric 'loss'; did you mean 'losss'?"
    reason = "the metric was not reported"
    assert tuning.on_report(0, 0, {"epoch": 1, "losss": 2}, now_s=0) == [
        Reject(0, text),
        StopStarting(reason),
        Terminate(1, reason),
    ]
    ended = run_trial(tuning, 0, outcome=Outcome("exception", f"ValueError: {text}"))[0]
    assert isinstance(ended, Ended)
    assert ended.status is Status.FAILED
    assert run_trial(tuning, 1, outcome=Outcome("stopped"))[-1] == Finish(reason, text, kind="no-metric")


def test_a_report_without_the_metric_is_refused_when_others_have_it() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.start(now_s=0)
    tuning.on_report(0, 0, {"loss": 1}, now_s=0)
    hint = "report it under this name, or give the scheduler another one"
    for values, names in (({"epoch": 2}, "'epoch'"), ({}, "nothing")):
        text = f"report() gave {names}, but not the scheduler's metric 'loss'; {hint}"
        assert tuning.on_report(0, 0, values, now_s=0) == [Reject(0, text)]
    assert tuning.on_report(0, 0, {"loss": 0.5}, now_s=0) == [Answer(0, CONTINUE)]
    assert tuning.counts.num_evaluations == 2


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5]])
def test_a_metric_that_is_no_number_is_refused(value: object) -> None:
    tuning = tuning_of(n_workers=1)
    tuning.start(now_s=0)
    text = f"the metric 'loss' must be a number, got {value!r} of type {type(value).__name__}"
    assert tuning.on_report(0, 0, {"loss": value}, now_s=0) == [Reject(0, text)]


@pytest.mark.parametrize(("mode", "value", "trial_id"), [("min", 0.25, 1), ("max", 0.75, 0)])
def test_the_best_report_is_kept_with_its_configuration(mode: Mode, value: float, trial_id: int) -> None:
    tuning = tuning_of(mode=mode)
    tuning.start(now_s=0)
    for trial, loss in ((0, 0.5), (1, 0.25), (0, 0.75), (1, 0.75), (0, 0.25)):
        tuning.on_report(trial, 0, {"loss": loss}, now_s=0)
    best = tuning.best
    assert best is not None
    assert (best.value, best.trial_id, best.config) == (value, trial_id, {"x": trial_id})


# Failures of the whole search


def test_the_search_fails_when_its_first_trials_fail_alike() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.start(now_s=0)
    for trial_id in range(3):
        outcome = Outcome("exception", f"KeyError: 'x'\nin trial {trial_id}", "Traceback ...", "last words")
        orders = run_trial(tuning, trial_id, outcome=outcome)
    reason = "the first 3 trials failed alike"
    assert orders[1] == StopStarting(reason)
    finish = orders[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == reason
    assert finish.error == (
        "the first 3 trials to finish all failed alike (exception): KeyError: 'x'\nin trial 2\nTraceback ...\n"
        "last output:\nlast words\nRepair the objective; or set max_equal_failures=None to go on whatever happens."
    )


@pytest.mark.parametrize(
    "second", [Outcome("exception", "other"), Outcome("exit", "same"), Outcome("returned"), Outcome("stopped")]
)
def test_the_search_goes_on_when_one_of_the_first_trials_ended_otherwise(second: Outcome) -> None:
    tuning = tuning_of(n_workers=1)
    tuning.start(now_s=0)
    same = Outcome("exception", "same")
    for trial_id, outcome in enumerate([same, second, same, same, same, same]):
        assert run_trial(tuning, trial_id, 1.0, outcome=outcome)[-1] == start(trial_id + 1, 0)


def test_a_search_that_may_fail_for_ever_goes_on() -> None:
    tuning = tuning_of(n_workers=1, max_equal_failures=None)
    tuning.start(now_s=0)
    for trial_id in range(20):
        assert run_trial(tuning, trial_id, outcome=CRASH)[-1] == start(trial_id + 1, 0)


def test_attempts_of_one_trial_count_as_one_failure() -> None:
    tuning = tuning_of(n_workers=1, max_equal_failures=2, retries=3)
    tuning.start(now_s=0)
    for attempt in range(4):
        orders = run_trial(tuning, 0, outcome=CRASH, attempt=attempt)
    assert orders[-1] == start(1, 0)


def test_what_the_searcher_raises_while_suggesting_ends_the_search_in_order() -> None:
    searcher = Scripted()
    tuning = tuning_of(searcher)
    tuning.start(now_s=0)
    searcher.error = ZeroDivisionError("oops")
    reason = "the scheduler failed"
    assert run_trial(tuning, 0, 1.0)[1:] == [StopStarting(reason), Terminate(1, reason)]
    text = "the scheduler raised ZeroDivisionError: oops"
    assert run_trial(tuning, 1, outcome=Outcome("stopped"))[-1] == Finish(reason, text, searcher.error, "scheduler")


def test_what_the_searcher_raises_while_observing_ends_the_search_in_order() -> None:
    searcher = Scripted()
    tuning = tuning_of(searcher)
    tuning.start(now_s=0)
    searcher.error_on_observe = KeyError("oops")
    reason = "the scheduler failed"
    assert tuning.on_report(1, 0, {"loss": 1.0}, now_s=0) == [
        Answer(1, STOP),
        StopStarting(reason),
        Terminate(0, reason),
    ]
    run_trial(tuning, 0)
    finish = run_trial(tuning, 1)[-1]
    assert isinstance(finish, Finish)
    assert finish.cause is searcher.error_on_observe


def test_the_first_error_of_a_search_is_the_one_that_is_told() -> None:
    class BreaksAtEnds(StopsAtTwo):
        def on_end(self, trial_id: int, status: Status) -> None:
            raise OSError(f"end of trial {trial_id}")

    tuning = tuning_of(scheduler=BreaksAtEnds())
    tuning.start(now_s=0)
    run_trial(tuning, 1, 1.0)
    finish = run_trial(tuning, 0, 1.0)[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.error) == ("the scheduler failed", "the scheduler raised OSError: end of trial 1")


# Ctrl-C


def test_the_first_interrupt_stops_gently_and_the_second_kills() -> None:
    tuning = tuning_of()
    tuning.start(now_s=0)
    assert tuning.interrupt(now_s=1) == [
        StopStarting("interrupted"),
        Terminate(0, "interrupted"),
        Terminate(1, "interrupted"),
    ]
    assert run_trial(tuning, 0, outcome=Outcome("stopped")) == [Ended(0, 0, Status.STOPPED, None, will_retry=False)]
    assert tuning.interrupt(now_s=2) == [Kill(1, "interrupted twice")]
    assert tuning.interrupt(now_s=3) == []
    assert run_trial(tuning, 1, outcome=CRASH)[-1] == Finish("interrupted")
    assert tuning.interrupt(now_s=4) == []


def test_an_interrupt_while_the_last_trials_finish_stops_them() -> None:
    tuning = tuning_of(criterion=StoppingCriterion(max_num_trials_started=1), n_workers=1)
    tuning.start(now_s=0)
    assert tuning.interrupt(now_s=1) == [Terminate(0, "interrupted")]
    assert run_trial(tuning, 0)[-1] == Finish("interrupted")


def test_an_interrupt_before_the_start_finishes_at_once() -> None:
    tuning = tuning_of()
    assert tuning.interrupt(now_s=0) == [StopStarting("interrupted"), Finish("interrupted")]
    assert tuning.start(now_s=1) == []


# Late facts


def test_late_and_repeated_facts_change_nothing() -> None:
    tuning = tuning_of(n_workers=1, retries=1)
    tuning.start(now_s=0)
    run_trial(tuning, 0, 1.0, outcome=CRASH)  # attempt 1 runs now
    for trial_id, attempt in ((0, 0), (0, 2), (7, 0), (-1, 0)):
        assert tuning.on_ready(trial_id, attempt, now_s=1) == []
        late = tuning.on_report(trial_id, attempt, {"loss": -5}, now_s=1)
        assert late == [Answer(trial_id, STOP, late=True)]
        assert tuning.on_ended(trial_id, attempt, DONE, now_s=1) == []
        assert tuning.on_free(trial_id, attempt, now_s=1) == []
    assert tuning.on_ended(0, 1, DONE, now_s=1) != []
    assert tuning.on_ended(0, 1, DONE, now_s=1) == []
    assert tuning.on_report(0, 1, {"loss": -5}, now_s=1) == [Answer(0, STOP, late=True)]
    assert tuning.on_free(0, 1, now_s=1) == [start(1, 0)]
    assert tuning.best is None  # 1.0 was of an attempt that was started again


def test_a_slot_that_becomes_free_without_an_end_means_a_lost_trial() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.start(now_s=0)
    ended, next_start = tuning.on_free(0, 0, now_s=1)
    assert isinstance(ended, Ended)
    assert ended.reason == Reason("lost", "the worker was gone before it said how the trial ended")
    assert next_start == start(1, 0)


def test_a_report_may_overtake_the_news_that_its_trial_is_ready() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.start(now_s=0)
    assert tuning.on_report(0, 0, {"loss": 1}, now_s=1) == [Answer(0, CONTINUE)]


# Settings


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: tuning_of(n_workers=0), ValueError, "n_workers must be at least 1, got 0"),
        (lambda: tuning_of(n_workers=2.0), TypeError, "n_workers must be an int"),  # type: ignore[arg-type]
        (lambda: tuning_of(retries=-1), ValueError, "retries must be at least 0, got -1"),
        (lambda: tuning_of(max_equal_failures=0), ValueError, "max_equal_failures must be at least 1"),
        (lambda: tuning_of(trial_timeout_s=0), ValueError, "trial_timeout_s must be above 0; None"),
        (lambda: tuning_of(trial_timeout_s=-1), ValueError, "trial_timeout_s must be finite"),
        (lambda: tuning_of(trial_timeout_s="1h"), TypeError, "must be seconds, got '1h'"),  # type: ignore[arg-type]
        (lambda: tuning_of(stop_grace_s=math.nan), ValueError, "stop_grace_s must be finite"),
    ],
)
def test_wrong_settings_are_refused_at_once(make: Callable[[], Tuning], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_without_grace_the_kill_is_due_at_once() -> None:
    tuning = tuning_of(n_workers=1, stop_grace_s=0)
    tuning.start(now_s=0)
    tuning.interrupt(now_s=3)
    assert tuning.next_tick_s == 3
    (kill,) = tuning.on_tick(now_s=3)
    assert isinstance(kill, Kill)
