"""Figures without pyplot, which can be drawn in any thread, and helpers for their axes.

matplotlib is imported when the first figure is drawn.
"""

import io
from collections.abc import Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.text import counted, printable_line
from .data import SearchData, ValueScale, best_point, finite_reports, value_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The color-blind safe palette of Okabe and Ito (jfly.uni-koeln.de/color), without black, which is used for the best
# trial, and with a darker yellow for white paper.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a200")
INK, MUTED, DOTS, IDLE, GRID = "#222222", "#767676", "#bdbdbd", "#c9c9c9", "#e6e6e6"

WIDTH_IN = 9.0
MAX_DOTS = 20_000
FORMATS = ("png", "svg", "pdf")
_MAX_NAME_LENGTH = 60
_NOTEBOOK_DPI = 100
_DIGIT_WIDTH, _LABEL_HEIGHT = 0.008, 0.045  # of trial numbers, as shares of the axes


def new_figure(width_in: float, height_in: float) -> "Figure":
    """Return an empty figure with automatic layout, which notebooks can show. Sizes are in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    # Notebooks show a figure without pyplot only if the object has this. Other figures of the user are not changed.
    figure.__dict__["_repr_png_"] = partial(file_bytes, figure, dpi=_NOTEBOOK_DPI)
    return figure


def file_bytes(figure: "Figure", file_format: str = "png", dpi: int = 150) -> bytes:
    """Return the content of a file with the figure. `dpi`: pixels per inch of a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=file_format, dpi=dpi)
    return buffer.getvalue()


def save_figure(figure: "Figure", path: str | PathLike[str], dpi: int = 150) -> Path:
    """Write a figure to a `.png`, `.svg` or `.pdf` file. If it cannot be drawn, no file is created.

    Args:
        dpi: pixels per inch of a PNG.

    Returns:
        The path.

    Raises:
        ValueError: the path has another suffix.
        OSError: the folder does not exist or is not writable.
    """
    target = Path(path)
    suffix = target.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        problem = f"ends in {target.suffix!r}" if suffix else "has no ending"
        raise ValueError(f"a figure is saved as .png, .svg or .pdf, and {str(target)!r} {problem}")
    target.write_bytes(file_bytes(figure, suffix, dpi))
    return target


def trial_color(trial_id: int) -> str:
    """Return the color of a trial, which is the same in all figures."""
    return PALETTE[trial_id % len(PALETTE)]


def plain(text: str, max_length: int = _MAX_NAME_LENGTH) -> str:
    r"""Return a user's name as text that matplotlib shows literally.

    Dollar signs are escaped because they start formulas. Unprintable characters become escape sequences. Long names are
    shortened in the middle.

    >>> plain("$lr$")
    '\\$lr\\$'
    """
    shown = printable_line(text)
    if len(shown) > max_length:
        half = (max_length - 3) // 2
        shown = f"{shown[:half]}...{shown[-half:]}"
    return shown.replace("$", r"\$")


# -- axes --------------------------------------------------------------------------------------------------------------


def clean_axes(axes: "Axes") -> None:
    """Remove the upper and right lines, and add a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def finish_time_axis(axes: "Axes", searches: Sequence[SearchData]) -> None:
    """Set limits, ticks and label of the time axis: seconds up to 20 minutes, minutes up to 5 hours, and hours."""
    from matplotlib.ticker import MaxNLocator

    last_s = max(search.last_s for search in searches)
    # The axis is longer than the search, so that a marker at the last report is drawn completely.
    end_s = 1.04 * last_s if last_s > 0 else 1.0
    name, unit_s = ("s", 1) if last_s <= 20 * 60 else ("min", 60) if last_s <= 5 * 3600 else ("h", 3600)
    if unit_s > 1:
        ticks = MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(0.0, end_s / unit_s)
        axes.set_xticks([unit_s * tick for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.set_xlim(0.0, end_s)
    has_started = any(search.startup_s is not None for search in searches)
    axes.set_xlabel(f"wall-clock time{' since the first worker was ready' if has_started else ''} [{name}]")


def use_scale(axes: "Axes", scale: ValueScale, axis: str = "y") -> None:
    """Set the limits of a value axis."""
    if scale.log:
        axes.set(**{f"{axis}scale": "log"})
    axes.set(**{f"{axis}lim": scale[:2]})


def show_empty(axes: "Axes", text: str) -> None:
    """Write a text in the middle of empty axes, and remove the ticks of the value axis."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)
    axes.set_yticks([])


