"""Conversion of an experiment to an Optuna study.

Completed trials become COMPLETE, stopped ones PRUNED and failed ones FAIL; running and paused trials are omitted. The
last report of a trial is its value; with one objective, all reports are intermediate values.
"""

from datetime import datetime, timedelta
from typing import Any

from ..base.errors import NotInstalled
from .constraints import violations_of
from .record.state import SearchState
from .record.trials import Trial
from .space import space_from_json

try:
    import optuna

    from .searchers.with_optuna import distributions
except ImportError as error:
    raise NotInstalled("to_optuna() needs Optuna. Install it: pip install 'fanwise[optuna]'.") from error

_STATES: Any = {"Completed": "COMPLETE", "Stopped": "PRUNED", "Failed": "FAIL"}


def study_of(history: SearchState, meta: dict[str, Any]) -> "optuna.Study":
    """Return an in-memory study with the trials in the order in which they started.

    Args:
        history: the experiment.
        meta: metadata of its record.

    Raises:
        ValueError: a domain or constant of the space has no counterpart in Optuna.
    """
    objectives = [(str(metric), str(mode)) for metric, mode in meta["objectives"]]
    directions = ["minimize" if mode == "min" else "maximize" for _, mode in objectives]
    study = optuna.create_study(directions=directions, study_name=str(meta["name"]))
    space = distributions(space_from_json(meta["space"]))
    start = datetime.fromtimestamp(meta["created_s"])
    reports = _reports(history)
    for trial in history.trials.values():
        status = history.status_of(trial)
        if status not in _STATES:
            continue
        rows = reports.get(trial.trial_id, [])
        frozen = optuna.trial.create_trial(
            state=optuna.trial.TrialState[_STATES[status]],
            params={name: value for name, value in trial.config.items() if name in space},
            distributions={name: space[name] for name in trial.config if name in space},
            values=_values(history, rows, objectives) if status == "Completed" else None,
            intermediate_values=_curve(history, rows, objectives),
            user_attrs={"trial_id": trial.trial_id} | _reason(trial),
            system_attrs=_constraints(history, rows),
        )
        frozen.datetime_start = start + timedelta(seconds=trial.attempts[0].started_s)
        if trial.last.ended_s is not None:
            frozen.datetime_complete = start + timedelta(seconds=trial.last.ended_s)
        study.add_trial(frozen)
    return study


def _reports(history: SearchState) -> dict[int, list[int]]:
    """Map trial ids to the rows of their valid reports."""
    rows: dict[int, list[int]] = {}
    for row, (trial_id, counts) in enumerate(zip(history.reports.trial_ids, history.counts(), strict=True)):
        if counts:
            rows.setdefault(trial_id, []).append(row)
    return rows


def _values(history: SearchState, rows: list[int], objectives: list[tuple[str, str]]) -> list[float]:
    return [float(history.reports.values[metric][rows[-1]]) for metric, _ in objectives]


def _constraints(history: SearchState, rows: list[int]) -> dict[str, Any]:
    """Return the constraint violations of the last report, as Optuna stores them."""
    if not history.constraints or not rows:
        return {}
    last = {name: column[rows[-1]] for name, column in history.reports.values.items()}
    return {"constraints": [float(violation) for violation in violations_of(history.constraints, last)]}


def _curve(history: SearchState, rows: list[int], objectives: list[tuple[str, str]]) -> dict[int, float]:
    if len(objectives) > 1:  # Optuna supports intermediate values of one objective only
        return {}
    metric = objectives[0][0]
    return {history.reports.iters[row]: float(history.reports.values[metric][row]) for row in rows}


def _reason(trial: Trial) -> dict[str, str]:
    failure = trial.last.failure
    return {} if failure is None else {"reason": f"{failure.kind}: {failure.text.partition(chr(10))[0]}"}
