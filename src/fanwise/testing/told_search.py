"""A search for tests of the decisions: facts are handed in one by one, each gives the orders that follow from it.

    search = tuning_of(n_workers=2)
    search.begin()
    search.report(0, 0, 0.5)            # [Answer(0, CONTINUE, 1)]

Trial k has x = k. The scheduler `Told` answers a report as the report says, and runs what its plan says. Loads no
pytest.
"""

import heapq
import math
from collections.abc import Mapping
from typing import Any

from ..tune.decisions import facts
from ..tune.decisions.driving import handle
from ..tune.decisions.facts import Fact, Outcome
from ..tune.decisions.orders import (
    Best,
    Finish,
    Order,
    Reason,
    Start,
    Suggest,
    Terminate,
)
from ..tune.decisions.tuning import Tuning
from ..tune.schedulers import (
    FIFO,
    Decision,
    New,
    NextTrial,
    Scheduler,
    Status,
)
from ..tune.searchers import Mode, Observation, Searcher, SuggestContext
from ..tune.space import Space, randint
from ..tune.stopping import Counts, StoppingCriterion

SPACE = Space({"x": randint(0, 10**6)})
DONE = Outcome("returned")
CRASH = Outcome("signal", "ended by SIGSEGV", last_output="boom")
STOPPED = Outcome("stopped")
CRASHED = Reason("signal", "ended by SIGSEGV", last_output="boom")
CONTINUE, STOP, PAUSE = Decision.CONTINUE, Decision.STOP, Decision.PAUSE


class Scripted(Searcher):
    """Gives out x = 0, 1, 2, ..., as many as it has; raises what it is told to; notes what it hears."""

    def __init__(self, number: int = 10**6) -> None:
        self.left = number
        self.given = 0
        self.error: Exception | None = None
        self.error_on_observe: Exception | None = None
        self.heard: list[tuple[object, ...]] = []

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        if self.error is not None:
            raise self.error
        if self.given == self.left:
            return None
        self.given += 1
        return {"x": self.given - 1}

    def observe(self, observation: Observation) -> None:
        if self.error_on_observe is not None:
            raise self.error_on_observe
        self.heard.append(("observe", observation.trial_id, observation.iter, observation.loss))

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.heard.append(("rewind", trial_id, to_iter))

    def on_end(self, trial_id: int, status: str) -> None:
        self.heard.append(("end", trial_id, status))


class Thinks(Scripted):
    """A searcher that has a thread of its own and two seconds."""

    suggest_timeout_s = 2.0


class Told(Scheduler):
    """A scheduler that does what it is told: reports say what to answer, `plan` what runs next."""

    def __init__(self, *plan: Any, searcher: Searcher | None = None, clones: bool = False) -> None:  # Any: wrong ones
        super().__init__(searcher, metric="loss")
        self.plan = list(plan)
        self.clones = clones  # type: ignore[misc]  # of the test
        self.heard: list[tuple[object, ...]] = []
        self.asks: list[SuggestContext] = []

    def next(self, ask: SuggestContext) -> NextTrial:
        self.asks.append(ask)
        answer: NextTrial = self.plan.pop(0) if self.plan else New({"x": ask.trial_id})
        return answer

    def on_report(self, observation: Observation) -> Decision:
        self.heard.append(("report", observation.trial_id, observation.iter, observation.loss))
        decision: Decision = observation.values.get("answer", CONTINUE)  # type: ignore[assignment]
        return decision

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.heard.append(("rewind", trial_id, to_iter))

    def on_end(self, trial_id: int, status: Status) -> None:
        self.heard.append(("end", trial_id, status))


