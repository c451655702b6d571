"""Parzen estimators: mixtures of product kernels as densities over configurations.

    density(x) = sum over trials n of weight_n * product over hyperparameters d of kernel_d(x_d; row_nd)

Kernels of ordered hyperparameters are normal distributions truncated to [0, 1]. For small finite domains, they are
tabulated and normalized. Kernels of choices are those of Aitchison and Aitken (1976). Densities are relative to the
uniform distribution of `Space.sample`. The prior of the space is one more component of the mixture.

If a hyperparameter does not exist in a trial, its kernel is its prior. A hyperparameter that does not exist in x is
omitted from the product.

Bandwidths follow Scott's rule: the standard deviation of the values times N^(-1 / (4 + D)).
"""

# C: points, N: trials, D: hyperparameters, K: values of a finite domain

import math
from typing import final

import numpy as np
from scipy.special import ndtr, ndtri

from .encoding import Encoder, Floats, Ints, Rows

_MAX_TABLE_SIZE = 64
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_UNIFORM_STD = 1e3  # a normal distribution with this standard deviation is almost uniform on [0, 1]
_UNIFORM_VARIANCE = 1 / 12
_MIN_PROBABILITY = 1e-300
_MIN_STD = 0.02
_MIN_STD_SHARES = 0.25  # minimum standard deviation on finite domains, in units of 1 / number of values
_BELOW_ONE = math.nextafter(1.0, 0.0)


@final
class _TruncatedNormals:
    """Normal distributions on [0, 1] as kernels of one hyperparameter: one per trial, and the last for the prior."""

    def __init__(self, units_N: Floats, std: float, center: float, prior_std: float) -> None:
        exists_N = ~np.isnan(units_N)
        self._centers = np.append(np.where(exists_N, units_N, center), center)
        self._stds = np.append(np.where(exists_N, std, prior_std), prior_std)
        self._probability_below = ndtr(-self._centers / self._stds)
        self._probability_inside = ndtr((1.0 - self._centers) / self._stds) - self._probability_below

    def log_density(self, units_C: Floats, indices_C: Ints) -> Floats:
        """Return the log densities, (C, N + 1). Points without the hyperparameter have a log density of 0."""
        z = (units_C[:, None] - self._centers) / self._stds
        log_density: Floats = -0.5 * z * z - (np.log(self._stds * self._probability_inside) + _LOG_SQRT_2PI)
        log_density[np.isnan(units_C)] = 0.0
        return log_density

    def sample(self, kernel_C: Ints, u_C: Floats) -> Floats:
        """Return a draw from each kernel, (C,). `kernel_C`: indices of kernels. `u_C`: uniform random numbers."""
        z_C = ndtri(self._probability_below[kernel_C] + u_C * self._probability_inside[kernel_C])
        return np.asarray(np.clip(self._centers[kernel_C] + z_C * self._stds[kernel_C], 0.0, _BELOW_ONE))


@final
class _Tables:
    """Tables of the probabilities of K values as kernels of one hyperparameter. Methods as in `_TruncatedNormals`.

    `probabilities` has one row per value, for the trials with this value, and the last row for the prior.
    """

    def __init__(self, indices_N: Ints, probabilities: Floats, shares_K: Floats, units_K: Floats) -> None:
        # Index -1 means that the hyperparameter does not exist in the trial. It selects the last row, the prior.
        self._rows = np.append(indices_N, -1)
        # Log densities relative to the shares. The last column is 0, for points without the hyperparameter.
        self._logs = np.pad(np.log(np.maximum(probabilities / shares_K, _MIN_PROBABILITY)), ((0, 0), (0, 1)))
        self._sums = probabilities.cumsum(axis=1)
        self._units_K = units_K

    def log_density(self, units_C: Floats, indices_C: Ints) -> Floats:
        return np.asarray(self._logs[self._rows[None, :], indices_C[:, None]])

    def sample(self, kernel_C: Ints, u_C: Floats) -> Floats:
        indices_C = (self._sums[self._rows[kernel_C]] <= u_C[:, None]).sum(axis=1)
        return np.asarray(self._units_K[np.minimum(indices_C, len(self._units_K) - 1)])


