"""BORE: Bayesian optimisation by density-ratio estimation (Tiao et al., ICML 2021, arXiv 2102.09009).

    the best part of the trials = 1, the others = 0  ->  forest  ->  the candidate that is most probably one of the best

Expected improvement over the loss of the best part is, but for a factor, the ratio of two densities: that of the best
trials to that of all (section 2 of the paper). A classifier that tells the best from the others estimates it, so its
probability is all that has to be maximised. Trials that still run count as no good ones, in the leaves where they are.
Candidates are drawn from the whole space: with half of them near the best trials the search stayed there.
"""

# N: trials, C: candidates, F: features, T: trees

from typing import TYPE_CHECKING, ClassVar, final

from ..values import at_least, probability
from .learner import Learner
from .with_sklearn import check_forests

if TYPE_CHECKING:
    import numpy as np

    from .encoding import Rows
    from .history import Data


@final
class BORESearcher(Learner):
    """BORE: the configuration of which a forest thinks most that it is among the best part of the trials.

    Args:
        gamma: the best part, above 0 and below 1.
        num_init: so many trials must have a result before the model is asked; until then the space is filled evenly.
        max_rows: the forest is grown on so many trials at most, a quarter of them the best and the others the latest.
        num_trees: of the forest; a suggestion takes about as many times as long as there are more of them.
        num_candidates: so many configurations, drawn from the space, it chooses among.

    Of several objectives the best are those on the first fronts, as in NSGA-II. What violates constraints is worse than
    all that do not.

    Raises:
        TypeError, ValueError: an argument of the wrong type or size.
        NotInstalled: scikit-learn is not there; the message names the extra.

    >>> from fanwise.tune import FIFOScheduler
    >>> scheduler = FIFOScheduler(BORESearcher(gamma=0.25), metric="validation_error")
    """

    budget_s: ClassVar[float | None] = 5.0
    libraries: ClassVar[tuple[str, ...]] = (*Learner.libraries, "scikit-learn")
    results_a_fit: ClassVar[int] = 80

    def __init__(
        self,
        *,
        gamma: float = 0.25,
        num_init: int = 8,
        max_rows: int = 300,
        num_trees: int = 32,
        num_candidates: int = 1000,
    ) -> None:
        check_forests("BORESearcher needs")
        super().__init__(num_init=num_init, max_rows=at_least("max_rows", max_rows, 4))
        self.num_trees = at_least("num_trees", num_trees, 1)
        self.num_candidates = at_least("num_candidates", num_candidates, 1)
        self.gamma = probability("gamma", gamma)
        if not 0 < gamma < 1:
            raise ValueError(f"gamma must be above 0 and below 1, got {gamma!r}")

    def fit(self, data: "Data", chance: "np.random.Generator") -> None:
        import numpy as np

        from .forest import Forest
        from .ranking import best_first

        num_results = int(data.has_result_N.sum())
        order_N = best_first(data)
        is_good_N = np.zeros(len(order_N))
        is_good_N[order_N[: max(1, int(np.ceil(self.gamma * num_results)))]] = 1.0
        self._forest = Forest(self.encoder.features(data.rows_ND), is_good_N, chance, num_trees=self.num_trees)

    def propose(self, pending_PD: "Rows", chance: "np.random.Generator") -> "Rows":
        import numpy as np

        rows_CD = self.encoder.candidates(self.num_candidates, chance)
        pending_PF = self.encoder.features(pending_PD)
        good_C = self._forest.means(self.encoder.features(rows_CD), pending_PF, 0.0).mean(axis=1)
        return np.asarray(rows_CD[np.argsort(-good_C, kind="stable")])

    def describe(self) -> dict[str, object]:
        return {
            **super().describe(),
            "num_trees": self.num_trees,
            "num_candidates": self.num_candidates,
            "gamma": self.gamma,
        }
