"""Population-based training (PBT; Jaderberg et al., arXiv 1711.09846).

A member of the population is a sequence of trials. At the end of each perturbation interval, a member is compared with
the other members by the loss at the end of their last interval. No member waits for another. If a member is among the
worst, its trial is stopped, and its next trial is a clone: it starts from the checkpoint of one of the best members
with a perturbed configuration (exploit and explore, section 4.1). Infeasible members rank behind all feasible ones.

If there are fewer workers than members, members pause at the end of each interval and resume in order. After a clone
had to start from scratch for lack of a checkpoint, members no longer pause, because they would lose their progress.

Trials at the maximum resource are never cloned, because the clone could not train further. If the source of a queued
clone reaches the maximum, the clone gets another source, or is dropped if there is none. Without checkpoints, clones
start from scratch, so they keep their source.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Unpack, final

from ..rng import KeyedRandom
from ..searchers.searcher import Observation, Searcher, SuggestContext
from ..space import Domain, Space
from ..space.categories import Categories
from ..space.domains import is_finite
from ..space.numeric import Interval
from ..space.parameters import exists
from ..values import Value, checked_int, checked_positive, checked_probability, round_resource
from .resources import ResourceOptions, ResourceScheduler
from .scheduler import Clone, Decision, Done, New, NextTrial, Resume, Status, Wait

_FACTORS = (0.8, 1.2)


class _IntervalEnd(NamedTuple):
    iter: int
    resource: float
    key: tuple[float, float]  # (infeasibility, loss); the smallest is the best


@dataclass(slots=True)
class _Member:
    """The current trial of a member."""

    config: Mapping[str, object] | None = None  # known from the first report
    first_iter: int = 0  # number of the trial's first report; 0 if there is none
    start_resource: float = 0.0  # resource of the checkpoint from which the trial was cloned
    interval_ends: list[_IntervalEnd] = field(default_factory=list)
    is_clone: bool = False
    is_paused: bool = False  # and queued to resume


@final
class PBT(ResourceScheduler):
    """Population-based training. The searcher chooses the first configurations.

    The search ends when every member is at the maximum. Failed members are replaced by clones of the best members.

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t, max_resource_attr: resource at which trials end, or its name in the space.
        perturbation_interval: resource between two comparisons of a member with the others.
        population_size: number of members.
        quantile_fraction: fraction of the members, above 0 and at most 0.5. This fraction of the worst members is
            replaced by clones of the same fraction of the best members.
        resample_probability: probability that a hyperparameter of a clone is sampled. Otherwise it is multiplied by 0.8
            or 1.2 (see `perturb`).

    >>> scheduler = PBT(metric="loss", max_t=100, perturbation_interval=10)
    >>> scheduler.begin(Space({"depth": 3}), seed=0)
    >>> [scheduler.next(SuggestContext(k, k, Space({"depth": 3}))) for k in range(5)][3:]
    [New(config=None), Wait()]
    """

    clones: ClassVar[bool] = True

    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        perturbation_interval: float,
        population_size: int = 4,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        **options: Unpack[ResourceOptions],
    ) -> None:
        super().__init__(searcher, **options)
        self._interval = round_resource(checked_positive("perturbation_interval", perturbation_interval))
        self._population_size = checked_int("population_size", population_size, 2)
        self._fraction = checked_probability("quantile_fraction", quantile_fraction)
        if not 0 < self._fraction <= 0.5:
            raise ValueError(f"quantile_fraction must be above 0 and at most 0.5, got {quantile_fraction!r}")
        self._resample_probability = checked_probability("resample_probability", resample_probability)

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._space = space
        self._members: dict[int, _Member] = {}  # by id of the current trial
        self._num_unstarted = self._population_size
        self._no_new_configs = False
        self._queue: deque[Resume | Clone] = deque()  # waits for free workers
        self._unconfirmed_trial_id: int | None = None  # trial of the last New(), until it is known to have started
        self._scratch_clone_id: int | None = None  # trial id of a clone that had no checkpoint
        self._max_running_members = 0  # maximum number of members that ran at the same time
        self._at_maximum: dict[int, int] = {}  # trial id -> number of its first report at the maximum

    def next(self, context: SuggestContext) -> NextTrial:
        if self._unconfirmed_trial_id == context.trial_id:  # the searcher had no suggestion for it
            del self._members[context.trial_id]
            self._num_unstarted += 1
        self._unconfirmed_trial_id = None
        self._no_new_configs = context.no_new_configs
        answer = self._next_trial(context.trial_id) if context.can_start_trial else self._next_resume()
        if isinstance(answer, Resume):
            self._members[answer.trial_id].is_paused = False
        num_running = sum(not member.is_paused for member in self._members.values())
        self._max_running_members = max(self._max_running_members, num_running)
        return answer

    def _next_trial(self, trial_id: int) -> NextTrial:
        if self._num_unstarted and not self._no_new_configs:
            self._num_unstarted -= 1
            self._members[trial_id] = _Member()
            self._unconfirmed_trial_id = trial_id
            return New()
        while self._queue:
            answer = self._queue.popleft()
            if isinstance(answer, Resume):
                return answer
            if answer.trial_id not in self._at_maximum or self._scratch_clone_id is not None:
                self._members[trial_id] = _Member(is_clone=True)
                return answer
            if source_ids := self._clone_sources():
                self._queue.appendleft(self._clone(KeyedRandom(f"{self._seed}/again/{trial_id}"), source_ids))
        return Wait() if self._members else Done()

    def _next_resume(self) -> NextTrial:
        """Return the next paused member to resume, or `Wait()`. Clones stay queued, because no trial may start."""
        for item in self._queue:
            if isinstance(item, Resume):
                self._queue.remove(item)
                return item
        return Wait()

    def on_report(self, observation: Observation) -> Decision:
        trial_id, resource = observation.trial_id, observation.resource
        member = self._members.get(trial_id)
        if member is None:
            return Decision.STOP  # the trial was replaced by a clone, but the search was interrupted before it stopped
        if member.first_iter == 0:
            member.config, member.first_iter = observation.config, observation.iter
            if member.is_clone and observation.iter == 1:
                self._scratch_clone_id = trial_id
            # `iter` includes the reports of the source, so resource / iter is the resource of one report.
            member.start_resource = resource - resource / observation.iter
        if resource >= self._maximum:
            self._at_maximum.setdefault(trial_id, observation.iter)
            return self._decide_at_maximum(resource)
        last_resource = member.interval_ends[-1].resource if member.interval_ends else member.start_resource
        if resource < round_resource(last_resource + self._interval):
            return Decision.CONTINUE
        key = (observation.infeasibility, observation.loss)
        member.interval_ends.append(_IntervalEnd(observation.iter, resource, key))
        return self._exploit(trial_id, member)

    def _exploit(self, trial_id: int, member: _Member) -> Decision:
        ranking = self._rank_members()
        num_replaced = min(math.ceil(self._fraction * len(ranking)), len(ranking) // 2)
        if trial_id in [worst_id for _, worst_id in ranking[len(ranking) - num_replaced :]]:
            key = member.interval_ends[-1].key
            better_ids = [best_id for best_key, best_id in ranking[:num_replaced] if best_key < key]
            better_ids = [best_id for best_id in better_ids if best_id not in self._at_maximum]
            if better_ids:
                del self._members[trial_id]
                rng = KeyedRandom(f"{self._seed}/exploit/{trial_id}/{member.interval_ends[-1].iter}")
                self._queue.append(self._clone(rng, better_ids))
                return Decision.STOP
        if self._must_share_workers():
            member.is_paused = True
            self._queue.append(Resume(trial_id))
            return Decision.PAUSE
        return Decision.CONTINUE

    def _rank_members(self) -> list[tuple[tuple[float, float], int]]:
        """Return (key, trial id) of each member that has completed an interval, best first."""
        members = self._members.items()
        return sorted((member.interval_ends[-1].key, id_) for id_, member in members if member.interval_ends)

    def _clone(self, rng: KeyedRandom, sources: Sequence[int]) -> Clone:
        source = rng.choice(sources)
        config = self._members[source].config
        assert config is not None, "a ranked member has reported"
        return Clone(source, explore(self._space, config, rng, self._resample_probability))

    def _must_share_workers(self) -> bool:
        """Return True if there are more members than workers, one waits for a worker, and a pause loses no progress."""
        if self._scratch_clone_id is not None:
            return False
        num_clones = sum(isinstance(item, Clone) for item in self._queue)
        num_new = 0 if self._no_new_configs else self._num_unstarted
        num_members = len(self._members) + num_clones + num_new
        return bool(self._queue or num_new) and self._max_running_members < num_members

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        member = self._members.get(trial_id)
        if member is None:
            return
        while member.interval_ends and member.interval_ends[-1].iter > to_iter:
            member.interval_ends.pop()
        if self._at_maximum.get(trial_id, 0) > to_iter:
            del self._at_maximum[trial_id]
        if member.first_iter > to_iter:
            member.first_iter = 0
            if self._scratch_clone_id == trial_id:
                self._scratch_clone_id = None

    def on_end(self, trial_id: int, status: Status) -> None:
        member = self._members.pop(trial_id, None)
        if member is None:
            return
        if member.is_paused:
            self._queue.remove(Resume(trial_id))
        if status is not Status.FAILED:
            return
        if source_ids := self._clone_sources():
            self._queue.append(self._clone(KeyedRandom(f"{self._seed}/replace/{trial_id}"), source_ids))
        else:
            self._num_unstarted += 1

    def _clone_sources(self) -> list[int]:
        ranking = self._rank_members()
        best_members = ranking[: math.ceil(self._fraction * len(ranking))]
        return [id_ for (_, loss), id_ in best_members if math.isfinite(loss) and id_ not in self._at_maximum]

    def describe(self) -> dict[str, object]:
        return {
            **super().describe(),
            "perturbation_interval": self._interval,
            "population_size": self._population_size,
            "quantile_fraction": self._fraction,
            "resample_probability": self._resample_probability,
        }


def explore(
    space: Space, config: Mapping[str, object], rng: KeyedRandom, resample_probability: float
) -> dict[str, object]:
    """Return a copy of `config` in which each hyperparameter is resampled or perturbed (section 4.1.2).

    Conditional hyperparameters that no longer exist are removed, and new ones are sampled.
    """
    values: dict[str, object] = {}
    for name, domain in space.domains.items():
        if name in config:
            u, factor, sample = rng.random(), rng.choice(_FACTORS), rng.random()
            is_zero = config[name] == 0 and not isinstance(domain, Categories)  # a factor would have no effect
            resample = u < resample_probability or is_zero
            values[name] = domain.from_unit(sample) if resample else perturb(domain, config[name], factor)
    while absent_names := [name for name in values if not exists(name, values, space.conditions)]:
        for name in absent_names:
            del values[name]
    return space.complete(values, rng)


def perturb(domain: Domain, value: object, factor: float) -> Value:
    """Multiply a value by a factor, within the domain. For `reverseloguniform`, multiply its distance to 1.

    In a finite domain, the result is the value nearest to the product, but at least one step from the old value, so the
    integer 2 becomes 3 or 1. An ordinal moves to a neighboring category. A choice is not changed.

    >>> from fanwise.tune.space import randint, reverseloguniform, uniform
    >>> perturb(uniform(0, 1), 0.5, 1.2), perturb(uniform(0, 1), 0.9, 1.2), perturb(randint(1, 9), 2, 1.2)
    (0.6, 1.0, 3)
    >>> perturb(reverseloguniform(0.5, 0.99), 0.75, 0.8)
    0.8
    """
    if isinstance(domain, Interval):
        number = domain.normalize(value)
        target = 1.0 - (1.0 - number) * factor if domain.domain_type == "reverseloguniform" else number * factor
        return min(max(target, domain.lower), domain.upper)
    assert is_finite(domain), "all domains but intervals are finite"
    if not domain.ordered:
        return domain.normalize(value)
    index, last_index = domain.index_of(value), domain.num_values - 1
    if isinstance(domain, Categories):
        return domain.value_at(min(max(index + (1 if factor > 1 else -1), 0), last_index))

    def number_at(index: int) -> float:
        return float(domain.value_at(index))  # type: ignore[arg-type]  # not a category

    target = number_at(index) * factor
    new_index = bisect_left(range(last_index + 1), target, key=number_at)
    if new_index > last_index or (new_index and target - number_at(new_index - 1) <= number_at(new_index) - target):
        new_index -= 1
    if new_index == index:
        new_index += (target > number_at(index)) - (target < number_at(index))
    return domain.value_at(min(max(new_index, 0), last_index))
