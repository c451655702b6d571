"""The tables of an experiment as pandas data frames, made of a `SearchState`.

pandas is imported inside the functions: that takes a third of a second, and a search does not need it.

A reported value whose name is a column of ours appears as `reported_<name>`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from .state import SearchState
from .trials import Trial

if TYPE_CHECKING:
    import pandas as pd

_RESULTS_BEFORE = ("trial_id",)
_RESULTS_AFTER = (
    "st_attempt",
    "st_tuner_time",
    "st_worker_time",
    "st_worker_iter",
    "st_decision",
    "st_status",
    "st_feasible",
)
_TRIALS_BEFORE = ("trial_id", "status", "attempt", "iter")
_TRIALS_AFTER = ("feasible", "worker_time", "started_s", "ended_s", "reason", "reason_text")


def results_frame(history: SearchState, *, all_attempts: bool, dead: bool = False) -> "pd.DataFrame":
    """One row a report, in the order of reporting; of the last attempts only, unless `all_attempts`.

    `dead`: the tuner was killed, and what ran is lost.
    """
    import numpy as np
    import pandas as pd

    reports, trials = history.reports, list(history.trials.values())
    mask = np.ones(len(reports), bool) if all_attempts else np.array(history.counts(), bool)
    trial_ids = np.array(reports.trial_ids, np.int64)[mask]
    configs = _configs(trials)
    reserved = (*_RESULTS_BEFORE, *_RESULTS_AFTER, *configs)
    # Rows of the trials in order of their ids, so that a trial's row is found by bisection.
    ids = np.array([trial.trial_id for trial in trials], np.int64)
    order = np.argsort(ids)
    of_trial = order[np.searchsorted(ids[order], trial_ids)] if len(trials) else np.zeros(0, np.int64)
    columns: dict[str, Any] = {"trial_id": trial_ids}  # Any: columns of any type
    for name, values in reports.values.items():
        columns[_reported(name, reserved)] = _series(values if all_attempts else list(compress(values, mask)))
    for name, values in configs.items():
        columns[name] = _series(values).take(of_trial).reset_index(drop=True)
    columns["st_attempt"] = np.array(reports.attempts, np.int64)[mask]
    columns["st_tuner_time"] = np.array(reports.t_s, float)[mask]
    columns["st_worker_time"] = np.array(reports.worker_times, float)[mask]
    columns["st_worker_iter"] = np.array(reports.iters, np.int64)[mask]
    columns["st_decision"] = _series(list(compress(reports.decisions, mask)))
    statuses = _series([history.status_of(trial, dead=dead) for trial in trials])
    columns["st_status"] = statuses.take(of_trial).reset_index(drop=True)
    if history.constraints:
        columns["st_feasible"] = np.array(history.infeasibilities())[mask] == 0.0
    return pd.DataFrame(columns)


def trials_frame(history: SearchState, *, dead: bool = False) -> "pd.DataFrame":
    """One row a trial, in the order of starting, with what its last attempt reported last. `dead`: see above."""
    import pandas as pd

    trials, reports = list(history.trials.values()), history.reports
    last_rows = [trial.last.last_row for trial in trials]
    best = history.best_rows()
    configs, best_name = _configs(trials), f"best_{history.metric}"
    reserved = (*_TRIALS_BEFORE, best_name, *_TRIALS_AFTER, *configs)
    columns: dict[str, Any] = {  # Any: columns of any type
        "trial_id": [trial.trial_id for trial in trials],
        "status": [history.status_of(trial, dead=dead) for trial in trials],
        "attempt": [trial.last.number for trial in trials],
        "iter": [trial.num_reports for trial in trials],
        **configs,
    }
    for name, values in reports.values.items():
        columns[_reported(name, reserved)] = [None if row is None else values[row] for row in last_rows]
    metric_values = reports.values.get(history.metric, [])
    columns[best_name] = [
        metric_values[best[trial.trial_id]] if trial.trial_id in best else math.nan for trial in trials
    ]
    if history.constraints:
        infeasibilities = history.infeasibilities()
        columns["feasible"] = [not infeasibilities[best[t.trial_id]] if t.trial_id in best else None for t in trials]
    columns["worker_time"] = [history.worker_time_s(trial) for trial in trials]
    columns["started_s"] = [trial.attempts[0].started_s for trial in trials]
    columns["ended_s"] = _ended_s(history, trials)
    columns["reason"] = [trial.last.failure.kind if trial.last.failure else None for trial in trials]
    columns["reason_text"] = [trial.last.failure.text if trial.last.failure else None for trial in trials]
    return pd.DataFrame({name: _series(values) for name, values in columns.items()})


def _ended_s(history: SearchState, trials: Iterable[Trial]) -> list[float]:
    """NaN for a trial that still runs or waits for its next attempt."""
    ended = []
    for trial in trials:
        running = history.status_of(trial) == "InProgress" or trial.last.ended_s is None
        ended.append(math.nan if running or trial.last.ended_s is None else trial.last.ended_s)
    return ended


def _configs(trials: Iterable[Trial]) -> Mapping[str, list[Any]]:  # Any: JSON
    """A column for every name that some configuration has; None where another one has it not."""
    rows = [trial.config for trial in trials]
    names = dict.fromkeys(name for row in rows for name in row)
    return {f"config_{name}": [row.get(name) for row in rows] for name in names}


def _reported(name: str, reserved: Sequence[str]) -> str:
    return f"reported_{name}" if name in reserved else name


def _series(values: Sequence[Any]) -> "pd.Series[Any]":  # Any: cells of any type
    """pandas' own choice of type; an empty column has none."""
    import pandas as pd

    return pd.Series(list(values)) if values else pd.Series([], dtype=object)
