"""What schedulers and searchers return is checked, and the error names what is allowed."""

from typing import Any

import pytest

from fanwise.testing.told_search import CONTINUE, STOP, STOPPED, Told, tuning_of
from fanwise.tune.core import events
from fanwise.tune.core.actions import (
    Answer,
    Finish,
    Judged,
    StopStarting,
    Suggest,
    Terminate,
)
from fanwise.tune.schedulers import (
    Clone,
    New,
    Resume,
    Stop,
)


def test_the_text_of_a_decision_is_taken_for_it() -> None:
    scheduler = Told()
    core = tuning_of(scheduler=scheduler)
    core.begin()
    (answer,) = core.report(0, 0, {"loss": 1.0, "answer": "CONTINUE"})
    assert isinstance(answer, Answer)
    assert answer.decision is CONTINUE
    (answer,) = core.report(0, 0, {"loss": 1.0, "answer": "STOP"})
    assert isinstance(answer, Answer)
    assert answer.decision is STOP
    assert core.next_tick_s == 5.0, "told to stop, it has its grace"
    core.run(0, outcome=STOPPED)
    assert scheduler.heard[-1] == ("end", 0, "Stopped")


@pytest.mark.parametrize(
    ("answer", "shown"),
    [("stop", "'stop'"), (None, "None"), (True, "True"), ("Decision.STOP", "'Decision.STOP'"), (["STOP"], "['STOP']")],
)
def test_a_wrong_decision_ends_the_search_and_names_the_right_ones(answer: object, shown: str) -> None:
    core = tuning_of(scheduler=Told())
    core.begin()
    reason = "the scheduler failed"
    actions = core.report(0, 0, {"loss": 1.0, "answer": answer})
    assert actions == [Answer(0, STOP, 1), StopStarting(reason), Terminate(1, reason)]
    core.run(0, outcome=STOPPED)
    finish = core.run(1, outcome=STOPPED)[-1]
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
    core = tuning_of(scheduler=Told(New({"x": 0}), New({"x": 1}), answer))
    core.begin()
    actions = core.pause(1)
    assert [type(action) for action in actions] == [Judged, StopStarting, Terminate]
    finish = core.run(0, outcome=STOPPED)[-1]
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
    core = tuning_of(n_workers=1)
    (suggest,) = core.core.handle(events.Begin(0))
    assert isinstance(suggest, Suggest)
    stop, finish = core.hand(events.Suggested(0, suggest.number, config))
    assert stop == StopStarting("the searcher failed")
    assert isinstance(finish, Finish)
    assert finish.error is not None
    assert finish.error.startswith(error)
    assert finish.kind == "searcher"
