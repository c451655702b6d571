"""Forest search: what it expects to gain, and what constraints and failures are to it; more in test_cqr_and_bore.py."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fanwise.testing.searcher_contract import begun
from fanwise.tune.searchers import Ask, ForestSearcher, Observation
from fanwise.tune.searchers.forest_searcher import expected_improvement
from fanwise.tune.spaces import Space, uniform

SQUARE = Space({"x": uniform(0, 1), "y": uniform(0, 1)})


@pytest.mark.parametrize("mean", [-2.0, 0.0, 0.5, 3.0])
@pytest.mark.parametrize("deviation", [0.1, 1.0])
def test_the_expected_improvement_is_the_mean_of_all_that_may_come_below_the_best(
    mean: float, deviation: float
) -> None:
    best = 0.3
    whole, _ = quad(lambda loss: (best - loss) * norm.pdf(loss, mean, deviation), mean - 12 * deviation, best)
    exact = whole if mean - 12 * deviation < best else 0.0
    (found,) = expected_improvement(best, np.array([mean]), np.array([deviation]))
    assert found == pytest.approx(exact, abs=1e-9)


def test_of_equal_means_the_less_certain_one_gains_more() -> None:
    gain = expected_improvement(0.0, np.array([0.5, 0.5, 0.5]), np.array([0.0, 0.2, 0.4]))
    assert gain[0] == 0.0 < gain[1] < gain[2]


def suggestions(searcher: ForestSearcher, count: int = 12) -> list[Mapping[str, Any]]:
    pending: dict[int, Mapping[str, Any]] = {}
    for number in range(count):
        config = searcher.suggest(Ask(number, 100 + number, SQUARE, pending=dict(pending)))
        assert config is not None
        pending[100 + number] = config
    return list(pending.values())


def test_what_failed_is_worse_than_the_worst_loss() -> None:
    """In the left half every trial fails before it reports; the right half has losses."""
    searcher = begun(ForestSearcher, SQUARE)
    for number in range(60):
        config: Mapping[str, Any] = SQUARE.sample(Ask(number, number, SQUARE, seed=9).random)
        is_left = config["x"] < 0.5
        if not is_left:
            loss = 1.0 + abs(config["y"] - 0.5)
            searcher.observe(Observation(number, config, 1, 1.0, (loss,), {"loss": loss}))
        else:
            searcher.suggest(Ask(number, number, SQUARE, pending={number: config}))
        searcher.on_end(number, "Failed" if is_left else "Completed")
    assert isinstance(searcher, ForestSearcher)
    assert np.mean([config["x"] > 0.45 for config in suggestions(searcher)]) > 0.8
