"""Converts the trials of earlier searches into events for a warm start.

`fitted` returns `Earlier` events with negative trial ids, and summaries of the skipped trials and reports. The events
are the first rows of the record, so resume and replay do not need the earlier experiments.

An earlier trial is used if it has a value in the domain of every hyperparameter of this space. Other names in its
configuration are dropped. Schedulers do not see earlier trials, because rungs compare the trials of one search.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..base.text import counted
from .constraints import Constraint
from .core.events import Earlier
from .searchers.searcher import Objective
from .space import Space
from .space.parameters import exists, parents_first
from .values import is_number

_MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class KnownTrial:
    """A trial of an earlier search: its configuration, the values of its reports in order, and its status."""

    config: Mapping[str, object]
    reports: Sequence[Mapping[str, object]]
    status: str = "Completed"


@dataclass(frozen=True, slots=True)
class Source:
    """An earlier search. `modes`: the modes of its metrics, as far as they are known."""

    name: str
    trials: Sequence[KnownTrial]
    modes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Taken:
    """Summary of the trials used from a source. `remarks`: one line per reason for which data was skipped."""

    source: str
    num_trials: int
    num_reports: int
    remarks: tuple[str, ...]

    def __str__(self) -> str:
        sizes = f"{counted(self.num_trials, 'trial')}, {counted(self.num_reports, 'report')}"
        return "; ".join([f"{self.source}: {sizes}", *self.remarks])


@dataclass(frozen=True, slots=True)
class Learning:
    """The requirements of the new search on configurations and reports."""

    space: Space
    objectives: Sequence[Objective]
    constraints: Sequence[Constraint]
    resource_attr: str | None

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the values that every report must have."""
        names = [objective.metric for objective in self.objectives]
        names += [constraint.metric for constraint in self.constraints]
        return tuple(dict.fromkeys(names if self.resource_attr is None else [*names, self.resource_attr]))


def fitted(sources: Iterable[Source], learning: Learning) -> tuple[list[Earlier], list[Taken]]:
    """Convert earlier searches into the first events of a search, with a summary of each source.

    Raises ValueError if a source optimized a metric in the opposite mode, none of its reports has a required value, or
    none of its trials fits the space.
    """
    used: list[KnownTrial] = []
    summaries: list[Taken] = []
    for source in sources:
        trials, remarks = _fit(source, learning)
        summaries.append(Taken(source.name, len(trials), sum(len(trial.reports) for trial in trials), remarks))
        used += trials
    return [
        Earlier(0.0, place - len(used), trial.config, trial.reports, trial.status) for place, trial in enumerate(used)
    ], summaries


def _fit(source: Source, learning: Learning) -> tuple[list[KnownTrial], tuple[str, ...]]:
    for objective in learning.objectives:
        mode = source.modes.get(objective.metric, objective.mode)
        if mode != objective.mode:
            raise ValueError(
                f"{source.name} optimized {objective.metric!r} with mode {mode!r}, and this search does with "
                f"{objective.mode!r}: it would learn the opposite. Use the same mode, or leave it out of warm_start."
            )
    _check_reports(source, learning)
    problems: Counter[str] = Counter()
    extra_names: dict[str, None] = {}
    changed_constants: dict[str, str] = {}
    num_bad = 0
    trials = []
    for trial in source.trials:
        reports = [values for values in trial.reports if _is_complete(values, learning)]
        num_bad += len(trial.reports) - len(reports)
        if not reports:
            continue
        try:
            config = configuration_of(trial.config, learning.space)
        except ValueError as error:
            problems[str(error).partition("\n")[0]] += 1
            continue
        trials.append(KnownTrial(config, reports, trial.status))
        extra_names |= dict.fromkeys(name for name in trial.config if name not in learning.space.names)
        for name, constant in learning.space.constants.items():
            if name in config and trial.config.get(name, constant) != constant:
                changed_constants[name] = f"{name} was {trial.config[name]!r} and is {constant!r} in this search"
    if not trials:
        reasons = "\n".join(f"  {counted(n, 'trial')}: {reason}" for reason, n in problems.most_common(_MOST_REASONS))
        raise ValueError(f"no trial of {source.name} fits this space:\n{reasons}\nLeave it out of warm_start.")
    remarks = []
    if problems:
        examples = [problem for problem, _ in problems.most_common(_MOST_REASONS)]
        ellipsis = "; ..." if len(problems) > len(examples) else ""
        remarks.append(f"{counted(problems.total(), 'trial')} skipped: {'; '.join(examples)}{ellipsis}")
    if num_bad:
        remarks.append(f"{counted(num_bad, 'report')} skipped: a required value is missing")
    remarks += [f"not in this space: {', '.join(extra_names)}"] if extra_names else []
    return trials, (*remarks, *changed_constants.values())


def _check_reports(source: Source, learning: Learning) -> None:
    """Raise ValueError if a required value is in no report."""
    known = dict.fromkeys(name for trial in source.trials for values in trial.reports for name in values)
    for name in learning.needed:
        if not any(is_number(values.get(name)) for trial in source.trials for values in trial.reports):
            user = "the scheduler's resource_attr" if name == learning.resource_attr else "this search"
            raise ValueError(
                f"{source.name} has no report of {name!r}, which {user} needs; it has "
                f"{', '.join(map(repr, known)) or 'no values'}."
            )


def _is_complete(values: Mapping[str, object], learning: Learning) -> bool:
    return not any(math.isnan(_number(values, name)) for name in learning.needed)


def _number(values: Mapping[str, object], name: str) -> float:
    """Return the value as a float, or NaN if it is missing or not a number."""
    value = values.get(name)
    return float(value) if is_number(value) else math.nan


def configuration_of(values: Mapping[str, object], space: Space) -> dict[str, object]:
    """Return the part of a configuration that is in the space, with the constants of the space.

    Raises ValueError if a required value is missing or not in its domain.
    """
    known: dict[str, object] = {}
    for name in parents_first(space.names, space.conditions):
        if name in space.domains and name in values and exists(name, known, space.conditions):
            known[name] = values[name]
    return space.check(known)
