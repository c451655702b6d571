"""What of earlier searches a new one can learn from: a warm start. Quiet.

    trials as they were read  --fitted-->  Earlier facts, in ids below 0, and what was left out
    Earlier                   --told----> the searcher, before the first question

The facts stand at the head of the record. So a search is resumed and replayed without the experiments it learnt from.

An earlier trial is used if the values of all hyperparameters of this space are known of it and lie in their domains;
what this space does not have is left out. Schedulers are told nothing: who reached which rung is decided among the
trials of one search.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...base.text import counted
from ..constraints import Constraint, infeasibility, violations_of
from ..searchers.base import Objective, Observation
from ..space import Space
from ..space.conditions import exists, parents_first
from ..values import is_number, round_resource
from .facts import Earlier

_MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class KnownTrial:
    """A trial of an earlier search: its configuration, the values of its reports in their order, and how it ended."""

    config: Mapping[str, object]
    reports: Sequence[Mapping[str, object]]
    status: str = "Completed"


@dataclass(frozen=True, slots=True)
class Source:
    """An earlier search. `modes`: of the metrics that it optimised, if that is known."""

    name: str
    trials: Sequence[KnownTrial]
    modes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken from a source. `remarks`: what was not, a line for each reason."""

    source: str
    num_trials: int
    num_reports: int
    remarks: tuple[str, ...]

    def __str__(self) -> str:
        sizes = f"{counted(self.num_trials, 'trial')}, {counted(self.num_reports, 'report')}"
        return "; ".join([f"{self.source}: {sizes}", *self.remarks])


@dataclass(frozen=True, slots=True)
class Learning:
    """What the new search is about: what a report must have, and where its configurations lie."""

    space: Space
    objectives: Sequence[Objective]
    constraints: Sequence[Constraint]
    resource_attr: str | None

    @property
    def needed(self) -> tuple[str, ...]:
        """The names that a report must have."""
        names = [objective.metric for objective in self.objectives]
        names += [constraint.metric for constraint in self.constraints]
        return tuple(dict.fromkeys(names if self.resource_attr is None else [*names, self.resource_attr]))


def fitted(sources: Iterable[Source], learning: Learning) -> tuple[list[Earlier], list[Taken]]:
    """The facts that a search begins with, and what they were made of.

    Raises:
        ValueError: a source optimised a metric the other way round, none of its reports has what is needed, or none of
            its trials fits the space.
    """
    used: list[KnownTrial] = []
    taken: list[Taken] = []
    for source in sources:
        trials, remarks = _fit(source, learning)
        taken.append(Taken(source.name, len(trials), sum(len(trial.reports) for trial in trials), remarks))
        used += trials
    return [
        Earlier(0.0, place - len(used), trial.config, trial.reports, trial.status) for place, trial in enumerate(used)
    ], taken


def observations(fact: Earlier, learning: Learning) -> list[Observation]:
    """What the searcher is told of an earlier trial."""
    told = []
    for iter, values in enumerate(fact.reports, start=1):
        losses = tuple([objective.loss(_number(values, objective.metric)) for objective in learning.objectives])
        violations = violations_of(learning.constraints, values)
        beyond = infeasibility(learning.constraints, violations)
        resource = float(iter)
        if learning.resource_attr is not None:
            resource = round_resource(_number(values, learning.resource_attr))
        told.append(Observation(fact.trial_id, fact.config, iter, resource, losses, values, violations, beyond))
    return told


def _fit(source: Source, learning: Learning) -> tuple[list[KnownTrial], tuple[str, ...]]:
    for objective in learning.objectives:
        mode = source.modes.get(objective.metric, objective.mode)
        if mode != objective.mode:
            raise ValueError(
                f"{source.name} optimised {objective.metric!r} with mode {mode!r}, and this search does with "
                f"{objective.mode!r}: it would learn the opposite. Use the same mode, or leave it out of warm_start."
            )
    _check_reports(source, learning)
    without: Counter[str] = Counter()
    surplus: dict[str, None] = {}
    others: dict[str, str] = {}
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
            without[str(error).partition("\n")[0]] += 1
            continue
        trials.append(KnownTrial(config, reports, trial.status))
        surplus |= dict.fromkeys(name for name in trial.config if name not in learning.space.names)
        for name, fixed in learning.space.constants.items():
            if name in config and trial.config.get(name, fixed) != fixed:
                others[name] = f"{name} was {trial.config[name]!r} and is {fixed!r} here"
    if not trials:
        reasons = "\n".join(f"  {counted(n, 'trial')}: {reason}" for reason, n in without.most_common(_MOST_REASONS))
        raise ValueError(f"nothing of {source.name} fits this space:\n{reasons}\nLeave it out of warm_start.")
    remarks = []
    if without:
        some = [reason for reason, _ in without.most_common(_MOST_REASONS)]
        more = "; ..." if len(without) > len(some) else ""
        remarks.append(f"{counted(without.total(), 'trial')} left out: {'; '.join(some)}{more}")
    if num_bad:
        remarks.append(f"{counted(num_bad, 'report')} left out for want of a number")
    remarks += [f"not in this space: {', '.join(surplus)}"] if surplus else []
    return trials, (*remarks, *others.values())


def _check_reports(source: Source, learning: Learning) -> None:
    """ValueError if some name that is needed is in no report."""
    known = dict.fromkeys(name for trial in source.trials for values in trial.reports for name in values)
    for name in learning.needed:
        if not any(is_number(values.get(name)) for trial in source.trials for values in trial.reports):
            what = "the scheduler's resource_attr" if name == learning.resource_attr else "this search"
            raise ValueError(
                f"{source.name} has no report of {name!r}, which {what} needs; it has "
                f"{', '.join(map(repr, known)) or 'none at all'}."
            )


def _is_complete(values: Mapping[str, object], learning: Learning) -> bool:
    return not any(math.isnan(_number(values, name)) for name in learning.needed)


def _number(values: Mapping[str, object], name: str) -> float:
    """NaN where there is none."""
    value = values.get(name)
    return float(value) if is_number(value) else math.nan


def configuration_of(given: Mapping[str, object], space: Space) -> dict[str, object]:
    """What a space has of a configuration, with its own constants.

    Raises:
        ValueError: a value that the space needs is missing, or is not in its domain.
    """
    known: dict[str, object] = {}
    for name in parents_first(space.names, space.conditions):
        if name in space.domains and name in given and exists(name, known, space.conditions):
            known[name] = given[name]
    return space.check(known)
