"""The figures over time: the incumbent, the learning curves and the worker timeline.

    figure = workers(synchronous, asynchronous)      # SearchData in, matplotlib Figure out
    save_figure(figure, "workers.png")

The time axis begins when the first worker was ready: there the utilization is counted from, and searches that are
compared begin there alike, whether their workers had been warm or not.

Each function computes nothing itself: what is drawn comes from `data`, limits and labels from `scales`. Figures are
matplotlib `Figure` objects that no pyplot knows of; a notebook shows the last one of a cell. All of them can be drawn
while the search runs, also before its first report.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base.text import counted
from .axes import clean_axes, finish_time_axis, note_what_is_hidden, say_nothing_yet, title, use_scale
from .axis_scales import plain, time_unit, value_scale
from .canvas import new_figure
from .crowds import best_curves, crowd_of
from .curves import draw_crowd, draw_curves, number_curves
from .data import (
    SearchData,
    best_of_trials,
    best_point,
    curves_by_trial,
    from_first_ready,
    later_values,
    worker_timeline,
)
from .incumbents import draw_incumbent, draw_incumbents
from .rows import RowScale, draw_rows, legend_handles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH_IN = 9.0
_AXES_WIDTH_IN = 8.0  # without the labels of the value axis
_MAX_STRIP_WORKERS = 8
_MAX_CURVES = 100  # more become a hedge
_BEST_CURVES, _CROWD_BINS = 10, 60


def incumbent(*searches: SearchData, labels: Sequence[str] | None = None) -> "Figure":
    """The best value so far over wall-clock time.

    One search is drawn with all its reports as dots. Of several, those with equal labels are repetitions: they become
    a line for their mean and a band of one standard deviation to each side.

    Args:
        searches: at least one; all with the same metric and mode.
        labels: one a search; by default the names of the searches.

    Raises:
        ValueError: no search, another number of labels, or searches of different metrics or modes.

    Example:
        >>> search = SearchData("demo", "error", "min", 1, True, [], [], None, None, 0.0)
        >>> incumbent(search).axes[0].get_ylabel()
        'error'
    """
    names = _labels(searches, labels, [search.name for search in searches])
    if len({(search.metric, search.mode) for search in searches}) > 1:
        shown = sorted({f"{search.metric} ({search.mode})" for search in searches})
        raise ValueError(f"one figure holds searches of one metric and mode, got {', '.join(shown)}")
    figure = new_figure(_WIDTH_IN, 4.8)
    draw_incumbent_figure(figure, searches, names)
    return figure


def draw_incumbent_figure(figure: "Figure", searches: Sequence[SearchData], names: Sequence[str] = ()) -> None:
    """Draw what `incumbent` shows into an empty figure. `names`: one per search, unless there is only one search."""
    searches = tuple(map(from_first_ready, searches))
    axes = figure.subplots()
    unit = time_unit(max(search.last_s for search in searches))
    if len(searches) == 1:
        draw_incumbent(axes, searches[0], unit)
    else:
        draw_incumbents(axes, searches, names, unit)
    finish_time_axis(axes, searches, unit)
    axes.set_ylabel(plain(searches[0].metric))
    clean_axes(axes)


def learning_curves(search: SearchData) -> "Figure":
    """All reports of all trials over wall-clock time, one colour a trial, with the workers in a strip below.

    The best trial is drawn on top. With many trials lines become thin; colours repeat after seven trials, then with
    another marker. Of more than 100 trials only the ten best are drawn, over the median and the middle 80 % of the
    reports of all trials, without the workers.
    """
    search = from_first_ready(search)
    curves = curves_by_trial(search)
    unit = time_unit(search.last_s)
    is_hedge = len(curves) > _MAX_CURVES
    # Below a hedge the strip would be a barcode.
    strip = bool(search.spans) and search.n_workers <= _MAX_STRIP_WORKERS and not is_hedge
    row_in = max(0.16, min(0.3, 1.2 / search.n_workers))
    strip_in = search.n_workers * row_in
    figure = new_figure(_WIDTH_IN, 5.0 + (strip_in + 0.1 if strip else 0.0))
    if strip:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[4.2, strip_in])
        draw_rows(below, search, worker_timeline(search), unit=unit, scale=_row_scale([search], row_in))
        below.set_ylabel("worker")
        below.grid(False)
        for side in ("top", "right", "left"):
            below.spines[side].set_visible(False)
    else:
        axes = below = figure.subplots()
    scale = value_scale((value for curve in curves for value in curve.values), search.mode, later_values(search))
    use_scale(axes, scale)
    if is_hedge:
        draw_crowd(axes, crowd_of(curves, _CROWD_BINS), counted(len(curves), "trial"), unit)
        results = best_of_trials(search)
        curves = [curve for curve in curves if curve.trial_id in results] or curves
        curves = best_curves(curves, search.mode, _BEST_CURVES)
    draw_curves(axes, curves, best_point(search), unit)
    number_curves(axes, curves, best_point(search), unit=unit, last_s=search.last_s, scale=scale)
    note_what_is_hidden(axes, search, scale)
    axes.set_title(title(search), loc="left")
    axes.set_ylabel(plain(search.metric))
    finish_time_axis(below, [search], unit)
    clean_axes(axes)
    return figure


def workers(*searches: SearchData, labels: Sequence[str] | None = None) -> "Figure":
    """The worker timeline: a row for each worker, a box for each stay of a trial, idle time in grey, start-up in sand.

    Where trials pause, bars mark the end of the stay, and a triangle where the trial was taken up again. Several
    searches, such as a synchronous and an asynchronous one, get a panel each on one time axis. The title of a panel
    says how much of the worker time that is drawn went into the objective (the utilization), into start-up, and into
    nothing; after the dashed line, where no trial was started any more, it is not counted.

    Raises:
        ValueError: no search, or another number of labels.
    """
    default = [f"{s.name}, {'asynchronous' if s.asynchronous else 'synchronous'}" for s in searches]
    names = _labels(searches, labels, default)
    before_s = [search.first_objective_s for search in searches]
    searches = tuple(map(from_first_ready, searches))
    timelines = [worker_timeline(search) for search in searches]
    n_rows = [max([search.n_workers, *(span.slot + 1 for span in search.spans)]) for search in searches]
    row_in = max(0.12, min(0.45, 6.0 / sum(n_rows)))
    figure = new_figure(_WIDTH_IN, sum(n_rows) * row_in + 0.75 * len(searches) + 0.9)
    panels = figure.subplots(len(searches), 1, sharex=True, squeeze=False, height_ratios=n_rows)[:, 0]
    unit = time_unit(max(search.last_s for search in searches))
    marked = False
    for axes, search, timeline, name, startup_s in zip(panels, searches, timelines, names, before_s, strict=True):
        marked |= draw_rows(axes, search, timeline, unit=unit, scale=_row_scale(searches, row_in))
        n_trials = len({span.trial_id for span in search.spans})
        head = f"{plain(name)}: {counted(n_trials, 'trial')}"
        if startup_s is not None:
            head += f"; the first worker was ready after {startup_s:.1f} s"
        shares = timeline.utilization_in_words()
        axes.set_title(f"{head}\nworker utilization {shares}" if shares else head, loc="left", fontsize=11)
        axes.set_ylabel("worker")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        if not search.spans:
            say_nothing_yet(axes, "no trial has started yet")
    finish_time_axis(panels[-1], searches, unit)
    stopped = any(search.stop_s is not None for search in searches)
    figure.legend(
        handles=legend_handles(timelines, stopped=stopped, marked=marked),
        loc="outside lower center",
        ncols=4,
        frameon=False,
    )
    return figure


def _labels(searches: Sequence[SearchData], labels: Sequence[str] | None, default: Sequence[str]) -> list[str]:
    if not searches:
        raise ValueError("at least one search is needed to draw a figure, got none")
    if labels is not None and len(labels) != len(searches):
        raise ValueError(f"labels must name each search: got {len(labels)} labels for {len(searches)} searches")
    return list(default if labels is None else labels)


def _row_scale(searches: Sequence[SearchData], row_in: float) -> RowScale:
    longest_s = max(search.last_s for search in searches)
    return RowScale(_AXES_WIDTH_IN / longest_s if longest_s > 0 else 0.0, row_in)
