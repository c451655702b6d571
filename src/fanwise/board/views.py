"""What the pages show of one experiment, each view as plain JSON values, thinned to what a screen can hold.

    Look(experiment, columns, ...) --VIEWS[name]--> a dict

Knows the record's readers and the analyses of `tune`; neither files nor HTTP. Texts of users stand here as they are:
the pages put them in as text and never as markup.
"""

import math
import pprint
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..plot.rung_levels import rungs_of
from ..plot.scales import value_scale
from ..plot.worker_intervals import Timeline, worker_timeline
from ..tune.constraints import format_violations, violated_constraints
from ..tune.display.table import method_line
from ..tune.experiment import Experiment
from ..tune.plot_data import front_data, hyperparameter_axes, search_data, search_data_without_reports
from ..tune.record.overview import State
from ..tune.record.state import SearchState
from ..tune.record.trials import Trial
from ..tune.stopping import StoppingCriterion
from .columns import Columns, thin
from .thinning import chosen, merged

Json = dict[str, Any]  # Any: JSON

_MOST_CURVES, _MOST_CURVE_POINTS = 160, 16_000
_MOST_LINES = 300  # of parallel coordinates
_MOST_DOTS_A_RUNG, _MOST_RUNGS = 200, 40
_MOST_FRONT_DOTS = 2_000
_FINEST, _MOST_STRETCHES = 400, 2_400  # of a worker's time, that can be told apart; of all workers, that can be drawn
_SHOWN_LIMITS = {
    "max_wallclock_time": "seconds",
    "max_num_trials_started": "trials started",
    "max_num_trials_completed": "trials completed",
    "max_num_evaluations": "reports",
}


@dataclass(frozen=True, slots=True)
class Look:
    """An experiment at one moment. `now_s`: its clock, which goes on between two events while it runs.

    `stop`, `n_workers`: the settings that held last.
    """

    path: Path
    meta: Mapping[str, Any]  # Any: JSON
    history: SearchState
    columns: Columns
    state: State
    now_s: float
    n_workers: int
    stop: StoppingCriterion

    @property
    def name(self) -> str:
        return str(self.meta.get("name", self.path.name))

    @property
    def is_tuner_killed(self) -> bool:
        return self.state == "broken-off"


def summary(look: Look) -> Json:
    """The state, the best so far, what is left of the budget: all that changes with each report."""
    progress, meta = look.history, look.meta
    shot = progress.snapshot(now_s=look.now_s, is_tuner_killed=look.is_tuner_killed)
    return {
        "name": look.name,
        "path": str(look.path),
        "state": look.state,
        "reason": progress.stop_reason,
        "metric": look.history.metric,
        "mode": look.history.mode,
        "objectives": meta.get("objectives", []),
        "method": method_line(meta.get("scheduler", {})),
        "objective": meta.get("objective"),
        "seed": meta.get("seed"),
        "created_s": meta.get("created_s"),
        "constraints": list(shot.constraints),
        "n_workers": look.n_workers,
        "elapsed_s": shot.elapsed_s,
        "utilization": shot.utilization,
        "trials": {
            "total": shot.total,
            "InProgress": shot.running,
            "Paused": shot.paused,
            "Lost": shot.lost,
            **progress.num_ended,
        },
        "num_reports": len(look.history.reports),
        "num_left_out": look.columns.num_left_out,
        "budget": _budget(look),
        "best": _best(look),
        "seq": look.history.last_seq,
    }


def _best(look: Look) -> Json | None:
    best = look.history.best()
    if best is None:
        return None
    config = dict(look.history.trials[best.trial_id].config)
    known = {"trial": best.trial_id, "value": best.value, "violated": best.violated}
    return {**known, "config": config, "python": as_python(config)}


def _budget(look: Look) -> list[Json]:
    """Each limit of the stopping criterion, and how much of it is used where that is a number."""
    over = look.history.num_ended
    used = {
        "max_wallclock_time": look.now_s,
        "max_num_trials_started": look.history.num_trials,
        "max_num_trials_completed": over.get("Completed", 0),
        "max_num_evaluations": len(look.history.reports),
    }
    found = []
    for field in fields(look.stop):
        limit = getattr(look.stop, field.name)
        if limit is not None:
            what = _SHOWN_LIMITS.get(field.name, field.name.replace("_", " "))
            shown = dict(limit) if isinstance(limit, Mapping) else limit
            found.append({"what": what, "limit": shown, "used": used.get(field.name)})
    return found


def as_python(config: Mapping[str, object]) -> str:
    """The configuration as a dict that can be pasted into a program."""
    return pprint.pformat(dict(config), sort_dicts=False, width=60)


