"""The contract of schedulers: all of ours keep it, and each check catches a scheduler that does not."""

import itertools
import random
from dataclasses import replace
from typing import ClassVar

import pytest
import scheduler_checks_of_ours as ours

from fanwise.testing import scheduler_checks as contract
from fanwise.testing.scheduler_checks import Check, Make, check_scheduler
from fanwise.testing.scheduler_simulation import SPACE
from fanwise.tune.schedulers import (
    ASHA,
    FIFO,
    MOASHA,
    PBT,
    Clone,
    Decision,
    Hyperband,
    MedianStopping,
    New,
    NextTrial,
    Resume,
    Scheduler,
    Status,
    SuccessiveHalving,
    Wait,
)
from fanwise.tune.searchers import GridSearcher, Observation, SuggestContext
from fanwise.tune.space import Space

ALL_CHECKS = (*contract.CHECKS, *ours.CHECKS_OF_OURS)

OURS: dict[str, Make] = {
    "random search": lambda: FIFO(metric="loss"),
    "ASHA": lambda: ASHA(metric="loss", max_t=9, resource_attr="epoch"),
    "ASHA of three brackets": lambda: ASHA(
        metric="loss", mode="max", max_resource_attr="max_epochs", reduction_factor=2, brackets=3
    ),
    "ASHA by promotion": lambda: ASHA(metric="loss", max_t=9, type="promotion", resource_attr="epoch"),
    "ASHA by promotion of two brackets": lambda: ASHA(
        metric="loss", max_resource_attr="max_epochs", type="promotion", brackets=2, reduction_factor=2
    ),
    "successive halving": lambda: SuccessiveHalving(metric="loss", max_t=9, resource_attr="epoch"),
    "successive halving of odd rounds": lambda: SuccessiveHalving(
        metric="loss", mode="max", max_resource_attr="max_epochs", reduction_factor=2
    ),
    "Hyperband": lambda: Hyperband(metric="loss", max_t=9),
    "PBT": lambda: PBT(metric="loss", max_t=9, resource_attr="epoch", perturbation_interval=2),
    "PBT of six that change much": lambda: PBT(
        metric="loss",
        mode="max",
        max_resource_attr="max_epochs",
        perturbation_interval=1,
        population_size=6,
        quantile_fraction=0.5,
        resample_probability=0.8,
    ),
    "MOASHA": lambda: MOASHA(metric=["loss", "seconds"], mode=["min", "max"], max_t=9, resource_attr="epoch"),
    "MOASHA of three metrics": lambda: MOASHA(
        metric=["loss", "seconds", "bytes"], max_resource_attr="max_epochs", reduction_factor=2
    ),
    "grid search": lambda: FIFO(GridSearcher(3), metric="loss"),
    "median rule": lambda: MedianStopping(metric="loss", resource_attr="epoch", grace_population=2),
    "ASHA by quantiles": lambda: ASHA(metric="loss", max_t=9, type="quantile", brackets=2),
}


# The same code is run by another of ours, with other settings: the long tests play these too.
ALIKE = {"ASHA", "ASHA by promotion", "successive halving", "PBT", "MOASHA of three metrics", "grid search"}


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.soak] * (name in ALIKE)) for name in OURS])
def test_our_schedulers_keep_the_contract(name: str, check: Check) -> None:
    check_scheduler(OURS[name], [check])


