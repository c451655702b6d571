"""The figure of the Pareto front of a search with several objectives.

Two objectives are drawn in one plot, with a line along the border of the dominated region. More objectives get a plot
for each pair. There, a report on the front may lie in the middle, because it is better in another objective.
"""

from itertools import combinations
from typing import TYPE_CHECKING

from ..base.text import counted
from . import canvas
from .data import FrontData, thin, value_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def pareto_front(data: FrontData) -> "Figure":
    """Draw all reports as dots, and those on the Pareto front in color, with their trial numbers."""
    pairs = list(combinations(range(len(data.objectives)), 2))
    n_columns = min(3, len(pairs))
    n_rows = -(-len(pairs) // n_columns)
    figure = canvas.new_figure(*((canvas.WIDTH_IN, 5.5) if len(pairs) == 1 else (12.0, 0.6 + 4.0 * n_rows)))
    figure.suptitle(_title(data), x=0.02, ha="left", fontsize=12)
    for axes, (x, y) in zip(figure.subplots(n_rows, n_columns, squeeze=False).flat, pairs, strict=True):
        _draw_pair(axes, data, x, y)
    return figure


def _title(data: FrontData) -> str:
    head = canvas.plain(data.name)
    if data.front:
        trials = counted(len({data.points[index][0] for index in data.front}), "trial")
        reports = counted(len(data.points), "report")
        head += f": {len(data.front):,} of {reports} on the Pareto front, of {trials}"
    elif data.infeasible:
        head += ": no report meets all constraints"
    notes = [f"crosses: {len(data.infeasible):,} infeasible"] if data.infeasible else []
    notes += [f"{data.n_left_out:,} not finite are left out"] if data.n_left_out else []
    return head + ("\n" + "; ".join(notes) if notes else "")


def _draw_pair(axes: "Axes", data: FrontData, x: int, y: int) -> None:
    """Draw the objectives with indices x and y."""
    import numpy as np

    x_scale, y_scale = (value_scale((v[i] for _, v in data.points), data.objectives[i][1]) for i in (x, y))
    canvas.use_scale(axes, x_scale, "x")
    canvas.use_scale(axes, y_scale, "y")
    axes.set_xlabel(_label(*data.objectives[x]))
    axes.set_ylabel(_label(*data.objectives[y]))
    canvas.clean_axes(axes)
    if not data.points:
        canvas.show_empty(axes, "no report with finite values")
        axes.set_xticks([])
        return
    points = np.array([(values[x], values[y]) for _, values in data.points])
    limits = np.array([x_scale[:2], y_scale[:2]]).T
    if n_beyond := int(((points < limits[0]) | (points > limits[1])).any(axis=1).sum()):
        canvas.note_above(axes, f"reports beyond these axes: {n_beyond:,}")
    dots = thin(len(points), canvas.MAX_DOTS)
    size = 14 if len(dots) <= 500 else 5
    infeasible = np.isin(dots, data.infeasible)
    for mask, marker, width in ((infeasible, "x", 1.0), (~infeasible, "o", 0.0)):
        xs, ys = points[np.array(dots)[mask]].T
        axes.scatter(xs, ys, s=size, color=canvas.DOTS, marker=marker, linewidths=width)
    sign = 1.0 if data.objectives[x][1] == "min" else -1.0
    front = sorted((data.points[index] for index in data.front), key=lambda point: sign * point[1][x])
    xs, ys = [values[x] for _, values in front], [values[y] for _, values in front]
    line = "-" if len(data.objectives) == 2 else "none"
    axes.step(xs, ys, where="post", marker="o", linestyle=line, color=canvas.PALETTE[0], linewidth=1.5, zorder=3)
    first_points: dict[int, tuple[int, float, float]] = {}
    for trial_id, values in front:
        first_points.setdefault(trial_id, (trial_id, values[x], values[y]))
    canvas.label_trials(axes, list(first_points.values()))


def _label(name: str, mode: str) -> str:
    return f"{canvas.plain(name)} ({'smaller' if mode == 'min' else 'larger'} is better)"
