"""Pareto front and hypervolume of a recorded search.

All valid reports are considered, not only the last one of each trial, because a trial could be stopped after any of
them. Infeasible reports are on no front and add no volume.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from .pareto import HypervolumeFront, default_reference, first_front
from .record.state import SearchState
from .searchers.searcher import Objective
from .values import is_number


@final
@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A non-dominated report, with the values of the objectives and the configuration of its trial."""

    trial_id: int
    iter: int
    values: Mapping[str, float]
    config: Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True)
class Result:
    """A report with finite values for all objectives."""

    row: int
    trial_id: int
    t_s: float
    values: tuple[float, ...]
    losses: tuple[float, ...]
    feasible: bool


def objectives_of(meta: Mapping[str, Any]) -> tuple[Objective, ...]:
    """Return the objectives from the metadata of a record."""
    return tuple(Objective(str(metric), mode) for metric, mode in meta["objectives"])


def results_of(history: SearchState, objectives: Sequence[Objective]) -> tuple[list[Result], int]:
    """Return the results in the order of the reports, and the number of reports skipped for non-finite values."""
    reports = history.reports
    results, num_skipped = [], 0
    for row, infeasibility, values in history.counted_rows(*(objective.metric for objective in objectives)):
        if not all(map(is_number, values)):
            continue
        if not all(map(math.isfinite, values)):
            num_skipped += 1
            continue
        losses = tuple(objective.loss(float(value)) for objective, value in zip(objectives, values, strict=True))
        place = row, reports.trial_ids[row], reports.t_s[row]
        results.append(Result(*place, tuple(map(float, values)), losses, feasible=not infeasibility))
    return results, num_skipped


def front_of(results: Sequence[Result]) -> list[int]:
    """Return the indices of the non-dominated feasible results, including equal ones."""
    feasible = [index for index, result in enumerate(results) if result.feasible]
    return [feasible[i] for i in first_front([results[index].losses for index in feasible])] if feasible else []


def pareto_of(history: SearchState, objectives: Sequence[Objective]) -> list[ParetoPoint]:
    """Return the Pareto front, ordered by the first objective; the first of equal reports."""
    results, _ = results_of(history, objectives)
    first: dict[tuple[float, ...], Result] = {}
    for index in front_of(results):
        first.setdefault(results[index].losses, results[index])
    names = [objective.metric for objective in objectives]
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
    objectives: Sequence[Objective], point: Mapping[str, float] | None, searches: Iterable[Sequence[Result]]
) -> tuple[float, ...] | None:
    """Return the reference point as losses.

    The default is `pareto.default_reference` of the joint front of all searches, so that they are comparable; None
    if there are no results.

    Raises:
        ValueError: the given point lacks an objective or has a non-finite value.
    """
    if point is not None:
        names = [objective.metric for objective in objectives]
        if sorted(point) != sorted(names) or not all(is_number(v) and math.isfinite(v) for v in point.values()):
            raise ValueError(
                f"reference_point must have a finite number for each objective, {', '.join(map(repr, names))}; "
                f"got {dict(point)!r}"
            )
        return tuple(objective.loss(float(point[objective.metric])) for objective in objectives)
    results = [result for search in searches for result in search]
    front = [results[index].losses for index in front_of(results)]
    return default_reference(front) if front else None


def volumes_of(results: Sequence[Result], reference: Sequence[float]) -> list[tuple[float, float]]:
    """Return the (time, hypervolume) steps of a search."""
    front = HypervolumeFront(reference)
    return [(result.t_s, front.volume) for result in results if result.feasible and front.add(result.losses)]
