"""CQR: conformal quantile regression (Salinas, Golebiowski, Klein, Seeger and Archambeau, ICML 2023, arXiv 2305.03623).

    trials -> forest -> quantiles of the loss anywhere -> widened until they hold on rows that the trees have not seen
    each candidate: one quantile of its own, drawn at random -> the smallest one is tried next
    trials that still run count as bad ones in the leaves where they are, so that others are tried elsewhere

What is learnt is the order of the losses, not their size. No noise model is assumed: where losses scatter, the
quantiles lie apart. To draw a level for each candidate is Thompson sampling: it tries what is probably good, and what
nobody knows.

The paper grows a boosted model for each quantile and holds back some rows to widen them by. Here one forest answers all
of them: the answers of its trees, sorted, are the quantiles, and each tree has seen only two thirds of the rows. Learnt
from is each trial's last report, however far the trial was, as in the paper's CQR+MF: so the same searcher serves
schedulers that stop early.
"""

# N: trials, C: candidates, F: features, T: trees, L: levels

from typing import TYPE_CHECKING, ClassVar, final

from ..values import at_least
from .learner import Learner
from .with_sklearn import check_forests

if TYPE_CHECKING:
    import numpy as np

    from .encoding import Floats, Rows
    from .history import Data

_NUM_BEST = 10  # an improvement is one on so many
_FEW = 32  # trials, below which the quantiles stay as they are: too few to widen them by
_COVERED = (0.9, 0.7, 0.5, 0.3, 0.1)  # parts of the losses that pairs of quantiles shall hold, from outside in


@final
class CQRSearcher(Learner):
    """Conformal quantile regression: the configuration whose loss, drawn from what a forest thinks possible, is least.

    Args:
        num_init: so many trials must have a result before the model is asked; until then the space is filled evenly.
        max_rows: the forest is grown on so many trials at most, a quarter of them the best and the others the latest.
        num_trees: of the forest; a suggestion takes about as many times as long as there are more of them.
        num_candidates: so many configurations, drawn from the space, it chooses among.
        cost_attr: the name of a reported value that says what the trial has cost so far, such as seconds: then the
            greatest improvement on the ten best for each unit of cost is tried next. None: cost is no matter.

    Of several objectives it looks at the front that a trial is on, as NSGA-II does. What violates constraints is worse
    than all that do not.

    Raises:
        TypeError, ValueError: an argument of the wrong type or size.
        NotInstalled: scikit-learn is not there; the message names the extra.

    >>> from fanwise.tune import FIFOScheduler
    >>> scheduler = FIFOScheduler(CQRSearcher(), metric="validation_error")
    """

    budget_s: ClassVar[float | None] = 5.0
    libraries: ClassVar[tuple[str, ...]] = (*Learner.libraries, "scikit-learn")
    results_a_fit: ClassVar[int] = 80

    def __init__(
        self,
        *,
        num_init: int = 8,
        max_rows: int = 300,
        num_trees: int = 32,
        num_candidates: int = 1000,
        cost_attr: str | None = None,
    ) -> None:
        check_forests("CQRSearcher needs")
        super().__init__(num_init=num_init, max_rows=at_least("max_rows", max_rows, 4), cost_attr=cost_attr)
        self.num_trees = at_least("num_trees", num_trees, 1)
        self.num_candidates = at_least("num_candidates", num_candidates, 1)

    def fit(self, data: "Data", chance: "np.random.Generator") -> None:
        import numpy as np

        from .costs import Costs
        from .forest import Forest
        from .ranking import normal_scores, ranks

        score_N = normal_scores(ranks(data))
        features_NF = self.encoder.features(data.rows_ND)
        self._forest = Forest(features_NF, score_N, chance, num_trees=self.num_trees)
        self._widths_L = widths(self._forest.out_of_bag(), score_N)
        self._goal, self._worst = float(np.sort(score_N)[:_NUM_BEST][-1]), float(score_N.max())
        self._costs = None
        if data.costs_N is not None:
            self._costs = Costs(features_NF, data.costs_N, chance, num_trees=self.num_trees)

    def propose(self, pending_PD: "Rows", chance: "np.random.Generator") -> "Rows":
        import numpy as np

        rows_CD = self.encoder.candidates(self.num_candidates, chance)
        features_CF = self.encoder.features(rows_CD)
        pending_PF = self.encoder.features(pending_PD)
        answers_CT = np.sort(self._forest.means(features_CF, pending_PF, self._worst), axis=1)
        drawn_C = drawn(answers_CT, self._widths_L, chance.random(len(rows_CD)))
        if self._costs is not None:
            gain_C = np.maximum(self._goal - drawn_C, 0.0)
            return np.asarray(rows_CD[np.lexsort((drawn_C, -gain_C / self._costs.of(features_CF)))])
        return np.asarray(rows_CD[np.argsort(drawn_C, kind="stable")])

    def describe(self) -> dict[str, object]:
        return {
            **super().describe(),
            "num_trees": self.num_trees,
            "num_candidates": self.num_candidates,
            "cost_attr": self.cost_attr,
        }


def widths(answers_NT: "Floats", targets_N: "Floats") -> "Floats":
    """By how much to widen the pairs of quantiles `_COVERED`, so that they hold as many of the targets as they say.

    Args:
        answers_NT: of trees that have not seen the row, else NaN.
        targets_N: what came out.

    A pair that is too wide gets a width below 0. With too few targets nothing is widened.
    """
    import numpy as np

    from .forest import quantiles

    is_seen_N = np.isnan(answers_NT).all(axis=1)
    if np.sum(~is_seen_N) < _FEW:
        return np.zeros(len(_COVERED))
    answers_NT, targets_N = np.sort(answers_NT[~is_seen_N], axis=1), targets_N[~is_seen_N]
    found = []
    for covered in _COVERED:
        low_N, high_N = (quantiles(answers_NT, np.full(len(answers_NT), level)) for level in _pair(covered))
        outside_N = np.maximum(low_N - targets_N, targets_N - high_N)
        # Of a finite sample a little more than the part itself (Romano et al., arXiv 1905.03222, equation 8).
        level = min(1.0, covered * (1 + 1 / len(outside_N)))
        found.append(np.quantile(outside_N, level))
    return np.array(found)


def drawn(answers_CT: "Floats", widths_L: "Floats", levels_C: "Floats") -> "Floats":
    """The quantile of each row of sorted answers at its level, widened."""
    import numpy as np

    from .forest import quantiles

    covered_C = np.abs(2.0 * levels_C - 1.0)
    width_C = np.interp(covered_C, _COVERED[::-1], widths_L[::-1])
    return np.asarray(quantiles(answers_CT, levels_C) + np.where(levels_C < 0.5, -width_C, width_C))


def _pair(covered: float) -> tuple[float, float]:
    return (1.0 - covered) / 2, (1.0 + covered) / 2
