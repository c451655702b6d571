"""Synchronous successive halving: rounds of trials, of which only the best go on, level by level.

    rung 0   n_0 new trials pause at level 0; when all have arrived, the best n_1 go on
    rung 1   n_1 trials pause at level 1; when all have arrived, the best n_2 go on        ... until the last level

`SuccessiveHalving` repeats one bracket, a list of levels and numbers of trials; `Hyperband` cycles through several. A
free worker takes up a promoted trial of the oldest round, else begins a trial of the round that is not complete, and
only then a new round: so a round never waits for a later one, and no worker is idle while a straggler runs. Each round
compares its own trials only.

A trial that fails, is stopped, or ends before its level leaves the round, which shrinks: of m trials that are left of
n_i, the best m * n_{i+1} / n_i go on, at least one. When the searcher has nothing more, a round makes do with the
trials that it has. Trials that do not go on are over, and their checkpoints can go.
"""

import abc
import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from ..searchers.base import Ask, Mode, Observation, Searcher
from ..spaces import Space
from ..values import is_number
from .base import Decision, New, NextTrial, Resume, Scheduler, Status, Stop, Wait
from .resources import Resources


@final
@dataclass(frozen=True, slots=True)
class Bracket:
    """The shape of a round: `sizes[i]` trials run to `levels[i]`; the last level is the maximum."""

    levels: tuple[float, ...]
    sizes: tuple[int, ...]


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


class SynchronousHalving(Scheduler):
    """Base class of `SuccessiveHalving`, `Hyperband` and `BOHB`, which differ in the brackets of their rounds.

    Args:
        max_t, max_resource_attr, grace_period, reduction_factor: see `SuccessiveHalving`.
        options: those of `Scheduler`.
    """

    def __init__(
        self,
        searcher: Searcher | str | None,
        *,
        resource_attr: str | None,
        max_t: float | None,
        max_resource_attr: str | None,
        grace_period: float,
        reduction_factor: float,
        **options: Any,
    ) -> None:
        super().__init__(searcher, resource_attr=resource_attr, **options)
        self._resources = Resources(resource_attr, max_t, max_resource_attr, grace_period, reduction_factor)
        self.max_resource = max_t

    @abc.abstractmethod
    def brackets(self, resources: Resources, maximum: float) -> Sequence[Bracket]:
        """Return the brackets of the rounds, at least one; round i has bracket i modulo their number."""

    def levels(self, space: Space) -> tuple[float, ...]:
        brackets = self.brackets(self._resources, self._resources.maximum(space))
        return tuple(sorted({level for bracket in brackets for level in bracket.levels}))

    def check(self, space: Space) -> None:
        self.brackets(self._resources, self._resources.maximum(space))
        super().check(space)

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self.max_resource = self._maximum = self._resources.maximum(space)
        self._brackets = self.brackets(self._resources, self._maximum)
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
        return {**super().describe(), **self._resources.describe()}

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


@final
class SuccessiveHalving(SynchronousHalving):
    """Synchronous successive halving: rounds in which the best trials of each rung continue when the rung is complete.

    As in Dive into Deep Learning, 19.4: prefact * eta^K trials begin a round, and int(prefact * eta^(K-i)) continue to
    level i. The levels are grace_period * eta^k and the maximum; K is the number of levels below the maximum.

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t: resource at which trials end.
        max_resource_attr: or the name in the space of the value that tells the objective where to end, "max_epochs".
        grace_period: the first level.
        reduction_factor: eta; one trial in eta continues, to eta times the resource.
        prefact: factor of the number of trials in a round.

    Raises:
        TypeError: an unknown option (the message names the closest one), or an argument of the wrong type.
        ValueError: an argument out of range.

    >>> scheduler = SuccessiveHalving(metric="loss", max_t=2, reduction_factor=2)  # the better of two trials continues
    >>> space = Space({"depth": 3})
    >>> scheduler.begin(space, seed=0)
    >>> scheduler.next(Ask(0, 0, space)), scheduler.next(Ask(1, 1, space))
    (New(config=None), New(config=None))
    >>> [str(scheduler.on_report(Observation(i, {}, 1, 1, (0.5 + i,), {}))) for i in (0, 1)]
    ['PAUSE', 'STOP']
    >>> scheduler.next(Ask(2, 2, space))
    Resume(trial_id=0)
    """

    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        metric: str,
        mode: Mode = "min",
        constraints: Sequence[str] = (),
        resource_attr: str | None = None,
        max_t: float | None = None,
        max_resource_attr: str | None = None,
        grace_period: float = 1,
        reduction_factor: float = 3,
        prefact: float = 1,
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        random_seed: int | None = None,
    ) -> None:
        super().__init__(
            searcher,
            metric=metric,
            mode=mode,
            constraints=constraints,
            resource_attr=resource_attr,
            max_t=max_t,
            max_resource_attr=max_resource_attr,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            points_to_evaluate=points_to_evaluate,
            random_seed=random_seed,
        )
        if not is_number(prefact):
            raise TypeError(f"prefact must be a number, got {prefact!r} of type {type(prefact).__name__}")
        if not prefact > 0:
            raise ValueError(f"prefact must be above 0, got {prefact!r}")
        self._prefact = float(prefact)

    def brackets(self, resources: Resources, maximum: float) -> Sequence[Bracket]:
        levels = (*resources.levels(maximum), maximum)
        eta, top = resources.reduction_factor, len(levels) - 1
        return (Bracket(levels, tuple(max(1, int(self._prefact * eta ** (top - i))) for i in range(top + 1))),)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "prefact": self._prefact}
