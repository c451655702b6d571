"""The rungs of a search: a column for each, a dot for each trial that came there, a line for each that went on.

error |  o                        Within a column the trials stand in the order in which they came,
      |  o o                      the first on the left.
      |   *----------*-----*
      |     *------o
      +---------------------
         1         3     9
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..base.text import counted
from .axes import clean_axes, say_nothing_yet, title, use_scale
from .axis_scales import plain, thin, value_scale
from .canvas import INK, MUTED, PALETTE, new_figure, trial_colour
from .data import ReportPoint, SearchData, best_point
from .rung_figure import RungArrivals, rungs_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HALF_COLUMN = 0.32
_MAX_COLOURED = 60  # trials with a colour of their own
_MAX_LINES = 400
_MAX_HEADS = 9  # rungs with their numbers written above them


def rungs(search: SearchData) -> "Figure":
    """Who went on and who did not, at each level where trials were stopped or paused.

    For successive halving, Hyperband, ASHA, the median rule, and whatever else stops or pauses trials. Each dot is a
    trial at its first report at that level; those in colour went on, and a line leads to where they came next.

    Example:
        >>> search = SearchData("demo", "error", "min", 1, True, [], [], None, None, 0.0)
        >>> rungs(search).axes[0].get_ylabel()
        'error'
    """
    found = rungs_of(search)
    figure = new_figure(9.0, 5.2)
    axes = figure.subplots()
    axes.set_title(title(search), loc="left", pad=34 if 0 < len(found) <= _MAX_HEADS else 6)
    axes.set_ylabel(plain(search.metric))
    clean_axes(axes)
    if not found:
        say_nothing_yet(axes, "no trial was stopped or paused" if search.reports else "no report yet")
        axes.set_xticks([])
        axes.set_yticks([])
        return figure
    points = [arrival.point for rung in found for arrival in rung.arrivals]
    scale = value_scale((point.value for point in points), search.mode)
    use_scale(axes, scale)
    star = _draw(axes, search, found)
    axes.grid(False, axis="x")
    axes.set_xlim(-0.5, len(found) - 0.5)
    shown = thin(len(found), 20)
    axes.set_xticks(shown, [f"{found[i].level:g}" for i in shown])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel(plain(search.resource_name))
    n_hidden = sum(not scale.low <= point.value <= scale.high for point in points)
    hidden = f"; {n_hidden} beyond the axis or not finite are not drawn" if n_hidden else ""
    figure.supxlabel(
        f"in colour: went on; grey: did not{star}{hidden}. In a column the trials stand in order of time",
        fontsize=8,
        color=MUTED,
    )
    return figure


def _draw(axes: "Axes", search: SearchData, found: Sequence[RungArrivals]) -> str:
    """Returns what the star is, for the line below."""
    from matplotlib.collections import LineCollection

    places = [_places(rung, column) for column, rung in enumerate(found)]
    n_trials = len({arrival.point.trial_id for rung in found for arrival in rung.arrivals})
    coloured = n_trials <= _MAX_COLOURED
    size = 42.0 * min(1.0, max(0.17, (_MAX_COLOURED / n_trials) ** 0.5))
    for column, rung in enumerate(found):
        is_last = column == len(found) - 1
        beaten = [a.point for a in rung.arrivals if not (a.went_on or is_last)]
        better = [a.point for a in rung.arrivals if a.went_on or is_last]
        _draw_dots(axes, beaten, places[column], {"s": 0.7 * size, "c": "none", "edgecolors": "#a8a8a8", "zorder": 2})
        colours = [_colour(point.trial_id, coloured=coloured) for point in better]
        _draw_dots(axes, better, places[column], {"s": size, "c": colours, "edgecolors": "white", "zorder": 3})
        if len(found) <= _MAX_HEADS:
            head = counted(len(rung.arrivals), "trial") + ("" if is_last else f"\n{rung.n_went_on:,} went on")
            axes.text(column, 1.01, head, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=9)
    lines = list(_lines(found, places))
    kept = [lines[i] for i in thin(len(lines), _MAX_LINES)]
    axes.add_collection(
        LineCollection(
            [line for _, line in kept],
            colors=[_colour(trial_id, coloured=coloured) for trial_id, _ in kept],
            linewidths=1.1,
            alpha=0.8 if coloured else 0.25,
            zorder=1,
        )
    )
    return _mark_best(axes, found, places, best_point(search), coloured=coloured)


def _mark_best(
    axes: "Axes",
    found: Sequence[RungArrivals],
    places: Sequence[Mapping[int, float]],
    best: ReportPoint | None,
    *,
    coloured: bool,
) -> str:
    """A star on the best report; where that is at no rung, on its trial where it came last before. Says which."""
    columns = [column for column in range(len(found)) if best is not None and best.trial_id in places[column]]
    if best is None or not columns:
        return ""
    arrived = {
        column: next(a.point for a in found[column].arrivals if a.point.trial_id == best.trial_id) for column in columns
    }
    before = [column for column in columns if arrived[column].iter <= best.iter]
    column = before[-1] if before else columns[0]
    value = arrived[column].value
    axes.plot(
        [places[column][best.trial_id]],
        [value],
        "*",
        color=_colour(best.trial_id, coloured=coloured),
        markeredgecolor=INK,
        markersize=15,
        zorder=4,
        clip_on=False,
    )
    if arrived[column].iter == best.iter:
        return "; star: the best"
    at = best.iter if best.resource is None else best.resource
    return f"; star: the best trial, whose best report came at {at:g}"


def _draw_dots(
    axes: "Axes", points: Sequence[ReportPoint], places: Mapping[int, float], look: Mapping[str, Any]
) -> None:  # Any: properties of an artist
    if points:
        xs = [places[point.trial_id] for point in points]
        axes.scatter(xs, [point.value for point in points], linewidths=0.8, **look)


def _lines(
    found: Sequence[RungArrivals], places: Sequence[Mapping[int, float]]
) -> Iterator[tuple[int, list[tuple[float, float]]]]:
    """From each trial that went on to where it came next."""
    for column, (rung, upper) in enumerate(pairwise(found)):
        after = {arrival.point.trial_id: arrival.point for arrival in upper.arrivals}
        for arrival in rung.arrivals:
            trial_id = arrival.point.trial_id
            if trial_id in after:
                begin = places[column][trial_id], arrival.point.value
                yield trial_id, [begin, (places[column + 1][trial_id], after[trial_id].value)]


def _places(rung: RungArrivals, column: int) -> dict[int, float]:
    """Where each trial stands in its column: the first on the left, a single one in the middle."""
    last = len(rung.arrivals) - 1
    half = min(_HALF_COLUMN, 0.04 * last)
    return {
        arrival.point.trial_id: column + (2 * half * i / last - half if last else 0.0)
        for i, arrival in enumerate(rung.arrivals)
    }


def _colour(trial_id: int, *, coloured: bool) -> str:
    return trial_colour(trial_id) if coloured else PALETTE[0]
