"""Drives a `SearchCore` event by event. Each method sends one event and returns the resulting actions.

    search = new_search(n_workers=2)
    search.begin()
    search.report(0, 0, 0.5)            # [Answer(0, CONTINUE, 1)]

Trial k has x = k. `PlannedScheduler` answers a report by its value "answer", and `next` by its plan.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from fanwise.tune.core import events
from fanwise.tune.core.actions import Action, Reason, Start, Suggest
from fanwise.tune.core.events import Event, Outcome
from fanwise.tune.core.search_core import SearchCore
from fanwise.tune.core.suggestions import call_searcher
from fanwise.tune.schedulers import FIFO, Decision, New, NextTrial, Scheduler, Status
from fanwise.tune.searchers import Observation, Searcher, SuggestContext
from fanwise.tune.space import Space, randint
from fanwise.tune.stopping import Counts, StoppingCriterion

SPACE = Space({"x": randint(0, 10**6)})
DONE = Outcome("returned")
CRASH = Outcome("signal", "ended by SIGSEGV", last_output="boom")
STOPPED = Outcome("stopped")
CRASHED = Reason("signal", "ended by SIGSEGV", last_output="boom")
CONTINUE, STOP, PAUSE = Decision.CONTINUE, Decision.STOP, Decision.PAUSE


class CountingSearcher(Searcher):
    """Suggests x = 0, 1, 2, ... and records its calls."""

    def __init__(self) -> None:
        self.num_suggested = 0
        self.calls: list[tuple[object, ...]] = []

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        self.num_suggested += 1
        return {"x": self.num_suggested - 1}

    def observe(self, observation: Observation) -> None:
        self.calls.append(("observe", observation.trial_id, observation.iter, observation.loss))

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.calls.append(("rollback", trial_id, to_iter))

    def on_end(self, trial_id: int, status: str) -> None:
        self.calls.append(("end", trial_id, status))


class SlowSearcher(CountingSearcher):
    """A searcher that runs in its own thread, with a budget of two seconds. The test sends its suggestions."""

    suggest_timeout_s = 2.0


class PlannedScheduler(Scheduler):
    """See the module. Records its calls and contexts."""

    def __init__(self, *plan: Any, searcher: Searcher | None = None, clones: bool = False) -> None:  # Any: invalid ones
        super().__init__(searcher, metric="loss")
        self.plan = list(plan)
        self.clones = clones  # type: ignore[misc]  # each instance has its own
        self.calls: list[tuple[object, ...]] = []

    def next(self, context: SuggestContext) -> NextTrial:
        answer: NextTrial = self.plan.pop(0) if self.plan else New({"x": context.trial_id})
        return answer

    def on_report(self, observation: Observation) -> Decision:
        self.calls.append(("report", observation.trial_id, observation.iter, observation.loss))
        decision: Decision = observation.values.get("answer", CONTINUE)  # type: ignore[assignment]
        return decision

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.calls.append(("rollback", trial_id, to_iter))

    def on_end(self, trial_id: int, status: Status) -> None:
        self.calls.append(("end", trial_id, status))


class DrivenSearch:
    """A SearchCore with its searcher, which answers at once unless it has a time budget."""

    def __init__(self, core: SearchCore, searcher: Searcher) -> None:
        self.core = core
        self.searcher = searcher

    def send(self, event: Event) -> list[Action]:
        if self.searcher.suggest_timeout_s is not None:
            return self.core.handle(event)
        actions: list[Action] = []
        handle_and_suggest(self.core, event, self.searcher, lambda _, more: actions.extend(more))
        return [action for action in actions if not isinstance(action, Suggest)]

    def begin(self, now_s: float = 0.0) -> list[Action]:
        return self.send(events.Begin(now_s))

    def ready(self, trial_id: int, attempt: int, *, now_s: float = 0.0) -> list[Action]:
        return self.send(events.Ready(now_s, trial_id, attempt))

    def report(
        self,
        trial_id: int,
        attempt: int,
        values: Mapping[str, object] | float,
        *,
        now_s: float = 0.0,
        checkpoint: str | None = None,
    ) -> list[Action]:
        values = values if isinstance(values, Mapping) else {"loss": values}
        return self.send(events.Reported(now_s, trial_id, attempt, values, checkpoint=checkpoint))

    def ended(self, trial_id: int, attempt: int, outcome: Outcome = DONE, *, now_s: float = 0.0) -> list[Action]:
        return self.send(events.Ended(now_s, trial_id, attempt, outcome))

    def free(self, trial_id: int, attempt: int, *, now_s: float = 0.0) -> list[Action]:
        return self.send(events.Free(now_s, trial_id, attempt))

    def interrupt(self, now_s: float = 0.0) -> list[Action]:
        return self.send(events.Interrupt(now_s))

    def command(self, what: Any, trial_id: int) -> list[Action]:  # Any: one of three words
        return self.send(events.Command(0.0, what, trial_id))

    def run(self, trial_id: int, *values: float, outcome: Outcome = DONE, attempt: int = 0) -> list[Action]:
        """Send all events of an attempt at time 0. Return the actions from its end on."""
        self.ready(trial_id, attempt)
        for value in values:
            self.report(trial_id, attempt, value)
        return self.ended(trial_id, attempt, outcome) + self.free(trial_id, attempt)

    def pause(
        self, trial_id: int, value: float = 1.0, *, attempt: int = 0, checkpoint: str | None = None
    ) -> list[Action]:
        """Send a report that is answered PAUSE, and the end of the attempt."""
        self.report(trial_id, attempt, {"loss": value, "answer": PAUSE}, checkpoint=checkpoint)
        return self.ended(trial_id, attempt, STOPPED) + self.free(trial_id, attempt)

    @property
    def counts(self) -> Counts:
        return self.core.counts

    @property
    def next_tick_s(self) -> float | None:
        return self.core.next_tick_s


def new_search(
    searcher: Searcher | None = None,
    criterion: StoppingCriterion | None = None,
    *,
    scheduler: Scheduler | None = None,
    n_workers: int = 2,
    **options: Any,
) -> DrivenSearch:
    """Return a search, by default without a limit. `options`: as for SearchCore."""
    if scheduler is None:
        scheduler = FIFO(searcher or CountingSearcher(), metric="loss")
        scheduler.begin(SPACE, 0)
    criterion = criterion or StoppingCriterion(max_wallclock_time=math.inf)
    core = SearchCore(scheduler, SPACE, criterion, n_workers=n_workers, **options)
    return DrivenSearch(core, scheduler.searcher)


def start(trial_id: int, slot: int, attempt: int = 0, from_iter: int = 0, checkpoint: str | None = None) -> Start:
    return Start(trial_id, attempt, {"x": trial_id}, slot, from_iter, checkpoint)


def handle_and_suggest(
    core: SearchCore, event: Event, searcher: Searcher, on_event: Callable[[Event, list[Action]], None]
) -> None:
    """Apply the event and the suggestions that it requests. `on_event` receives every event and its actions."""
    queue = [event]
    for event in queue:
        actions = core.handle(event)
        on_event(event, actions)
        requests = [action for action in actions if isinstance(action, Suggest)]
        queue += [call_searcher(searcher, request, event.now_s) for request in requests]
