"""A search played through the tuner's decisions: trials that train in no time, fail by chance, and keep checkpoints.

    search = PlayedSearch(scheduler, space, train, n_workers=4)
    search.play(until=lambda: search.is_over)

`train(state, config)` is one step of training: the state of a trial before it, None at first, to the state after it
and what it reports. Who reports next is drawn from a seed. Loads no pytest.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from search_core_driver import handle_and_suggest

from fanwise.tune.core.actions import Action, Answer, Finish, Reject, SetStatus, Start, Suggest, Terminate
from fanwise.tune.core.events import Begin, Ended, Event, Free, Outcome, Ready, Reported, Resumed, Suggested
from fanwise.tune.core.search_core import SearchCore
from fanwise.tune.rng import KeyedRandom
from fanwise.tune.schedulers.scheduler import Decision, Scheduler
from fanwise.tune.space import Space
from fanwise.tune.stopping import StoppingCriterion, limits_of

State: TypeAlias = Any  # whatever train() makes of it
Train: TypeAlias = Callable[[State, Mapping[str, object]], tuple[State, Mapping[str, object]]]


@dataclass
class _Attempt:
    start: Start
    state: State
    is_begun: bool = False


@dataclass
class PlayedSearch:
    """See the module.

    Args:
        saves: whether trials save a checkpoint with each report.
        crashes: how likely an attempt crashes instead of reporting.
        max_reports: a trial returns by itself after so many reports.
    """

    scheduler: Scheduler
    space: Space
    train: Train
    n_workers: int = 4
    seed: int = 0
    retries: int = 0
    saves: bool = True
    crashes: float = 0.0
    max_reports: int | None = None
    num_trials: int | None = None
    events: list[Event] = field(default_factory=list)
    actions: list[list[Action]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = KeyedRandom(f"{self.seed}/played search")
        self._scheduler, self._tuning = self._begun()
        self._running: dict[int, _Attempt] = {}
        self._saved: dict[str, State] = {}
        self.starts: list[Start] = []
        self.ends: list[SetStatus] = []
        self.values: dict[int, list[Mapping[str, object]]] = {}
        self.finish: Finish | None = None
        self._hand_in(Begin(0.0))

    def _begun(self) -> tuple[Scheduler, SearchCore]:
        """A copy of the scheduler at its beginning, as a tuner makes it."""
        scheduler = copy.deepcopy(self.scheduler)
        scheduler.check(self.space)
        scheduler.begin(self.space, self.seed)
        stop = StoppingCriterion(max_wallclock_time=math.inf, max_num_trials_started=self.num_trials)
        core = SearchCore(
            scheduler,
            self.space,
            stop,
            n_workers=self.n_workers,
            seed=self.seed,
            retries=self.retries,
            max_equal_failures=None,
        )
        return scheduler, core

    @property
    def is_over(self) -> bool:
        return self.finish is not None

    @property
    def best(self) -> float:
        best = self._tuning.best
        assert best is not None, "nothing was reported"
        return best.value

    def play(self, until: Callable[[], bool] | None = None, *, most_steps: int = 100_000) -> None:
        """Go on until it is over, or the event is there."""
        for _ in range(most_steps):
            if self.is_over or (until is not None and until()):
                return
            self._step()
        raise AssertionError(f"not over after {most_steps} steps; {len(self._running)} trials run: {self.events[-5:]}")

    def resume(self, num_trials: int | None) -> None:
        """Resume the search that is over with another limit on the trials started. `play` continues it."""
        self.finish = None
        stop = StoppingCriterion(max_wallclock_time=math.inf, max_num_trials_started=num_trials)
        self._hand_in(Resumed(0.0, stop=limits_of(stop)))

    def replayed(self) -> list[list[Action]]:
        """The actions of another machine with another copy of the scheduler, from the same events."""
        scheduler, core = self._begun()
        actions: list[list[Action]] = []
        for event in self.events:
            if not isinstance(event, Suggested):
                handle_and_suggest(core, event, scheduler.searcher, lambda event, new: actions.append(_comparable(new)))
        return actions

    def _step(self) -> None:
        trial_id = self._chance.choice(sorted(self._running))
        attempt = self._running[trial_id]
        who = (trial_id, attempt.start.attempt)
        if not attempt.is_begun:
            attempt.is_begun = True
            self._hand_in(Ready(0.0, *who))
        elif self._chance.random() < self.crashes:
            self._end(trial_id, Outcome("exit", "crashed by chance"))
        elif self.max_reports is not None and len(self.values.get(trial_id, ())) >= self.max_reports:
            self._end(trial_id, Outcome("returned"))
        else:
            attempt.state, values = self.train(attempt.state, attempt.start.config)
            self.values.setdefault(trial_id, []).append(values)
            name = f"{trial_id}.{attempt.start.attempt}.{len(self.events)}" if self.saves else None
            if name is not None:
                self._saved[name] = attempt.state
            self._hand_in(Reported(0.0, *who, values, checkpoint=name))

    def _end(self, trial_id: int, outcome: Outcome) -> None:
        who = (trial_id, self._running.pop(trial_id).start.attempt)
        self._hand_in(Ended(0.0, *who, outcome))
        self._hand_in(Free(0.0, *who))

    def _hand_in(self, event: Event) -> None:
        new: list[Action] = []

        def note(event: Event, actions: list[Action]) -> None:
            self.events.append(event)
            self.actions.append(_comparable(actions))
            new.extend(actions)

        handle_and_suggest(self._tuning, event, self._scheduler.searcher, note)
        for action in new:
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Start):
            self.starts.append(action)
            state = None if action.checkpoint is None else self._saved[action.checkpoint]
            self._running[action.trial_id] = _Attempt(action, state)
        elif isinstance(action, Answer) and action.decision is not Decision.CONTINUE:
            self._end(action.trial_id, Outcome("stopped"))
        elif isinstance(action, Terminate):
            self._end(action.trial_id, Outcome("signal", "ended by SIGTERM"))
        elif isinstance(action, SetStatus):
            self.ends.append(action)
        elif isinstance(action, Finish):
            self.finish = action
            assert action.error is None or action.kind == "all-failed", action.error
        assert not isinstance(action, Reject), action


def _comparable(actions: list[Action]) -> list[Action]:
    """Without the questions to the searcher: their answers are events."""
    return [action for action in actions if not isinstance(action, Suggest)]
