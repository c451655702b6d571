"""Parzen estimators: a density over configurations, a mixture of one product of kernels around each of some trials.

    density(x) = sum over trials n of weight_n * product over hyperparameters d of kernel_d(x_d; row_nd)

The kernel of an ordered hyperparameter is a normal distribution on its part of the unit cube, cut off at the ends; of
one with few values it is taken at each value and normalised over them. Of a choice it gives the trial's own category
more than the others (Aitchison and Aitken). All densities are relative to how `Space.sample` draws.

What does not exist in a trial has no kernel there: its prior stands in, which is even, or the one of the space. So a
space with conditions needs no groups: trials with and without a hyperparameter are parts of one density, and what does
not exist in x is left out of the product. One more part of the mixture is the prior of everything, so that nothing is
impossible.

The bandwidths come from the trials: in each hyperparameter the deviation of its values, smaller the more trials there
are (Scott's rule), so that one that does not matter stays wide while another becomes narrow.
"""

# C: points that are asked about, N: trials, D: hyperparameters, K: values of one

import math
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
from scipy.special import ndtr, ndtri

from .encoding import Encoder, Floats, Ints, Rows

_MOST_TABLED = 64
_LOG_ROOT = 0.5 * math.log(2 * math.pi)
_EVEN = 1e3  # the deviation of a bell that is as good as even
_EVEN_VARIANCE = 1 / 12
_SMALLEST = 1e-300
_NARROWEST = 0.02  # the smallest deviation: what is nearer than that is hardly ever different
_FEWEST_SHARES = 0.25  # the smallest deviation, in shares of a hyperparameter whose values can be counted
_LARGEST = math.nextafter(1.0, 0.0)


class _Kernels(Protocol):
    """The kernels of one hyperparameter around N trials, and, as the last one, its prior."""

    def log_density(self, units_C: Floats, ranks_C: Ints) -> Floats:
        """Of every point by every kernel, (C, N + 1); 0 where the hyperparameter does not exist in the point."""

    def sample(self, kernel_C: Ints, u_C: Floats) -> Floats:
        """A number in [0, 1) by each of these kernels, out of even ones."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Bells:
    """Normal distributions, cut off at 0 and 1."""

    centers_N: Floats
    deviations_N: Floats
    below_N: Floats  # how much of each is below 0
    inside_N: Floats  # and in between

    def log_density(self, units_C: Floats, ranks_C: Ints) -> Floats:
        z = (units_C[:, None] - self.centers_N) / self.deviations_N
        found: Floats = -0.5 * z * z - (np.log(self.deviations_N * self.inside_N) + _LOG_ROOT)
        found[np.isnan(units_C)] = 0.0
        return found

    def sample(self, kernel_C: Ints, u_C: Floats) -> Floats:
        z_C = ndtri(self.below_N[kernel_C] + u_C * self.inside_N[kernel_C])
        found: Floats = np.clip(self.centers_N[kernel_C] + z_C * self.deviations_N[kernel_C], 0.0, _LARGEST)
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """A probability for each of K values, in one table: a row for a trial with each value, and last the prior's."""

    rows_N: Ints
    logs_KK: Floats  # relative to the shares; a last column of zeros is for what does not exist
    sums_KK: Floats  # the probabilities, added up
    middles_K: Floats

    def log_density(self, units_C: Floats, ranks_C: Ints) -> Floats:
        found: Floats = self.logs_KK[self.rows_N[None, :], ranks_C[:, None]]
        return found

    def sample(self, kernel_C: Ints, u_C: Floats) -> Floats:
        ranks_C = (self.sums_KK[self.rows_N[kernel_C]] <= u_C[:, None]).sum(axis=1)
        found: Floats = self.middles_K[np.minimum(ranks_C, len(self.middles_K) - 1)]
        return found


def _bells(units_N: Floats, deviation: float, center: float, of_prior: float) -> _Bells:
    exists_N = ~np.isnan(units_N)
    centers_N = np.append(np.where(exists_N, units_N, center), center)
    deviations_N = np.append(np.where(exists_N, deviation, of_prior), of_prior)
    below_N = ndtr(-centers_N / deviations_N)
    return _Bells(centers_N, deviations_N, below_N, ndtr((1.0 - centers_N) / deviations_N) - below_N)


def _table(ranks_N: Ints, probabilities_KK: Floats, shares_K: Floats, middles_K: Floats) -> _Tables:
    """`probabilities_KK`: K + 1 rows."""
    logs_KK = np.pad(np.log(np.maximum(probabilities_KK / shares_K, _SMALLEST)), ((0, 0), (0, 1)))
    # A rank of -1, what does not exist in a trial, is the last row: the prior's.
    return _Tables(np.append(ranks_N, -1), logs_KK, probabilities_KK.cumsum(axis=1), middles_K)


