"""Permutation importance of hyperparameters.

A random forest predicts the rank of each trial from its configuration. Ranks go from 0 (best) to 1 (worst), so that
outliers have bounded influence. Importances are computed by 5-fold cross-validation on the trials that the forest was
not fitted to. The values of a hyperparameter are permuted among the trials that have it. To keep configurations valid,
conditional hyperparameters that no longer exist are removed, and new ones are sampled. (fANOVA, in contrast, integrates
over the whole space.) Of more than 2,000 trials, a random sample of that size is used, with a fixed seed.

The value of a trial is its best feasible report. Failed trials and trials without a feasible report are ignored. Trials
that were stopped early are compared with longer ones, so if there are many (`num_stopped`), ranks are less meaningful.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.text import counted
from .record.state import SearchState
from .searchers.with_sklearn import check_sklearn, k_fold, random_forest
from .space import space_from_json

if TYPE_CHECKING:
    from .searchers.encoding import Encoder, Floats, Rows

MIN_TRIALS = 10
_MAX_TRIALS = 2_000  # the time is about proportional
_FOLDS, _REPEATS, _TREES = 5, 5, 100
_MIN_CORRELATION = 0.3  # the model then explains a tenth of the variance of the ranks


class Importance(NamedTuple):
    """The increase of the prediction error when the values of a hyperparameter are permuted.

    `mean` is the increase of the squared error, divided by the variance of the ranks. `deviation` is the standard
    deviation of this ratio over folds and repetitions. A `mean` near 0 means that the hyperparameter does not matter or
    that the model is not good enough.
    """

    name: str
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Importances:
    """Importances of all hyperparameters.

    Args:
        metric: name of the objective.
        hyperparameters: importances, largest first.
        trials: ids of the trials that were used.
        predicted, actual: cross-validated predictions and true ranks of these trials, from 0 (best) to 1 (worst).
        correlation: correlation of `predicted` and `actual`. Near or below 0, the importances are meaningless.
        num_stopped: number of these trials that were stopped or paused before their end.
        num_results: number of trials with a result. If it exceeds 2,000, `trials` is a random sample of that size.
    """

    metric: str
    hyperparameters: Sequence[Importance]
    trials: Sequence[int]
    predicted: Sequence[float]
    actual: Sequence[float]
    correlation: float
    num_stopped: int
    num_results: int

    def in_words(self) -> str:
        """Return the number of trials, and the correlation and whether it is too low for the importances to mean much.

        >>> Importances("error", [], range(20), [], [], 0.1, num_stopped=0, num_results=50).in_words()
        '20 of 50 trials; predicted and actual ranks: correlation 0.10, too low to say anything'
        """
        sample = f"{len(self.trials):,} of " if len(self.trials) < self.num_results else ""
        stopped = f", {self.num_stopped:,} of them stopped or paused early" if self.num_stopped else ""
        verdict = "" if self.correlation >= _MIN_CORRELATION else ", too low to say anything"
        trials = f"{sample}{counted(self.num_results, 'trial')}{stopped}"
        return f"{trials}; predicted and actual ranks: correlation {self.correlation:.2f}{verdict}"


def importances_of(history: SearchState, metric: str | None = None) -> Importances:
    """Compute permutation importances (see `Experiment.importances`). Takes seconds.

    Raises NotInstalled if scikit-learn is missing, and ValueError as `Experiment.importances`.
    """
    import numpy as np
    from scipy.stats import rankdata

    from .searchers.encoding import Encoder

    objectives = {objective.metric: objective for objective in history.objectives}
    if metric is not None and metric not in objectives:
        names = ", ".join(map(repr, objectives))
        raise ValueError(f"the search has no objective {metric!r}; it has {names}")
    objective = history.objectives[0] if metric is None else objectives[metric]
    encoder = Encoder(space_from_json(history.meta["space"]))
    losses: dict[int, float] = {}  # trial id -> loss of its best feasible report
    for index, infeasibility, (value,) in history.counted_reports(objective.metric):
        if not infeasibility and isinstance(value, (int, float)) and math.isfinite(value):
            trial_id, loss = history.reports.trial_ids[index], objective.loss(float(value))
            losses[trial_id] = min(losses.get(trial_id, loss), loss)
    statuses = {trial_id: history.status_of(history.trials[trial_id]) for trial_id in losses}
    trial_ids = sorted(trial_id for trial_id, status in statuses.items() if status != "Failed")
    if len(trial_ids) < MIN_TRIALS or not encoder.names:
        problem = "no hyperparameters" if not encoder.names else f"{len(trial_ids)} trials with a result"
        needs = f"importances need at least {MIN_TRIALS} trials with a result, and a hyperparameter"
        raise ValueError(f"{needs}; the experiment has {problem}")
    check_sklearn("importances need")
    num_results = len(trial_ids)
    if num_results > _MAX_TRIALS:
        trial_ids = sorted(random.Random(0).sample(trial_ids, _MAX_TRIALS))
    ranks = (rankdata([losses[trial_id] for trial_id in trial_ids]) - 1.0) / max(1, len(trial_ids) - 1)
    rows = encoder.encode_all([history.trials[trial_id].config for trial_id in trial_ids])
    predicted, increases = _cross_validate(encoder, rows, ranks)
    importances = [
        Importance(name, float(np.mean(column)), float(np.std(column)))
        for name, column in zip(encoder.names, increases.T, strict=True)
    ]
    has_correlation = np.std(ranks) > 0 and np.std(predicted) > 0
    return Importances(
        objective.metric,
        sorted(importances, key=lambda importance: -importance.mean),
        trial_ids,
        predicted.tolist(),
        ranks.tolist(),
        float(np.corrcoef(predicted, ranks)[0, 1]) if has_correlation else 0.0,
        sum(statuses[trial_id] in ("Stopped", "Paused") for trial_id in trial_ids),
        num_results,
    )


def _cross_validate(encoder: "Encoder", rows: "Rows", ranks: "Floats") -> "tuple[Floats, Floats]":
    """Predict the rank of each trial with a forest that was fitted to other trials only.

    Return the predictions, and the increases of the prediction error (see `Importance`), with one column per
    hyperparameter and one row per fold and repetition.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    predicted, increases = np.empty(len(ranks)), []
    variance = float(np.var(ranks)) or 1.0
    for train, test in k_fold(_FOLDS, rows):
        inputs = [rows[test]]
        for _ in range(_REPEATS):
            inputs += [_permute(encoder, rows[test], column, rng) for column in range(encoder.num_dims)]
        forest = random_forest(_TREES, min_samples_leaf=2).fit(encoder.features(rows[train]), ranks[train])
        predictions = forest.predict(encoder.features(np.concatenate(inputs))).reshape(len(inputs), len(test))
        predicted[test] = predictions[0]
        errors = np.mean((predictions - ranks[test]) ** 2, axis=1)
        increases += ((errors[1:] - errors[0]) / variance).reshape(_REPEATS, encoder.num_dims).tolist()
    return predicted, np.array(increases)


def _permute(encoder: "Encoder", rows: "Rows", column: int, rng: Any) -> "Rows":
    """Return valid rows in which the values of one hyperparameter are permuted among the rows that have it."""
    import numpy as np

    result = rows.copy()
    indices = np.flatnonzero(~np.isnan(rows[:, column]))
    new_rows = rows[indices]
    new_rows[:, column] = rows[rng.permutation(indices), column]
    is_absent = np.isnan(new_rows)
    if is_absent.any():
        new_rows[is_absent] = rng.random(int(is_absent.sum()))
    result[indices] = encoder.snap(new_rows)
    return result
