"""TPE: conditional hyperparameters, priors, and densities. See test_forest.py for the suggestions."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from scipy.stats import norm

from fanwise.testing.searcher_checks import started
from fanwise.tune.searchers import Observation, Searcher, SuggestContext, TPESearcher
from fanwise.tune.searchers.encoding import Encoder, Rows
from fanwise.tune.searchers.parzen import ParzenEstimator
from fanwise.tune.space import Space, choice, loguniform, ordinal, parameter, randint, uniform

Config = Mapping[str, object]


def observed(trial_id: int, config: Config, loss: float, *more: float, infeasibility: float = 0.0) -> Observation:
    return Observation(trial_id, config, 1, 1.0, (loss, *more), {}, (infeasibility,), infeasibility)


def searched(searcher: Searcher, space: Space, loss: Callable[[Config], float], num_trials: int) -> list[Config]:
    """Return the configurations of consecutive trials."""
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


def test_tpe_learns_conditional_hyperparameters() -> None:
    configs = searched(started(TPESearcher, TREE), TREE, tree, 80)
    late = configs[50:]
    assert sum(config["optimizer"] == "sgd" for config in late) > 20
    momenta = [number_of(config, "momentum") for config in late if "momentum" in config]
    assert np.median(np.abs(np.array(momenta) - 0.9)) < 0.1


def test_first_suggestions_follow_the_priors_and_later_ones_the_results() -> None:
    space = Space({"x": parameter(uniform(0, 1), prior=0.8, confidence="high"), "y": uniform(0, 1)})
    configs = searched(
        started(TPESearcher, space),
        space,
        lambda config: (number_of(config, "x") - 0.2) ** 2 + number_of(config, "y"),
        70,
    )
    start, late = configs[:10], configs[50:]
    assert sum(abs(number_of(config, "x") - 0.8) < 0.2 for config in start) >= 5
    assert np.median([abs(number_of(config, "x") - 0.2) for config in late]) < 0.15


class Density:
    """The density of one hyperparameter, as a sum over the trials."""

    def __init__(self, domain: object, values: Sequence[object]) -> None:
        self.encoder = Encoder(Space({"x": domain}))
        rows = self.encoder.encode_all([{"x": value} for value in values])
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
def test_density_integrates_to_one(domain: object, values: Sequence[object]) -> None:
    density = Density(domain, values)
    even = density.encoder.snap((np.arange(20_000)[:, None] + 0.5) / 20_000)
    at_all = density.at(even)
    assert at_all.mean() == pytest.approx(1.0, abs=0.02)
    assert density.at(density.encoder.encode_all([{"x": values[0]}]))[0] > at_all.min()


def test_density_of_several_hyperparameters_is_a_mixture_of_products() -> None:
    space = Space({"x": uniform(0, 1), "y": parameter(loguniform(0.01, 1), when={"c": ["a"]}), "c": choice(["a", "b"])})
    encoder = Encoder(space)
    rows = encoder.sample(40, np.random.default_rng(0))
    density = ParzenEstimator(encoder, rows, np.ones(40))
    centers = np.vstack((rows, [[0.5, 0.5, np.nan]]))
    expected = []
    for x, y, c in rows:
        components = np.ones(41)
        for unit, column in ((x, 0), (y, 1)):
            values = np.append(rows[~np.isnan(rows[:, column]), column], 0.5)
            # The prior, of variance 1/12, counts as one value.
            std = 40 ** (-1 / 7) * math.sqrt(values.var() + 1 / 12 / len(values))
            exists = np.append(~np.isnan(rows[:, column]), False)
            low, high = ((edge - centers[exists, column]) / std for edge in (0, 1))
            kernels = np.ones(41)  # the prior is uniform
            kernels[exists] = norm.pdf(unit, centers[exists, column], std) / (norm.cdf(high) - norm.cdf(low))
            components *= 1.0 if np.isnan(unit) else kernels
        smoothing = 2 / 42
        same = np.where(centers[:, 2] == c, 2 - smoothing, smoothing)
        expected.append((components * np.where(np.isnan(centers[:, 2]), 1.0, same)).mean())
    np.testing.assert_allclose(np.exp(density.log_density(rows)), expected, rtol=1e-5)


def test_samples_follow_the_density() -> None:
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
