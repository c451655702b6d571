"""The forest, and the suggestions of the searchers with a model (GP, forest and TPE)."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from fanwise.testing.searcher_checks import started
from fanwise.tune.schedulers import FIFO
from fanwise.tune.searchers import (
    ForestSearcher,
    GPSearcher,
    Observation,
    RandomSearcher,
    Searcher,
    SuggestContext,
    TPESearcher,
)
from fanwise.tune.searchers.encoding import Floats
from fanwise.tune.searchers.with_sklearn import Forest
from fanwise.tune.simulate import FunctionTable, simulate
from fanwise.tune.space import Space, uniform
from fanwise.tune.stopping import StoppingCriterion

SQUARE = Space({"x": uniform(0, 1), "y": uniform(0, 1)})


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def scattered(num: int, seed: int) -> tuple[Floats, Floats]:
    """Rows, and targets that scatter more on the right."""
    chance = rng(seed)
    features = chance.random((num, 1))
    return features, features[:, 0] * chance.standard_normal(num)


def test_running_trial_counts_in_its_leaf_with_the_assumed_loss() -> None:
    features, targets = scattered(40, 5)
    forest = Forest(features, targets, rng(), num_trees=8)
    near, far = features[:1], 1.0 - features[:1]
    before, after = forest.predict(near), forest.predict(near, np.repeat(near, 10_000, axis=0), 99.0)
    assert np.allclose(after, 99.0, atol=1.0)
    assert np.array_equal(forest.predict(near, np.empty((0, 1)), 99.0), before)
    assert np.allclose(forest.predict(far, near, 99.0), forest.predict(far))


def report(number: int, config: Mapping[str, object], loss: float) -> Observation:
    return Observation(number, config, 1, 1.0, (loss,), {"loss": loss})


def bowl(config: Mapping[str, Any]) -> float:
    return float((config["x"] - 0.7) ** 2 + (config["y"] - 0.2) ** 2)


def sixteen(searcher: Searcher) -> list[tuple[float, float]]:
    """Return the suggestions for sixteen trials that run at the same time."""
    pending: dict[int, Mapping[str, object]] = {}
    for number in range(16):
        config = searcher.suggest(SuggestContext(number, 100 + number, SQUARE, pending=dict(pending)))
        assert config is not None
        pending[100 + number] = config
    return [(config["x"], config["y"]) for config in pending.values()]  # type: ignore[misc]  # numbers


@pytest.mark.parametrize("make", [GPSearcher, ForestSearcher, TPESearcher])
def test_suggestions_avoid_regions_that_violate_a_constraint(make: Callable[[], Searcher]) -> None:
    """The loss falls towards x = 1, but from x = 0.5 on a constraint is violated."""
    searcher = started(make, SQUARE)
    for number in range(60):
        config: Mapping[str, Any] = SQUARE.sample(SuggestContext(number, number, SQUARE, seed=9).random)
        over, loss = config["x"] - 0.5, -config["x"]
        searcher.observe(
            Observation(number, config, 1, 1.0, (loss,), {"loss": loss}, (over,), infeasibility=max(over, 0.0))
        )
        searcher.on_end(number, "Completed")
    assert 0.25 < np.median([x for x, _ in sixteen(searcher)]) < 0.55


@pytest.mark.parametrize("make", [GPSearcher, ForestSearcher, TPESearcher])
def test_suggestions_improve_both_objectives(make: Callable[[], Searcher]) -> None:
    """The first wants x = 0 and the second x = 1, and both y = 0."""
    searcher = started(make, SQUARE)
    for number in range(60):
        config: Mapping[str, Any] = SQUARE.sample(SuggestContext(number, number, SQUARE, seed=9).random)
        losses = config["x"] + config["y"], 1.0 - config["x"] + config["y"]
        searcher.observe(Observation(number, config, 1, 1.0, losses, {}))
        searcher.on_end(number, "Completed")
    points = sixteen(searcher)
    assert np.median([y for _, y in points]) < 0.35
    assert 0.1 < np.mean([x > 0.5 for x, _ in points]) < 0.9


@pytest.mark.parametrize("make", [GPSearcher, ForestSearcher])
def test_suggestions_depend_only_on_the_order_of_losses(make: Callable[[], Searcher]) -> None:
    def suggested(scale: Callable[[float], float]) -> list[object]:
        searcher = started(make, SQUARE)
        for number in range(40):
            config = SQUARE.sample(SuggestContext(number, number, SQUARE, seed=9).random)
            searcher.observe(report(number, config, scale(bowl(config))))
            searcher.on_end(number, "Completed")
        return [searcher.suggest(SuggestContext(number, 100 + number, SQUARE)) for number in range(3)]

    assert suggested(lambda loss: loss) == suggested(lambda loss: math.exp(50 * loss) * 1e6)


def best_loss(searcher: Searcher, seed: int) -> float:
    def train(config: Mapping[str, Any], epoch: int) -> tuple[Mapping[str, object], float]:
        return {"loss": bowl(config)}, 1.0

    table = FunctionTable(train, {"x": uniform(0, 1), "y": uniform(0, 1), "max_epochs": 1})
    stop = StoppingCriterion(max_num_trials_completed=40)
    best = simulate(FIFO(searcher, metric="loss"), table, stop, seed=seed).best
    assert best is not None
    return best.value


@pytest.mark.parametrize(
    "make", [GPSearcher, lambda: ForestSearcher(num_trees=16), TPESearcher], ids=["gp", "forest", "tpe"]
)
@pytest.mark.parametrize("num_seeds", [1, pytest.param(9, marks=pytest.mark.soak)])
def test_searcher_with_a_model_finds_better_configurations_than_random_search(
    make: Callable[[], Searcher], num_seeds: int
) -> None:
    by_chance = np.median([best_loss(RandomSearcher(), seed) for seed in range(9)])
    losses = [best_loss(make(), seed) for seed in range(num_seeds)]
    assert np.median(losses) < 0.5 * by_chance


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: GPSearcher(num_candidates=0), ValueError, "num_candidates must be at least 1, got 0"),
        (lambda: ForestSearcher(num_init=0), ValueError, "num_init must be at least 1, got 0"),
        (lambda: ForestSearcher(max_rows=3), ValueError, "max_rows must be at least 4, got 3"),
        (lambda: ForestSearcher(num_trees=0), ValueError, "num_trees must be at least 1, got 0"),
        (lambda: TPESearcher(good_fraction=2), ValueError, "good_fraction must be a number from 0 to 1, got 2"),
        (lambda: TPESearcher(num_candidates=0), ValueError, "num_candidates must be at least 1, got 0"),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Searcher], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("make", [GPSearcher, ForestSearcher, TPESearcher])
def test_failed_trials_count_as_worse_than_the_worst_loss(make: Callable[[], Searcher]) -> None:
    """Every trial of the left half fails before it reports."""
    searcher = started(make, SQUARE)
    for number in range(60):
        config: Mapping[str, Any] = SQUARE.sample(SuggestContext(number, number, SQUARE, seed=9).random)
        is_left = config["x"] < 0.5
        if not is_left:
            loss = 1.0 + abs(config["y"] - 0.5)
            searcher.observe(Observation(number, config, 1, 1.0, (loss,), {"loss": loss}))
        else:
            searcher.suggest(SuggestContext(number, number, SQUARE, pending={number: config}))
        searcher.on_end(number, "Failed" if is_left else "Completed")
    assert np.mean([x > 0.45 for x, _ in sixteen(searcher)]) > 0.8
