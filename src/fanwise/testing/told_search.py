"""A search for tests of the decisions: events are handed in one by one, each gives the actions that follow from it.

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

from ..tune.core import events
from ..tune.core.actions import Action, BestReport, Finish, Reason, Start, Suggest, Terminate
from ..tune.core.events import Event, Outcome
from ..tune.core.inline import handle
from ..tune.core.search_core import SearchCore
from ..tune.schedulers import FIFO, Decision, New, NextTrial, Scheduler, Status
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
    """A SearchCore and a searcher that answers at once, or when told to; events return actions."""

    def __init__(self, core: SearchCore, searcher: Searcher | None) -> None:
        self.core = core
        self.searcher = searcher if searcher is None or searcher.suggest_timeout_s is None else None
        self.slow = self.searcher is None

    def hand(self, event: Event) -> list[Action]:
        actions: list[Action] = []
        if self.slow:
            return self.core.handle(event)
        handle(self.core, event, self.searcher, lambda _, made: actions.extend(made))
        return [action for action in actions if not isinstance(action, Suggest)]

    def begin(self, now_s: float = 0.0) -> list[Action]:
        return self.hand(events.Begin(now_s))

    def ready(self, trial_id: int, attempt: int, *, now_s: float = 0.0) -> list[Action]:
        return self.hand(events.Ready(now_s, trial_id, attempt))

    def report(
        self,
        trial_id: int,
        attempt: int,
        values: Mapping[str, object] | float,
        *,
        now_s: float = 0.0,
        checkpoint: str | None = None,
    ) -> list[Action]:
        given = values if isinstance(values, Mapping) else {"loss": values}
        return self.hand(events.Reported(now_s, trial_id, attempt, given, checkpoint=checkpoint))

    def ended(self, trial_id: int, attempt: int, outcome: Outcome = DONE, *, now_s: float = 0.0) -> list[Action]:
        return self.hand(events.Ended(now_s, trial_id, attempt, outcome))

    def free(self, trial_id: int, attempt: int, *, now_s: float = 0.0) -> list[Action]:
        return self.hand(events.Free(now_s, trial_id, attempt))

    def tick(self, now_s: float) -> list[Action]:
        return self.hand(events.Tick(now_s))

    def interrupt(self, now_s: float = 0.0) -> list[Action]:
        return self.hand(events.Interrupt(now_s))

    def run(self, trial_id: int, *values: float, outcome: Outcome = DONE, attempt: int = 0) -> list[Action]:
        """All events of an attempt at time 0; returns the actions from its end on."""
        self.ready(trial_id, attempt)
        for value in values:
            self.report(trial_id, attempt, value)
        return self.ended(trial_id, attempt, outcome) + self.free(trial_id, attempt)

    def pause(
        self, trial_id: int, value: float = 1.0, *, attempt: int = 0, checkpoint: str | None = None
    ) -> list[Action]:
        """A report that is answered PAUSE, and the end of the process."""
        self.report(trial_id, attempt, {"loss": value, "answer": PAUSE}, checkpoint=checkpoint)
        return self.ended(trial_id, attempt, STOPPED) + self.free(trial_id, attempt)

    @property
    def best(self) -> BestReport | None:
        return self.core.best

    @property
    def counts(self) -> Counts:
        return self.core.counts

    @property
    def next_tick_s(self) -> float | None:
        return self.core.next_tick_s


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
    core = SearchCore(
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
    return Search(core, scheduler.searcher)


def start(trial_id: int, slot: int, attempt: int = 0, from_iter: int = 0, checkpoint: str | None = None) -> Start:
    return Start(trial_id, attempt, {"x": trial_id}, slot, from_iter, checkpoint)


def play(core: Search, durations_s: list[float]) -> tuple[list[tuple[int, int, float, float]], float]:
    """Workers without overhead: trial k reports and ends after durations_s[k], or at once when told to stop.

    Returns (slot, trial, from, to) of each trial, and the time of Finish.
    """
    events: list[tuple[float, int, str, int]] = []
    slots: dict[int, tuple[int, float]] = {}
    lines: list[tuple[int, int, float, float]] = []
    action_number = 0
    waiting: list[Action] = core.begin(0)
    now_s = 0.0

    def end(trial_id: int, outcome: Outcome) -> None:
        slot, since_s = slots.pop(trial_id)
        lines.append((slot, trial_id, since_s, now_s))
        waiting.extend(core.ended(trial_id, 0, outcome, now_s=now_s))
        waiting.extend(core.free(trial_id, 0, now_s=now_s))

    while True:
        while waiting:
            action = waiting.pop(0)
            action_number += 1
            if isinstance(action, Start):
                slots[action.trial_id] = action.slot, now_s
                waiting.extend(core.ready(action.trial_id, 0, now_s=now_s))
                heapq.heappush(events, (now_s + durations_s[action.trial_id], action_number, "done", action.trial_id))
            elif isinstance(action, Terminate):
                end(action.trial_id, STOPPED)
            elif isinstance(action, Finish):
                return lines, now_s
        tick_s = core.next_tick_s
        if tick_s is not None and tick_s < events[0][0]:
            now_s = tick_s
            waiting.extend(core.tick(now_s))
            continue
        now_s, _, _, trial_id = heapq.heappop(events)
        if trial_id in slots:
            waiting.extend(core.report(trial_id, 0, {"loss": 1.0}, now_s=now_s))
            end(trial_id, DONE)


def suggested(number: int, x: int | None, now_s: float = 0.0, error: str | None = None) -> events.Suggested:
    return events.Suggested(now_s, number, None if x is None else {"x": x}, error=error)
