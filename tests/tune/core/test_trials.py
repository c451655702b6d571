"""Each row of the table of states of `Trials`."""

from collections.abc import Callable
from typing import Any

import pytest

from fanwise.tune.core.actions import Action, Judged, Kill, Start, Terminate
from fanwise.tune.core.events import Outcome, Ready
from fanwise.tune.core.trials import Plan, Trial, Trials


def new_trials(*, retries: int = 0) -> tuple[Trials, Trial, list[Action]]:
    """Return trials of which one is running, in slot 0."""
    actions: list[Action] = []
    trials = Trials(actions, "loss", timeout_s=9.0, grace_s=2.0, retries=retries, keeps_checkpoints=False)
    trial = trials.create(0, {"x": 1})
    trials.start(trial, 0)
    trials.on_ready(Ready(0.0, 0, 0))
    trial.iter = 1
    actions.clear()
    return trials, trial, actions


def ended(plan: Plan, outcome: str = "stopped") -> tuple[Trials, Trial, list[Action]]:
    trials, trial, actions = new_trials(retries=plan == "retry")
    if plan != "retry":
        trials.ask_to_stop(trial, plan, 1.0)
    trials.end(trial, Outcome(outcome))  # type: ignore[arg-type]  # a kind of outcome
    return trials, trial, actions


def released(plan: Plan, outcome: str = "stopped") -> tuple[Trials, Trial, list[Action]]:
    trials, trial, actions = ended(plan, outcome)
    trials.release(trial)
    actions.clear()
    return trials, trial, actions


def types_of(actions: list[Action]) -> list[type]:
    return [type(action) for action in actions]


def test_running_trial_is_terminated_after_its_timeout_and_killed_after_its_grace_period() -> None:
    trials, trial, actions = new_trials()
    trials.tick(8.9)
    assert (trial.state, actions) == ("running", [])
    trials.tick(9.0)
    assert (trial.state, trial.plan, types_of(actions)) == ("stopping", "stop", [Terminate])
    trials.tick(11.0)
    assert (trial.state, types_of(actions)) == ("killed", [Terminate, Kill])
    assert trials.deadlines.next_s is None


@pytest.mark.parametrize(
    ("plan", "outcome", "state", "next_plan"),
    [
        ("stop", "stopped", "done", ""),
        ("complete", "stopped", "done", ""),
        ("pause", "stopped", "attempt-ended", "pause"),
        ("hold", "signal", "attempt-ended", "hold"),
        ("drop", "returned", "attempt-ended", "drop"),
        ("suspend", "stopped", "attempt-ended", "suspend"),
        ("suspend", "exception", "done", ""),
        ("pause", "exception", "done", ""),
        ("retry", "exception", "attempt-ended", "retry"),
    ],
)
def test_end_of_an_attempt(plan: Plan, outcome: str, state: str, next_plan: str) -> None:
    _, trial, actions = ended(plan, outcome)
    assert (trial.state, trial.plan, types_of(actions)) == (state, next_plan, [Judged])


RELEASES: list[tuple[Plan, str, Callable[[Trial], Any], str]] = [
    ("retry", "exception", lambda trial: None, "queued"),
    ("pause", "stopped", lambda trial: None, "paused"),
    ("pause", "stopped", lambda trial: setattr(trial, "reserved_slot", 1), "queued"),
    ("hold", "stopped", lambda trial: setattr(trial, "hold", True), "held"),
    ("hold", "stopped", lambda trial: None, "queued"),
    ("suspend", "stopped", lambda trial: None, "suspended"),
]


@pytest.mark.parametrize(("plan", "outcome", "change", "state"), RELEASES)
def test_trial_moves_on_when_its_slot_is_free(
    plan: Plan, outcome: str, change: Callable[[Trial], Any], state: str
) -> None:
    trials, trial, _ = ended(plan, outcome)
    change(trial)
    assert trials.release(trial) is None
    assert (trial.state, trial.plan, trials.active) == (state, "", {})


@pytest.mark.parametrize(("plan", "outcome"), [("drop", "stopped"), ("pause", "stopped"), ("retry", "exception")])
def test_dropped_trial_and_one_stopped_by_a_user_is_finished_when_its_slot_is_free(plan: Plan, outcome: str) -> None:
    trials, trial, actions = ended(plan, outcome)
    if plan != "drop":
        assert not trials.stop_for_user(trial, 1.0)
    assert trials.release(trial) == ("Failed" if plan == "retry" else "Stopped")
    assert types_of(actions) == [Judged, Judged]


def test_paused_trial_is_started_held_or_stopped() -> None:
    trials, trial, actions = released("pause")
    assert trials.may_resume(0)
    trials.start(trial, 1)
    assert (trial.state, trial.attempt, types_of(actions)) == ("starting", 1, [Start])
    trials, trial, _ = released("pause")
    assert not trials.set_hold(trial, True) and trial.hold
    trial.state = "held"  # by the search, when the scheduler resumes it
    assert (trials.may_resume(0), trials.has_held) == (False, True)
    assert trials.set_hold(trial, False)
    assert (trial.state, trials.paused, trials.queued) == ("queued", {}, {0: trial})
    trials, trial, actions = released("pause")
    assert trials.stop_for_scheduler(trial)
    assert (trials.paused, types_of(actions)) == ({}, [Judged])


def test_suspended_trials_are_queued_in_the_order_of_their_ids() -> None:
    trials, trial, _ = released("suspend")
    later, running = trials.create(2, {"x": 2}), trials.create(1, {"x": 3})
    trials.start(later, 0)
    trials.start(running, 1)
    trials.ask_to_stop(later, "suspend", 1.0)
    trials.end(later, Outcome("stopped"))
    assert trials.suspend_lost() == 2, "the trials that have counted as stopped"
    assert running.state == "attempt-ended" and trials.deadlines.next_s is None
    trials.release(later)
    trials.release(running)
    trials.queue_suspended()
    assert list(trials.queued) == [0, 1, 2]
    assert {trial.state, later.state, running.state} == {"queued"}
