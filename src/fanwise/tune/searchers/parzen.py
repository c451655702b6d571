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
    """Normal distributions on [0, 1] as kernels of D hyperparameters: one per trial, and the last for the prior.

    A log density is quadratic in the unit, so the sum over the hyperparameters is a matrix product.
    """

    def __init__(self, units_ND: Floats, std_D: Floats, center_D: Floats, prior_std_D: Floats) -> None:
        exists_ND = ~np.isnan(units_ND)
        self._centers = np.vstack((np.where(exists_ND, units_ND, center_D), center_D))
        self._stds = np.vstack((np.where(exists_ND, std_D, prior_std_D), prior_std_D))
        self._probability_below = ndtr(-self._centers / self._stds)
        self._probability_inside = ndtr((1.0 - self._centers) / self._stds) - self._probability_below
        precisions = 1.0 / (self._stds * self._stds)
        linear = self._centers * precisions
        constants = -0.5 * self._centers * linear - np.log(self._stds * self._probability_inside) - _LOG_SQRT_2PI
        self._coefficients = np.concatenate((-0.5 * precisions, linear, constants), axis=1)

    def log_density(self, units_CD: Floats) -> Floats:
        """Return the sum of the log densities of the hyperparameters that exist in each point, (C, N + 1)."""
        exists_CD = ~np.isnan(units_CD)
        units_CD = np.where(exists_CD, units_CD, 0.0)
        return np.asarray(np.concatenate((units_CD * units_CD, units_CD, exists_CD), axis=1) @ self._coefficients.T)

    def sample(self, kernel_C: Ints, u_CD: Floats) -> Floats:
        """Return a draw from each kernel, (C, D). `kernel_C`: indices of kernels. `u_CD`: uniform random numbers."""
        z_CD = ndtri(self._probability_below[kernel_C] + u_CD * self._probability_inside[kernel_C])
        return np.asarray(np.clip(self._centers[kernel_C] + z_CD * self._stds[kernel_C], 0.0, _BELOW_ONE))


@final
class _Tables:
    """Tables of the probabilities of K values as kernels of one hyperparameter.

    `probabilities` has one row per value, for the trials with this value, and the last row for the prior.
    """

    def __init__(self, indices_N: Ints, probabilities: Floats, shares_K: Floats, units_K: Floats) -> None:
        # Index -1 means that the hyperparameter does not exist in the trial. It selects the last row, the prior.
        self._rows = np.append(indices_N, -1)
        # Log densities relative to the shares. The last column is 0, for points without the hyperparameter.
        self._logs = np.pad(np.log(np.maximum(probabilities / shares_K, _MIN_PROBABILITY)), ((0, 0), (0, 1)))
        self._sums = probabilities.cumsum(axis=1)
        self._units_K = units_K

    def log_density(self, indices_C: Ints) -> Floats:
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
        centers, prior_stds = _priors(encoder)
        stds = scott_factor * _standard_deviations(np.ascontiguousarray(rows_ND.T), centers, prior_stds)
        num_values = [domain.num_values for domain in encoder.domains]
        min_stds = [_MIN_STD_SHARES / num if num else 0.0 for num in num_values]
        stds = np.minimum(1.0, np.maximum(stds, np.maximum(_MIN_STD, min_stds)))
        is_normal = [
            domain.ordered and (num is None or num > _MAX_TABLE_SIZE)
            for domain, num in zip(encoder.domains, num_values, strict=True)
        ]
        self._normal_dims = np.flatnonzero(is_normal)
        of_normals = np.index_exp[..., self._normal_dims]
        self._normals = _TruncatedNormals(
            rows_ND[of_normals], stds[of_normals], centers[of_normals], prior_stds[of_normals]
        )
        table_dims = np.flatnonzero(np.logical_not(is_normal)).tolist()
        indices_ND = encoder.value_indices(rows_ND)
        self._tables = {
            d: _make_tables(encoder, d, indices_ND[:, d], float(stds[d]), float(centers[d]), float(prior_stds[d]))
            for d in table_dims
        }

    def log_density(self, points_CD: Rows) -> Floats:
        """Return the log density of each point, (C,)."""
        logs = self._normals.log_density(points_CD[:, self._normal_dims]) + self._log_weights
        indices_CD = self._encoder.value_indices(points_CD)
        for d, tables in self._tables.items():
            logs += tables.log_density(indices_CD[:, d])
        largest_C = logs.max(axis=1)
        return np.asarray(largest_C + np.log(np.exp(logs - largest_C[:, None]).sum(axis=1)))

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Draw rows from the density."""
        kernel_C = rng.choice(len(self._weights), size=count, p=self._weights)
        units = rng.random((count, self._encoder.num_dims))
        units[:, self._normal_dims] = self._normals.sample(kernel_C, units[:, self._normal_dims])
        for d, tables in self._tables.items():
            units[:, d] = tables.sample(kernel_C, units[:, d])
        return self._encoder.snap(units)


def _priors(encoder: Encoder) -> tuple[Floats, Floats]:
    """Return the centers and standard deviations of the priors, (D,)."""
    centers = np.full(encoder.num_dims, 0.5)
    stds = np.full(encoder.num_dims, _UNIFORM_STD)
    for d, prior in encoder.priors.items():
        centers[d], stds[d] = encoder.domains[d].to_unit(prior.center), 1.0 - prior.confidence
    return centers, stds


def _make_tables(encoder: Encoder, d: int, indices_N: Ints, std: float, center: float, prior_std: float) -> _Tables:
    domain = encoder.domains[d]
    num_values = domain.num_values
    assert num_values is not None, "tabulated domains are finite"
    if not domain.ordered:
        smoothing = num_values / (len(indices_N) + num_values)
        identity = np.eye(num_values)
        uniform = np.full(num_values, 1.0 / num_values)
        prior_row = uniform
        if (prior := encoder.priors.get(d)) is not None:
            probability = max(prior.confidence, 1.0 / num_values)
            prior_row = np.full(num_values, (1.0 - probability) / max(1, num_values - 1))
            prior_row[int(center * num_values)] = probability
        rows = np.vstack(((1.0 - smoothing) * identity + smoothing * uniform, prior_row))
        return _Tables(indices_N, rows, uniform, encoder.value_units(d))
    units_K = encoder.value_units(d)
    shares_K = np.diff(np.concatenate(([0.0], (units_K[1:] + units_K[:-1]) / 2, [1.0])))
    stds = np.append(np.full(num_values, std), prior_std)
    z = (units_K - np.append(units_K, center)[:, None]) / stds[:, None]
    weights = np.exp(-0.5 * z * z) * shares_K
    return _Tables(indices_N, weights / weights.sum(axis=1, keepdims=True), shares_K, units_K)


def _standard_deviations(units_DN: Floats, center_D: Floats, prior_std_D: Floats) -> Floats:
    """Return the standard deviation of the values of each hyperparameter. The prior counts as one value."""
    variance_D = np.minimum(prior_std_D, math.sqrt(_UNIFORM_VARIANCE)) ** 2
    exists_DN = ~np.isnan(units_DN)
    count_D = exists_DN.sum(axis=1)
    mean_D = (np.where(exists_DN, units_DN, 0.0).sum(axis=1) + center_D) / (count_D + 1)
    deviations_DN = np.where(exists_DN, units_DN - mean_D[:, None], 0.0)
    total_D = (deviations_DN**2).sum(axis=1) + variance_D + (center_D - mean_D) ** 2
    return np.asarray(np.sqrt(total_D / (count_D + 1)))
