"""Invalid return values of schedulers and searchers end the search, and the error lists the valid ones."""

from typing import Any

import pytest
from search_core_driver import CONTINUE, STOP, STOPPED, PlannedScheduler, new_search

from fanwise.tune.core import events
from fanwise.tune.core.actions import (
    Answer,
    Finish,
    SetStatus,
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


def test_name_of_a_decision_is_accepted() -> None:
    scheduler = PlannedScheduler()
    search = new_search(scheduler=scheduler)
    search.begin()
    (answer,) = search.report(0, 0, {"loss": 1.0, "answer": "CONTINUE"})
    assert isinstance(answer, Answer)
    assert answer.decision is CONTINUE
    (answer,) = search.report(0, 0, {"loss": 1.0, "answer": "STOP"})
    assert isinstance(answer, Answer)
    assert answer.decision is STOP
    assert search.next_tick_s == 5.0, "the grace period has started"
    search.run(0, outcome=STOPPED)
    assert scheduler.calls[-1] == ("end", 0, "Stopped")


@pytest.mark.parametrize(
    ("answer", "shown"),
    [("stop", "'stop'"), (None, "None"), (True, "True"), ("Decision.STOP", "'Decision.STOP'"), (["STOP"], "['STOP']")],
)
def test_invalid_decision_ends_the_search(answer: object, shown: str) -> None:
    search = new_search(scheduler=PlannedScheduler())
    search.begin()
    reason = "the scheduler failed"
    actions = search.report(0, 0, {"loss": 1.0, "answer": answer})
    assert actions == [Answer(0, STOP, 1), StopStarting(reason), Terminate(1, reason)]
    search.run(0, outcome=STOPPED)
    finish = search.run(1, outcome=STOPPED)[-1]
    assert isinstance(finish, Finish)
    assert finish.error == (
        "the scheduler raised TypeError: PlannedScheduler.on_report() for trial 0 must return one of "
        f"Decision.CONTINUE, Decision.STOP, Decision.PAUSE, got {shown}"
    )
    assert isinstance(finish.cause, TypeError)
    assert finish.kind == "scheduler"


NEXT = "PlannedScheduler.next()"
EXPECTED = "must return New(...), Resume(trial_id), Clone(trial_id, config), Stop(trial_id), Wait() or Done(), got"
NOT_PAUSED = "but that trial is not paused; paused are: 1"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, f"TypeError: {NEXT} {EXPECTED} None"),
        ({"x": 3}, f"TypeError: {NEXT} {EXPECTED} {{'x': 3}}"),
        (Resume(0), f"ValueError: {NEXT} returned Resume(trial_id=0), {NOT_PAUSED}"),
        (Stop(9), f"ValueError: {NEXT} returned Stop(trial_id=9), {NOT_PAUSED}"),
        (
            Clone(3, {"x": 1}),
            f"ValueError: {NEXT} returned Clone(trial_id=3, config={{'x': 1}}), but there is no such trial; "
            "2 trials have started, numbered from 0",
        ),
        (New({"x": -1}), f"ValueError: the configuration of {NEXT} for trial 2 gave {{'x': -1}}: "),
        (New({"y": 1}), f"ValueError: the configuration of {NEXT} for trial 2 gave {{'y': 1}}: "),
        (
            Clone(0, None),  # type: ignore[arg-type]
            f"TypeError: the configuration of {NEXT} for trial 2 must be a dict of hyperparameters, got None",
        ),
    ],
)
def test_invalid_answer_of_next_ends_the_search(answer: Any, error: str) -> None:  # Any: invalid
    search = new_search(scheduler=PlannedScheduler(New({"x": 0}), New({"x": 1}), answer))
    search.begin()
    actions = search.pause(1)
    assert [type(action) for action in actions] == [SetStatus, StopStarting, Terminate]
    finish = search.run(0, outcome=STOPPED)[-1]
    assert isinstance(finish, Finish)
    assert finish.error is not None
    assert finish.error.startswith(f"the scheduler raised {error}")
    assert finish.kind == "scheduler"


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"x": 0.5}, "CountingSearcher.suggest() for trial 0 gave {'x': 0.5}: "),
        ({}, "CountingSearcher.suggest() for trial 0 gave {}: "),
        (17, "CountingSearcher.suggest() for trial 0 must be a dict of hyperparameters, got 17"),
    ],
)
def test_invalid_suggestion_ends_the_search(config: Any, error: str) -> None:  # Any: invalid
    search = new_search(n_workers=1)
    (suggest,) = search.core.handle(events.Begin(0))
    assert isinstance(suggest, Suggest)
    stop, finish = search.send(events.Suggested(0, suggest.number, config))
    assert stop == StopStarting("the searcher failed")
    assert isinstance(finish, Finish)
    assert finish.error is not None
    assert finish.error.startswith(error)
    assert finish.kind == "searcher"
