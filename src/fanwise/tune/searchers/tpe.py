"""Tree-structured Parzen estimator (TPE).

Bergstra, Bardenet, Bengio and Kegl: Algorithms for Hyper-Parameter Optimization (NeurIPS 2011), with multivariate
densities (Falkner et al., arXiv 1807.01774; Watanabe, arXiv 2304.11127). Candidates are sampled from the density l of
the good trials and ranked by l(x) / g(x), where g is the density of the bad trials. Running trials count as bad, each
with the weight of num_bad / num_good bad trials, so that parallel suggestions spread out.
"""

import math
from typing import TYPE_CHECKING, final

from ..values import checked_int, checked_probability
from .model_based import ModelBasedSearcher

if TYPE_CHECKING:
    import numpy as np

    from .encoding import Rows
    from .observations import TrainingData

_MAX_GOOD = 25
# A bad trial says less about its neighborhood than a good one, so its kernel is narrower by this factor.
_BAD_BANDWIDTH = 0.7


@final
class TPESearcher(ModelBasedSearcher):
    """Suggests configurations that are likely among the best trials and unlikely among the others.

    Args:
        num_init: number of results before the model is used. Until then the space is covered evenly.
        good_fraction: fraction of the trials that count as good, at least 1 and at most 25 trials.
        num_candidates: number of candidates for each suggestion. With more candidates, the search is greedier.

    Raises:
        TypeError, ValueError: an argument has the wrong type or value.
    """

    def __init__(self, num_init: int = 10, *, good_fraction: float = 0.15, num_candidates: int = 64) -> None:
        super().__init__(num_init=num_init, max_rows=1000)
        self.good_fraction = checked_probability("good_fraction", good_fraction)
        self.num_candidates = checked_int("num_candidates", num_candidates, 1)

    def fit(self, data: "TrainingData", rng: "np.random.Generator") -> None:
        import numpy as np

        from .observations import best_first
        from .parzen import ParzenEstimator

        order = best_first(data)
        num_good = max(1, min(math.ceil(self.good_fraction * data.has_result_N.sum()), _MAX_GOOD))
        self._num_good = num_good
        # Weights decrease with the rank, as in the recombination of CMA-ES.
        weights = math.log(num_good + 1) - np.log(np.arange(1, num_good + 1))
        self._good_density = ParzenEstimator(self.encoder, data.rows_ND[order[:num_good]], weights / weights.mean())
        self._bad_rows_ND = data.rows_ND[np.sort(order[num_good:])]
        self._bad_density: ParzenEstimator | None = None
        self._pending_PD = data.rows_ND[:0]  # of the density of the bad trials

    def propose(self, pending_PD: "Rows", rng: "np.random.Generator") -> "Rows":
        import numpy as np

        from .parzen import ParzenEstimator

        if self._bad_density is None or not np.array_equal(self._pending_PD, pending_PD, equal_nan=True):
            num_bad = len(self._bad_rows_ND)
            pending_weight = max(1.0, num_bad / self._num_good)
            weights = np.ones(num_bad + len(pending_PD))
            weights[num_bad:] = pending_weight
            self._pending_PD = pending_PD
            self._bad_density = ParzenEstimator(
                self.encoder,
                np.concatenate((self._bad_rows_ND, pending_PD)),
                weights,
                bandwidth_factor=_BAD_BANDWIDTH,
                # The uniform prior has a smaller share of this density than of the density of the good trials, which
                # favors unexplored regions. With equal shares, the influence of user-defined priors fades as trials are
                # added.
                prior_weight=pending_weight if self.encoder.priors else 1.0,
            )
        candidates = self._good_density.sample(self.num_candidates, rng)
        log_ratios = self._good_density.log_density(candidates) - self._bad_density.log_density(candidates)
        return candidates[np.argsort(-log_ratios, kind="stable")]

    def describe(self) -> dict[str, object]:
        settings = {"good_fraction": self.good_fraction, "num_candidates": self.num_candidates}
        return {**super().describe(), **settings}
