"""Examples of the life of trials in a search, and how a search ends. `test_search_core_machine` covers all states."""

import math
from dataclasses import replace

import pytest
from search_core_driver import (
    CONTINUE,
    CRASH,
    CRASHED,
    DONE,
    PAUSE,
    SPACE,
    STOP,
    STOPPED,
    CountingSearcher,
    PlannedScheduler,
    SlowSearcher,
    new_search,
    play,
    start,
    suggested,
)

from fanwise.tune.core import events
from fanwise.tune.core.actions import (
    Action,
    Answer,
    BestReport,
    Discard,
    Finish,
    Judged,
    Kill,
    Reason,
    Reject,
    Start,
    StopStarting,
    Suggest,
    Terminate,
)
from fanwise.tune.core.events import Outcome
from fanwise.tune.schedulers import ASHA, Clone, New, Resume, Status, Wait
from fanwise.tune.stopping import StoppingCriterion

# Schedules.


def test_asynchronous_search_starts_a_trial_when_a_worker_is_free() -> None:
    spans, finished_s = play(new_search(criterion=StoppingCriterion(max_num_trials_started=5)), [4, 1, 2, 2, 3])
    assert sorted(spans) == [(0, 0, 0, 4), (0, 4, 4, 7), (1, 1, 0, 1), (1, 2, 1, 3), (1, 3, 3, 5)]
    assert finished_s == 7


def test_synchronous_search_waits_for_the_whole_batch() -> None:
    search = new_search(criterion=StoppingCriterion(max_num_trials_started=5), asynchronous=False)
    spans, finished_s = play(search, [4, 1, 2, 2, 3])
    assert sorted(spans) == [(0, 0, 0, 4), (0, 2, 4, 6), (0, 4, 6, 9), (1, 1, 0, 1), (1, 3, 4, 6)]
    assert finished_s == 9


def test_search_of_the_book_starts_twelve_trials_and_completes_ten() -> None:
    durations_s = [108.0, 140.0, 190.0, 95.0, 150.0, 120.0, 130.0, 110.0, 135.0, 145.0, 120.0, 125.0]
    search = new_search(criterion=StoppingCriterion(max_wallclock_time=720))
    _, finished_s = play(search, durations_s)
    counts = search.counts
    assert finished_s == 720
    assert (counts.num_trials_started, counts.num_trials_completed, counts.num_trials_stopped) == (12, 10, 2)


# Attempts.


def test_stopped_trial_is_killed_after_its_grace_period() -> None:
    scheduler = PlannedScheduler()
    search = new_search(scheduler=scheduler, n_workers=1)
    search.begin()
    assert search.report(0, 0, 1.0, now_s=1) == [Answer(0, CONTINUE, 1)]
    assert search.report(0, 0, {"loss": 1, "answer": STOP}, now_s=2) == [Answer(0, STOP, 2)]
    assert search.next_tick_s == 7
    assert search.tick(6.9) == []
    assert search.tick(7) == [Kill(0, "still running 5 s after it was asked to stop (stop_grace_s)")]
    assert search.next_tick_s is None
    assert search.ended(0, 0, CRASH, now_s=8) == [Judged(0, 0, Status.STOPPED)]
    assert scheduler.calls == [("report", 0, 1, 1.0), ("report", 0, 2, 1.0), ("end", 0, Status.STOPPED)]


def test_timed_out_trial_is_terminated_killed_and_failed() -> None:
    search = new_search(n_workers=1, trial_timeout_s=30, stop_grace_s=2, retries=5)
    search.begin()
    assert search.next_tick_s is None, "the timeout starts with Ready"
    search.ready(0, 0, now_s=10)
    search.ready(0, 0, now_s=20)
    assert search.next_tick_s == 40
    why = "still running 30 s after it began (trial_timeout_s)"
    assert search.tick(40) == [Terminate(0, why)]
    assert search.tick(42) == [Kill(0, "still running 2 s after it was asked to stop (stop_grace_s)")]
    reason = Reason("time-out", why, last_output="boom")
    assert search.ended(0, 0, CRASH, now_s=43) == [Judged(0, 0, Status.FAILED, reason)]
    assert search.free(0, 0, now_s=44) == [start(1, 0)]


