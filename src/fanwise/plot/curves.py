"""The figure of the learning curves: a line per trial over wall-clock time, with the best trial on top.

If there are many trials, only the best are drawn, over the median and the middle 80 % of the reports of all.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..base.text import counted
from . import canvas
from .data import (
    Reports,
    SearchData,
    best_of_trials,
    best_point,
    bin_reports,
    curves_by_trial,
    thin_curve,
    worker_timeline,
)
from .timeline import draw_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_CURVES = 100
_BEST_CURVES = 10  # if there are more
_MAX_STRIP_WORKERS = 8
_MAX_POINTS_PER_TRIAL = 1000
_MAX_LABELED = 60


def learning_curves(search: SearchData) -> "Figure":
    """Draw all reports of all trials over wall-clock time, with the worker timeline in a strip below.

    The best trial is drawn on top. The more trials, the thinner the lines. Of more than 100 trials only the ten best
    are drawn, over the median and the middle 80 % of the reports of all trials, without the strip.
    """
    curves = curves_by_trial(search)
    is_dense = len(curves) > _MAX_CURVES
    row_in = max(0.16, min(0.3, 1.2 / search.n_workers))
    timeline = worker_timeline(search)
    if timeline.intervals and search.n_workers <= _MAX_STRIP_WORKERS and not is_dense:
        strip_in = search.n_workers * row_in
        figure = canvas.new_figure(canvas.WIDTH_IN, 5.1 + strip_in)
        axes, lowest = figure.subplots(2, 1, sharex=True, height_ratios=[4.2, strip_in])
        draw_rows(lowest, search, timeline, row_in, search.last_s)
    else:
        figure = canvas.new_figure(canvas.WIDTH_IN, 5.0)
        axes = lowest = figure.subplots()
    canvas.finish_time_axis(lowest, [search])
    canvas.set_axes_of_reports(axes, search)
    if is_dense:
        _draw_bins(axes, search, len(curves))
        canvas.add_legend(figure)
        best_points = sorted(best_of_trials(search).values(), key=lambda p: (search.sign * p.value, p.trial_id))
        drawn = [point.trial_id for point in best_points[:_BEST_CURVES]] or list(curves)[:_BEST_CURVES]
        curves = {trial_id: curves[trial_id] for trial_id in drawn}
    _draw_curves(axes, search, curves)
    return figure


def _draw_curves(axes: "Axes", search: SearchData, curves: Mapping[int, Reports]) -> None:
    density = max(len(curves) / 30, sum(map(len, curves.values())) / 400, 1.0)
    style = {"linewidth": max(0.6, 1.6 / density), "markersize": max(1.5, 5.0 / density**0.5), "markeredgewidth": 0}
    best = best_point(search)
    for trial_id, curve in curves.items():
        curve = curve[thin_curve(curve.value, _MAX_POINTS_PER_TRIAL)]
        color = canvas.trial_color(trial_id)
        if best is not None and trial_id == best.trial_id:
            axes.plot(curve.t_s, curve.value, color=canvas.INK, linewidth=4.0, zorder=3)
            axes.plot(curve.t_s, curve.value, "o-", color=color, linewidth=2.0, markersize=5, zorder=3.1)
            canvas.draw_star(axes, best.t_s, best.value, color)
        else:
            axes.plot(curve.t_s, curve.value, "o-", color=color, alpha=max(0.5, 0.95 / density**0.5), **style)
    if len(curves) <= _MAX_LABELED:
        best_trial = None if best is None else best.trial_id
        ends = [(trial_id, curve.t_s[-1], curve.value[-1]) for trial_id, curve in curves.items()]
        canvas.label_trials(axes, sorted(ends, key=lambda end: end[0] != best_trial), best_trial=best_trial)


def _draw_bins(axes: "Axes", search: SearchData, num_trials: int) -> None:
    bins = bin_reports(search)
    label = f"middle 80 % of the reports of all {counted(num_trials, 'trial')}"
    axes.fill_between(bins.times_s, bins.low, bins.high, color=canvas.GRID, linewidth=0, zorder=1, label=label)
    axes.plot(bins.times_s, bins.middle, color=canvas.MUTED, linewidth=1.8, zorder=1.1, label="their median")