class Half(Scheduler):
    """A correct scheduler to break: trials pause at epoch 3, and resume when they are in its better half."""

    def __init__(self) -> None:
        super().__init__(metric="loss")

    def begin(self, space: Space, seed: int) -> None:
        self.there: dict[int, tuple[float, int]] = {}
        self.paused: set[int] = set()

    def next(self, ask: SuggestContext) -> NextTrial:
        ranked = sorted(self.there, key=lambda trial_id: self.there[trial_id])
        for trial_id in ranked[: len(ranked) // 2]:
            if trial_id in self.paused:
                self.paused.remove(trial_id)
                return Resume(trial_id)
        return New()

    def on_report(self, observation: Observation) -> Decision:
        if observation.iter < 3 or observation.trial_id in self.there:
            return Decision.CONTINUE
        self.there[observation.trial_id] = observation.loss, observation.trial_id
        self.paused.add(observation.trial_id)
        return Decision.PAUSE

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        if to_iter < 3:
            self.there.pop(trial_id, None)
            self.paused.discard(trial_id)

    def on_end(self, trial_id: int, status: Status) -> None:
        self.paused.discard(trial_id)


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
def test_the_scheduler_that_is_broken_below_keeps_the_contract_itself(check: Check) -> None:
    check_scheduler(Half, [check])


class AnswersText(Half):
    def on_report(self, observation: Observation) -> Decision:
        return "pause"  # type: ignore[return-value]


class ResumesTheBest(Half):
    """Ignores whether the trial is paused or runs."""

    def next(self, ask: SuggestContext) -> NextTrial:
        return Resume(min(self.there)) if self.there else New()


class TableOfFifty(Half):
    def next(self, ask: SuggestContext) -> NextTrial:
        return [New()][ask.trial_id // 50]


class Waits(Half):
    """Waits for a fourth trial of a batch, which never starts."""

    def next(self, ask: SuggestContext) -> NextTrial:
        return Wait() if len(self.paused) % 4 == 3 else super().next(ask)


class ClonesForEver(Half):
    def next(self, ask: SuggestContext) -> NextTrial:
        return Clone(0, ask.space.sample(ask.random)) if ask.no_new_configs else super().next(ask)


class Shared(Half):
    numbers = itertools.count()

    def on_report(self, observation: Observation) -> Decision:
        return Decision.STOP if next(Shared.numbers) % 7 == 0 else super().on_report(observation)


class Uncopied(Half):
    def __deepcopy__(self, memo: object) -> "Uncopied":
        return self


class GoesOn(Half):
    def __init__(self) -> None:
        super().__init__()
        super().begin(SPACE, 0)

    def begin(self, space: Space, seed: int) -> None: ...


class Checking(Half):
    def __init__(self) -> None:
        super().__init__()
        super().begin(SPACE, 0)

    def check(self, space: Space) -> None:
        self.there.clear()


class DescribesObjects(Half):
    def describe(self) -> dict[str, object]:
        return {"name": "Half", "searcher": self.searcher}


class DescribesItsSearch(Half):
    def describe(self) -> dict[str, object]:
        return {"name": "Half", "there": len(getattr(self, "there", ()))}


class Stops(Half):
    """At epoch 3, unless it is the best so far; the losses stay."""

    def begin(self, space: Space, seed: int) -> None:
        self.best: dict[tuple[int, int], float] = {}

    def next(self, ask: SuggestContext) -> NextTrial:
        return New()

    def on_report(self, observation: Observation) -> Decision:
        place = observation.trial_id, observation.iter
        other_losses = [loss for other_place, loss in self.best.items() if other_place != place]
        self.best[place] = observation.loss
        return Decision.STOP if other_losses and observation.loss > min(other_losses) else Decision.CONTINUE

    def on_rollback(self, trial_id: int, to_iter: int) -> None: ...

    def on_end(self, trial_id: int, status: Status) -> None: ...


class Counts(Stops):
    """Reports, the void ones too."""

    def on_report(self, observation: Observation) -> Decision:
        self.best[len(self.best), 0] = 0.0
        return Decision.STOP if len(self.best) % 10 == 0 else Decision.CONTINUE


class Unended(Half):
    def on_end(self, trial_id: int, status: Status) -> None:
        self.paused.remove(trial_id)


class Finite(Half):
    def on_report(self, observation: Observation) -> Decision:
        assert int(observation.loss * 100) is not None
        return super().on_report(observation)


class ReadsTheReport(Half):
    """Compares another value in place of the loss."""

    def on_report(self, observation: Observation) -> Decision:
        value = observation.values["loss"]
        assert isinstance(value, float)
        return super().on_report(replace(observation, losses=(value,)))


class KeepsReports(Half):
    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self.reports: list[tuple[object, ...]] = []

    def on_report(self, observation: Observation) -> Decision:
        copied = dict(observation.values), dict(observation.config), [0.0] * 32, observation.losses
        self.reports.append(copied)
        return Decision.CONTINUE


class Global(Half):
    values: ClassVar[list[float]] = []

    def next(self, ask: SuggestContext) -> NextTrial:
        self.values[:] = [random.random()]
        return super().next(ask)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (AnswersText, contract.answers_are_always_allowed),
        (ResumesTheBest, contract.answers_are_always_allowed),
        (TableOfFifty, contract.many_workers_can_ask_before_the_first_report),
        (Waits, contract.search_does_not_end_while_configurations_are_left),
        (ClonesForEver, contract.search_without_further_configurations_ends),
        (Shared, contract.same_history_gives_the_same_answers),
        (Uncopied, contract.copy_continues_like_the_original),
        (GoesOn, contract.begin_resets_the_scheduler),
        (Checking, contract.check_has_no_side_effects),
        (DescribesObjects, contract.description_is_constant_json),
        (DescribesItsSearch, contract.description_is_constant_json),
        (Counts, contract.rolled_back_reports_have_no_effect),
        (Stops, ours.rolled_back_attempts_have_no_effect),
        (Unended, contract.trials_can_end_without_reports),
        (Finite, contract.losses_can_all_be_infinite),
        (ReadsTheReport, ours.infinite_values_are_the_worst_of_both_signs),
        (KeepsReports, ours.finished_trials_take_little_memory),
        (Global, contract.global_random_state_is_not_used),
    ],
)
def test_a_broken_scheduler_fails_the_contract(broken: Make, check: Check) -> None:
    with pytest.raises((AssertionError, KeyError, OverflowError, TypeError, IndexError)):
        check_scheduler(broken, [check])


def test_every_check_catches_something() -> None:
    marks = test_a_broken_scheduler_fails_the_contract.pytestmark  # type: ignore[attr-defined]
    caught = {check for _, check in marks[0].args[1]}
    assert caught == set(ALL_CHECKS)
