"""Permutation importance and partial dependence of hyperparameters.

A random forest predicts the ranks of the trials, 0 for the best and 1 for the worst, so that outliers have bounded
influence. Importances are computed by 5-fold cross-validation. In contrast to fANOVA, which integrates over the whole
space, values are permuted among the trials that have the hyperparameter, so that all configurations are valid:
conditional hyperparameters that begin to exist are sampled, and those that cease to exist are removed.

The value of a trial is its best feasible report. Failed trials, and those without such a report, are ignored. If many
trials were stopped early, values at different resources are compared; see `num_stopped`.
"""
# N: trials, D: hyperparameters, G: values of one hyperparameter

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from ..base.nearest import nearest
from .pareto_results import objectives_of
from .record.state import SearchState
from .searchers.searcher import Objective
from .searchers.with_sklearn import check_sklearn, k_fold, random_forest
from .space import space_from_json

if TYPE_CHECKING:
    from .searchers.encoding import Encoder, Floats, Rows

MIN_TRIALS = 10
_FOLDS, _REPEATS, _TREES = 5, 5, 100
_MAX_VALUES = 25  # of a hyperparameter in a partial dependence
_MAX_AVERAGED = 200  # trials in a partial dependence


@final
@dataclass(frozen=True, slots=True)
class Importance:
    """The increase of the prediction error when the values of a hyperparameter are permuted.

    `mean` is the increase of the squared error divided by the variance of the ranks, and `deviation` its standard
    deviation over folds and repetitions. A value near 0 means that the hyperparameter does not matter or that the model
    is not good enough.
    """

    name: str
    mean: float
    deviation: float


@final
@dataclass(frozen=True, slots=True)
class Importances:
    """Importances of all hyperparameters.

    Args:
        hyperparameters: importances, largest first.
        trials: trial ids.
        predicted, seen: cross-validated predictions and true ranks of these trials, 0 for the best.
        correlation: correlation of the two. If it is near 0 or negative, the importances are meaningless.
        num_stopped: number of these trials that were stopped or paused before their end.
    """

    metric: str
    hyperparameters: Sequence[Importance]
    trials: Sequence[int]
    predicted: Sequence[float]
    seen: Sequence[float]
    correlation: float
    num_stopped: int


@final
@dataclass(frozen=True, slots=True)
class Dependence:
    """Predicted ranks at values of one hyperparameter, 0 for the best trial and 1 for the worst.

    Args:
        values: all values, or 25 that are evenly spaced on the scale of the domain.
        means: mean prediction over the trials that have the hyperparameter.
        lows, highs: 10 % and 90 % quantiles of the predictions. If they are far apart while the means hardly change,
            other hyperparameters are more important.
    """

    name: str
    values: Sequence[object]
    means: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]


@final
@dataclass(frozen=True, slots=True)
class Dependences:
    """Partial dependences of all hyperparameters.

    Args:
        hyperparameters: in the order of the space, except those that no trial has.
        quarters: values of the metric at the ranks 0, 0.25, 0.5, 0.75 and 1.
        correlation: correlation of predicted and true ranks, as in `Importances`.
    """

    metric: str
    hyperparameters: Sequence[Dependence]
    quarters: Sequence[float]
    correlation: float


@dataclass(frozen=True, slots=True)
class _Data:
    """The trials with a value. `ranks`: 0 for the best, 1 for the worst; ties share a rank."""

    objective: Objective
    encoder: "Encoder"
    trials: Sequence[int]
    rows_ND: "Rows"
    values: Sequence[float]
    ranks: "Floats"
    num_stopped: int


def importances_of(meta: Mapping[str, Any], history: SearchState, metric: str | None = None) -> Importances:
    """Compute permutation importances. Takes about a second for a few hundred trials.

    Raises:
        ValueError: fewer than ten trials have a result, the space has no hyperparameters, or `metric` is not an
            objective.
        NotInstalled: scikit-learn is missing; the extra is `fanwise[forest]`.
    """
    import numpy as np

    data = _data(meta, history, metric)
    predicted, drops = _cross_validated(data, _REPEATS)
    importances = [
        Importance(name, float(np.mean(drop)), float(np.std(drop)))
        for name, drop in zip(data.encoder.names, drops.T, strict=True)
    ]
    return Importances(
        data.objective.metric,
        sorted(importances, key=lambda importance: -importance.mean),
        data.trials,
        predicted.tolist(),
        data.ranks.tolist(),
        _correlation(predicted, data.ranks),
        data.num_stopped,
    )


