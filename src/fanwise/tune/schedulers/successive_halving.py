"""Synchronous successive halving: SuccessiveHalving, Hyperband and BOHB.

    rung 0   n_0 new trials pause at level 0; when all have arrived, the best n_1 continue
    rung 1   n_1 trials pause at level 1; when all have arrived, the best n_2 continue     ... until the last level

A bracket is a list of levels with the number n_i of trials at each. A round is one run of a bracket. Trials are
compared within their round only. `SuccessiveHalving` repeats one bracket, `Hyperband` cycles through several. A free
worker first resumes promoted trials, of the oldest round first. If there are none, the worker starts a trial of the
last round or, if all trials of that round have started, of a new round. So no worker idles while a straggler runs.

A trial that fails, is stopped or ends before its level leaves the round. If m of n_i trials remain, the best
m * n_{i+1} / n_i continue, at least one. If there are no new configurations, the last round continues with fewer
trials. Trials that do not continue are ended, so that their checkpoints can be deleted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Unpack, final

from ..searchers.searcher import Observation, SuggestContext
from ..searchers.tpe import TPESearcher
from ..space import Space
from ..values import round_resource
from .resources import RungOptions, RungScheduler
from .scheduler import CONTINUE, PAUSE, STOP, Decision, New, NextTrial, Resume, Status, Stop, Wait

_EPSILON = 1e-9  # for rounding errors, e.g. log(1000) / log(10) is 2.9999999999999996


@final
@dataclass(frozen=True, slots=True)
class Bracket:
    """The levels and sizes of a round: `sizes[i]` trials run to `levels[i]`. The last level is the maximum."""

    levels: tuple[float, ...]
    sizes: tuple[int, ...]


class _Arrival(NamedTuple):
    """The report with which a trial arrived at the current rung. Arrivals are ranked by comparing the tuples."""

    infeasibility: float
    loss: float
    number: int
    iter: int


@dataclass(slots=True, eq=False)
class _Round:
    """A round of successive halving, with the ids of its remaining trials."""

    number: int
    bracket: Bracket
    rung: int = 0  # index of the current rung
    num_started: int = 0
    has_all_trials: bool = False  # no more trials start in this round
    running_ids: set[int] = field(default_factory=set)  # below the level of the current rung
    arrivals: dict[int, _Arrival] = field(default_factory=dict)  # paused at the level of the current rung


class SynchronousHalving(RungScheduler):
    """Base class of `SuccessiveHalving`, `Hyperband` and `BOHB`."""

    def brackets(self, maximum: float) -> Sequence[Bracket]:
        """Return the brackets for this maximum resource. Rounds use them in turn."""
        s_max = math.floor(math.log(maximum / self._grace_period) / math.log(self._eta) + _EPSILON)
        brackets = []
        for s in range(s_max, -1, -1):
            size = math.ceil((s_max + 1) / (s + 1) * self._eta**s - _EPSILON)
            sizes = tuple(max(1, math.floor(size / self._eta**i + _EPSILON)) for i in range(s + 1))
            levels = (*(round_resource(maximum / self._eta ** (s - i)) for i in range(s)), maximum)
            brackets.append(Bracket(levels, sizes))
        return brackets

    def levels(self, space: Space) -> tuple[float, ...]:
        brackets = self.brackets(self._maximum_of(space))
        return tuple(sorted({level for bracket in brackets for level in bracket.levels}))

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._brackets = self.brackets(self._maximum)
        self._num_rounds = 0
        self._num_arrivals = 0
        self._rounds: dict[int, _Round] = {}  # by id of each trial that may still be promoted
        self._incomplete_round: _Round | None = None
        self._unconfirmed_trial_id: int | None = None  # trial of the last New(), until it is known to have started
        self._promotions: dict[int, tuple[int, int]] = {}  # paused trial that continues -> (number of the round, rank)
        self._eliminations: dict[int, None] = {}  # paused trials that do not continue, oldest first

    def next(self, context: SuggestContext) -> NextTrial:
        if self._unconfirmed_trial_id == context.trial_id:  # the searcher had no suggestion for it
            self._remove_unstarted(context.trial_id)
        self._unconfirmed_trial_id = None
        round_ = self._incomplete_round
        if context.no_new_configs and round_ is not None and round_.num_started and not round_.running_ids:
            self._incomplete_round = None
            round_.has_all_trials = True
            self._close_rung_if_all_arrived(round_)
        if self._eliminations:
            trial_id = next(iter(self._eliminations))
            del self._eliminations[trial_id]
            return Stop(trial_id)
        if self._promotions:
            trial_id = min(self._promotions, key=self._promotions.__getitem__)
            del self._promotions[trial_id]
            return Resume(trial_id)
        if context.no_new_configs:
            return Wait()
        self._add_to_round(context.trial_id)
        return New()

    def on_report(self, observation: Observation) -> Decision:
        trial_id, resource = observation.trial_id, observation.resource
        if resource >= self._maximum:
            self._remove(trial_id)
            return self._decide_at_maximum(resource)
        round_ = self._rounds.get(trial_id)
        if round_ is None or resource < round_.bracket.levels[round_.rung]:
            return CONTINUE
        round_.running_ids.remove(trial_id)
        arrival = _Arrival(observation.infeasibility, observation.loss, self._num_arrivals, observation.iter)
        round_.arrivals[trial_id] = arrival
        self._num_arrivals += 1
        self._close_rung_if_all_arrived(round_)
        if trial_id in self._promotions:  # the last trial to arrive need not pause
            del self._promotions[trial_id]
            return CONTINUE
        if trial_id in self._eliminations:
            del self._eliminations[trial_id]
            return STOP
        return PAUSE

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        # Decisions of a closed rung are final.
        round_ = self._rounds.get(trial_id)
        arrival = None if round_ is None else round_.arrivals.get(trial_id)
        if round_ is not None and arrival is not None and arrival.iter > to_iter:
            del round_.arrivals[trial_id]
            round_.running_ids.add(trial_id)

    def on_end(self, trial_id: int, status: Status) -> None:
        if trial_id == self._unconfirmed_trial_id:
            self._unconfirmed_trial_id = None
        self._promotions.pop(trial_id, None)
        self._eliminations.pop(trial_id, None)
        self._remove(trial_id)

    def _add_to_round(self, trial_id: int) -> None:
        round_ = self._incomplete_round
        if round_ is None:
            round_ = _Round(self._num_rounds, self._brackets[self._num_rounds % len(self._brackets)])
            self._num_rounds += 1
        round_.num_started += 1
        round_.has_all_trials = round_.num_started == round_.bracket.sizes[0]
        round_.running_ids.add(trial_id)
        self._rounds[trial_id] = round_
        self._incomplete_round = None if round_.has_all_trials else round_
        self._unconfirmed_trial_id = trial_id

    def _remove_unstarted(self, trial_id: int) -> None:
        round_ = self._rounds.pop(trial_id)
        round_.running_ids.remove(trial_id)
        round_.num_started -= 1
        round_.has_all_trials = False
        self._incomplete_round = round_

    def _remove(self, trial_id: int) -> None:
        round_ = self._rounds.pop(trial_id, None)
        if round_ is not None:
            round_.running_ids.discard(trial_id)
            round_.arrivals.pop(trial_id, None)
            self._close_rung_if_all_arrived(round_)

    def _close_rung_if_all_arrived(self, round_: _Round) -> None:
        """If all trials have arrived at the current rung, promote the best ones and eliminate the others."""
        if round_.running_ids or not round_.has_all_trials:
            return
        ranking = sorted(round_.arrivals, key=round_.arrivals.__getitem__)
        sizes, rung = round_.bracket.sizes, round_.rung
        num_promoted = 0
        if ranking and rung + 1 < len(sizes):
            num_promoted = max(1, len(ranking) * sizes[rung + 1] // sizes[rung])
        round_.rung += 1
        round_.arrivals = {}
        round_.running_ids.update(ranking[:num_promoted])
        self._promotions |= {trial_id: (round_.number, rank) for rank, trial_id in enumerate(ranking[:num_promoted])}
        for trial_id in ranking[num_promoted:]:
            self._eliminations[trial_id] = None
            del self._rounds[trial_id]


@final
class SuccessiveHalving(SynchronousHalving):
    """Synchronous successive halving. The best trials of a rung continue when all trials have arrived.

    A round starts with eta^K trials, and int(eta^(K-i)) trials continue to level i (Dive into Deep Learning, 19.4). The
    levels are grace_period * eta^k and the maximum. K is the number of levels below the maximum.

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t, max_resource_attr, grace_period, reduction_factor: see `RungScheduler`.

    >>> scheduler = SuccessiveHalving(metric="loss", max_t=2, reduction_factor=2)  # the better of two trials continues
    >>> space = Space({"depth": 3})
    >>> scheduler.begin(space, seed=0)
    >>> scheduler.next(SuggestContext(0, 0, space)), scheduler.next(SuggestContext(1, 1, space))
    (New(config=None), New(config=None))
    >>> [str(scheduler.on_report(Observation(i, {}, 1, 1, (0.5 + i,), {}))) for i in (0, 1)]
    ['PAUSE', 'STOP']
    >>> scheduler.next(SuggestContext(2, 2, space))
    Resume(trial_id=0)
    """

    def brackets(self, maximum: float) -> Sequence[Bracket]:
        levels = (*self.rung_levels(maximum), maximum)
        return [Bracket(levels, tuple(int(self._eta**k) for k in reversed(range(len(levels)))))]


@final
class Hyperband(SynchronousHalving):
    """Hyperband (Li et al., arXiv 1603.06560): rounds of successive halving that differ in the first level.

    The brackets are those of Algorithm 1, where R is the maximum:

        s_max = floor(log_eta(R / grace_period))
        for s in s_max, s_max - 1, ..., 0:
            n = ceil((s_max + 1) / (s + 1) * eta^s), r = R * eta^-s
            for i in 0 ... s: floor(n * eta^-i) trials run to r * eta^i

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t, max_resource_attr, grace_period, reduction_factor: see `RungScheduler`.

    >>> for bracket in Hyperband(metric="loss", max_t=9).brackets(9):
    ...     print(bracket)
    Bracket(levels=(1.0, 3.0, 9), sizes=(9, 3, 1))
    Bracket(levels=(3.0, 9), sizes=(5, 1))
    Bracket(levels=(9,), sizes=(3,))
    """


@final
class BOHB(SynchronousHalving):
    """BOHB (Falkner et al., arXiv 1807.01774): Hyperband with TPE as the searcher.

    TPE learns from each trial's first report at or above the highest level at which `num_init` trials have a result.

    Args:
        metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t, max_resource_attr, grace_period, reduction_factor: see `RungScheduler`.
        num_init: see `TPESearcher`.

    >>> scheduler = BOHB(metric="validation_error", max_t=81)
    """

    def __init__(self, *, num_init: int = 10, **options: Unpack[RungOptions]) -> None:
        super().__init__(TPESearcher(num_init), **options)
        self._learns_at_levels = True
