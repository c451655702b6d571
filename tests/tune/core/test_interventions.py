"""A search that is killed and goes on, and what people change on the way: trials, workers, limits."""

from typing import Any

import pytest

from fanwise.testing.told_search import (
    CONTINUE,
    CRASH,
    PAUSE,
    STOP,
    STOPPED,
    Scripted,
    Search,
    Thinks,
    Told,
    start,
    suggested,
    tuning_of,
)
from fanwise.tune.core import events
from fanwise.tune.core.actions import (
    Action,
    Answer,
    BestReport,
    Finish,
    Judged,
    Reason,
    Start,
    StopStarting,
    Terminate,
)
from fanwise.tune.schedulers import (
    Clone,
    New,
    Resume,
    Status,
    Wait,
)
from fanwise.tune.stopping import StoppingCriterion

# Killed, and on again


def resumed(core: Search, now_s: float = 0.0) -> list[Action]:
    return core.hand(events.Resumed(now_s))


def test_after_a_kill_what_ran_runs_first_from_its_checkpoints_in_order() -> None:
    scheduler = Told()
    core = tuning_of(scheduler=scheduler, n_workers=3)
    core.begin()
    core.report(0, 0, 0.5)
    core.report(2, 0, 0.4, checkpoint="c")
    core.report(2, 0, 0.3)
    assert resumed(core) == [
        start(0, 0, attempt=1),
        start(1, 1, attempt=1),
        start(2, 2, attempt=1, from_iter=1, checkpoint="c"),
    ]
    assert scheduler.heard[-2:] == [("rewind", 0, 0), ("rewind", 2, 1)]
    assert core.best == BestReport(0.4, 2, {"x": 2}, 1)
    assert core.counts.num_trials_finished == 0
    assert core.report(0, 0, 0.1) == [Answer(0, STOP, late=True)], "of a process that is gone"


def test_a_search_that_was_interrupted_goes_on_where_it_was() -> None:
    scheduler = Told()
    core = tuning_of(scheduler=scheduler, n_workers=1)
    core.begin()
    core.report(0, 0, 0.5, checkpoint="a")
    core.interrupt()
    assert core.ended(0, 0, STOPPED) == [Judged(0, 0, Status.STOPPED)]
    assert core.free(0, 0) == [Finish("interrupted")]
    assert core.counts.num_trials_stopped == 1
    assert ("end", 0, Status.STOPPED) not in scheduler.heard
    assert resumed(core) == [start(0, 0, attempt=1, from_iter=1, checkpoint="a")]
    assert core.counts.num_trials_stopped == 0
    assert core.run(0, 0.4, attempt=1) == [Judged(0, 1, Status.COMPLETED), start(1, 0)]


def test_the_last_trials_of_a_killed_search_come_to_their_end() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_num_trials_started=2))
    core.begin()
    core.run(0, 1.0)
    reason = "max_num_trials_started=2 reached"
    assert resumed(core) == [StopStarting(reason), start(1, 0, attempt=1)]
    assert core.run(1, 1.0, attempt=1) == [Judged(1, 1, Status.COMPLETED), Finish(reason)]


def test_a_search_whose_time_is_over_ends_at_once_when_it_is_resumed() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_wallclock_time=10))
    core.begin()
    reason = "max_wallclock_time=10 s is over"
    assert resumed(core, 11) == [StopStarting(reason), Finish(reason)]


def test_a_retry_that_was_promised_happens_after_a_kill() -> None:
    scheduler = Told()
    core = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    core.begin()
    core.report(0, 0, 0.5)
    core.ended(0, 0, CRASH)
    assert resumed(core) == [start(0, 0, attempt=1)]
    assert scheduler.heard == [("report", 0, 1, 0.5), ("rewind", 0, 0)]


def test_who_was_told_to_stop_or_pause_before_the_kill_does_not_run_again() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), New({"x": 2}), Wait())
    core = tuning_of(scheduler=scheduler, n_workers=3, trial_timeout_s=9)
    core.begin()
    core.report(0, 0, {"loss": 1.0, "answer": STOP})
    core.report(1, 0, {"loss": 1.0, "answer": PAUSE}, checkpoint="b")
    core.ready(2, 0)
    core.tick(9)
    late = Reason("time-out", "still running 9 s after it began (trial_timeout_s)")
    assert resumed(core, 10) == [
        Judged(0, 0, Status.STOPPED),
        Judged(1, 0, Status.PAUSED),
        Judged(2, 0, Status.FAILED, late),
        StopStarting("the scheduler has nothing left to run"),
        Finish("the scheduler has nothing left to run"),
    ]
    assert core.core.checkpoints == {"b"}


def test_a_suggestion_made_ahead_outlasts_the_kill() -> None:
    core = tuning_of(Thinks(), n_workers=1)
    core.begin()
    core.hand(suggested(0, 0))
    core.hand(suggested(1, 1))
    assert resumed(core) == [start(0, 0, attempt=1)]
    assert core.run(0, 1.0, attempt=1)[1] == start(1, 0)


