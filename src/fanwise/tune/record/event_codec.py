"""Converts an event and the actions that followed from it to one row of the record, a `RecordedEvent`, and back.

    event, actions  --to_row-->  kind, trial id, body (JSON)  --event_of, RecordedActions-->  event, actions

The body has the fields of the event, and the actions as the list `actions`. The row of a report has the fields of its
answer as further keys of the body. Exceptions of the scheduler and the searcher are recorded as text. The actions are
recorded so that readers need not compute them, and so that a replay can compare them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from ...base.frozen import frozen
from ..core import events
from ..core.actions import (
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
from ..core.events import Event, Outcome
from ..schedulers.scheduler import Decision, Status

Body = dict[str, Any]  # JSON

_EVENT_TYPES: Final[Mapping[str, type[Event]]] = {
    "earlier": events.EarlierTrial,
    "begin": events.Begin,
    "suggested": events.Suggested,
    "ready": events.Ready,
    "report": events.Reported,
    "ended": events.Ended,
    "free": events.Free,
    "tick": events.Tick,
    "interrupt": events.Interrupt,
    "command": events.Command,
    "enqueued": events.Enqueued,
    "workers": events.WorkersChanged,
    "requested": events.TrialRequested,
    "resumed": events.Resumed,
}
_ACTION_TYPES: Final[Mapping[str, type[Action]]] = {
    "start": Start,
    "judged": SetStatus,
    "terminate": Terminate,
    "kill": Kill,
    "discard": Discard,
    "stop": StopStarting,
    "finish": Finish,
}
_EVENT_KINDS: Final = {event_type: kind for kind, event_type in _EVENT_TYPES.items()}
_ACTION_KINDS: Final = {action_type: kind for kind, action_type in _ACTION_TYPES.items()}
# Names of the fields in a body. The time and trial id are stored outside the body.
_EVENT_FIELDS: Final = {
    event_type: [
        field.name for field in dataclasses.fields(event_type) if field.name not in ("now_s", "trial_id", "cause")
    ]
    for event_type in _EVENT_KINDS
}
# Name, key in JSON, and default of each field of the actions. Fields with their default are omitted, except in Finish.
_ACTION_FIELDS: Final = {
    action_type: [
        (field.name, "trial" if field.name == "trial_id" else field.name, field.default)
        for field in dataclasses.fields(action_type)
        if field.name != "cause"
    ]
    for action_type in _ACTION_KINDS
}
_OMITTED_IF_NONE: Final = ("error", "versions", "host")  # fields of events
_TEXT_FIELDS: Final = ("reason", "error")  # fields of actions that a replay does not compare


@frozen
class RecordedEvent:
    """One row of the record. `seq`: number of the row, from 1. `t_s`: seconds since the search began."""

    seq: int
    t_s: float
    kind: str
    trial_id: int | None
    body: Mapping[str, Any]


def to_row(event: Event, actions: list[Action]) -> tuple[str, int | None, Body]:
    """Return the kind of a row, the id of its trial or None, and its body."""
    if type(event) is events.Reported:
        return "report", event.trial_id, _report_body(event, actions)
    body: Body = {name: getattr(event, name) for name in _EVENT_FIELDS[type(event)]}
    for name in _OMITTED_IF_NONE:
        if name in body and body[name] is None:
            del body[name]
    if type(event) is events.Ended:
        outcome = event.outcome
        body["outcome"] = {"kind": outcome.kind, "text": outcome.text} | {
            name: value
            for name in ("traceback", "last_output", "threads", "retry_alone")
            if (value := getattr(outcome, name))
        }
    if bodies := _action_bodies(actions):
        body["actions"] = bodies
    return _EVENT_KINDS[type(event)], getattr(event, "trial_id", None), body


def _report_body(event: events.Reported, actions: list[Action]) -> Body:
    body: Body = {"attempt": event.attempt, "values": event.values, "worker_time": event.objective_s}
    if event.checkpoint is not None:
        body["checkpoint"] = event.checkpoint
    answer = actions[0]
    if isinstance(answer, Answer):
        body["iter"], body["decision"] = answer.iter, answer.decision
        if answer.late:
            body["late"] = True
        if answer.repeated:
            body["repeated"] = True
    else:
        assert isinstance(answer, Reject), "the first action after a report is Answer or Reject"
        body["rejected"] = answer.message
    if len(actions) > 1 and (bodies := _action_bodies(actions[1:])):
        body["actions"] = bodies
    return body


def event_of(kind: str, t_s: float, trial_id: int | None, body: Mapping[str, Any]) -> Event:
    """Return the event of a row. Raises KeyError, TypeError or ValueError if the row is invalid."""
    if kind == "report":
        trial_id = -1 if trial_id is None else trial_id
        values, objective_s = body["values"], body["worker_time"]
        return events.Reported(t_s, trial_id, body["attempt"], values, objective_s, body.get("checkpoint"))
    event_type = _EVENT_TYPES[kind]
    fields: Body = {name: body[name] for name in _EVENT_FIELDS[event_type] if name in body}
    if event_type is events.Ended:
        outcome = body["outcome"]
        fields["outcome"] = Outcome(**{**outcome, "threads": tuple(outcome.get("threads", ()))})
    if trial_id is not None:
        fields["trial_id"] = trial_id
    return event_type(now_s=t_s, **fields)


@final
class RecordedActions:
    """The actions recorded in a row. `actions` decodes them, and `matches` compares them without decoding.

    Not recorded: `Suggest`, the exception `Finish.cause`, and the configuration of a trial after its first attempt.
    Not compared: texts such as tracebacks, which differ between processes and between versions of this library.
    """

    __slots__ = ("_body", "_is_report", "_trial_id")

    def __init__(self, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> None:
        self._is_report = kind == "report" and trial_id is not None
        self._trial_id = trial_id
        self._body = body

    def matches(self, actions: Sequence[Action]) -> bool:
        """Return True if recording these actions would give the same row, apart from texts."""
        if self._is_report:
            if not actions or not _matches_answer(actions[0], self._body):
                return False
            actions = actions[1:]
        bodies = self._body.get("actions", ())
        return list(map(_without_texts, _action_bodies(actions))) == list(map(_without_texts, bodies))

    def actions(self) -> list[Action]:
        """Return the actions. Raises KeyError, TypeError or ValueError if the row is invalid."""
        body, actions = self._body, list[Action]()
        if self._is_report:
            assert self._trial_id is not None
            if "rejected" in body:
                actions.append(Reject(self._trial_id, body["rejected"]))
            else:
                late, repeated = body.get("late", False), body.get("repeated", False)
                actions.append(Answer(self._trial_id, Decision(body["decision"]), body["iter"], late, repeated))
        return actions + [_action_of(action) for action in body.get("actions", ())]


def _matches_answer(action: Action, body: Mapping[str, Any]) -> bool:
    """Return True if the action equals the answer in the body of a report, apart from the text of a rejection."""
    if type(action) is Answer:
        return bool(
            action.iter == body.get("iter")
            and action.decision == body.get("decision")
            and action.late == body.get("late", False)
            and action.repeated == body.get("repeated", False)
            and "rejected" not in body
        )
    return type(action) is Reject and "rejected" in body


def _without_texts(action: Mapping[str, Any]) -> Body:
    """Return a recorded action without its texts, but with the kind of the reason why a trial failed."""
    body = {key: value for key, value in action.items() if key not in _TEXT_FIELDS}
    if action["action"] == "judged" and "reason" in action:
        body["reason_kind"] = action["reason"][0]
    return body


def _action_bodies(actions: Sequence[Action]) -> list[Body]:
    return [_action_body(action) for action in actions if type(action) is not Suggest]


def _action_body(action: Action) -> Body:
    body: Body = {"action": _ACTION_KINDS[type(action)]}
    for name, key, default in _ACTION_FIELDS[type(action)]:
        value = getattr(action, name)
        if value != default or type(action) is Finish:
            body[key] = value
    if type(action) is Start and action.attempt:
        del body["config"]  # recorded with the first attempt
    if type(action) is SetStatus:
        body["status"] = str(action.status)
        if action.reason is not None:
            body["reason"] = [action.reason.kind, action.reason.text]
    return body


def _action_of(body: Mapping[str, Any]) -> Action:
    action_type = _ACTION_TYPES[body["action"]]
    fields: Body = {name: body[key] for name, key, _ in _ACTION_FIELDS[action_type] if key in body}
    if action_type is Start:
        fields.setdefault("config", {})
    if action_type is SetStatus:
        fields["status"] = Status(fields["status"])
        fields["reason"] = Reason(*body["reason"]) if "reason" in body else None
    return action_type(**fields)
