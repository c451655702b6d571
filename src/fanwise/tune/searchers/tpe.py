"""TPE, the tree-structured Parzen estimator: try what is likely among the good trials and unlikely among the others.

    the best trials  -> density l  --draws candidates-->  the one with the largest l(x) / g(x)
    all others       -> density g

Bergstra, Bardenet, Bengio, Kegl: Algorithms for Hyper-Parameter Optimization (NeurIPS 2011), with densities over all
hyperparameters together (Falkner et al., arXiv 1807.01774; Watanabe, arXiv 2304.11127). What runs counts as bad, and
each running trial as much as a good one does among the good: so workers that ask at the same time get different
configurations, however many trials there were before.
"""

import math
from typing import TYPE_CHECKING, final

from ..values import at_least, probability
from .learner import Learner

if TYPE_CHECKING:
    import numpy as np

    from .encoding import Rows
    from .history import Data

_MOST_GOOD = 25
# Narrower kernels around the bad trials than around the good ones: next to a bad trial is no place to try again, while
# a good one speaks for a wider region.
_BAD_WIDTH = 0.7


@final
class TPESearcher(Learner):
    """Suggests what is likely among the best trials and unlikely among the others.

    Args:
        num_init: so many trials must have a result first; until then the space is filled evenly.
        good_fraction: which part of the trials counts as good, at most 25 trials.
        num_candidates: the best of so many draws is suggested; more of them make the search greedier.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: one out of range.
    """

    def __init__(
        self,
        num_init: int = 10,
        *,
        good_fraction: float = 0.15,
        num_candidates: int = 64,
    ) -> None:
        super().__init__(num_init=num_init, max_rows=1000)
        self.good_fraction = probability("good_fraction", good_fraction)
        self.num_candidates = at_least("num_candidates", num_candidates, 1)

    def fit(self, data: "Data", chance: "np.random.Generator") -> None:
        """The density of the good trials; that of the others waits for what runs."""
        import numpy as np

        from .parzen import Parzen
        from .ranking import best_first

        order = best_first(data)
        num_good = max(1, min(math.ceil(self.good_fraction * data.has_result_N.sum()), _MOST_GOOD))
        self._num_good = num_good
        # The best one counts most. Weights as those of recombination in CMA-ES.
        weights = math.log(num_good + 1) - np.log(np.arange(1, num_good + 1))
        self._good = Parzen(self.encoder, data.rows_ND[order[:num_good]], weights / weights.mean())
        self._bad_ND = data.rows_ND[np.sort(order[num_good:])]

    def propose(self, pending_PD: "Rows", chance: "np.random.Generator") -> "Rows":
        """Draws of the good trials' density, the most promising first."""
        import numpy as np

        from .parzen import Parzen

        num_bad = len(self._bad_ND)
        # As much as one of the good trials counts among the good.
        share = max(1.0, num_bad / self._num_good)
        weights = np.ones(num_bad + len(pending_PD))
        weights[num_bad:] = share
        bad = Parzen(
            self.encoder,
            np.concatenate((self._bad_ND, pending_PD)),
            weights,
            width=_BAD_WIDTH,
            # An even prior weighs less here than among the few good ones, so that what nobody has tried is tried. The
            # priors of a space weigh the same in both: else they would draw the search to them for ever.
            prior_weight=share if self.encoder.space.priors else 1.0,
        )
        candidates = self._good.sample(self.num_candidates, chance)
        gains = self._good.log_density(candidates) - bad.log_density(candidates)
        return candidates[np.argsort(-gains, kind="stable")]

    def describe(self) -> dict[str, object]:
        return {
            **super().describe(),
            "good_fraction": self.good_fraction,
            "num_candidates": self.num_candidates,
        }
