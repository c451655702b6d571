"""Conversion of searches to the plain data that `fanwise.plot` and the board draw.

Reports that do not count (see `record.state`) are omitted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from ..plot.data import Reports, SearchData, Span
from ..plot.fronts import FrontData
from .pareto_results import finite_reports, non_dominated_indices
from .record.state import SearchState
from .space import space_from_json
from .space.domains import Domain
from .values import is_number, round_resource

_MAX_TICKS = 8
_TICK_POSITIONS = (0.0, 0.25, 0.5, 0.75, math.nextafter(1.0, 0.0))


@dataclass(frozen=True, slots=True)
class HyperparameterAxis:
    """The axis of a hyperparameter, on which values have positions from 0 to 1.

    Attributes:
        ticks: (position, label) of each tick.
        positions: {trial id: position}. Trials without a value in the domain are omitted.
    """

    name: str
    ticks: Sequence[tuple[float, str]]
    positions: Mapping[int, float]


def search_data(history: SearchState) -> SearchData:
    """Return the reports that contain a number for the metric, and the times of the trials on workers."""
    reports, resources = history.reports, history.column(str(history.meta.get("resource_attr")))
    values = history.column(history.metric)
    mask = [
        counts and isinstance(value, (int, float)) for counts, value in zip(history.counted_mask(), values, strict=True)
    ]
    columns = Reports(
        *(
            list(compress(column, mask))
            for column in (
                reports.trial_ids,
                reports.t_s,
                reports.iters,
                map(_as_float, values),
                (round_resource(_as_float(value)) for value in resources),
                reports.decisions,
                (not infeasibility for infeasibility in history.infeasibilities()),
            )
        )
    )
    return replace(search_data_without_reports(history), reports=columns)


def search_data_without_reports(history: SearchState) -> SearchData:
    """Return `search_data` with an empty list of reports, for the figure of the workers, which needs none."""
    meta = history.meta
    resource_attr = meta.get("resource_attr")
    windows = history.utilization.windows(history.last_s)
    n_workers = max([int(meta["n_workers"]), *(n_workers for _, _, n_workers in windows)])  # see `set_workers`
    return SearchData(
        name=history.name,
        metric=history.metric,
        mode=history.mode,
        # n_workers is 0 in ask-and-tell searches.
        n_workers=n_workers or 1 + max((attempt.slot for _, attempt in history.attempts()), default=0),
        asynchronous=bool(meta.get("asynchronous", True)),
        reports=(),
        spans=[
            Span(a.slot, trial.trial_id, a.started_s, a.ready_s, a.ended_s, a.free_s, a.status, a.objective_s)
            for trial, a in history.attempts()
        ],
        first_objective_s=history.utilization.first_objective_s,
        stop_s=history.utilization.stop_s,
        last_s=history.last_s,
        windows=windows,
        resource_name="reports of a trial" if resource_attr is None else str(resource_attr),
    )


def front_data(history: SearchState) -> FrontData:
    """Return the finite reports and the Pareto front. Raises ValueError unless there are two to four objectives."""
    reports, num_skipped = finite_reports(history)
    return FrontData(
        history.name,
        [(objective.metric, objective.mode) for objective in history.objectives],
        [(history.reports.trial_ids[report.index], report.values) for report in reports],
        non_dominated_indices(reports),
        num_skipped,
        [index for index, report in enumerate(reports) if not report.is_feasible],
    )


def hyperparameter_axes(history: SearchState) -> list[HyperparameterAxis]:
    return [
        HyperparameterAxis(
            name,
            _ticks(domain),
            {
                trial.trial_id: domain.to_unit(trial.config[name])
                for trial in history.trials.values()
                if name in trial.config and domain.contains(trial.config[name])
            },
        )
        for name, domain in space_from_json(history.meta["space"]).domains.items()
    ]


def _as_float(value: object) -> float:
    """Return a number as float, NaN for other values, and an infinity for an int that is too large for a float."""
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.inf


def _ticks(domain: Domain) -> list[tuple[float, str]]:
    """Return a tick for each value if there are few, otherwise five evenly spaced ticks."""
    if domain.num_values is not None and domain.num_values <= _MAX_TICKS:
        values = [domain.value_at(index) for index in range(domain.num_values)]  # type: ignore[attr-defined]
    else:
        values = [domain.from_unit(position) for position in _TICK_POSITIONS]
    positions = [domain.to_unit(value) for value in values]
    return list(dict(zip(positions, _format_values(values), strict=True)).items())


def _format_values(values: Sequence[object]) -> list[str]:
    """Format values with the fewest digits that distinguish them."""
    if not all(map(is_number, values)):
        return [str(value) for value in values]
    for digits in range(3, 17):
        texts = [str(value) if isinstance(value, int) else f"{value:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts
