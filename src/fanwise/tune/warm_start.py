"""Warm start: what earlier experiments and data frames know, read for a search that begins.

    "lenet-1", Path, Experiment   its record: trials, the reports that count, metrics and modes
    DataFrame                     a row a report; columns <name> or config_<name>, metrics, perhaps trial_id, st_status
                                  --read_sources-->  Source  --transfer.fitted-->  facts at the head of the record

Reads and translates only; what fits is decided by `decisions.transfer`.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from .constraints import Constraint
from .decisions.facts import Earlier
from .decisions.transfer import KnownTrial, Learning, Source, Taken, fitted
from .experiment import Experiment, load_experiment
from .schedulers.base import Scheduler
from .spaces import Space
from .values import is_number, plain_json

if TYPE_CHECKING:
    import pandas as pd

OneSource: TypeAlias = Union[str, "os.PathLike[str]", Experiment, "pd.DataFrame"]
WarmStart: TypeAlias = OneSource | Sequence[OneSource]

_RIGHT = 'right:  warm_start="earlier-experiment", a path, an Experiment, a DataFrame, or a list of these'
_OURS = ("trial_id", "st_status")


def read_warm_start(
    given: WarmStart | None, space: Space, scheduler: Scheduler, constraints: Sequence[Constraint]
) -> tuple[list[Earlier], list[Taken]]:
    """The facts that a search begins with, and what they were made of. Blocks for the disk.

    Raises:
        TypeError: something that cannot be read so.
        ValueError: the earlier search had another metric, mode or space.
        RecordError: there is no such experiment.
    """
    if given is None:
        return [], []
    all_given = given if isinstance(given, list | tuple) else [given]
    sources = [_source(one, place, space) for place, one in enumerate(all_given)]
    learning = Learning(space, scheduler.objectives, constraints, scheduler.resource_attr)
    return fitted(sources, learning)


def described(taken: Sequence[Taken]) -> list[dict[str, object]]:
    """For the record's meta."""
    return [
        {
            "source": one.source,
            "num_trials": one.num_trials,
            "num_reports": one.num_reports,
            "remarks": list(one.remarks),
        }
        for one in taken
    ]


def _source(given: object, place: int, space: Space) -> Source:
    if isinstance(given, str | os.PathLike):
        return _of_experiment(load_experiment(given))
    if isinstance(given, Experiment):
        return _of_experiment(given)
    if hasattr(given, "columns") and hasattr(given, "to_dict"):
        return _of_frame(given, place, space)
    raise TypeError(f"warm_start cannot be read from {given!r} of type {type(given).__name__}\n  {_RIGHT}")


def _of_experiment(experiment: Experiment) -> Source:
    history = experiment.history()
    dead = experiment.state == "broken-off"
    reports: dict[int, list[dict[str, object]]] = {}
    for row, (trial_id, counts) in enumerate(zip(history.reports.trial_ids, history.counts(), strict=True)):
        if counts:
            values = {name: column[row] for name, column in history.reports.values.items()}
            reports.setdefault(trial_id, []).append({name: v for name, v in values.items() if is_number(v)})
    trials = [
        KnownTrial(trial.config, reports.get(trial.trial_id, []), _ended(history.status_of(trial, dead=dead)))
        for trial in history.trials.values()
    ]
    modes = {str(metric): str(mode) for metric, mode in experiment.metadata["objectives"]}
    return Source(f"the experiment {experiment.name!r}", trials, modes)


def _of_frame(frame: Any, place: int, space: Space) -> Source:  # Any: a DataFrame, which has no types here
    columns = {str(column): column for column in frame.columns}
    configs = {name.removeprefix("config_"): columns[name] for name in columns if name.startswith("config_")}
    configs |= {name: columns[name] for name in space.names if name in columns and name not in configs}
    values = {name: columns[name] for name in columns if columns[name] not in configs.values() and name not in _OURS}
    trials: dict[object, KnownTrial] = {}
    reports: dict[object, list[Mapping[str, object]]] = {}
    for number, row in enumerate(frame.to_dict("records")):
        key = row[columns["trial_id"]] if "trial_id" in columns else number
        if key not in trials:
            config = {name: _value(space, name, row[column]) for name, column in configs.items()}
            config = {name: value for name, value in config.items() if value is not _NOTHING}
            trials[key] = KnownTrial(config, reports.setdefault(key, []), _ended(row.get("st_status", "Completed")))
        reports[key].append({name: _plain(row[column]) for name, column in values.items() if is_number(row[column])})
    return Source(f"the data frame warm_start[{place}]", list(trials.values()), {})


_NOTHING = object()


def _value(space: Space, name: str, cell: object) -> object:
    """What a cell says of a hyperparameter. An empty one may mean None, or that it does not exist."""
    if not _is_empty(cell):
        return _plain(cell)
    return None if name in space.domains and space.domains[name].contains(None) else _NOTHING


def _ended(status: object) -> str:
    """Whoever still runs, is paused or was lost has said what it has said."""
    return str(status) if status in ("Completed", "Failed") else "Stopped"


def _is_empty(value: object) -> bool:
    """What a data frame has where there is nothing."""
    return value is None or (is_number(value) and value != value)


def _plain(value: object) -> object:
    """In plain Python; NaN, which configurations do not have, stays."""
    return value if _is_empty(value) else plain_json("a value in a data frame", value)
