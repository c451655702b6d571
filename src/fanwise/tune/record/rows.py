"""A fact and the orders that it led to, as one row of the record and back.

    fact, orders  --to_row-->  kind, trial id, body (JSON)  --fact_of, RowOrders-->  fact, orders

The fact is what happened; the orders are kept beside it so that readers need not decide again, and so that replay can
compare. The answer to a report stands in the report's own body. An error of the scheduler is kept as text only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from ..decisions import facts
from ..decisions.facts import Fact, Outcome
from ..decisions.orders import (
    Answer,
    Discard,
    Finish,
    Judged,
    Kill,
    Order,
    Reason,
    Reject,
    Start,
    StopStarting,
    Suggest,
    Terminate,
)
from ..schedulers.base import Decision, Status

Body = dict[str, Any]  # Any: JSON

KINDS: Mapping[type, str] = {
    facts.Earlier: "earlier",
    facts.Begin: "begin",
    facts.Suggested: "suggested",
    facts.Ready: "ready",
    facts.Reported: "report",
    facts.Ended: "ended",
    facts.Free: "free",
    facts.Tick: "tick",
    facts.Interrupt: "interrupt",
    facts.Command: "command",
    facts.Enqueued: "enqueued",
    facts.Workers: "workers",
    facts.Asked: "asked",
    facts.Resumed: "resumed",
}


def to_row(fact: Fact, orders: list[Order]) -> tuple[str, int | None, Body]:
    """The row's kind, the trial it is about (None: none), and its body."""
    if type(fact) is facts.Reported:
        return "report", fact.trial_id, _report_body(fact, orders)
    body: Body = _BODIES[type(fact)](fact)
    if orders and (recorded := [_order_body(order) for order in orders if type(order) is not Suggest]):
        body["orders"] = recorded
    return KINDS[type(fact)], getattr(fact, "trial_id", None), body


def _report_body(fact: facts.Reported, orders: list[Order]) -> Body:
    body: Body = {"attempt": fact.attempt, "values": fact.values, "worker_time": fact.worker_time_s}
    if fact.checkpoint is not None:
        body["checkpoint"] = fact.checkpoint
    answer = orders[0]
    if isinstance(answer, Answer):
        body["iter"], body["decision"] = answer.iter, answer.decision
        if answer.late:
            body["late"] = True
        if answer.repeated:
            body["repeated"] = True
    else:
        assert isinstance(answer, Reject), "a report is answered first"
        body["rejected"] = answer.message
    if len(orders) > 1 and (recorded := [_order_body(order) for order in orders[1:] if type(order) is not Suggest]):
        body["orders"] = recorded
    return body


def _suggested_body(fact: facts.Suggested) -> Body:
    body: Body = {"number": fact.number, "config": fact.config, "seen": fact.seen}
    return body if fact.error is None else {**body, "error": fact.error}


def _ended_body(fact: facts.Ended) -> Body:
    outcome = fact.outcome
    fields: Body = {"kind": outcome.kind, "text": outcome.text}
    fields |= {"traceback": outcome.traceback} if outcome.traceback else {}
    fields |= {"last_output": outcome.last_output} if outcome.last_output else {}
    fields |= {"threads": list(outcome.threads)} if outcome.threads else {}
    fields |= {"retry_alone": True} if outcome.retry_alone else {}
    return {"attempt": fact.attempt, "outcome": fields, "objective_s": fact.objective_s}


_BODIES: Mapping[type, Callable[[Any], Body]] = {
    facts.Earlier: lambda fact: {"config": fact.config, "reports": fact.reports, "status": fact.status},
    facts.Begin: lambda fact: {},
    facts.Suggested: _suggested_body,
    facts.Ready: lambda fact: {
        "attempt": fact.attempt,
        "pid": fact.pid,
        "process_started_s": fact.process_started_s,
        "how": fact.how,
    },
    facts.Ended: _ended_body,
    facts.Free: lambda fact: {"attempt": fact.attempt},
    facts.Asked: lambda fact: {},
    facts.Tick: lambda fact: {},
    facts.Interrupt: lambda fact: {"who": fact.who},
    facts.Command: lambda fact: {"what": fact.what},
    facts.Enqueued: lambda fact: {"config": fact.config},
    facts.Workers: lambda fact: {"n_workers": fact.n_workers},
    facts.Resumed: lambda fact: {
        "n_workers": fact.n_workers,
        "stop": fact.stop,
        **({} if fact.versions is None else {"versions": fact.versions}),
    },
}


