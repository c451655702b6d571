"""When a search ends, and how: its limits, failures that are all alike, Ctrl-C, schedulers that have nothing more."""

import math
from collections.abc import Callable

import pytest

from fanwise.testing.told_search import (
    CONTINUE,
    CRASH,
    DONE,
    SPACE,
    STOP,
    STOPPED,
    Scripted,
    Search,
    Told,
    play,
    start,
    tuning_of,
)
from fanwise.tune.core.actions import (
    Answer,
    Finish,
    Judged,
    Kill,
    Start,
    StopStarting,
    Terminate,
)
from fanwise.tune.core.events import Outcome
from fanwise.tune.schedulers import (
    FIFO,
    Done,
    New,
    Resume,
    Status,
    Wait,
)
from fanwise.tune.stopping import StoppingCriterion

# Schedules


def test_asynchronous_search_starts_a_trial_the_moment_a_worker_is_free() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_num_trials_started=5))
    lines, finished_s = play(core, [4, 1, 2, 2, 3])
    assert sorted(lines) == [(0, 0, 0, 4), (0, 4, 4, 7), (1, 1, 0, 1), (1, 2, 1, 3), (1, 3, 3, 5)]
    assert finished_s == 7


def test_synchronous_search_waits_for_the_whole_batch() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_num_trials_started=5), asynchronous=False)
    lines, finished_s = play(core, [4, 1, 2, 2, 3])
    assert sorted(lines) == [(0, 0, 0, 4), (0, 2, 4, 6), (0, 4, 6, 9), (1, 1, 0, 1), (1, 3, 4, 6)]
    assert finished_s == 9


def test_the_books_search_starts_twelve_trials_and_completes_ten() -> None:
    durations_s = [108.0, 140.0, 190.0, 95.0, 150.0, 120.0, 130.0, 110.0, 135.0, 145.0, 120.0, 125.0]
    core = tuning_of(criterion=StoppingCriterion(max_wallclock_time=720))
    _, finished_s = play(core, durations_s)
    counts = core.counts
    assert finished_s == 720
    assert (counts.num_trials_started, counts.num_trials_completed, counts.num_trials_stopped) == (12, 10, 2)


def test_k_workers_do_k_times_as_many_trials() -> None:
    for n_workers in (1, 2, 4, 8):
        core = tuning_of(criterion=StoppingCriterion(max_wallclock_time=100), n_workers=n_workers)
        play(core, [7.0] * 200)
        assert core.counts.num_trials_completed == 14 * n_workers


def test_the_smallest_free_slot_is_taken_first_and_stays_busy_until_it_is_free() -> None:
    core = tuning_of(n_workers=3)
    assert core.begin(0) == [start(0, 0), start(1, 1), start(2, 2)]
    core.report(1, 0, {"loss": 1}, now_s=1)
    assert core.ended(1, 0, DONE, now_s=2) == [Judged(1, 0, Status.COMPLETED)]
    assert core.free(1, 0, now_s=3) == [start(3, 1)]


def test_random_search_runs_the_first_point_first() -> None:
    scheduler = FIFO(metric="loss", points_to_evaluate=[{"x": 5}])
    scheduler.begin(SPACE, 0)
    actions = tuning_of(scheduler=scheduler).begin()
    assert actions[0] == Start(0, 0, {"x": 5}, 0)
    assert len(actions) == 2


# Limits


def test_after_the_last_start_the_running_trials_finish() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_num_trials_started=2))
    reason = "max_num_trials_started=2 reached"
    assert core.begin(0) == [start(0, 0), start(1, 1), StopStarting(reason)]
    assert core.report(0, 0, {"loss": 1}, now_s=1) == [Answer(0, CONTINUE, 1)]
    assert core.run(0, 1.0) == [Judged(0, 0, Status.COMPLETED)]
    assert core.run(1, 1.0)[-1] == Finish(reason)
    assert core.core.is_finished


def test_the_wallclock_stops_the_running_trials_at_the_tick_it_asked_for() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_wallclock_time=0.7), n_workers=1)
    core.begin(0.1)
    tick_s = core.next_tick_s
    assert tick_s == 0.7, "times count from the beginning of the search"
    reason = "max_wallclock_time=0.7 s is over"
    assert core.tick(tick_s) == [StopStarting(reason), Terminate(0, reason)]
    assert core.run(0, outcome=STOPPED) == [
        Judged(0, 0, Status.STOPPED),
        Finish(reason),
    ]


def test_the_report_that_reaches_a_limit_is_answered_stop_and_the_others_are_terminated() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_num_evaluations=2))
    core.begin(0)
    assert core.report(0, 0, {"loss": 1}, now_s=1) == [Answer(0, CONTINUE, 1)]
    reason = "max_num_evaluations=2 reached"
    assert core.report(1, 0, {"loss": 1}, now_s=1) == [
        Answer(1, STOP, 1),
        StopStarting(reason),
        Terminate(0, reason),
    ]
    assert core.report(0, 0, {"loss": 0}, now_s=1) == [Answer(0, STOP, late=True)]
    assert core.counts.num_evaluations == 2


