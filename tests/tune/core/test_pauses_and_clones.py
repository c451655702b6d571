"""Trials that pause and go on, their clones, and the checkpoints that both need."""

import pytest

from fanwise.testing.told_search import CONTINUE, CRASH, PAUSE, STOP, STOPPED, Scripted, Told, start, tuning_of
from fanwise.tune.core import events
from fanwise.tune.core.actions import (
    Answer,
    BestReport,
    Discard,
    Judged,
    Reason,
    Reject,
    Start,
)
from fanwise.tune.core.events import Outcome
from fanwise.tune.schedulers import (
    Clone,
    New,
    Resume,
    Status,
    Stop,
    Wait,
)

# Pause and go on


def test_a_paused_trial_gives_its_slot_back_and_goes_on_from_its_checkpoint() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Resume(0))
    core = tuning_of(scheduler=scheduler, n_workers=1)
    core.begin()
    actions = core.report(0, 0, {"loss": 1.0, "answer": PAUSE}, checkpoint="a", now_s=1)
    assert actions == [Answer(0, PAUSE, 1)]
    assert core.next_tick_s == 6
    assert core.ended(0, 0, STOPPED, now_s=2) == [Judged(0, 0, Status.PAUSED)]
    assert core.free(0, 0, now_s=2) == [start(1, 0)]
    assert core.run(1, 1.0)[-1] == start(0, 0, attempt=1, from_iter=1, checkpoint="a")
    assert core.report(0, 1, 0.5) == [Answer(0, CONTINUE, 2)]
    assert core.counts.num_trials_finished == 1


def test_what_a_trial_repeats_on_the_way_there_is_answered_and_not_told_again() -> None:
    searcher = Scripted()
    scheduler = Told(New({"x": 0}), Resume(0), searcher=searcher)
    core = tuning_of(scheduler=scheduler, n_workers=1)
    core.begin()
    core.report(0, 0, 3.0, checkpoint="a")
    core.report(0, 0, 2.0)
    assert core.pause(0, 1.0)[-1] == start(0, 0, attempt=1, from_iter=1, checkpoint="a")
    assert core.report(0, 1, 2.0) == [Answer(0, CONTINUE, 2, repeated=True)]
    assert core.report(0, 1, {"loss": 1.0, "answer": STOP}) == [Answer(0, CONTINUE, 3, repeated=True)]
    assert core.report(0, 1, 0.5) == [Answer(0, CONTINUE, 4)]
    told = [(0, 1, 3.0), (0, 2, 2.0), (0, 3, 1.0), (0, 4, 0.5)]
    assert scheduler.heard == [("report", *report) for report in told]
    assert searcher.heard == [("observe", *report) for report in told]
    assert core.counts.num_evaluations == 4


def test_a_trial_that_is_to_go_on_while_its_process_winds_down_keeps_a_slot_waiting() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Resume(0), New({"x": 2}))
    core = tuning_of(scheduler=scheduler)
    core.begin()
    core.report(0, 0, {"loss": 1.0, "answer": PAUSE}, checkpoint="a")
    assert core.run(1, 1.0) == [Judged(1, 0, Status.COMPLETED)], "slot 1 waits for trial 0"
    assert core.ended(0, 0, STOPPED) == [Judged(0, 0, Status.PAUSED)]
    assert core.free(0, 0) == [start(0, 0, attempt=1, from_iter=1, checkpoint="a"), start(2, 1)]


def test_a_trial_that_breaks_while_it_pauses_has_failed_and_its_waiting_slot_is_free() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Resume(0))
    core = tuning_of(scheduler=scheduler, retries=3)
    core.begin()
    core.report(0, 0, {"loss": 1.0, "answer": PAUSE})
    core.run(1, 1.0)
    reason = Reason("exception", "no")
    assert core.ended(0, 0, Outcome("exception", "no")) == [Judged(0, 0, Status.FAILED, reason)]
    assert core.free(0, 0) == [start(2, 0), start(3, 1)]
    assert scheduler.heard[-1] == ("end", 0, Status.FAILED)


def test_a_paused_trial_that_the_scheduler_gives_up_is_over_and_its_checkpoint_goes() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Stop(0))
    core = tuning_of(scheduler=scheduler, n_workers=1)
    core.begin()
    core.run(1)
    core.pause(0, 1.0, checkpoint="a")
    assert core.run(1, 0.5) == [
        Judged(1, 0, Status.COMPLETED),
        Judged(0, 0, Status.STOPPED),
        Discard(0, "a"),
        start(2, 0),
    ]
    assert scheduler.heard[-1] == ("end", 0, Status.STOPPED)


def test_a_trial_that_is_given_up_while_it_pauses_is_over_when_its_slot_is_free() -> None:
    scheduler = Told(New({"x": 0}), New({"x": 1}), Stop(0))
    core = tuning_of(scheduler=scheduler)
    core.begin()
    core.report(0, 0, {"loss": 1.0, "answer": PAUSE})
    assert core.run(1, 1.0) == [Judged(1, 0, Status.COMPLETED), start(2, 1)]
    assert core.ended(0, 0, STOPPED) == [Judged(0, 0, Status.PAUSED)]
    assert core.free(0, 0) == [Judged(0, 0, Status.STOPPED), start(3, 0)]