def test_crashed_trial_is_retried_when_its_slot_is_free() -> None:
    search = new_search(n_workers=2, retries=1)
    search.begin()
    assert search.ended(0, 0, CRASH) == [Judged(0, 0, Status.FAILED, CRASHED, will_retry=True)]
    assert search.free(0, 0) == [start(0, 0, attempt=1)]
    assert search.ended(0, 1, CRASH) == [Judged(0, 1, Status.FAILED, CRASHED)]
    assert search.free(0, 1) == [start(2, 0)]
    assert (search.counts.num_trials_started, search.counts.num_trials_failed) == (3, 1)


def test_retry_discards_the_reports_after_the_checkpoint() -> None:
    scheduler = PlannedScheduler()
    search = new_search(scheduler=scheduler, n_workers=1, retries=1)
    search.begin()
    search.report(0, 0, 0.3)
    search.report(0, 0, 0.4, checkpoint="a")
    search.report(0, 0, 0.2)
    search.ended(0, 0, CRASH)
    assert search.core.best == BestReport(0.3, 0, {"x": 0}, 1)
    assert search.free(0, 0) == [start(0, 0, attempt=1, from_iter=2, checkpoint="a")]
    assert search.report(0, 1, 0.25) == [Answer(0, CONTINUE, 3)]
    assert scheduler.calls[-2:] == [("rollback", 0, 2), ("report", 0, 3, 0.25)]


def test_missing_report_and_nan_are_not_retried() -> None:
    search = new_search(n_workers=1, retries=5)
    search.begin()
    text = "the objective ended without reporting 'loss', and returned nothing"
    assert search.run(0) == [Judged(0, 0, Status.FAILED, Reason("no-report", text)), start(1, 0)]
    reason = Reason("nan", "the objective reported loss=nan")
    assert search.run(1, math.nan) == [Judged(1, 0, Status.FAILED, reason), start(2, 0)]


# Reports.


def test_metric_that_no_trial_reports_ends_the_search() -> None:
    search = new_search()
    search.begin()
    text = "the objective reported 'epoch', 'losss', but not the scheduler's metric 'loss'; did you mean 'losss'?"
    reason = "the metric 'loss' was not reported"
    expected = [Reject(0, text), StopStarting(reason), Terminate(1, reason)]
    assert search.report(0, 0, {"epoch": 1, "losss": 2}) == expected
    search.run(0, outcome=Outcome("exception", f"ValueError: {text}"))
    assert search.run(1, outcome=STOPPED)[-1] == Finish(reason, text, kind="no-metric")


def test_report_without_the_metric_is_rejected_if_others_have_it() -> None:
    search = new_search(n_workers=1)
    search.begin()
    search.report(0, 0, 1.0)
    hint = "report it under this name, or pass another name to the scheduler"
    for values, names in (({"epoch": 2}, "'epoch'"), ({}, "nothing")):
        text = f"the objective reported {names}, but not the scheduler's metric 'loss'; {hint}"
        assert search.report(0, 0, values) == [Reject(0, text)]
    assert search.report(0, 0, 0.5) == [Answer(0, CONTINUE, 2)]
    assert search.counts.num_evaluations == 2


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5]])
def test_metric_that_is_not_a_number_is_rejected(value: object) -> None:
    search = new_search(n_workers=1)
    search.begin()
    text = f"the metric 'loss' must be a number, got {value!r} of type {type(value).__name__}"
    assert search.report(0, 0, {"loss": value}) == [Reject(0, text)]


def test_trial_stopped_at_the_maximum_resource_has_completed() -> None:
    scheduler = PlannedScheduler()
    scheduler.max_resource, scheduler.resource_attr = 3.0, "epoch"
    search = new_search(scheduler=scheduler)
    search.begin()
    search.report(0, 0, {"loss": 1.0, "epoch": 3, "answer": STOP})
    search.report(1, 0, {"loss": 1.0, "epoch": 2, "answer": STOP})
    assert search.ended(0, 0, STOPPED) == [Judged(0, 0, Status.COMPLETED)]
    assert search.ended(1, 0, STOPPED) == [Judged(1, 0, Status.STOPPED)]


