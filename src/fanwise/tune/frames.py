"""The tables of an experiment as pandas data frames, and as CSV, JSON, Parquet and SQLite files.

If a reported value has the name of another column, its column is named `reported_<name>`. pandas is imported inside the
functions, because the import takes a third of a second and a search does not need it.
"""

import itertools
import math
import os
import sqlite3
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.atomic_file import atomic_file
from ..base.extras import check_installed
from ..base.plain_json import json_bytes
from ..base.text import printable
from .record.state import SearchState
from .record.trials import Trial

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".json", ".parquet", ".sqlite")


def results_frame(history: SearchState, *, is_tuner_killed: bool) -> "pd.DataFrame":
    """Return `Experiment.results`. `is_tuner_killed`: its running trials have the status "Lost"."""
    import numpy as np
    import pandas as pd

    reports, trials = history.reports, list(history.trials.values())
    mask = np.array(history.counted_mask(), bool)
    trial_ids = np.array(reports.trial_ids, np.int64)[mask]
    # trial_indices[i] is the index in `trials`, which are in the order of ids, of the trial of report i.
    trial_indices = np.searchsorted([trial.trial_id for trial in trials], trial_ids)
    statuses = [history.status_of(trial, is_tuner_killed=is_tuner_killed) for trial in trials]
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
    other_names = {"trial_id", *columns}
    value_columns = {
        _column_name(name, other_names): _series(list(compress(values, mask)))
        for name, values in reports.values.items()
    }
    return pd.DataFrame({"trial_id": trial_ids, **value_columns, **columns})


def trials_frame(history: SearchState, *, is_tuner_killed: bool) -> "pd.DataFrame":
    """Return `Experiment.trials`. `is_tuner_killed`: as in `results_frame`."""
    import pandas as pd

    trials, reports = list(history.trials.values()), history.reports
    best_reports, failures = [trial.best for trial in trials], [trial.last.failure for trial in trials]
    first_columns: dict[str, list[Any]] = {
        "trial_id": [trial.trial_id for trial in trials],
        "status": [history.status_of(trial, is_tuner_killed=is_tuner_killed) for trial in trials],
        "attempt": [trial.last.number for trial in trials],
        "iter": [trial.last_iter for trial in trials],
        "source": [trial.source for trial in trials],
        **_configs(trials),
    }
    last_columns: dict[str, list[Any]] = {}
    last_columns[f"best_{history.metric}"] = [math.nan if best is None else best.value for best in best_reports]
    if history.constraints:
        last_columns["feasible"] = [None if best is None else not best.infeasibility for best in best_reports]
    last_columns["worker_time"] = [trial.worker_time_s or 0.0 for trial in trials]
    last_columns["started_s"] = [trial.attempts[0].started_s for trial in trials]
    last_columns["ended_s"] = [
        math.nan if history.status_of(trial) == "InProgress" else trial.last.ended_s for trial in trials
    ]
    last_columns["reason"] = [failure.kind if failure else None for failure in failures]
    last_columns["reason_text"] = [failure.text if failure else None for failure in failures]
    last_indices, other_names = [trial.last.last_report_index for trial in trials], {*first_columns, *last_columns}
    value_columns = {
        _column_name(name, other_names): [None if index is None else values[index] for index in last_indices]
        for name, values in reports.values.items()
    }
    columns = {**first_columns, **value_columns, **last_columns}
    return pd.DataFrame({name: _series(values) for name, values in columns.items()})


def _configs(trials: Iterable[Trial]) -> dict[str, list[Any]]:
    """Return a column for every name in any configuration. Its value is None for trials without the name."""
    configs = [trial.config for trial in trials]
    names = dict.fromkeys(name for config in configs for name in config)
    return {f"config_{name}": [config.get(name) for config in configs] for name in names}


def _column_name(name: str, other_names: Container[str]) -> str:
    return f"reported_{name}" if name in other_names else name


def _series(values: Sequence[Any]) -> "pd.Series[Any]":
    import pandas as pd

    if not values:
        return pd.Series([], dtype=object)
    try:
        return pd.Series(list(values))
    except UnicodeEncodeError:  # a lone surrogate, e.g. in an error message with an undecodable file name
        return pd.Series([printable(value) if isinstance(value, str) else value for value in values])


def write_results(results: "pd.DataFrame", trials: "pd.DataFrame", path: str | os.PathLike[str]) -> None:
    """Write the file of `Experiment.export`. Raises the same errors.

    An existing file is replaced atomically. JSON is a list with one object per row. Missing values are `nan` in CSV and
    null in JSON. Lists and dicts are JSON text in SQLite. Columns with several types are text in Parquet.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"the file must end in {', '.join(SUFFIXES)}, got {target.name!r}")
    with atomic_file(target) as partial_path:
        if suffix == ".csv":
            results.to_csv(partial_path, index=False, na_rep="nan")
        elif suffix == ".json":  # with all digits, unlike the JSON writer of pandas
            partial_path.write_bytes(json_bytes(results.to_dict(orient="records")))
        elif suffix == ".parquet":
            partial_path.write_bytes(_parquet(results))
        else:
            with closing(sqlite3.connect(partial_path)) as connection:
                for name, frame in {"results": results, "trials": trials}.items():
                    _check_sqlite_columns(name, frame, connection.getlimit(sqlite3.SQLITE_LIMIT_COLUMN))
                    frame.map(_sqlite_value).to_sql(name, connection, index=False)
                connection.commit()


def _parquet(frame: "pd.DataFrame") -> bytes:
    check_installed("Parquet needs", "pyarrow", extra="parquet")
    for name, column in frame.items():
        if column.dtype == object and column.dropna().map(type).nunique() > 1:
            frame = frame.assign(**{str(name): column.map(str, na_action="ignore")})
    data: bytes = frame.to_parquet(None, index=False, engine="pyarrow")
    return data


def _check_sqlite_columns(table: str, frame: "pd.DataFrame", max_columns: int) -> None:
    if len(frame.columns) > max_columns:
        raise ValueError(
            f"the table {table} has {len(frame.columns):,} columns, and a table of SQLite has at most "
            f"{max_columns:,}. Export to .csv, .json or .parquet instead."
        )
    for name, other_name in itertools.pairwise(sorted(frame.columns, key=str.lower)):
        if name.lower() == other_name.lower():
            raise ValueError(
                f"the table {table} has the columns {name!r} and {other_name!r}, which are one column for SQLite. "
                f"Export to .csv, .json or .parquet instead."
            )


def _sqlite_value(value: Any) -> Any:
    return json_bytes(value).decode() if isinstance(value, Mapping | list | tuple) else value
