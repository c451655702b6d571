"""The default searcher, and helpers around sklearn for `permutation_importance`.

The default searcher is Bayesian optimization in the manner of SMAC (Hutter, Hoos and Leyton-Brown, LION 5, 2011,
section 4). It ranks candidates by expected improvement, with the mean and deviation of the predictions of the trees of
a forest. Unlike in SMAC, the trees are extremely randomized, because the average of their predictions is smoother when
there are few trials. Losses are replaced by normal scores of their ranks, so outliers and failures have bounded
influence. Candidates are sampled from the whole space. Sampling around good trials was worse in benchmarks, because
trees hardly distinguish nearby points. The default settings were selected on four of eight benchmark tables and
validated on the other four (docs/guides/searchers.md).
"""

# N: trials, C: candidates, P: running trials, D: hyperparameters, F: features, T: trees

from typing import TYPE_CHECKING, Any, ClassVar, final

from ...base.extras import check_installed
from ..default_searcher import NUM_INIT
from ..values import checked_int
from .model_based import ModelBasedSearcher

if TYPE_CHECKING:
    import numpy as np

    from .encoding import Floats, Rows
    from .observations import TrainingData


@final
class Forest:
    """T extremely randomized trees (Geurts, Ernst and Wehenkel, Machine Learning 63, 2006) on bootstrap samples.

    Trees are fitted one by one in the calling thread, so that the result is deterministic. The training data must be
    finite.
    """

    def __init__(
        self, features_NF: "Floats", targets_N: "Floats", rng: "np.random.Generator", *, num_trees: int
    ) -> None:
        import numpy as np
        from sklearn.tree import ExtraTreeRegressor

        features = features_NF.astype(np.float32)
        samples_TN = rng.integers(len(targets_N), size=(num_trees, len(targets_N)))
        self._trees: list[Any] = []
        for sample, seed in zip(samples_TN, rng.integers(2**31, size=num_trees).tolist(), strict=True):
            tree = ExtraTreeRegressor(max_features=1.0, random_state=seed)
            tree.fit(features[sample], targets_N[sample], check_input=False)
            self._trees.append(tree.tree_)

    def predict(
        self, features_CF: "Floats", pending_PF: "Floats | None" = None, pending_value: float = 0.0
    ) -> "Floats":
        """Return the prediction of each tree, (C, T).

        Each pending row counts as an observation of `pending_value` in its leaves ("constant liar").
        """
        import numpy as np

        features = features_CF.astype(np.float32)
        pending = None if pending_PF is None else pending_PF.astype(np.float32)
        predictions = np.empty((len(features), len(self._trees)))
        for index, tree in enumerate(self._trees):
            value = tree.value[:, 0, 0]
            if pending is not None and len(pending):
                count = tree.n_node_samples
                num_pending = np.bincount(tree.apply(pending), minlength=len(count))
                value = (value * count + pending_value * num_pending) / (count + num_pending)
            predictions[:, index] = value[tree.apply(features)]
        return predictions


@final
class ForestSearcher(ModelBasedSearcher):
    """Suggests the configuration with the highest expected improvement under a forest of trees.

    Several objectives are ranked by non-dominated sorting and crowding distance, as in NSGA-II. Trials that violate
    constraints rank behind all others. Running trials count as bad results, so that parallel suggestions spread out.

    Args:
        num_init: number of results before the model is used. Until then the space is covered evenly.
        num_trees: number of trees. The time of a suggestion is proportional to this number.
        num_candidates: number of candidates that are sampled for each suggestion.
        max_rows: maximum number of trials in the training data. A quarter are the best, the others the latest.

    Raises:
        TypeError, ValueError: an argument has the wrong type or value.
        NotInstalled: scikit-learn is missing; the message names the extra.

    >>> from fanwise.tune import FIFO
    >>> scheduler = FIFO(ForestSearcher(), metric="validation_error")
    """

    suggest_timeout_s: ClassVar[float | None] = 5.0
    _results_per_extra_suggestion: ClassVar[int] = 80

    def __init__(
        self, num_init: int = NUM_INIT, *, num_trees: int = 32, num_candidates: int = 1000, max_rows: int = 300
    ) -> None:
        check_sklearn("ForestSearcher needs")
        super().__init__(num_init=num_init, max_rows=max_rows)
        self.num_trees = checked_int("num_trees", num_trees, 1)
        self.num_candidates = checked_int("num_candidates", num_candidates, 1)

    @property
    def libraries(self) -> tuple[str, ...]:
        return (*super().libraries, "scikit-learn")

    def fit(self, data: "TrainingData", rng: "np.random.Generator") -> None:
        from .observations import normal_scores, ranks

        score_N = normal_scores(ranks(data))
        self._best, self._worst = float(score_N.min()), float(score_N.max())
        features_NF = self.encoder.features(data.rows_ND)
        self._forest = Forest(features_NF, score_N, rng, num_trees=self.num_trees)

    def propose(self, pending_PD: "Rows", rng: "np.random.Generator") -> "Rows":
        import numpy as np

        from .gaussian_process import log_expected_improvement

        rows_CD = self.encoder.candidates(self.num_candidates, rng)
        features_CF, pending_PF = self.encoder.features(rows_CD), self.encoder.features(pending_PD)
        predictions_CT = self._forest.predict(features_CF, pending_PF, self._worst)
        std_C = np.maximum(predictions_CT.std(axis=1), 1e-9)
        improvement_C = log_expected_improvement(self._best, predictions_CT.mean(axis=1), std_C)
        return rows_CD[np.argsort(-improvement_C, kind="stable")]

    def describe(self) -> dict[str, object]:
        settings = {"num_trees": self.num_trees, "num_candidates": self.num_candidates}
        return {**super().describe(), **settings}


def check_sklearn(subject: str) -> None:
    """Raise NotInstalled if scikit-learn is missing. The message starts with `subject`, e.g. "ForestSearcher needs"."""
    check_installed(subject, "sklearn", extra="forest")


def random_forest(num_trees: int, *, min_samples_leaf: int) -> Any:
    """Return a random forest with a fixed seed."""
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(num_trees, min_samples_leaf=min_samples_leaf, random_state=0)


def k_fold(num_folds: int, rows: Any) -> Any:
    """Iterate over (train, test) indices of shuffled folds with a fixed seed."""
    from sklearn.model_selection import KFold

    return KFold(num_folds, shuffle=True, random_state=0).split(rows)