# Pauses, clones and checkpoints.


def test_paused_trial_releases_its_slot_and_resumes_from_its_checkpoint() -> None:
    search = new_search(scheduler=PlannedScheduler(New({"x": 0}), New({"x": 1}), Resume(0)), n_workers=1)
    search.begin()
    assert search.report(0, 0, {"loss": 1.0, "answer": PAUSE}, checkpoint="a") == [Answer(0, PAUSE, 1)]
    assert search.ended(0, 0, STOPPED) == [Judged(0, 0, Status.PAUSED)]
    assert search.free(0, 0) == [start(1, 0)]
    assert search.run(1, 1.0)[-1] == start(0, 0, attempt=1, from_iter=1, checkpoint="a")
    assert search.report(0, 1, 0.5) == [Answer(0, CONTINUE, 2)]
    assert search.counts.num_trials_completed == 1


def test_repeated_reports_are_answered_but_not_observed() -> None:
    searcher = CountingSearcher()
    search = new_search(scheduler=PlannedScheduler(New({"x": 0}), Resume(0), searcher=searcher), n_workers=1)
    search.begin()
    search.report(0, 0, 3.0, checkpoint="a")
    search.report(0, 0, 2.0)
    assert search.pause(0, 1.0)[-1] == start(0, 0, attempt=1, from_iter=1, checkpoint="a")
    assert search.report(0, 1, 2.0) == [Answer(0, CONTINUE, 2, repeated=True)]
    assert search.report(0, 1, {"loss": 1.0, "answer": STOP}) == [Answer(0, CONTINUE, 3, repeated=True)]
    assert search.report(0, 1, 0.5) == [Answer(0, CONTINUE, 4)]
    assert searcher.calls == [("observe", 0, iter, loss) for iter, loss in enumerate([3.0, 2.0, 1.0, 0.5], start=1)]


def test_trial_resumed_before_its_process_has_exited_reserves_a_slot() -> None:
    search = new_search(scheduler=PlannedScheduler(New({"x": 0}), New({"x": 1}), Resume(0), New({"x": 2})))
    search.begin()
    search.report(0, 0, {"loss": 1.0, "answer": PAUSE}, checkpoint="a")
    assert search.run(1, 1.0) == [Judged(1, 0, Status.COMPLETED)], "slot 1 is reserved for trial 0"
    assert search.ended(0, 0, STOPPED) == [Judged(0, 0, Status.PAUSED)]
    assert search.free(0, 0) == [start(0, 0, attempt=1, from_iter=1, checkpoint="a"), start(2, 1)]


def test_clone_starts_from_the_last_checkpoint_of_its_source() -> None:
    scheduler = PlannedScheduler(New({"x": 0}), Clone(0, {"x": 7}), clones=True)
    search = new_search(scheduler=scheduler, n_workers=1)
    search.begin()
    search.report(0, 0, 0.5, checkpoint="a")
    assert search.run(0, 0.25)[-1] == Start(1, 0, {"x": 7}, 0, 1, "a", source=0)
    assert search.report(1, 0, 0.4) == [Answer(1, CONTINUE, 2)]
    assert scheduler.calls[-1] == ("report", 1, 2, 0.4)


def test_clone_may_start_before_the_slot_of_its_finished_source_is_free() -> None:
    scheduler = PlannedScheduler(New({"x": 0}), Wait(), Wait(), Clone(0, {"x": 7}), Wait(), clones=True)
    search = new_search(scheduler=scheduler)
    search.begin()
    search.report(0, 0, 0.5, checkpoint="a")
    search.ended(0, 0)
    assert search.send(events.TrialRequested(0)) == [Start(1, 0, {"x": 7}, 1, 1, "a", source=0)]


