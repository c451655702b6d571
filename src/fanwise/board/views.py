"""The data of the pages of an experiment as JSON values, limited to the amount that a page can show.

The figures are computed by `fanwise.plot` and `tune.plot_data`, which also serve the matplotlib figures. Texts of users
are not escaped here; the pages insert them as text and never as markup.
"""

import math
import pprint
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from ..base.plain_json import attributes
from ..plot.data import (
    SearchData,
    WorkerInterval,
    best_of_trials,
    bin_reports,
    curves_by_trial,
    finite_reports,
    incumbent_steps,
    rungs_of,
    thin,
    thin_curve,
    value_scale,
    worker_timeline,
)
from ..tune.constraints import format_violations, violated_constraints
from ..tune.display.table import method_line
from ..tune.experiment import Experiment
from ..tune.plot_data import front_data, hyperparameter_axes
from ..tune.record.overview import State
from ..tune.record.state import SearchState
from ..tune.record.trials import Trial
from ..tune.stopping import StoppingCriterion

Json = dict[str, Any]

_SCALE = ("low", "high", "log")
_MAX_CURVES, _MAX_CURVE_POINTS, _MAX_POINTS_PER_CURVE = 160, 16_000, 800
_MAX_STEPS = 500  # of the best value so far
_MAX_LINES = 300  # of parallel coordinates
_MAX_DOTS_PER_RUNG, _MAX_RUNGS = 200, 40
_MAX_FRONT_DOTS = 2_000
_MAX_INTERVALS, _MIN_PER_WORKER, _MAX_PER_WORKER = 2_400, 60, 400


@dataclass(frozen=True, slots=True)
class ExperimentState:
    """An experiment after one refresh.

    Attributes:
        seq: number of the last event.
        now_s: seconds since the search began. They advance between events while the search is running.
    """

    path: Path
    history: SearchState
    seq: int
    search: SearchData
    state: State
    now_s: float
    stop: StoppingCriterion

    @property
    def is_tuner_killed(self) -> bool:
        return self.state == "crashed"

    def status_of(self, trial: Trial) -> str:
        return self.history.status_of(trial, is_tuner_killed=self.is_tuner_killed)


def summary(state: ExperimentState) -> Json:
    """Return everything that changes with each report: the counts, the best report, the budget."""
    history = state.history
    meta, snapshot = history.meta, history.snapshot(now_s=state.now_s, is_tuner_killed=state.is_tuner_killed)
    best = history.best()
    config = {} if best is None else dict(best.config)
    return {
        "name": history.name,
        "path": str(state.path),
        "state": state.state,
        "reason": history.stop_reason,
        **attributes(history, "metric", "mode", "n_workers"),
        **attributes(snapshot, "elapsed_s", "utilization"),
        "objectives": meta.get("objectives", []),
        "method": method_line(meta.get("scheduler", {})),
        "objective": meta.get("objective"),
        "trials": {
            "total": snapshot.total,
            "InProgress": snapshot.running,
            "Paused": snapshot.paused,
            "Lost": snapshot.lost,
            **history.num_ended,
        },
        "num_reports": len(history.reports),
        "num_not_finite": len(state.search.reports) - len(finite_reports(state.search)),
        "budget": _budget(state),
        "best": None
        if best is None
        else {
            "trial": best.trial_id,
            "value": best.value,
            "violated": best.violated,
            "config": config,
            "python": _python_dict(config),
        },
        "seq": state.seq,
    }


def _budget(state: ExperimentState) -> list[Json]:
    """Return each limit of the stopping criterion, and the used amount or None if the limit is not a number."""
    history = state.history
    amounts: dict[str, tuple[str, float]] = {
        "max_wallclock_time": ("seconds", state.now_s),
        "max_num_trials_started": ("trials started", history.num_trials),
        "max_num_trials_completed": ("trials completed", history.num_ended["Completed"]),
        "max_num_evaluations": ("reports", len(history.reports)),
    }
    limits = {field.name: getattr(state.stop, field.name) for field in fields(state.stop)}
    rows = []
    for name, limit in limits.items():
        if limit is not None:
            label, used = amounts.get(name, (name.replace("_", " "), None))
            rows.append({"name": label, "limit": dict(limit) if isinstance(limit, Mapping) else limit, "used": used})
    return rows