def test_a_search_that_was_killed_before_it_began_begins() -> None:
    assert resumed(tuning_of(n_workers=1)) == [start(0, 0)]


# A person's commands


def command(core: Search, what: Any, trial_id: int) -> list[Action]:  # Any: one of three words
    return core.hand(events.Command(0.0, what, trial_id))


def test_a_trial_paused_by_hand_pauses_at_its_next_report_and_goes_on_by_hand_alone() -> None:
    scheduler = Told()
    core = tuning_of(scheduler=scheduler, n_workers=1)
    core.begin()
    assert command(core, "pause", 0) == []
    assert core.report(0, 0, 1.0, checkpoint="a") == [Answer(0, PAUSE, 1)]
    assert core.ended(0, 0, STOPPED) + core.free(0, 0) == [Judged(0, 0, Status.PAUSED), start(1, 0)]
    assert command(core, "resume", 0) == [], "no slot is free"
    assert core.run(1, 1.0)[-1] == start(0, 0, attempt=1, from_iter=1, checkpoint="a")
    assert scheduler.heard == [("report", 0, 1, 1.0), ("report", 1, 1, 1.0), ("end", 1, Status.COMPLETED)]


def test_a_hold_outlasts_the_schedulers_wish_to_go_on() -> None:
    core = tuning_of(scheduler=Told(New({"x": 0}), New({"x": 1}), Resume(0)), n_workers=1)
    core.begin()
    core.pause(0)
    command(core, "pause", 0)
    assert core.run(1, 1.0)[-1] == start(2, 0)
    command(core, "resume", 0)
    assert core.run(2, 1.0)[-1] == start(0, 0, attempt=1)


def test_a_command_to_pause_can_be_taken_back() -> None:
    core = tuning_of(n_workers=1)
    core.begin()
    command(core, "pause", 0)
    command(core, "resume", 0)
    assert core.report(0, 0, 1.0) == [Answer(0, CONTINUE, 1)]


def test_the_search_waits_for_the_person_who_holds_its_only_trial() -> None:
    core = tuning_of(Scripted(1), n_workers=1)
    core.begin()
    command(core, "pause", 0)
    core.report(0, 0, 1.0)
    assert core.ended(0, 0, STOPPED) + core.free(0, 0) == [Judged(0, 0, Status.PAUSED)]
    assert command(core, "resume", 0) == [start(0, 0, attempt=1)]


def test_a_running_trial_stopped_by_hand_is_terminated_and_over() -> None:
    scheduler = Told()
    core = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    core.begin()
    assert command(core, "stop", 0) == [Terminate(0, "stopped by hand")]
    assert command(core, "stop", 0) == []
    assert core.run(0, outcome=CRASH) == [Judged(0, 0, Status.STOPPED), start(1, 0)]
    assert scheduler.heard == [("end", 0, Status.STOPPED)]


def test_a_paused_trial_stopped_by_hand_is_over_and_on_record() -> None:
    scheduler = Told()
    core = tuning_of(scheduler=scheduler, n_workers=1)
    core.begin()
    core.pause(0, checkpoint="a")
    core.report(1, 0, 0.5)
    assert command(core, "stop", 0) == [Judged(0, 0, Status.STOPPED)]
    assert core.core.checkpoints == {"a"}, "of the best trial that is over"
    assert scheduler.heard[-1] == ("end", 0, Status.STOPPED)
    assert core.counts.num_trials_stopped == 1
    assert command(core, "stop", 0) == []


def test_a_trial_stopped_by_hand_while_it_pauses_does_not_go_on_although_the_scheduler_says_so() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Resume(0), New({"x": 2}), New({"x": 3}))
    core = tuning_of(scheduler=scheduler)
    core.begin()
    core.report(0, 0, {"loss": 1.0, "answer": PAUSE})
    command(core, "stop", 0)
    assert core.run(1, 1.0) == [Judged(1, 0, Status.COMPLETED)]
    core.ended(0, 0, STOPPED)
    assert core.free(0, 0) == [Judged(0, 0, Status.STOPPED), start(2, 0), start(3, 1)]


def test_a_trial_stopped_by_hand_between_its_crash_and_its_retry_does_not_start_again() -> None:
    scheduler = Told()
    core = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    core.begin()
    core.ended(0, 0, CRASH)
    command(core, "stop", 0)
    assert core.free(0, 0) == [Judged(0, 0, Status.FAILED), start(1, 0)]
    assert scheduler.heard == [("end", 0, Status.FAILED)]


def test_a_trial_that_waits_for_a_slot_can_be_paused_and_stopped_by_hand() -> None:
    core = tuning_of(n_workers=3)
    core.begin()
    assert core.hand(events.Resumed(0, n_workers=1)) == [start(0, 0, attempt=1)]
    assert command(core, "pause", 1) == []
    assert command(core, "stop", 2) == [Judged(2, 0, Status.STOPPED)]
    assert core.run(0, 1.0, attempt=1)[-1] == start(3, 0)
    command(core, "resume", 1)
    assert core.run(3, 1.0)[-1] == start(1, 0, attempt=1)


