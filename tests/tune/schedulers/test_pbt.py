"""Population-based training: the paper's toy problem, few workers, no checkpoints, failures, replay, and explore."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_search import PlayedSearch

from fanwise.testing.searcher_checks import SPACES
from fanwise.tune.rng import KeyedRandom
from fanwise.tune.schedulers import Decision, New, Status, Wait
from fanwise.tune.schedulers.pbt import PBT, explore, perturb
from fanwise.tune.searchers import Observation, SuggestContext
from fanwise.tune.space import (
    Space,
    choice,
    finrange,
    lograndint,
    loguniform,
    ordinal,
    quniform,
    randint,
    reverseloguniform,
    uniform,
)
from fanwise.tune.space.domains import Domain

SPACE = Space({"h0": uniform(0, 1), "h1": uniform(0, 1)})
CORNERS = [{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}]


def toy(state: Any, config: Mapping[str, object]) -> tuple[Any, Mapping[str, object]]:
    """Figure 2 of the paper: each hyperparameter alone lets one of two weights learn, and only both reach 1.2."""
    epoch, a, b = state or (0, 0.9, 0.9)
    a -= 0.02 * float(str(config["h0"])) * a
    b -= 0.02 * float(str(config["h1"])) * b
    return (epoch + 1, a, b), {"epoch": epoch + 1, "q": 1.2 - a * a - b * b}


def toy_pbt(*, population_size: int = 2, max_t: float = 200, interval: float = 4) -> PBT:
    return PBT(
        metric="q",
        mode="max",
        resource_attr="epoch",
        max_t=max_t,
        perturbation_interval=interval,
        population_size=population_size,
        points_to_evaluate=CORNERS,
    )


def test_population_reaches_a_value_that_no_single_configuration_reaches() -> None:
    cloning, independent = PlayedSearch(toy_pbt(), SPACE, toy), PlayedSearch(toy_pbt(interval=200), SPACE, toy)
    cloning.play()
    independent.play()
    assert cloning.best > 1.1
    assert 1.2 - 0.81 >= independent.best, "0.39 is the most that one hyperparameter alone can give"
    assert any(start.source is not None and start.checkpoint is not None for start in cloning.starts)


@pytest.mark.parametrize("n_workers", [1, 2, 3, 8])
@pytest.mark.parametrize("saves", [True, False])
def test_a_population_ends_with_every_member_at_the_maximum(n_workers: int, saves: bool) -> None:
    search = PlayedSearch(toy_pbt(population_size=6, max_t=40), SPACE, toy, n_workers=n_workers, saves=saves)
    search.play()
    ends = Counter(judged.status for judged in search.ends)
    assert ends[Status.COMPLETED] == 6 and ends[Status.FAILED] == 0
    assert search.finish is not None and search.finish.reason == "the scheduler has no more trials"


def pair(*epochs: tuple[int, int]) -> tuple[PBT, list[Decision]]:
    """Return a population of two, in which trial 0 is better, and its answers to reports of (trial, epoch)."""
    space = Space({"x": uniform(0, 1), "max_epochs": 4})
    scheduler = PBT(
        metric="loss",
        resource_attr="epoch",
        max_resource_attr="max_epochs",
        perturbation_interval=2,
        population_size=2,
        quantile_fraction=0.5,
    )
    scheduler.begin(space, 0)
    assert [scheduler.next(SuggestContext(i, i, space)) for i in (0, 1)] == [New(), New()]
    config = {"x": 0.5, "max_epochs": 4}
    return scheduler, [
        scheduler.on_report(Observation(trial_id, config, epoch, epoch, (0.1 + trial_id,), {}))
        for trial_id, epoch in epochs
    ]


def test_population_needs_no_more_epochs_on_one_worker_than_on_many() -> None:
    epochs = []
    for n_workers in (1, 6):
        search = PlayedSearch(toy_pbt(population_size=6, max_t=40), SPACE, toy, n_workers=n_workers)
        search.play()
        epochs.append(sum(map(len, search.values.values())))
    assert epochs[0] <= 1.2 * epochs[1], "a paused trial resumes from its checkpoint"
    assert epochs[0] >= 6 * 40 * 0.5


def test_exhausted_searcher_makes_the_population_smaller() -> None:
    from fanwise.tune.searchers import GridSearcher

    scheduler = PBT(GridSearcher(), metric="q", mode="max", max_t=10, perturbation_interval=2, population_size=8)
    search = PlayedSearch(scheduler, Space({"h0": choice([0.1, 0.2, 0.3]), "h1": 0.5}), toy, n_workers=4)
    search.play()
    assert Counter(judged.status for judged in search.ends)[Status.COMPLETED] == 3


def test_population_cut_short_by_a_limit_is_completed_after_a_resume() -> None:
    search = PlayedSearch(toy_pbt(population_size=4, max_t=40), SPACE, toy, n_workers=2, num_trials=3)
    search.play()
    assert len({start.trial_id for start in search.starts}) == 3
    stopped = {end.trial_id for end in search.ends if end.status is Status.STOPPED}
    assert {len(values) for trial_id, values in search.values.items() if trial_id not in stopped} == {40}
    search.resume(num_trials=100)
    search.play()
    assert sum(start.attempt == 0 and start.source is None for start in search.starts) == 4
    assert search.finish is not None and search.finish.reason == "the scheduler has no more trials"
    assert search.replayed() == search.actions


def test_searcher_without_a_suggestion_is_asked_again_later() -> None:
    scheduler = toy_pbt(population_size=2)
    scheduler.begin(SPACE, 0)
    assert scheduler.next(SuggestContext(0, 0, SPACE)) == New()
    assert scheduler.next(SuggestContext(1, 1, SPACE)) == New()
    assert scheduler.next(SuggestContext(2, 1, SPACE, no_new_configs=True)) == Wait()
    report = Observation(0, {"h0": 0.5, "h1": 0.5}, 4, 4.0, (0.0,), {})
    assert scheduler.on_report(report) is Decision.CONTINUE, "nobody waits whom it could give way to"
    assert scheduler.next(SuggestContext(3, 1, SPACE)) == New()


def test_the_objective_may_know_its_maximum() -> None:
    scheduler = PBT(
        metric="q", mode="max", resource_attr="epoch", max_resource_attr="max_epochs", perturbation_interval=4
    )
    space = Space({"h0": uniform(0, 1), "h1": uniform(0, 1), "max_epochs": 12})
    search = PlayedSearch(scheduler, space, toy, max_reports=12)
    search.play()
    returned = [judged for judged in search.ends if judged.status is Status.COMPLETED]
    assert len(returned) >= 1 and max(len(values) for values in search.values.values()) <= 13


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="quantile_fraction must be above 0 and at most 0"):
        PBT(metric="loss", max_t=9, perturbation_interval=1, quantile_fraction=0.6)
    with pytest.raises(ValueError, match="population_size must be at least 2, got 1"):
        PBT(metric="loss", max_t=9, perturbation_interval=1, population_size=1)
    with pytest.raises(ValueError, match="perturbation_interval must be above 0 and finite, got 0"):
        PBT(metric="loss", max_t=9, perturbation_interval=0)
    with pytest.raises(ValueError, match="one of max_t"):
        PBT(metric="loss", perturbation_interval=1)


@pytest.mark.parametrize(
    ("domain", "value", "down", "up"),
    [
        (uniform(0, 1), 0.5, 0.4, 0.6),
        (uniform(0, 1), 0.9, 0.72, 1.0),
        (uniform(-4, -1), -2.0, -1.6, -2.4),
        (loguniform(0.001, 1), 0.01, 0.008, 0.012),
        (reverseloguniform(0.5, 0.99), 0.9, 0.92, 0.88),
        (reverseloguniform(0.5, 0.99), 0.99, 0.99, 0.988),
        (randint(1, 100), 50, 40, 60),
        (randint(1, 100), 2, 1, 3),
        (randint(1, 100), 1, 1, 2),
        (randint(1, 100), 100, 80, 100),
        (randint(-9, -1), -2, -1, -3),
        (lograndint(8, 1024), 10, 8, 12),
        (quniform(0.5, 3.0, 0.5), 2.0, 1.5, 2.5),
        (finrange(0.5, 2.0, 4), 1.5, 1.0, 2.0),
        (ordinal(["small", "medium", "large"]), "medium", "small", "large"),
        (ordinal([1, 2, 4, 8]), 8, 4, 8),
        (choice(["a", "b"]), "b", "b", "b"),
    ],
)
def test_a_value_is_perturbed_on_the_scale_of_its_domain(
    domain: Domain, value: object, down: object, up: object
) -> None:
    got = [perturb(domain, value, 0.8), perturb(domain, value, 1.2)]
    assert got == [pytest.approx(one) if isinstance(one, float) else one for one in (down, up)]


@given(st.sampled_from(sorted(SPACES)), st.integers(0, 10**6), st.sampled_from([0.0, 0.25, 1.0]))
def test_explored_configuration_is_in_the_space(name: str, seed: int, resample: float) -> None:
    space = SPACES[name]
    config = space.sample(KeyedRandom(f"{seed}"))
    config_before = dict(config)
    got = explore(space, config, KeyedRandom(f"{seed}/explore"), resample)
    assert space.check(got) == got and config == config_before
    assert got == explore(space, config, KeyedRandom(f"{seed}/explore"), resample)


def test_explored_configuration_satisfies_its_conditions() -> None:
    config = {"nesterov": True, "momentum_kind": "heavy ball", "optimizer": "sgd", "learning_rate": 0.1}
    got = [explore(SPACES["conditions"], config, KeyedRandom(f"{k}"), 1.0) for k in range(20)]
    kinds = {"adam": {"optimizer", "beta", "learning_rate"}, "sgd": {"optimizer", "momentum_kind", "learning_rate"}}
    assert {one["optimizer"] for one in got} == {"adam", "sgd"}
    for one in got:
        also = {"nesterov"} if one.get("momentum_kind", "none") != "none" else set()
        assert set(one) == kinds[str(one["optimizer"])] | also


def test_zero_is_resampled_because_no_factor_changes_it() -> None:
    space = Space({"dropout": uniform(0, 1)})
    got = {explore(space, {"dropout": 0.0}, KeyedRandom(f"{k}"), 0.0)["dropout"] for k in range(20)}
    assert len(got) == 20 and all(0 < float(str(x)) < 1 for x in got)


def test_values_are_resampled_with_the_given_probability() -> None:
    space = Space({"x": uniform(0, 1000)})
    got = [explore(space, {"x": 100.0}, KeyedRandom(f"{k}"), 0.25)["x"] for k in range(2000)]
    drawn = sum(not any(math.isclose(float(str(x)), one) for one in (80.0, 120.0)) for x in got)
    assert abs(drawn / 2000 - 0.25) < 0.04