def _python_dict(config: Mapping[str, object]) -> str:
    return pprint.pformat(dict(config), sort_dicts=False, width=60)


def curves(state: ExperimentState) -> Json:
    """Return the best value so far, and learning curves of all trials or of a selection."""
    history, search = state.history, state.search
    losses = dict.fromkeys(finite_reports(search).trial_id.tolist(), math.inf) | _losses(search)
    running = [trial_id for trial_id, trial in history.trials.items() if state.status_of(trial) == "InProgress"]
    selected = select_trials(losses, running, _MAX_CURVES)
    max_points = min(_MAX_POINTS_PER_CURVE, _MAX_CURVE_POINTS // max(1, len(selected)))
    drawn = {
        trial_id: curve[thin_curve(curve.value.tolist(), max_points)]
        for trial_id, curve in curves_by_trial(search, selected).items()
    }
    values = [value for curve in drawn.values() for value in curve.value.tolist()]
    steps = incumbent_steps(search)
    later_values = [value for curve in drawn.values() for value in curve.value[1:].tolist()]
    bins = bin_reports(search) if len(losses) > len(drawn) else None
    return {
        "metric": history.metric,
        "mode": history.mode,
        "last_s": max(search.last_s, state.now_s - (search.startup_s or 0.0)),
        "num_trials": len(losses),
        "scale": attributes(value_scale(values, history.mode, later_values), *_SCALE),
        "incumbents": [
            [round(steps[i].t_s, 3), steps[i].value, steps[i].trial_id]
            for i in thin_curve([step.value for step in steps], _MAX_STEPS)
        ],
        "curves": [
            {
                "trial": trial_id,
                "status": state.status_of(history.trials[trial_id]),
                "t": [round(t_s, 3) for t_s in curve.t_s.tolist()],
                "n": curve.iter.tolist(),
                "v": [float(f"{value:.6g}") for value in curve.value.tolist()],
            }
            for trial_id, curve in drawn.items()
        ],
        "bins": bins and attributes(bins, "times_s", "middle", "low", "high"),
    }


def _losses(search: SearchData) -> dict[int, float]:
    """Return the smallest loss of each trial with a finite feasible report."""
    return {trial_id: search.sign * point.value for trial_id, point in best_of_trials(search).items()}


def workers(state: ExperimentState) -> Json:
    """Return the activity of each worker. Intervals that are too short to be seen are merged."""
    timeline = worker_timeline(state.search)
    begin_s = min((interval.begin_s for interval in timeline.intervals), default=0.0)
    end_s = max((interval.end_s for interval in timeline.intervals), default=0.0)
    n_per_worker = max(_MIN_PER_WORKER, min(_MAX_PER_WORKER, _MAX_INTERVALS // timeline.n_workers))
    return {
        "n_workers": timeline.n_workers,
        "shares": dict(zip(("busy", "startup", "idle"), timeline.shares or (None, None, None), strict=True)),
        "intervals": merge_intervals(timeline.intervals, (end_s - begin_s) / n_per_worker),
    }


def rungs(state: ExperimentState) -> Json:
    """Return which trials arrived at each level at which trials were stopped or paused, and which continued."""
    search = state.search
    levels = rungs_of(search)
    values = (arrival.point.value for rung in levels for arrival in rung.arrivals)
    return {
        "resource": search.resource_name,
        "metric": search.metric,
        "scale": attributes(value_scale(values, search.mode), *_SCALE),
        "rungs": [
            {
                "level": rung.level,
                "arrived": len(rung.arrivals),
                "continued": rung.num_continued,
                "dots": [
                    [a.point.trial_id, a.point.value if math.isfinite(a.point.value) else None, a.has_continued]
                    for a in _sample(rung.arrivals, _MAX_DOTS_PER_RUNG)
                ],
            }
            for rung in _sample(levels, _MAX_RUNGS)
        ],
    }


def hyperparameters(state: ExperimentState) -> Json:
    """Return an axis for each hyperparameter, and the positions of trials with a result, worst first.

    The page draws parallel coordinates, slices and a contour from them.
    """
    search, axes = state.search, hyperparameter_axes(state.history)
    losses = _losses(search)
    ranked = sorted(select_trials(losses, (), _MAX_LINES), key=lambda trial_id: (losses[trial_id], trial_id))
    return {
        "metric": search.metric,
        "mode": search.mode,
        "num_trials": len(losses),
        "axes": [{"name": axis.name, "ticks": [list(tick) for tick in axis.ticks]} for axis in axes],
        "scale": attributes(value_scale((search.sign * losses[i] for i in ranked), search.mode), *_SCALE),
        "lines": [
            {
                "trial": trial_id,
                "rank": rank / max(1, len(ranked) - 1),
                "value": search.sign * losses[trial_id],
                "positions": [axis.positions.get(trial_id) for axis in axes],
            }
            for rank, trial_id in reversed(list(enumerate(ranked)))
        ],
    }


def importance(experiment: Experiment) -> Json:
    """Return the importance of each hyperparameter. Takes seconds. Raises ValueError if there are too few results."""
    result = experiment.importances()
    return {
        **attributes(result, "metric", "correlation", "num_stopped", "num_results"),
        "num_trials": len(result.trials),
        "bars": [attributes(bar, "name", "mean", "deviation") for bar in result.hyperparameters],
    }


def front(state: ExperimentState) -> Json:
    """Return the reports of a search with several objectives, and its Pareto front. Raises ValueError for others."""
    data = front_data(state.history)
    on_front = set(data.front)
    dominated = [point for index, point in enumerate(data.points) if index not in on_front]
    return {
        "objectives": [list(objective) for objective in data.objectives],
        "num_reports": len(data.points),
        "front": _sample([data.points[index] for index in sorted(on_front)], _MAX_FRONT_DOTS),
        "dominated": _sample(dominated, _MAX_FRONT_DOTS),
    }


VIEWS: Mapping[str, Callable[[ExperimentState], Json]] = {
    "curves": curves,
    "workers": workers,
    "rungs": rungs,
    "hyperparameters": hyperparameters,
    "front": front,
}


def trial_rows(state: ExperimentState) -> list[Json]:
    """Return the rows of the table of trials, in the order in which the trials started."""
    best, values = best_of_trials(state.search), state.history.reports.values
    rows = []
    for trial in state.history.trials.values():
        index, failure = trial.last.last_report_index, trial.last.failure
        rows.append(
            {
                "trial": trial.trial_id,
                "status": state.status_of(trial),
                "reports": trial.last_iter,
                "best": best[trial.trial_id].value if trial.trial_id in best else None,
                "last": {} if index is None else {name: _json_value(column[index]) for name, column in values.items()},
                "config": dict(trial.config),
                "seconds": trial.worker_time_s or 0.0,
                "reason": None if failure is None else f"{failure.kind}: {failure.text}",
            }
        )
    return rows


def trial_detail(state: ExperimentState, trial_id: int) -> Json:
    """Return configuration, curves, attempts and failure of a trial."""
    history = state.history
    trial, reports = history.trials[trial_id], history.reports
    failure, last_index = trial.last.failure, trial.last.last_report_index
    rows = [index for index, other_id in enumerate(reports.trial_ids) if other_id == trial_id]
    last = {} if last_index is None else {name: column[last_index] for name, column in reports.values.items()}
    return {
        "trial": trial_id,
        "status": state.status_of(trial),
        "metric": history.metric,
        **attributes(trial, "config", "source", "checkpoint"),
        "python": _python_dict(trial.config),
        "reports": trial.last_iter,
        "seconds": trial.worker_time_s or 0.0,
        "violated": format_violations(violated_constraints(history.constraints, last)) if last else "",
        "values": {
            name: _series(history, name, rows)
            for name, column in reports.values.items()
            if any(column[row] is not None for row in rows)
        },
        "attempts": [
            {
                "attempt": attempt.number,
                "worker": attempt.slot,
                "host": attempt.host,
                "status": attempt.status,
                "from_iter": attempt.from_iter,
                "started": attempt.started_s,
                "seconds": attempt.objective_s,
            }
            for attempt in trial.attempts
        ],
        "failure": failure and {"kind": failure.kind, "text": failure.text, "traceback": failure.traceback or ""},
        "seq": state.seq,
    }


def _series(history: SearchState, name: str, rows: Sequence[int]) -> Json:
    """Return the finite numbers that a trial reported under a name, thinned, and its last value."""
    reports, column = history.reports, history.reports.values[name]
    numbers = [row for row in rows if type(column[row]) in (int, float) and math.isfinite(column[row])]
    points = [numbers[i] for i in thin_curve([column[row] for row in numbers], 1_000)]
    return {
        "t": [round(reports.t_s[row], 3) for row in points],
        "n": [reports.iters[row] for row in points],
        "v": [column[row] for row in points],
        "last": _json_value(next(column[row] for row in reversed(rows) if column[row] is not None)),
    }


def _json_value(value: object) -> object:
    """Return the value, or NaN and infinities as text, which JSON lacks."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _sample(items: Sequence[Any], max_items: int) -> list[Any]:
    return [items[i] for i in thin(len(items), max_items)]


def select_trials(losses: Mapping[int, float], running: Collection[int], max_trials: int) -> list[int]:
    """Return at most `max_trials` of the trials with a loss, in ascending order.

    A quarter are the best trials, at most half are the latest running trials, and the rest is an even sample of the
    others.
    """
    if len(losses) <= max_trials:
        return sorted(losses)
    ranked = sorted(losses, key=lambda trial_id: (losses[trial_id], trial_id))
    selected = set(ranked[: max(1, max_trials // 4)])
    latest = sorted((trial_id for trial_id in running if trial_id in losses and trial_id not in selected), reverse=True)
    selected.update(latest[: min(max_trials // 2, max_trials - len(selected))])
    rest, n_free = [trial_id for trial_id in sorted(losses) if trial_id not in selected], max_trials - len(selected)
    selected.update(rest[i * len(rest) // n_free] for i in range(min(n_free, len(rest))))
    return sorted(selected)


def merge_intervals(intervals: Iterable[WorkerInterval], min_length_s: float) -> list[dict[str, Any]]:
    """Return the intervals of all workers by worker and time, as JSON values.

    Adjacent short ones are merged up to `min_length_s`. `trial` and `status` are None if there is no trial or more than
    one. `busy` and `startup` are the seconds in objectives and in starting trials.
    """
    merged: list[dict[str, Any]] = []
    ordered = sorted(intervals, key=lambda interval: (interval.slot, interval.begin_s, interval.end_s))
    for _, of_worker in groupby(ordered, key=lambda interval: interval.slot):
        short: list[WorkerInterval] = []
        for interval in of_worker:
            if interval.length_s >= min_length_s:
                merged += [_merge(short)] if short else []
                merged.append(_merge([interval]))
                short = []
                continue
            short.append(interval)
            if interval.end_s - short[0].begin_s >= min_length_s:
                merged.append(_merge(short))
                short = []
        merged += [_merge(short)] if short else []
    return merged


def _merge(intervals: Sequence[WorkerInterval]) -> dict[str, Any]:
    trial_ids = {interval.trial_id for interval in intervals if interval.trial_id is not None}
    statuses = [interval.status for interval in intervals if interval.status is not None]
    is_one_trial = len(trial_ids) == 1
    return {
        "slot": intervals[0].slot,
        "begin": round(intervals[0].begin_s, 4),
        "end": round(max(interval.end_s for interval in intervals), 4),
        "busy": round(sum(interval.length_s for interval in intervals if interval.kind == "busy"), 4),
        "startup": round(sum(interval.length_s for interval in intervals if interval.kind == "start-up"), 4),
        "trials": len(trial_ids),
        "trial": trial_ids.pop() if is_one_trial else None,
        "status": statuses[-1] if is_one_trial and statuses else None,
    }
