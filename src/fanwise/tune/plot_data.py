"""Conversion of experiments to the plain data that `fanwise.plot` draws.

Discarded and repeated reports are omitted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..plot.data import Hyperparameter, ReportPoint, SearchData, Span
from ..plot.dependences import DependenceData
from ..plot.fronts import FrontData
from ..plot.hypervolumes import VolumeData
from .pareto_results import front_of, objectives_of, reference_losses, results_of, volumes_of
from .permutation_importance import Dependence
from .record.state import SearchState
from .record.trials import Trial
from .space import Space, space_from_json
from .space.domains import Domain
from .values import is_number, round_resource

_MAX_TICKS = 8
_UNITS = (0.0, 0.25, 0.5, 0.75, math.nextafter(1.0, 0.0))


def search_data(name: str, meta: Mapping[str, Any], history: SearchState) -> SearchData:
    """Return reports, spans on workers and hyperparameter axes. Reports without a numeric metric are omitted."""
    reports, resource_attr = history.reports, str(meta.get("resource_attr"))
    points = [
        ReportPoint(
            reports.trial_ids[row],
            reports.t_s[row],
            reports.iters[row],
            float(value),
            round_resource(float(resource)) if isinstance(resource, (int, float)) else None,
            reports.decisions[row],
            feasible=not infeasibility,
        )
        for row, infeasibility, (value, resource) in history.counted_rows(history.metric, resource_attr)
        if isinstance(value, (int, float))
    ]
    return replace(search_without_reports(name, meta, history), reports=points)


def search_without_reports(name: str, meta: Mapping[str, Any], history: SearchState) -> SearchData:
    """Return `search_data` without the reports, which can be many."""
    resource_attr = meta.get("resource_attr")
    windows = history.utilization_windows()
    n_workers = max([int(meta["n_workers"]), *(n_workers for _, _, n_workers in windows)])  # their number may change
    return SearchData(
        name=name,
        metric=history.metric,
        mode=history.mode,
        n_workers=n_workers or 1 + max((a.slot for _, a in history.attempts()), default=0),
        asynchronous=bool(meta.get("asynchronous", True)),
        reports=(),
        spans=[
            Span(a.slot, trial.trial_id, a.started_s, a.ready_s, a.ended_s, a.free_s, a.status, a.objective_s)
            for trial, a in history.attempts()
        ],
        first_ready_s=history.first_ready_s,
        stop_s=history.stop_s,
        last_s=history.last_s,
        windows=windows,
        resource_name="reports of a trial" if resource_attr is None else str(resource_attr),
        hyperparameters=_hyperparameters(space_from_json(meta["space"]), list(history.trials.values())),
    )


def front_data(name: str, meta: Mapping[str, Any], history: SearchState) -> FrontData:
    """Return the results and the Pareto front.

    Raises:
        ValueError: the search has one objective, or too many to be drawn.
    """
    objectives = objectives_of(meta)
    results, num_skipped = results_of(history, objectives)
    return FrontData(
        name,
        [(objective.metric, objective.mode) for objective in objectives],
        [(result.trial_id, result.values) for result in results],
        front_of(results),
        num_skipped,
        [index for index, result in enumerate(results) if not result.feasible],
    )


def volume_data(
    searches: Sequence[tuple[str, Mapping[str, Any], SearchState]],
    reference_point: Mapping[str, float] | None,
) -> list[VolumeData]:
    """Return the hypervolume over time of each search (name, meta, history), with a common reference point.

    Raises:
        ValueError: the searches have different objectives, or the reference point does not match them.
    """
    objectives = objectives_of(searches[0][1])
    if any(objectives_of(meta) != objectives for _, meta, _ in searches):
        raise ValueError("the hypervolumes of searches of different objectives cannot be compared")
    all_results = [results_of(history, objectives)[0] for _, _, history in searches]
    reference = reference_losses(objectives, reference_point, all_results)
    point = {} if reference is None else {o.metric: o.loss(x) for o, x in zip(objectives, reference, strict=True)}
    data = []
    for (name, _, history), results in zip(searches, all_results, strict=True):
        zero_s = history.first_ready_s or 0.0
        volumes = [] if reference is None else volumes_of(results, reference)
        steps = [(max(0.0, t_s - zero_s), volume) for t_s, volume in volumes]
        data.append(VolumeData(name, point, steps, max(0.0, history.last_s - zero_s)))
    return data


def dependence_data(
    meta: Mapping[str, Any],
    history: SearchState,
    dependences: Sequence[Dependence],
) -> list[DependenceData]:
    """Return the partial dependences with the axes of the hyperparameters."""
    space = space_from_json(meta["space"])
    axes = {axis.name: axis for axis in _hyperparameters(space, list(history.trials.values()))}
    return [
        DependenceData(
            axes[d.name], [space.domains[d.name].to_unit(value) for value in d.values], d.means, d.lows, d.highs
        )
        for d in dependences
    ]


def _hyperparameters(space: Space, trials: Sequence[Trial]) -> list[Hyperparameter]:
    return [
        Hyperparameter(
            name,
            _ticks(domain),
            {
                trial.trial_id: domain.to_unit(trial.config[name])
                for trial in trials
                if name in trial.config and domain.contains(trial.config[name])
            },
            _is_discrete(domain),
        )
        for name, domain in space.domains.items()
    ]


def _is_discrete(domain: Domain) -> bool:
    return domain.num_values is not None and domain.num_values <= _MAX_TICKS


def _ticks(domain: Domain) -> list[tuple[float, str]]:
    """Return a tick for each value if there are few, otherwise five evenly spaced ticks."""
    if _is_discrete(domain):
        values = [domain.value_at(index) for index in range(domain.num_values or 0)]  # type: ignore[attr-defined]
    else:
        values = [domain.from_unit(u) for u in _UNITS]
    units = [domain.to_unit(value) for value in values]
    return list(dict(zip(units, _format_values(values), strict=True)).items())


def _format_values(values: Sequence[object]) -> list[str]:
    """Format values with the fewest digits that distinguish them."""
    if not all(map(is_number, values)):
        return [str(value) for value in values]
    for digits in range(3, 17):
        texts = [str(value) if isinstance(value, int) else f"{value:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts
