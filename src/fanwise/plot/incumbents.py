"""The figure of the best value so far: one search with all its reports, or several with mean and spread."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import canvas
from .data import SearchData, finite_reports, incumbent_band, incumbent_steps, thin, value_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    """
    names = checked_labels(searches, labels)
    if len({(search.metric, search.mode) for search in searches}) > 1:
        shown = sorted({f"{search.metric} ({search.mode})" for search in searches})
        raise ValueError(f"one figure holds searches of one metric and mode, got {', '.join(shown)}")
    figure = canvas.new_figure(canvas.WIDTH_IN, 4.8)
    if len(searches) == 1:
        draw_incumbent(figure, searches[0])
    else:
        _draw_groups(figure.subplots(), searches, names)
    return figure


def checked_labels(searches: Sequence[SearchData], labels: Sequence[str] | None) -> list[str]:
    """Return the labels or the names. Raises ValueError if there is no search, or not one label per search."""
    if not searches:
        raise ValueError("at least one search is needed to draw a figure, got none")
    if labels is not None and len(labels) != len(searches):
        raise ValueError(f"labels must name each search: got {len(labels)} labels for {len(searches)} searches")
    return list(labels or [search.name for search in searches])


def draw_incumbent(figure: "Figure", search: SearchData) -> None:
    """Draw the best value so far of one search into an empty figure."""
    axes = figure.subplots()
    reports, steps = finite_reports(search), incumbent_steps(search)
    canvas.set_axes_of_reports(axes, search)
    dots = reports[thin(len(reports), canvas.MAX_DOTS)]
    style: dict[str, Any] = {"color": canvas.DOTS, "s": 14 if len(dots) <= 500 else 5}
    if len(feasible := dots[dots.feasible]):
        axes.scatter(feasible.t_s, feasible.value, linewidths=0.0, label="reports of all trials", **style)
    if len(infeasible := dots[~dots.feasible]):
        axes.scatter(infeasible.t_s, infeasible.value, marker="x", linewidths=1.0, label="infeasible reports", **style)
    if steps:
        times, values = [step.t_s for step in steps], [step.value for step in steps]
        line = ([*times, max(search.last_s, times[-1])], [*values, values[-1]])
        axes.step(*line, where="post", color=canvas.PALETTE[0], linewidth=2.2, label="best so far")
        axes.plot(times, values, "o", color=canvas.PALETTE[0], markersize=5)
    canvas.add_legend(figure)
    canvas.finish_time_axis(axes, [search])


def _draw_groups(axes: "Axes", searches: Sequence[SearchData], names: Sequence[str]) -> None:
    """Draw mean and band for each name."""
    import numpy as np

    groups: dict[str, list[SearchData]] = {name: [] for name in names}
    for search, name in zip(searches, names, strict=True):
        if incumbent_steps(search):
            groups[name].append(search)
    values: list[float] = []
    for index, (name, group) in enumerate(groups.items()):
        color = canvas.trial_color(index)
        style = _LINE_STYLES[index // len(canvas.PALETTE) % len(_LINE_STYLES)]
        band = incumbent_band(group)
        result = f"{band.middle[-1]:.4g}" if group else "no reports"
        runs = f" ({len(group)} runs)" if len(group) > 1 else ""
        # The space keeps a name that starts with "_" in the legend.
        label = f" {canvas.plain(name)}: {result}{runs}"
        axes.step(band.times_s, band.middle, where="post", color=color, linestyle=style, linewidth=2.2, label=label)
        if len(group) > 1:
            axes.fill_between(band.times_s, band.low, band.high, step="post", color=color, alpha=0.2, linewidth=0)
        if group:
            # Weighted by duration: a bad first value that holds for a moment must not set the scale.
            times_s = np.linspace(band.times_s[0], band.times_s[-1], 200)
            samples = np.searchsorted(band.times_s, times_s, "right") - 1
            values += np.array([band.middle, band.low, band.high])[:, samples].ravel().tolist()
    canvas.use_scale(axes, value_scale(values, searches[0].mode))
    # The best value falls (or rises) to the right, so this corner is empty.
    axes.legend(loc="upper right" if searches[0].mode == "min" else "lower right")
    if not values:
        canvas.show_empty(axes, "no reports")
    spread = ", mean and standard deviation" if len(groups) < len(searches) else ""
    axes.set_title(f"best {canvas.plain(searches[0].metric)} so far{spread}", loc="left")
    axes.set_ylabel(canvas.plain(searches[0].metric))
    canvas.finish_time_axis(axes, searches)
    canvas.clean_axes(axes)
