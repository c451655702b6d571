"""The figure of the Pareto front of a search with several objectives.

Two objectives are drawn in one plot, with a line along the border of the dominated region. More objectives get a plot
for each pair. There, a report on the front may lie in the middle, because it is better in another objective.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from ..base.text import counted
from .canvas import DOTS, PALETTE, WIDTH_IN, clean_axes, label_trials, new_figure, note_above, show_empty
from .scales import plain, thin, value_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_DOTS = 20_000
_MAX_OBJECTIVES = 4
_LABEL_ROOM = (0.045, 0.05)  # size of a trial number as shares of the axes


@dataclass(frozen=True, slots=True)
class FrontData:
    """Reports of a search with several objectives.

    Attributes:
        objectives: (name, "min" or "max") of each.
        points: (trial id, values) of each report, in the order of the objectives. All values are finite.
        front: indices of the points that no other point dominates.
        n_left_out: number of reports with a value that is not finite.
        infeasible: indices of the points that violate a constraint.
    """

    name: str
    objectives: Sequence[tuple[str, str]]
    points: Sequence[tuple[int, tuple[float, ...]]]
    front: Sequence[int]
    n_left_out: int = 0
    infeasible: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not 2 <= len(self.objectives) <= _MAX_OBJECTIVES:
            names = ", ".join(name for name, _ in self.objectives)
            raise ValueError(
                f"a Pareto front is drawn of 2 to {_MAX_OBJECTIVES} objectives, got {len(self.objectives)}: {names}"
            )


def pareto_front(data: FrontData) -> "Figure":
    """Draw all reports as dots, and those on the Pareto front in color, with their trial numbers."""
    pairs = list(combinations(range(len(data.objectives)), 2))
    n_columns = min(3, len(pairs))
    n_rows = -(-len(pairs) // n_columns)
    figure = new_figure(*((WIDTH_IN, 5.5) if len(pairs) == 1 else (12.0, 0.6 + 4.0 * n_rows)))
    figure.suptitle(_title(data), x=0.02, ha="left", fontsize=12)
    for axes, (x, y) in zip(figure.subplots(n_rows, n_columns, squeeze=False).flat, pairs, strict=True):
        _draw_pair(axes, data, x, y)
    return figure


def _title(data: FrontData) -> str:
    head = plain(data.name)
    if data.front:
        trials = counted(len({data.points[index][0] for index in data.front}), "trial")
        reports = counted(len(data.points), "report")
        head += f": {len(data.front):,} of {reports} on the Pareto front, of {trials}"
    elif data.infeasible:
        head += ": no report meets all constraints"
    notes = [f"crosses: {len(data.infeasible):,} infeasible"] if data.infeasible else []
    notes += [f"{data.n_left_out:,} not finite are left out"] if data.n_left_out else []
    return "\n".join([head, *filter(None, ["; ".join(notes)])])


def _draw_pair(axes: "Axes", data: FrontData, x: int, y: int) -> None:
    """Draw the objectives with indices x and y."""
    x_scale, y_scale = (value_scale((v[i] for _, v in data.points), data.objectives[i][1]) for i in (x, y))
    if x_scale.log:
        axes.set_xscale("log")
    if y_scale.log:
        axes.set_yscale("log")
    axes.set_xlim(x_scale.low, x_scale.high)
    axes.set_ylim(y_scale.low, y_scale.high)
    axes.set_xlabel(_label(*data.objectives[x]))
    axes.set_ylabel(_label(*data.objectives[y]))
    clean_axes(axes)
    if not data.points:
        show_empty(axes, "no report with finite values yet")
        return
    infeasible = set(data.infeasible)
    visible = [
        (values[x], values[y], index in infeasible)
        for index, (_, values) in enumerate(data.points)
        if x_scale.low <= values[x] <= x_scale.high and y_scale.low <= values[y] <= y_scale.high
    ]
    dots = [visible[i] for i in thin(len(visible), _MAX_DOTS)]
    size = 14 if len(dots) <= 500 else 5
    for is_infeasible, marker, width in ((True, "x", 1.0), (False, "o", 0.0)):
        xs = [dot[0] for dot in dots if dot[2] is is_infeasible]
        ys = [dot[1] for dot in dots if dot[2] is is_infeasible]
        axes.scatter(xs, ys, s=size, color=DOTS, marker=marker, linewidths=width)
    if len(visible) < len(data.points):
        note_above(axes, f"reports beyond these axes: {len(data.points) - len(visible):,}")
    sign = 1.0 if data.objectives[x][1] == "min" else -1.0
    front = sorted((data.points[index] for index in data.front), key=lambda point: sign * point[1][x])
    if len(data.objectives) == 2 and front:
        xs, ys = _border([(values[x], values[y]) for _, values in front])
        axes.plot(xs, ys, color=PALETTE[0], linewidth=1.5, zorder=3)
    axes.plot([v[x] for _, v in front], [v[y] for _, v in front], "o", color=PALETTE[0], markersize=6, zorder=3.1)
    first_points: dict[int, tuple[float, ...]] = {}
    for trial_id, values in front:
        first_points.setdefault(trial_id, values)
    labels = [
        (trial_id, (values[x], values[y]), (x_scale.position(values[x]), y_scale.position(values[y])))
        for trial_id, values in first_points.items()
    ]
    label_trials(axes, labels, _LABEL_ROOM, offset=(5, 5))


def _border(front: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return a line through the sorted points with a corner between each two neighbors."""
    xs, ys = [front[0][0]], [front[0][1]]
    for x, y in front[1:]:
        xs += [x, x]
        ys += [ys[-1], y]
    return xs, ys


def _label(name: str, mode: str) -> str:
    return f"{plain(name)} ({'smaller' if mode == 'min' else 'larger'} is better)"
