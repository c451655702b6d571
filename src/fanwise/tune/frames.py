"""The tables of an experiment as pandas data frames, and as CSV or JSON files.

A reported value that has the name of another column is renamed to `reported_<name>`. pandas is imported inside the
functions, because the import takes a third of a second and a search does not need it.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .record.state import SearchState
from .record.trials import Trial

if TYPE_CHECKING:
    import pandas as pd

_RESULTS_COLUMNS = (
    "trial_id",
    "st_attempt",
    "st_tuner_time",
    "st_worker_time",
    "st_worker_iter",
    "st_decision",
    "st_status",
    "st_feasible",
)
_TRIALS_COLUMNS = (
    "trial_id",
    "status",
    "attempt",
    "iter",
    "source",
    "feasible",
    "worker_time",
    "started_s",
    "ended_s",
    "reason",
    "reason_text",
)


def results_frame(history: SearchState, *, dead: bool) -> "pd.DataFrame":
    """Return `Experiment.results`. `dead`: the tuner was killed, so running trials are lost."""
    import numpy as np
    import pandas as pd

    reports, trials = history.reports, list(history.trials.values())
    mask = np.array(history.counts(), bool)
    trial_ids = np.array(reports.trial_ids, np.int64)[mask]
    configs = _configs(trials)
    reserved = (*_RESULTS_COLUMNS, *configs)
    ids = np.array([trial.trial_id for trial in trials], np.int64)
    order = np.argsort(ids)
    of_trial = order[np.searchsorted(ids[order], trial_ids)] if len(trials) else np.zeros(0, np.int64)
    columns: dict[str, Any] = {"trial_id": trial_ids}
    for name, values in reports.values.items():
        columns[_reported(name, reserved)] = _series(list(compress(values, mask)))
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


def trials_frame(history: SearchState, *, dead: bool) -> "pd.DataFrame":
    """Return `Experiment.trials`. `dead`: the tuner was killed, so running trials are lost."""
    import pandas as pd

    trials, reports = list(history.trials.values()), history.reports
    last_rows = [trial.last.last_row for trial in trials]
    configs, best_name = _configs(trials), f"best_{history.metric}"
    reserved = (*_TRIALS_COLUMNS, best_name, *configs)
    columns: dict[str, Any] = {
        "trial_id": [trial.trial_id for trial in trials],
        "status": [history.status_of(trial, dead=dead) for trial in trials],
        "attempt": [trial.last.number for trial in trials],
        "iter": [trial.num_reports for trial in trials],
        "source": [trial.source for trial in trials],
        **configs,
    }
    for name, values in reports.values.items():
        columns[_reported(name, reserved)] = [None if row is None else values[row] for row in last_rows]
    columns[best_name] = [math.nan if trial.best is None else trial.best.value for trial in trials]
    if history.constraints:
        columns["feasible"] = [None if trial.best is None else not trial.best.infeasibility for trial in trials]
    columns["worker_time"] = [trial.worker_time_s or 0.0 for trial in trials]
    columns["started_s"] = [trial.attempts[0].started_s for trial in trials]
    columns["ended_s"] = [
        math.nan if history.status_of(trial) == "InProgress" else trial.last.ended_s for trial in trials
    ]
    columns["reason"] = [trial.last.failure.kind if trial.last.failure else None for trial in trials]
    columns["reason_text"] = [trial.last.failure.text if trial.last.failure else None for trial in trials]
    return pd.DataFrame({name: _series(values) for name, values in columns.items()})


def _configs(trials: Iterable[Trial]) -> Mapping[str, list[Any]]:
    """Return a column for every name in a configuration; None for trials that do not have it."""
    rows = [trial.config for trial in trials]
    names = dict.fromkeys(name for row in rows for name in row)
    return {f"config_{name}": [row.get(name) for row in rows] for name in names}


def _reported(name: str, reserved: Sequence[str]) -> str:
    return f"reported_{name}" if name in reserved else name


def _series(values: Sequence[Any]) -> "pd.Series[Any]":
    import pandas as pd

    return pd.Series(list(values)) if values else pd.Series([], dtype=object)


def write_results(results: "pd.DataFrame", path: str | os.PathLike[str]) -> None:
    """Write the results to a .csv or .json file. An existing file is replaced atomically.

    Missing values are `nan` in CSV and null in JSON, which is a list with one object per row.

    Raises:
        ValueError: the path has another suffix.
        OSError: the folder is missing or not writable, or the disk is full.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in (".csv", ".json"):
        raise ValueError(f"the file must end in .csv or .json, got {target.name!r}")
    data = _json(results) if suffix == ".json" else results.to_csv(index=False, na_rep="nan").encode()
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _json(frame: "pd.DataFrame") -> bytes:
    """Encode with all digits, unlike the JSON writer of pandas."""
    rows = [{str(name): _plain(value) for name, value in row.items()} for row in frame.to_dict(orient="records")]
    return json.dumps(rows, allow_nan=False, default=str).encode()


def _plain(value: Any) -> Any:
    """Convert to JSON types. Missing values, NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
