"""The default searcher: Bayesian optimization with a Gaussian process (Snoek, Larochelle and Adams, NeurIPS 2012).

Losses are replaced by normal scores of their ranks, so outliers and failures have bounded influence. Candidates are
sampled from the whole space and ranked by expected improvement over the best prediction for a finished trial.
docs/guides/searchers.md has the measurements.
"""

from typing import TYPE_CHECKING, ClassVar, final

from ..default_searcher import NUM_INIT
from ..values import checked_int
from .model_based import ModelBasedSearcher

if TYPE_CHECKING:
    import numpy as np

    from .encoding import Rows
    from .observations import TrainingData


@final
class GPSearcher(ModelBasedSearcher):
    """Suggests the configuration with the highest expected improvement under a Gaussian process.

    Several objectives are ranked by non-dominated sorting and crowding distance, as in NSGA-II. Trials that violate
    constraints rank behind all others, and failed trials last. Running trials count as if they had their predicted
    results, so that parallel suggestions spread out.

    Args:
        num_init: number of results before the model is used. Until then the space is covered evenly.
        num_candidates: number of candidates that are sampled for each suggestion.
        max_rows: maximum number of trials in the training data. A quarter are the best, the others the latest. The time
            of a fit grows with its cube.

    Raises:
        TypeError, ValueError: an argument has the wrong type or value.

    >>> from fanwise.tune import FIFO
    >>> scheduler = FIFO(GPSearcher(), metric="validation_error")
    """

    suggest_timeout_s: ClassVar[float | None] = 5.0
    _results_per_extra_suggestion: ClassVar[int] = 80

    def __init__(self, num_init: int = NUM_INIT, *, num_candidates: int = 1000, max_rows: int = 200) -> None:
        super().__init__(num_init=num_init, max_rows=max_rows)
        self.num_candidates = checked_int("num_candidates", num_candidates, 1)

    def fit(self, data: "TrainingData", rng: "np.random.Generator") -> None:
        from .gaussian_process import GaussianProcess, single_threaded_blas
        from .observations import normal_scores, ranks

        features_NF = self.encoder.features(data.rows_ND)
        with single_threaded_blas():
            self._model = GaussianProcess(features_NF, normal_scores(ranks(data)), self.encoder.feature_groups())
            self._best = float(self._model.predict(features_NF)[0].min())

    def propose(self, pending_PD: "Rows", rng: "np.random.Generator") -> "Rows":
        import numpy as np

        from .gaussian_process import log_expected_improvement, single_threaded_blas

        rows_CD = self.encoder.candidates(self.num_candidates, rng)
        with single_threaded_blas():
            model = self._model.add_pending(self.encoder.features(pending_PD))
            mean_C, std_C = model.predict(self.encoder.features(rows_CD))
        return rows_CD[np.argsort(-log_expected_improvement(self._best, mean_C, std_C), kind="stable")]

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "num_candidates": self.num_candidates}
