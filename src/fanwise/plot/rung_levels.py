"""The rungs of a search that stops or pauses trials: the trials that continued, and the figure.

A rung is a level of the resource at which trials were stopped or paused. Levels are derived from the decisions after
reports, so they exist for successive halving, Hyperband, ASHA, PBT, the median rule and user-defined schedulers.

A trial arrives at a rung with its first report at the rung's level or above. A trial that starts from the checkpoint of
another trial does not arrive at the rungs that the other one passed. A trial continues if the decision was to continue,
or if it was resumed later.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..base.text import counted
from .canvas import (
    MUTED,
    PALETTE,
    WIDTH_IN,
    clean_axes,
    draw_star,
    new_figure,
    show_empty,
    title,
    trial_color,
    use_scale,
)
from .data import ReportPoint, SearchData, best_point
from .scales import plain, thin, value_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HALF_COLUMN = 0.32
_MAX_COLORED = 60  # with more trials, all have the same color
_MAX_LINES = 400
_MAX_HEADS = 9  # with more rungs, no numbers are written above them


# -- data --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrival:
    """The report with which a trial arrived at a rung, and whether it continued."""

    point: ReportPoint
    has_continued: bool


@dataclass(frozen=True, slots=True)
class RungArrivals:
    """The arrivals at a level, in order of time."""

    level: float
    arrivals: list[Arrival]

    @property
    def num_continued(self) -> int:
        return sum(arrival.has_continued for arrival in self.arrivals)


def levels_of(search: SearchData) -> list[float]:
    """Return the levels at which trials were stopped or paused, in ascending order.

    Trials that were stopped because their value is not finite, or because the search ended, do not count.
    """
    return sorted(
        {
            point.reached
            for point in search.reports
            if point.decision != "CONTINUE" and math.isfinite(point.value) and point.t_s != search.stop_s
        }
    )


def rungs_of(search: SearchData) -> list[RungArrivals]:
    """Return the arrivals at all levels and at the highest resource that was reached.

    Return an empty list if no trial was stopped or paused.
    """
    levels = levels_of(search)
    if not levels:
        return []
    end = max(point.reached for point in search.reports)
    if end > levels[-1]:
        levels.append(end)
    arrivals: list[list[Arrival]] = [[] for _ in levels]
    last_started_s: dict[int, float] = {}
    for span in search.spans:
        last_started_s[span.trial_id] = max(span.started_s, last_started_s.get(span.trial_id, -math.inf))
    trials: dict[int, list[ReportPoint]] = {}
    for point in sorted(search.reports, key=lambda p: (p.t_s, p.iter)):
        trials.setdefault(point.trial_id, []).append(point)
    for trial_id, points in trials.items():
        first = points[0]
        # A clone has not passed the levels below its first report itself.
        num_passed = bisect_left(levels, first.reached) if first.iter > 1 else 0
        for i, point in enumerate(points):
            num_reached = bisect_right(levels, point.reached)
            if num_reached > num_passed:
                was_resumed = i + 1 < len(points) or last_started_s.get(trial_id, -math.inf) > point.t_s
                has_continued = num_reached < len(levels) and (point.decision == "CONTINUE" or was_resumed)
                for index in range(num_passed, num_reached):  # a report may pass several levels at once
                    arrivals[index].append(Arrival(point, has_continued if index == num_reached - 1 else True))
                num_passed = num_reached
    return [
        RungArrivals(level, sorted(at_level, key=lambda a: (a.point.t_s, a.point.trial_id)))
        for level, at_level in zip(levels, arrivals, strict=True)
    ]


# -- figure ------------------------------------------------------------------------------------------------------------


def rungs(search: SearchData) -> "Figure":
    """Draw which trials continued at each level at which trials were stopped or paused.

    Each level is a column, in which the trials stand in the order of their arrival. Colored trials continued, and a
    line leads to their next level.

    Example:
        >>> search = SearchData("demo", "error", "min", 1, True, [], [], None, None, 0.0)
        >>> rungs(search).axes[0].get_ylabel()
        'error'
    """
    levels = rungs_of(search)
    figure = new_figure(WIDTH_IN, 5.2)
    axes = figure.subplots()
    axes.set_title(title(search), loc="left", pad=34 if 0 < len(levels) <= _MAX_HEADS else 6)
    axes.set_ylabel(plain(search.metric))
    clean_axes(axes)
    if not levels:
        show_empty(axes, "no trial was stopped or paused" if search.reports else "no report yet")
        axes.set_xticks([])
        axes.set_yticks([])
        return figure
    points = [arrival.point for rung in levels for arrival in rung.arrivals]
    scale = value_scale((point.value for point in points), search.mode)
    use_scale(axes, scale)
    is_colored = len({point.trial_id for point in points}) <= _MAX_COLORED
    columns = [_x_positions(rung, column) for column, rung in enumerate(levels)]
    _draw_trials(axes, levels, columns, is_colored=is_colored)
    star = _mark_best(axes, levels, columns, best_point(search), is_colored=is_colored)
    axes.grid(False, axis="x")
    axes.set_xlim(-0.5, len(levels) - 0.5)
    ticks = thin(len(levels), 20)
    axes.set_xticks(ticks, [f"{levels[i].level:g}" for i in ticks])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel(plain(search.resource_name))
    num_hidden = sum(not scale.low <= point.value <= scale.high for point in points)
    hidden = f"; {num_hidden} beyond the axis or not finite are not drawn" if num_hidden else ""
    note = f"colored: continued; gray: did not{star}{hidden}. The trials of a column are in order of time"
    figure.supxlabel(note, fontsize=8, color=MUTED)
    return figure


def _draw_trials(
    axes: "Axes", levels: Sequence[RungArrivals], columns: Sequence[Mapping[int, float]], *, is_colored: bool
) -> None:
    from matplotlib.collections import LineCollection

    num_trials = len({arrival.point.trial_id for rung in levels for arrival in rung.arrivals})
    size = 42.0 * min(1.0, max(0.17, (_MAX_COLORED / num_trials) ** 0.5))
    for column, rung in enumerate(levels):
        is_last = column == len(levels) - 1
        ended = [a.point for a in rung.arrivals if not (a.has_continued or is_last)]
        continued = [a.point for a in rung.arrivals if a.has_continued or is_last]
        colors = [_color(point.trial_id, is_colored=is_colored) for point in continued]
        _draw_dots(axes, ended, columns[column], s=0.7 * size, c="none", edgecolors="#a8a8a8", zorder=2)
        _draw_dots(axes, continued, columns[column], s=size, c=colors, edgecolors="white", zorder=3)
        if len(levels) <= _MAX_HEADS:
            head = counted(len(rung.arrivals), "trial") + ("" if is_last else f"\n{rung.num_continued:,} continued")
            axes.text(column, 1.01, head, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=9)
    lines = list(_lines(levels, columns))
    lines = [lines[i] for i in thin(len(lines), _MAX_LINES)]
    axes.add_collection(
        LineCollection(
            [line for _, line in lines],
            colors=[_color(trial_id, is_colored=is_colored) for trial_id, _ in lines],
            linewidths=1.1,
            alpha=0.8 if is_colored else 0.25,
            zorder=1,
        )
    )


def _mark_best(
    axes: "Axes",
    levels: Sequence[RungArrivals],
    columns: Sequence[Mapping[int, float]],
    best: ReportPoint | None,
    *,
    is_colored: bool,
) -> str:
    """Draw a star at the best report, or at the last arrival of its trial before it. Return an explanation."""
    if best is None:
        return ""
    arrivals = [
        (column, arrival.point)
        for column, rung in enumerate(levels)
        for arrival in rung.arrivals
        if arrival.point.trial_id == best.trial_id
    ]
    if not arrivals:
        return ""
    column, point = next((a for a in reversed(arrivals) if a[1].iter <= best.iter), arrivals[0])
    draw_star(axes, columns[column][best.trial_id], point.value, _color(best.trial_id, is_colored=is_colored))
    if point.iter == best.iter:
        return "; star: the best"
    return f"; star: the best trial, whose best report was at {best.reached:g}"


def _draw_dots(axes: "Axes", points: Sequence[ReportPoint], xs: Mapping[int, float], **style: Any) -> None:
    if points:
        axes.scatter([xs[p.trial_id] for p in points], [p.value for p in points], linewidths=0.8, **style)


def _lines(
    levels: Sequence[RungArrivals], columns: Sequence[Mapping[int, float]]
) -> Iterator[tuple[int, list[tuple[float, float]]]]:
    """Yield (trial id, line) from each arrival of a trial to its next one."""
    for column, (rung, next_rung) in enumerate(pairwise(levels)):
        next_values = {arrival.point.trial_id: arrival.point.value for arrival in next_rung.arrivals}
        for point in (arrival.point for arrival in rung.arrivals):
            if (trial_id := point.trial_id) in next_values:
                end = (columns[column + 1][trial_id], next_values[trial_id])
                yield trial_id, [(columns[column][trial_id], point.value), end]


def _x_positions(rung: RungArrivals, column: int) -> dict[int, float]:
    """Return the position of each trial in its column: the first at the left, a single one in the middle."""
    last = len(rung.arrivals) - 1
    half = min(_HALF_COLUMN, 0.04 * last)
    return {
        arrival.point.trial_id: column + (2 * half * i / last - half if last else 0.0)
        for i, arrival in enumerate(rung.arrivals)
    }


def _color(trial_id: int, *, is_colored: bool) -> str:
    return trial_color(trial_id) if is_colored else PALETTE[0]
