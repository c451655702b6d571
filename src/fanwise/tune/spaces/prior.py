"""Priors: where a person expects the good values of one hyperparameter, and how a draw heeds it. Quiet.

    u in [0, 1)  --prior-->  another number in [0, 1)  --from_unit-->  a value, more often near the centre

Around the centre lies the bell of a normal distribution, cut off at the ends of the domain and taken on the domain's
own scale; its standard deviation is 1 - confidence of the width of the domain (PriorBand, Mallik et al. 2023,
arXiv 2306.12370, as NePS draws from it). Of a choice the centre has the probability `confidence`, and the others
share the rest.

The bell is a histogram of 256 columns in integers: the same bits everywhere, and a larger u never gives an earlier
value.
"""

import functools
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias, final

from ...base.nearest import did_you_mean
from ..values import is_number
from .bits import FRACTION_BITS, ONE, exp2
from .bounds import Value, below_one, check_unit
from .domains import Domain

Confidence: TypeAlias = Literal["low", "medium", "high"] | float
_CONFIDENCES = {"low": 0.5, "medium": 0.75, "high": 0.9}
_COLUMNS = 256
_HALF_LOG2_E = 0.7213475204444817
_FARTHEST = 64.0  # standard deviations squared: what is farther out would have no weight, and nothing is impossible


@final
@dataclass(frozen=True, slots=True)
class Prior:
    """The value that is expected to be good, and how surely.

    Attributes:
        center: a value of the domain.
        confidence: above 0 and below 1.
    """

    center: Value
    confidence: float

    def value_at(self, domain: Domain, u: float) -> Value:
        """What `domain.from_unit(u)` is under this prior; of an ordered domain a larger u never gives an earlier value.

        Raises:
            ValueError: u is not in [0, 1).
        """
        if domain.ordered:
            return domain.from_unit(_bent(check_unit(u), domain.to_unit(self.center), 1.0 - self.confidence))
        assert domain.num_values is not None, "only finite domains are without an order"
        trust = max(self.confidence, 1.0 / domain.num_values)
        if check_unit(u) < trust or domain.num_values == 1:
            return self.center
        # The rest of [0, 1) is stretched over a circle of the categories without the centre.
        share = 1.0 / domain.num_values
        rest = below_one((u - trust) / (1.0 - trust)) * (1.0 - share)
        place = domain.to_unit(self.center) + share / 2 + rest
        return domain.from_unit(below_one(place - 1.0 if place >= 1.0 else place))


def make_prior(domain: Domain, center: object, confidence: object) -> Prior:
    """The prior around a value of the domain.

    Args:
        domain: what it is about.
        center: the value that is expected to be good.
        confidence: "low" (0.5), "medium" (0.75), "high" (0.9), or a number above 0 and below 1.

    Raises:
        TypeError: the confidence is neither a number nor text.
        ValueError: the centre is not in the domain, the confidence is none of the words or out of range.
    """
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
    return Prior(domain.plain(center), float(confidence))


@functools.lru_cache(maxsize=1024)
def _columns(center: float, deviation: float) -> tuple[int, ...]:
    """How much weight the columns have up to and with each."""
    weights = []
    for column in range(_COLUMNS):
        z = ((column + 0.5) / _COLUMNS - center) / deviation
        m, e = exp2(int(-min(z * z, _FARTHEST) * _HALF_LOG2_E * ONE))
        weights.append(m >> -e)
    return tuple(accumulate(weights))


def _bent(u: float, center: float, deviation: float) -> float:
    """u, moved towards the centre, so that it is distributed like the bell."""
    sums = _columns(center, deviation)
    target = int(u * ONE) * sums[-1] >> FRACTION_BITS
    column = bisect_right(sums, target)
    before = sums[column - 1] if column else 0
    return below_one((column + (target - before) / (sums[column] - before)) / _COLUMNS)
