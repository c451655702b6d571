"""What a search has learnt: how much each hyperparameter matters, in which direction, and whether a model can tell.

    SearchState --importances_of--> Importances: a share for each hyperparameter, with its spread
                                             predicted against seen, of trials that the model has not seen
            --dependences_of--> Dependences: what is predicted at each value of a hyperparameter

Permutation importance on a forest of scikit-learn, and not fANOVA: that one averages over the whole cube of the space,
also where hyperparameters do not exist; here the values of one are exchanged among the trials that have it, so every
configuration that the model is asked about is one of the space: what exists only beside the new value gets a random
one of its own, and what no longer exists goes. The forest learns ranks, 0 for the best trial and 1 for the worst, so
that one diverged trial does not decide. How good it is is measured on trials left out of the fit, in five folds.

A trial counts with its best report that meets all constraints, also if it was stopped early; failed trials, and those
without such a report, are left out. Where many were stopped, early values are compared with late ones: see
`num_stopped`.
"""
# N: trials, D: hyperparameters, G: values of one hyperparameter

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from ..base.nearest import nearest
from .fronts import objectives_of
from .record.state import SearchState
from .searchers.base import Objective
from .searchers.with_sklearn import check_forests, folds, random_forest
from .spaces import Space

if TYPE_CHECKING:
    from .searchers.encoding import Encoder, Floats, Rows

FEWEST_TRIALS = 10
_FOLDS, _REPEATS, _TREES = 5, 5, 100
_MOST_VALUES = 25  # of a hyperparameter are looked at
_MOST_AVERAGED = 200  # trials


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
    metric: what it is about.
    hyperparameters: the most important one first.
    trials: ids; `predicted` and `seen` are their ranks, 0 for the best: by a model that did not know the trial, and
        as they were.
    correlation: of the two; near 0 or below the model knows nothing, and the importances say nothing.
    num_stopped: of the trials, so many were stopped or paused before their end.
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
    """Which rank the model predicts, 0 for the best trial and 1 for the worst, at values of one hyperparameter.

    Args:
        values: all, or 25 that are evenly spaced on the domain's own scale.
        means: of the trials that have the hyperparameter, each with all its other values.
        lows, highs: the middle 80 % of these. Where means hardly change and these are far apart, the others decide.
    """

    name: str
    values: Sequence[object]
    means: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]


@final
@dataclass(frozen=True, slots=True)
class Dependences:
    """Args:
    metric: what it is about.
    hyperparameters: in the order of the space; without those that no trial has.
    quarters: the metric's values at the ranks 0, 0.25, 0.5, 0.75 and 1: what a rank stands for.
    correlation: of predicted and seen ranks, as in `Importances`; near 0 or below they say nothing.
    """

    metric: str
    hyperparameters: Sequence[Dependence]
    quarters: Sequence[float]
    correlation: float


@dataclass(frozen=True, slots=True)
class _Data:
    """The trials that count. `ranks`: 0 for the best, 1 for the worst; equal values share one."""

    objective: Objective
    encoder: "Encoder"
    trials: Sequence[int]
    rows_ND: "Rows"
    values: Sequence[float]
    ranks: "Floats"
    num_stopped: int


def importances_of(meta: Mapping[str, Any], history: SearchState, metric: str | None = None) -> Importances:
    """See the module; takes about a second for a few hundred trials.

    Raises:
        ValueError: fewer than ten trials have a result, the space has no hyperparameters, or this is no objective.
        NotInstalled: scikit-learn is not there: `fanwise[forest]`.
    """
    import numpy as np

    data = _data(meta, history, metric)
    predicted, drops = _cross_validated(data, _REPEATS)
    found = [
        Importance(name, float(np.mean(drop)), float(np.std(drop)))
        for name, drop in zip(data.encoder.names, drops.T, strict=True)
    ]
    return Importances(
        data.objective.metric,
        sorted(found, key=lambda one: -one.mean),
        data.trials,
        predicted.tolist(),
        data.ranks.tolist(),
        _correlation(predicted, data.ranks),
        data.num_stopped,
    )


