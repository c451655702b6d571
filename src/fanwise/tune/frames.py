"""The tables of an experiment as pandas data frames, and as CSV, JSON, Parquet and SQLite files.

If a reported value has the name of another column, its column is named `reported_<name>`. pandas is imported inside the
functions, because the import takes a third of a second and a search does not need it.
"""

import math
import os
import sqlite3
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import NotInstalled
from ..base.plain_json import json_bytes
from .record.state import SearchState
from .record.trials import Trial

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".json", ".parquet", ".sqlite")


def results_frame(history: SearchState, *, dead: bool) -> "pd.DataFrame":
    """Return `Experiment.results`. `dead`: the tuner was killed, so running trials are lost."""
    import numpy as np
    import pandas as pd

    reports, trials = history.reports, list(history.trials.values())
    mask = np.array(history.counted_mask(), bool)
    trial_ids = np.array(reports.trial_ids, np.int64)[mask]
    ids_of_trials = np.array([trial.trial_id for trial in trials], np.int64)
    order = np.argsort(ids_of_trials)
    # trial_indices[i] is the index in `trials` of the trial of report i.
    trial_indices = order[np.searchsorted(ids_of_trials[order], trial_ids)] if trials else np.zeros(0, np.int64)
    statuses = [history.status_of(trial, dead=dead) for trial in trials]
    columns: dict[str, Any] = {
        name: _series(values).take(trial_indices).reset_index(drop=True) for name, values in _configs(trials).items()
    }
    columns |= {
        "st_attempt": np.array(reports.attempts, np.int64)[mask],
        "st_tuner_time": np.array(reports.t_s, float)[mask],
        "st_worker_time": np.array(reports.worker_times, float)[mask],
        "st_worker_iter": np.array(reports.iters, np.int64)[mask],
        "st_decision": _series(list(compress(reports.decisions, mask))),
        "st_status": _series(statuses).take(trial_indices).reset_index(drop=True),
    }
    if history.constraints:
        columns["st_feasible"] = np.array(history.infeasibilities())[mask] == 0.0
    reserved = {"trial_id", *columns}
    value_columns = {
        _column_name(name, reserved): _series(list(compress(values, mask))) for name, values in reports.values.items()
    }
    return pd.DataFrame({"trial_id": trial_ids, **value_columns, **columns})


def trials_frame(history: SearchState, *, dead: bool) -> "pd.DataFrame":
    """Return `Experiment.trials`. `dead`: the tuner was killed, so running trials are lost."""
    import pandas as pd

    trials, reports = list(history.trials.values()), history.reports
    bests, failures = [trial.best for trial in trials], [trial.last.failure for trial in trials]
    leading: dict[str, list[Any]] = {
        "trial_id": [trial.trial_id for trial in trials],
        "status": [history.status_of(trial, dead=dead) for trial in trials],
        "attempt": [trial.last.number for trial in trials],
        "iter": [trial.num_reports for trial in trials],
        "source": [trial.source for trial in trials],
        **_configs(trials),
    }
    trailing: dict[str, list[Any]] = {}
    trailing[f"best_{history.metric}"] = [math.nan if best is None else best.value for best in bests]
    if history.constraints:
        trailing["feasible"] = [None if best is None else not best.infeasibility for best in bests]
    trailing["worker_time"] = [trial.worker_time_s or 0.0 for trial in trials]
    trailing["started_s"] = [trial.attempts[0].started_s for trial in trials]
    trailing["ended_s"] = [
        math.nan if history.status_of(trial) == "InProgress" else trial.last.ended_s for trial in trials
    ]
    trailing["reason"] = [failure.kind if failure else None for failure in failures]
    trailing["reason_text"] = [failure.text if failure else None for failure in failures]
    last_rows = [trial.last.last_report_index for trial in trials]
    value_columns = {
        _column_name(name, {*leading, *trailing}): [None if row is None else values[row] for row in last_rows]
        for name, values in reports.values.items()
    }
    return pd.DataFrame({name: _series(values) for name, values in {**leading, **value_columns, **trailing}.items()})


def _configs(trials: Iterable[Trial]) -> dict[str, list[Any]]:
    """Return a column for every name in a configuration. Values are None for trials without the name."""
    configs = [trial.config for trial in trials]
    names = dict.fromkeys(name for config in configs for name in config)
    return {f"config_{name}": [config.get(name) for config in configs] for name in names}


def _column_name(name: str, reserved: Container[str]) -> str:
    return f"reported_{name}" if name in reserved else name


def _series(values: Sequence[Any]) -> "pd.Series[Any]":
    import pandas as pd

    return pd.Series(list(values)) if values else pd.Series([], dtype=object)


def write_results(results: "pd.DataFrame", trials: "pd.DataFrame", path: str | os.PathLike[str]) -> None:
    """Write the results to a .csv, .json or .parquet file, or the tables `results` and `trials` to an .sqlite file.

    An existing file is replaced atomically. JSON is a list with one object per row. Missing values are `nan` in CSV and
    null in JSON. Lists and dicts are JSON text in SQLite. Columns with several types are text in Parquet.

    Raises:
        ValueError: the path has another suffix.
        NotInstalled: Parquet needs pyarrow.
        OSError: the folder is missing or not writable, or the disk is full.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"the file must end in {', '.join(SUFFIXES)}, got {target.name!r}")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.touch()  # raises an OSError with an errno, unlike pandas and SQLite
        if suffix == ".csv":
            results.to_csv(partial, index=False, na_rep="nan")
        elif suffix == ".json":  # with all digits, unlike the JSON writer of pandas
            partial.write_bytes(json_bytes(results.to_dict(orient="records")))
        elif suffix == ".parquet":
            partial.write_bytes(_parquet(results))
        else:
            with closing(sqlite3.connect(partial)) as connection:
                for name, frame in {"results": results, "trials": trials}.items():
                    frame.map(_sqlite_value).to_sql(name, connection, index=False)
                connection.commit()
        os.replace(partial, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _parquet(frame: "pd.DataFrame") -> bytes:
    try:
        import pyarrow  # noqa: F401  # the message of pandas does not name the extra
    except ImportError as error:
        raise NotInstalled("Parquet needs pyarrow. Install it: pip install 'fanwise[parquet]'.") from error
    for name, column in frame.items():
        if column.dtype == object and column.dropna().map(type).nunique() > 1:
            frame = frame.assign(**{str(name): column.map(str, na_action="ignore")})
    data: bytes = frame.to_parquet(None, index=False, engine="pyarrow")
    return data


def _sqlite_value(value: Any) -> Any:
    return json_bytes(value).decode() if isinstance(value, Mapping | list | tuple) else value
