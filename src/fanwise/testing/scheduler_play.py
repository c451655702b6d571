"""A search around a scheduler, step by step, through the tuner's own state machine, in a world made of a seed.

    play = Play(scheduler, seed=3)      # the scheduler has begun
    play.go_on(300)                     # what was ordered, one entry an event

Trials start, report, pause, go on, crash with and without a checkpoint, end in every way; people pause and stop them by
hand; the search is interrupted, or killed, and goes on; the searcher runs out of configurations. What the world does
depends on the seed and on what was ordered, never on a clock: the same answers lead to the same search.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..tune.core import events
from ..tune.core.actions import Action, Answer, Finish, Start, Suggest
from ..tune.core.events import Event, Outcome
from ..tune.core.search_core import SearchCore
from ..tune.schedulers.scheduler import Decision, Scheduler
from ..tune.searchers.searcher import SuggestContext
from ..tune.space import Space, loguniform, randint
from ..tune.stopping import StoppingCriterion

MAX_EPOCHS = 9
SPACE = Space({"learning_rate": loguniform(1e-4, 1), "depth": randint(2, 8), "max_epochs": MAX_EPOCHS})
_NUM_STEPS = 200
_LOSSES = (0.25, 0.5, 0.5, 0.75, math.inf, -math.inf)  # now and then one of these


@dataclass(slots=True)
class _Attempt:
    """A trial in a worker. `told`: it has been answered STOP or PAUSE and is about to end."""

    trial_id: int
    number: int
    iter: int
    is_ready: bool = False
    told: bool = False
    has_ended: bool = False


@dataclass
class Play:
    """A search, step by step, with a world of its own: the same seed takes the same steps with the same answers.

    Args:
        scheduler: begun already.
        seed: of the world.
        n_workers: slots.
        num_configs: so many suggestions there are, None: no end of them.
        moody: now and then the searcher has nothing, and has something later.
        checkpoints: the chance that a trial saves a checkpoint with a report.
        calm: nothing crashes, and nobody comes between.
        flips: what is infinite is reported with the other sign.
    """

    scheduler: Scheduler
    seed: int = 0
    n_workers: int = 3
    num_configs: int | None = None
    moody: bool = False
    checkpoints: float = 0.5
    calm: bool = False
    flips: bool = False
    log: list[object] = field(default_factory=list)
    running: dict[int, _Attempt] = field(default_factory=dict)
    known: list[int] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    num_suggested: int = 0
    now_s: float = 0.0
    finish: Finish | None = None

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed}/play")
        forever = StoppingCriterion(max_wallclock_time=math.inf)
        self.core = SearchCore(
            self.scheduler, SPACE, forever, n_workers=self.n_workers, retries=3, max_equal_failures=None
        )
        self.send(events.Begin(0.0))

    def go_on(self, num_steps: int = _NUM_STEPS) -> list[object]:
        """What was ordered so far, one entry an event."""
        for _ in range(num_steps):
            if self.finish is None:
                self.step()
        return self.log

    def step(self) -> None:
        self.now_s += 1.0
        what, attempt = self.chance.random(), self._some_attempt()
        if not self.calm and what < 0.1:
            self.disturb(attempt)
        elif attempt is not None:
            self.advance(attempt)
        elif not self.running:
            self.send(events.Tick(self.now_s))

    def advance(self, attempt: _Attempt) -> None:
        """The next thing of this trial in its ordinary course."""
        trial_id, number, now_s = attempt.trial_id, attempt.number, self.now_s
        if attempt.has_ended:
            del self.running[trial_id]
            self.send(events.Free(now_s, trial_id, number))
        elif attempt.told or attempt.iter >= MAX_EPOCHS:
            attempt.has_ended = True
            self.send(events.Ended(now_s, trial_id, number, Outcome("stopped" if attempt.told else "returned")))
        elif not attempt.is_ready:
            attempt.is_ready = True
            self.send(events.Ready(now_s, trial_id, number))
        else:
            attempt.iter += 1
            saves = self._chance_of("checkpoint", attempt).random() < self.checkpoints
            name = f"{trial_id}/{number}/{attempt.iter}" if saves else None
            self.send(events.Reported(now_s, trial_id, number, self.values(attempt), checkpoint=name))

    def disturb(self, attempt: _Attempt | None) -> None:
        """A crash, an early end, a person, or an end of the whole search that is not its last."""
        what, now_s = self.chance.random(), self.now_s
        some_id = self.known[int(self.chance.random() * len(self.known))] if self.known else 0
        if what < 0.55 and attempt is not None and not attempt.has_ended:
            kind = events.Outcome("exception" if what < 0.35 else "lost" if what < 0.45 else "returned")
            attempt.has_ended = True
            self.send(events.Ended(now_s, attempt.trial_id, attempt.number, kind))
        elif what < 0.65:
            self.send(events.Command(now_s, "pause", some_id))
        elif what < 0.8:
            self.send(events.Command(now_s, "resume", some_id))
        elif what < 0.85:
            self.send(events.Command(now_s, "stop", some_id))
        elif what < 0.9:
            self.send(events.Enqueued(now_s, SPACE.sample(random.Random(f"{self.seed}/own/{now_s}"))))
        elif what < 0.95:
            self.running.clear()  # killed, with all trials
            self.send(events.Resumed(now_s))
        else:
            self.send(events.Interrupt(now_s))
            self.run_out()
            self.finish = None
            self.send(events.Resumed(now_s))

    def run_out(self) -> None:
        """All that runs comes to its end; as far as new trials start, these too."""
        for _ in range(100_000):
            if not self.running:
                return
            self.now_s += 1.0
            self.advance(next(iter(self.running.values())))
        raise AssertionError(f"still running after 100,000 steps: {self.running}")

    def send(self, event: Event) -> None:
        """Hand the event in, and the suggestions that it leads to; carry out what was ordered."""
        waiting = [event]
        while waiting:
            event = waiting.pop()
            actions = self.core.handle(event)
            self.log.append((type(event).__name__, [_comparable(action) for action in actions]))
            for action in actions:
                self._carry_out(action)
                if isinstance(action, Suggest):
                    waiting.append(events.Suggested(self.now_s, action.number, self._suggestion(action.context)))

    def values(self, attempt: _Attempt) -> dict[str, float]:
        """A report: the epoch, and for each metric a loss that tends to fall."""
        chance = self._chance_of("loss", attempt)
        values = {}
        for objective in self.scheduler.objectives:
            u = chance.random()
            loss = _LOSSES[int(chance.random() * len(_LOSSES))] if u < 0.2 else u - 0.05 * attempt.iter
            is_turned = (objective.mode == "max") != (self.flips and math.isinf(loss))
            values[objective.metric] = -loss if is_turned else loss
        if self.scheduler.resource_attr is not None:
            values[self.scheduler.resource_attr] = attempt.iter
        return values

    def _chance_of(self, what: str, attempt: _Attempt) -> random.Random:
        return random.Random(f"{self.seed}/{what}/{attempt.trial_id}/{attempt.number}/{attempt.iter}")

    def _some_attempt(self) -> _Attempt | None:
        if not self.running:
            return None
        return list(self.running.values())[int(self.chance.random() * len(self.running))]

    def _suggestion(self, ask: SuggestContext) -> Mapping[str, object] | None:
        if self.num_suggested == self.num_configs or (
            self.moody and random.Random(f"mood/{ask.number}").random() < 0.3
        ):
            return None
        self.num_suggested += 1
        return SPACE.sample(random.Random(f"{self.seed}/suggest/{ask.trial_id}"))

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Start):
            self.running[action.trial_id] = _Attempt(action.trial_id, action.attempt, action.from_iter)
            self.known.append(action.trial_id)
        elif isinstance(action, Answer) and not action.late:
            self.answers[action.decision] = self.answers.get(action.decision, 0) + 1
            self.running[action.trial_id].told = action.decision is not Decision.CONTINUE
        elif isinstance(action, Finish):
            self.finish = action
            if action.cause is not None:
                raise AssertionError(f"what the scheduler did ended the search: {action.error}") from action.cause


def _comparable(action: Action) -> object:
    return ("Suggest", action.number, action.context.trial_id) if isinstance(action, Suggest) else action
