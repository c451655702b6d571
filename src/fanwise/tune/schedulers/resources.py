"""Base classes of schedulers that limit the resource of trials, which measures their progress, e.g. in epochs.

grace_period=1                   the rung levels are 1, eta, eta^2, ... below the maximum
max_t=81                         the scheduler stops a trial that reports a resource of 81
max_resource_attr="max_epochs"   the objective receives the maximum as an argument and ends by itself
"""

import math
from typing import ClassVar, Unpack

from ...base.nearest import did_you_mean
from ..searchers.searcher import Searcher
from ..space import Space
from ..values import checked_positive, is_number, round_resource
from .scheduler import CONTINUE, STOP, Decision, Scheduler, SchedulerOptions, checked_name


class ResourceOptions(SchedulerOptions, total=False):
    """Keyword options of `ResourceScheduler`."""

    max_t: float | None
    max_resource_attr: str | None


class ResourceScheduler(Scheduler):
    """Base class of schedulers that end trials at a maximum resource.

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t: resource at which trials end. Exactly one of max_t and max_resource_attr must be given.
        max_resource_attr: name of the constant or hyperparameter that is the maximum resource, e.g. "max_epochs". The
            objective then ends by itself.
    """

    _accepts_multiple_objectives: ClassVar[bool] = False

    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        max_t: float | None = None,
        max_resource_attr: str | None = None,
        **options: Unpack[SchedulerOptions],
    ) -> None:
        super().__init__(searcher, **options)
        if len(self.objectives) > 1 and not self._accepts_multiple_objectives:
            hint = "For several metrics, use MOASHA, or use FIFO, which stops no trial early"
            raise TypeError(f"{type(self).__name__} needs one metric, got {options['metric']!r}. {hint}")
        self._max_resource_attr = checked_name("max_resource_attr", max_resource_attr)
        if (max_t is None) == (max_resource_attr is None):
            text = "one of max_t (the resource at which trials end) and max_resource_attr (its name in the space)"
            raise ValueError(f"{text} must be given, but not both, got {max_t=} and {max_resource_attr=}")
        self._max_t = None if max_t is None else round_resource(checked_positive("max_t", max_t))
        self.max_resource = max_t

    def check(self, space: Space) -> None:
        self._maximum_of(space)
        super().check(space)

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._seed = seed
        self._maximum = self.max_resource = self._maximum_of(space)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "max_t": self._max_t, "max_resource_attr": self._max_resource_attr}

    def _maximum_of(self, space: Space) -> float:
        """Return `max_t`, or the constant or upper bound named by `max_resource_attr`. Raises ValueError if invalid."""
        if self._max_t is not None:
            return self._max_t
        name = self._max_resource_attr
        assert name is not None, "one of the two is set"
        if name not in space.names:
            raise ValueError(f"max_resource_attr={name!r} is not in the space{did_you_mean(name, space.names)}")
        value = space.constants.get(name, getattr(space.domains.get(name), "upper", None))
        if not is_number(value) or not 0 < value < math.inf:
            raise ValueError(f"max_resource_attr={name!r} must be a number above 0 in the space, got {value!r}")
        return round_resource(value)

    def _decide_at_maximum(self, resource: float) -> Decision:
        return STOP if self._max_resource_attr is None or resource > self._maximum else CONTINUE


class RungOptions(ResourceOptions, total=False):
    """Keyword options of `RungScheduler`."""

    grace_period: float
    reduction_factor: float


class RungScheduler(ResourceScheduler):
    """Base class of schedulers with rung levels, which are resources at which trials are compared.

    Args:
        searcher, metric, mode, constraints, resource_attr, points_to_evaluate, random_seed: see `Scheduler`.
        max_t, max_resource_attr: see `ResourceScheduler`.
        grace_period: the first rung level.
        reduction_factor: eta. One trial in eta continues, to eta times the resource.
    """

    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        grace_period: float = 1,
        reduction_factor: float = 3,
        **options: Unpack[ResourceOptions],
    ) -> None:
        super().__init__(searcher, **options)
        self._grace_period = round_resource(checked_positive("grace_period", grace_period))
        self._eta = round_resource(checked_positive("reduction_factor", reduction_factor))
        if self._eta <= 1:
            raise ValueError(f"reduction_factor must be above 1, got {self._eta!r}")

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._levels = self.rung_levels(self._maximum)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "grace_period": self._grace_period, "reduction_factor": self._eta}

    def rung_levels(self, maximum: float) -> tuple[float, ...]:
        """Return the rung levels below the maximum, possibly none."""
        levels: list[float] = []
        level = self._grace_period
        while level < maximum * (1 - 1e-9):  # tolerates rounding errors: 1.1 * 1.1 is 1.2100000000000002
            levels.append(level)
            level = round_resource(self._grace_period * self._eta ** len(levels))
        return tuple(levels)

    def _maximum_of(self, space: Space) -> float:
        maximum = super()._maximum_of(space)
        if self._grace_period > maximum:
            raise ValueError(f"grace_period={self._grace_period!r} is above the maximum, {maximum!r}")
        return maximum
