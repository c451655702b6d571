"""Simulated workers: a discrete-event simulation around the state machine of a search.

    heap of (time, number, event)  --earliest-->  event  --SearchCore-->  actions  -->  future events, into the heap
                                                   ^-- events of the same time, e.g. ends after STOP --'

State machine, scheduler and searcher are those of a real search. Events at the same time are processed in
the order in which they were scheduled, so that the simulation is deterministic.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from ..constraints import Constraint, violated
from ..core import events
from ..core.actions import Action, Answer, Finish, Kill, Reject, Start, StopStarting, Suggest, Terminate
from ..core.events import Event, Outcome
from ..core.search_core import SearchCore
from ..core.suggestions import suggested
from ..record.utilization import Utilization
from ..schedulers.scheduler import CONTINUE, Decision
from ..searchers.searcher import Objective, Searcher, SuggestContext
from .faults import AttemptFaults, Faults
from .result import Incumbent, ResultColumns
from .tables import Curve, Table

OnEvent: TypeAlias = Callable[[Event, list[Action]], None]

_RETURNED = Outcome("returned")
_STOPPED = Outcome("stopped")


@final
class _Attempt:
    """A running attempt of a trial. `iter`: its last report."""

    __slots__ = ("attempt", "curve", "faults", "from_iter", "iter", "ready_s", "slot", "start_s", "trial_id")

    def __init__(self, action: Start, start_s: float, curve: Curve, faults: AttemptFaults | None) -> None:
        self.trial_id = action.trial_id
        self.attempt = action.attempt
        self.slot = action.slot
        self.from_iter = self.iter = action.from_iter
        self.start_s = start_s
        self.ready_s = math.nan
        self.curve = curve
        self.faults = faults


@final
class Tally:
    """Collects the results of a simulated search."""

    def __init__(
        self,
        objective: Objective,
        *,
        n_workers: int,
        constraints: Sequence[Constraint],
        keep_attempts: bool,
        keep_reports: bool,
    ) -> None:
        self.objective = objective
        self.incumbents: list[Incumbent] = []
        self.decisions = dict.fromkeys(Decision, 0)
        self.num_events = 0
        self.num_attempts = 0
        self.training_s = 0.0
        self.utilization = Utilization(n_workers)
        self.attempts = self.reports = None
        if keep_attempts:
            integers = ("trial_id", "attempt", "worker")
            times = ("start_s", "ready_s", "end_s")
            self.attempts = ResultColumns(
                {**dict.fromkeys(integers, "q"), **dict.fromkeys(times, "d"), "from_iter": "q", "iter": "q"}
            )
        if keep_reports:
            self.reports = ResultColumns({"time_s": "d", "trial_id": "q", "iter": "q", objective.metric: "d"})
        self._sign = 1.0 if objective.mode == "min" else -1.0
        self._best_loss = math.inf
        self._constraints = constraints

    def report(self, event: events.Reported, answer: Answer) -> None:
        """Add a valid report."""
        self.decisions[answer.decision] += 1
        value: float = event.values[self.objective.metric]  # type: ignore[assignment]  # validated
        is_better = self._sign * value < self._best_loss and math.isfinite(value)
        if is_better and not violated(self._constraints, event.values):
            self._best_loss = self._sign * value
            self.incumbents.append(Incumbent(event.now_s, value, event.trial_id, answer.iter))
        if self.reports is not None:
            self.reports.add(event.now_s, event.trial_id, answer.iter, value)

    def attempt(self, attempt: _Attempt, end_s: float) -> None:
        """Add an attempt that has ended."""
        self.num_attempts += 1
        self.training_s += self.utilization.ended(attempt.trial_id, attempt.attempt, end_s, None)
        if self.attempts is not None:
            numbers = (attempt.trial_id, attempt.attempt, attempt.slot, attempt.start_s, attempt.ready_s, end_s)
            self.attempts.add(*numbers, attempt.from_iter, attempt.iter)


@final
class SimulatedWorkers:
    """The workers of one search.

    Args:
        tuning: the state machine, in its initial state.
        searcher: the searcher of the scheduler.
        table: learning curves.
        tally: collects the results.
        seed: seed of the faults.
        checkpoints: whether trials save a checkpoint with every report.
        startup_s: virtual seconds from the start of an attempt until the objective is called.
        suggest_s: virtual seconds per suggestion; suggestions are sequential.
        faults: random faults, or None.
        on_event: called with every event and the resulting actions.
        earlier: warm-start trials.
    """

    def __init__(
        self,
        core: SearchCore,
        searcher: Searcher,
        table: Table,
        *,
        tally: Tally,
        seed: int,
        checkpoints: bool,
        startup_s: float,
        suggest_s: Callable[[SuggestContext], float],
        faults: Faults | None,
        on_event: OnEvent | None,
        earlier: Sequence[Event],
    ) -> None:
        self._tuning = core
        self._searcher = searcher
        self._table = table
        self._tally = tally
        self._seed = seed
        self._checkpoints = checkpoints
        self._startup_s = startup_s
        self._suggest_s = suggest_s
        self._faults = faults
        self._on_event = on_event
        self._running: dict[int, _Attempt] = {}
        self._now_s = 0.0
        self._heap: list[tuple[float, int, Event]] = []
        self._num_scheduled = 0
        self._queue: deque[Event] = deque(earlier)  # events at the current time
        self._searcher_free_s = 0.0
        self._finish: Finish | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Ready: self._ready,
            events.Reported: self._reported,
            events.Ended: self._ended,
            events.Free: self._queue.append,
            events.Suggested: self._queue.append,
        }

    def run(self) -> tuple[float, Finish]:
        """Run the search. Return its duration in virtual seconds, and how it ended."""
        core, heap, handlers = self._tuning, self._heap, self._handlers
        self._queue.append(events.Begin(0.0))
        self._process_queue()
        while self._finish is None:
            tick_s = core.next_tick_s
            if tick_s is not None and (not heap or tick_s < heap[0][0]):
                self._now_s = tick_s
                self._queue.append(events.Tick(tick_s))
            else:
                assert heap, "a running search has future events"
                self._now_s, _, event = heapq.heappop(heap)
                handlers[type(event)](event)
            self._process_queue()
        return self._now_s, self._finish

    def _schedule(self, at_s: float, event: Event) -> None:
        self._num_scheduled += 1
        heapq.heappush(self._heap, (at_s, self._num_scheduled, event))

    def _process_queue(self) -> None:
        """Pass queued events to the state machine and carry out its actions, until the queue is empty."""
        queue, handle, on_event, tally = self._queue, self._tuning.handle, self._on_event, self._tally
        while queue:
            event = queue.popleft()
            actions = handle(event)
            tally.num_events += 1
            if on_event is not None:
                on_event(event, actions)
            for action in actions:
                kind = type(action)
                if kind is Answer:
                    self._answer(action, event)  # type: ignore[arg-type]  # an answer to a report
                elif kind is Start:
                    self._start(action, event.now_s)  # type: ignore[arg-type]
                elif kind is Suggest:
                    self._suggest(action)  # type: ignore[arg-type]
                elif kind is Terminate or kind is Kill:
                    self._end(action.trial_id, event.now_s, _STOPPED)  # type: ignore[union-attr]
                elif kind is Reject:
                    self._end(action.trial_id, event.now_s, Outcome("exception", f"ValueError: {action.message}"))  # type: ignore[union-attr]
                elif kind is StopStarting:
                    tally.utilization.stopped(event.now_s)
                elif kind is Finish:
                    self._finish = action  # type: ignore[assignment]

    def _running_attempt(self, event: events.Ready | events.Reported | events.Ended) -> _Attempt | None:
        """Return the attempt of an event, or None if it was stopped after the event was scheduled."""
        attempt = self._running.get(event.trial_id)
        return attempt if attempt is not None and attempt.attempt == event.attempt else None

    def _ready(self, event: events.Ready) -> None:
        attempt = self._running_attempt(event)
        if attempt is not None:
            attempt.ready_s = event.now_s
            self._tally.utilization.ready(event.trial_id, event.attempt, event.now_s)
            self._queue.append(event)
            self._train(attempt, event.now_s)

    def _reported(self, event: events.Reported) -> None:
        if self._running_attempt(event) is not None:
            self._queue.append(event)

    def _ended(self, event: events.Ended) -> None:
        if self._running_attempt(event) is not None:
            self._end(event.trial_id, event.now_s, event.outcome)

    def _train(self, attempt: _Attempt, now_s: float) -> None:
        """Train until the next report or the end."""
        step = attempt.curve(attempt.iter + 1)
        if step is None:
            self._end(attempt.trial_id, now_s, _RETURNED)
            return
        values, step_s = step
        if not 0.0 <= step_s < math.inf:
            raise ValueError(
                f"report {attempt.iter + 1} of trial {attempt.trial_id} takes {step_s!r} seconds in the table; "
                f"the time must be finite and at least 0"
            )
        if attempt.faults is not None:
            step_s *= attempt.faults.slowdown
            fault = attempt.faults.in_step(step_s)
            if fault is not None:
                outcome, after_s = fault
                self._schedule(
                    now_s + after_s, events.Ended(now_s + after_s, attempt.trial_id, attempt.attempt, outcome)
                )
                return
        at_s = now_s + step_s
        name = f"{attempt.trial_id}/{attempt.iter + 1}" if self._checkpoints else None
        worker_time_s = at_s - attempt.ready_s
        self._schedule(at_s, events.Reported(at_s, attempt.trial_id, attempt.attempt, values, worker_time_s, name))

    def _end(self, trial_id: int, now_s: float, outcome: Outcome) -> None:
        """End an attempt, unless it has ended, and free its worker, after the repair if it was lost."""
        attempt = self._running.pop(trial_id, None)
        if attempt is None:
            return
        self._tally.attempt(attempt, now_s)
        number = attempt.attempt
        self._queue.append(events.Ended(now_s, trial_id, number, outcome, now_s - attempt.ready_s))
        if outcome.kind == "lost" and self._faults is not None:
            free_s = now_s + self._faults.repair_s
            self._schedule(free_s, events.Free(free_s, trial_id, number))
        else:
            self._queue.append(events.Free(now_s, trial_id, number))

    def _start(self, action: Start, now_s: float) -> None:
        faults = None
        if self._faults is not None:
            faults = AttemptFaults(self._faults, self._seed, action.trial_id, action.attempt)
        attempt = _Attempt(action, now_s, self._table.curve(action.config), faults)
        self._running[action.trial_id] = attempt
        ready_s = now_s + self._startup_s
        self._schedule(ready_s, events.Ready(ready_s, action.trial_id, action.attempt))

    def _answer(self, action: Answer, event: events.Reported) -> None:
        attempt = self._running[action.trial_id]
        attempt.iter += 1
        if not action.repeated:
            self._tally.report(event, action)
        if action.decision is CONTINUE:
            self._train(attempt, event.now_s)
        else:
            self._end(action.trial_id, event.now_s, _STOPPED)

    def _suggest(self, action: Suggest) -> None:
        # Suggestions are sequential. Each is based on the events at the time of the request, as in a real search.
        self._searcher_free_s = at_s = max(self._now_s, self._searcher_free_s) + self._suggest_s(action.ask)
        event = suggested(self._searcher, action, at_s, seen=self._tally.num_events)
        if at_s > self._now_s:
            self._schedule(at_s, event)
        else:
            self._queue.append(event)
