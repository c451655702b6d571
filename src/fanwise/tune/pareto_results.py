"""Pareto front and hypervolume of a recorded search.

All reports that count (see `record.state`) are considered, not only the last one of each trial, because the user could
stop training after any report. Infeasible reports are on no front and add no volume.
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


@dataclass(frozen=True, slots=True)
class FiniteReport:
    """A report with finite values for all objectives. `index`: index of the report in `SearchState.reports`."""

    index: int
    values: tuple[float, ...]
    losses: tuple[float, ...]
    is_feasible: bool


def finite_reports(history: SearchState) -> tuple[list[FiniteReport], int]:
    """Return the reports with finite values for all objectives, and the number of those with an infinite value or NaN.

    Reports without a number for each objective are ignored.
    """
    objectives = history.objectives
    reports, num_skipped = [], 0
    for index, infeasibility, values in history.counted_reports(*(objective.metric for objective in objectives)):
        if not all(map(is_number, values)):
            continue
        if not all(map(math.isfinite, values)):
            num_skipped += 1
            continue
        losses = tuple(objective.loss(float(value)) for objective, value in zip(objectives, values, strict=True))
        reports.append(FiniteReport(index, tuple(map(float, values)), losses, is_feasible=not infeasibility))
    return reports, num_skipped


def non_dominated_indices(reports: Sequence[FiniteReport]) -> list[int]:
    """Return the indices of the non-dominated feasible reports. Equal reports are all included."""
    feasible_indices = [index for index, report in enumerate(reports) if report.is_feasible]
    losses = [reports[index].losses for index in feasible_indices]
    return [feasible_indices[i] for i in first_front(losses)] if losses else []


def pareto_points(history: SearchState) -> list[ParetoPoint]:
    """Return the Pareto front, ordered by the first objective. Of equal reports, only the first is included."""
    reports, _ = finite_reports(history)
    first_by_losses: dict[tuple[float, ...], FiniteReport] = {}
    for index in non_dominated_indices(reports):
        first_by_losses.setdefault(reports[index].losses, reports[index])
    names, columns = [objective.metric for objective in history.objectives], history.reports
    return [
        ParetoPoint(
            trial_id := columns.trial_ids[report.index],
            columns.iters[report.index],
            dict(zip(names, report.values, strict=True)),
            dict(history.trials[trial_id].config),
        )
        for _, report in sorted(first_by_losses.items())
    ]


def hypervolume_of(history: SearchState, reference_point: Mapping[str, float] | None) -> float:
    """Return `Experiment.hypervolume`."""
    objectives = history.objectives
    names = [objective.metric for objective in objectives]
    reports, _ = finite_reports(history)
    if reference_point is not None:
        are_finite = all(is_number(value) and math.isfinite(value) for value in reference_point.values())
        if sorted(reference_point) != sorted(names) or not are_finite:
            needs = f"reference_point must have a finite number for each objective, {', '.join(map(repr, names))}"
            raise ValueError(f"{needs}; got {dict(reference_point)!r}")
        reference = tuple(objective.loss(float(reference_point[objective.metric])) for objective in objectives)
    elif pareto_front := non_dominated_indices(reports):
        reference = default_reference([reports[index].losses for index in pareto_front])
    else:
        return 0.0
    front = HypervolumeFront(reference)
    for report in reports:
        if report.is_feasible:
            front.add(report.losses)
    return front.volume
