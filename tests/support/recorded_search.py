"""The rows of a search that nobody runs, as the record keeps them.

rows = RecordedSearch(add)             add(t_s, kind, trial_id, body) gets each row
rows.start(0.0, 0, {"lr": 0.1})
rows.ready(1.0, 0)
rows.report(2.0, 0, 1, {"loss": 0.5})
rows.end(3.0, 0, "Completed", 2.0)
rows.free(3.0, 0)
"""

from collections.abc import Callable, Mapping
from typing import Any

Add = Callable[[float, str, int | None, dict[str, Any]], object]  # Any: JSON


class RecordedSearch:
    """See the module. Each method makes one row."""

    def __init__(self, add: Add) -> None:
        self.add = add

    def action(self, t_s: float, action: Mapping[str, Any], kind: str = "tick") -> None:  # Any: JSON
        """A row whose event led to this action."""
        self.add(t_s, kind, None, {"actions": [dict(action)]})

    def start(
        self,
        t_s: float,
        trial_id: int,
        config: Mapping[str, Any],  # Any: JSON
        *,
        attempt: int = 0,
        slot: int = 0,
        **more: Any,  # Any: JSON
    ) -> None:
        action = {"action": "start", "trial": trial_id, "attempt": attempt, "slot": slot, **more}
        self.action(t_s, action | ({"config": dict(config)} if attempt == 0 else {}))

    def ready(self, t_s: float, trial_id: int, *, attempt: int = 0) -> None:
        body = {"attempt": attempt, "pid": 1, "process_started_s": 0.0, "start_method": "fork"}
        self.add(t_s, "ready", trial_id, body)

    def report(
        self,
        t_s: float,
        trial_id: int,
        number: int,
        values: Mapping[str, Any],  # Any: JSON
        *,
        attempt: int = 0,
        decision: str = "CONTINUE",
        worker_time_s: float | None = None,
        **more: Any,  # Any: JSON
    ) -> None:
        seconds = t_s / 2 if worker_time_s is None else worker_time_s
        body = {"attempt": attempt, "values": dict(values), "worker_time": seconds, "iter": number}
        self.add(t_s, "report", trial_id, {**body, "decision": decision, **more})

    def end(
        self,
        t_s: float,
        trial_id: int,
        status: str,
        objective_s: float | None,
        *,
        attempt: int = 0,
        reason: Mapping[str, str] | None = None,
        will_retry: bool = False,
    ) -> None:
        """`reason`: kind, text, traceback and last_output of a failure."""
        outcome = {"kind": "returned", "text": ""} if reason is None else dict(reason)
        judged: dict[str, Any] = {
            "action": "judged",
            "trial": trial_id,
            "attempt": attempt,
            "status": status,
        }  # Any: JSON
        judged |= {} if reason is None else {"reason": [reason["kind"], reason["text"]]}
        judged |= {"will_retry": True} if will_retry else {}
        self.add(
            t_s,
            "ended",
            trial_id,
            {
                "attempt": attempt,
                "outcome": outcome,
                "objective_s": objective_s,
                "actions": [judged],
            },
        )

    def free(self, t_s: float, trial_id: int, *, attempt: int = 0) -> None:
        self.add(t_s, "free", trial_id, {"attempt": attempt})

    def stop(self, t_s: float, reason: str) -> None:
        """No trial is started from now on."""
        self.action(t_s, {"action": "stop", "reason": reason})

    def finish(self, t_s: float, reason: str) -> None:
        self.action(t_s, {"action": "finish", "reason": reason, "kind": "limit", "error": None})
