"""A row of the record matches the actions that it was written from, and no others."""

import dataclasses
import json
from typing import Any

import pytest

from fanwise.tune.core import events
from fanwise.tune.core.actions import (
    Action,
    Answer,
    Discard,
    Finish,
    Kill,
    Reason,
    Reject,
    SetStatus,
    Start,
    StopStarting,
    Suggest,
    Terminate,
)
from fanwise.tune.core.events import Event
from fanwise.tune.record.event_codec import RecordedActions, to_row
from fanwise.tune.schedulers import Decision, Status
from fanwise.tune.searchers import SuggestContext
from fanwise.tune.space import Space, uniform

REPORTED = events.Reported(1.0, 3, 0, {"loss": 0.5})
FREE = events.Free(1.0, 3, 0)
SUGGEST = Suggest(4, SuggestContext(4, 5, Space({"x": uniform(0, 1)})))
ANSWER = Answer(3, Decision.CONTINUE, 2)

ACTIONS: list[Action] = [
    Start(4, 0, {"x": 0.1}, 2),
    Start(4, 0, {"x": 0.1}, 2, 3, "2/3", 2, True),
    SetStatus(3, 0, Status.FAILED, Reason("exit", "exit code 1"), True),
    SetStatus(3, 0, Status.COMPLETED),
    Terminate(3, "why"),
    Kill(3, "why"),
    Discard(3, "3/1"),
    StopStarting("enough"),
    Finish("enough"),
    Finish("failed", "because", None, "scheduler"),
]


def row_of(event: Event, actions: list[Action]) -> RecordedActions:
    kind, trial_id, body = to_row(event, actions)
    return RecordedActions(kind, trial_id, json.loads(json.dumps(body)))


def changed(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case Decision():
            return Decision.PAUSE
        case Status():
            return Status.STOPPED
        case "scheduler" | "limit":
            return "searcher"
        case Reason():
            return Reason("signal", value.text)
        case dict():
            return {"x": 0.2}
        case None:
            return None
        case _:
            return value + type(value)(1)


TEXTS = ("reason", "error", "message")


def variants(action: Action) -> list[Action]:
    """Return copies of the action. In each, one field that is not a text has another value."""
    copies = []
    for field in dataclasses.fields(action):
        value = getattr(action, field.name)
        if field.name in TEXTS and isinstance(value, str):
            continue
        if changed(value) != value:
            copies.append(dataclasses.replace(action, **{field.name: changed(value)}))
    return copies


@pytest.mark.parametrize("action", ACTIONS, ids=repr)
def test_row_of_an_action_does_not_match_an_action_with_another_field(action: Action) -> None:
    row = row_of(FREE, [action])
    assert row.matches([action])
    assert row.matches([SUGGEST, action])
    assert row.actions() == [action]
    assert variants(action) or isinstance(action, StopStarting)  # whose only field is a text
    assert [variant for variant in variants(action) if row.matches([variant])] == []
    assert not row.matches([])
    assert not row.matches([action, action])


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER,
        Answer(3, Decision.STOP, 0, late=True),
        Answer(3, Decision.CONTINUE, 2, repeated=True),
        Reject(3, "no loss"),
    ],
    ids=repr,
)
def test_row_of_a_report_does_not_match_other_answers_or_later_actions(answer: Action) -> None:
    row = row_of(REPORTED, [answer, ACTIONS[0]])
    assert row.matches([answer, ACTIONS[0]])
    assert row.matches([answer, ACTIONS[0], SUGGEST])
    assert row.actions() == [answer, ACTIONS[0]]
    matching = [variant for variant in variants(answer) if row.matches([variant, ACTIONS[0]])]
    assert not any(getattr(variant, "trial_id", None) == 3 for variant in matching)
    assert [variant for variant in ACTIONS if row.matches([variant, ACTIONS[0]])] == []
    assert not row.matches([answer])
    assert not row.matches([ACTIONS[0]])
    assert not row.matches([])


@pytest.mark.parametrize(
    ("one", "variant"),
    [
        (
            SetStatus(3, 0, Status.FAILED, Reason("exit", "one")),
            SetStatus(3, 0, Status.FAILED, Reason("exit", "other")),
        ),
        (Terminate(3, "one"), Terminate(3, "other")),
        (Kill(3, "one"), Kill(3, "other")),
        (StopStarting("one"), StopStarting("other")),
        (Finish("one", "one", None, "all-failed"), Finish("other", "other", None, "all-failed")),
    ],
    ids=lambda action: type(action).__name__,
)
def test_texts_are_not_compared(one: Action, variant: Action) -> None:
    assert row_of(FREE, [one]).matches([variant])
    assert row_of(REPORTED, [ANSWER, one]).matches([ANSWER, variant])
    assert row_of(REPORTED, [Reject(3, "one"), one]).matches([Reject(3, "other"), variant])


def test_row_without_actions_matches_only_no_actions() -> None:
    row = row_of(FREE, [])
    assert row.matches([])
    assert row.matches([SUGGEST])
    assert not row.matches([ACTIONS[0]])
    assert row.actions() == []
