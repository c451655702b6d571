"""Conversion of searches to the plain data that `fanwise.plot` and the board draw, and all figures of a search.

Reports that do not count (see `record.state`) are omitted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

from ..base.errors import NotInstalled
from ..plot import incumbent, learning_curves, rungs, workers
from ..plot.data import MAX_OBJECTIVES, FrontData, SearchData, Span, rungs_of
from ..plot.fronts import pareto_front
from ..plot.importances import importance
from .pareto_results import finite_reports, non_dominated_indices
from .permutation_importance import importances_of
from .record.state import SearchState
from .space import space_from_json
from .space.domains import Domain
from .values import is_number, round_resource

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    meta, utilization, reports = history.meta, history.utilization, history.reports
    resource_attr = meta.get("resource_attr")
    zero_s = utilization.first_objective_s or 0.0

    def since_zero(t_s: float | None) -> float | None:
        return None if t_s is None else t_s - zero_s

    values = history.column(history.metric)
    mask = [
        counts and isinstance(value, (int, float)) for counts, value in zip(history.counted_mask(), values, strict=True)
    ]
    columns = (
        reports.trial_ids,
        (t_s - zero_s for t_s in reports.t_s),
        reports.iters,
        map(_as_float, values),
        (round_resource(_as_float(value)) for value in history.column(str(resource_attr))),
        reports.decisions,
        (not infeasibility for infeasibility in history.infeasibilities()),
    )
    spans = []
    for trial, attempt in history.attempts():
        started_s, ready_s = max(0.0, attempt.started_s - zero_s), since_zero(attempt.ready_s)
        times_s = started_s, ready_s, since_zero(attempt.ended_s)
        spans.append(Span(attempt.slot, trial.trial_id, *times_s, attempt.status, attempt.objective_s))
    windows = [
        (begin_s - zero_s, end_s - zero_s, number) for begin_s, end_s, number in utilization.windows(history.last_s)
    ]
    n_workers = max([int(meta["n_workers"]), *(number for _, _, number in windows)])  # see `set_workers`
    return SearchData(
        name=history.name,
        metric=history.metric,
        mode=history.mode,
        # n_workers is 0 in ask-and-tell searches.
        n_workers=n_workers or 1 + max((attempt.slot for _, attempt in history.attempts()), default=0),
        reports=compress(zip(*columns, strict=True), mask),
        spans=spans,
        startup_s=utilization.first_objective_s,
        stop_s=since_zero(utilization.stop_s),
        last_s=history.last_s - zero_s,
        windows=windows,
        resource_name="reports of a trial" if resource_attr is None else str(resource_attr),
    )


def figures_of(history: SearchState) -> tuple[dict[str, "Figure"], str]:
    """Return all figures of one search that are not empty, by name, and the reason why the importances are missing.

    The reason is empty if they are drawn or if there are too few trials.
    """
    search, note = search_data(history), ""
    figures = {"incumbent": incumbent(search), "learning-curves": learning_curves(search), "workers": workers(search)}
    if rungs_of(search):
        figures["rungs"] = rungs(search)
    if 2 <= len(history.objectives) <= MAX_OBJECTIVES:
        figures["pareto-front"] = pareto_front(front_data(history))
    try:
        figures["importance"] = importance_figure(history)
    except NotInstalled as error:
        note = error.message
    except ValueError:
        pass  # too few trials
    return figures, note


def importance_figure(history: SearchState, metric: str | None = None) -> "Figure":
    """Return `Experiment.plot_importances`."""
    result = importances_of(history, metric)
    bars, note = result.hyperparameters, result.in_words()
    return importance(history.name, result.metric, bars, result.predicted, result.actual, note)


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
    axes = []
    for name, domain in space_from_json(history.meta["space"]).domains.items():
        values = {trial.trial_id: trial.config[name] for trial in history.trials.values() if name in trial.config}
        positions = {trial_id: domain.to_unit(value) for trial_id, value in values.items() if domain.contains(value)}
        axes.append(HyperparameterAxis(name, _ticks(domain), positions))
    return axes


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
