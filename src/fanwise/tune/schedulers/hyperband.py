"""Hyperband: rounds of successive halving that begin to compare early, in turn with rounds that begin later.

Algorithm 1 of Li et al., arXiv 1603.06560, with R the maximum, and r >= grace_period for all brackets:

    s_max = floor(log_eta(R / grace_period))
    for s in s_max, s_max - 1, ..., 0:      n = ceil((s_max + 1) / (s + 1) * eta^s),   r = R * eta^-s
        for i in 0 ... s:                   floor(n * eta^-i) trials run to r * eta^i
"""

import math
from collections.abc import Mapping, Sequence
from typing import final

from ..searchers.base import Mode, Searcher
from ..searchers.tpe import TPESearcher
from ..values import rounded_resource
from .halving import Bracket, SynchronousHalving
from .resources import Resources

_ROUNDING = 1e-9  # log_10(1000) is 2.9999999999999996; 3 ** -1 * 81 * 3 is not always 81


@final
class Hyperband(SynchronousHalving):
    """Hyperband: rounds of successive halving, from those that compare early to one that compares only at the end.

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t, max_resource_attr, grace_period, reduction_factor: see `SuccessiveHalving`.

    Raises:
        TypeError: an unknown option (the message names the closest one), or an argument of the wrong type.
        ValueError: an argument out of range.

    >>> for bracket in Hyperband(metric="loss", max_t=9).brackets(Resources(max_t=9), 9):
    ...     print(bracket)
    Bracket(levels=(1.0, 3.0, 9), sizes=(9, 3, 1))
    Bracket(levels=(3.0, 9), sizes=(5, 1))
    Bracket(levels=(9,), sizes=(3,))
    """

    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        metric: str,
        mode: Mode = "min",
        constraints: Sequence[str] = (),
        resource_attr: str | None = None,
        max_t: float | None = None,
        max_resource_attr: str | None = None,
        grace_period: float = 1,
        reduction_factor: float = 3,
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        random_seed: int | None = None,
    ) -> None:
        super().__init__(
            searcher,
            metric=metric,
            mode=mode,
            constraints=constraints,
            resource_attr=resource_attr,
            max_t=max_t,
            max_resource_attr=max_resource_attr,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            points_to_evaluate=points_to_evaluate,
            random_seed=random_seed,
        )

    def brackets(self, resources: Resources, maximum: float) -> Sequence[Bracket]:
        return _brackets(resources, maximum)


@final
class BOHB(SynchronousHalving):
    """BOHB (Falkner et al., arXiv 1807.01774): Hyperband with the searcher TPE.

    The model learns at one resource level at a time, the highest at which `num_init` trials have a result, from each
    trial's first report there. Until a level has as many, configurations are spread evenly over the space.

    Args:
        metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t, max_resource_attr, grace_period, reduction_factor: see `SuccessiveHalving`.
        num_init: see `TPESearcher`.

    Raises:
        TypeError: an unknown option (the message names the closest one), or an argument of the wrong type.
        ValueError: an argument out of range.

    >>> scheduler = BOHB(metric="validation_error", max_t=81)
    """

    def __init__(
        self,
        *,
        metric: str,
        mode: Mode = "min",
        constraints: Sequence[str] = (),
        resource_attr: str | None = None,
        max_t: float | None = None,
        max_resource_attr: str | None = None,
        grace_period: float = 1,
        reduction_factor: float = 3,
        num_init: int = 10,
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        random_seed: int | None = None,
    ) -> None:
        super().__init__(
            TPESearcher(num_init),
            metric=metric,
            mode=mode,
            constraints=constraints,
            resource_attr=resource_attr,
            max_t=max_t,
            max_resource_attr=max_resource_attr,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            points_to_evaluate=points_to_evaluate,
            random_seed=random_seed,
        )
        self._sets_levels = True

    def brackets(self, resources: Resources, maximum: float) -> Sequence[Bracket]:
        return _brackets(resources, maximum)


def _brackets(resources: Resources, maximum: float) -> Sequence[Bracket]:
    """Return Hyperband's brackets, the one that compares earliest first."""
    eta = resources.reduction_factor
    most = math.floor(math.log(maximum / resources.grace_period) / math.log(eta) + _ROUNDING)
    return tuple(_bracket(s, most, eta, maximum) for s in range(most, -1, -1))


def _bracket(s: int, most: int, eta: float, maximum: float) -> Bracket:
    size = math.ceil((most + 1) / (s + 1) * eta**s - _ROUNDING)
    sizes = tuple(max(1, math.floor(size / eta**i + _ROUNDING)) for i in range(s + 1))
    return Bracket((*(rounded_resource(maximum / eta ** (s - i)) for i in range(s)), maximum), sizes)
