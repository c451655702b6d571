"""The results of a search with several objectives: who is on the Pareto front, and how the hypervolume grew.

    SearchState --results_of--> Result(trial, time, values, losses, feasible)   reports that count and are finite
               |--pareto_of--> ParetoPoint                                  those that nothing else dominates
               |--volumes_of-> (time, hypervolume), up to a reference point
               '--reference_losses-> the point that was given, or one by a rule

Every report counts, not only a trial's last one: what a trial was after three epochs is a result that can be had. What
violates a constraint is on no front and adds no volume.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, final

from .hypervolume import Front, reference_of
from .pareto import first_front
from .record.state import SearchState
from .searchers.base import Objective
from .values import is_number


@final
@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A report that no other one dominates: its trial, which report it was, the objectives, the configuration."""

    trial_id: int
    iter: int
    values: Mapping[str, float]
    config: Mapping[str, Any]  # Any: what the space holds


@final
@dataclass(frozen=True, slots=True)
class Result:
    """A report that has all objectives as finite numbers. `losses`: of which smaller ones are better."""

    row: int
    trial_id: int
    t_s: float
    values: tuple[float, ...]
    losses: tuple[float, ...]
    feasible: bool


def objectives_of(meta: Mapping[str, Any]) -> tuple[Objective, ...]:  # Any: JSON
    """The objectives of a record."""
    return tuple(Objective(str(metric), mode) for metric, mode in meta["objectives"])


def results_of(history: SearchState, objectives: Sequence[Objective]) -> tuple[list[Result], int]:
    """The results in the order of reporting, and how many reports were left out since a value was not finite."""
    reports = history.reports
    columns = [reports.values.get(one.metric) or [None] * len(reports) for one in objectives]
    feasible = [beyond == 0.0 for beyond in history.infeasibilities()]
    rows = zip(range(len(reports)), reports.trial_ids, reports.t_s, feasible, zip(*columns, strict=True), strict=True)
    results, num_left_out = [], 0
    for row, trial_id, t_s, is_feasible, values in compress(rows, history.counts()):
        if not all(map(is_number, values)):
            continue
        if not all(map(math.isfinite, values)):
            num_left_out += 1
            continue
        losses = tuple(one.loss(float(value)) for one, value in zip(objectives, values, strict=True))
        results.append(Result(row, trial_id, t_s, tuple(map(float, values)), losses, is_feasible))
    return results, num_left_out


def front_of(results: Sequence[Result]) -> list[int]:
    """The places of the feasible results that no other feasible one dominates; of equal ones all."""
    places = [place for place, result in enumerate(results) if result.feasible]
    return [places[i] for i in first_front([results[place].losses for place in places])] if places else []


def pareto_of(history: SearchState, objectives: Sequence[Objective]) -> list[ParetoPoint]:
    """The Pareto front, the best in the first objective first; of equal reports the first."""
    results, _ = results_of(history, objectives)
    first: dict[tuple[float, ...], Result] = {}
    for place in front_of(results):
        first.setdefault(results[place].losses, results[place])
    names = [one.metric for one in objectives]
    return [
        ParetoPoint(
            result.trial_id,
            history.reports.iters[result.row],
            dict(zip(names, result.values, strict=True)),
            dict(history.trials[result.trial_id].config),
        )
        for _, result in sorted(first.items())
    ]


def reference_losses(
    objectives: Sequence[Objective], given: Mapping[str, float] | None, searches: Iterable[Sequence[Result]]
) -> tuple[float, ...] | None:
    """The reference point that was given, as losses; else one for all these searches: `hypervolume.reference_of` the
    front of all their results, so that they can be compared. None: nothing was given, and there is no result.

    Raises:
        ValueError: it does not name every objective, or has a value that is not finite.
    """
    if given is not None:
        names = [one.metric for one in objectives]
        if sorted(given) != sorted(names) or not all(is_number(v) and math.isfinite(v) for v in given.values()):
            raise ValueError(
                f"reference_point must have a finite number for each objective, {', '.join(map(repr, names))}; "
                f"got {dict(given)!r}"
            )
        return tuple(one.loss(float(given[one.metric])) for one in objectives)
    results = [result for search in searches for result in search]
    front = [results[place].losses for place in front_of(results)]
    return reference_of(front) if front else None


def volumes_of(results: Sequence[Result], reference: Sequence[float]) -> list[tuple[float, float]]:
    """Times at which the hypervolume has grown, and what it was then."""
    front = Front(reference)
    return [(one.t_s, front.volume) for one in results if one.feasible and front.add(one.losses)]
