"""What the hyperparameters have to do with the metric: parallel coordinates, and a scatter for each of them.

Each trial counts once, with the best value that it reported. Trials without a finite value, or without one that meets
all constraints, are drawn in grey, or counted where they cannot be drawn. Constants have no axis: they are the same in
every trial.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..base.text import counted
from .axes import clean_axes, say_nothing_yet, title
from .axis_scales import ValueScale, number, plain, thin, value_scale
from .canvas import INK, MUTED, new_figure
from .data import (
    Hyperparameter,
    ReportPoint,
    SearchData,
    best_of_trials,
    best_point,
    infeasible_of_trials,
    n_infeasible,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = "viridis"  # dark is good: the light end is hard to see on white
_NAME_LENGTH, _TICK_LENGTH = 24, 12
_MAX_COLOURED = 100  # lines; the others are the ground of the picture
_MAX_GREY = 2000
_SPREAD = 0.35  # how much of its share of the axis a category fills
_GOLDEN = 0.6180339887498949


def hyperparameters(search: SearchData) -> "Figure":
    """A scatter for each hyperparameter: its value, and the best that the trial reported.

    Trials that came farther have larger dots, later ones are darker: so one sees where the search went. Grey crosses
    are trials that violated a constraint all the time.

    Example:
        >>> search = SearchData("demo", "error", "min", 1, True, [], [], None, None, 0.0)
        >>> hyperparameters(search).axes[0].get_ylabel()
        'error'
    """
    found, beyond, best = best_of_trials(search), infeasible_of_trials(search), best_point(search)
    n_panels = max(1, len(search.hyperparameters))
    n_columns = min(3, n_panels)
    n_rows = -(-n_panels // n_columns)
    figure = new_figure(9.0 if n_columns < 3 else 12.0, 1.0 + 3.4 * n_rows)
    panels = list(figure.subplots(n_rows, n_columns, squeeze=False, sharey=True).flat)
    values = [point.value for point in (*found.values(), *beyond.values())]
    scale = value_scale(values, search.mode, [point.value for point in found.values()] or None)
    n_hidden = sum(not scale.low <= point.value <= scale.high for point in found.values())
    figure.suptitle(_head(search, found, n_hidden), x=0.02, ha="left", fontsize=12)
    for axes in panels[n_panels:]:
        axes.remove()
    for i, axes in enumerate(panels[:n_panels]):
        if scale.log:
            axes.set_yscale("log")
        axes.set_ylim(scale.low, scale.high)
        clean_axes(axes)
        if i % n_columns == 0:
            axes.set_ylabel(plain(search.metric))
        if not search.hyperparameters or not values:
            say_nothing_yet(axes, "no report yet" if not values else "the space has no hyperparameters")
            axes.set_xticks([])
        if search.hyperparameters:
            _draw_scatter(axes, search.hyperparameters[i], found, best)
            _draw_infeasible(axes, search.hyperparameters[i], beyond)
    if len(values) > 1 and search.hyperparameters:
        text = "larger: came farther; darker: a later trial; star: the best" if found else ""
        crosses = "crosses: violate a constraint" if beyond else ""
        figure.supxlabel("; ".join(filter(None, (text, crosses))), fontsize=8, color=MUTED)
    return figure


def _draw_scatter(
    axes: "Axes", axis: Hyperparameter, found: Mapping[int, ReportPoint], best: ReportPoint | None
) -> None:
    trials = [trial_id for trial_id in sorted(found) if trial_id in axis.places]
    axes.set_xticks(*tick_texts(axis))
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel(plain(axis.name))
    if not trials:
        return
    farthest = max(point.reached for point in found.values())
    size = 30.0 if len(found) <= 200 else 12.0
    axes.scatter(
        [place_of(axis, trial_id) for trial_id in trials],
        [found[trial_id].value for trial_id in trials],
        s=[size * max(0.25, found[trial_id].reached / farthest) if farthest > 0 else size for trial_id in trials],
        c=trials,
        cmap="Blues",
        vmin=min(found) - max(1.0, 0.5 * (max(found) - min(found))),  # the first trials are not white
        vmax=max(found),
        linewidths=0,
        alpha=0.85,
    )
    if best is not None and best.trial_id in axis.places:
        place = place_of(axis, best.trial_id)
        axes.plot([place], [best.value], "*", color="#d55e00", markeredgecolor=INK, markersize=14, clip_on=False)


def _draw_infeasible(axes: "Axes", axis: Hyperparameter, beyond: Mapping[int, ReportPoint]) -> None:
    trials = [trial_id for trial_id in sorted(beyond) if trial_id in axis.places]
    if not trials:
        return
    xs, ys = [place_of(axis, trial_id) for trial_id in trials], [beyond[trial_id].value for trial_id in trials]
    axes.scatter(xs, ys, s=16, color="#a8a8a8", marker="x", linewidths=1.0, zorder=0.9)


def parallel_coordinates(search: SearchData) -> "Figure":
    """A vertical axis for each hyperparameter and one for the metric, and a line for each trial.

    Dark lines are good trials, the thick one is the best; of more than 100 trials all but the best 100 are grey. A
    trial that does not have a hyperparameter passes below its axis; one without a value that is finite and
    meets all constraints is dashed and ends before the metric.

    Example:
        >>> search = SearchData("demo", "error", "min", 1, True, [], [], None, None, 0.0)
        >>> [text.get_text() for text in parallel_coordinates(search).axes[0].texts]
        ['no trial has started yet']
    """
    found, best = best_of_trials(search), best_point(search)
    columns = search.hyperparameters
    figure = new_figure(max(9.0, 1.4 * (len(columns) + 1)), 5.2)
    axes = figure.subplots()
    scale = value_scale((point.value for point in found.values()), search.mode)
    n_hidden = sum(not scale.low <= point.value <= scale.high for point in found.values())
    axes.set_title(_head(search, found, n_hidden, dashed=True), loc="left", pad=24)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_yticks([])
    axes.set_xticks([])
    trials = sorted({trial_id for column in columns for trial_id in column.places})
    if not trials:
        say_nothing_yet(axes, "the space has no hyperparameters" if found else "no trial has started yet")
        return figure
    axes.set_xlim(-0.3, len(columns) + 0.5)
    axes.set_ylim(-0.12, 1.04)
    _draw_lines(axes, search, found, trials, scale, best)
    if len(found) > 1:
        rest = f"; in colour: the best {_MAX_COLOURED}" if len(found) > _MAX_COLOURED else ""
        better = "smaller" if search.mode == "min" else "larger"
        figure.supxlabel(
            f"dark: good, that is {better} {plain(search.metric)}; thick: the best{rest}", fontsize=8, color=MUTED
        )
    for x, column in enumerate(columns):
        _draw_axis(axes, x, plain(column.name, _NAME_LENGTH), column.ticks)
    _draw_axis(axes, len(columns), plain(search.metric, _NAME_LENGTH), _value_ticks(scale))
    return figure


def _draw_lines(
    axes: "Axes",
    search: SearchData,
    found: Mapping[int, ReportPoint],
    trials: Sequence[int],
    scale: ValueScale,
    best: ReportPoint | None,
) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection

    colours = colormaps[_COLOURS]
    sign = 1.0 if search.mode == "min" else -1.0
    width = 1.3 if len(trials) <= _MAX_COLOURED else 0.9
    lost, drawn = [], []
    for trial_id in trials:
        line = [(float(x), _height(column, trial_id)) for x, column in enumerate(search.hyperparameters)]
        point = found.get(trial_id)
        if point is None:
            lost.append(line)
        elif scale.low <= point.value <= scale.high:
            height = scale.share(point.value)
            goodness = height if sign > 0 else 1.0 - height  # 0 is best, and dark
            drawn.append((goodness, trial_id, [*line, (float(len(search.hyperparameters)), height)]))
    drawn.sort(reverse=True)  # the best on top
    rest, drawn = drawn[:-_MAX_COLOURED], drawn[-_MAX_COLOURED:]
    grey = [rest[i][2] for i in thin(len(rest), _MAX_GREY)]
    axes.add_collection(LineCollection(grey, colors="#dcdcdc", linewidths=0.5, alpha=0.5, zorder=0.9))
    axes.add_collection(LineCollection(lost, colors="#b0b0b0", linewidths=width, linestyles="dashed", zorder=1))
    axes.add_collection(
        LineCollection(
            [line for _, _, line in drawn],
            colors=[colours(0.95 * goodness / (drawn[0][0] or 1.0)) for goodness, _, _ in drawn],
            linewidths=width,
            alpha=0.85,
            zorder=2,
        )
    )
    for _, trial_id, line in drawn:
        if best is not None and trial_id == best.trial_id:
            xs, ys = zip(*line, strict=True)
            axes.plot(xs, ys, color="white", linewidth=5.0, zorder=3)
            axes.plot(xs, ys, color="#d55e00", linewidth=3.0, zorder=3.1)


def _draw_axis(axes: "Axes", x: int, name: str, ticks: Sequence[tuple[float, str]]) -> None:
    from matplotlib.patheffects import withStroke

    axes.plot([x, x], [0.0, 1.0], color=INK, linewidth=1.0, zorder=4)
    axes.text(x, 1.03, name, ha="center", va="bottom", fontsize=10)
    for place, text in ticks:
        axes.plot([x - 0.015, x + 0.015], [place, place], color=INK, linewidth=1.0, zorder=4)
        axes.text(
            x + 0.03,
            place,
            plain(text, _TICK_LENGTH),
            va="center",
            fontsize=8,
            color=INK,
            zorder=5,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )


def _value_ticks(scale: ValueScale) -> list[tuple[float, str]]:
    """Round numbers on the axis of the metric."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    locator = LogLocator() if scale.log else MaxNLocator(6)
    values = [float(value) for value in locator.tick_values(scale.low, scale.high)]
    return [(scale.share(value), number(value)) for value in values if scale.low <= value <= scale.high]


