"""Synchronous successive halving: rounds of trials, of which only the best go on, level by level.

    rung 0   n_0 new trials pause at level 0; when all have arrived, the best n_1 go on
    rung 1   n_1 trials pause at level 1; when all have arrived, the best n_2 go on        ... until the last level

Which levels and how many trials, a plan says: always the same (here), or Hyperband's brackets in turn (`hyperband`).
A free worker takes up a promoted trial of the oldest round, else begins a trial of the round that is not complete, and
only then a new round: so a round never waits for a later one, and no worker is idle while a straggler runs. Each round
compares its own trials only.

A trial that fails, is stopped, or ends before its level leaves the round, which shrinks: of m trials that are left of
n_i, the best m * n_{i+1} / n_i go on, at least one. When the searcher has nothing more, a round makes do with the
trials that it has. Trials that do not go on are over, and their checkpoints can go.
"""

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from ..constraints import checked_constraints
from ..searchers.base import Ask, Mode, Objective, Observation, Searcher
from ..spaces import Space
from ..values import is_number
from .protocol import Decision, New, NextTrial, Resume, Status, Stop, Wait
from .resources import Resources
from .settings import checked_objective, checked_searcher, checked_seed, checks_options, described_objectives


@final
@dataclass(frozen=True, slots=True)
class Bracket:
    """The shape of a round: `sizes[i]` trials run to `levels[i]`; the last level is the maximum."""

    levels: tuple[float, ...]
    sizes: tuple[int, ...]


class Plan(Protocol):
    """Which brackets the rounds have, in turn."""

    def brackets(self, resources: Resources, maximum: float) -> Sequence[Bracket]:
        """At least one."""

    def describe(self) -> dict[str, object]:
        """Name and settings as JSON."""


@final
@dataclass(frozen=True, slots=True)
class OneBracket:
    """Successive halving as in Dive into Deep Learning, 19.4: prefact * eta^K trials begin, int(prefact * eta^(K-i)) go
    on to level i. The levels are grace_period * eta^k and the maximum; K is the number of levels below the maximum.

    >>> OneBracket().brackets(Resources(max_t=10, grace_period=2, reduction_factor=2), 10)
    (Bracket(levels=(2, 4, 8, 10), sizes=(8, 4, 2, 1)),)
    """

    prefact: float = 1

    def __post_init__(self) -> None:
        if not is_number(self.prefact):
            raise TypeError(f"prefact must be a number, got {self.prefact!r} of type {type(self.prefact).__name__}")
        if not self.prefact > 0:
            raise ValueError(f"prefact must be above 0, got {self.prefact!r}")

    def brackets(self, resources: Resources, maximum: float) -> Sequence[Bracket]:
        levels = (*resources.levels(maximum), maximum)
        eta, top = resources.reduction_factor, len(levels) - 1
        return (Bracket(levels, tuple(max(1, int(self.prefact * eta ** (top - i))) for i in range(top + 1))),)

    def describe(self) -> dict[str, object]:
        return {"name": "OneBracket", "prefact": float(self.prefact)}


