"""Hyperband: rounds of successive halving that begin to compare early, in turn with rounds that begin later.

Algorithm 1 of Li et al., arXiv 1603.06560, with R the maximum, and r >= grace_period for all brackets:

    s_max = floor(log_eta(R / grace_period))
    for s in s_max, s_max - 1, ..., 0:      n = ceil((s_max + 1) / (s + 1) * eta^s),   r = R * eta^-s
        for i in 0 ... s:                   floor(n * eta^-i) trials run to r * eta^i
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ..values import rounded_resource
from .halving import Bracket
from .resources import Resources

_ROUNDING = 1e-9  # log_10(1000) is 2.9999999999999996; 3 ** -1 * 81 * 3 is not always 81


@final
@dataclass(frozen=True, slots=True)
class HyperbandBrackets:
    """Hyperband's brackets in turn, the one that begins to compare earliest first.

    >>> for bracket in HyperbandBrackets().brackets(Resources(max_t=9), 9):
    ...     print(bracket)
    Bracket(levels=(1.0, 3.0, 9), sizes=(9, 3, 1))
    Bracket(levels=(3.0, 9), sizes=(5, 1))
    Bracket(levels=(9,), sizes=(3,))
    """

    def brackets(self, resources: Resources, maximum: float) -> Sequence[Bracket]:
        eta = resources.reduction_factor
        most = math.floor(math.log(maximum / resources.grace_period) / math.log(eta) + _ROUNDING)
        return tuple(_bracket(s, most, eta, maximum) for s in range(most, -1, -1))

    def describe(self) -> dict[str, object]:
        return {"name": "HyperbandBrackets"}


def _bracket(s: int, most: int, eta: float, maximum: float) -> Bracket:
    size = math.ceil((most + 1) / (s + 1) * eta**s - _ROUNDING)
    sizes = tuple(max(1, math.floor(size / eta**i + _ROUNDING)) for i in range(s + 1))
    return Bracket((*(rounded_resource(maximum / eta ** (s - i)) for i in range(s)), maximum), sizes)