def _height(column: Hyperparameter, trial_id: int) -> float:
    """Where a line crosses an axis; below it where the trial does not have this hyperparameter."""
    return place_of(column, trial_id) if trial_id in column.places else -0.08


def tick_texts(axis: Hyperparameter) -> tuple[list[float], list[str]]:
    """Places and texts, cut where they are long."""
    return [place for place, _ in axis.ticks], [plain(text, _TICK_LENGTH) for _, text in axis.ticks]


def place_of(axis: Hyperparameter, trial_id: int) -> float:
    """The place on the axis; where many trials share a value, each a little beside it, always the same."""
    place = axis.places[trial_id]
    if not axis.is_discrete:
        return place
    share = 1.0 / max(2, len(axis.ticks))
    return place + _SPREAD * share * (trial_id * _GOLDEN % 1.0 - 0.5)


def _head(search: SearchData, found: Mapping[int, ReportPoint], n_hidden: int, *, dashed: bool = False) -> str:
    """`dashed`: trials without a value are drawn, too."""
    started = {span.trial_id for span in search.spans} | {point.trial_id for point in search.reports}
    parts = [counted(len(found) - n_hidden, "trial") + (" as lines" if dashed else " drawn")]
    if n_hidden:
        parts.append(f"{n_hidden} beyond the axis")
    if len(started) > len(found):
        what = "feasible" if n_infeasible(search) else "finite"
        parts.append(f"{len(started) - len(found)} without a {what} value" + (" (dashed)" if dashed else ""))
    return f"{title(search)}; {', '.join(parts)}" if found else title(search)
