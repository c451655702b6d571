"""Priors over the values of one hyperparameter.

On an ordered domain the prior is a normal distribution, truncated to the domain, on the scale of the domain. Its
standard deviation is (1 - confidence) times the width of the domain (PriorBand, Mallik et al. 2023, arXiv 2306.12370,
as implemented in NePS). On a choice the center has probability `confidence`, and the others share the rest.

The normal distribution is approximated by a histogram of 256 integer columns, so that draws are bit-identical on every
machine and monotone in u.
"""

import functools
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias, final

from ...base.nearest import did_you_mean
from ..values import Value, is_number
from .domains import Domain
from .scales import FRACTION_BITS, ONE, below_one, check_unit, exp2

Confidence: TypeAlias = Literal["low", "medium", "high"] | float
_CONFIDENCES = {"low": 0.5, "medium": 0.75, "high": 0.9}
_COLUMNS = 256
_HALF_LOG2_E = 0.7213475204444817
_MAX_Z_SQUARED = 64.0  # keeps the probability of every value above 0


@final
@dataclass(frozen=True, slots=True)
class Prior:
    """A value of a domain that is expected to be good, with a confidence between 0 and 1, exclusive."""

    center: Value
    confidence: float

    def value_at(self, domain: Domain, u: float) -> Value:
        """Map u in [0, 1) to a value distributed according to the prior; monotone on ordered domains."""
        if domain.ordered:
            return domain.from_unit(_warp(check_unit(u), domain.to_unit(self.center), 1.0 - self.confidence))
        assert domain.num_values is not None, "unordered domains are finite"
        probability = max(self.confidence, 1.0 / domain.num_values)
        if check_unit(u) < probability or domain.num_values == 1:
            return self.center
        # Map the remaining interval to the other categories, cyclically from the center on.
        share = 1.0 / domain.num_values
        rest = below_one((u - probability) / (1.0 - probability)) * (1.0 - share)
        position = domain.to_unit(self.center) + share / 2 + rest
        return domain.from_unit(below_one(position - 1.0 if position >= 1.0 else position))


def make_prior(domain: Domain, center: object, confidence: object) -> Prior:
    """Validate and create a prior. Arguments and errors are those of `parameter`."""
    if not domain.contains(center):
        raise ValueError(f"prior {center!r} is not in {domain!r}")
    if isinstance(confidence, str):
        if confidence not in _CONFIDENCES:
            raise ValueError(f"{confidence!r} is not a confidence{did_you_mean(confidence, _CONFIDENCES)}")
        confidence = _CONFIDENCES[confidence]
    if not is_number(confidence):
        raise TypeError(f"confidence must be a number or text, got {confidence!r} of type {type(confidence).__name__}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be above 0 and below 1, got {confidence!r}; 'high' is 0.9")
    return Prior(domain.normalize(center), float(confidence))


@functools.lru_cache(maxsize=1024)
def _columns(center: float, deviation: float) -> tuple[int, ...]:
    """Return the cumulative weights of the histogram."""
    weights = []
    for column in range(_COLUMNS):
        z = ((column + 0.5) / _COLUMNS - center) / deviation
        m, e = exp2(int(-min(z * z, _MAX_Z_SQUARED) * _HALF_LOG2_E * ONE))
        weights.append(m >> -e)
    return tuple(accumulate(weights))


def _warp(u: float, center: float, deviation: float) -> float:
    """Map a uniform u to a draw of the truncated normal distribution."""
    sums = _columns(center, deviation)
    target = int(u * ONE) * sums[-1] >> FRACTION_BITS
    column = bisect_right(sums, target)
    lower = sums[column - 1] if column else 0
    return below_one((column + (target - lower) / (sums[column] - lower)) / _COLUMNS)