def dependences_of(meta: Mapping[str, Any], history: SearchState, metric: str | None = None) -> Dependences:
    """Partial dependence (Friedman 2001, section 8.2), with its spread. See the module. Raises as `importances_of`."""
    import numpy as np

    data = _data(meta, history, metric)
    predicted, _ = _cross_validated(data, 0)
    forest = _forest().fit(data.encoder.features(data.rows_ND), data.ranks)
    chance = np.random.default_rng(0)
    found = []
    for column, name in enumerate(data.encoder.names):
        having = data.rows_ND[~np.isnan(data.rows_ND[:, column])]
        if not len(having):
            continue
        having = having[chance.permutation(len(having))[:_MOST_AVERAGED]]
        units_G = _places(data.encoder, column)
        asked = [_told(data.encoder, having, column, unit, chance) for unit in units_G]
        ranks_GN = forest.predict(data.encoder.features(np.concatenate(asked))).reshape(len(units_G), len(having))
        lows, highs = np.quantile(ranks_GN, [0.1, 0.9], axis=1)
        domain = data.encoder.domains[column]
        values = [domain.from_unit(float(unit)) for unit in units_G]
        found.append(Dependence(name, values, ranks_GN.mean(axis=1).tolist(), lows.tolist(), highs.tolist()))
    ordered = np.sort(data.values)[:: 1 if data.objective.mode == "min" else -1]
    quarters = [float(ordered[round(share * (len(ordered) - 1))]) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return Dependences(data.objective.metric, found, quarters, _correlation(predicted, data.ranks))


def _data(meta: Mapping[str, Any], history: SearchState, metric: str | None) -> _Data:  # Any: JSON
    import numpy as np

    from .searchers.encoding import Encoder

    objective = _objective(objectives_of(meta), metric)
    encoder = Encoder(Space.from_json(meta["space"]))
    beyond = history.infeasibilities()
    rows = {
        trial_id: row
        for trial_id, row in history.best_rows(objective).items()
        if not beyond[row] and history.status_of(history.trials[trial_id]) != "Failed"
    }
    if len(rows) < FEWEST_TRIALS or not encoder.names:
        what = "no hyperparameters" if not encoder.names else f"{len(rows)} trials with a result"
        raise ValueError(
            f"importances need at least {FEWEST_TRIALS} trials with a result, and a hyperparameter; this has {what}"
        )
    check_forests("importances need")
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


def _ranks(losses: Any) -> Any:  # Any: arrays
    """From 0 to 1; equal losses share a rank."""
    import numpy as np

    _, first, counts = np.unique(losses, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return middle[first] / max(1, len(losses) - 1)


def _correlation(predicted: Any, seen: Any) -> float:  # Any: arrays
    import numpy as np

    is_known = np.std(seen) > 0 and np.std(predicted) > 0
    return float(np.corrcoef(predicted, seen)[0, 1]) if is_known else 0.0


def _forest() -> Any:  # Any: scikit-learn has no types
    return random_forest(_TREES, least_rows=2)


def _cross_validated(data: _Data, num_repeats: int) -> tuple[Any, Any]:  # Any: arrays
    """What is predicted for each trial, and for each hyperparameter (column) what is lost, in each fold and turn."""
    import numpy as np

    encoder, rows_ND, seen = data.encoder, data.rows_ND, data.ranks
    chance = np.random.default_rng(0)
    predicted, drops = np.empty(len(seen)), []
    spread = float(np.var(seen)) or 1.0
    for rest, held in folds(_FOLDS, rows_ND):
        asked = [rows_ND[held]]
        for _ in range(num_repeats):
            asked += [_exchanged(encoder, rows_ND[held], column, chance) for column in range(encoder.num_dims)]
        forest = _forest().fit(encoder.features(rows_ND[rest]), seen[rest])
        told = forest.predict(encoder.features(np.concatenate(asked))).reshape(len(asked), len(held))
        predicted[held] = told[0]
        errors = np.mean((told - seen[held]) ** 2, axis=1)
        drops += ((errors[1:] - errors[0]) / spread).reshape(num_repeats, encoder.num_dims).tolist()
    return predicted, np.array(drops)


def _exchanged(encoder: "Encoder", rows_ND: "Rows", column: int, chance: Any) -> "Rows":  # Any: numpy
    """The rows, each with another one's value of one hyperparameter, among those that have it."""
    import numpy as np

    changed = rows_ND.copy()
    having = np.flatnonzero(~np.isnan(changed[:, column]))
    changed[having] = _told(encoder, changed[having], column, changed[chance.permutation(having), column], chance)
    return changed


def _told(encoder: "Encoder", rows_ND: "Rows", column: int, units_N: Any, chance: Any) -> "Rows":  # Any: numpy
    """The rows with other values of one hyperparameter, as configurations of the space."""
    import numpy as np

    changed = rows_ND.copy()
    changed[:, column] = units_N
    lacking = np.isnan(changed)
    if lacking.any():
        changed[lacking] = chance.random(int(lacking.sum()))
    return encoder.snapped(changed)


def _places(encoder: "Encoder", column: int) -> Any:  # Any: an array
    """Where the values stand that are looked at."""
    import numpy as np

    domain = encoder.domains[column]
    even = (np.arange(_MOST_VALUES) + 0.5) / _MOST_VALUES
    if domain.num_values is None:
        return even
    if domain.num_values <= _MOST_VALUES:
        return encoder.middles(column)
    return np.unique([domain.to_unit(domain.from_unit(unit)) for unit in even.tolist()])
