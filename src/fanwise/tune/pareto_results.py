"""Pareto front and hypervolume of a recorded search.

All reports that count (see `record.state`) are considered, not only the last one of each trial, because a trial could
be stopped after any report. Infeasible reports are on no front and add no volume.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from .pareto import HypervolumeFront, default_reference, first_front
from .record.state import SearchState
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
    """A report with finite values for all objectives. `row`: its row in `SearchState.reports`."""

    row: int
    values: tuple[float, ...]
    losses: tuple[float, ...]
    feasible: bool


def results_of(history: SearchState) -> tuple[list[Result], int]:
    """Return the results in order of the reports, and the number of reports skipped for infinite values or NaN."""
    objectives = history.objectives
    results, num_skipped = [], 0
    for row, infeasibility, values in history.counted_reports(*(objective.metric for objective in objectives)):
        if not all(map(is_number, values)):
            continue
        if not all(map(math.isfinite, values)):
            num_skipped += 1
            continue
        losses = tuple(objective.loss(float(value)) for objective, value in zip(objectives, values, strict=True))
        results.append(Result(row, tuple(map(float, values)), losses, feasible=not infeasibility))
    return results, num_skipped


def front_of(results: Sequence[Result]) -> list[int]:
    """Return the indices of the non-dominated feasible results. Equal results are all included."""
    feasible = [index for index, result in enumerate(results) if result.feasible]
    return [feasible[i] for i in first_front([results[index].losses for index in feasible])] if feasible else []


def pareto_of(history: SearchState) -> list[ParetoPoint]:
    """Return the Pareto front, ordered by the first objective. Of equal reports, only the first is included."""
    results, _ = results_of(history)
    first: dict[tuple[float, ...], Result] = {}
    for index in front_of(results):
        first.setdefault(results[index].losses, results[index])
    names, reports = [objective.metric for objective in history.objectives], history.reports
    return [
        ParetoPoint(
            trial_id := reports.trial_ids[result.row],
            reports.iters[result.row],
            dict(zip(names, result.values, strict=True)),
            dict(history.trials[trial_id].config),
        )
        for _, result in sorted(first.items())
    ]


def hypervolume_of(history: SearchState, reference_point: Mapping[str, float] | None) -> float:
    """Return the hypervolume of all reports; see `Experiment.hypervolume`."""
    objectives = history.objectives
    names = [objective.metric for objective in objectives]
    results, _ = results_of(history)
    if reference_point is not None:
        if sorted(reference_point) != sorted(names) or not all(
            is_number(value) and math.isfinite(value) for value in reference_point.values()
        ):
            raise ValueError(
                f"reference_point must have a finite number for each objective, {', '.join(map(repr, names))}; "
                f"got {dict(reference_point)!r}"
            )
        reference = tuple(objective.loss(float(reference_point[objective.metric])) for objective in objectives)
    elif pareto_front := front_of(results):
        reference = default_reference([results[index].losses for index in pareto_front])
    else:
        return 0.0
    front = HypervolumeFront(reference)
    for result in results:
        if result.feasible:
            front.add(result.losses)
    return front.volume
