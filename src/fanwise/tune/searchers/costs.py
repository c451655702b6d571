"""What configurations cost: for searchers that look for the greatest gain for each second, or whatever is reported.

reports with cost_attr --> a unit of the resource costs so much, of each trial --> a forest: of any configuration
"""

# N: trials, C: candidates, F: features

import math
from typing import TYPE_CHECKING, final

from ..values import is_number
from .base import Observation

if TYPE_CHECKING:
    import numpy as np

    from .encoding import Floats


@final
class Costs:
    """A forest of the logarithm of what trials cost.

    Args:
        features_NF: their configurations.
        costs_N: of a unit of resource, above 0.
        chance: for the trees.
    """

    def __init__(
        self, features_NF: "Floats", costs_N: "Floats", chance: "np.random.Generator", *, num_trees: int
    ) -> None:
        import numpy as np

        from .forest import Forest

        self._forest = Forest(features_NF, np.log(costs_N), chance, num_trees=num_trees)

    def of(self, features_CF: "Floats") -> "Floats":
        """What a unit of resource is expected to cost, (C,)."""
        import numpy as np

        return np.asarray(np.exp(self._forest.means(features_CF).mean(axis=1)))


def cost_a_unit(observation: Observation, cost_attr: str) -> float:
    """What a unit of the trial's resource has cost on average.

    Raises:
        ValueError: the report does not have it, or it is no finite number above 0.
    """
    cost = observation.values.get(cost_attr)
    if not (is_number(cost) and 0 < cost < math.inf):
        what = f"{cost_attr}={cost!r}" if cost_attr in observation.values else f"no {cost_attr!r}"
        has = ", ".join(map(repr, observation.values))
        raise ValueError(
            f"trial {observation.trial_id} reported {what}, where cost_attr={cost_attr!r} needs what the trial has "
            f"cost so far, a number above 0; the report has {has}"
        )
    return cost / max(observation.resource, 1e-9)
