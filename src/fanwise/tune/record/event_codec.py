"""A event and the actions that it led to, as one row of the record and back.

    event, actions  --to_row-->  kind, trial id, body (JSON)  --fact_of, RowOrders-->  event, actions

The event is what happened; the actions are kept beside it so that readers need not decide again, and so that replay can
compare. The answer to a report stands in the report's own body. An error of the scheduler is kept as text only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from ..core import events
from ..core.actions import (
    Action,
    Answer,
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
from ..core.events import Event, Outcome
from ..schedulers.scheduler import Decision, Status

Body = dict[str, Any]  # Any: JSON

KINDS: Mapping[type, str] = {
    events.Earlier: "earlier",
    events.Begin: "begin",
    events.Suggested: "suggested",
    events.Ready: "ready",
    events.Reported: "report",
    events.Ended: "ended",
    events.Free: "free",
    events.Tick: "tick",
    events.Interrupt: "interrupt",
    events.Command: "command",
    events.Enqueued: "enqueued",
    events.Workers: "workers",
    events.TrialRequested: "requested",
    events.Resumed: "resumed",
}


def to_row(event: Event, actions: list[Action]) -> tuple[str, int | None, Body]:
    """The row's kind, the trial it is about (None: none), and its body."""
    if type(event) is events.Reported:
        return "report", event.trial_id, _report_body(event, actions)
    body: Body = _BODIES[type(event)](event)
    if actions and (recorded := [_action_body(action) for action in actions if type(action) is not Suggest]):
        body["actions"] = recorded
    return KINDS[type(event)], getattr(event, "trial_id", None), body


def _report_body(event: events.Reported, actions: list[Action]) -> Body:
    body: Body = {"attempt": event.attempt, "values": event.values, "worker_time": event.worker_time_s}
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
        assert isinstance(answer, Reject), "a report is answered first"
        body["rejected"] = answer.message
    if len(actions) > 1 and (
        recorded := [_action_body(action) for action in actions[1:] if type(action) is not Suggest]
    ):
        body["actions"] = recorded
    return body


def _suggested_body(event: events.Suggested) -> Body:
    body: Body = {"number": event.number, "config": event.config, "seen": event.seen}
    return body if event.error is None else {**body, "error": event.error}


def _ended_body(event: events.Ended) -> Body:
    outcome = event.outcome
    fields: Body = {"kind": outcome.kind, "text": outcome.text}
    fields |= {"traceback": outcome.traceback} if outcome.traceback else {}
    fields |= {"last_output": outcome.last_output} if outcome.last_output else {}
    fields |= {"threads": list(outcome.threads)} if outcome.threads else {}
    return {"attempt": event.attempt, "outcome": fields, "objective_s": event.objective_s}


_BODIES: Mapping[type, Callable[[Any], Body]] = {
    events.Earlier: lambda event: {"config": event.config, "reports": event.reports, "status": event.status},
    events.Begin: lambda event: {},
    events.Suggested: _suggested_body,
    events.Ready: lambda event: {
        "attempt": event.attempt,
        "pid": event.pid,
        "process_started_s": event.process_started_s,
        "how": event.how,
    },
    events.Ended: _ended_body,
    events.Free: lambda event: {"attempt": event.attempt},
    events.TrialRequested: lambda event: {},
    events.Tick: lambda event: {},
    events.Interrupt: lambda event: {"who": event.who},
    events.Command: lambda event: {"what": event.what},
    events.Enqueued: lambda event: {"config": event.config},
    events.Workers: lambda event: {"n_workers": event.n_workers},
    events.Resumed: lambda event: {
        "n_workers": event.n_workers,
        "stop": event.stop,
        **({} if event.versions is None else {"versions": event.versions}),
    },
}


def _action_body(action: Action) -> Body:
    if isinstance(action, Start):
        body: Body = {"action": "start", "trial": action.trial_id, "attempt": action.attempt, "slot": action.slot}
        body |= {"config": action.config} if action.attempt == 0 else {}
        body |= {"from_iter": action.from_iter} if action.from_iter else {}
        body |= {"checkpoint": action.checkpoint} if action.checkpoint is not None else {}
        body |= {"source": action.source} if action.source is not None else {}
        return body | ({"fallback": True} if action.fallback else {})
    if isinstance(action, Judged):
        body = {"action": "judged", "trial": action.trial_id, "attempt": action.attempt, "status": str(action.status)}
        body |= {"reason": [action.reason.kind, action.reason.text]} if action.reason is not None else {}
        return body | ({"will_retry": True} if action.will_retry else {})
    if isinstance(action, Terminate | Kill):
        name = "terminate" if isinstance(action, Terminate) else "kill"
        return {"action": name, "trial": action.trial_id, "why": action.why}
    if isinstance(action, Discard):
        return {"action": "discard", "trial": action.trial_id, "checkpoint": action.checkpoint}
    if isinstance(action, StopStarting):
        return {"action": "stop", "reason": action.reason}
    assert isinstance(action, Finish), f"{action!r} has no place in the record"
    return {"action": "finish", "reason": action.reason, "kind": action.kind, "error": action.error}