def note_above(axes: "Axes", text: str) -> None:
    """Write a small text at the right above the axes."""
    axes.text(1.0, 1.005, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color=MUTED)


def set_axes_of_reports(axes: "Axes", search: SearchData) -> None:
    """Set title, value axis and grid of axes with the reports of a search, and write how many reports are beyond them.

    The first reports of trials do not define outliers, because they can be larger by orders of magnitude.
    """
    import numpy as np

    reports = finite_reports(search)
    later_values = np.delete(reports.value, np.unique(reports.trial_id, return_index=True)[1])
    scale = value_scale(reports.value, search.mode, later_values)
    use_scale(axes, scale)
    set_title(axes, search)
    clean_axes(axes)
    n_lost = len(search.reports) - len(reports)
    if not len(reports):
        show_empty(axes, f"no finite value in {counted(n_lost, 'report')}" if n_lost else "no reports")
        return
    cut_off = f"{scale.n_beyond:,} {'above' if search.mode == 'min' else 'below'} this axis" if scale.n_beyond else ""
    parts = [part for part in (cut_off, f"{n_lost:,} not finite" if n_lost else "") if part]
    if parts:
        note_above(axes, f"reports not shown: {', '.join(parts)}")


def set_title(axes: "Axes", search: SearchData, pad: float = 6) -> None:
    """Write the name of the search, its best value and its metric. `pad`: space below the title, in points."""
    title, best = plain(search.name), best_point(search)
    if best is not None:
        title += f": best {plain(search.metric)} {best.value:.4g} (trial {best.trial_id})"
    elif len(finite_reports(search)):
        title += ": no report meets all constraints"
    axes.set_title(title, loc="left", pad=pad)
    axes.set_ylabel(plain(search.metric))


def add_legend(figure: "Figure") -> None:
    """Add a legend below the axes, where it hides nothing. Equal labels have one entry."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)


def draw_star(axes: "Axes", x: float, y: float, color: str, label: str | None = None) -> None:
    """Mark the best report. `label`: its text in the legend."""
    # Not clipped, because the best value may lie on the edge.
    axes.plot([x], [y], "*", color=color, markeredgecolor=INK, markersize=15, zorder=5, clip_on=False, label=label)


def label_trials(axes: "Axes", points: Sequence[tuple[int, float, float]], best_trial: int | None = None) -> None:
    """Write trial numbers beside points, except where they would overlap another number or leave the axes.

    The limits of the axes must be set.

    Args:
        points: (trial id, x, y), the most important first.
        best_trial: its number is bold, and farther away because of the star.
    """
    from matplotlib.patheffects import withStroke

    style = {"fontsize": 8, "color": INK, "zorder": 4, "textcoords": "offset points", "in_layout": False}
    style |= {"path_effects": [withStroke(linewidth=2.5, foreground="white")]}
    occupied: list[tuple[float, float]] = []
    for trial_id, *point in points:
        x, y = axes.transAxes.inverted().transform(axes.transData.transform(point))
        width = (len(str(trial_id)) + 1.5) * _DIGIT_WIDTH
        is_inside = 0.0 <= x <= 1.0 - width / 2 and 0.0 <= y <= 1.0
        if is_inside and not any(abs(x - a) <= width and abs(y - b) <= _LABEL_HEIGHT for a, b in occupied):
            occupied.append((x, y))
            offset, weight = ((10, -3), "bold") if trial_id == best_trial else ((5, 3), "normal")
            axes.annotate(str(trial_id), point, xytext=offset, fontweight=weight, **style)  # type: ignore[arg-type]
