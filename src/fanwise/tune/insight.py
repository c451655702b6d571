"""What a search has learnt: how much each hyperparameter matters, and whether a model can tell at all.

    History --importances_of--> Importances: a share for each hyperparameter, with its spread
                                             predicted against seen, of trials that the model has not seen

Permutation importance on a forest of scikit-learn, and not fANOVA: that one averages over the whole cube of the space,
also where hyperparameters do not exist; here the values of one are exchanged among the trials that have it, so every
configuration that the model is asked about is one of the space. The forest learns ranks, 0 for the best trial and 1 for
the worst, so that one diverged trial does not decide. All is measured on trials left out of the fit, in five folds.

A trial counts with its best report that meets all constraints, also if it was stopped early; failed trials, and those
without such a report, are left out. Where many were stopped, early values are compared with late ones: see
`num_stopped`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from .record.history import History, best_rows
from .spaces import Space

FEWEST_TRIALS = 10
_FOLDS, _REPEATS, _TREES = 5, 5, 100


@final
@dataclass(frozen=True, slots=True)
class Importance:
    """How much worse the model predicts when it is told another trial's value of this hyperparameter.

    `mean` is the share of the spread of the trials' ranks that it explains less, `deviation` its standard deviation
    over folds and repetitions. About 0: it does not matter, or the model cannot tell.
    """

    name: str
    mean: float
    deviation: float


@final
@dataclass(frozen=True, slots=True)
class Importances:
    """Args:
    hyperparameters: the most important one first.
    trials: ids; `predicted` and `seen` are their ranks, 0 for the best: by a model that did not know the trial, and
        as they were.
    correlation: of the two; near 0 or below the model knows nothing, and the importances say nothing.
    num_stopped: of the trials, so many were stopped early.
    """

    hyperparameters: Sequence[Importance]
    trials: Sequence[int]
    predicted: Sequence[float]
    seen: Sequence[float]
    correlation: float
    num_stopped: int


def importances_of(meta: Mapping[str, Any], history: History) -> Importances:  # Any: JSON
    """See the module; takes about a second for a few hundred trials.

    Raises:
        ValueError: fewer than ten trials have a result, or the space has no hyperparameters.
    """
    import numpy as np

    from .searchers.encoding import Encoder

    encoder = Encoder(Space.from_json(meta["space"]))
    beyond = history.infeasibilities()
    rows = {
        trial_id: row
        for trial_id, row in best_rows(history).items()
        if not beyond[row] and history.status_of(history.trials[trial_id]) != "Failed"
    }
    if len(rows) < FEWEST_TRIALS or not encoder.names:
        what = "no hyperparameters" if not encoder.names else f"{len(rows)} trials with a result"
        raise ValueError(
            f"importances need at least {FEWEST_TRIALS} trials with a result, and a hyperparameter; this has {what}"
        )
    trials = sorted(rows)
    inputs = encoder.rows([history.trials[trial_id].config for trial_id in trials])
    sign = 1.0 if history.mode == "min" else -1.0
    seen = _ranks(np.array([sign * history.reports.values[history.metric][rows[trial_id]] for trial_id in trials]))
    predicted, drops = _cross_validated(encoder, inputs, seen)
    known = np.std(seen) > 0 and np.std(predicted) > 0
    found = [
        Importance(name, float(np.mean(drop)), float(np.std(drop)))
        for name, drop in zip(encoder.names, drops.T, strict=True)
    ]
    return Importances(
        sorted(found, key=lambda one: -one.mean),
        trials,
        predicted.tolist(),
        seen.tolist(),
        float(np.corrcoef(predicted, seen)[0, 1]) if known else 0.0,
        sum(history.status_of(history.trials[trial_id]) == "Stopped" for trial_id in trials),
    )


def _ranks(losses: Any) -> Any:  # Any: arrays
    """From 0 to 1; equal losses share a rank."""
    import numpy as np

    _, first, counts = np.unique(losses, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return middle[first] / max(1, len(losses) - 1)


def _cross_validated(encoder: Any, inputs: Any, seen: Any) -> tuple[Any, Any]:  # Any: arrays
    """What is predicted for each trial, and for each hyperparameter (column) what is lost, in each fold and turn."""
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.model_selection import KFold

    chance = np.random.default_rng(0)
    predicted, drops = np.empty(len(seen)), []
    spread = float(np.var(seen)) or 1.0
    for rest, held in KFold(_FOLDS, shuffle=True, random_state=0).split(inputs):
        forest = RandomForestRegressor(_TREES, min_samples_leaf=2, random_state=0)
        forest.fit(encoder.features(inputs[rest]), seen[rest])
        predicted[held] = forest.predict(encoder.features(inputs[held]))
        error = np.mean((predicted[held] - seen[held]) ** 2)
        for _ in range(_REPEATS):
            drop = []
            for column in range(inputs.shape[1]):
                changed = inputs[held].copy()
                has_it = np.flatnonzero(~np.isnan(changed[:, column]))
                changed[has_it, column] = changed[chance.permutation(has_it), column]
                told = forest.predict(encoder.features(changed))
                drop.append((np.mean((told - seen[held]) ** 2) - error) / spread)
            drops.append(drop)
    return predicted, np.array(drops)