def test_a_report_after_the_wallclock_is_answered_stop_before_any_tick() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_wallclock_time=10), n_workers=1)
    core.begin(0)
    reason = "max_wallclock_time=10 s is over"
    assert core.report(0, 0, {"loss": 1}, now_s=11) == [Answer(0, STOP, 1), StopStarting(reason)]


def test_no_trial_starts_in_a_slot_that_becomes_free_after_the_wallclock() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_wallclock_time=10), n_workers=1)
    core.begin(0)
    core.report(0, 0, 1.0)
    core.ended(0, 0, now_s=1)
    reason = "max_wallclock_time=10 s is over"
    assert core.free(0, 0, now_s=11) == [StopStarting(reason), Finish(reason)]


def test_a_limit_reached_while_the_last_trials_finish_stops_them() -> None:
    criterion = StoppingCriterion(max_num_trials_started=2, min_metric_value=0.1)
    core = tuning_of(criterion=criterion)
    core.begin(0)
    reason = "loss 0.05 is at or below min_metric_value=0.1"
    assert core.report(0, 0, {"loss": 0.05}, now_s=0) == [Answer(0, STOP, 1), Terminate(1, reason)]
    core.run(0)
    assert core.run(1)[-1] == Finish(reason)


def test_an_exhausted_searcher_ends_the_search_when_nothing_runs() -> None:
    core = tuning_of(Scripted(3))
    core.begin(0)
    assert core.run(0, 1.0)[-1] == start(2, 0)
    assert core.run(2, 1.0) == [Judged(2, 0, Status.COMPLETED)]
    end = [StopStarting("searcher exhausted"), Finish("searcher exhausted")]
    assert core.run(1, 1.0)[1:] == end
    empty = tuning_of(Scripted(0))
    assert empty.begin(0) == end


def test_a_searcher_that_had_nothing_is_asked_again_when_something_was_reported_or_a_slot_is_free() -> None:
    searcher = Scripted(2)
    core = tuning_of(searcher, n_workers=4)
    assert core.begin(0) == [start(0, 0), start(1, 1)]
    assert core.tick(1) == core.ready(0, 0) == []
    searcher.left = 3
    assert core.report(0, 0, 1.0) == [Answer(0, CONTINUE, 1), start(2, 2)]
    searcher.left = 5
    assert core.run(1, outcome=STOPPED)[1:] == [start(3, 1), start(4, 3)]


# Failures of the whole search


def test_the_search_fails_when_its_first_trials_fail_alike() -> None:
    core = tuning_of(n_workers=1)
    core.begin(0)
    for trial_id in range(3):
        outcome = Outcome("exception", f"KeyError: 'x'\nin trial {trial_id}", "Traceback ...", "last words")
        actions = core.run(trial_id, outcome=outcome)
    reason = "the first 3 trials to finish all failed alike"
    assert actions[1] == StopStarting(reason)
    finish = actions[-1]
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
    core = tuning_of(n_workers=1)
    core.begin(0)
    same = Outcome("exception", "same")
    for trial_id, outcome in enumerate([same, second, same, same, same, same]):
        assert core.run(trial_id, 1.0, outcome=outcome)[-1] == start(trial_id + 1, 0)


def test_a_search_that_may_fail_for_ever_goes_on() -> None:
    core = tuning_of(n_workers=1, max_equal_failures=None)
    core.begin(0)
    for trial_id in range(20):
        assert core.run(trial_id, outcome=CRASH)[-1] == start(trial_id + 1, 0)


def test_attempts_of_one_trial_count_as_one_failure() -> None:
    core = tuning_of(n_workers=1, max_equal_failures=2, retries=3)
    core.begin(0)
    for attempt in range(4):
        actions = core.run(0, outcome=CRASH, attempt=attempt)
    assert actions[-1] == start(1, 0)


def test_what_the_searcher_raises_while_suggesting_ends_the_search_in_order() -> None:
    searcher = Scripted()
    core = tuning_of(searcher)
    core.begin(0)
    searcher.error = ZeroDivisionError("oops")
    reason = "the searcher failed"
    assert core.run(0, 1.0)[1:] == [StopStarting(reason), Terminate(1, reason)]
    text = "the searcher Scripted raised ZeroDivisionError: oops"
    assert core.run(1, outcome=STOPPED)[-1] == Finish(reason, text, kind="searcher")


def test_what_the_searcher_raises_while_observing_ends_the_search_in_order() -> None:
    searcher = Scripted()
    core = tuning_of(searcher)
    core.begin(0)
    searcher.error_on_observe = KeyError("oops")
    reason = "the scheduler failed"
    assert core.report(1, 0, {"loss": 1.0}, now_s=0) == [
        Answer(1, STOP, 1),
        StopStarting(reason),
        Terminate(0, reason),
    ]
    core.run(0)
    finish = core.run(1)[-1]
    assert isinstance(finish, Finish)
    assert finish.cause is searcher.error_on_observe


