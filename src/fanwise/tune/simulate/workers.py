"""Simulated workers: a discrete-event simulation around the state machine of a search.

    heap of (time, number, event)  --earliest-->  event  --SearchCore-->  actions  -->  future events, into the heap
                                                   ^-- events at the same time, e.g. Ended and Free after STOP --'

The state machine, the scheduler and the searcher are those of a real search. At the same time, events caused by the
current event come first, then events from the heap in the order in which they were scheduled, then ticks. So the
simulation is deterministic.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, final

from ..core import events
from ..core.actions import Action, Answer, Finish, Kill, Reject, Start, StopStarting, Suggest, Terminate
from ..core.events import Event, Outcome
from ..core.search_core import SearchCore
from ..core.suggestions import call_searcher
from ..record.utilization import Utilization
from ..rng import KeyedRandom
from ..schedulers.scheduler import CONTINUE, Decision
from ..searchers.searcher import Searcher
from ..values import checked_nonnegative, is_number
from .tables import Curve, Table

OnEvent: TypeAlias = Callable[[Event, list[Action]], None]

_RETURNED = Outcome("returned")
_STOPPED = Outcome("stopped")
_CRASH = Outcome("exception", "SimulatedCrash: random crash (see the argument `faults`)")
_LOSS = Outcome("lost", "the simulated worker was lost (see the argument `faults`)")


@final
@dataclass(frozen=True, slots=True)
class Incumbent:
    """A feasible report that was better than all previous ones. `time_s`: its virtual time in seconds."""

    time_s: float
    value: float
    trial_id: int
    iter: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Random faults of simulated attempts. The faults of an attempt depend only on seed, trial and attempt.

    Args:
        crashes_per_hour: average number of crashes per hour of training. Crashed trials restart up to `retries` times.
        losses_per_hour: average number of lost workers per hour of training.
        repair_s: virtual seconds until a lost worker is available again.
        slowdown: function that returns a random factor for the time of an attempt. For example,
            `lambda rng: 1.0 + (rng.random() < 0.1)` doubles the time of one in ten attempts.

    Raises TypeError or ValueError if a rate or time is not a finite number of at least 0.
    """

    crashes_per_hour: float = 0.0
    losses_per_hour: float = 0.0
    repair_s: float = 0.0
    slowdown: Callable[[KeyedRandom], float] | None = None

    def __post_init__(self) -> None:
        for name in ("crashes_per_hour", "losses_per_hour", "repair_s"):
            checked_nonnegative(name, getattr(self, name))

    def _sample_slowdown(self, rng: KeyedRandom) -> float:
        slowdown = 1.0 if self.slowdown is None else self.slowdown(rng)
        if not (is_number(slowdown) and 0 < slowdown < math.inf):
            raise ValueError(f"slowdown must return a finite number above 0, got {slowdown!r}")
        return slowdown

    def _sample(self, rng: KeyedRandom, step_s: float) -> tuple[Outcome, float] | None:
        """Return the outcome of a fault and its time in seconds after the start of the step, or None without a fault.

        The probability is rate * duration instead of 1 - exp(-rate * duration), because the last bit of exp differs
        between machines.
        """
        crash_draw, loss_draw, fault_fraction = rng.random(), rng.random(), rng.random()
        if loss_draw * 3600.0 < self.losses_per_hour * step_s:
            return _LOSS, fault_fraction * step_s
        if crash_draw * 3600.0 < self.crashes_per_hour * step_s:
            return _CRASH, fault_fraction * step_s
        return None


@dataclass(slots=True, eq=False)
class _Attempt:
    """A running attempt of a trial. `iter`: number of the trial's last report."""

    start: Start
    curve: Curve
    rng: KeyedRandom  # for faults
    slowdown: float
    iter: int
    ready_s: float = math.nan


