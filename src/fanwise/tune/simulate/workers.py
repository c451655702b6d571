"""Simulated workers: a discrete-event simulation around the state machine of a search.

    heap of (time, number, fact)  --earliest-->  fact  --Tuning-->  orders  -->  future facts, into the heap
                                                   ^-- facts of the same time, e.g. ends after STOP --'

State machine, scheduler and searcher are those of a real search. Facts at the same time are processed in
the order in which they were scheduled, so that the simulation is deterministic.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from ..constraints import Constraint, violated
from ..decisions import facts
from ..decisions.driving import suggested
from ..decisions.facts import Fact, Outcome
from ..decisions.orders import Answer, Finish, Kill, Order, Reject, Start, StopStarting, Suggest, Terminate
from ..decisions.tuning import Tuning
from ..record.utilisation import Utilisation
from ..schedulers.base import CONTINUE, Decision
from ..searchers.base import Objective, Searcher, SuggestContext
from .faults import AttemptFaults, Faults
from .result import Columns, Incumbent
from .tables import Curve, Table

OnEvent: TypeAlias = Callable[[Fact, list[Order]], None]

_RETURNED = Outcome("returned")
_STOPPED = Outcome("stopped")


@final
class _Attempt:
    """A running attempt of a trial. `iter`: its last report."""

    __slots__ = ("attempt", "curve", "faults", "from_iter", "iter", "ready_s", "slot", "start_s", "trial_id")

    def __init__(self, order: Start, start_s: float, curve: Curve, faults: AttemptFaults | None) -> None:
        self.trial_id = order.trial_id
        self.attempt = order.attempt
        self.slot = order.slot
        self.from_iter = self.iter = order.from_iter
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
        self.num_facts = 0
        self.num_attempts = 0
        self.training_s = 0.0
        self.utilisation = Utilisation(n_workers)
        self.attempts = self.reports = None
        if keep_attempts:
            integers = ("trial_id", "attempt", "worker")
            times = ("start_s", "ready_s", "end_s")
            self.attempts = Columns(
                {**dict.fromkeys(integers, "q"), **dict.fromkeys(times, "d"), "from_iter": "q", "iter": "q"}
            )
        if keep_reports:
            self.reports = Columns({"time_s": "d", "trial_id": "q", "iter": "q", objective.metric: "d"})
        self._sign = 1.0 if objective.mode == "min" else -1.0
        self._best_loss = math.inf
        self._constraints = constraints

    def report(self, fact: facts.Reported, answer: Answer) -> None:
        """Add a valid report."""
        self.decisions[answer.decision] += 1
        value: float = fact.values[self.objective.metric]  # type: ignore[assignment]  # validated
        is_better = self._sign * value < self._best_loss and math.isfinite(value)
        if is_better and not violated(self._constraints, fact.values):
            self._best_loss = self._sign * value
            self.incumbents.append(Incumbent(fact.now_s, value, fact.trial_id, answer.iter))
        if self.reports is not None:
            self.reports.add(fact.now_s, fact.trial_id, answer.iter, value)

    def attempt(self, attempt: _Attempt, end_s: float) -> None:
        """Add an attempt that has ended."""
        self.num_attempts += 1
        self.training_s += self.utilisation.ended(attempt.trial_id, attempt.attempt, end_s, None)
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
        on_event: called with every fact and the resulting orders.
        earlier: warm-start trials.
    """

    def __init__(
        self,
        tuning: Tuning,
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
        earlier: Sequence[Fact],
    ) -> None:
        self._tuning = tuning
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
        self._heap: list[tuple[float, int, Fact]] = []
        self._num_scheduled = 0
        self._queue: deque[Fact] = deque(earlier)  # facts at the current time
        self._searcher_free_s = 0.0
        self._finish: Finish | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            facts.Ready: self._ready,
            facts.Reported: self._reported,
            facts.Ended: self._ended,
            facts.Free: self._queue.append,
            facts.Suggested: self._queue.append,
        }

    def run(self) -> tuple[float, Finish]:
        """Run the search. Return its duration in virtual seconds, and how it ended."""
        tuning, heap, handlers = self._tuning, self._heap, self._handlers
        self._queue.append(facts.Begin(0.0))
        self._process_queue()
        while self._finish is None:
            tick_s = tuning.next_tick_s
            if tick_s is not None and (not heap or tick_s < heap[0][0]):
                self._now_s = tick_s
                self._queue.append(facts.Tick(tick_s))
            else:
                assert heap, "a running search has future facts"
                self._now_s, _, fact = heapq.heappop(heap)
                handlers[type(fact)](fact)
            self._process_queue()
        return self._now_s, self._finish

    def _schedule(self, at_s: float, fact: Fact) -> None:
        self._num_scheduled += 1
        heapq.heappush(self._heap, (at_s, self._num_scheduled, fact))

    def _process_queue(self) -> None:
        """Pass queued facts to the state machine and carry out its orders, until the queue is empty."""
        queue, handle, on_event, tally = self._queue, self._tuning.handle, self._on_event, self._tally
        while queue:
            fact = queue.popleft()
            orders = handle(fact)
            tally.num_facts += 1
            if on_event is not None:
                on_event(fact, orders)
            for order in orders:
                kind = type(order)
                if kind is Answer:
                    self._answer(order, fact)  # type: ignore[arg-type]  # an answer to a report
                elif kind is Start:
                    self._start(order, fact.now_s)  # type: ignore[arg-type]
                elif kind is Suggest:
                    self._suggest(order)  # type: ignore[arg-type]
                elif kind is Terminate or kind is Kill:
                    self._end(order.trial_id, fact.now_s, _STOPPED)  # type: ignore[union-attr]
                elif kind is Reject:
                    self._end(order.trial_id, fact.now_s, Outcome("exception", f"ValueError: {order.message}"))  # type: ignore[union-attr]
                elif kind is StopStarting:
                    tally.utilisation.stopped(fact.now_s)
                elif kind is Finish:
                    self._finish = order  # type: ignore[assignment]

    def _running_attempt(self, fact: facts.Ready | facts.Reported | facts.Ended) -> _Attempt | None:
        """Return the attempt of a fact, or None if it was stopped after the fact was scheduled."""
        attempt = self._running.get(fact.trial_id)
        return attempt if attempt is not None and attempt.attempt == fact.attempt else None

    def _ready(self, fact: facts.Ready) -> None:
        attempt = self._running_attempt(fact)
        if attempt is not None:
            attempt.ready_s = fact.now_s
            self._tally.utilisation.ready(fact.trial_id, fact.attempt, fact.now_s)
            self._queue.append(fact)
            self._train(attempt, fact.now_s)

    def _reported(self, fact: facts.Reported) -> None:
        if self._running_attempt(fact) is not None:
            self._queue.append(fact)

    def _ended(self, fact: facts.Ended) -> None:
        if self._running_attempt(fact) is not None:
            self._end(fact.trial_id, fact.now_s, fact.outcome)

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
                    now_s + after_s, facts.Ended(now_s + after_s, attempt.trial_id, attempt.attempt, outcome)
                )
                return
        at_s = now_s + step_s
        name = f"{attempt.trial_id}/{attempt.iter + 1}" if self._checkpoints else None
        worker_time_s = at_s - attempt.ready_s
        self._schedule(at_s, facts.Reported(at_s, attempt.trial_id, attempt.attempt, values, worker_time_s, name))

    def _end(self, trial_id: int, now_s: float, outcome: Outcome) -> None:
        """End an attempt, unless it has ended, and free its worker, after the repair if it was lost."""
        attempt = self._running.pop(trial_id, None)
        if attempt is None:
            return
        self._tally.attempt(attempt, now_s)
        number = attempt.attempt
        self._queue.append(facts.Ended(now_s, trial_id, number, outcome, now_s - attempt.ready_s))
        if outcome.kind == "lost" and self._faults is not None:
            free_s = now_s + self._faults.repair_s
            self._schedule(free_s, facts.Free(free_s, trial_id, number))
        else:
            self._queue.append(facts.Free(now_s, trial_id, number))

    def _start(self, order: Start, now_s: float) -> None:
        faults = None
        if self._faults is not None:
            faults = AttemptFaults(self._faults, self._seed, order.trial_id, order.attempt)
        attempt = _Attempt(order, now_s, self._table.curve(order.config), faults)
        self._running[order.trial_id] = attempt
        ready_s = now_s + self._startup_s
        self._schedule(ready_s, facts.Ready(ready_s, order.trial_id, order.attempt))

    def _answer(self, order: Answer, fact: facts.Reported) -> None:
        attempt = self._running[order.trial_id]
        attempt.iter += 1
        if not order.repeated:
            self._tally.report(fact, order)
        if order.decision is CONTINUE:
            self._train(attempt, fact.now_s)
        else:
            self._end(order.trial_id, fact.now_s, _STOPPED)

    def _suggest(self, order: Suggest) -> None:
        # Suggestions are sequential. Each is based on the facts at the time of the request, as in a real search.
        self._searcher_free_s = at_s = max(self._now_s, self._searcher_free_s) + self._suggest_s(order.ask)
        fact = suggested(self._searcher, order, at_s, seen=self._tally.num_facts)
        if at_s > self._now_s:
            self._schedule(at_s, fact)
        else:
            self._queue.append(fact)
