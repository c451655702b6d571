"""The figure of the learning curves: a line per trial over wall-clock time, with the best trial on top.

Of many trials only the best are drawn, over the median and the middle 80 % of the reports of all.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base.text import counted
from .canvas import (
    INK,
    MUTED,
    TIME_MARGIN,
    WIDTH_IN,
    clean_axes,
    draw_star,
    finish_time_axis,
    hide_lines,
    label_trials,
    new_figure,
    note_hidden_reports,
    title,
    trial_color,
    trial_marker,
    use_scale,
)
from .data import (
    Curve,
    ReportBins,
    ReportPoint,
    SearchData,
    best_of_trials,
    best_point,
    bin_reports,
    curves_by_trial,
    from_first_objective,
    typical_values,
)
from .scales import TimeUnit, ValueScale, plain, time_unit, value_scale
from .timeline import draw_rows, row_scale
from .worker_intervals import worker_timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_CURVES = 100
_BEST_CURVES = 10  # if there are more
_MAX_STRIP_WORKERS = 8
_MAX_POINTS_PER_TRIAL = 1000
_MAX_LABELED = 60
# Size of a trial number as shares of the axes, and its distance from the curve.
_LABEL_ROOM, _LABEL_GAP = (0.024, 0.042), 0.007


def learning_curves(search: SearchData) -> "Figure":
    """Draw all reports of all trials over wall-clock time, with the worker timeline in a strip below.

    The best trial is drawn on top. The more trials, the thinner the lines. Of more than 100 trials only the ten best
    are drawn, over the median and the middle 80 % of the reports of all trials, without the strip.
    """
    search = from_first_objective(search)
    curves = curves_by_trial(search)
    unit = time_unit(search.last_s)
    is_dense = len(curves) > _MAX_CURVES
    has_strip = bool(search.spans) and search.n_workers <= _MAX_STRIP_WORKERS and not is_dense
    row_in = max(0.16, min(0.3, 1.2 / search.n_workers))
    strip_in = search.n_workers * row_in
    figure = new_figure(WIDTH_IN, 5.0 + (strip_in + 0.1 if has_strip else 0.0))
    if has_strip:
        axes, lowest = figure.subplots(2, 1, sharex=True, height_ratios=[4.2, strip_in])
        draw_rows(lowest, search, worker_timeline(search), unit=unit, scale=row_scale([search], row_in))
        lowest.set_ylabel("worker")
        lowest.grid(False)
        hide_lines(lowest, "top", "right", "left")
    else:
        axes = lowest = figure.subplots()
    scale = value_scale((value for curve in curves for value in curve.values), search.mode, typical_values(search))
    use_scale(axes, scale)
    best = best_point(search)
    if is_dense:
        _draw_bins(axes, bin_reports(search), counted(len(curves), "trial"), unit)
        results = best_of_trials(search)
        ranked = sorted(results, key=lambda trial_id: (search.sign * results[trial_id].value, trial_id))
        curves = curves_by_trial(search, ranked[:_BEST_CURVES]) or curves[:_BEST_CURVES]
    _draw_curves(axes, curves, best, unit)
    if len(curves) <= _MAX_LABELED and search.last_s > 0:
        _label_curves(axes, curves, best, unit=unit, last_s=search.last_s, scale=scale)
    note_hidden_reports(axes, search, scale)
    axes.set_title(title(search), loc="left")
    axes.set_ylabel(plain(search.metric))
    finish_time_axis(lowest, [search], unit)
    clean_axes(axes)
    return figure


def _draw_curves(axes: "Axes", curves: Sequence[Curve], best: ReportPoint | None, unit: TimeUnit) -> None:
    from matplotlib.collections import LineCollection

    lines, colors = [], []
    points_by_look: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for curve in curves:
        points = _points(curve, unit)
        lines.append(points)
        colors.append(trial_color(curve.trial_id))
        points_by_look.setdefault((colors[-1], trial_marker(curve.trial_id)), []).extend(points)
    density = max(len(curves) / 30, sum(map(len, lines)) / 400, 1.0)
    width, alpha, size = max(0.6, 1.6 / density), max(0.5, 0.95 / density**0.5), max(1.5, 5.0 / density**0.5)
    axes.add_collection(LineCollection(lines, colors=colors, linewidths=width, alpha=alpha, zorder=2))
    for (color, marker), points in points_by_look.items():
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, marker, color=color, markersize=size, alpha=alpha, markeredgewidth=0, zorder=2.1)
    for curve in curves:
        if best is not None and curve.trial_id == best.trial_id:
            _draw_best(axes, curve, best, unit)


def _points(curve: Curve, unit: TimeUnit) -> list[tuple[float, float]]:
    curve = curve.thinned(_MAX_POINTS_PER_TRIAL)
    return [(t_s / unit.seconds, value) for t_s, value in zip(curve.times_s, curve.values, strict=True)]


def _draw_best(axes: "Axes", curve: Curve, best: ReportPoint, unit: TimeUnit) -> None:
    xs, ys = zip(*_points(curve, unit), strict=True)
    color = trial_color(best.trial_id)
    axes.plot(xs, ys, color=INK, linewidth=4.0, zorder=3)
    axes.plot(xs, ys, trial_marker(best.trial_id), linestyle="-", color=color, linewidth=2.0, markersize=5, zorder=3.1)
    draw_star(axes, best.t_s / unit.seconds, best.value, color)


def _draw_bins(axes: "Axes", bins: ReportBins, trials: str, unit: TimeUnit) -> None:
    times = [t_s / unit.seconds for t_s in bins.times_s]
    label = f"middle 80 % of the reports of all {trials}"
    axes.fill_between(times, bins.low, bins.high, color="#dedede", linewidth=0, zorder=1, label=label)
    axes.plot(times, bins.median, color=MUTED, linewidth=1.8, zorder=1.1, label="their median")
    axes.figure.legend(loc="outside lower center", ncols=2, frameon=False)


def _label_curves(
    axes: "Axes",
    curves: Sequence[Curve],
    best: ReportPoint | None,
    *,
    unit: TimeUnit,
    last_s: float,
    scale: ValueScale,
) -> None:
    """Write the trial numbers at the ends of the curves, the best trial first."""
    best_trial = None if best is None else best.trial_id
    points = []
    for curve in sorted(curves, key=lambda c: c.trial_id != best_trial):
        x, y = curve.times_s[-1] / (TIME_MARGIN * last_s) + _LABEL_GAP, scale.position(curve.values[-1])
        if 0.0 <= y <= 1.0 and x + _LABEL_ROOM[0] / 2 <= 1.0:
            points.append((curve.trial_id, (curve.times_s[-1] / unit.seconds, curve.values[-1]), (x, y)))
    label_trials(axes, points, _LABEL_ROOM, bold_trial=best_trial)
