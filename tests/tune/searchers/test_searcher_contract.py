"""The contract of searchers: all of ours keep it, and each check detects a searcher that breaks it."""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Mapping

import pytest
import searcher_checks_of_ours as ours
from searcher_checks_of_ours import CHECKS_OF_A_MODEL, CHECKS_OF_OURS, MODEL_CHECKS

from fanwise.testing import searcher_checks as contract
from fanwise.testing.searcher_checks import Check, Make, check_searcher
from fanwise.tune.searchers import (
    ForestSearcher,
    GPSearcher,
    GridSearcher,
    Observation,
    RandomSearcher,
    Searcher,
    SobolSearcher,
    SuggestContext,
    TPESearcher,
)
from fanwise.tune.searchers.points import FirstPoints
from fanwise.tune.space import Space

OURS: dict[str, Make] = {
    "random": RandomSearcher,
    "grid": lambda: GridSearcher(2),
    "sobol": SobolSearcher,
    "first points": lambda: FirstPoints([{}, {}], Best()),
}


@pytest.mark.parametrize("check", CHECKS_OF_OURS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", OURS)
def test_our_searchers_keep_the_contract(name: str, check: Check) -> None:
    check_searcher(OURS[name], [check])


@pytest.mark.parametrize("name", sorted({*OURS} - {"grid", "first points"}))
def test_our_searchers_repeat_no_configuration_while_others_are_left(name: str) -> None:
    ours.no_configuration_is_repeated_while_others_are_left(OURS[name])


def test_repeating_searcher_is_detected() -> None:
    with pytest.raises(AssertionError, match="is repeated, although others are left"):
        ours.no_configuration_is_repeated_while_others_are_left(Best)


def test_random_search_continues_when_all_configurations_of_a_small_space_were_tried() -> None:
    space = contract.SPACES["few values"]
    play = contract.SearcherSimulation(RandomSearcher, space)
    for trial_id in range(8):
        play.suggest()
        play.end(trial_id, "Completed")
    assert len({repr(config) for config in play.suggestions[:4]}) == 4
    assert None not in play.suggestions


SMALL_MODELS: dict[str, Make] = {
    "gp": lambda: GPSearcher(3, num_candidates=20, max_rows=10),
    "forest": lambda: ForestSearcher(3, num_trees=2, num_candidates=20),
    "tpe": lambda: TPESearcher(4),
}


# `replay_suggestion` belongs to the base class; see test_model_based.py. The check of rolled back reports also compares
# the suggestions of equal seeds.
LONG_CHECKS = (
    contract.replayed_suggestions_restore_the_state,
    contract.same_seed_and_reports_give_the_same_suggestions,
)
SHORT_CHECKS = [check for check in CHECKS_OF_A_MODEL if check not in LONG_CHECKS]


@pytest.mark.parametrize("check", SHORT_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_our_searchers_with_a_model_keep_the_contract(name: str, check: Check) -> None:
    check_searcher(SMALL_MODELS[name], [check])


@pytest.mark.soak
@pytest.mark.parametrize("check", CHECKS_OF_OURS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_our_searchers_with_a_model_keep_the_whole_contract(name: str, check: Check) -> None:
    check_searcher(SMALL_MODELS[name], [check])


WITH_A_MODEL: dict[str, Make] = {
    "gp": lambda: GPSearcher(num_candidates=200),
    "forest": lambda: ForestSearcher(num_trees=8, num_candidates=200),
    "tpe": lambda: TPESearcher(4),
}


@pytest.mark.parametrize("check", MODEL_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", WITH_A_MODEL)
def test_our_searchers_with_a_model_keep_further_promises(name: str, check: Callable[[Make], None]) -> None:
    check(WITH_A_MODEL[name])


class Best(Searcher):
    """A correct searcher, from which the broken ones derive: suggests the best configuration by its last report."""

    def __init__(self) -> None:
        self.losses: dict[int, dict[int, float]] = {}
        self.configs: dict[int, Mapping[str, object]] = {}

    def begin(self, space: Space, seed: int) -> None:
        self.losses, self.configs = {}, {}

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        found = [(losses[max(losses)], trial_id) for trial_id, losses in self.losses.items() if losses]
        if ask.number % 2 == 0 or not found:
            return ask.space.sample(ask.random)
        return dict(self.configs[min(found)[1]])

    def observe(self, observation: Observation) -> None:
        self.losses.setdefault(observation.trial_id, {})[observation.iter] = observation.loss
        self.configs[observation.trial_id] = dict(observation.config)

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        for iter in [iter for iter in self.losses.get(trial_id, {}) if iter > to_iter]:
            del self.losses[trial_id][iter]


class OmitsHyperparameter(Best):
    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        config = dict(super().suggest(ask) or {})
        return {name: config[name] for name in list(config)[1:]}


class IgnoresRollbacks(Best):
    def on_rollback(self, trial_id: int, to_iter: int) -> None: ...


class IgnoresBegin(Best):
    def begin(self, space: Space, seed: int) -> None: ...


class NeedsReports(Best):
    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        assert not ask.pending or self.losses
        return super().suggest(ask)


class Global(Best):
    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        return ask.space.sample(random.Random(random.random()))


class Shared(Best):
    numbers = itertools.count()

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        return ask.space.sample(random.Random(next(Shared.numbers)))


class SharedByCopies(Best):
    def __deepcopy__(self, memo: object) -> "SharedByCopies":
        return self

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        self.drawn = getattr(self, "drawn", 0) + 1
        return ask.space.sample(random.Random(self.drawn))

    def begin(self, space: Space, seed: int) -> None:
        self.drawn = 0


class Checking(Best):
    def check(self, space: Space) -> None:
        self.losses.clear()


class DescribesObjects(Best):
    def describe(self) -> dict[str, object]:
        return {"name": "Best", "chance": random.Random(0)}


class DescribesItsSearch(Best):
    def describe(self) -> dict[str, object]:
        return {"name": "Best", "seen": len(self.losses)}


class Changes(Best):
    def observe(self, observation: Observation) -> None:
        super().observe(observation)
        for name in observation.config:
            observation.config[name] = None  # type: ignore[index]


class ReturnsItsState(Best):
    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        config = dict(super().suggest(ask) or {})
        self.configs[-1] = self.configs.get(-1, config) or ask.space.sample(random.Random(ask.number))
        return self.configs[-1]


class NeedsReportsAtTheEnd(Best):
    def on_end(self, trial_id: int, status: str) -> None:
        del self.losses[trial_id]


class Rounds(Best):
    def observe(self, observation: Observation) -> None:
        int(observation.loss)
        super().observe(observation)


class RaisesWhenExhausted(Best):
    """Raises when all configurations were suggested."""

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        seen = list(self.configs.values())
        for number in range(200):
            config = ask.space.sample(random.Random(number))
            if config not in seen:
                return config
        raise RuntimeError("nothing is left")


class ExcludesEarlierTrials(Best):
    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        config = ask.space.sample(ask.random)
        return None if config in self.configs.values() else config


class CountsSuggestions(Best):
    number = 0

    def begin(self, space: Space, seed: int) -> None:
        self.number = 0

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        self.number += 1
        return ask.space.sample(random.Random(self.number))

    def replay_suggestion(self, ask: SuggestContext, config: Mapping[str, object] | None) -> None: ...


class Divides(Best):
    """Divides by the range of the losses."""

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        last = [losses[max(losses)] for losses in self.losses.values() if losses]
        if len(last) > 5 and all(map(math.isfinite, last)):
            1.0 / (max(last) - min(last))
        return super().suggest(ask)


class Deviates(Best):
    """Computes the standard deviation of the losses, which needs two."""

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        last = [losses[max(losses)] for losses in self.losses.values() if losses]
        if last:
            statistics.stdev(loss if math.isfinite(loss) else 0.0 for loss in last)
        return super().suggest(ask)


class RejectsOtherConfigurations(Best):
    """Raises KeyError for configurations that it did not suggest."""

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self.own: set[str] = set()

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        config = super().suggest(ask) or {}
        self.own.add(repr(dict(config)))
        return config

    def observe(self, observation: Observation) -> None:
        self.own.remove(repr(dict(observation.config)))
        self.own.add(repr(dict(observation.config)))
        super().observe(observation)


class CountsFeasible(Best):
    """Needs a trial that satisfies the constraints."""

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self.feasible: list[float] = []
        self.num_bound = 0

    def observe(self, observation: Observation) -> None:
        super().observe(observation)
        self.num_bound += bool(observation.violations)
        self.feasible += [observation.loss] * (observation.infeasibility == 0.0)

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        if self.num_bound:
            min(self.feasible)
        return super().suggest(ask)


BROKEN: list[tuple[Make, Check]] = [
    (CountsFeasible, ours.constraints_can_be_violated),
    (ExcludesEarlierTrials, ours.trials_of_an_earlier_search_can_come_first),
    (Divides, contract.losses_can_all_be_equal_or_infinite),
    (Deviates, contract.one_result_is_enough_to_continue),
    (RejectsOtherConfigurations, contract.configurations_can_come_from_elsewhere),
    (OmitsHyperparameter, contract.suggestions_are_configurations_of_the_space),
    (NeedsReports, contract.many_trials_can_start_before_the_first_report),
    (Shared, contract.same_seed_and_reports_give_the_same_suggestions),
    (SharedByCopies, contract.copy_continues_like_the_original),
    (IgnoresBegin, contract.begin_resets_the_searcher),
    (Checking, contract.check_has_no_side_effects),
    (DescribesObjects, contract.description_is_constant_json),
    (DescribesItsSearch, contract.description_is_constant_json),
    (Changes, contract.arguments_are_not_modified),
    (ReturnsItsState, contract.returned_configurations_can_be_modified),
    (IgnoresRollbacks, contract.rolled_back_reports_have_no_effect),
    (NeedsReportsAtTheEnd, contract.trials_can_end_without_reports),
    (Rounds, contract.losses_can_all_be_equal_or_infinite),
    (RaisesWhenExhausted, ours.exhausted_searcher_can_be_asked_again),
    (CountsSuggestions, contract.replayed_suggestions_restore_the_state),
    (Global, contract.global_random_state_is_not_used),
]


@pytest.mark.parametrize(("make", "check"), BROKEN, ids=lambda item: item.__name__)
def test_broken_searcher_is_detected(make: Make, check: Check) -> None:
    with pytest.raises((AssertionError, ArithmeticError, KeyError, ValueError, RuntimeError, TypeError)):
        check_searcher(make, [check])


@pytest.mark.parametrize("check", CHECKS_OF_OURS, ids=lambda check: check.__name__)
def test_correct_searcher_passes(check: Check) -> None:
    check_searcher(Best, [check])


def test_every_check_detects_a_broken_searcher() -> None:
    assert {check for _, check in BROKEN} == set(CHECKS_OF_OURS)
