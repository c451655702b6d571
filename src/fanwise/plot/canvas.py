"""Figures without pyplot, which can be drawn in any thread, and helpers for their axes.

matplotlib is imported when the first figure is drawn.
"""

import io
from collections.abc import Iterable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from .data import SearchData, best_point, num_infeasible, num_not_finite
from .scales import TimeUnit, ValueScale, number, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The color-blind safe palette of Okabe and Ito (jfly.uni-koeln.de/color), without black, which is used for the best
# trial, and with a darker yellow for white paper.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a200")
MARKERS = "osD^vPX"
INK, MUTED, DOTS, IDLE = "#222222", "#767676", "#bdbdbd", "#c9c9c9"

WIDTH_IN = 9.0
FORMATS = ("png", "svg", "pdf")

# The time axis is longer than the search, so that a marker at the last report is drawn completely.
TIME_MARGIN = 1.04
_NOTEBOOK_DPI = 100


def new_figure(width_in: float, height_in: float) -> "Figure":
    """Return an empty figure with automatic layout, which notebooks can show. Sizes are in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    # Notebooks show a figure without pyplot only if the object has this. Other figures of the user are not changed.
    figure.__dict__["_repr_png_"] = partial(png_bytes, figure, _NOTEBOOK_DPI)
    return figure


def png_bytes(figure: "Figure", dpi: int = 150) -> bytes:
    """Return the figure as a PNG file. `dpi`: pixels per inch."""
    return _file_content(figure, "png", dpi)


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
    target.write_bytes(_file_content(figure, suffix, dpi))
    return target


def _file_content(figure: "Figure", file_format: str, dpi: int) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=file_format, dpi=dpi)
    return buffer.getvalue()


def trial_color(trial_id: int) -> str:
    """Return the color of a trial, which is the same in all figures."""
    return PALETTE[trial_id % len(PALETTE)]


def trial_marker(trial_id: int) -> str:
    """Return the marker of a trial. Trials of the same color have different markers."""
    return MARKERS[trial_id // len(PALETTE) % len(MARKERS)]


# -- axes --------------------------------------------------------------------------------------------------------------


def title(search: SearchData) -> str:
    """Return the name of the search and its best value."""
    best = best_point(search)
    if best is None:
        return plain(search.name) + (": no report meets all constraints" if num_infeasible(search) else "")
    return f"{plain(search.name)}: best {plain(search.metric)} {number(best.value)} (trial {best.trial_id})"


def clean_axes(axes: "Axes") -> None:
    """Remove the upper and right lines, and add a light grid."""
    hide_lines(axes, "top", "right")
    axes.grid(True, color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def hide_lines(axes: "Axes", *sides: str) -> None:
    """Hide the lines of the axes at these sides."""
    for side in sides:
        axes.spines[side].set_visible(False)


def finish_time_axis(axes: "Axes", searches: Sequence[SearchData], unit: TimeUnit) -> None:
    """Set limits and label of the time axis, for searches with times as of `from_first_objective`."""
    last_s = max(search.last_s for search in searches)
    axes.set_xlim(0.0, TIME_MARGIN * last_s / unit.seconds if last_s > 0 else 1.0)
    has_started = any(search.first_objective_s is not None for search in searches)
    since = " since the first worker was ready" if has_started else ""
    axes.set_xlabel(f"wall-clock time{since} [{unit.name}]")


def use_scale(axes: "Axes", scale: ValueScale) -> None:
    """Set the limits of the value axis."""
    if scale.log:
        axes.set_yscale("log")
    axes.set_ylim(scale.low, scale.high)


def show_empty(axes: "Axes", text: str) -> None:
    """Write a text in the middle of empty axes."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def note_above(axes: "Axes", text: str) -> None:
    """Write a small text at the right above the axes."""
    axes.text(1.0, 1.005, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color=MUTED)


def note_hidden_reports(axes: "Axes", search: SearchData, scale: ValueScale) -> None:
    """Write how many reports the axes do not show, or that there are none."""
    n_lost = num_not_finite(search)
    if n_lost == len(search.reports):
        show_empty(axes, f"no finite value in {n_lost} reports" if n_lost else "no report yet")
        return
    cut_off = f"{scale.n_beyond} {'above' if search.mode == 'min' else 'below'} this axis" if scale.n_beyond else ""
    parts = [part for part in (cut_off, f"{n_lost} not finite" if n_lost else "") if part]
    if parts:
        note_above(axes, f"reports not shown: {', '.join(parts)}")


def draw_star(axes: "Axes", x: float, y: float, color: str) -> None:
    """Mark the best report."""
    # Not clipped, because the best value may lie on the edge.
    axes.plot([x], [y], "*", color=color, markeredgecolor=INK, markersize=15, zorder=3.2, clip_on=False)


def label_trials(
    axes: "Axes",
    points: Iterable[tuple[int, tuple[float, float], tuple[float, float]]],
    room: tuple[float, float],
    *,
    offset: tuple[float, float] = (5, 0),
    bold_trial: int | None = None,
) -> None:
    """Write trial numbers beside points, except where they would overlap a number that is already written.

    Args:
        points: (trial id, coordinates, position on the axes from 0 to 1), the most important first.
        room: width and height of a number, as shares of the axes.
        offset: of the numbers, in points.
    """
    from matplotlib.patheffects import withStroke

    occupied: list[tuple[float, float]] = []
    for trial_id, coordinates, (x, y) in points:
        if any(abs(x - other_x) <= room[0] and abs(y - other_y) <= room[1] for other_x, other_y in occupied):
            continue
        occupied.append((x, y))
        is_bold = trial_id == bold_trial
        axes.annotate(
            str(trial_id),
            coordinates,
            xytext=(offset[0] + 4, offset[1]) if is_bold else offset,
            textcoords="offset points",
            va="center" if offset[1] == 0 else "baseline",
            fontsize=8,
            fontweight="bold" if is_bold else "normal",
            color=INK,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            zorder=4,
            in_layout=False,
        )