def test_only_the_best_finished_trial_keeps_its_checkpoint() -> None:
    search = new_search(n_workers=1)
    search.begin()
    search.report(0, 0, 0.5, checkpoint="a")
    search.run(0)
    search.report(1, 0, 0.6, checkpoint="b")
    assert search.run(1)[:2] == [Judged(1, 0, Status.COMPLETED), Discard(1, "b")]
    search.report(2, 0, 0.4, checkpoint="c")
    assert search.run(2)[:2] == [Judged(2, 0, Status.COMPLETED), Discard(2, "a")]
    assert search.core.checkpoints == {"c"}


# Limits and the end of a search.


def test_time_limit_stops_the_running_trials_at_the_next_tick() -> None:
    search = new_search(criterion=StoppingCriterion(max_wallclock_time=0.7), n_workers=1)
    search.begin(0.1)
    assert search.next_tick_s == 0.7, "times are relative to the beginning of the search"
    reason = "max_wallclock_time=0.7 s is over"
    assert search.tick(0.7) == [StopStarting(reason), Terminate(0, reason)]
    assert search.run(0, outcome=STOPPED) == [Judged(0, 0, Status.STOPPED), Finish(reason)]


def test_report_that_reaches_a_limit_is_answered_stop() -> None:
    search = new_search(criterion=StoppingCriterion(max_num_evaluations=2))
    search.begin()
    assert search.report(0, 0, 1.0) == [Answer(0, CONTINUE, 1)]
    reason = "max_num_evaluations=2 reached"
    assert search.report(1, 0, 1.0) == [Answer(1, STOP, 1), StopStarting(reason), Terminate(0, reason)]
    assert search.report(0, 0, 0.0) == [Answer(0, STOP, late=True)]
    assert search.counts.num_evaluations == 2


def test_exhausted_searcher_ends_the_search_when_no_trial_runs() -> None:
    search = new_search(CountingSearcher(3))
    search.begin()
    assert search.run(0, 1.0)[-1] == start(2, 0)
    assert search.run(2, 1.0) == [Judged(2, 0, Status.COMPLETED)]
    end = [StopStarting("searcher exhausted"), Finish("searcher exhausted")]
    assert search.run(1, 1.0)[1:] == end
    assert new_search(CountingSearcher(0)).begin() == end


def test_exhausted_searcher_is_asked_again_after_a_report_and_a_free_slot() -> None:
    searcher = CountingSearcher(2)
    search = new_search(searcher, n_workers=4)
    assert search.begin() == [start(0, 0), start(1, 1)]
    assert search.tick(1) == search.ready(0, 0) == []
    searcher.limit = 3
    assert search.report(0, 0, 1.0) == [Answer(0, CONTINUE, 1), start(2, 2)]
    searcher.limit = 5
    assert search.run(1, outcome=STOPPED)[1:] == [start(3, 1), start(4, 3)]


def test_search_fails_when_its_first_trials_fail_alike() -> None:
    search = new_search(n_workers=1)
    search.begin()
    actions: list[Action] = []
    for trial_id in range(3):
        outcome = Outcome("exception", f"KeyError: 'x'\nin trial {trial_id}", "Traceback ...", "last words")
        actions = search.run(trial_id, outcome=outcome)
    reason = "the first 3 trials to finish all failed alike"
    assert actions[1] == StopStarting(reason)
    error = (
        f"{reason} (exception): KeyError: 'x'\nin trial 2\nTraceback ...\n"
        "last output:\nlast words\nFix the objective, or set max_equal_failures=None to continue after any failure."
    )
    assert actions[-1] == Finish(reason, error, kind="equal-failures")


def test_exception_in_suggest_ends_the_search() -> None:
    searcher = CountingSearcher()
    search = new_search(searcher)
    search.begin()
    searcher.error = ZeroDivisionError("oops")
    reason = "the searcher failed"
    assert search.run(0, 1.0)[1:] == [StopStarting(reason), Terminate(1, reason)]
    text = "the searcher CountingSearcher raised ZeroDivisionError: oops"
    assert search.run(1, outcome=STOPPED)[-1] == Finish(reason, text, kind="searcher")


