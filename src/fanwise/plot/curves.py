"""Learning curves: a line for each trial over wall-clock time, the best on top, numbers where there is room.

Of a thousand trials a few are drawn, over a band that says what all were like.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .axes import TIME_ROOM
from .axis_scales import TimeUnit, ValueScale, thin
from .canvas import INK, MUTED, trial_colour, trial_marker
from .crowds import Crowd
from .data import Curve, ReportPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_POINTS_A_TRIAL = 1000
_MAX_NUMBERED = 60
# Room of a number at the end of a curve, as shares of the axes; figures have one size, so constants do.
_NUMBER_WIDTH, _NUMBER_HEIGHT, _NUMBER_GAP = 0.024, 0.042, 0.007


def draw_curves(axes: "Axes", curves: Sequence[Curve], best: ReportPoint | None, unit: TimeUnit) -> None:
    """Draw all curves; the more there are, the thinner."""
    from matplotlib.collections import LineCollection

    lines, colours = [], []
    marked: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for curve in curves:
        points = _points(curve, unit)
        lines.append(points)
        colours.append(trial_colour(curve.trial_id))
        marked.setdefault((colours[-1], trial_marker(curve.trial_id)), []).extend(points)
    n_points = sum(map(len, lines))
    crowded = max(len(curves) / 30, n_points / 400, 1.0)
    width, alpha, size = max(0.6, 1.6 / crowded), max(0.5, 0.95 / crowded**0.5), max(1.5, 5.0 / crowded**0.5)
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=width, alpha=alpha, zorder=2))
    for (colour, marker), points in marked.items():
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, marker, color=colour, markersize=size, alpha=alpha, markeredgewidth=0, zorder=2.1)
    for curve in curves:
        if best is not None and curve.trial_id == best.trial_id:
            _draw_best(axes, curve, best, unit)


def _points(curve: Curve, unit: TimeUnit) -> list[tuple[float, float]]:
    kept = thin(len(curve.times_s), _MAX_POINTS_A_TRIAL)
    return [(curve.times_s[i] / unit.seconds, curve.values[i]) for i in kept]


def _draw_best(axes: "Axes", curve: Curve, best: ReportPoint, unit: TimeUnit) -> None:
    xs, ys = zip(*_points(curve, unit), strict=True)
    colour = trial_colour(best.trial_id)
    axes.plot(xs, ys, color=INK, linewidth=4.0, zorder=3)
    axes.plot(xs, ys, trial_marker(best.trial_id), linestyle="-", color=colour, linewidth=2.0, markersize=5, zorder=3.1)
    axes.plot(
        [best.t_s / unit.seconds],
        [best.value],
        "*",
        color=colour,
        markeredgecolor=INK,
        markersize=15,
        zorder=3.2,
        clip_on=False,  # whole also where the best value lies on the edge
    )


def draw_crowd(axes: "Axes", crowd: Crowd, whose: str, unit: TimeUnit) -> None:
    """What the reports of all trials were like, behind the few curves that are drawn."""
    times = [t_s / unit.seconds for t_s in crowd.times_s]
    label = f"middle 80 % of the reports of all {whose}"
    axes.fill_between(times, crowd.low, crowd.high, color="#dedede", linewidth=0, zorder=1, label=label)
    axes.plot(times, crowd.median, color=MUTED, linewidth=1.8, zorder=1.1, label="their median")
    axes.figure.legend(loc="outside lower center", ncols=2, frameon=False)


def number_curves(
    axes: "Axes",
    curves: Sequence[Curve],
    best: ReportPoint | None,
    *,
    unit: TimeUnit,
    last_s: float,
    scale: ValueScale,
) -> None:
    """Write trial numbers at the ends of the curves, the best one first, and none over another."""
    from matplotlib.patheffects import withStroke

    if len(curves) > _MAX_NUMBERED or last_s <= 0:
        return
    taken: list[tuple[float, float]] = []
    for curve in sorted(curves, key=lambda c: best is None or c.trial_id != best.trial_id):
        x, y = curve.times_s[-1] / (TIME_ROOM * last_s) + _NUMBER_GAP, scale.share(curve.values[-1])
        if not 0.0 <= y <= 1.0 or x + _NUMBER_WIDTH / 2 > 1.0:
            continue
        if all(abs(x - other_x) > _NUMBER_WIDTH or abs(y - other_y) > _NUMBER_HEIGHT for other_x, other_y in taken):
            taken.append((x, y))
            is_best = best is not None and curve.trial_id == best.trial_id
            axes.annotate(
                str(curve.trial_id),
                (curve.times_s[-1] / unit.seconds, curve.values[-1]),
                xytext=(9 if is_best else 5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                fontweight="bold" if is_best else "normal",
                color=INK,
                path_effects=[withStroke(linewidth=2.5, foreground="white")],
                zorder=4,
                in_layout=False,
            )