def _order_body(order: Order) -> Body:
    if isinstance(order, Start):
        body: Body = {"order": "start", "trial": order.trial_id, "attempt": order.attempt, "slot": order.slot}
        body |= {"config": order.config} if order.attempt == 0 else {}
        body |= {"from_iter": order.from_iter} if order.from_iter else {}
        body |= {"checkpoint": order.checkpoint} if order.checkpoint is not None else {}
        body |= {"source": order.source} if order.source is not None else {}
        body |= {"fallback": True} if order.fallback else {}
        return body | ({"alone": True} if order.alone else {})
    if isinstance(order, Judged):
        body = {"order": "judged", "trial": order.trial_id, "attempt": order.attempt, "status": str(order.status)}
        body |= {"reason": [order.reason.kind, order.reason.text]} if order.reason is not None else {}
        return body | ({"will_retry": True} if order.will_retry else {})
    if isinstance(order, Terminate | Kill):
        name = "terminate" if isinstance(order, Terminate) else "kill"
        return {"order": name, "trial": order.trial_id, "why": order.why}
    if isinstance(order, Discard):
        return {"order": "discard", "trial": order.trial_id, "checkpoint": order.checkpoint}
    if isinstance(order, StopStarting):
        return {"order": "stop", "reason": order.reason}
    assert isinstance(order, Finish), f"{order!r} has no place in the record"
    return {"order": "finish", "reason": order.reason, "kind": order.kind, "error": order.error}


def fact_of(kind: str, t_s: float, trial_id: int | None, body: Mapping[str, Any]) -> Fact:  # Any: JSON
    """The fact of a row. Raises KeyError, TypeError or ValueError for a row that `to_row` did not make."""
    trial = -1 if trial_id is None else trial_id
    match kind:
        case "report":
            values, seconds = body["values"], body["worker_time"]
            return facts.Reported(t_s, trial, body["attempt"], values, seconds, body.get("checkpoint"))
        case "earlier":
            return facts.Earlier(t_s, trial, body["config"], body["reports"], body["status"])
        case "suggested":
            return facts.Suggested(t_s, body["number"], body["config"], body["seen"], body.get("error"))
        case "ready":
            return facts.Ready(t_s, trial, body["attempt"], body["pid"], body["process_started_s"], body["how"])
        case "ended":
            fields = {**body["outcome"], "threads": tuple(body["outcome"].get("threads", ()))}
            return facts.Ended(t_s, trial, body["attempt"], Outcome(**fields), body["objective_s"])
        case "free":
            return facts.Free(t_s, trial, body["attempt"])
        case "command":
            return facts.Command(t_s, body["what"], trial)
        case "enqueued":
            return facts.Enqueued(t_s, body["config"])
        case "workers":
            return facts.Workers(t_s, body["n_workers"])
        case "resumed":
            return facts.Resumed(t_s, body["n_workers"], body["stop"], body.get("versions"))
        case "interrupt":
            return facts.Interrupt(t_s, body["who"])
    return _PLAIN[kind](t_s)


_PLAIN: Mapping[str, Callable[[float], Fact]] = {
    "asked": facts.Asked,
    "begin": facts.Begin,
    "tick": facts.Tick,
}


@final
class RowOrders:
    """The orders of a row as far as it keeps them: no Suggest, no cause, no configuration of later attempts.

    Orders are converted to rows for a comparison, and not rows to orders: most facts lead to none or to an answer.
    Only decisions are compared, not texts: the text of a failure has the output and traceback of one process, and
    another version of this library words it differently.
    """

    __slots__ = ("_body", "_is_report", "_trial_id")

    def __init__(self, kind: str, trial_id: int | None, body: Mapping[str, Any]) -> None:  # Any: JSON
        self._is_report = kind == "report" and trial_id is not None
        self._trial_id = trial_id
        self._body = body

    def matches(self, orders: Sequence[Order]) -> bool:
        body, rest = self._body, orders
        if self._is_report:
            if not orders or not _is_answer(orders[0], body):
                return False
            rest = orders[1:]
        recorded = [_decision(_order_body(order)) for order in rest if type(order) is not Suggest] if rest else []
        return recorded == [_decision(order) for order in body.get("orders", _NONE)]

    def orders(self) -> list[Order]:
        body, orders = self._body, list[Order]()
        if self._is_report:
            assert self._trial_id is not None
            if "rejected" in body:
                orders.append(Reject(self._trial_id, body["rejected"]))
            else:
                late, repeated = body.get("late", False), body.get("repeated", False)
                orders.append(Answer(self._trial_id, Decision(body["decision"]), body["iter"], late, repeated))
        return orders + [_order_of(order) for order in body.get("orders", _NONE)]


_NONE: Final[list[Any]] = []  # Any: JSON


def _is_answer(order: Order, body: Mapping[str, Any]) -> bool:  # Any: JSON
    if type(order) is Answer:
        return bool(
            order.iter == body.get("iter")
            and order.decision == body.get("decision")
            and order.late == body.get("late", False)
            and order.repeated == body.get("repeated", False)
            and "rejected" not in body
        )
    return type(order) is Reject and "rejected" in body


_TEXTS: Final = ("why", "reason", "error")


def _decision(order: Mapping[str, Any]) -> Body:  # Any: JSON
    """Return the order of a row without its texts. Of the reason of a failed trial, its kind remains."""
    recorded = {key: value for key, value in order.items() if key not in _TEXTS}
    if order["order"] == "judged" and "reason" in order:
        recorded["reason_kind"] = order["reason"][0]
    return recorded


def _order_of(body: Mapping[str, Any]) -> Order:  # Any: JSON
    match body["order"]:
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
                body.get("alone", False),
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
    raise ValueError(f"unknown order {body['order']!r}")