def test_exception_in_observe_ends_the_search() -> None:
    searcher = CountingSearcher()
    search = new_search(searcher)
    search.begin()
    searcher.error_on_observe = KeyError("oops")
    reason = "the searcher failed"
    assert search.report(1, 0, 1.0) == [Answer(1, STOP, 1), StopStarting(reason), Terminate(0, reason)]
    search.run(0)
    finish = search.run(1)[-1]
    assert isinstance(finish, Finish)
    assert (finish.kind, finish.error) == ("searcher", "the searcher CountingSearcher raised KeyError: 'oops'")
    assert finish.cause is searcher.error_on_observe


def test_exception_in_on_end_of_the_searcher_names_the_searcher() -> None:
    class FailingSearcher(CountingSearcher):
        def on_end(self, trial_id: int, status: str) -> None:
            raise OSError("disk full")

    search = new_search(FailingSearcher())
    search.begin()
    search.run(1, 1.0)
    finish = search.run(0, 1.0)[-1]
    assert isinstance(finish, Finish)
    assert (finish.kind, finish.error) == ("searcher", "the searcher FailingSearcher raised OSError: disk full")


def test_first_error_of_a_search_is_the_one_reported() -> None:
    class FailingScheduler(PlannedScheduler):
        def on_end(self, trial_id: int, status: Status) -> None:
            raise OSError(f"end of trial {trial_id}")

    search = new_search(scheduler=FailingScheduler())
    search.begin()
    search.run(1, 1.0)
    finish = search.run(0, 1.0)[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.error) == ("the scheduler failed", "the scheduler raised OSError: end of trial 1")


def test_first_interrupt_stops_trials_and_the_second_kills_them() -> None:
    search = new_search()
    search.begin()
    terminates = [Terminate(0, "interrupted"), Terminate(1, "interrupted")]
    assert search.interrupt(1) == [StopStarting("interrupted"), *terminates]
    assert search.run(0, outcome=STOPPED) == [Judged(0, 0, Status.STOPPED)]
    assert search.interrupt(2) == [Kill(1, "interrupted twice")]
    assert search.interrupt(3) == []
    assert search.run(1, outcome=CRASH)[-1] == Finish("interrupted")
    assert search.interrupt(4) == []


def test_interrupt_before_the_beginning_finishes_the_search() -> None:
    search = new_search()
    assert search.interrupt(0) == [StopStarting("interrupted"), Finish("interrupted")]
    assert search.begin(1) == []


# A searcher in its own thread.


def test_suggestion_is_requested_ahead_and_only_a_free_slot_waits_for_it() -> None:
    search = new_search(SlowSearcher(), n_workers=1)
    (suggest,) = search.begin()
    assert isinstance(suggest, Suggest)
    assert (suggest.number, suggest.context.trial_id, suggest.context.suggest_timeout_s) == (0, 0, 2.0)
    assert search.next_tick_s == 2
    first_start, ahead = search.send(suggested(0, 0, 1))
    assert first_start == start(0, 0)
    assert isinstance(ahead, Suggest) and ahead.number == 1
    assert search.next_tick_s is None, "no slot waits"
    assert search.report(0, 0, 1.0, now_s=9) == [Answer(0, CONTINUE, 1)]
    assert search.send(suggested(1, 1, 10)) == []
    assert search.ended(0, 0, now_s=11) == [Judged(0, 0, Status.COMPLETED)]
    assert search.free(0, 0, now_s=11)[0] == start(1, 0)


def test_slow_searcher_is_replaced_by_a_random_configuration() -> None:
    search = new_search(SlowSearcher(), n_workers=1)
    search.begin()
    assert search.tick(1.9) == []
    fallback, ahead = search.tick(2)
    assert isinstance(fallback, Start) and fallback.fallback
    assert fallback.config == SPACE.check(fallback.config)
    assert isinstance(ahead, Suggest) and ahead.number == 1
    assert search.send(suggested(0, 5, 3)) == []
    assert search.send(suggested(0, 5, 3, error="too late to matter")) == []
    other = new_search(SlowSearcher(), n_workers=1)
    other.begin()
    assert other.tick(2)[0] == fallback, "the same seed draws the same configuration"


