"""How far trials may go: from the first rung to the maximum, given as a number or as a name of the space.

grace_period, grace_period * eta, grace_period * eta^2, ... below the maximum       rung levels
max_t=81                         the scheduler stops a trial that reports 81
max_resource_attr="max_epochs"   the objective is given its maximum and ends by itself; only what goes on is stopped
"""

import math
import numbers
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ...base.nearest import did_you_mean
from ..spaces import Space
from ..values import is_number, rounded_resource
from .base import CONTINUE, STOP, Decision, checked_name


@final
@dataclass(frozen=True, slots=True)
class Resources:
    """The settings that say how far trials go, checked.

    Args:
        resource_attr: name of the reported value that says how far a trial is; None: the number of its reports.
        max_t: where trials end.
        max_resource_attr: or the name in the space of what tells the objective where to end.
        grace_period: the first rung level: no trial is compared before.
        reduction_factor: eta, by which the levels grow.

    Raises:
        TypeError: a setting of the wrong type.
        ValueError: one out of range, or not exactly one of `max_t` and `max_resource_attr`.
    """

    resource_attr: str | None = None
    max_t: float | None = None
    max_resource_attr: str | None = None
    grace_period: float = 1
    reduction_factor: float = 3

    def __post_init__(self) -> None:
        checked_name("resource_attr", self.resource_attr)
        checked_name("max_resource_attr", self.max_resource_attr)
        if (self.max_t is None) == (self.max_resource_attr is None):
            raise ValueError(
                "one of max_t (a number: where trials end) and max_resource_attr (the name in the space of what tells "
                f"the objective where to end) must be given, got max_t={self.max_t!r} and "
                f"max_resource_attr={self.max_resource_attr!r}"
            )
        for name in ("grace_period", "reduction_factor", "max_t"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, rounded_resource(positive(name, value)))
        if self.max_t is not None:
            self._check_grace(self.max_t)
        if self.reduction_factor <= 1:
            raise ValueError(f"reduction_factor must be above 1, got {self.reduction_factor!r}")

    def maximum(self, space: Space) -> float:
        """Where trials of this space end; of a hyperparameter its upper bound.

        Raises:
            ValueError: the space does not say, or the grace period is longer.
        """
        if self.max_t is not None:
            return self.max_t
        name = self.max_resource_attr
        assert name is not None, "one of the two is given"
        if name not in space.names:
            raise ValueError(f"max_resource_attr={name!r} is not in the space{did_you_mean(name, space.names)}")
        value = space.constants.get(name, getattr(space.domains.get(name), "upper", None))
        if not is_number(value) or not 0 < value < math.inf:
            raise ValueError(f"max_resource_attr={name!r} must be a number above 0 in the space, got {value!r}")
        value = rounded_resource(value)
        self._check_grace(value)
        return value

    def _check_grace(self, maximum: float) -> None:
        if self.grace_period > maximum:
            raise ValueError(f"grace_period={self.grace_period!r} is above the maximum, {maximum!r}")

    def levels(self, maximum: float) -> tuple[float, ...]:
        """The rung levels below the maximum; none if the grace period is all there is."""
        levels = []
        level = self.grace_period
        while level < maximum * (1 - 1e-9):  # 1.1 * 1.1 is 1.2100000000000002
            levels.append(level)
            level = rounded_resource(self.grace_period * self.reduction_factor ** len(levels))
        return tuple(levels)

    def at_maximum(self, resource: float, maximum: float) -> Decision:
        """The answer to a report at the maximum or beyond."""
        if self.max_resource_attr is not None and resource <= maximum:
            return CONTINUE
        return STOP

    def describe(self) -> dict[str, object]:
        """The settings as JSON."""
        return {
            "resource_attr": self.resource_attr,
            "max_t": self.max_t,
            "max_resource_attr": self.max_resource_attr,
            "grace_period": self.grace_period,
            "reduction_factor": self.reduction_factor,
        }


def reached(levels: Sequence[float], resource: float) -> int:
    """How many of the levels the resource has reached."""
    return bisect_right(levels, resource)


def positive(name: str, value: float) -> float:
    """A number above 0 and finite, in plain Python; or TypeError, ValueError with the setting's name."""
    if not is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0 and finite, got {value!r}")
    return int(value) if isinstance(value, numbers.Integral) else float(value)