@dataclass(slots=True, eq=False)
class _Round:
    """A round at one of its rungs. `running`: trials on their way to the rung's level. `arrived`: who is there."""

    number: int
    bracket: Bracket
    rung: int = 0
    num_begun: int = 0
    complete: bool = False  # no further trial begins in it
    running: set[int] = field(default_factory=set)
    arrived: dict[int, "_Arrival"] = field(default_factory=dict)

    @property
    def level(self) -> float:
        return self.bracket.levels[self.rung]

    def best_go_on(self) -> tuple[list[int], list[int]]:
        """Everybody is there: who goes on to the next level, the best first, and who does not."""
        ranked = sorted(self.arrived, key=lambda trial_id: self.arrived[trial_id].rank)
        sizes, rung = self.bracket.sizes, self.rung
        num_better = 0
        if ranked and rung + 1 < len(sizes):
            num_better = max(1, len(ranked) * sizes[rung + 1] // sizes[rung])
        self.rung += 1
        self.arrived = {}
        return ranked[:num_better], ranked[num_better:]


@dataclass(slots=True)
class _Arrival:
    """With which report a trial arrived at the open rung, and its rank: infeasibility, loss, then who came first."""

    iter: int
    rank: tuple[float, float, int]


@final
class HalvingScheduler:
    """Synchronous successive halving; a searcher chooses the configurations.

    Args:
        searcher: chooses; None: at random.
        metric: name of the reported value to optimise.
        mode: "min" or "max".
        constraints: what reports must meet, such as ["latency_ms <= 20"]; one that does not ranks behind all that do.
        plan: the shape of the rounds; None: `OneBracket()`.
        resource_attr: name of the reported value that says how far a trial is, e.g. "epoch"; None: its reports count.
        max_t: where trials end.
        max_resource_attr: or the name in the space of what tells the objective where to end, e.g. "max_epochs".
        grace_period: the first level.
        reduction_factor: eta: one in so many goes on, so many times as far.
        points_to_evaluate: configurations to try first, in this order; what one leaves out is drawn at random.
        random_seed: None takes the tuner's seed.

    Raises:
        TypeError: an unknown option (names the nearest), or an argument of the wrong type.
        ValueError: an argument out of range.

    >>> scheduler = HalvingScheduler(metric="loss", max_t=2, reduction_factor=2)  # of two trials the better goes on
    >>> space = Space({"depth": 3})
    >>> scheduler.begin(space, seed=0)
    >>> scheduler.next(Ask(0, 0, space)), scheduler.next(Ask(1, 1, space))
    (New(config=None), New(config=None))
    >>> [str(scheduler.on_report(Observation(i, {}, 1, 1, (0.5 + i,), {}))) for i in (0, 1)]
    ['PAUSE', 'STOP']
    >>> scheduler.next(Ask(2, 2, space))
    Resume(trial_id=0)
    """

    clones = False

    @checks_options
    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        metric: str,
        mode: Mode = "min",
        constraints: Sequence[str] = (),
        plan: Plan | None = None,
        resource_attr: str | None = None,
        max_t: float | None = None,
        max_resource_attr: str | None = None,
        grace_period: float = 1,
        reduction_factor: float = 3,
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        random_seed: int | None = None,
    ) -> None:
        self.searcher = checked_searcher(searcher, points_to_evaluate)
        self.objectives: tuple[Objective, ...] = checked_objective(metric, mode)
        self.constraints = checked_constraints(constraints)
        self.random_seed = checked_seed(random_seed)
        self.resource_attr = resource_attr
        self._resources = Resources(resource_attr, max_t, max_resource_attr, grace_period, reduction_factor)
        self._plan = OneBracket() if plan is None else plan
        self.max_resource = max_t

    def check(self, space: Space) -> None:
        self._plan.brackets(self._resources, self._resources.maximum(space))
        self.searcher.check(space)

    def begin(self, space: Space, seed: int) -> None:
        self.searcher.begin(space, seed)
        self.max_resource = self._maximum = self._resources.maximum(space)
        self._brackets = self._plan.brackets(self._resources, self._maximum)
        self._num_rounds = 0
        self._num_arrived = 0
        self._round_of: dict[int, _Round] = {}  # of trials that may go on
        self._filling: _Round | None = None  # the round that is not complete
        self._offered: int | None = None  # the trial of the last New(), as long as it is not known to have begun
        self._promoted: list[tuple[int, int, int]] = []  # (round, place, trial), the first to be resumed first
        self._is_promoted: set[int] = set()
        self._beaten: deque[int] = deque()  # paused trials that will not go on
        self._is_beaten: set[int] = set()

    def next(self, ask: Ask) -> NextTrial:
        if self._offered is not None and self._offered == ask.trial_id:  # it came to nothing: there was no suggestion
            self._withdraw(self._offered)
        self._offered = None
        filling = self._filling
        if ask.exhausted and filling is not None and filling.num_begun and not filling.running:
            self._filling = None
            filling.complete = True
            self._close_rung(filling)
        while self._beaten:
            trial_id = self._beaten.popleft()
            if trial_id in self._is_beaten:
                self._is_beaten.remove(trial_id)
                return Stop(trial_id)
        while self._promoted:
            _, _, trial_id = heapq.heappop(self._promoted)
            if trial_id in self._is_promoted:
                self._is_promoted.remove(trial_id)
                return Resume(trial_id)
        if ask.exhausted:
            return Wait()
        self._offer(ask.trial_id)
        return New()

    def on_report(self, observation: Observation) -> Decision:
        trial_id, resource = observation.trial_id, observation.resource
        if resource >= self._maximum:
            self._leave(trial_id)
            return self._resources.at_maximum(resource, self._maximum)
        round_ = self._round_of.get(trial_id)
        if round_ is None or resource < round_.level:
            return Decision.CONTINUE
        round_.running.remove(trial_id)
        rank = (observation.infeasibility, observation.loss, self._num_arrived)
        round_.arrived[trial_id] = _Arrival(observation.iter, rank)
        self._num_arrived += 1
        self._close_rung(round_)
        if trial_id in self._is_promoted:  # the last to arrive need not pause
            self._is_promoted.remove(trial_id)
            return Decision.CONTINUE
        if trial_id in self._is_beaten:
            self._is_beaten.remove(trial_id)
            return Decision.STOP
        return Decision.PAUSE

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        """A trial whose arrival is void is on its way again; what a closed rung has decided stands."""
        round_ = self._round_of.get(trial_id)
        arrival = None if round_ is None else round_.arrived.get(trial_id)
        if round_ is not None and arrival is not None and arrival.iter > to_iter:
            del round_.arrived[trial_id]
            round_.running.add(trial_id)

    def on_end(self, trial_id: int, status: Status) -> None:
        if trial_id == self._offered:
            self._offered = None
        self._is_promoted.discard(trial_id)
        self._is_beaten.discard(trial_id)
        self._leave(trial_id)

    def describe(self) -> dict[str, object]:
        return {
            "name": "HalvingScheduler",
            **described_objectives(self.objectives, self.constraints),
            "plan": self._plan.describe(),
            **self._resources.describe(),
            "searcher": self.searcher.describe(),
            "random_seed": self.random_seed,
        }

    def _offer(self, trial_id: int) -> None:
        """The next new trial belongs to the round that is not complete, or to a new one."""
        round_ = self._filling
        if round_ is None:
            round_ = _Round(self._num_rounds, self._brackets[self._num_rounds % len(self._brackets)])
            self._num_rounds += 1
        round_.num_begun += 1
        round_.complete = round_.num_begun == round_.bracket.sizes[0]
        round_.running.add(trial_id)
        self._round_of[trial_id] = round_
        self._filling = None if round_.complete else round_
        self._offered = trial_id

    def _withdraw(self, trial_id: int) -> None:
        round_ = self._round_of.pop(trial_id)
        round_.running.remove(trial_id)
        round_.num_begun -= 1
        round_.complete = False
        self._filling = round_

    def _leave(self, trial_id: int) -> None:
        """The trial is no more part of its round."""
        round_ = self._round_of.pop(trial_id, None)
        if round_ is not None:
            round_.running.discard(trial_id)
            round_.arrived.pop(trial_id, None)
            self._close_rung(round_)

    def _close_rung(self, round_: _Round) -> None:
        """If everybody is there: the best go on, and the others are over."""
        if round_.running or not round_.complete:
            return
        better, beaten = round_.best_go_on()
        for place, trial_id in enumerate(better):
            heapq.heappush(self._promoted, (round_.number, place, trial_id))
            round_.running.add(trial_id)
        self._is_promoted.update(better)
        self._beaten.extend(beaten)
        self._is_beaten.update(beaten)
        for trial_id in beaten:
            del self._round_of[trial_id]