def curves(look: Look) -> Json:
    """The best so far, and the learning curves: of all trials, or of the best, those that run, and a sample."""
    columns, history = look.columns, look.history
    losses = columns.best_losses()
    running = [trial_id for trial_id, trial in history.trials.items() if _status(look, trial) == "InProgress"]
    drawn = columns.curves(chosen(losses, running, _MOST_CURVES), _MOST_CURVE_POINTS)
    incumbents = columns.incumbents()
    steps = [incumbents[place] for place in thin(columns.values_N[incumbents], 500)]
    scale = value_scale(
        (value for curve in drawn for value in curve.values),
        history.mode,
        [value for curve in drawn for value in curve.values[1:]] or None,
    )
    crowded = len(losses) > len(drawn)
    return {
        "metric": history.metric,
        "mode": history.mode,
        "last_s": look.now_s,
        "num_trials": len(losses),
        "scale": {"low": scale.low, "high": scale.high, "log": scale.log},
        "incumbents": [
            [round(float(columns.times_N[row]), 3), float(columns.values_N[row]), int(columns.trial_ids_N[row])]
            for row in steps
        ],
        "curves": [
            {
                "trial": curve.trial_id,
                "status": _status(look, history.trials[curve.trial_id]),
                "t": [round(t_s, 3) for t_s in curve.times_s],
                "n": curve.iters,
                "v": [_short(value) for value in curve.values],
            }
            for curve in drawn
        ],
        "crowd": columns.crowd() if crowded else None,
    }