@final
@dataclass(slots=True, eq=False, kw_only=True)
class SimulatedWorkers:
    """The simulated workers of one search, and its results. See `simulate` for the settings."""

    core: SearchCore
    searcher: Searcher
    table: Table
    metric: str
    utilization: Utilization
    seed: int
    checkpoints: bool
    startup_s: float
    suggest_s: float
    faults: Faults | None
    on_event: OnEvent | None
    queue: deque[Event]  # events at the current time, initially the events of the warm start
    incumbents: list[Incumbent] = field(default_factory=list)
    decisions: dict[Decision, int] = field(default_factory=lambda: dict.fromkeys(Decision, 0))
    num_events: int = 0
    num_attempts: int = 0
    training_s: float = 0.0
    _running: dict[int, _Attempt] = field(default_factory=dict)
    _now_s: float = 0.0
    _heap: list[tuple[float, int, Event]] = field(default_factory=list)
    _num_scheduled: int = 0
    _searcher_free_s: float = 0.0
    _best_key: tuple[float, float] = (math.inf, math.inf)
    _finish: Finish | None = None

    def run(self) -> tuple[float, Finish]:
        """Run the search. Return its duration in virtual seconds, and the action `Finish`."""
        queue, handle, on_event = self.queue, self.core.handle, self.on_event
        queue.append(events.Begin(0.0))
        while queue or self._finish is None:
            if (event := queue.popleft() if queue else self._next_event()) is None:
                continue
            actions = handle(event)
            self.num_events += 1
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
                    self.utilization.on_stop(event.now_s)
                elif kind is Finish:
                    self._finish = action  # type: ignore[assignment]
        assert self._finish is not None
        return self._now_s, self._finish

    def _next_event(self) -> Event | None:
        """Advance to the next event and return it, or None if it is obsolete or an `Ended`, which `_end` queues."""
        tick_s, heap = self.core.next_tick_s, self._heap
        if tick_s is not None and (not heap or tick_s < heap[0][0]):
            self._now_s = tick_s
            return events.Tick(tick_s)
        assert heap, "a running search has future events"
        self._now_s, _, event = heapq.heappop(heap)
        kind = type(event)
        if kind is events.Free or kind is events.Suggested:
            return event
        attempt = self._running.get(event.trial_id)  # type: ignore[union-attr]  # Reported, Ready or Ended
        if attempt is None or attempt.start.attempt != event.attempt:  # type: ignore[union-attr]
            return None
        if kind is events.Ended:
            self._end(event.trial_id, event.now_s, event.outcome)  # type: ignore[union-attr]
            return None
        if kind is events.Ready:
            attempt.ready_s = event.now_s
            self.utilization.on_ready(event.trial_id, event.attempt, event.now_s)  # type: ignore[union-attr]
            self._train(attempt, event.now_s)
        return event

    def _schedule(self, at_s: float, event: Event) -> None:
        self._num_scheduled += 1
        heapq.heappush(self._heap, (at_s, self._num_scheduled, event))

    def _train(self, attempt: _Attempt, now_s: float) -> None:
        """Schedule the next report of the attempt, or a fault before it. End the attempt if its curve has ended."""
        trial_id, number, iter = attempt.start.trial_id, attempt.start.attempt, attempt.iter + 1
        step = attempt.curve(iter)
        if step is None:
            self._end(trial_id, now_s, _RETURNED)
            return
        values, step_s = step
        if not 0.0 <= step_s < math.inf:
            raise ValueError(
                f"report {iter} of trial {trial_id} takes {step_s!r} seconds in the table; "
                f"the time must be finite and at least 0"
            )
        if self.faults is not None:
            step_s *= attempt.slowdown
            fault = self.faults._sample(attempt.rng, step_s)
            if fault is not None:
                outcome, after_s = fault
                self._schedule(now_s + after_s, events.Ended(now_s + after_s, trial_id, number, outcome))
                return
        at_s = now_s + step_s
        checkpoint = f"{trial_id}/{iter}" if self.checkpoints else None
        self._schedule(at_s, events.Reported(at_s, trial_id, number, values, at_s - attempt.ready_s, checkpoint))

    def _end(self, trial_id: int, now_s: float, outcome: Outcome) -> None:
        """End an attempt if it is running, and free its worker. A lost worker is freed after its repair."""
        attempt = self._running.pop(trial_id, None)
        if attempt is None:
            return
        number = attempt.start.attempt
        self.num_attempts += 1
        self.training_s += self.utilization.on_end(trial_id, number, now_s, None)
        self.queue.append(events.Ended(now_s, trial_id, number, outcome, now_s - attempt.ready_s))
        if outcome.kind == "lost" and self.faults is not None:
            free_s = now_s + self.faults.repair_s
            self._schedule(free_s, events.Free(free_s, trial_id, number))
        else:
            self.queue.append(events.Free(now_s, trial_id, number))

    def _start(self, action: Start, now_s: float) -> None:
        rng = KeyedRandom(f"{self.seed}/faults/{action.trial_id}/{action.attempt}")
        slowdown = 1.0 if self.faults is None else self.faults._sample_slowdown(rng)
        curve = self.table.curve(action.config)
        self._running[action.trial_id] = _Attempt(action, curve, rng, slowdown, action.from_iter)
        ready_s = now_s + self.startup_s
        self._schedule(ready_s, events.Ready(ready_s, action.trial_id, action.attempt))

    def _answer(self, action: Answer, event: events.Reported) -> None:
        attempt = self._running[action.trial_id]
        attempt.iter += 1
        if not action.repeated:
            self.decisions[action.decision] += 1
            best_key = self.core.counts.best_key
            if best_key != self._best_key and not best_key[0]:
                value: float = event.values[self.metric]  # type: ignore[assignment]  # validated
                self.incumbents.append(Incumbent(event.now_s, value, event.trial_id, action.iter))
            self._best_key = best_key
        if action.decision is CONTINUE:
            self._train(attempt, event.now_s)
        else:
            self._end(action.trial_id, event.now_s, _STOPPED)

    def _suggest(self, action: Suggest) -> None:
        # The searcher is called now, so it sees the state at the request. It computes one suggestion at a time, so its
        # answer arrives `suggest_s` after the previous one or after now, whichever is later.
        self._searcher_free_s = at_s = max(self._now_s, self._searcher_free_s) + self.suggest_s
        event = call_searcher(self.searcher, action, at_s, last_seen_seq=self.num_events)
        if at_s > self._now_s:
            self._schedule(at_s, event)
        else:
            self.queue.append(event)
