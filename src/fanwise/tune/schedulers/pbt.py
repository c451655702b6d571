"""Population-based training (Jaderberg et al., arXiv 1711.09846): training and search in one.

    every member trains --perturbation_interval--> ready --among the worst--> STOP, and Clone(one of the best, explored)
                                                         --else-----------> CONTINUE

A member of the population is a line of trials: when it is replaced, its next trial starts from the checkpoint of a
better member, with that member's configuration changed a little (exploit and explore, section 4.1). Members are
compared by their loss when they were last ready, however far the others are: nobody waits. One that violates a
constraint then is worse than all that do not.

With fewer workers than members those that run give way at the end of each interval: PAUSE, and whoever has waited
longest runs. A trial without a checkpoint starts from scratch when it is cloned or paused; once that was seen at a
clone, nobody gives way any more.

Nobody is cloned who is at the maximum: the clone would have nothing to train. A clone that waits for a worker while its
source gets there is made of another of the best, or given up where there is none; unless clones start from scratch.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, final

from ..chance import Chance
from ..searchers.base import Ask, Mode, Observation, Searcher
from ..spaces import Space
from ..values import at_least, probability, rounded_resource
from .base import Clone, Decision, Done, New, NextTrial, Resume, Scheduler, Status, Wait
from .exploring import explored
from .resources import Resources, positive


class _Ready(NamedTuple):
    iter: int
    resource: float
    rank: tuple[float, float]  # infeasibility, loss


@dataclass(slots=True)
class _Member:
    """A member's present trial.

    Args:
        config: None until it has reported.
        first_iter: the number of its first report; 0: there was none.
        began: the resource at which it started: 0, or that of the checkpoint it was cloned from.
        ready: the ends of its intervals.
        is_clone: it began as one.
        is_paused: it waits for a worker.
    """

    config: Mapping[str, object] | None = None
    first_iter: int = 0
    began: float = 0.0
    ready: list[_Ready] = field(default_factory=list)
    is_clone: bool = False
    is_paused: bool = False


@final
class PBT(Scheduler):
    """Population-based training; a searcher chooses the first configurations.

    The search ends when every member is at the maximum. A member that fails is replaced by a clone of one of the best.

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`. The
            searcher chooses the configurations of the first trials.
        max_t: resource at which trials end.
        max_resource_attr: or the name in the space of the value that tells the objective where to end, "max_epochs".
        perturbation_interval: resource between two comparisons of a member with the others.
        population_size: number of members.
        quantile_fraction: fraction of the population that is replaced, and that is cloned; above 0, at most 0.5.
        resample_probability: probability that a hyperparameter of a clone is drawn anew; otherwise it is multiplied by
            0.8 or 1.2.

    Raises:
        TypeError: an unknown option (the message names the closest one), or an argument of the wrong type.
        ValueError: an argument out of range.

    >>> scheduler = PBT(metric="loss", max_t=100, perturbation_interval=10)
    >>> scheduler.begin(Space({"depth": 3}), seed=0)
    >>> [scheduler.next(Ask(k, k, Space({"depth": 3}))) for k in range(5)][3:]
    [New(config=None), Wait()]
    """

    clones: ClassVar[bool] = True

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
        perturbation_interval: float,
        population_size: int = 4,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        random_seed: int | None = None,
    ) -> None:
        super().__init__(
            searcher,
            metric=metric,
            mode=mode,
            constraints=constraints,
            resource_attr=resource_attr,
            points_to_evaluate=points_to_evaluate,
            random_seed=random_seed,
        )
        self._resources = Resources(resource_attr, max_t, max_resource_attr)
        self._interval = rounded_resource(positive("perturbation_interval", perturbation_interval))
        self._population_size = at_least("population_size", population_size, 2)
        self._fraction = probability("quantile_fraction", quantile_fraction)
        if not 0 < self._fraction <= 0.5:
            raise ValueError(f"quantile_fraction must be above 0 and at most 0.5, got {quantile_fraction!r}")
        self._resample = probability("resample_probability", resample_probability)
        self.max_resource = max_t

    def check(self, space: Space) -> None:
        self._resources.maximum(space)
        super().check(space)

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._space, self._seed = space, seed
        self._maximum = self.max_resource = self._resources.maximum(space)
        self._members: dict[int, _Member] = {}  # by the id of their present trial
        self._num_unstarted = self._population_size
        self._no_new_trials = False  # for now: the searcher has none, or no trial may begin
        self._waiting: deque[Resume | Clone] = deque()
        self._promised: int | None = None  # the trial that New() was the last answer for: it may come to nothing
        self._from_scratch: int | None = None  # a clone that had no checkpoint
        self._num_workers = 0  # so many trials have run at once
        self._at_maximum: dict[int, int] = {}  # trials that got there, and with which report

    def next(self, ask: Ask) -> NextTrial:
        if self._promised == ask.trial_id:
            del self._members[ask.trial_id]
            self._num_unstarted += 1
        self._promised = None
        self._no_new_trials = ask.exhausted
        answer = self._next(ask.trial_id) if ask.may_begin else self._next_of_the_paused()
        self._num_workers = max(self._num_workers, sum(not member.is_paused for member in self._members.values()))
        return answer

    def _next(self, trial_id: int) -> NextTrial:
        if self._num_unstarted and not self._no_new_trials:
            self._num_unstarted -= 1
            self._members[trial_id] = _Member()
            self._promised = trial_id
            return New()
        while self._waiting:
            answer = self._waiting.popleft()
            if isinstance(answer, Resume):
                self._members[answer.trial_id].is_paused = False
                return answer
            if answer.trial_id not in self._at_maximum or self._from_scratch is not None:
                self._members[trial_id] = _Member(is_clone=True)
                return answer
            if best := self._best():
                self._waiting.appendleft(self._clone(Chance(f"{self._seed}/again/{trial_id}"), best))
        return Wait() if self._members else Done()

    def _next_of_the_paused(self) -> NextTrial:
        """No trial may begin any more: clones wait, and who gave way to them goes on."""
        answer = next((one for one in self._waiting if isinstance(one, Resume)), None)
        if answer is None:
            return Wait()
        self._waiting.remove(answer)
        self._members[answer.trial_id].is_paused = False
        return answer

    def on_report(self, observation: Observation) -> Decision:
        trial_id, resource = observation.trial_id, observation.resource
        member = self._members.get(trial_id)
        if member is None:
            return Decision.STOP  # it was replaced, and a resumed search took it up again
        if member.first_iter == 0:
            member.config, member.first_iter = observation.config, observation.iter
            if member.is_clone and observation.iter == 1:
                self._from_scratch = trial_id
            # A clone's iterations count on from those of its checkpoint: as many as there were reports before.
            member.began = resource - resource / observation.iter
        if resource >= self._maximum:
            self._at_maximum.setdefault(trial_id, observation.iter)
            return self._resources.at_maximum(resource, self._maximum)
        last = member.ready[-1].resource if member.ready else member.began
        if resource < rounded_resource(last + self._interval):
            return Decision.CONTINUE
        member.ready.append(_Ready(observation.iter, resource, (observation.infeasibility, observation.loss)))
        return self._exploit(trial_id, member)

    def _exploit(self, trial_id: int, member: _Member) -> Decision:
        ranked = self._ranked()
        number = min(math.ceil(self._fraction * len(ranked)), len(ranked) // 2)
        if trial_id in [worse for _, worse in ranked[len(ranked) - number :]]:
            rank = member.ready[-1].rank
            better = [good for good_rank, good in ranked[:number] if good_rank < rank]
            better = [good for good in better if good not in self._at_maximum]
            if better:
                del self._members[trial_id]
                chance = Chance(f"{self._seed}/exploit/{trial_id}/{member.ready[-1].iter}")
                self._waiting.append(self._clone(chance, better))
                return Decision.STOP
        if self._is_crowded():
            member.is_paused = True
            self._waiting.append(Resume(trial_id))
            return Decision.PAUSE
        return Decision.CONTINUE

    def _ranked(self) -> list[tuple[tuple[float, float], int]]:
        """The members that were ready once, as (rank, trial id), the best first; of equal ones the older trial."""
        return sorted((member.ready[-1].rank, trial_id) for trial_id, member in self._members.items() if member.ready)

    def _clone(self, rng: Chance, sources: Sequence[int]) -> Clone:
        source = rng.choice(sources)
        config = self._members[source].config
        assert config is not None, "a member that was ready has reported"
        return Clone(source, explored(self._space, config, rng, self._resample))

    def _is_crowded(self) -> bool:
        """Whether somebody waits because there are more members than workers, and it helps to give way."""
        if self._from_scratch is not None:
            return False
        num_clones = sum(isinstance(one, Clone) for one in self._waiting)
        num_new = 0 if self._no_new_trials else self._num_unstarted
        num_members = len(self._members) + num_clones + num_new
        return bool(self._waiting or num_new) and self._num_workers < num_members

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        member = self._members.get(trial_id)
        if member is None:
            return
        while member.ready and member.ready[-1].iter > to_iter:
            member.ready.pop()
        if self._at_maximum.get(trial_id, 0) > to_iter:
            del self._at_maximum[trial_id]
        if member.first_iter > to_iter:
            member.first_iter = 0
            if self._from_scratch == trial_id:
                self._from_scratch = None

    def on_end(self, trial_id: int, status: Status) -> None:
        member = self._members.pop(trial_id, None)
        if member is None:
            return
        if member.is_paused:
            self._waiting.remove(Resume(trial_id))
        if status is Status.FAILED:
            self._replace(trial_id)

    def _replace(self, trial_id: int) -> None:
        """A member has failed: a clone of one of the best takes its place, or a new trial if nobody is good yet."""
        if best := self._best():
            self._waiting.append(self._clone(Chance(f"{self._seed}/replace/{trial_id}"), best))
        else:
            self._num_unstarted += 1

    def _best(self) -> list[int]:
        """Those of the best that a clone can be made of."""
        ranked = self._ranked()
        best = [good for (_, loss), good in ranked[: math.ceil(self._fraction * len(ranked))] if math.isfinite(loss)]
        return [good for good in best if good not in self._at_maximum]

    def describe(self) -> dict[str, object]:
        return {
            **super().describe(),
            "max_t": self._resources.max_t,
            "max_resource_attr": self._resources.max_resource_attr,
            "perturbation_interval": self._interval,
            "population_size": self._population_size,
            "quantile_fraction": self._fraction,
            "resample_probability": self._resample,
        }
