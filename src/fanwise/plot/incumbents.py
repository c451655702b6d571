"""The figure of the best value so far: one search with all its reports, or several with mean and spread."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .canvas import (
    DOTS,
    PALETTE,
    WIDTH_IN,
    clean_axes,
    finish_time_axis,
    new_figure,
    note_hidden_reports,
    show_empty,
    title,
    use_scale,
)
from .data import SearchData, from_first_objective, incumbent_band, incumbent_curve, typical_values
from .scales import TimeUnit, number, plain, sample_steps, thin, time_unit, value_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_DOTS = 20_000
_LINE_STYLES = ("-", "--", "-.", ":")


def incumbent(*searches: SearchData, labels: Sequence[str] | None = None) -> "Figure":
    """Draw the best value so far over wall-clock time.

    One search is drawn with all its reports as dots. Several searches with the same label are repetitions, drawn as a
    line for their mean and a band of one standard deviation to each side.

    Args:
        searches: at least one, all with the same metric and mode.
        labels: one per search, by default the names of the searches.

    Raises:
        ValueError: there is no search, the number of labels is wrong, or metrics or modes differ.

    Example:
        >>> search = SearchData("demo", "error", "min", 1, True, [], [], None, None, 0.0)
        >>> incumbent(search).axes[0].get_ylabel()
        'error'
    """
    names = checked_labels(searches, labels, [search.name for search in searches])
    if len({(search.metric, search.mode) for search in searches}) > 1:
        shown = sorted({f"{search.metric} ({search.mode})" for search in searches})
        raise ValueError(f"one figure holds searches of one metric and mode, got {', '.join(shown)}")
    figure = new_figure(WIDTH_IN, 4.8)
    draw_incumbent_figure(figure, searches, names)
    return figure


def draw_incumbent_figure(figure: "Figure", searches: Sequence[SearchData], names: Sequence[str] = ()) -> None:
    """Draw `incumbent` into an empty figure. `names`: one per search, unless there is only one search."""
    searches = tuple(map(from_first_objective, searches))
    axes = figure.subplots()
    unit = time_unit(max(search.last_s for search in searches))
    if len(searches) == 1:
        _draw_search(axes, searches[0], unit)
    else:
        _draw_groups(axes, searches, names, unit)
    finish_time_axis(axes, searches, unit)
    axes.set_ylabel(plain(searches[0].metric))
    clean_axes(axes)


def checked_labels(searches: Sequence[SearchData], labels: Sequence[str] | None, default: Sequence[str]) -> list[str]:
    """Return the labels, or the default. Raises ValueError if there is no search, or not one label per search."""
    if not searches:
        raise ValueError("at least one search is needed to draw a figure, got none")
    if labels is not None and len(labels) != len(searches):
        raise ValueError(f"labels must name each search: got {len(labels)} labels for {len(searches)} searches")
    return list(default if labels is None else labels)


def _draw_search(axes: "Axes", search: SearchData, unit: TimeUnit) -> None:
    finite = [point for point in search.reports if math.isfinite(point.value)]
    scale = value_scale((point.value for point in finite), search.mode, typical_values(search))
    use_scale(axes, scale)
    note_hidden_reports(axes, search, scale)
    axes.set_title(title(search), loc="left")
    if not finite:
        return
    dots = [finite[i] for i in thin(len(finite), _MAX_DOTS)]
    size = 14 if len(dots) <= 500 else 5
    for feasible, label, marker in ((True, "reports of all trials", "o"), (False, "reports that are infeasible", "x")):
        points = [(point.t_s / unit.seconds, point.value) for point in dots if point.feasible is feasible]
        if points:
            xs, ys = zip(*points, strict=True)
            width = 0.0 if feasible else 1.0
            axes.scatter(xs, ys, s=size, color=DOTS, marker=marker, linewidths=width, label=label)
    times_s, values = incumbent_curve(search)
    times = [t_s / unit.seconds for t_s in times_s]
    if times:
        axes.step(times, values, where="post", color=PALETTE[0], linewidth=2.2, label="best so far")
        axes.plot(times[:-1], values[:-1], "o", color=PALETTE[0], markersize=5)
    # Below the axes, because dots may be anywhere in them.
    axes.figure.legend(loc="outside lower center", ncols=3, frameon=False)


def _draw_groups(axes: "Axes", searches: Sequence[SearchData], names: Sequence[str], unit: TimeUnit) -> None:
    """Draw a line for each name."""
    groups: dict[str, list[SearchData]] = {}
    for search, name in zip(searches, names, strict=True):
        groups.setdefault(name, []).append(search)
    values: list[float] = []
    for index, (name, group) in enumerate(groups.items()):
        values += _draw_group(axes, group, name, unit=unit, index=index)
    use_scale(axes, value_scale(values, searches[0].mode))
    spread = ", mean and standard deviation" if len(groups) < len(searches) else ""
    axes.set_title(f"best {plain(searches[0].metric)} so far{spread}", loc="left")
    if values:
        # The best value falls (or rises) to the right, so this corner is empty.
        axes.legend(loc="upper right" if searches[0].mode == "min" else "lower right")
    else:
        show_empty(axes, "no report yet")


def _draw_group(axes: "Axes", group: Sequence[SearchData], name: str, *, unit: TimeUnit, index: int) -> list[float]:
    """Draw mean and band of repetitions. Return the values that the axis must show."""
    band = incumbent_band(group)
    if band is None:
        return []
    color = PALETTE[index % len(PALETTE)]
    style = _LINE_STYLES[index // len(PALETTE) % len(_LINE_STYLES)]
    times = [t_s / unit.seconds for t_s in band.times_s]
    runs = f" ({band.n_searches} runs)" if band.n_searches > 1 else ""
    # The space keeps a name that starts with "_" in the legend.
    label = f" {plain(name)}: {number(band.mean[-1])}{runs}"
    axes.step(times, band.mean, where="post", color=color, linestyle=style, linewidth=2.2, label=label)
    if band.n_searches > 1:
        axes.fill_between(times, band.low, band.high, step="post", color=color, alpha=0.2, linewidth=0)
    # Weighted by duration: a bad first value that holds for a moment must not set the scale.
    return [value for values in (band.mean, band.low, band.high) for value in sample_steps(band.times_s, values)]