def test_a_clone_of_a_trial_paused_by_hand_starts_from_its_checkpoint_too() -> None:
    scheduler = Told()
    core = tuning_of(scheduler=scheduler, n_workers=1)
    core.begin()
    command(core, "pause", 0)
    scheduler.plan = [Clone(0, {"x": 7})]
    core.report(0, 0, 1.0, checkpoint="a")
    core.ended(0, 0, STOPPED)
    assert core.free(0, 0) == [Start(1, 0, {"x": 7}, 0, 1, "a", source=0)]


def test_commands_about_trials_that_are_over_or_never_were_change_nothing() -> None:
    core = tuning_of(n_workers=1)
    core.begin()
    core.run(0, 1.0)
    for what in ("pause", "resume", "stop"):
        assert command(core, what, 0) == command(core, what, 9) == []


def test_an_enqueued_configuration_is_the_next_new_trial() -> None:
    core = tuning_of(n_workers=1)
    core.begin()
    assert core.hand(events.Enqueued(0, {"x": 77})) == []
    assert core.run(0, 1.0)[-1] == Start(1, 0, {"x": 77}, 0)
    assert core.run(1, 1.0)[-1] == Start(2, 0, {"x": 1}, 0)


def test_an_enqueued_configuration_starts_at_once_where_the_searcher_has_nothing() -> None:
    core = tuning_of(Scripted(1))
    core.begin()
    assert core.hand(events.Enqueued(0, {"x": 77})) == [Start(1, 0, {"x": 77}, 1)]


def test_a_search_that_has_ended_goes_on_with_another_limit() -> None:
    core = tuning_of(criterion=StoppingCriterion(max_num_trials_started=1), n_workers=1)
    core.begin()
    core.run(0, 1.0)
    stop = StoppingCriterion(max_num_trials_started=2).to_json()
    assert core.hand(events.Resumed(1, stop=stop)) == [start(1, 0), StopStarting("max_num_trials_started=2 reached")]


# The number of workers changes


def workers(core: Search, n_workers: int) -> list[Action]:
    return core.hand(events.Workers(0, n_workers))


def test_with_more_workers_trials_start_at_once() -> None:
    core = tuning_of(n_workers=1)
    core.begin()
    assert workers(core, 3) == [start(1, 1), start(2, 2)]
    assert workers(core, 3) == []


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_with_fewer_workers_no_trial_starts_until_fewer_run_whichever_end_first(order: tuple[int, ...]) -> None:
    core = tuning_of(n_workers=3)
    core.begin()
    assert workers(core, 1) == []
    first, second, third = order
    assert core.run(first, 1.0) == [Judged(first, 0, Status.COMPLETED)]
    assert core.run(second, 1.0) == [Judged(second, 0, Status.COMPLETED)]
    assert core.run(third, 1.0) == [Judged(third, 0, Status.COMPLETED), start(3, 0)]


def test_a_number_that_is_lowered_and_raised_again_does_not_give_a_slot_twice() -> None:
    core = tuning_of(n_workers=3)
    core.begin()
    workers(core, 1)
    core.run(1, 1.0)
    assert workers(core, 4) == [start(3, 1), start(4, 3)]


def test_a_trial_that_crashes_is_tried_again_when_fewer_trials_than_workers_run() -> None:
    core = tuning_of(n_workers=2, retries=1)
    core.begin()
    workers(core, 1)
    assert start(0, 0, attempt=1) not in core.run(0, outcome=CRASH)
    assert core.run(1, 1.0)[-1] == start(0, 0, attempt=1)


def test_the_slot_that_waits_for_a_trial_that_pauses_counts_as_busy() -> None:
    scheduler = Told()
    core = tuning_of(scheduler=scheduler, n_workers=2)
    core.begin()
    scheduler.plan = [Resume(0)]
    core.report(0, 0, {"loss": 1.0, "answer": PAUSE}, checkpoint="a")
    assert core.run(1, 1.0) == [Judged(1, 0, Status.COMPLETED)], "its slot waits for trial 0"
    workers(core, 1)
    core.ended(0, 0, STOPPED)
    assert core.free(0, 0) == [start(0, 0, attempt=1, from_iter=1, checkpoint="a")]


def test_a_synchronous_search_uses_another_number_of_workers_from_its_next_batch_on() -> None:
    core = tuning_of(n_workers=1, asynchronous=False)
    core.begin()
    assert workers(core, 3) == [], "the batch is full"
    assert core.run(0, 1.0)[1:] == [start(1, 0), start(2, 1), start(3, 2)]
    workers(core, 2)
    assert [core.run(trial_id, 1.0)[1:] for trial_id in (1, 2, 3)] == [[], [], [start(4, 0), start(5, 1)]]


def test_the_number_of_workers_of_a_search_that_is_ending_starts_nothing() -> None:
    core = tuning_of(n_workers=1)
    core.begin()
    core.interrupt()
    assert workers(core, 3) == []