def _bell_rows(middles_K: Floats, shares_K: Floats, deviations: Floats, centers: Floats) -> Floats:
    """The probabilities of the values by bells around some centres."""
    z = (middles_K - centers[:, None]) / deviations[:, None]
    weights = np.exp(-0.5 * z * z) * shares_K
    rows: Floats = weights / weights.sum(axis=1, keepdims=True)
    return rows


@final
class Parzen:
    """The density around some trials.

    Args:
        encoder: of the space.
        rows_ND: the configurations of the trials.
        weights_N: how much each counts.
        width: times this the bandwidths of Scott's rule.
        prior_weight: how much the prior counts.
    """

    def __init__(
        self, encoder: Encoder, rows_ND: Rows, weights_N: Floats, *, width: float = 1.0, prior_weight: float = 1.0
    ) -> None:
        self._encoder = encoder
        weights = np.append(weights_N, prior_weight)
        self._weights = weights / weights.sum()
        self._log_weights = np.log(self._weights)
        width *= max(1, len(rows_ND)) ** (-1.0 / (4 + encoder.num_dims))
        ranks_ND = encoder.ranks(rows_ND)
        self._kernels = [_kernels(encoder, d, rows_ND[:, d], ranks_ND[:, d], width) for d in range(encoder.num_dims)]

    def log_density(self, points_CD: Rows) -> Floats:
        """Of each point."""
        ranks_CD = self._encoder.ranks(points_CD)
        logs = np.zeros((len(points_CD), len(self._weights))) + self._log_weights
        for d, kernels in enumerate(self._kernels):
            logs += kernels.log_density(points_CD[:, d], ranks_CD[:, d])
        largest_C = logs.max(axis=1)
        found: Floats = largest_C + np.log(np.exp(logs - largest_C[:, None]).sum(axis=1))
        return found

    def sample(self, count: int, chance: np.random.Generator) -> Rows:
        """Configurations by this density."""
        kernel_C = chance.choice(len(self._weights), size=count, p=self._weights)
        units = chance.random((count, len(self._kernels)))
        for d, kernels in enumerate(self._kernels):
            units[:, d] = kernels.sample(kernel_C, units[:, d])
        return self._encoder.snapped(units)


def _kernels(encoder: Encoder, d: int, units_N: Floats, ranks_N: Ints, width: float) -> _Kernels:
    domain, prior = encoder.domains[d], encoder.space.priors.get(encoder.names[d])
    num_values = domain.num_values
    center = 0.5 if prior is None else domain.to_unit(prior.center)
    of_prior = _EVEN if prior is None else 1.0 - prior.confidence
    if not domain.ordered:
        assert num_values is not None, "only finite domains are without an order"
        apart = num_values / (len(units_N) + num_values)
        own = np.eye(num_values)
        even = np.full(num_values, 1.0 / num_values)
        last = even
        if prior is not None:
            trust = max(prior.confidence, 1.0 / num_values)
            last = np.full(num_values, (1.0 - trust) / max(1, num_values - 1))
            last[int(center * num_values)] = trust
        return _table(ranks_N, np.vstack(((1.0 - apart) * own + apart * even, last)), even, encoder.middles(d))
    deviation = width * _deviation(units_N, center, of_prior)
    deviation = min(1.0, max(deviation, _NARROWEST, _FEWEST_SHARES / num_values if num_values else 0.0))
    if num_values is None or num_values > _MOST_TABLED:
        return _bells(units_N, deviation, center, of_prior)
    middles_K = encoder.middles(d)
    shares_K = np.diff(np.concatenate(([0.0], (middles_K[1:] + middles_K[:-1]) / 2, [1.0])))
    deviations = np.append(np.full(num_values, deviation), of_prior)
    rows = _bell_rows(middles_K, shares_K, deviations, np.append(middles_K, center))
    return _table(ranks_N, rows, shares_K, middles_K)


def _deviation(units_N: Floats, center: float, of_prior: float) -> float:
    """Of the values and, as one more, of the prior: one value alone says nothing about how wide it may be."""
    units = units_N[~np.isnan(units_N)]
    of_prior = min(of_prior, math.sqrt(_EVEN_VARIANCE))
    mean = (units.sum() + center) / (len(units) + 1)
    total = ((units - mean) ** 2).sum() + of_prior**2 + (center - mean) ** 2
    return math.sqrt(total / (len(units) + 1))