def test_the_first_error_of_a_search_is_the_one_that_is_told() -> None:
    class BreaksAtEnds(Told):
        def on_end(self, trial_id: int, status: Status) -> None:
            raise OSError(f"end of trial {trial_id}")

    core = tuning_of(scheduler=BreaksAtEnds())
    core.begin(0)
    core.run(1, 1.0)
    finish = core.run(0, 1.0)[-1]
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.error) == ("the scheduler failed", "the scheduler raised OSError: end of trial 1")


# Ctrl-C


def test_the_first_interrupt_stops_gently_and_the_second_kills() -> None:
    core = tuning_of()
    core.begin(0)
    assert core.interrupt(1) == [
        StopStarting("interrupted"),
        Terminate(0, "interrupted"),
        Terminate(1, "interrupted"),
    ]
    assert core.run(0, outcome=STOPPED) == [Judged(0, 0, Status.STOPPED)]
    assert core.interrupt(2) == [Kill(1, "interrupted twice")]
    assert core.interrupt(3) == []
    assert core.run(1, outcome=CRASH)[-1] == Finish("interrupted")
    assert core.interrupt(4) == []


def test_an_interrupt_while_the_last_trials_finish_stops_them() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_num_trials_started=1), n_workers=1)
    core.begin(0)
    assert core.interrupt(1) == [Terminate(0, "interrupted")]
    assert core.run(0)[-1] == Finish("interrupted")


def test_an_interrupt_before_the_start_finishes_at_once() -> None:
    core = tuning_of()
    assert core.interrupt(0) == [StopStarting("interrupted"), Finish("interrupted")]
    assert core.begin(1) == []


# Schedulers that have nothing more


def test_a_scheduler_that_is_done_lets_the_running_trials_end() -> None:
    core = tuning_of(scheduler=Told(New({"x": 0}), Done()))
    reason = "the scheduler has no more trials"
    assert core.begin() == [start(0, 0), StopStarting(reason)]
    assert core.run(0, 1.0)[-1] == Finish(reason)


def test_a_scheduler_that_waits_is_asked_again_at_each_report_and_each_free_slot() -> None:
    scheduler = Told(New({"x": 0}), Wait(), Wait(), New({"x": 1}))
    core = tuning_of(scheduler=scheduler)
    assert core.begin() == [start(0, 0)]
    assert core.report(0, 0, 1.0) == [Answer(0, CONTINUE, 1)]
    assert core.report(0, 0, 1.0) == [Answer(0, CONTINUE, 2), start(1, 1)]
    assert [(ask.number, ask.trial_id) for ask in scheduler.asks] == [(0, 0), (1, 1), (1, 1), (1, 1)]


def test_a_trial_that_reached_the_maximum_has_completed_though_it_was_told_to_stop() -> None:
    scheduler = Told()
    scheduler.max_resource, scheduler.resource_attr = 3.0, "epoch"
    core = tuning_of(scheduler=scheduler)
    core.begin()
    core.report(0, 0, {"loss": 1.0, "epoch": 3, "answer": STOP})
    core.report(1, 0, {"loss": 1.0, "epoch": 2, "answer": STOP})
    assert core.ended(0, 0, STOPPED) == [Judged(0, 0, Status.COMPLETED)]
    assert core.ended(1, 0, STOPPED) == [Judged(1, 0, Status.STOPPED)]


# When every trial fails


def test_a_search_whose_trials_all_fail_ends_with_the_commonest_reason() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_num_trials_started=4), n_workers=1)
    core.begin()
    for trial_id, text in enumerate(["one", "two 1", "two 2", "three"]):
        actions = core.run(trial_id, outcome=Outcome("exception", text))
    error = "all 4 trials failed; the commonest reason, 2 times, (exception): two 1"
    assert actions[-1] == Finish("max_num_trials_started=4 reached", error, kind="all-failed")


def test_a_search_of_paused_trials_has_not_failed_because_the_only_one_to_finish_did() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_num_trials_started=2), n_workers=1)
    core.begin()
    core.pause(0)
    assert core.run(1, outcome=CRASH)[-1] == Finish("max_num_trials_started=2 reached")


def test_trials_that_first_paused_are_no_failures_of_the_search_when_they_fail_on_going_on() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Resume(0), Resume(1), New({"x": 2}))
    core = tuning_of(scheduler=scheduler, n_workers=1, max_equal_failures=2)
    core.begin()
    for trial_id in (0, 1):
        core.pause(trial_id)
    core.run(0, outcome=CRASH, attempt=1)
    assert core.run(1, outcome=CRASH, attempt=1)[-1] == start(2, 0)


def test_a_trial_that_the_end_of_the_search_stops_has_not_failed() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_wallclock_time=9))
    core.begin()
    core.ended(1, 0, CRASH)
    core.tick(9.0)
    core.run(0, outcome=STOPPED)
    assert core.free(1, 0)[-1] == Finish("max_wallclock_time=9 s is over")


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
    core = tuning_of(n_workers=1, stop_grace_s=0)
    core.begin(0)
    core.interrupt(3)
    assert core.next_tick_s == 3
    (kill,) = core.tick(3)
    assert isinstance(kill, Kill)