def event_of(kind: str, t_s: float, trial_id: int | None, body: Mapping[str, Any]) -> Event:  # Any: JSON
    """The event of a row. Raises KeyError, TypeError or ValueError for a row that `to_row` did not make."""
    trial = -1 if trial_id is None else trial_id
    match kind:
        case "report":
            values, seconds = body["values"], body["worker_time"]
            return events.Reported(t_s, trial, body["attempt"], values, seconds, body.get("checkpoint"))
        case "earlier":
            return events.Earlier(t_s, trial, body["config"], body["reports"], body["status"])
        case "suggested":
            return events.Suggested(t_s, body["number"], body["config"], body["seen"], body.get("error"))
        case "ready":
            return events.Ready(t_s, trial, body["attempt"], body["pid"], body["process_started_s"], body["how"])
        case "ended":
            fields = {**body["outcome"], "threads": tuple(body["outcome"].get("threads", ()))}
            return events.Ended(t_s, trial, body["attempt"], Outcome(**fields), body["objective_s"])
        case "free":
            return events.Free(t_s, trial, body["attempt"])
        case "command":
            return events.Command(t_s, body["what"], trial)
        case "enqueued":
            return events.Enqueued(t_s, body["config"])
        case "workers":
            return events.Workers(t_s, body["n_workers"])
        case "resumed":
            return events.Resumed(t_s, body["n_workers"], body["stop"], body.get("versions"))
        case "interrupt":
            return events.Interrupt(t_s, body["who"])
    return _PLAIN[kind](t_s)


_PLAIN: Mapping[str, Callable[[float], Event]] = {
    "requested": events.TrialRequested,
    "begin": events.Begin,
    "tick": events.Tick,
}


@final
class RecordedActions:
    """The actions of a row as far as it keeps them: no Suggest, no cause, no configuration of later attempts.

    Actions are converted to rows for a comparison, and not rows to actions: most events lead to none or to an answer.
    Only decisions are compared, not texts: the text of a failure has the output and traceback of one process, and
    another version of this library words it differently.
    """

    __slots__ = ("_body", "_is_report", "_trial_id")

    def __init__(self, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> None:  # Any: JSON
        self._is_report = kind == "report" and trial_id is not None
        self._trial_id = trial_id
        self._body = body

    def matches(self, actions: Sequence[Action]) -> bool:
        body, rest = self._body, actions
        if self._is_report:
            if not actions or not _is_answer(actions[0], body):
                return False
            rest = actions[1:]
        recorded = [_decision(_action_body(action)) for action in rest if type(action) is not Suggest] if rest else []
        return recorded == [_decision(action) for action in body.get("actions", _NONE)]

    def actions(self) -> list[Action]:
        body, actions = self._body, list[Action]()
        if self._is_report:
            assert self._trial_id is not None
            if "rejected" in body:
                actions.append(Reject(self._trial_id, body["rejected"]))
            else:
                late, repeated = body.get("late", False), body.get("repeated", False)
                actions.append(Answer(self._trial_id, Decision(body["decision"]), body["iter"], late, repeated))
        return actions + [_action_of(action) for action in body.get("actions", _NONE)]


_NONE: Final[list[Any]] = []  # Any: JSON


def _is_answer(action: Action, body: Mapping[str, Any]) -> bool:  # Any: JSON
    if type(action) is Answer:
        return bool(
            action.iter == body.get("iter")
            and action.decision == body.get("decision")
            and action.late == body.get("late", False)
            and action.repeated == body.get("repeated", False)
            and "rejected" not in body
        )
    return type(action) is Reject and "rejected" in body


_TEXTS: Final = ("why", "reason", "error")


def _decision(action: Mapping[str, Any]) -> Body:  # Any: JSON
    """Return the order of a row without its texts. Of the reason of a failed trial, its kind remains."""
    recorded = {key: value for key, value in action.items() if key not in _TEXTS}
    if action["action"] == "judged" and "reason" in action:
        recorded["reason_kind"] = action["reason"][0]
    return recorded


def _action_of(body: Mapping[str, Any]) -> Action:  # Any: JSON
    match body["action"]:
        case "start":
            return Start(
                body["trial"],
                body["attempt"],
                body.get("config", {}),
                body["slot"],
                body.get("from_iter", 0),
                body.get("checkpoint"),
                body.get("source"),
                body.get("fallback", False),
            )
        case "judged":
            reason = Reason(*body["reason"]) if "reason" in body else None
            return Judged(body["trial"], body["attempt"], Status(body["status"]), reason, body.get("will_retry", False))
        case "terminate":
            return Terminate(body["trial"], body["why"])
        case "kill":
            return Kill(body["trial"], body["why"])
        case "discard":
            return Discard(body["trial"], body["checkpoint"])
        case "stop":
            return StopStarting(body["reason"])
        case "finish":
            return Finish(body["reason"], body["error"], None, body["kind"])
    raise ValueError(f"unknown order {body['action']!r}")
