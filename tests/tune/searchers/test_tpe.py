"""TPE: where it looks, beside random search and beside itself without what it is told of running trials."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from fanwise.testing.searcher_contract import SPACES, begun
from fanwise.tune.searchers import Observation, RandomSearcher, Searcher, SuggestContext, TPESearcher
from fanwise.tune.searchers.encoding import Encoder, Rows
from fanwise.tune.searchers.parzen import ParzenEstimator
from fanwise.tune.space import Space, choice, loguniform, ordinal, parameter, randint, uniform

Config = Mapping[str, object]


def observed(trial_id: int, config: Config, loss: float, *more: float, infeasibility: float = 0.0) -> Observation:
    return Observation(trial_id, config, 1, 1.0, (loss, *more), {}, (infeasibility,), infeasibility)


def searched(searcher: Searcher, space: Space, loss: Callable[[Config], float], num_trials: int) -> list[Config]:
    """Trial after trial; the configurations."""
    configs: list[Config] = []
    for number in range(num_trials):
        config = searcher.suggest(SuggestContext(number, number, space))
        assert config is not None
        configs.append(config)
        searcher.observe(observed(number, config, loss(config)))
        searcher.on_end(number, "Completed")
    return configs


def number_of(config: Config, name: str) -> float:
    value = config[name]
    assert isinstance(value, int | float)
    return value


BOWL = Space(
    {"x": uniform(0, 1), "rate": loguniform(1e-4, 1), "n": randint(1, 100), "kind": choice(["a", "b", "c", "d"])}
)


def bowl(config: Config) -> float:
    x, n = number_of(config, "x"), number_of(config, "n")
    return (
        (x - 0.3) ** 2
        + (math.log10(number_of(config, "rate")) + 2) ** 2 / 16
        + ((n - 70) / 100) ** 2
        + 0.1 * (config["kind"] != "c")
    )


def test_it_finds_better_configurations_than_random_search() -> None:
    def best(make: Callable[[], Searcher], seed: int) -> float:
        return min(map(bowl, searched(begun(make, BOWL, seed), BOWL, bowl, 60)))

    assert sum(best(TPESearcher, seed) < best(RandomSearcher, seed) for seed in range(4)) >= 3


TREE = Space({
    "optimizer": choice(["sgd", "adam"]),
    "momentum": parameter(uniform(0, 1), when={"optimizer": "sgd"}),
    "beta": parameter(uniform(0, 1), when={"optimizer": "adam"}),
    "rate": loguniform(1e-4, 1),
})  # fmt: skip


def tree(config: Config) -> float:
    rate = (math.log10(number_of(config, "rate")) + 2) ** 2 / 8
    if config["optimizer"] == "sgd":
        return rate + (number_of(config, "momentum") - 0.9) ** 2
    return rate + 0.5 + (number_of(config, "beta") - 0.1) ** 2


def test_it_learns_of_hyperparameters_that_do_not_always_exist() -> None:
    configs = searched(begun(TPESearcher, TREE), TREE, tree, 80)
    late = configs[50:]
    assert sum(config["optimizer"] == "sgd" for config in late) > 20
    momenta = [number_of(config, "momentum") for config in late if "momentum" in config]
    assert np.median(np.abs(np.array(momenta) - 0.9)) < 0.1


def nearest(configs: list[Config], space: Space) -> float:
    """The mean distance of each to the nearest other."""
    rows = Encoder(space).rows(configs)
    distances = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(axis=2))
    np.fill_diagonal(distances, np.inf)
    return float(distances.min(axis=1).mean())


class IgnoresPending(Searcher):
    """TPE that is not told what runs."""

    def __init__(self) -> None:
        self.inner = TPESearcher()

    def begin(self, space: Space, seed: int) -> None:
        self.inner.begin(space, seed)

    def suggest(self, ask: SuggestContext) -> Config | None:
        return self.inner.suggest(SuggestContext(ask.number, ask.trial_id, ask.space, seed=ask.seed))

    def observe(self, observation: object) -> None:
        self.inner.observe(observation)  # type: ignore[arg-type]

    def on_end(self, trial_id: int, status: str) -> None:
        self.inner.on_end(trial_id, status)


PLANE = Space({"x": uniform(0, 1), "y": uniform(0, 1)})


def plane(config: Config) -> float:
    return (number_of(config, "x") - 0.3) ** 2 + (number_of(config, "y") - 0.6) ** 2


def sixteen_at_once(make: Callable[[], Searcher], seed: int, num_before: int) -> list[Config]:
    searcher = begun(make, PLANE, seed)
    searched(searcher, PLANE, plane, num_before)
    pending: dict[int, Config] = {}
    for number in range(num_before, num_before + 16):
        config = searcher.suggest(SuggestContext(number, number, PLANE, seed=seed, pending=dict(pending)))
        assert config is not None
        pending[number] = config
    return list(pending.values())


@pytest.mark.parametrize("num_before", [20, 150])
def test_sixteen_workers_that_ask_at_once_get_configurations_apart(num_before: int) -> None:
    told, untold = [], []
    for seed in range(4):
        configs = sixteen_at_once(TPESearcher, seed, num_before)
        assert len({repr(config) for config in configs}) == 16
        told.append(nearest(configs, PLANE))
        untold.append(nearest(sixteen_at_once(IgnoresPending, seed, num_before), PLANE))
    assert np.mean(told) > 1.3 * np.mean(untold)


def test_priors_of_the_space_draw_the_start_near_them_and_lose_against_results() -> None:
    space = Space({"x": parameter(uniform(0, 1), prior=0.8, confidence="high"), "y": uniform(0, 1)})
    configs = searched(
        begun(TPESearcher, space),
        space,
        lambda config: (number_of(config, "x") - 0.2) ** 2 + number_of(config, "y"),
        70,
    )
    start, late = configs[:10], configs[50:]
    assert sum(abs(number_of(config, "x") - 0.8) < 0.2 for config in start) >= 5
    assert np.median([abs(number_of(config, "x") - 0.2) for config in late]) < 0.15


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize(
    "losses",
    [[1.0] * 10, [0.5], [math.inf] * 12, [*([math.inf] * 6), *([1.0] * 6)]],
    ids=["equal", "one", "none", "half"],
)
def test_it_goes_on_whatever_came_out(name: str, losses: list[float]) -> None:
    space = SPACES[name]
    searcher = begun(lambda: TPESearcher(1), space)
    for number in range(30):
        config = searcher.suggest(SuggestContext(number, number, space))
        if config is None:
            assert number == space.num_configurations
            return
        space.check(config)
        searcher.observe(observed(number, config, losses[number % len(losses)]))
        searcher.on_end(number, "Failed" if number % 7 == 6 else "Completed")


def test_what_violates_a_constraint_is_worse_than_what_does_not() -> None:
    searcher = begun(TPESearcher, PLANE)
    configs = []
    for number in range(80):
        config = searcher.suggest(SuggestContext(number, number, PLANE))
        assert config is not None
        configs.append(config)
        x, y = number_of(config, "x"), number_of(config, "y")
        searcher.observe(observed(number, config, x + 0.1 * y, infeasibility=max(0.0, 0.5 - x)))  # x at least a half
        searcher.on_end(number, "Completed")
    late = [number_of(config, "x") for config in configs[50:]]
    assert 0.5 < np.median(late) < 0.7


def test_of_several_objectives_both_ends_of_the_front_are_found() -> None:
    space = Space({"x": uniform(0, 1), "y": uniform(0, 1)})
    searcher = begun(TPESearcher, space)
    configs = []
    for number in range(80):
        config = searcher.suggest(SuggestContext(number, number, space))
        assert config is not None
        configs.append(config)
        x, y = number_of(config, "x"), number_of(config, "y")
        searcher.observe(observed(number, config, x + y, 1 - x + y))
        searcher.on_end(number, "Completed")
    late = configs[40:]
    assert np.median([number_of(config, "y") for config in late]) < 0.15  # the front is y = 0
    assert {int(3 * number_of(config, "x")) for config in late} == {0, 1, 2}


class Density:
    """What a density is, of one hyperparameter, by adding up."""

    def __init__(self, domain: object, values: Sequence[object]) -> None:
        self.encoder = Encoder(Space({"x": domain}))
        rows = self.encoder.rows([{"x": value} for value in values])
        self.parzen = ParzenEstimator(self.encoder, rows, np.ones(len(rows)))

    def at(self, points: Rows) -> Rows:
        return np.exp(self.parzen.log_density(points))


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (uniform(0, 1), [0.0, 0.1, 0.9]),
        (randint(1, 1000), [1, 1000, 500]),
        (choice(["a", "b", "c"]), ["a", "a", "c"]),
        (ordinal([1, 2, 100]), [1, 100]),
        (randint(1, 8), [8]),
    ],
)
def test_a_density_adds_up_to_one(domain: object, values: Sequence[object]) -> None:
    density = Density(domain, values)
    even = density.encoder.snap((np.arange(20_000)[:, None] + 0.5) / 20_000)
    at_all = density.at(even)
    assert at_all.mean() == pytest.approx(1.0, abs=0.02)
    assert density.at(density.encoder.rows([{"x": values[0]}]))[0] > at_all.min()


def test_draws_are_as_likely_as_the_density_says() -> None:
    some: list[tuple[object, list[object]]] = [
        (uniform(0, 1), [0.2, 0.8]),
        (choice(["a", "b", "c"]), ["a"]),
        (randint(1, 8), [2, 3]),
    ]
    for domain, values in some:
        density = Density(domain, values)
        drawn = density.parzen.sample(20_000, np.random.default_rng(0))
        cells = np.floor(drawn[:, 0] * 4).astype(int)
        even = density.encoder.snap((np.arange(20_000)[:, None] + 0.5) / 20_000)
        expected = [density.at(even)[np.floor(even[:, 0] * 4).astype(int) == cell].sum() / 20_000 for cell in range(4)]
        np.testing.assert_allclose(np.bincount(cells, minlength=4) / 20_000, expected, atol=0.02)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="good_fraction must be a number from 0 to 1, got 2"):
        TPESearcher(good_fraction=2)
    with pytest.raises(ValueError, match="num_candidates must be at least 1, got 0"):
        TPESearcher(num_candidates=0)
