"""A simulated search with one scheduler, through the tuner's own state machine.

    SchedulerSimulation(scheduler, seed=3).run(300)      # the actions so far, one entry per event

Trials start, report, pause, resume, crash with and without a checkpoint, and end with every status. Users pause and
stop trials. The search is interrupted or killed, and resumed. The searcher runs out of configurations. All events
depend on the seed and on the actions, never on a clock, so equal answers lead to equal searches.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..tune.core import events
from ..tune.core.actions import Action, Answer, Finish, Start, Suggest
from ..tune.core.search_core import SearchCore
from ..tune.schedulers.scheduler import Decision, Scheduler
from ..tune.searchers.searcher import SuggestContext
from ..tune.space import Space, loguniform, randint
from ..tune.stopping import StoppingCriterion

MAX_EPOCHS = 9
SPACE = Space({"learning_rate": loguniform(1e-4, 1), "depth": randint(2, 8), "max_epochs": MAX_EPOCHS})
_RARE_LOSSES = (0.25, 0.5, 0.5, 0.75, math.inf, -math.inf)


@dataclass(slots=True)
class _Attempt:
    """A trial in a worker. `is_ending`: a report was answered with STOP or PAUSE."""

    trial_id: int
    number: int
    iter: int
    is_ready: bool = False
    is_ending: bool = False
    has_ended: bool = False


@dataclass
class SchedulerSimulation:
    """A search with one scheduler.

    Args:
        scheduler: `begin` was called.
        num_configs: number of configurations that the searcher has. None: no limit.
        pausing_searcher: the searcher sometimes has no configuration, and has one later.
        checkpoint_probability: of a checkpoint with a report.
        undisturbed: no trial crashes, and no user or signal interferes.
    """

    scheduler: Scheduler
    seed: int = 0
    n_workers: int = 3
    num_configs: int | None = None
    pausing_searcher: bool = False
    checkpoint_probability: float = 0.5
    undisturbed: bool = False
    log: list[object] = field(default_factory=list)
    running: dict[int, _Attempt] = field(default_factory=dict)
    started: list[int] = field(default_factory=list)
    num_suggested: int = 0
    now_s: float = 0.0
    finish: Finish | None = None

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed}/play")
        no_limit = StoppingCriterion(max_wallclock_time=math.inf)
        self.core = SearchCore(
            self.scheduler, SPACE, no_limit, n_workers=self.n_workers, retries=3, max_equal_failures=None
        )
        self.send(events.Begin(0.0))

    def run(self, num_steps: int = 200) -> list[object]:
        """Return the actions so far, one entry per event."""
        for _ in range(num_steps):
            if self.finish is None:
                self.step()
        return self.log

    def step(self) -> None:
        self.now_s += 1.0
        u, attempt = self.rng.random(), None
        if self.running:
            attempt = list(self.running.values())[int(self.rng.random() * len(self.running))]
        if not self.undisturbed and u < 0.1:
            self._disturb(attempt)
        elif attempt is not None:
            self._advance(attempt)
        else:
            self.send(events.Tick(self.now_s))

    def finish_running(self) -> None:
        """Run until no trial is running, including those that start meanwhile."""
        for _ in range(100_000):
            if not self.running:
                return
            self.now_s += 1.0
            self._advance(next(iter(self.running.values())))
        raise AssertionError(f"still running after 100,000 steps: {self.running}")

    def send(self, event: events.Event) -> None:
        """Handle an event and the suggestions that it requests, and execute the actions."""
        pending = [event]
        while pending:
            event = pending.pop()
            actions = self.core.handle(event)
            self.log.append((type(event).__name__, [_comparable(action) for action in actions]))
            for action in actions:
                self._execute(action)
                if isinstance(action, Suggest):
                    pending.append(events.Suggested(self.now_s, action.number, self._suggestion(action.context)))

    def _advance(self, attempt: _Attempt) -> None:
        """Send the next event of an undisturbed trial."""
        trial_id, number, now_s = attempt.trial_id, attempt.number, self.now_s
        if attempt.has_ended:
            del self.running[trial_id]
            self.send(events.Free(now_s, trial_id, number))
        elif attempt.is_ending or attempt.iter >= MAX_EPOCHS:
            attempt.has_ended = True
            outcome = events.Outcome("stopped" if attempt.is_ending else "returned")
            self.send(events.Ended(now_s, trial_id, number, outcome))
        elif not attempt.is_ready:
            attempt.is_ready = True
            self.send(events.Ready(now_s, trial_id, number))
        else:
            attempt.iter += 1
            name = f"{trial_id}/{number}/{attempt.iter}"
            is_saved = random.Random(f"{self.seed}/checkpoint/{name}").random() < self.checkpoint_probability
            self.send(
                events.Reported(
                    now_s,
                    trial_id,
                    number,
                    self.values(trial_id, number, attempt.iter),
                    checkpoint=name if is_saved else None,
                )
            )

    def _disturb(self, attempt: _Attempt | None) -> None:
        """Crash a trial, send a command of a user, or interrupt or kill the search and resume it."""
        u, now_s = self.rng.random(), self.now_s
        trial_id = self.started[int(self.rng.random() * len(self.started))] if self.started else 0
        if u < 0.55 and attempt is not None and not attempt.has_ended:
            outcome = events.Outcome("exception" if u < 0.35 else "lost" if u < 0.45 else "returned")
            attempt.has_ended = True
            self.send(events.Ended(now_s, attempt.trial_id, attempt.number, outcome))
        elif u < 0.65:
            self.send(events.Command(now_s, "pause", trial_id))
        elif u < 0.8:
            self.send(events.Command(now_s, "resume", trial_id))
        elif u < 0.85:
            self.send(events.Command(now_s, "stop", trial_id))
        elif u < 0.9:
            self.send(events.Enqueued(now_s, SPACE.sample(random.Random(f"{self.seed}/own/{now_s}"))))
        elif u < 0.95:
            self.running.clear()  # the tuner and all trials are killed
            self.send(events.Resumed(now_s))
        else:
            self.send(events.Interrupt(now_s))
            self.finish_running()
            self.finish = None
            self.send(events.Resumed(now_s))

    def values(self, trial_id: int, number: int, iter: int) -> dict[str, float]:
        """Return a report: the epoch, and a loss that tends to fall for each metric."""
        rng = random.Random(f"{self.seed}/loss/{trial_id}/{number}/{iter}")
        values = {}
        for objective in self.scheduler.objectives:
            u = rng.random()
            loss = _RARE_LOSSES[int(rng.random() * len(_RARE_LOSSES))] if u < 0.2 else u - 0.05 * iter
            values[objective.metric] = -loss if objective.mode == "max" else loss
        if self.scheduler.resource_attr is not None:
            values[self.scheduler.resource_attr] = iter
        return values

    def _suggestion(self, ask: SuggestContext) -> Mapping[str, object] | None:
        is_pausing = self.pausing_searcher and random.Random(f"mood/{ask.number}").random() < 0.3
        if is_pausing or self.num_suggested == self.num_configs:
            return None
        self.num_suggested += 1
        return SPACE.sample(random.Random(f"{self.seed}/suggest/{ask.trial_id}"))

    def _execute(self, action: Action) -> None:
        if isinstance(action, Start):
            self.running[action.trial_id] = _Attempt(action.trial_id, action.attempt, action.from_iter)
            self.started.append(action.trial_id)
        elif isinstance(action, Answer) and not action.late:
            self.running[action.trial_id].is_ending = action.decision is not Decision.CONTINUE
        elif isinstance(action, Finish):
            self.finish = action
            if action.cause is not None:
                raise AssertionError(f"the scheduler ended the search by an error: {action.error}") from action.cause


def _comparable(action: Action) -> object:
    return ("Suggest", action.number, action.context.trial_id) if isinstance(action, Suggest) else action
