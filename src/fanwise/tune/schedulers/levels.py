"""Which resource levels a model learns from: those at which the rounds of a plan compare. Quiet."""

from dataclasses import dataclass
from typing import final

from ..spaces import Space
from .halving import Plan
from .resources import Resources


@final
@dataclass(frozen=True, slots=True)
class RungLevels:
    """The levels of all brackets of a plan, for `searchers.history`: of each trial its first report at each of them.

    >>> from .hyperband import HyperbandBrackets
    >>> RungLevels(Resources(max_t=9), HyperbandBrackets()).levels_in(Space({"depth": 3}))
    (1.0, 3.0, 9)
    """

    resources: Resources
    plan: Plan

    def levels_in(self, space: Space) -> tuple[float, ...]:
        brackets = self.plan.brackets(self.resources, self.resources.maximum(space))
        return tuple(sorted({level for bracket in brackets for level in bracket.levels}))

    def describe(self) -> dict[str, object]:
        return {"name": "RungLevels", "plan": self.plan.describe(), **self.resources.describe()}
