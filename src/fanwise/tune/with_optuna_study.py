"""Conversion of an experiment to an Optuna study.

Completed trials become COMPLETE, stopped ones PRUNED and failed ones FAIL. Running and paused trials are omitted. The
value of a completed trial is its last report. With one objective, all reports become intermediate values.
"""

from datetime import datetime, timedelta
from typing import Any

import optuna

from .constraints import violations_of
from .record.state import SearchState
from .searchers.with_optuna import distributions
from .space import space_from_json

_STATES: Any = {"Completed": "COMPLETE", "Stopped": "PRUNED", "Failed": "FAIL"}


def study_of(history: SearchState) -> "optuna.Study":
    """Return the study of `Experiment.to_optuna`, with the trials in the order in which they started."""
    metrics = [objective.metric for objective in history.objectives]
    directions = ["minimize" if objective.mode == "min" else "maximize" for objective in history.objectives]
    study = optuna.create_study(directions=directions, study_name=history.name)
    space = distributions(space_from_json(history.meta["space"]))
    start = datetime.fromtimestamp(history.meta["created_s"])
    counted_indices = history.counted_indices()
    for trial in history.trials.values():
        status = history.status_of(trial)
        if status not in _STATES:
            continue
        indices = counted_indices.get(trial.trial_id, [])
        columns = [history.reports.values.get(metric, []) for metric in metrics]
        curve = {history.reports.iters[index]: float(columns[0][index]) for index in indices}
        failure = trial.last.failure
        reason = {} if failure is None else {"reason": f"{failure.kind}: {failure.text.partition(chr(10))[0]}"}
        frozen_trial = optuna.trial.create_trial(
            state=optuna.trial.TrialState[_STATES[status]],
            params={name: value for name, value in trial.config.items() if name in space},
            distributions={name: space[name] for name in trial.config if name in space},
            values=[float(column[indices[-1]]) for column in columns] if status == "Completed" else None,
            intermediate_values=curve if len(metrics) == 1 else {},  # Optuna allows them for one objective only
            user_attrs={"trial_id": trial.trial_id} | reason,
            system_attrs=_constraint_attrs(history, indices),
        )
        frozen_trial.datetime_start = start + timedelta(seconds=trial.attempts[0].started_s)
        if trial.last.ended_s is not None:
            frozen_trial.datetime_complete = start + timedelta(seconds=trial.last.ended_s)
        study.add_trial(frozen_trial)
    return study


def _constraint_attrs(history: SearchState, indices: list[int]) -> dict[str, Any]:
    """Return the system attributes in which Optuna stores the constraint violations of the last report."""
    if not history.constraints or not indices:
        return {}
    last_report = {name: column[indices[-1]] for name, column in history.reports.values.items()}
    return {"constraints": [float(violation) for violation in violations_of(history.constraints, last_report)]}
