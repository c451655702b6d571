"""Warm start of a search with trials of earlier experiments and data frames.

An experiment provides its trials and their valid reports. A data frame has one row per report. It has a column for each
hyperparameter (<hyperparameter> or config_<hyperparameter>) and metric, and optionally trial_id and st_status.

An earlier trial is used if at least one report has all required values, and its configuration has a valid value for
every hyperparameter of the new space. Other names in its configuration are dropped. The trials that are used become
`EarlierTrial` events at the beginning of the new record, so resume and replay do not need the earlier experiments. Only
the searcher receives the events, because schedulers compare the trials of one search.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from ..base.text import counted
from .core.events import EarlierTrial
from .core.validation import required_values
from .experiment import Experiment, load_experiment
from .record.overview import read_search
from .search_settings import SearchSettings
from .space import Space
from .space.parameters import exists, parents_first
from .values import is_number, plain_json

if TYPE_CHECKING:
    import pandas as pd

WarmStartSource: TypeAlias = Union[str, "os.PathLike[str]", Experiment, "pd.DataFrame"]
WarmStart: TypeAlias = WarmStartSource | Sequence[WarmStartSource]
# JSON object with the name of a source, how many of its trials and reports are used, and remarks on ignored data.
Summary: TypeAlias = dict[str, Any]

_EXAMPLE = 'right:  warm_start="earlier-experiment", a path, an Experiment, a DataFrame, or a list of these'
_RESERVED_COLUMNS = ("trial_id", "st_status")
_MAX_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class _Source:
    """An earlier search. `trials` have id 0 and unvalidated configurations. `modes`: {metric: mode}, if known."""

    name: str
    trials: list[EarlierTrial]
    modes: Mapping[str, str]


def read_warm_start(warm_start: WarmStart | None, settings: SearchSettings) -> tuple[list[EarlierTrial], list[Summary]]:
    """Return the trials of all sources as events, and a summary of each source. Reads from disk.

    Raises:
        TypeError: a source has the wrong type.
        ValueError: a source has the opposite mode for a metric, lacks a value that this search requires, or has no
            trial that fits the space.
        RecordError: an experiment does not exist.
    """
    if warm_start is None:
        return [], []
    items = warm_start if isinstance(warm_start, list | tuple) else [warm_start]
    trials: list[EarlierTrial] = []
    summaries: list[Summary] = []
    for index, item in enumerate(items):
        source = _read_source(item, index, settings.space)
        usable_trials, remarks = _usable_trials(source, settings)
        num_reports = sum(len(trial.reports) for trial in usable_trials)
        sizes = {"num_trials": len(usable_trials), "num_reports": num_reports}
        summaries.append({"source": source.name, **sizes, "remarks": remarks})
        trials += usable_trials
    return [replace(trial, trial_id=index - len(trials)) for index, trial in enumerate(trials)], summaries


def summary_line(summary: Summary) -> str:
    """Return a summary as a line of text."""
    sizes = f"{counted(summary['num_trials'], 'trial')}, {counted(summary['num_reports'], 'report')}"
    return "; ".join([f"{summary['source']}: {sizes}", *summary["remarks"]])


def _read_source(item: object, index: int, space: Space) -> _Source:
    if isinstance(item, str | os.PathLike):
        item = load_experiment(item)
    if isinstance(item, Experiment):
        return _from_experiment(item)
    if hasattr(item, "columns") and hasattr(item, "to_dict"):
        return _from_frame(item, index, space)
    raise TypeError(f"warm_start cannot be read from {item!r} of type {type(item).__name__}\n  {_EXAMPLE}")


def _from_experiment(experiment: Experiment) -> _Source:
    reader = read_search(experiment.path)
    history = reader.search
    columns = history.reports.values
    reports = {
        trial_id: [
            {name: column[index] for name, column in columns.items() if is_number(column[index])} for index in indices
        ]
        for trial_id, indices in history.counted_indices().items()
    }
    is_killed = reader.is_tuner_killed
    trials = [
        _new_trial(trial.config, reports.get(trial_id, []), history.status_of(trial, is_tuner_killed=is_killed))
        for trial_id, trial in history.trials.items()
    ]
    modes = {objective.metric: str(objective.mode) for objective in history.objectives}
    return _Source(f"the experiment {history.name!r}", trials, modes)


def _from_frame(frame: Any, index: int, space: Space) -> _Source:
    columns = {str(column): column for column in frame.columns}
    config_columns = {name.removeprefix("config_"): columns[name] for name in columns if name.startswith("config_")}
    for name in space.names:
        if name in columns:
            config_columns.setdefault(name, columns[name])
    non_value_columns = {*config_columns.values(), *(columns.get(name) for name in _RESERVED_COLUMNS)}
    value_columns = {name: column for name, column in columns.items() if column not in non_value_columns}
    trials: dict[object, EarlierTrial] = {}
    reports: dict[object, list[Mapping[str, object]]] = {}
    for row_number, row in enumerate(frame.to_dict("records")):
        key = row[columns["trial_id"]] if "trial_id" in columns else row_number
        if key not in trials:
            config = {}
            for name, column in config_columns.items():
                if not _is_missing(row[column]):
                    config[name] = plain_json(f"column {column!r}", row[column])
                elif name in space.domains and space.domains[name].contains(None):
                    config[name] = None
            trials[key] = _new_trial(config, reports.setdefault(key, []), row.get("st_status", "Completed"))
        reports[key].append(
            {
                name: plain_json(f"column {column!r}", row[column])
                for name, column in value_columns.items()
                if is_number(row[column]) and not _is_missing(row[column])
            }
        )
    return _Source(f"the data frame warm_start[{index}]", list(trials.values()), {})


def _new_trial(config: Mapping[str, object], reports: Sequence[Mapping[str, object]], status: object) -> EarlierTrial:
    """Return a trial with the temporary id 0. Running, paused and lost trials count as stopped."""
    return EarlierTrial(0.0, 0, config, reports, str(status) if status in ("Completed", "Failed") else "Stopped")


def _is_missing(value: object) -> bool:
    return value is None or (is_number(value) and math.isnan(value))


def _usable_trials(source: _Source, settings: SearchSettings) -> tuple[list[EarlierTrial], list[str]]:
    """Return the trials that fit the search, with their complete reports, and remarks on ignored data."""
    space = settings.space
    required = _required_values(source, settings)
    problems: Counter[str] = Counter()
    extra_names: dict[str, None] = {}
    changed_constants: dict[str, str] = {}
    num_incomplete = 0
    usable_trials = []
    for trial in source.trials:
        reports = [values for values in trial.reports if not any(_is_missing(values.get(name)) for name in required)]
        num_incomplete += len(trial.reports) - len(reports)
        if not reports:
            continue
        try:
            config = _config_in_space(trial.config, space)
        except ValueError as error:
            problems[str(error).partition("\n")[0]] += 1
            continue
        usable_trials.append(replace(trial, config=config, reports=reports))
        extra_names |= dict.fromkeys(name for name in trial.config if name not in space.names)
        for name, constant in space.constants.items():
            if name in config and trial.config.get(name, constant) != constant:
                changed_constants[name] = f"{name} was {trial.config[name]!r} and is {constant!r} in this search"
    examples = problems.most_common(_MAX_EXAMPLES)
    if not usable_trials:
        reasons = "\n".join(f"  {counted(count, 'trial')}: {problem}" for problem, count in examples)
        raise ValueError(f"no trial of {source.name} fits this space:\n{reasons}\nLeave this source out of warm_start.")
    remarks = []
    if problems:
        ellipsis = "; ..." if len(problems) > len(examples) else ""
        skipped = counted(problems.total(), "trial")
        remarks.append(f"{skipped} skipped: {'; '.join(problem for problem, _ in examples)}{ellipsis}")
    if num_incomplete:
        remarks.append(f"{counted(num_incomplete, 'report')} skipped: a required value is missing")
    if extra_names:
        remarks.append(f"not in this space: {', '.join(extra_names)}")
    return usable_trials, [*remarks, *changed_constants.values()]


def _required_values(source: _Source, settings: SearchSettings) -> list[str]:
    """Return the names of the values that every report must have. Raises ValueError, see `read_warm_start`."""
    scheduler = settings.scheduler
    for objective in scheduler.objectives:
        mode = source.modes.get(objective.metric, objective.mode)
        if mode != objective.mode:
            raise ValueError(
                f"{source.name} optimized {objective.metric!r} with mode {mode!r}, but this search has mode "
                f"{objective.mode!r}. Use the same mode, or leave {source.name} out of warm_start."
            )
    values = required_values(scheduler.objectives, settings.constraints, scheduler.resource_attr)
    required = [value.name for value in values]
    reported_names = dict.fromkeys(name for trial in source.trials for values in trial.reports for name in values)
    for name in required:
        if name not in reported_names:
            required_by = "the resource_attr of the scheduler" if name == scheduler.resource_attr else "required"
            raise ValueError(
                f"{source.name} has no report of {name!r}, which is {required_by}; it has "
                f"{', '.join(map(repr, reported_names)) or 'no values'}."
            )
    return required


def _config_in_space(config: Mapping[str, object], space: Space) -> dict[str, object]:
    """Return the values that belong to the space, and its constants. Raises ValueError if one is missing or invalid."""
    values: dict[str, object] = {}
    for name in parents_first(space.names, space.conditions):
        if name in space.domains and name in config and exists(name, values, space.conditions):
            values[name] = config[name]
    return space.check(values)
