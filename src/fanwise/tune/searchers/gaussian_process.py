"""Gaussian process regression, and the expected improvement.

The kernel is Matern 5/2 with one length scale per hyperparameter. Length scales, signal and noise maximize the
posterior density under lognormal priors (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
sections 4.2 and 5.4). The median length scale grows with the number of hyperparameters, as in Hvarfner et al., arXiv
2402.02229.
"""

# N: observations, C: points, P: pending points, F: features, D: hyperparameters

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import cache
from typing import Any, final

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.optimize import minimize
from scipy.special import erfcx, ndtr
from threadpoolctl import ThreadpoolController

from .encoding import Floats, Ints

_SQRT5 = math.sqrt(5.0)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_MEDIAN_LENGTH_SCALE = 0.5  # of a space with one hyperparameter, in units of the feature's range
_LOG_NOISE = -4.0  # median variance of the noise, as a share of the variance of the targets
_MIN_NOISE = 1e-5
_MIN_VARIANCE = 1e-12
_MAX_ITERATIONS = 40
_blas_lock = threading.Lock()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Limit BLAS to one thread, so that results do not depend on the number of cores, which the trials need."""
    with _blas_lock, _blas_controller().limit(limits=1, user_api="blas"):
        yield


@cache
def _blas_controller() -> ThreadpoolController:
    return ThreadpoolController()


@final
class GaussianProcess:
    """The posterior of a function, given noisy observations.

    Args:
        features_NF: observed points.
        targets_N: observed values. Finite.
        groups_F: number of the hyperparameter that each feature belongs to, from 0. Features of one hyperparameter
            share a length scale.
    """

    def __init__(self, features_NF: Floats, targets_N: Floats, groups_F: Ints) -> None:
        self._mean = float(targets_N.mean())
        self._std = float(targets_N.std()) or 1.0
        self._features = features_NF
        self._targets = (targets_N - self._mean) / self._std
        log_scales_D, log_noise, log_signal = _most_likely_parameters(features_NF, self._targets, groups_F)
        self._inverse_scales = np.exp(-log_scales_D)[groups_F]
        self._noise, self._signal = math.exp(log_noise) + _MIN_NOISE, math.exp(log_signal)
        self._condition(features_NF, self._targets)

    def add_pending(self, features_PF: Floats) -> "GaussianProcess":
        """Return a copy in which each pending point is observed with its predicted value ("kriging believer")."""
        posterior = copy(self)
        if len(features_PF):
            predictions = self._kernel(features_PF, self._features) @ self._weights
            features = np.concatenate((self._features, features_PF))
            posterior._condition(features, np.concatenate((self._targets, predictions)))
        return posterior

    def predict(self, features_CF: Floats) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the function at points, (C,) each."""
        covariances = self._kernel(features_CF, self._features)
        explained = solve_triangular(self._cholesky, covariances.T, lower=True, check_finite=False)
        variances = np.maximum(self._signal - (explained * explained).sum(axis=0), _MIN_VARIANCE)
        return covariances @ self._weights * self._std + self._mean, np.sqrt(variances) * self._std

    def _condition(self, features: Floats, targets: Floats) -> None:
        covariances = self._kernel(features, features)
        covariances[np.diag_indices(len(features))] += self._noise
        self._features = features
        self._cholesky = np.linalg.cholesky(covariances)
        self._weights = cho_solve((self._cholesky, True), targets, check_finite=False)

    def _kernel(self, first: Floats, second: Floats) -> Floats:
        first, second = first * self._inverse_scales, second * self._inverse_scales
        squares = (first * first).sum(axis=1)[:, None] + (second * second).sum(axis=1) - 2 * first @ second.T
        distances = np.sqrt(np.maximum(squares, 0.0))
        return np.asarray(self._signal * _matern(distances))


def _matern(distances: Floats) -> Floats:
    return np.asarray((1 + _SQRT5 * distances + 5 / 3 * distances * distances) * np.exp(-_SQRT5 * distances))


def _most_likely_parameters(features_NF: Floats, targets_N: Floats, groups_F: Ints) -> tuple[Floats, float, float]:
    """Return the logarithms of length scales, (D,), of the noise variance and of the signal variance."""
    num_dims = int(groups_F.max(initial=-1)) + 1
    size = len(targets_N)
    squares = np.zeros((num_dims, size, size))
    for feature_N, group in zip(features_NF.T, groups_F, strict=True):
        squares[group] += np.subtract.outer(feature_N, feature_N) ** 2
    squares_DM = squares.reshape(num_dims, size * size)
    median = math.log(_MEDIAN_LENGTH_SCALE) + 0.25 * math.log(max(num_dims, 1))
    start = np.array([median] * num_dims + [_LOG_NOISE, 0.0])
    bounds = [(math.log(0.02), math.log(50.0))] * num_dims + [(-14.0, 1.0), (-3.0, 3.0)]

    def loss_and_gradient(parameters: Floats) -> tuple[float, Floats]:
        """Return the negative log posterior density without constants, and its gradient."""
        inverse_squares_D = np.exp(-2 * parameters[:num_dims])
        noise, signal = np.exp(parameters[num_dims:])
        distances = np.sqrt((inverse_squares_D @ squares_DM).reshape(size, size))
        signals = signal * _matern(distances)
        covariances = signals.copy()
        covariances[np.diag_indices(size)] += noise + _MIN_NOISE
        cholesky, is_singular = dpotrf(covariances, lower=1)
        if is_singular:
            return 1e10, np.zeros_like(parameters)
        weights_N = cho_solve((cholesky, True), targets_N, check_finite=False)
        inverse = dpotri(cholesky, lower=1)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        deviations = parameters - start
        log_determinant = 2 * np.log(cholesky.diagonal()).sum()
        loss = 0.5 * (targets_N @ weights_N + log_determinant + deviations @ deviations)
        # Twice the derivative by each covariance.
        slopes = inverse - np.outer(weights_N, weights_N)
        slopes_by_square = slopes * signal * (5 / 3) * (1 + _SQRT5 * distances) * np.exp(-_SQRT5 * distances)
        gradient = deviations
        gradient[:num_dims] += 0.5 * inverse_squares_D * (squares_DM @ slopes_by_square.ravel())
        gradient[num_dims] += 0.5 * noise * slopes.trace()
        gradient[num_dims + 1] += 0.5 * (slopes * signals).sum()
        return float(loss), gradient

    result: Any = minimize(
        loss_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _MAX_ITERATIONS}
    )
    return result.x[:num_dims], float(result.x[num_dims]), float(result.x[num_dims + 1])


def log_expected_improvement(best: float, mean_C: Floats, std_C: Floats) -> Floats:
    """Return the logarithm of the expected improvement below `best` of normal distributions.

    The expected improvement is by Jones et al. (1998, equation 15). The logarithm also orders points whose expected
    improvement underflows (Ament et al., arXiv 2310.20708).
    """
    z_C = (best - mean_C) / std_C
    near_C, far_C = np.maximum(z_C, -1.0), np.minimum(z_C, -1.0)
    log_near_C = np.log(np.exp(-0.5 * near_C * near_C - _LOG_SQRT_2PI) + near_C * ndtr(near_C))
    share_C = 1.0 + far_C * math.sqrt(math.pi / 2) * erfcx(-far_C / math.sqrt(2))
    log_far_C = np.log(np.maximum(share_C, 1e-16)) - 0.5 * far_C * far_C - _LOG_SQRT_2PI
    return np.asarray(np.log(std_C) + np.where(z_C > -1.0, log_near_C, log_far_C))