def test_searcher_that_fails_after_the_end_changes_nothing() -> None:
    search = new_search(SlowSearcher(), StoppingCriterion(max_num_evaluations=1), n_workers=1)
    search.begin()
    search.send(suggested(0, 0))
    search.report(0, 0, 1.0)
    assert search.run(0)[-1] == Finish("max_num_evaluations=1 reached")
    assert search.send(suggested(1, None, 1, "oops")) == []
    assert search.core.is_finished


# Users.


def test_trial_paused_by_a_user_pauses_at_its_next_report_until_the_user_resumes_it() -> None:
    scheduler = PlannedScheduler()
    search = new_search(scheduler=scheduler, n_workers=1)
    search.begin()
    assert search.command("pause", 0) == []
    assert search.report(0, 0, 1.0, checkpoint="a") == [Answer(0, PAUSE, 1)]
    assert search.ended(0, 0, STOPPED) + search.free(0, 0) == [Judged(0, 0, Status.PAUSED), start(1, 0)]
    assert search.command("resume", 0) == [], "no slot is free"
    assert search.run(1, 1.0)[-1] == start(0, 0, attempt=1, from_iter=1, checkpoint="a")
    assert scheduler.calls == [("report", 0, 1, 1.0), ("report", 1, 1, 1.0), ("end", 1, Status.COMPLETED)]


def test_trial_paused_by_scheduler_and_user_resumes_when_both_resume_it() -> None:
    search = new_search(scheduler=PlannedScheduler(New({"x": 0}), New({"x": 1}), Resume(0)), n_workers=1)
    search.begin()
    search.pause(0)
    search.command("pause", 0)
    assert search.run(1, 1.0)[-1] == start(2, 0)
    search.command("resume", 0)
    assert search.run(2, 1.0)[-1] == start(0, 0, attempt=1)


def test_trial_stopped_by_a_user_is_terminated_and_not_retried() -> None:
    scheduler = PlannedScheduler()
    search = new_search(scheduler=scheduler, n_workers=1, retries=1)
    search.begin()
    assert search.command("stop", 0) == [Terminate(0, "stopped by hand")]
    assert search.command("stop", 0) == []
    assert search.run(0, outcome=CRASH) == [Judged(0, 0, Status.STOPPED), start(1, 0)]
    assert scheduler.calls == [("end", 0, Status.STOPPED)]


def test_enqueued_configuration_is_the_next_new_trial() -> None:
    search = new_search(n_workers=1)
    search.begin()
    assert search.send(events.Enqueued(0, {"x": 77})) == []
    assert search.run(0, 1.0)[-1] == Start(1, 0, {"x": 77}, 0)
    assert search.run(1, 1.0)[-1] == Start(2, 0, {"x": 1}, 0)


def test_without_workers_a_trial_starts_only_on_request() -> None:
    search = new_search(n_workers=0)
    assert search.begin() == []
    assert search.send(events.TrialRequested(0)) == [start(0, 0)]
    assert search.run(0, 1.0) == [Judged(0, 0, Status.COMPLETED)]
    assert search.send(events.TrialRequested(0)) == [start(1, 0)]


# Resumed searches.


def test_killed_search_restarts_its_trials_from_their_checkpoints() -> None:
    scheduler = PlannedScheduler()
    search = new_search(scheduler=scheduler, n_workers=3)
    search.begin()
    search.report(0, 0, 0.5)
    search.report(2, 0, 0.4, checkpoint="c")
    search.report(2, 0, 0.3)
    assert search.send(events.Resumed(0)) == [
        start(0, 0, attempt=1),
        start(1, 1, attempt=1),
        start(2, 2, attempt=1, from_iter=1, checkpoint="c"),
    ]
    assert scheduler.calls[-2:] == [("rollback", 0, 0), ("rollback", 2, 1)]
    assert search.core.best == BestReport(0.4, 2, {"x": 2}, 1)
    assert search.report(0, 0, 0.1) == [Answer(0, STOP, late=True)], "from a process that is gone"


