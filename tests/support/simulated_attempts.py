"""Collects the attempts of a simulated search from its events: `simulate(..., on_event=attempts.add)`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fanwise.tune.core import events
from fanwise.tune.core.actions import Action, Answer, Start


@dataclass(frozen=True)
class SimulatedAttempt:
    """An attempt that has ended. `ready_s` is NaN if it ended before the objective was called."""

    trial_id: int
    attempt: int
    worker: int
    start_s: float
    from_iter: int
    iter: int
    ready_s: float = math.nan
    end_s: float = math.nan


class SimulatedAttempts:
    """The attempts in the order of their ends, and the valid reports as (time, trial, iteration, loss)."""

    def __init__(self) -> None:
        self.ended: list[SimulatedAttempt] = []
        self.reports: list[tuple[float, int, int, float]] = []
        self._running: dict[int, SimulatedAttempt] = {}

    def add(self, event: events.Event, actions: Sequence[Action]) -> None:
        if isinstance(event, events.Ready):
            self._running[event.trial_id] = replace(self._running[event.trial_id], ready_s=event.now_s)
        if isinstance(event, events.Ended):
            self.ended.append(replace(self._running.pop(event.trial_id), end_s=event.now_s))
        for action in actions:
            if isinstance(action, Start):
                row = (action.trial_id, action.attempt, action.slot, event.now_s, action.from_iter, action.from_iter)
                self._running[action.trial_id] = SimulatedAttempt(*row)
            if isinstance(action, Answer) and isinstance(event, events.Reported):
                attempt = self._running[event.trial_id]
                self._running[event.trial_id] = replace(attempt, iter=attempt.iter + 1)
                if not action.repeated:
                    loss = event.values["loss"]
                    assert isinstance(loss, float)
                    self.reports.append((event.now_s, event.trial_id, action.iter, loss))
