"""Resource levels of schedulers that stop or pause trials.

grace_period, grace_period * eta, grace_period * eta^2, ... below the maximum       rung levels
max_t=81                         the scheduler stops a trial that reports 81
max_resource_attr="max_epochs"   the objective receives its maximum and ends by itself
"""

import math
import numbers
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack, final

from ...base.nearest import did_you_mean
from ..searchers.searcher import Searcher
from ..space import Space
from ..values import is_number, round_resource
from .scheduler import CONTINUE, STOP, Decision, Scheduler, SchedulerOptions, checked_name


@final
@dataclass(frozen=True, slots=True)
class ResourceLevels:
    """The maximum resource of trials, and the rung levels below it.

    Args:
        max_t: resource at which trials end.
        max_resource_attr: name in the space of the value with the maximum resource; exactly one of the two is set.
        grace_period: the first rung level.
        reduction_factor: eta, the ratio of consecutive levels.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or not exactly one of `max_t` and `max_resource_attr`.
    """

    max_t: float | None = None
    max_resource_attr: str | None = None
    grace_period: float = 1
    reduction_factor: float = 3

    def __post_init__(self) -> None:
        checked_name("max_resource_attr", self.max_resource_attr)
        if (self.max_t is None) == (self.max_resource_attr is None):
            raise ValueError(
                "one of max_t (the resource at which trials end) and max_resource_attr (the name in the space of the "
                f"value with that resource) must be given, got max_t={self.max_t!r} and "
                f"max_resource_attr={self.max_resource_attr!r}"
            )
        for name in ("grace_period", "reduction_factor", "max_t"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, round_resource(checked_positive(name, value)))
        if self.max_t is not None:
            self._check_grace_period(self.max_t)
        if self.reduction_factor <= 1:
            raise ValueError(f"reduction_factor must be above 1, got {self.reduction_factor!r}")

    def maximum(self, space: Space) -> float:
        """Return the maximum resource: `max_t`, or the constant or upper bound of the hyperparameter in the space.

        Raises:
            ValueError: the space has no such number, or the grace period is longer.
        """
        if self.max_t is not None:
            return self.max_t
        name = self.max_resource_attr
        assert name is not None, "one of the two is set"
        if name not in space.names:
            raise ValueError(f"max_resource_attr={name!r} is not in the space{did_you_mean(name, space.names)}")
        value = space.constants.get(name, getattr(space.domains.get(name), "upper", None))
        if not is_number(value) or not 0 < value < math.inf:
            raise ValueError(f"max_resource_attr={name!r} must be a number above 0 in the space, got {value!r}")
        value = round_resource(value)
        self._check_grace_period(value)
        return value

    def _check_grace_period(self, maximum: float) -> None:
        if self.grace_period > maximum:
            raise ValueError(f"grace_period={self.grace_period!r} is above the maximum, {maximum!r}")

    def rungs(self, maximum: float) -> tuple[float, ...]:
        """Return the rung levels below the maximum, possibly none."""
        levels = []
        level = self.grace_period
        while level < maximum * (1 - 1e-9):  # 1.1 * 1.1 is 1.2100000000000002
            levels.append(level)
            level = round_resource(self.grace_period * self.reduction_factor ** len(levels))
        return tuple(levels)

    def decide_at_maximum(self, resource: float, maximum: float) -> Decision:
        """Return the decision after a report at or above the maximum."""
        if self.max_resource_attr is not None and resource <= maximum:
            return CONTINUE
        return STOP


class ResourceOptions(SchedulerOptions, total=False):
    """Keyword options of schedulers with rung levels; see `ResourceScheduler`."""

    max_t: float | None
    max_resource_attr: str | None
    grace_period: float
    reduction_factor: float


class ResourceScheduler(Scheduler):
    """Base class of schedulers with rung levels.

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t: resource at which trials end.
        max_resource_attr: alternatively, name in the space of the value with that resource, e.g. "max_epochs"; the
            objective then ends by itself.
        grace_period: the first rung level.
        reduction_factor: eta; one trial in eta continues, to eta times the resource.
    """

    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        max_t: float | None = None,
        max_resource_attr: str | None = None,
        grace_period: float = 1,
        reduction_factor: float = 3,
        **options: Unpack[SchedulerOptions],
    ) -> None:
        super().__init__(searcher, **options)
        self._resources = ResourceLevels(max_t, max_resource_attr, grace_period, reduction_factor)
        self.max_resource = max_t

    def check(self, space: Space) -> None:
        self._resources.maximum(space)
        super().check(space)

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._seed = seed
        self._maximum = self.max_resource = self._resources.maximum(space)
        self._levels = self._resources.rungs(self._maximum)

    def describe(self) -> dict[str, object]:
        return {
            **super().describe(),
            "max_t": self._resources.max_t,
            "max_resource_attr": self._resources.max_resource_attr,
            "grace_period": self._resources.grace_period,
            "reduction_factor": self._resources.reduction_factor,
        }

    def _target(self, level: int) -> float:
        """Return the resource of a rung level; the maximum after the last one."""
        return self._levels[level] if level < len(self._levels) else self._maximum


def num_reached(levels: Sequence[float], resource: float) -> int:
    """Return the number of levels at or below the resource."""
    return bisect_right(levels, resource)


def checked_positive(name: str, value: float) -> float:
    """Return a setting above 0 and finite, in plain Python. Raises TypeError, ValueError."""
    if not is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, got {value!r}")
    return int(value) if isinstance(value, numbers.Integral) else float(value)