@final
class ParzenEstimator:
    """A mixture of one weighted kernel per trial, and one for the prior of the space."""

    def __init__(
        self,
        encoder: Encoder,
        rows_ND: Rows,
        weights_N: Floats,
        *,
        bandwidth_factor: float = 1.0,
        prior_weight: float = 1.0,
    ) -> None:
        self._encoder = encoder
        weights = np.append(weights_N, prior_weight)
        self._weights = weights / weights.sum()
        self._log_weights = np.log(self._weights)
        scott_factor = bandwidth_factor * max(1, len(rows_ND)) ** (-1.0 / (4 + encoder.num_dims))
        indices_ND = encoder.value_indices(rows_ND)
        self._kernels = [
            _make_kernels(encoder, d, rows_ND[:, d], indices_ND[:, d], scott_factor) for d in range(encoder.num_dims)
        ]

    def log_density(self, points_CD: Rows) -> Floats:
        """Return the log density of each point, (C,)."""
        indices_CD = self._encoder.value_indices(points_CD)
        logs = np.zeros((len(points_CD), len(self._weights))) + self._log_weights
        for d, kernels in enumerate(self._kernels):
            logs += kernels.log_density(points_CD[:, d], indices_CD[:, d])
        largest_C = logs.max(axis=1)
        return np.asarray(largest_C + np.log(np.exp(logs - largest_C[:, None]).sum(axis=1)))

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Draw rows from the density."""
        kernel_C = rng.choice(len(self._weights), size=count, p=self._weights)
        units = rng.random((count, len(self._kernels)))
        for d, kernels in enumerate(self._kernels):
            units[:, d] = kernels.sample(kernel_C, units[:, d])
        return self._encoder.snap(units)


def _make_kernels(
    encoder: Encoder, d: int, units_N: Floats, indices_N: Ints, scott_factor: float
) -> _TruncatedNormals | _Tables:
    domain, prior = encoder.domains[d], encoder.priors.get(d)
    num_values = domain.num_values
    center = 0.5 if prior is None else domain.to_unit(prior.center)
    prior_std = _UNIFORM_STD if prior is None else 1.0 - prior.confidence
    if not domain.ordered:
        assert num_values is not None, "unordered domains are finite"
        smoothing = num_values / (len(units_N) + num_values)
        identity = np.eye(num_values)
        uniform = np.full(num_values, 1.0 / num_values)
        prior_row = uniform
        if prior is not None:
            probability = max(prior.confidence, 1.0 / num_values)
            prior_row = np.full(num_values, (1.0 - probability) / max(1, num_values - 1))
            prior_row[int(center * num_values)] = probability
        rows = np.vstack(((1.0 - smoothing) * identity + smoothing * uniform, prior_row))
        return _Tables(indices_N, rows, uniform, encoder.value_units(d))
    std = scott_factor * _standard_deviation(units_N, center, prior_std)
    std = min(1.0, max(std, _MIN_STD, _MIN_STD_SHARES / num_values if num_values else 0.0))
    if num_values is None or num_values > _MAX_TABLE_SIZE:
        return _TruncatedNormals(units_N, std, center, prior_std)
    units_K = encoder.value_units(d)
    shares_K = np.diff(np.concatenate(([0.0], (units_K[1:] + units_K[:-1]) / 2, [1.0])))
    stds = np.append(np.full(num_values, std), prior_std)
    z = (units_K - np.append(units_K, center)[:, None]) / stds[:, None]
    weights = np.exp(-0.5 * z * z) * shares_K
    return _Tables(indices_N, weights / weights.sum(axis=1, keepdims=True), shares_K, units_K)


def _standard_deviation(units_N: Floats, center: float, prior_std: float) -> float:
    """Return the standard deviation of the values. The prior counts as one value."""
    units = units_N[~np.isnan(units_N)]
    prior_std = min(prior_std, math.sqrt(_UNIFORM_VARIANCE))
    mean = (units.sum() + center) / (len(units) + 1)
    total = ((units - mean) ** 2).sum() + prior_std**2 + (center - mean) ** 2
    return math.sqrt(total / (len(units) + 1))
