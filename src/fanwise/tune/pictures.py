"""An experiment as the plain data that `fanwise.plot` draws.

    SearchState, meta --search_data--> SearchData      reports that count, stays on workers, the space's axes
                  --search_without_reports->       the same without the reports
                  --front_data---> FrontData       reports with all their objectives, and the Pareto front
                  --volume_data--> VolumeData      how the hypervolume grew
        Dependence --dependence_data--> DependenceData      on the space's axes

Knows the record and the space, so that the figures need not. Reports that became void, and those that were repeated
after a pause, are left out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

from ..plot.data import Hyperparameter, ReportPoint, SearchData, Span
from ..plot.dependences import DependenceData
from ..plot.fronts import FrontData
from ..plot.hypervolumes import VolumeData
from .fronts import front_of, objectives_of, reference_losses, results_of, volumes_of
from .insight import Dependence
from .record.state import SearchState
from .record.trials import Trial
from .spaces import Space
from .spaces.domains import Domain
from .values import is_number, rounded_resource

_MAX_TICKS = 8
_UNITS = (0.0, 0.25, 0.5, 0.75, math.nextafter(1.0, 0.0))


def search_data(name: str, meta: Mapping[str, Any], history: SearchState) -> SearchData:  # Any: JSON
    """See the module. Reports without a number as metric are left out."""
    reports, metric, resource_attr = history.reports, str(meta["metric"]), meta.get("resource_attr")
    values = reports.values.get(metric) or [None] * len(reports)
    resources = reports.values.get(str(resource_attr)) or [None] * len(reports)
    feasible = [beyond == 0.0 for beyond in history.infeasibilities()]
    rows = zip(
        reports.trial_ids, reports.t_s, reports.iters, values, resources, reports.decisions, feasible, strict=True
    )
    return replace(
        search_without_reports(name, meta, history),
        reports=[
            ReportPoint(trial_id, t_s, iteration, float(value), _number_or_none(resource), decision, is_feasible)
            for trial_id, t_s, iteration, value, resource, decision, is_feasible in compress(rows, history.counts())
            if isinstance(value, (int, float))
        ],
    )


def search_without_reports(name: str, meta: Mapping[str, Any], history: SearchState) -> SearchData:  # Any: JSON
    """What is small of it, however many reports there are: the stays on workers and the space's axes."""
    resource_attr = meta.get("resource_attr")
    windows = history.utilisation_windows()
    n_workers = max([int(meta["n_workers"]), *(n_workers for _, _, n_workers in windows)])  # their number may change
    return SearchData(
        name=name,
        metric=str(meta["metric"]),
        mode=str(meta["mode"]),
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
        hyperparameters=_hyperparameters(Space.from_json(meta["space"]), list(history.trials.values())),
    )


def front_data(name: str, meta: Mapping[str, Any], history: SearchState) -> FrontData:  # Any: JSON
    """See the module.

    Raises:
        ValueError: the search has one objective, or more than can be drawn.
    """
    objectives = objectives_of(meta)
    results, num_left_out = results_of(history, objectives)
    return FrontData(
        name,
        [(one.metric, one.mode) for one in objectives],
        [(result.trial_id, result.values) for result in results],
        front_of(results),
        num_left_out,
        [place for place, result in enumerate(results) if not result.feasible],
    )


def volume_data(
    searches: Sequence[tuple[str, Mapping[str, Any], SearchState]],  # Any: JSON
    reference_point: Mapping[str, float] | None,
) -> list[VolumeData]:
    """Of each search (name, meta, history), all up to one reference point: the one given, or one made of all results.

    Raises:
        ValueError: the searches do not have the same objectives, or the point does not fit them.
    """
    objectives = objectives_of(searches[0][1])
    if any(objectives_of(meta) != objectives for _, meta, _ in searches):
        raise ValueError("the hypervolumes of searches of different objectives cannot be compared")
    found = [results_of(history, objectives)[0] for _, _, history in searches]
    reference = reference_losses(objectives, reference_point, found)
    point = {} if reference is None else {o.metric: o.loss(x) for o, x in zip(objectives, reference, strict=True)}
    data = []
    for (name, _, history), results in zip(searches, found, strict=True):
        zero_s = history.first_ready_s or 0.0
        volumes = [] if reference is None else volumes_of(results, reference)
        steps = [(max(0.0, t_s - zero_s), volume) for t_s, volume in volumes]
        data.append(VolumeData(name, point, steps, max(0.0, history.last_s - zero_s)))
    return data


def dependence_data(
    meta: Mapping[str, Any],  # Any: JSON
    history: SearchState,
    dependences: Sequence[Dependence],
) -> list[DependenceData]:
    """See the module."""
    space = Space.from_json(meta["space"])
    axes = {axis.name: axis for axis in _hyperparameters(space, list(history.trials.values()))}
    return [
        DependenceData(
            axes[one.name], [space.domains[one.name].to_unit(x) for x in one.values], one.means, one.lows, one.highs
        )
        for one in dependences
    ]


def _hyperparameters(space: Space, trials: Sequence[Trial]) -> list[Hyperparameter]:
    return [
        Hyperparameter(name, _ticks(domain), _places(name, domain, trials), _is_discrete(domain))
        for name, domain in space.domains.items()
    ]


def _is_discrete(domain: Domain) -> bool:
    return domain.num_values is not None and domain.num_values <= _MAX_TICKS


def _ticks(domain: Domain) -> list[tuple[float, str]]:
    """Every value, if they are few; else five, as evenly spaced on the domain's own scale as its values allow."""
    if _is_discrete(domain):
        values = [domain.value_at(index) for index in range(domain.num_values or 0)]  # type: ignore[attr-defined]
    else:
        values = [domain.from_unit(u) for u in _UNITS]
    places = [domain.to_unit(value) for value in values]
    return list(dict(zip(places, _texts(values), strict=True)).items())


def _texts(values: Sequence[object]) -> list[str]:
    """As few digits as tell the values apart."""
    if not all(map(is_number, values)):
        return [str(value) for value in values]
    for digits in range(3, 17):
        texts = [str(value) if isinstance(value, int) else f"{value:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


def _places(name: str, domain: Domain, trials: Iterable[Trial]) -> dict[int, float]:
    found = {}
    for trial in trials:
        if name in trial.config and domain.contains(trial.config[name]):
            found[trial.trial_id] = domain.to_unit(trial.config[name])
    return found


def _number_or_none(value: object) -> float | None:
    return rounded_resource(float(value)) if isinstance(value, (int, float)) else None