def test_interrupted_search_continues_with_its_trials() -> None:
    scheduler = PlannedScheduler()
    search = new_search(scheduler=scheduler, n_workers=1)
    search.begin()
    search.report(0, 0, 0.5, checkpoint="a")
    search.interrupt()
    assert search.ended(0, 0, STOPPED) == [Judged(0, 0, Status.STOPPED)]
    assert search.free(0, 0) == [Finish("interrupted")]
    assert search.counts.num_trials_stopped == 1
    assert ("end", 0, Status.STOPPED) not in scheduler.calls
    assert search.send(events.Resumed(0)) == [start(0, 0, attempt=1, from_iter=1, checkpoint="a")]
    assert search.counts.num_trials_stopped == 0
    assert search.run(0, 0.4, attempt=1) == [Judged(0, 1, Status.COMPLETED), start(1, 0)]


def test_trials_asked_to_stop_or_pause_before_the_kill_do_not_run_again() -> None:
    scheduler = PlannedScheduler(New({"x": 0}), New({"x": 1}), New({"x": 2}), Wait())
    search = new_search(scheduler=scheduler, n_workers=3, trial_timeout_s=9)
    search.begin()
    search.report(0, 0, {"loss": 1.0, "answer": STOP})
    search.report(1, 0, {"loss": 1.0, "answer": PAUSE}, checkpoint="b")
    search.ready(2, 0)
    search.tick(9)
    assert search.send(events.Resumed(10)) == [
        Judged(0, 0, Status.STOPPED),
        Judged(1, 0, Status.PAUSED),
        Judged(2, 0, Status.FAILED, Reason("time-out", "still running 9 s after it began (trial_timeout_s)")),
        StopStarting("the scheduler has nothing left to run"),
        Finish("the scheduler has nothing left to run"),
    ]
    assert search.core.checkpoints == {"b"}


def test_search_killed_before_its_beginning_begins() -> None:
    assert new_search(n_workers=1).send(events.Resumed(0)) == [start(0, 0)]


def test_resumed_search_may_have_another_number_of_workers() -> None:
    search = new_search(n_workers=2)
    search.begin()
    assert search.send(events.Resumed(9, n_workers=1)) == [start(0, 0, attempt=1)]
    assert search.run(0, 1.0, attempt=1)[-1] == start(1, 0, attempt=1)
    assert search.send(events.Resumed(9, n_workers=2)) == [start(1, 0, attempt=2), start(2, 1)]


def test_finished_search_continues_with_another_limit() -> None:
    search = new_search(criterion=StoppingCriterion(max_num_trials_started=1), n_workers=1)
    search.begin()
    search.run(0, 1.0)
    assert search.core.is_finished
    stop = {"max_num_trials_started": 2}
    expected = [start(1, 0), StopStarting("max_num_trials_started=2 reached")]
    assert search.send(events.Resumed(1, stop=stop)) == expected


def test_trial_stopped_by_asha_before_the_kill_does_not_run_again() -> None:
    options = {"metric": "loss", "max_t": 9, "grace_period": 1, "reduction_factor": 3, "random_seed": 0}
    scheduler = ASHA(type="stopping", **options)  # type: ignore[arg-type]  # of different types
    scheduler.begin(SPACE, 0)
    search = new_search(scheduler=scheduler, n_workers=1)
    search.begin()
    for trial_id in range(3):  # each is worse than the one before; the third is stopped at the first rung
        search.report(trial_id, 0, float(trial_id))
        if trial_id < 2:
            search.ended(trial_id, 0, DONE)
            search.free(trial_id, 0)
    actions = search.send(events.Resumed(9))
    assert actions[0] == Judged(2, 0, Status.STOPPED)
    assert [action.trial_id for action in actions if isinstance(action, Start)] == [3]


def test_a_trial_without_memory_on_its_share_of_a_gpu_is_retried_once_with_a_whole_one() -> None:
    search = new_search(n_workers=1)
    search.begin(0)
    out_of_memory = Outcome("out-of-memory", "CUDA out of memory", retry_alone=True)
    assert search.run(0, outcome=out_of_memory)[-1] == replace(start(0, 0, attempt=1), alone=True)
    assert search.run(0, attempt=1, outcome=out_of_memory)[-1] == start(1, 0)
    assert search.run(1, outcome=Outcome("out-of-memory", "MemoryError"))[-1] == start(2, 0)
