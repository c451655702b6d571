"""Warm start: trials of earlier experiments and data frames as observations of a new search.

An experiment contributes its trials with their valid reports. A data frame has one row per report, with columns <name>
or config_<name>, the metrics, and optionally trial_id and st_status. `transfer` selects what fits the search.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from .core.events import Earlier
from .experiment import Experiment, load_experiment
from .record.overview import read_search
from .search_settings import SearchSettings
from .space import Space
from .transfer import KnownTrial, Learning, Source, Taken, fitted
from .values import is_number, plain_json

if TYPE_CHECKING:
    import pandas as pd

WarmStartSource: TypeAlias = Union[str, "os.PathLike[str]", Experiment, "pd.DataFrame"]
WarmStart: TypeAlias = WarmStartSource | Sequence[WarmStartSource]

_EXAMPLE = 'right:  warm_start="earlier-experiment", a path, an Experiment, a DataFrame, or a list of these'
_RESERVED_COLUMNS = ("trial_id", "st_status")


def read_warm_start(warm_start: WarmStart | None, settings: SearchSettings) -> tuple[list[Earlier], list[Taken]]:
    """Return the first events of a search, and a summary of each source. Reads from disk.

    Raises:
        TypeError: a source of the wrong type.
        ValueError: an earlier search had another metric, mode or space.
        RecordError: an experiment does not exist.
    """
    if warm_start is None:
        return [], []
    items = warm_start if isinstance(warm_start, list | tuple) else [warm_start]
    sources = [_read_source(item, index, settings.space) for index, item in enumerate(items)]
    scheduler = settings.scheduler
    learning = Learning(settings.space, scheduler.objectives, settings.constraints, scheduler.resource_attr)
    return fitted(sources, learning)


def summaries_to_json(summaries: Sequence[Taken]) -> list[dict[str, object]]:
    """Return the summaries as JSON, for the metadata of the record."""
    return [{**asdict(summary), "remarks": list(summary.remarks)} for summary in summaries]


def _read_source(item: object, index: int, space: Space) -> Source:
    if isinstance(item, str | os.PathLike):
        return _from_experiment(load_experiment(item))
    if isinstance(item, Experiment):
        return _from_experiment(item)
    if hasattr(item, "columns") and hasattr(item, "to_dict"):
        return _from_frame(item, index, space)
    raise TypeError(f"warm_start cannot be read from {item!r} of type {type(item).__name__}\n  {_EXAMPLE}")


def _from_experiment(experiment: Experiment) -> Source:
    reader = read_search(experiment.path)
    history, dead = reader.search, reader.is_dead
    columns = history.reports.values
    reports = {
        trial_id: [{name: column[row] for name, column in columns.items() if is_number(column[row])} for row in rows]
        for trial_id, rows in history.valid_rows().items()
    }
    trials = [
        KnownTrial(trial.config, reports.get(trial.trial_id, []), _end_status(history.status_of(trial, dead=dead)))
        for trial in history.trials.values()
    ]
    modes = {objective.metric: str(objective.mode) for objective in history.objectives}
    return Source(f"the experiment {history.name!r}", trials, modes)


def _from_frame(frame: Any, index: int, space: Space) -> Source:
    columns = {str(column): column for column in frame.columns}
    configs = {name.removeprefix("config_"): columns[name] for name in columns if name.startswith("config_")}
    configs |= {name: columns[name] for name in space.names if name in columns and name not in configs}
    values = {
        name: columns[name]
        for name in columns
        if columns[name] not in configs.values() and name not in _RESERVED_COLUMNS
    }
    trials: dict[object, KnownTrial] = {}
    reports: dict[object, list[Mapping[str, object]]] = {}
    for number, row in enumerate(frame.to_dict("records")):
        key = row[columns["trial_id"]] if "trial_id" in columns else number
        if key not in trials:
            config = {name: _cell_value(space, name, row[column]) for name, column in configs.items()}
            config = {name: value for name, value in config.items() if value is not _MISSING}
            trials[key] = KnownTrial(
                config, reports.setdefault(key, []), _end_status(row.get("st_status", "Completed"))
            )
        reports[key].append({name: _plain(row[column]) for name, column in values.items() if is_number(row[column])})
    return Source(f"the data frame warm_start[{index}]", list(trials.values()), {})


_MISSING = object()


def _cell_value(space: Space, name: str, cell: object) -> object:
    """Return the value of a cell. An empty cell is None if the domain contains it, otherwise missing."""
    if not _is_empty(cell):
        return _plain(cell)
    return None if name in space.domains and space.domains[name].contains(None) else _MISSING


def _end_status(status: object) -> str:
    """Treat running, paused and lost trials as stopped."""
    return str(status) if status in ("Completed", "Failed") else "Stopped"


def _is_empty(value: object) -> bool:
    """Return True for None and NaN."""
    return value is None or (is_number(value) and value != value)


def _plain(value: object) -> object:
    """Convert a value to plain Python; NaN is kept."""
    return value if _is_empty(value) else plain_json("a value in a data frame", value)