def workers(look: Look) -> Json:
    """What each worker did; what is too short to be seen is merged with its neighbours."""
    search = search_data_without_reports(look.history)
    timeline = worker_timeline(search)
    begin_s = min((one.begin_s for one in timeline.intervals), default=0.0)
    end_s = max((one.end_s for one in timeline.intervals), default=0.0)
    finest = max(60, min(_FINEST, _MOST_STRETCHES // timeline.n_workers))
    stretches = merged(timeline.intervals, (end_s - begin_s) / finest)
    return {
        "n_workers": timeline.n_workers,
        "shares": _shares(timeline),
        "stretches": [
            {
                "slot": one.slot,
                "begin": round(one.begin_s, 4),
                "end": round(one.end_s, 4),
                "busy": round(one.busy_s, 4),
                "startup": round(one.startup_s, 4),
                "trials": one.num_trials,
                "trial": one.trial_id,
                "status": one.status,
            }
            for one in stretches
        ],
    }


def _shares(timeline: Timeline) -> Json:
    return {"busy": timeline.utilization, "startup": timeline.startup_share, "idle": timeline.idle_share}


def rungs(look: Look) -> Json:
    """Who came to each level where trials were stopped or paused, and who went on."""
    search = search_data(look.history)
    found = rungs_of(search)
    scale = value_scale((one.point.value for rung in found for one in rung.arrivals), look.history.mode)
    return {
        "resource": search.resource_name,
        "metric": search.metric,
        "scale": {"low": scale.low, "high": scale.high, "log": scale.log},
        "rungs": [
            {
                "level": found[place].level,
                "arrived": len(found[place].arrivals),
                "continued": found[place].num_continued,
                "dots": [
                    [one.point.trial_id, _finite(one.point.value), one.has_continued]
                    for one in _sample(found[place].arrivals, _MOST_DOTS_A_RUNG)
                ],
            }
            for place in _even(len(found), _MOST_RUNGS)
        ],
    }


def trial_rows(look: Look) -> list[Json]:
    """A row for each trial, in the order of starting: the table's."""
    history, losses = look.history, look.columns.best_losses()
    sign = 1.0 if history.mode == "min" else -1.0
    values = history.reports.values
    rows = []
    for trial in history.trials.values():
        row, loss = trial.last.last_report_index, losses.get(trial.trial_id)
        failure = trial.last.failure
        rows.append(
            {
                "trial": trial.trial_id,
                "status": _status(look, trial),
                "reports": trial.last_iter,
                "best": None if loss is None or not math.isfinite(loss) else sign * loss,
                "last": {} if row is None else {name: _told(column[row]) for name, column in values.items()},
                "config": dict(trial.config),
                "seconds": trial.worker_time_s or 0.0,
                "started": trial.attempts[0].started_s,
                "reason": None if failure is None else f"{failure.kind}: {failure.text}",
            }
        )
    return rows


def parallel(look: Look) -> Json:
    """An axis for each hyperparameter and a line for each trial with a result, the best ones and a sample."""
    axes = hyperparameter_axes(look.history)
    losses = {trial_id: loss for trial_id, loss in look.columns.best_losses().items() if math.isfinite(loss)}
    sign = 1.0 if look.history.mode == "min" else -1.0
    drawn = chosen(losses, (), _MOST_LINES)
    rank = {trial_id: place for place, trial_id in enumerate(sorted(drawn, key=lambda one: (losses[one], one)))}
    return {
        "metric": look.history.metric,
        "num_trials": len(losses),
        "axes": [{"name": axis.name, "ticks": [list(tick) for tick in axis.ticks]} for axis in axes],
        "lines": [
            {
                "trial": trial_id,
                "rank": rank[trial_id] / max(1, len(drawn) - 1),
                "value": sign * losses[trial_id],
                "places": [axis.positions.get(trial_id) for axis in axes],
            }
            for trial_id in sorted(drawn, key=lambda one: -rank[one])
        ],
    }


def importance(experiment: Experiment) -> Json:
    """How much each hyperparameter matters. Takes seconds. ValueError: too few results."""
    found = experiment.importances()
    return {
        "metric": found.metric,
        "correlation": found.correlation,
        "num_trials": len(found.trials),
        "num_stopped": found.num_stopped,
        "bars": [{"name": one.name, "mean": one.mean, "deviation": one.deviation} for one in found.hyperparameters],
    }


def front(look: Look) -> Json:
    """The reports of a search with several objectives, and those that nothing dominates. ValueError: it has one."""
    data = front_data(look.history)
    on_front = set(data.front)
    others = [place for place in range(len(data.points)) if place not in on_front]
    return {
        "objectives": [list(one) for one in data.objectives],
        "num_reports": len(data.points),
        "front": [_dot(data.points[place]) for place in _sample(sorted(on_front), _MOST_FRONT_DOTS)],
        "others": [_dot(data.points[place]) for place in _sample(others, _MOST_FRONT_DOTS)],
    }


VIEWS: Mapping[str, Callable[[Look], Json]] = {
    "curves": curves,
    "workers": workers,
    "rungs": rungs,
    "parallel": parallel,
    "front": front,
}


def trial_detail(look: Look, trial_id: int) -> Json:
    """One trial: its configuration, its curve, its attempts, and how it failed. KeyError: there is none."""
    history = look.history
    trial = history.trials[trial_id]
    failure = trial.last.failure
    rows = np.flatnonzero(np.array(history.reports.trial_ids, np.int64) == trial_id).tolist()
    names = [name for name, column in history.reports.values.items() if any(column[row] is not None for row in rows)]
    return {
        "trial": trial_id,
        "status": _status(look, trial),
        "metric": history.metric,
        "config": dict(trial.config),
        "python": as_python(trial.config),
        "source": trial.source,
        "reports": trial.last_iter,
        "seconds": trial.worker_time_s or 0.0,
        "checkpoint": trial.checkpoint,
        "violated": _violated(history, trial),
        "values": {name: _series(history, name, rows) for name in names},
        "attempts": [
            {
                "attempt": one.number,
                "worker": one.slot,
                "status": one.status,
                "from_iter": one.from_iter,
                "started": one.started_s,
                "ready": one.ready_s,
                "ended": one.ended_s,
                "seconds": one.objective_s,
            }
            for one in trial.attempts
        ],
        "failure": None
        if failure is None
        else {"kind": failure.kind, "text": failure.text, "traceback": failure.traceback or ""},
        "seq": history.last_seq,
    }


def _violated(history: SearchState, trial: Trial) -> str:
    """The constraints that the last report violates."""
    row = trial.last.last_report_index
    if row is None:
        return ""
    values = {name: column[row] for name, column in history.reports.values.items()}
    return format_violations(violated_constraints(history.constraints, values))


def _series(history: SearchState, name: str, rows: Sequence[int]) -> Json:
    reports, column = history.reports, history.reports.values[name]
    numbers = [row for row in rows if type(column[row]) in (int, float) and math.isfinite(column[row])]
    kept = [numbers[place] for place in thin(np.array([column[row] for row in numbers], np.float64), 1_000)]
    return {
        "t": [round(reports.t_s[row], 3) for row in kept],
        "n": [reports.iters[row] for row in kept],
        "v": [column[row] for row in kept],
        "last": _told(next((column[row] for row in reversed(rows) if column[row] is not None), None)),
    }


def _told(value: object) -> object:
    """NaN and infinities as text: JSON has none."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _status(look: Look, trial: Trial) -> str:
    return look.history.status_of(trial, is_tuner_killed=look.is_tuner_killed)


def _dot(point: tuple[int, tuple[float, ...]]) -> list[Any]:  # Any: JSON
    return [point[0], list(point[1])]


def _short(value: float) -> float:
    """Six digits: a screen shows four."""
    return float(f"{value:.6g}")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _even(count: int, most: int) -> list[int]:
    """Places among `count`, evenly spaced, with both ends."""
    if count <= most:
        return list(range(count))
    return [number * (count - 1) // (most - 1) for number in range(most)]


def _sample(things: Sequence[Any], most: int) -> list[Any]:  # Any: whatever is sampled
    return [things[place] for place in _even(len(things), most)]
