"""The figure of the rungs: which trials continued at each level at which trials were stopped or paused."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..base.text import counted
from . import canvas
from .data import Arrival, SearchData, best_point, rungs_of, thin, value_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HALF_COLUMN = 0.32
_MAX_COLORED = 60  # with more trials, all have the same color
_MAX_DOTS = 500  # in a column
_MAX_LINES = 200  # between two columns
_MAX_HEADS = 9  # with more rungs, no numbers are written above them


def rungs(search: SearchData) -> "Figure":
    """Draw which trials continued at each level at which trials were stopped or paused.

    Each level is a column, in which the trials stand in the order of their arrival. Colored trials continued, and a
    line leads to their next level. Of more than 500 trials in a column, an even sample is drawn. A star marks the last
    level that the best trial reached before or at its best report.
    """
    levels = rungs_of(search)
    figure = canvas.new_figure(canvas.WIDTH_IN, 5.2)
    axes = figure.subplots()
    has_heads = 0 < len(levels) <= _MAX_HEADS
    canvas.set_title(axes, search, pad=34 if has_heads else 6)
    canvas.clean_axes(axes)
    if not levels:
        canvas.show_empty(axes, "no trial was stopped or paused" if len(search.reports) else "no reports")
        axes.set_xticks([])
        return figure
    values = [arrival.point.value for rung in levels for arrival in rung.arrivals]
    scale = value_scale(values, search.mode)
    canvas.use_scale(axes, scale)
    is_colored = len({arrival.point.trial_id for rung in levels for arrival in rung.arrivals}) <= _MAX_COLORED
    columns = [_positions(rung.arrivals, column) for column, rung in enumerate(levels)]
    for column, rung in enumerate(levels):
        is_last = column == len(levels) - 1
        _draw_column(axes, columns[column], is_last=is_last, is_colored=is_colored)
        if has_heads:
            head = counted(len(rung.arrivals), "trial") + ("" if is_last else f"\n{rung.num_continued:,} continued")
            axes.text(column, 1.01, head, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=9)
    for pair in pairwise(columns):
        _draw_lines(axes, *pair, is_colored=is_colored)
    if best := best_point(search):
        stops = [column[best.trial_id] for column in columns if best.trial_id in column]
        stops = [stop for stop in stops if stop[1].point.iter <= best.iter] or stops[:1]
        if stops:
            x, arrival = stops[-1]
            color = canvas.trial_color(best.trial_id) if is_colored else canvas.PALETTE[0]
            canvas.draw_star(axes, x, arrival.point.value, color, label="best trial")
    axes.grid(False, axis="x")
    axes.set_xlim(-0.5, len(levels) - 0.5)
    ticks = thin(len(levels), 20)
    axes.set_xticks(ticks, [f"{levels[i].level:g}" for i in ticks])
    axes.tick_params(axis="x", length=0)
    num_hidden = sum(not scale.low <= value <= scale.high for value in values)
    hidden = f"; {num_hidden:,} beyond the axis" if num_hidden else ""
    axes.set_xlabel(f"{canvas.plain(search.resource_name)} (trials in order of time{hidden})")
    canvas.add_legend(figure)
    return figure


_Column = dict[int, tuple[float, Arrival]]  # by trial id: position, and arrival


def _positions(arrivals: list[Arrival], column: int) -> _Column:
    """Return the positions in a column: the first trial at the left, a single one in the middle."""
    last = len(arrivals) - 1
    half = min(_HALF_COLUMN, 0.04 * last)
    xs = (column + (2 * half * i / last - half if last else 0.0) for i in range(len(arrivals)))
    return {arrival.point.trial_id: (x, arrival) for x, arrival in zip(xs, arrivals, strict=True)}


def _draw_column(axes: "Axes", column: _Column, *, is_last: bool, is_colored: bool) -> None:
    dots = list(column.values())
    dots = [dots[i] for i in thin(len(dots), _MAX_DOTS)]
    size = 42.0 * min(1.0, max(0.17, (_MAX_COLORED / len(dots)) ** 0.5))
    for has_continued in (False, True):
        shown = [(x, arrival.point) for x, arrival in dots if (is_last or arrival.has_continued) is has_continued]
        if shown:
            colors = [canvas.trial_color(point.trial_id) if is_colored else canvas.PALETTE[0] for _, point in shown]
            style: dict[str, Any] = {"s": 0.7 * size, "c": "none", "edgecolors": "#a8a8a8", "label": "did not continue"}
            if has_continued:
                style = {"s": size, "c": colors, "edgecolors": "white", "label": "continued, or at the end"}
            axes.scatter([x for x, _ in shown], [p.value for _, p in shown], linewidths=0.8, zorder=3, **style)


def _draw_lines(axes: "Axes", column: _Column, next_column: _Column, *, is_colored: bool) -> None:
    from matplotlib.collections import LineCollection

    trial_ids = [trial_id for trial_id in column if trial_id in next_column]
    trial_ids = [trial_ids[i] for i in thin(len(trial_ids), _MAX_LINES)]
    ends = [(column[trial_id], next_column[trial_id]) for trial_id in trial_ids]
    lines = [[(x, a.point.value), (next_x, b.point.value)] for (x, a), (next_x, b) in ends]
    colors = [canvas.trial_color(trial_id) if is_colored else canvas.PALETTE[0] for trial_id in trial_ids]
    alpha = 0.8 if is_colored else 0.25
    axes.add_collection(LineCollection(lines, colors=colors, linewidths=1.1, alpha=alpha, zorder=1))
