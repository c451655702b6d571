"""Forest search: try what a forest expects to improve most on the best trial so far.

    trials -> scores by their order, not by the size of their losses -> forest -> a score from each tree
    each candidate: mean and spread of the trees' scores -> the expected improvement; the greatest is tried next
    trials that still run count as bad ones in the leaves where they are, so that others are tried elsewhere

This is the model of SMAC (Hutter, Hoos and Leyton-Brown: Sequential Model-Based Optimization for General Algorithm
Configuration, LION 5, 2011, section 4), with extremely randomised trees, whose answers have fewer steps where trials
are few. Losses are replaced by normal scores of their ranks, so a loss of 1e30 and a missing one weigh no more than any
other last place. Candidates are drawn from the whole space, not around good trials: trees hardly distinguish points
there and would spend trial after trial on them, which was worse on the benchmark's tables.

A search that names no searcher gets this one (`choosing`). Its settings were chosen on four of eight tables and held
against the other four: docs/guides/searchers.md.
"""

# N: trials, C: candidates, P: running trials, F: features, T: trees

from typing import TYPE_CHECKING, ClassVar, final

from ..values import at_least
from .learner import Learner
from .with_sklearn import check_forests

if TYPE_CHECKING:
    import numpy as np

    from .encoding import Floats, Rows
    from .history import Data


@final
class ForestSearcher(Learner):
    """Suggests the configuration with the greatest expected improvement on the best, as a forest of trees sees it.

    Args:
        num_init: so many trials must have a result before the model is asked; until then the space is filled evenly.
        num_trees: of the forest; a suggestion takes about as many times as long as there are more of them.
        num_candidates: so many configurations, drawn from the space, it chooses among.
        max_rows: the forest is grown on so many trials at most, a quarter of them the best and the others the latest.
        cost_attr: the name of a reported value that says what the trial has cost so far, such as seconds: then the
            greatest expected improvement for each unit of cost is tried next (Snoek, Larochelle and Adams, NeurIPS
            2012, section 3.2). None: cost is no matter.

    Of several objectives it looks at the front that a trial is on, as NSGA-II does. What violates constraints is worse
    than all that do not.

    Raises:
        TypeError, ValueError: an argument of the wrong type or size.
        NotInstalled: scikit-learn is not there; the message names the extra.

    >>> from fanwise.tune import FIFO
    >>> scheduler = FIFO(ForestSearcher(), metric="validation_error")
    """

    budget_s: ClassVar[float | None] = 5.0
    libraries: ClassVar[tuple[str, ...]] = (*Learner.libraries, "scikit-learn")
    results_a_fit: ClassVar[int] = 80

    def __init__(
        self,
        num_init: int = 5,
        *,
        num_trees: int = 32,
        num_candidates: int = 1000,
        max_rows: int = 300,
        cost_attr: str | None = None,
    ) -> None:
        rows = at_least("max_rows", max_rows, 4)
        check_forests("ForestSearcher needs")
        super().__init__(num_init=num_init, max_rows=rows, cost_attr=cost_attr)
        self.num_trees = at_least("num_trees", num_trees, 1)
        self.num_candidates = at_least("num_candidates", num_candidates, 1)

    def fit(self, data: "Data", chance: "np.random.Generator") -> None:
        from .costs import Costs
        from .forest import Forest
        from .ranking import normal_scores, ranks

        score_N = normal_scores(ranks(data))
        self._least, self._worst = float(score_N.min()), float(score_N.max())
        features_NF = self.encoder.features(data.rows_ND)
        self._forest = Forest(features_NF, score_N, chance, num_trees=self.num_trees)
        self._costs = None
        if data.costs_N is not None:
            self._costs = Costs(features_NF, data.costs_N, chance, num_trees=self.num_trees)

    def propose(self, pending_PD: "Rows", chance: "np.random.Generator") -> "Rows":
        import numpy as np

        rows_CD = self.encoder.candidates(self.num_candidates, chance)
        features_CF, pending_PF = self.encoder.features(rows_CD), self.encoder.features(pending_PD)
        answers_CT = self._forest.means(features_CF, pending_PF, self._worst)
        mean_C = answers_CT.mean(axis=1)
        gain_C = expected_improvement(self._least, mean_C, answers_CT.std(axis=1))
        if self._costs is not None:
            gain_C = gain_C / self._costs.of(features_CF)
        # Where no improvement is expected any more, the lowest mean.
        return np.asarray(rows_CD[np.lexsort((mean_C, -gain_C))])

    def describe(self) -> dict[str, object]:
        return {
            **super().describe(),
            "num_trees": self.num_trees,
            "num_candidates": self.num_candidates,
            "cost_attr": self.cost_attr,
        }


def expected_improvement(best: float, mean_C: "Floats", deviation_C: "Floats") -> "Floats":
    """Of normal distributions below `best` (Jones, Schonlau and Welch, Journal of Global Optimization 13, 1998)."""
    import numpy as np
    from scipy.special import ndtr

    deviation_C = np.maximum(deviation_C, 1e-9)
    z_C = (best - mean_C) / deviation_C
    density_C = np.exp(-0.5 * z_C * z_C) / np.sqrt(2 * np.pi)
    return np.asarray(deviation_C * (z_C * ndtr(z_C) + density_C))
