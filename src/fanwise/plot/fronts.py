"""The Pareto front of a search with several objectives: what is drawn, and the drawing.

Two objectives get one pair of axes, and a line along the edge of what the front dominates. More get axes for each pair,
in which a report that nothing dominates may lie in the middle: it is better in an objective that is not shown there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from ..base.text import counted
from .axes import clean_axes, say_nothing_yet
from .axis_scales import ValueScale, plain, thin, value_scale
from .canvas import INK, PALETTE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_DOTS = 20_000
_MAX_OBJECTIVES = 4
# Room of a trial's number, as shares of the axes.
_NUMBER_WIDTH, _NUMBER_HEIGHT = 0.045, 0.05


@dataclass(frozen=True, slots=True)
class FrontData:
    """Reports with several values each, of which some are dominated by no other one.

    Args:
        objectives: names, each with "min" or "max".
        points: trial and values, in the order of the objectives; all finite.
        front: which points nothing dominates, as places in `points`.
        n_left_out: reports that had a value which is not finite.
        infeasible: which points violate a constraint.
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
    """All reports as dots, and those that no other one dominates in colour, with the numbers of their trials."""
    pairs = list(combinations(range(len(data.objectives)), 2))
    n_columns = min(3, len(pairs))
    n_rows = -(-len(pairs) // n_columns)
    figure = new_figure(9.0 if len(pairs) == 1 else 12.0, 5.5 if len(pairs) == 1 else 0.6 + 4.0 * n_rows)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).flat
    n_trials = len({data.points[place][0] for place in data.front})
    head = plain(data.name)
    if data.front:
        whose = f"of {counted(n_trials, 'trial')}"
        head += f": {len(data.front):,} of {counted(len(data.points), 'report')} on the Pareto front, {whose}"
    elif data.infeasible:
        head += ": no report meets all constraints"
    beside = [f"crosses: {len(data.infeasible):,} infeasible"] if data.infeasible else []
    beside += [f"{data.n_left_out:,} not finite are left out"] if data.n_left_out else []
    # On a line of its own: behind a long name it would run out of the picture.
    figure.suptitle("\n".join([head, *filter(None, ["; ".join(beside)])]), x=0.02, ha="left", fontsize=12)
    for axes, (x, y) in zip(panels, pairs, strict=True):
        _draw_pair(axes, data, x, y)
    return figure


def _draw_pair(axes: "Axes", data: FrontData, x: int, y: int) -> None:
    scales = [value_scale((values[i] for _, values in data.points), data.objectives[i][1]) for i in (x, y)]
    if scales[0].log:
        axes.set_xscale("log")
    if scales[1].log:
        axes.set_yscale("log")
    axes.set_xlim(scales[0].low, scales[0].high)
    axes.set_ylim(scales[1].low, scales[1].high)
    axes.set_xlabel(_label(*data.objectives[x]))
    axes.set_ylabel(_label(*data.objectives[y]))
    clean_axes(axes)
    if not data.points:
        say_nothing_yet(axes, "no report with finite values yet")
        return
    infeasible = set(data.infeasible)
    places = [i for i, (_, v) in enumerate(data.points) if _inside(scales[0], v[x]) and _inside(scales[1], v[y])]
    inside = [(data.points[i][1], i in infeasible) for i in places]
    dots = [inside[i] for i in thin(len(inside), _MAX_DOTS)]
    size = 14 if len(dots) <= 500 else 5
    for is_infeasible, marker, width in ((True, "x", 1.0), (False, "o", 0.0)):
        drawn = [v for v, beyond in dots if beyond is is_infeasible]
        xs, ys = [v[x] for v in drawn], [v[y] for v in drawn]
        axes.scatter(xs, ys, s=size, color="#bdbdbd", marker=marker, linewidths=width)
    if len(dots) < len(data.points) and len(inside) < len(data.points):
        text = f"reports beyond these axes: {len(data.points) - len(inside):,}"
        axes.text(1.0, 1.005, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color="#767676")
    sign = 1.0 if data.objectives[x][1] == "min" else -1.0
    front = sorted((data.points[place] for place in data.front), key=lambda p: sign * p[1][x])
    if len(data.objectives) == 2 and front:
        xs, ys = _edge([(values[x], values[y]) for _, values in front])
        axes.plot(xs, ys, color=PALETTE[0], linewidth=1.5, zorder=3)
    axes.plot([v[x] for _, v in front], [v[y] for _, v in front], "o", color=PALETTE[0], markersize=6, zorder=3.1)
    _number(axes, [(trial_id, values[x], values[y]) for trial_id, values in front], scales)


def _inside(scale: ValueScale, value: float) -> bool:
    return scale.low <= value <= scale.high


def _edge(front: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """A corner between each two neighbours: nothing between them is better than either."""
    xs, ys = [front[0][0]], [front[0][1]]
    for x, y in front[1:]:
        xs += [x, x]
        ys += [ys[-1], y]
    return xs, ys


def _number(axes: "Axes", front: Sequence[tuple[int, float, float]], scales: Sequence[ValueScale]) -> None:
    """The trials' numbers, none over another, and each trial once."""
    from matplotlib.patheffects import withStroke

    taken: list[tuple[float, float]] = []
    named: set[int] = set()
    for trial_id, x, y in front:
        place = scales[0].share(x), scales[1].share(y)
        is_free = all(abs(place[0] - a) > _NUMBER_WIDTH or abs(place[1] - b) > _NUMBER_HEIGHT for a, b in taken)
        if trial_id in named or not is_free:
            continue
        taken.append(place)
        named.add(trial_id)
        axes.annotate(
            str(trial_id),
            (x, y),
            xytext=(5, 5),
            textcoords="offset points",
            fontsize=8,
            color=INK,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            zorder=4,
            in_layout=False,
        )


def _label(name: str, mode: str) -> str:
    return f"{plain(name)} ({'smaller' if mode == 'min' else 'larger'} is better)"
