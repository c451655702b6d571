"""The Gaussian process and the expected improvement. See test_forest.py for the suggestions."""

import math
import threading
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import cho_factor
from scipy.optimize import check_grad, minimize
from scipy.stats import multivariate_normal, norm
from threadpoolctl import threadpool_info

from fanwise.tune.searchers import gaussian_process
from fanwise.tune.searchers.encoding import Encoder, Floats
from fanwise.tune.searchers.gaussian_process import GaussianProcess, log_expected_improvement, single_threaded_blas
from fanwise.tune.space import Space, choice, parameter, uniform

GROUPS = np.array([0, 1, 2, 2])


def noisy_wave(num: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Points with four features, and values that depend on the first one."""
    rng = np.random.default_rng(seed)
    features = rng.random((num, 4))
    return features, np.sin(6 * features[:, 0]) + 0.01 * rng.standard_normal(num)


def test_predictions_are_close_to_the_function_and_certain_only_near_observations() -> None:
    features, targets = noisy_wave(60)
    model = GaussianProcess(features, targets, GROUPS)
    points = np.random.default_rng(1).random((50, 4))
    mean = model.predict(points)[0]
    assert np.abs(mean - np.sin(6 * points[:, 0])).max() < 0.2
    assert model.predict(features)[1].max() < 0.1 < model.predict(features + 5.0)[1].min()


def test_parameters_have_the_largest_posterior_density(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is the negative log density up to a constant, and its gradient is that of finite differences."""
    features, targets = noisy_wave(12)
    targets = (targets - targets.mean()) / targets.std()
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(
        gaussian_process,
        "minimize",
        lambda loss, start, **rest: arguments.update(loss=loss, start=start) or minimize(loss, start, **rest),
    )
    log_scales, log_noise, log_signal = gaussian_process._most_likely_parameters(features, targets, GROUPS)
    loss, start = arguments["loss"], arguments["start"]
    best = np.array([*log_scales, log_noise, log_signal])

    def negative_log_density(parameters: Floats) -> float:
        scales = np.exp(parameters[:3])[GROUPS]
        distances = np.linalg.norm((features[:, None] - features) / scales, axis=2)
        covariances = np.exp(parameters[4]) * (1 + math.sqrt(5) * distances + 5 / 3 * distances**2)
        covariances = covariances * np.exp(-math.sqrt(5) * distances) + np.eye(12) * (np.exp(parameters[3]) + 1e-5)
        likelihood = multivariate_normal(np.zeros(12), covariances).logpdf(targets)
        return float(-likelihood - norm.logpdf(parameters, start).sum())

    for parameters in (start, best, start + np.array([0.5, -0.5, 1.0, -1.0, 0.3])):
        expected = negative_log_density(parameters) - negative_log_density(start)
        assert loss(parameters)[0] - loss(start)[0] == pytest.approx(expected, abs=1e-8)
        assert check_grad(lambda x: loss(x)[0], lambda x: loss(x)[1], parameters) < 1e-4
    assert loss(best)[0] < loss(start)[0]


def test_pending_points_reduce_the_deviation_and_keep_the_mean() -> None:
    features, targets = noisy_wave(20)
    model = GaussianProcess(features, targets, GROUPS)
    points = np.random.default_rng(1).random((3, 4))
    mean, std = model.predict(points)
    pending_mean, pending_std = model.add_pending(points).predict(points)
    assert np.allclose(pending_mean, mean, atol=0.05)
    assert (pending_std < 0.8 * std).all()
    assert np.array_equal(model.predict(points), (mean, std))
    assert np.array_equal(model.add_pending(np.empty((0, 4))).predict(points), (mean, std))


def test_equal_targets_and_repeated_points_are_no_error() -> None:
    model = GaussianProcess(np.full((8, 4), 0.5), np.ones(8), GROUPS)
    mean, std = model.predict(np.full((1, 4), 0.5))
    assert mean[0] == pytest.approx(1.0) and np.isfinite(std[0])


def test_features_of_one_hyperparameter_share_a_group() -> None:
    space = {"x": uniform(0, 1), "kind": choice(["a", "b"]), "y": parameter(uniform(0, 1), when={"kind": "a"})}
    encoder = Encoder(Space(space))
    assert encoder.feature_groups().tolist() == [0, 1, 1, 2, 2]
    assert encoder.features(encoder.sample(3, np.random.default_rng(0))).shape == (3, 5)


@pytest.mark.parametrize("mean", [-2.0, 0.0, 0.5, 3.0])
@pytest.mark.parametrize("deviation", [0.1, 1.0])
def test_expected_improvement_equals_the_integral(mean: float, deviation: float) -> None:
    best = 0.3
    result = float(np.exp(log_expected_improvement(best, np.array([mean]), np.array([deviation])))[0])
    whole, _ = quad(lambda loss: (best - loss) * norm.pdf(loss, mean, deviation), mean - 12 * deviation, best)
    assert result == pytest.approx(whole if mean - 12 * deviation < best else 0.0, abs=1e-9)


def test_expected_improvement_orders_points_where_it_underflows() -> None:
    deviations = np.array([1e-6, 1e-3, 0.01, 0.1, 1.0, 10.0])
    logs = log_expected_improvement(0.0, np.full(6, 5.0), deviations)
    assert np.isfinite(logs).all() and (np.diff(logs) > 0).all()
    assert (np.diff(log_expected_improvement(0.0, np.array([5.0, 4.0, 1.0, 0.0, -1.0]), np.full(5, 1e-6))) > 0).all()


def test_blas_has_one_thread_within_the_block_and_as_many_as_before_after_it() -> None:
    def num_threads() -> list[int]:
        cho_factor(np.eye(2))
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    before, within = num_threads(), []

    def enter() -> None:
        with single_threaded_blas():
            within.append(num_threads())

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(np.ravel(within)) == {1} and num_threads() == before