# Clones


def test_a_clone_starts_from_the_last_checkpoint_of_its_source_and_counts_on() -> None:
    scheduler = Told(New({"x": 0}), Clone(0, {"x": 7}), clones=True)
    core = tuning_of(scheduler=scheduler, n_workers=1)
    core.begin()
    core.report(0, 0, 0.5, checkpoint="a")
    assert core.run(0, 0.25)[-1] == Start(1, 0, {"x": 7}, 0, 1, "a", source=0)
    assert core.report(1, 0, 0.4) == [Answer(1, CONTINUE, 2)]
    assert scheduler.heard[-1] == ("report", 1, 2, 0.4)


def test_a_clone_of_a_trial_that_has_just_ended_starts_from_its_checkpoint_too() -> None:
    scheduler = Told(New({"x": 0}), Wait(), clones=True)
    core = tuning_of(scheduler=scheduler)
    core.begin()
    scheduler.plan = [Wait()]
    core.report(0, 0, 0.5, checkpoint="a")
    core.ended(0, 0)
    scheduler.plan = [Clone(0, {"x": 7}), Wait()]
    assert core.hand(events.TrialRequested(0)) == [Start(1, 0, {"x": 7}, 1, 1, "a", source=0)]


def test_a_clone_of_a_trial_without_checkpoint_starts_from_scratch() -> None:
    scheduler = Told(New({"x": 0}), Clone(0, {"x": 7}))
    core = tuning_of(scheduler=scheduler)
    assert core.begin() == [start(0, 0), Start(1, 0, {"x": 7}, 1, source=0)]
    assert core.report(1, 0, 0.4) == [Answer(1, CONTINUE, 1)]


def test_a_clone_that_crashes_begins_again_where_it_began() -> None:
    scheduler = Told(New({"x": 0}), Clone(0, {"x": 7}), clones=True)
    core = tuning_of(scheduler=scheduler, n_workers=1, retries=1)
    core.begin()
    core.report(0, 0, 0.5, checkpoint="a")
    core.run(0)
    core.report(1, 0, 0.1)
    actions = core.run(1, outcome=CRASH)
    assert actions[-1] == Start(1, 1, {"x": 7}, 0, 1, "a")
    assert scheduler.heard[-1] == ("rewind", 1, 1)
    assert core.best == BestReport(0.5, 0, {"x": 0}, 1)


# Checkpoints that nobody needs


def test_a_checkpoint_is_discarded_when_the_next_one_is_there() -> None:
    core = tuning_of(n_workers=1)
    core.begin()
    assert core.report(0, 0, 0.5, checkpoint="a") == [Answer(0, CONTINUE, 1)]
    assert core.report(0, 0, 0.5, checkpoint="b") == [Answer(0, CONTINUE, 2), Discard(0, "a")]
    assert core.core.checkpoints == {"b"}


def test_of_the_finished_trials_only_the_best_keeps_its_checkpoint() -> None:
    core = tuning_of(n_workers=1)
    core.begin()
    core.report(0, 0, 0.5, checkpoint="a")
    core.run(0)
    core.report(1, 0, 0.6, checkpoint="b")
    assert core.run(1)[:2] == [Judged(1, 0, Status.COMPLETED), Discard(1, "b")]
    core.report(2, 0, 0.4, checkpoint="c")
    assert core.run(2)[:2] == [Judged(2, 0, Status.COMPLETED), Discard(2, "a")]
    assert core.core.checkpoints == {"c"}


def test_a_checkpoint_stays_as_long_as_a_clone_may_begin_there_again() -> None:
    scheduler = Told(New({"x": 0}), Clone(0, {"x": 7}))
    core = tuning_of(scheduler=scheduler, n_workers=2, retries=1)
    core.begin()
    scheduler.plan = [Clone(0, {"x": 7})]
    core.report(0, 0, 0.5, checkpoint="a")
    core.run(1)
    assert core.report(0, 0, 0.5, checkpoint="b") == [Answer(0, CONTINUE, 2)]
    assert core.core.checkpoints == {"a", "b"}
    assert core.report(2, 0, 0.5, checkpoint="c") == [Answer(2, CONTINUE, 2), Discard(2, "a")]


@pytest.mark.parametrize("keep", [True, False])
def test_checkpoints_of_finished_trials_are_kept_on_demand_and_for_clones(keep: bool) -> None:
    core = tuning_of(scheduler=Told(clones=not keep), n_workers=1, keep_checkpoints=keep)
    core.begin()
    for trial_id, name in enumerate("abc"):
        core.report(trial_id, 0, 0.5 + trial_id, checkpoint=name)
        core.run(trial_id)
    assert core.core.checkpoints == {"a", "b", "c"}


def test_the_checkpoint_of_a_report_that_does_not_count_is_discarded() -> None:
    core = tuning_of(n_workers=1)
    core.begin()
    core.report(0, 0, 0.5)
    rejected, discard = core.report(0, 0, {"loss": None}, checkpoint="a")
    assert isinstance(rejected, Reject)
    assert discard == Discard(0, "a")
    core.interrupt()
    assert core.report(0, 0, 0.1, checkpoint="b") == [Answer(0, STOP, late=True), Discard(0, "b")]
    assert core.core.checkpoints == frozenset()
