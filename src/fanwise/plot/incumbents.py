"""The best value so far: of one search with all its reports, or of several with mean and spread of repetitions."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from .axes import note_what_is_hidden, say_nothing_yet, title, use_scale
from .axis_scales import TimeUnit, number, plain, sample_steps, thin, value_scale
from .canvas import PALETTE
from .data import SearchData, incumbent_band, incumbent_curve, later_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_DOTS = 20_000
_LINE_STYLES = ("-", "--", "-.", ":")


def draw_incumbent(axes: "Axes", search: SearchData, unit: TimeUnit) -> None:
    """The step function of one search, with a marker at each improvement, over the dots of all reports."""
    finite = [point for point in search.reports if math.isfinite(point.value)]
    scale = value_scale((point.value for point in finite), search.mode, later_values(search))
    use_scale(axes, scale)
    note_what_is_hidden(axes, search, scale)
    axes.set_title(title(search), loc="left")
    if not finite:
        return
    dots = [finite[i] for i in thin(len(finite), _MAX_DOTS)]
    times = [point.t_s / unit.seconds for point in dots]
    size = 14 if len(dots) <= 500 else 5
    for feasible, label, marker in ((True, "reports of all trials", "o"), (False, "reports that are infeasible", "x")):
        xs = [t for t, point in zip(times, dots, strict=True) if point.feasible is feasible]
        ys = [point.value for point in dots if point.feasible is feasible]
        if xs:
            width = 0.0 if feasible else 1.0
            axes.scatter(xs, ys, s=size, color="#bdbdbd", marker=marker, linewidths=width, label=label)
    times_s, values = incumbent_curve(search)
    times = [t_s / unit.seconds for t_s in times_s]
    if times:
        axes.step(times, values, where="post", color=PALETTE[0], linewidth=2.2, label="best so far")
        axes.plot(times[:-1], values[:-1], "o", color=PALETTE[0], markersize=5)
    # Dots may lie anywhere, so the legend goes below the axes.
    axes.figure.legend(loc="outside lower center", ncols=3, frameon=False)


def draw_incumbents(axes: "Axes", searches: Sequence[SearchData], names: Sequence[str], unit: TimeUnit) -> None:
    """A line for each name; searches of one name are repetitions and get a mean and a band."""
    groups: dict[str, list[SearchData]] = {}
    for search, name in zip(searches, names, strict=True):
        groups.setdefault(name, []).append(search)
    drawn: list[float] = []
    for i, (name, group) in enumerate(groups.items()):
        drawn += _draw_group(axes, group, name, unit=unit, number_of_line=i)
    use_scale(axes, value_scale(drawn, searches[0].mode))
    spread = ", mean and standard deviation" if len(groups) < len(searches) else ""
    axes.set_title(f"best {plain(searches[0].metric)} so far{spread}", loc="left")
    if drawn:
        axes.legend(loc=_free_corner(searches[0].mode))
    else:
        say_nothing_yet(axes, "no report yet")


def _draw_group(
    axes: "Axes", group: Sequence[SearchData], name: str, *, unit: TimeUnit, number_of_line: int
) -> list[float]:
    """Draw mean and band of one name; returns the values that the axis must show."""
    band = incumbent_band(group)
    if band is None:
        return []
    colour = PALETTE[number_of_line % len(PALETTE)]
    style = _LINE_STYLES[number_of_line // len(PALETTE) % len(_LINE_STYLES)]
    times = [t_s / unit.seconds for t_s in band.times_s]
    repeated = band.n_searches > 1
    runs = f" ({band.n_searches} runs)" if repeated else ""
    # To matplotlib a leading underscore means "not in the legend"; the space prevents that.
    label = f" {plain(name)}: {number(band.mean[-1])}{runs}"
    axes.step(times, band.mean, where="post", color=colour, linestyle=style, linewidth=2.2, label=label)
    if repeated:
        axes.fill_between(times, band.low, band.high, step="post", color=colour, alpha=0.2, linewidth=0)
    # Each value counts as long as it holds: a bad first report that lasts a moment must not set the scale.
    return [value for values in (band.mean, band.low, band.high) for value in sample_steps(band.times_s, values)]


def _free_corner(mode: str) -> Literal["upper right", "lower right"]:
    """The incumbent falls (or rises) to the right, so this corner stays empty."""
    return "upper right" if mode == "min" else "lower right"
