"""One attempt of a trial, from its first report to its end: stops, time-outs, retries, late facts, void reports."""

import math
from dataclasses import replace

import pytest

from fanwise.testing.told_search import CONTINUE, CRASH, CRASHED, DONE, STOP, STOPPED, Scripted, Told, start, tuning_of
from fanwise.tune.decisions import facts
from fanwise.tune.decisions.facts import Outcome
from fanwise.tune.decisions.orders import (
    Answer,
    Best,
    Finish,
    Judged,
    Kill,
    Reason,
    Reject,
    StopStarting,
    Terminate,
)
from fanwise.tune.schedulers import (
    New,
    Resume,
    Status,
)
from fanwise.tune.searchers import Mode
from fanwise.tune.stopping import StoppingCriterion

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


@pytest.mark.parametrize("kind", ["exception", "exit", "signal", "out-of-memory", "gpu-fault", "lost"])
def test_every_kind_of_crash_is_retried(kind: str) -> None:
    tuning = tuning_of(n_workers=1, retries=1)
    tuning.begin(0)
    outcome = Outcome(kind)  # type: ignore[arg-type]
    assert tuning.run(0, outcome=outcome)[-1] == start(0, 0, attempt=1)


@pytest.mark.parametrize(("retries", "attempts"), [(0, 2), (1, 2), (2, 3)])
def test_a_gpu_fault_is_retried_once_without_retries(retries: int, attempts: int) -> None:
    tuning = tuning_of(n_workers=1, retries=retries)
    tuning.begin(0)
    for attempt in range(1, attempts):
        assert tuning.run(0, attempt=attempt - 1, outcome=Outcome("gpu-fault"))[-1] == start(0, 0, attempt=attempt)
    assert tuning.run(0, attempt=attempts - 1, outcome=Outcome("gpu-fault"))[-1] == start(1, 0)


def test_a_trial_without_memory_on_its_share_of_a_gpu_is_retried_once_with_all_of_it() -> None:
    tuning = tuning_of(n_workers=1)
    tuning.begin(0)
    orders = tuning.run(0, outcome=Outcome("out-of-memory", "CUDA out of memory", retry_alone=True))
    assert orders[-1] == replace(start(0, 0, attempt=1), alone=True)
    assert tuning.run(0, attempt=1, outcome=Outcome("out-of-memory", "CUDA out of memory"))[-1] == start(1, 0)
    assert tuning.run(1, outcome=Outcome("out-of-memory", "MemoryError"))[-1] == start(2, 0), "no share, no retry"


def test_a_trial_that_got_a_whole_gpu_keeps_it_in_later_attempts() -> None:
    tuning = tuning_of(n_workers=1, retries=2)
    tuning.begin(0)
    tuning.run(0, outcome=Outcome("out-of-memory", "CUDA out of memory", retry_alone=True))
    assert tuning.run(0, attempt=1, outcome=CRASH)[-1] == replace(start(0, 0, attempt=2), alone=True)


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
    text = "the objective reported 'epoch', 'losss', but not the scheduler's metric 'loss'; did you mean 'losss'?"
    reason = "the metric 'loss' was not reported"
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
        text = f"the objective reported {names}, but not the scheduler's metric 'loss'; {hint}"
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