def dependences_of(meta: Mapping[str, Any], history: SearchState, metric: str | None = None) -> Dependences:
    """Compute partial dependences (Friedman 2001, section 8.2). Raises as `importances_of`."""
    import numpy as np

    data = _data(meta, history, metric)
    predicted, _ = _cross_validated(data, 0)
    forest = _forest().fit(data.encoder.features(data.rows_ND), data.ranks)
    rng = np.random.default_rng(0)
    dependences = []
    for column, name in enumerate(data.encoder.names):
        rows = data.rows_ND[~np.isnan(data.rows_ND[:, column])]
        if not len(rows):
            continue
        rows = rows[rng.permutation(len(rows))[:_MAX_AVERAGED]]
        units_G = _units(data.encoder, column)
        changed = [_with_values(data.encoder, rows, column, unit, rng) for unit in units_G]
        ranks_GN = forest.predict(data.encoder.features(np.concatenate(changed))).reshape(len(units_G), len(rows))
        lows, highs = np.quantile(ranks_GN, [0.1, 0.9], axis=1)
        domain = data.encoder.domains[column]
        values = [domain.from_unit(float(unit)) for unit in units_G]
        dependences.append(Dependence(name, values, ranks_GN.mean(axis=1).tolist(), lows.tolist(), highs.tolist()))
    ordered = np.sort(data.values)[:: 1 if data.objective.mode == "min" else -1]
    quarters = [float(ordered[round(share * (len(ordered) - 1))]) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return Dependences(data.objective.metric, dependences, quarters, _correlation(predicted, data.ranks))


def _data(meta: Mapping[str, Any], history: SearchState, metric: str | None) -> _Data:
    import numpy as np

    from .searchers.encoding import Encoder

    objective = _objective(objectives_of(meta), metric)
    encoder = Encoder(space_from_json(meta["space"]))
    infeasibilities = history.infeasibilities()
    rows = {
        trial_id: row
        for trial_id, row in history.best_rows(objective).items()
        if not infeasibilities[row] and history.status_of(history.trials[trial_id]) != "Failed"
    }
    if len(rows) < MIN_TRIALS or not encoder.names:
        problem = "no hyperparameters" if not encoder.names else f"{len(rows)} trials with a result"
        raise ValueError(
            f"importances need at least {MIN_TRIALS} trials with a result, and a hyperparameter; the experiment has "
            f"{problem}"
        )
    check_sklearn("importances need")
    trials = sorted(rows)
    column = history.reports.values[objective.metric]
    values = [float(column[rows[trial_id]]) for trial_id in trials]
    return _Data(
        objective,
        encoder,
        trials,
        encoder.rows([history.trials[trial_id].config for trial_id in trials]),
        values,
        _ranks(np.array([objective.loss(value) for value in values])),
        sum(history.status_of(history.trials[trial_id]) in ("Stopped", "Paused") for trial_id in trials),
    )


def _objective(objectives: Sequence[Objective], metric: str | None) -> Objective:
    for objective in objectives:
        if metric in (None, objective.metric):
            return objective
    names = [objective.metric for objective in objectives]
    hint = nearest(str(metric), names)
    raise ValueError(
        f"the search has no objective {metric!r}; it has {', '.join(map(repr, names))}"
        + (f". Did you mean {hint!r}?" if hint else "")
    )


def _ranks(losses: Any) -> Any:
    """Return ranks from 0 to 1; ties share a rank."""
    import numpy as np

    _, first, counts = np.unique(losses, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return middle[first] / max(1, len(losses) - 1)


def _correlation(predicted: Any, actual: Any) -> float:
    import numpy as np

    is_known = np.std(actual) > 0 and np.std(predicted) > 0
    return float(np.corrcoef(predicted, actual)[0, 1]) if is_known else 0.0


def _forest() -> Any:
    return random_forest(_TREES, min_samples_leaf=2)


def _cross_validated(data: _Data, num_repeats: int) -> tuple[Any, Any]:
    """Return cross-validated predictions, (N,), and error increases per fold and repetition, (folds * repeats, D)."""
    import numpy as np

    encoder, rows_ND, actual = data.encoder, data.rows_ND, data.ranks
    rng = np.random.default_rng(0)
    predicted, drops = np.empty(len(actual)), []
    spread = float(np.var(actual)) or 1.0
    for train, test in k_fold(_FOLDS, rows_ND):
        changed = [rows_ND[test]]
        for _ in range(num_repeats):
            changed += [_permuted(encoder, rows_ND[test], column, rng) for column in range(encoder.num_dims)]
        forest = _forest().fit(encoder.features(rows_ND[train]), actual[train])
        predictions = forest.predict(encoder.features(np.concatenate(changed))).reshape(len(changed), len(test))
        predicted[test] = predictions[0]
        errors = np.mean((predictions - actual[test]) ** 2, axis=1)
        drops += ((errors[1:] - errors[0]) / spread).reshape(num_repeats, encoder.num_dims).tolist()
    return predicted, np.array(drops)


def _permuted(encoder: "Encoder", rows_ND: "Rows", column: int, rng: Any) -> "Rows":
    """Permute the values of one hyperparameter among the rows that have it."""
    import numpy as np

    changed = rows_ND.copy()
    present = np.flatnonzero(~np.isnan(changed[:, column]))
    values = changed[rng.permutation(present), column]
    changed[present] = _with_values(encoder, changed[present], column, values, rng)
    return changed


def _with_values(encoder: "Encoder", rows_ND: "Rows", column: int, units_N: Any, rng: Any) -> "Rows":
    """Replace the values of one hyperparameter, and make the rows valid configurations."""
    import numpy as np

    changed = rows_ND.copy()
    changed[:, column] = units_N
    absent = np.isnan(changed)
    if absent.any():
        changed[absent] = rng.random(int(absent.sum()))
    return encoder.snapped(changed)


def _units(encoder: "Encoder", column: int) -> Any:
    """Return the units of the values of a partial dependence."""
    import numpy as np

    domain = encoder.domains[column]
    even = (np.arange(_MAX_VALUES) + 0.5) / _MAX_VALUES
    if domain.num_values is None:
        return even
    if domain.num_values <= _MAX_VALUES:
        return encoder.middles(column)
    return np.unique([domain.to_unit(domain.from_unit(unit)) for unit in even.tolist()])
