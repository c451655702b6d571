"""Which resource levels a model learns from: those at which the trials of a scheduler are compared. Quiet."""

from dataclasses import dataclass
from typing import final

from ..spaces import Space
from .halving import Plan
from .resources import Resources


@final
@dataclass(frozen=True, slots=True)
class RungLevels:
    """The levels at which trials are compared, for `searchers.history`: of each trial its first report at each of them.

    Args:
        resources: the scheduler's.
        plan: of rounds; None: one ladder of levels, as ASHA has.

    >>> from .hyperband import HyperbandBrackets
    >>> RungLevels(Resources(max_t=9), HyperbandBrackets()).levels_in(Space({"depth": 3}))
    (1.0, 3.0, 9)
    >>> RungLevels(Resources(max_t=10)).levels_in(Space({"depth": 3}))
    (1, 3, 9, 10)
    """

    resources: Resources
    plan: Plan | None = None

    def levels_in(self, space: Space) -> tuple[float, ...]:
        maximum = self.resources.maximum(space)
        if self.plan is None:
            return (*self.resources.levels(maximum), maximum)
        brackets = self.plan.brackets(self.resources, maximum)
        return tuple(sorted({level for bracket in brackets for level in bracket.levels}))

    def describe(self) -> dict[str, object]:
        plan = None if self.plan is None else self.plan.describe()
        return {"name": "RungLevels", "plan": plan, **self.resources.describe()}
