"""CQR, BORE and forest search: what their forests say, and where they look; what costs less, if costs count."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from fanwise.testing.searcher_contract import begun
from fanwise.tune.schedulers import FIFOScheduler
from fanwise.tune.searchers import (
    Ask,
    BORESearcher,
    CQRSearcher,
    ForestSearcher,
    Observation,
    RandomSearcher,
    Searcher,
    TPESearcher,
)
from fanwise.tune.searchers.cqr import drawn, widths
from fanwise.tune.searchers.encoding import Floats
from fanwise.tune.searchers.forest import Forest, quantiles
from fanwise.tune.simulate import FunctionTable, simulate
from fanwise.tune.spaces import Space, uniform
from fanwise.tune.stopping import StoppingCriterion

SQUARE = Space({"x": uniform(0, 1), "y": uniform(0, 1)})
LEARNERS: list[Callable[..., Any]] = [CQRSearcher, BORESearcher, ForestSearcher]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def scattered(num: int, seed: int) -> tuple[Floats, Floats]:
    """Rows, and targets that scatter more on the right."""
    chance = rng(seed)
    features = chance.random((num, 1))
    return features, features[:, 0] * chance.standard_normal(num)


def part_held(answers: Floats, widths_L: Floats, targets: Floats) -> float:
    """How many targets lie between the quantiles 0.05 and 0.95."""
    answers = np.sort(answers, axis=1)
    low, high = (drawn(answers, widths_L, np.full(len(targets), level)) for level in (0.05, 0.95))
    return float(np.mean((low <= targets) & (targets <= high)))


def test_quantiles_hold_as_many_of_new_targets_as_they_say() -> None:
    features, targets = scattered(300, 1)
    new_features, new_targets = scattered(2000, 2)
    forest = Forest(features, targets, rng(), num_trees=32)
    answers = forest.means(new_features)
    found = widths(forest.out_of_bag(), targets)
    assert part_held(answers, found, new_targets) == pytest.approx(0.9, abs=0.05)
    assert part_held(answers, np.zeros(5), new_targets) < 0.82, "the forest alone is too sure, or this shows nothing"


def test_a_tree_says_nothing_of_rows_that_it_has_seen() -> None:
    features, targets = scattered(50, 3)
    unseen = Forest(features, targets, rng(), num_trees=16).out_of_bag()
    assert unseen.shape == (50, 16)
    assert 0.2 < np.mean(~np.isnan(unseen)) < 0.5  # (1 - 1/50)**50 = 0.36
    told = Forest(features, targets, rng(), num_trees=16).means(features)
    assert np.array_equal(np.where(np.isnan(unseen), np.nan, told), unseen, equal_nan=True)
    assert np.mean((told - targets[:, None]) ** 2, where=np.isnan(unseen)) < 1e-9


def test_few_targets_widen_nothing() -> None:
    features, targets = scattered(31, 4)
    assert not widths(Forest(features, targets, rng(), num_trees=8).out_of_bag(), targets).any()


def test_quantiles_leave_out_what_is_not_there() -> None:
    answers = np.array([[1.0, 2.0, 4.0], [5.0, 7.0, np.nan], [3.0, np.nan, np.nan], [np.nan] * 3])
    assert quantiles(answers, np.full(4, 0.75)).tolist()[:3] == [3.0, 6.5, 3.0]
    assert quantiles(answers, np.array([0.0, 1.0, 0.5, 0.5])).tolist()[:3] == [1.0, 7.0, 3.0]
    assert math.isnan(quantiles(answers, np.ones(4))[3])


def test_what_runs_counts_in_its_leaf_as_a_trial_that_came_out_as_the_lie() -> None:
    features, targets = scattered(40, 5)
    forest = Forest(features, targets, rng(), num_trees=8)
    here, far = features[:1], 1.0 - features[:1]
    before, after = forest.means(here), forest.means(here, np.repeat(here, 10_000, axis=0), 99.0)
    assert np.allclose(after, 99.0, atol=1.0)
    assert np.array_equal(forest.means(here, np.empty((0, 1)), 99.0), before)
    assert np.allclose(forest.means(far, here, 99.0), forest.means(far))


def one(number: int, config: Mapping[str, object], loss: float) -> Observation:
    """A report of one objective."""
    return Observation(number, config, 1, 1.0, (loss,), {"loss": loss})


def fed(make: Callable[[], Searcher], num: int = 40, seed: int = 0) -> Searcher:
    """After some trials that had their losses around (0.7, 0.2)."""
    searcher = begun(make, SQUARE, seed)
    for number in range(num):
        config = SQUARE.sample(Ask(number, number, SQUARE, seed=9).random)
        searcher.observe(one(number, config, bowl(config)))
        searcher.on_end(number, "Completed")
    return searcher


def bowl(config: Mapping[str, Any]) -> float:
    return float((config["x"] - 0.7) ** 2 + (config["y"] - 0.2) ** 2)


def sixteen(searcher: Searcher, *, tells: bool, seed: int = 0) -> list[tuple[float, float]]:
    """What it suggests to sixteen workers that ask one after the other; whether it is told of those before."""
    pending: dict[int, Mapping[str, object]] = {}
    for number in range(16):
        config = searcher.suggest(Ask(number, 100 + number, SQUARE, seed=seed, pending=dict(pending) if tells else {}))
        assert config is not None
        pending[100 + number] = config
    return [(config["x"], config["y"]) for config in pending.values()]  # type: ignore[misc]  # numbers


def nearest(points: list[tuple[float, float]]) -> float:
    """The mean distance of each point to the nearest other one."""
    found = np.array(points)
    between = np.linalg.norm(found[:, None] - found[None], axis=2)
    return float(np.sort(between, axis=1)[:, 1].mean())


@pytest.mark.parametrize("num_seeds", [2, pytest.param(12, marks=pytest.mark.soak)])
def test_sixteen_workers_at_once_get_configurations_that_are_spread(num_seeds: int) -> None:
    for make in LEARNERS:
        spread, crowded = [], []
        for seed in range(num_seeds):
            points = sixteen(fed(make), tells=True, seed=seed)
            assert len(set(points)) == 16
            spread.append(nearest(points))
            crowded.append(nearest(sixteen(fed(make), tells=False, seed=seed)))
        print(make, spread, crowded)
        assert np.mean(spread) > 1.2 * np.mean(crowded), make


@pytest.mark.parametrize("make", LEARNERS)
def test_it_looks_where_losses_are_small(make: Callable[[], Searcher]) -> None:
    searcher = fed(make)
    far = [math.dist(point, (0.7, 0.2)) for point in sixteen(searcher, tells=True)]
    assert np.median(far) < 0.25


@pytest.mark.parametrize("make", [*LEARNERS, TPESearcher])
def test_what_violates_a_constraint_is_left_however_small_its_loss(make: Callable[[], Searcher]) -> None:
    """The loss falls towards x = 1, but from x = 0.5 on a constraint is violated."""
    searcher = begun(make, SQUARE)
    for number in range(60):
        config: Mapping[str, Any] = SQUARE.sample(Ask(number, number, SQUARE, seed=9).random)
        over, loss = config["x"] - 0.5, -config["x"]
        searcher.observe(
            Observation(number, config, 1, 1.0, (loss,), {"loss": loss}, (over,), infeasibility=max(over, 0.0))
        )
        searcher.on_end(number, "Completed")
    assert 0.25 < np.median([x for x, _ in sixteen(searcher, tells=True)]) < 0.55


@pytest.mark.parametrize("make", [*LEARNERS, TPESearcher, lambda: ForestSearcher(cost_attr="cost")])
def test_of_two_objectives_both_count(make: Callable[[], Searcher]) -> None:
    """The first wants x = 0 and the second x = 1, and both y = 0."""
    searcher = begun(make, SQUARE)
    for number in range(60):
        config: Mapping[str, Any] = SQUARE.sample(Ask(number, number, SQUARE, seed=9).random)
        losses = config["x"] + config["y"], 1.0 - config["x"] + config["y"]
        searcher.observe(Observation(number, config, 1, 1.0, losses, {"cost": 1.0}))
        searcher.on_end(number, "Completed")
    points = sixteen(searcher, tells=True)
    assert np.median([y for _, y in points]) < 0.35
    assert 0.2 < np.mean([x > 0.5 for x, _ in points]) < 0.8


@pytest.mark.parametrize("make", LEARNERS)
def test_losses_of_any_size_give_the_same_suggestions(make: Callable[[], Searcher]) -> None:
    def suggested(scale: Callable[[float], float]) -> list[object]:
        searcher = begun(make, SQUARE)
        for number in range(40):
            config = SQUARE.sample(Ask(number, number, SQUARE, seed=9).random)
            searcher.observe(one(number, config, scale(bowl(config))))
            searcher.on_end(number, "Completed")
        return [searcher.suggest(Ask(number, 100 + number, SQUARE)) for number in range(3)]

    assert suggested(lambda loss: loss) == suggested(lambda loss: math.exp(50 * loss) * 1e6)


def found(searcher: Searcher, seed: int) -> float:
    def train(config: Mapping[str, Any], epoch: int) -> tuple[Mapping[str, object], float]:
        return {"loss": bowl(config)}, 1.0

    table = FunctionTable(train, {"x": uniform(0, 1), "y": uniform(0, 1), "max_epochs": 1})
    stop = StoppingCriterion(max_num_trials_completed=40)
    best = simulate(FIFOScheduler(searcher, metric="loss"), table, stop, seed=seed).best
    assert best is not None
    return best.value


@pytest.mark.parametrize("num_seeds", [1, pytest.param(9, marks=pytest.mark.soak)])
def test_they_find_better_configurations_than_random_search(num_seeds: int) -> None:
    by_chance = np.median([found(RandomSearcher(), seed) for seed in range(9)])
    for make in LEARNERS:
        losses = [found(make(num_trees=16), seed) for seed in range(num_seeds)]
        assert np.median(losses) < 0.5 * by_chance, make


@pytest.mark.parametrize("kind", [CQRSearcher, ForestSearcher])
def test_with_a_cost_it_prefers_what_is_cheap(kind: type[CQRSearcher] | type[ForestSearcher]) -> None:
    def cost_of(searcher: Searcher) -> float:
        for number in range(60):
            config: Mapping[str, Any] = SQUARE.sample(Ask(number, number, SQUARE, seed=9).random)
            # y does not matter to the loss, but one end of it is a hundred times as dear as the other.
            loss, elapsed_s = abs(config["x"] - 0.5), 10.0 * 100.0 ** config["y"]
            values = {"loss": loss, "elapsed_s": elapsed_s}
            searcher.observe(Observation(number, config, 1, 1.0, (loss,), values))
            searcher.on_end(number, "Completed")
        return float(np.mean([y for _, y in sixteen(searcher, tells=True)]))

    blind = np.mean([cost_of(begun(kind, SQUARE, seed)) for seed in range(2)])
    aware = np.mean([cost_of(begun(lambda: kind(cost_attr="elapsed_s"), SQUARE, seed)) for seed in range(2)])
    assert aware < 0.35 < blind


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"loss": 1.0}, r"trial 3 reported no 'elapsed_s', where cost_attr='elapsed_s' needs .* the report has 'loss'"),
        ({"loss": 1.0, "elapsed_s": 0}, r"reported elapsed_s=0, where"),
        ({"loss": 1.0, "elapsed_s": "3 s"}, r"reported elapsed_s='3 s'"),
        ({"loss": 1.0, "elapsed_s": math.inf}, r"reported elapsed_s=inf"),
    ],
)
def test_a_report_without_the_cost_is_refused(values: Mapping[str, object], text: str) -> None:
    searcher = begun(lambda: CQRSearcher(cost_attr="elapsed_s"), SQUARE)
    with pytest.raises(ValueError, match=text):
        searcher.observe(Observation(3, {"x": 0.5, "y": 0.5}, 1, 1.0, (1.0,), values))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: CQRSearcher(num_init=0), ValueError, "num_init must be at least 1, got 0"),
        (lambda: CQRSearcher(max_rows=3), ValueError, "max_rows must be at least 4, got 3"),
        (lambda: CQRSearcher(num_trees=0), ValueError, "num_trees must be at least 1, got 0"),
        (lambda: CQRSearcher(cost_attr=3), TypeError, "cost_attr must be the name of a reported value or None, got 3"),  # type: ignore[arg-type]
        (lambda: BORESearcher(gamma=0), ValueError, "gamma must be above 0 and below 1, got 0"),
        (lambda: BORESearcher(gamma=1.0), ValueError, "gamma must be above 0 and below 1, got 1"),
        (lambda: BORESearcher(gamma="0.2"), TypeError, "gamma must be a number from 0 to 1"),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Searcher], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()
