"""The simulated workers and their clock: carries out the orders of a `Tuning` and tells it what happens, and when.

    heap of (time, number, what)  --the earliest-->  a fact  --Tuning-->  orders  -->  what happens next, into the heap
                                                       ^-- at the same time: ends after STOP, quick suggestions --'

The state machine, the scheduler and the searcher are those of a real search; processes, links and the clock are not
there. Events of the same time come in the order in which they became certain, so that the same settings give the same
facts. Knows learning curves, start-up times and faults; decides nothing about trials.
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
from ..searchers.base import Ask, Objective, Searcher
from .faults import Faults, Luck
from .result import Columns, Incumbent
from .tables import Curve, Table

Note: TypeAlias = Callable[[Fact, list[Order]], None]

_RETURNED = Outcome("returned")
_STOPPED = Outcome("stopped")


@final
class Attempt:
    """An attempt of a trial that has a worker. `iter`: its last report."""

    __slots__ = ("attempt", "curve", "from_iter", "iter", "luck", "ready_s", "slot", "start_s", "trial_id")

    def __init__(self, order: Start, start_s: float, curve: Curve, luck: Luck | None) -> None:
        self.trial_id = order.trial_id
        self.attempt = order.attempt
        self.slot = order.slot
        self.from_iter = self.iter = order.from_iter
        self.start_s = start_s
        self.ready_s = math.nan
        self.curve = curve
        self.luck = luck


@final
class Tally:
    """What is counted and kept of a simulated search while it runs."""

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
            whole = ("trial_id", "attempt", "worker")
            times = ("start_s", "ready_s", "end_s")
            self.attempts = Columns(
                {**dict.fromkeys(whole, "q"), **dict.fromkeys(times, "d"), "from_iter": "q", "iter": "q"}
            )
        if keep_reports:
            self.reports = Columns({"time_s": "d", "trial_id": "q", "iter": "q", objective.metric: "d"})
        self._sign = 1.0 if objective.mode == "min" else -1.0
        self._best_loss = math.inf
        self._constraints = constraints

    def report(self, fact: facts.Reported, answer: Answer) -> None:
        """A report that counts."""
        self.decisions[answer.decision] += 1
        value: float = fact.values[self.objective.metric]  # type: ignore[assignment]  # else it had been rejected
        is_better = self._sign * value < self._best_loss and math.isfinite(value)
        if is_better and not violated(self._constraints, fact.values):
            self._best_loss = self._sign * value
            self.incumbents.append(Incumbent(fact.now_s, value, fact.trial_id, answer.iter))
        if self.reports is not None:
            self.reports.add(fact.now_s, fact.trial_id, answer.iter, value)

    def attempt(self, attempt: Attempt, end_s: float) -> None:
        """An attempt that is over."""
        self.num_attempts += 1
        self.training_s += self.utilisation.ended(attempt.trial_id, attempt.attempt, end_s, None)
        if self.attempts is not None:
            numbers = (attempt.trial_id, attempt.attempt, attempt.slot, attempt.start_s, attempt.ready_s, end_s)
            self.attempts.add(*numbers, attempt.from_iter, attempt.iter)


@final
class Workers:
    """The workers of one search. `run` blocks until it is over.

    Args:
        tuning: the state machine, to which nothing was told yet.
        searcher: answers what `tuning` wants suggested; None where the scheduler has none.
        table: the learning curves.
        tally: counts.
        seed: of the faults.
        checkpoints: whether a trial saves one with every report.
        startup_s: virtual seconds from an attempt's start until the objective begins.
        thinking_s: virtual seconds that a suggestion takes; one is made at a time.
        faults: what goes wrong; None: nothing.
        note: gets every fact with its orders.
        earlier: trials of earlier searches, which the searcher is told of first.
    """

    def __init__(
        self,
        tuning: Tuning,
        searcher: Searcher | None,
        table: Table,
        *,
        tally: Tally,
        seed: int,
        checkpoints: bool,
        startup_s: float,
        thinking_s: Callable[[Ask], float],
        faults: Faults | None,
        note: Note | None,
        earlier: Sequence[Fact],
    ) -> None:
        self._tuning = tuning
        self._searcher = searcher
        self._table = table
        self._tally = tally
        self._seed = seed
        self._checkpoints = checkpoints
        self._startup_s = startup_s
        self._thinking_s = thinking_s
        self._faults = faults
        self._note = note
        self._running: dict[int, Attempt] = {}
        self._now_s = 0.0
        self._heap: list[tuple[float, int, Fact]] = []
        self._pushed = 0
        self._waiting: deque[Fact] = deque(earlier)  # facts of this very moment
        self._thinks_until_s = 0.0
        self._finish: Finish | None = None
        self._happens: dict[type, Callable[[Any], None]] = {
            facts.Ready: self._ready,
            facts.Reported: self._reported,
            facts.Ended: self._ended,
            facts.Free: self._waiting.append,
            facts.Suggested: self._waiting.append,
        }

    def run(self) -> tuple[float, Finish]:
        """Run the search. Returns its last moment and how it ended."""
        tuning, heap, happens = self._tuning, self._heap, self._happens
        self._waiting.append(facts.Begin(0.0))
        self._hand_in()
        while self._finish is None:
            tick_s = tuning.next_tick_s
            if tick_s is not None and (not heap or tick_s < heap[0][0]):
                self._now_s = tick_s
                self._waiting.append(facts.Tick(tick_s))
            else:
                assert heap, "a search that is not over has something to wait for"
                self._now_s, _, what = heapq.heappop(heap)
                happens[type(what)](what)
            self._hand_in()
        return self._now_s, self._finish

    def _push(self, at_s: float, what: Fact) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_s, self._pushed, what))

    def _hand_in(self) -> None:
        """Tell the state machine the facts of this moment, and carry out what it orders, until nothing follows."""
        waiting, handle, note, tally = self._waiting, self._tuning.handle, self._note, self._tally
        while waiting:
            fact = waiting.popleft()
            orders = handle(fact)
            tally.num_facts += 1
            if note is not None:
                note(fact, orders)
            for order in orders:
                kind = type(order)
                if kind is Answer:
                    self._answer(order, fact)  # type: ignore[arg-type]  # an answer is to a report
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

    # What happens.

    def _alive(self, fact: facts.Ready | facts.Reported | facts.Ended) -> Attempt | None:
        """The attempt, if it was not stopped since it became certain that this would happen."""
        attempt = self._running.get(fact.trial_id)
        return attempt if attempt is not None and attempt.attempt == fact.attempt else None

    def _ready(self, fact: facts.Ready) -> None:
        attempt = self._alive(fact)
        if attempt is not None:
            attempt.ready_s = fact.now_s
            self._tally.utilisation.ready(fact.trial_id, fact.attempt, fact.now_s)
            self._waiting.append(fact)
            self._train(attempt, fact.now_s)

    def _reported(self, fact: facts.Reported) -> None:
        if self._alive(fact) is not None:
            self._waiting.append(fact)

    def _ended(self, fact: facts.Ended) -> None:
        if self._alive(fact) is not None:
            self._end(fact.trial_id, fact.now_s, fact.outcome)

    def _train(self, attempt: Attempt, now_s: float) -> None:
        """From a report, or from the begin, to the next one, or to the end."""
        step = attempt.curve(attempt.iter + 1)
        if step is None:
            self._end(attempt.trial_id, now_s, _RETURNED)
            return
        values, step_s = step
        if not 0.0 <= step_s < math.inf:
            raise ValueError(
                f"report {attempt.iter + 1} of trial {attempt.trial_id} takes {step_s!r} seconds in the table; "
                f"that must be a finite number of at least 0"
            )
        if attempt.luck is not None:
            step_s *= attempt.luck.slowdown
            broken = attempt.luck.in_step(step_s)
            if broken is not None:
                outcome, after_s = broken
                self._push(now_s + after_s, facts.Ended(now_s + after_s, attempt.trial_id, attempt.attempt, outcome))
                return
        at_s = now_s + step_s
        name = f"{attempt.trial_id}/{attempt.iter + 1}" if self._checkpoints else None
        worker_time_s = at_s - attempt.ready_s
        self._push(at_s, facts.Reported(at_s, attempt.trial_id, attempt.attempt, values, worker_time_s, name))

    def _end(self, trial_id: int, now_s: float, outcome: Outcome) -> None:
        """The attempt is over, if it was not before, and its worker is free: after a loss when it is repaired."""
        attempt = self._running.pop(trial_id, None)
        if attempt is None:
            return
        self._tally.attempt(attempt, now_s)
        number = attempt.attempt
        self._waiting.append(facts.Ended(now_s, trial_id, number, outcome, now_s - attempt.ready_s))
        if outcome.kind == "lost" and self._faults is not None:
            free_s = now_s + self._faults.repair_s
            self._push(free_s, facts.Free(free_s, trial_id, number))
        else:
            self._waiting.append(facts.Free(now_s, trial_id, number))

    # What is ordered.

    def _start(self, order: Start, now_s: float) -> None:
        luck = None if self._faults is None else Luck(self._faults, self._seed, order.trial_id, order.attempt)
        attempt = Attempt(order, now_s, self._table.curve(order.config), luck)
        self._running[order.trial_id] = attempt
        ready_s = now_s + self._startup_s
        self._push(ready_s, facts.Ready(ready_s, order.trial_id, order.attempt))

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
        """One answer at a time. Each knows what had happened when it was asked for: live, what comes later queues."""
        assert self._searcher is not None, "a suggestion was ordered from a scheduler without a searcher"
        self._thinks_until_s = at_s = max(self._now_s, self._thinks_until_s) + self._thinking_s(order.ask)
        fact = suggested(self._searcher, order, at_s, seen=self._tally.num_facts)
        if at_s > self._now_s:
            self._push(at_s, fact)
        else:
            self._waiting.append(fact)