class Search:
    """A Tuning and a searcher that answers at once, or when told to; each fact gives the orders that follow from it."""

    def __init__(self, tuning: Tuning, searcher: Searcher | None) -> None:
        self.tuning = tuning
        self.searcher = searcher if searcher is None or searcher.suggest_timeout_s is None else None
        self.slow = self.searcher is None

    def hand(self, fact: Fact) -> list[Order]:
        orders: list[Order] = []
        if self.slow:
            return self.tuning.handle(fact)
        handle(self.tuning, fact, self.searcher, lambda _, made: orders.extend(made))
        return [order for order in orders if not isinstance(order, Suggest)]

    def begin(self, now_s: float = 0.0) -> list[Order]:
        return self.hand(facts.Begin(now_s))

    def ready(self, trial_id: int, attempt: int, *, now_s: float = 0.0) -> list[Order]:
        return self.hand(facts.Ready(now_s, trial_id, attempt))

    def report(
        self,
        trial_id: int,
        attempt: int,
        values: Mapping[str, object] | float,
        *,
        now_s: float = 0.0,
        checkpoint: str | None = None,
    ) -> list[Order]:
        given = values if isinstance(values, Mapping) else {"loss": values}
        return self.hand(facts.Reported(now_s, trial_id, attempt, given, checkpoint=checkpoint))

    def ended(self, trial_id: int, attempt: int, outcome: Outcome = DONE, *, now_s: float = 0.0) -> list[Order]:
        return self.hand(facts.Ended(now_s, trial_id, attempt, outcome))

    def free(self, trial_id: int, attempt: int, *, now_s: float = 0.0) -> list[Order]:
        return self.hand(facts.Free(now_s, trial_id, attempt))

    def tick(self, now_s: float) -> list[Order]:
        return self.hand(facts.Tick(now_s))

    def interrupt(self, now_s: float = 0.0) -> list[Order]:
        return self.hand(facts.Interrupt(now_s))

    def run(self, trial_id: int, *values: float, outcome: Outcome = DONE, attempt: int = 0) -> list[Order]:
        """All facts of an attempt at time 0; returns the orders from its end on."""
        self.ready(trial_id, attempt)
        for value in values:
            self.report(trial_id, attempt, value)
        return self.ended(trial_id, attempt, outcome) + self.free(trial_id, attempt)

    def pause(
        self, trial_id: int, value: float = 1.0, *, attempt: int = 0, checkpoint: str | None = None
    ) -> list[Order]:
        """A report that is answered PAUSE, and the end of the process."""
        self.report(trial_id, attempt, {"loss": value, "answer": PAUSE}, checkpoint=checkpoint)
        return self.ended(trial_id, attempt, STOPPED) + self.free(trial_id, attempt)

    @property
    def best(self) -> Best | None:
        return self.tuning.best

    @property
    def counts(self) -> Counts:
        return self.tuning.counts

    @property
    def next_tick_s(self) -> float | None:
        return self.tuning.next_tick_s


def tuning_of(  # the defaults of these tests: two workers, no end in sight
    searcher: Searcher | None = None,
    criterion: StoppingCriterion | None = None,
    *,
    scheduler: Scheduler | None = None,
    mode: Mode = "min",
    n_workers: int = 2,
    asynchronous: bool = True,
    trial_timeout_s: float | None = None,
    stop_grace_s: float = 5.0,
    max_equal_failures: int | None = 3,
    retries: int = 0,
    keep_checkpoints: bool = False,
) -> Search:
    if scheduler is None:
        scheduler = FIFO(searcher or Scripted(), metric="loss", mode=mode)
        scheduler.begin(SPACE, 0)
    tuning = Tuning(
        scheduler,
        SPACE,
        criterion or StoppingCriterion(max_wallclock_time=math.inf),
        n_workers=n_workers,
        asynchronous=asynchronous,
        trial_timeout_s=trial_timeout_s,
        stop_grace_s=stop_grace_s,
        max_equal_failures=max_equal_failures,
        retries=retries,
        keep_checkpoints=keep_checkpoints,
    )
    return Search(tuning, scheduler.searcher)


def start(trial_id: int, slot: int, attempt: int = 0, from_iter: int = 0, checkpoint: str | None = None) -> Start:
    return Start(trial_id, attempt, {"x": trial_id}, slot, from_iter, checkpoint)


def play(tuning: Search, durations_s: list[float]) -> tuple[list[tuple[int, int, float, float]], float]:
    """Workers without overhead: trial k reports and ends after durations_s[k], or at once when told to stop.

    Returns (slot, trial, from, to) of each trial, and the time of Finish.
    """
    events: list[tuple[float, int, str, int]] = []
    slots: dict[int, tuple[int, float]] = {}
    lines: list[tuple[int, int, float, float]] = []
    order_number = 0
    waiting: list[Order] = tuning.begin(0)
    now_s = 0.0

    def end(trial_id: int, outcome: Outcome) -> None:
        slot, since_s = slots.pop(trial_id)
        lines.append((slot, trial_id, since_s, now_s))
        waiting.extend(tuning.ended(trial_id, 0, outcome, now_s=now_s))
        waiting.extend(tuning.free(trial_id, 0, now_s=now_s))

    while True:
        while waiting:
            order = waiting.pop(0)
            order_number += 1
            if isinstance(order, Start):
                slots[order.trial_id] = order.slot, now_s
                waiting.extend(tuning.ready(order.trial_id, 0, now_s=now_s))
                heapq.heappush(events, (now_s + durations_s[order.trial_id], order_number, "done", order.trial_id))
            elif isinstance(order, Terminate):
                end(order.trial_id, STOPPED)
            elif isinstance(order, Finish):
                return lines, now_s
        tick_s = tuning.next_tick_s
        if tick_s is not None and tick_s < events[0][0]:
            now_s = tick_s
            waiting.extend(tuning.tick(now_s))
            continue
        now_s, _, _, trial_id = heapq.heappop(events)
        if trial_id in slots:
            waiting.extend(tuning.report(trial_id, 0, {"loss": 1.0}, now_s=now_s))
            end(trial_id, DONE)


def suggested(number: int, x: int | None, now_s: float = 0.0, error: str | None = None) -> facts.Suggested:
    return facts.Suggested(now_s, number, None if x is None else {"x": x}, error=error)
