"""Figures without global state: no pyplot, no window, no current figure. Works in any thread.

A figure that pyplot did not make is shown by a notebook only when it can give its own PNG; `new_figure` adds that.
matplotlib is imported on first use: whoever only wants the data never pays for it.
"""

import io
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The palette of Okabe and Ito (jfly.uni-koeln.de/color), safe for colour-blind readers, without its black
# (kept for the best trial) and with a darker yellow (theirs is lost on white).
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a200")
MARKERS = "osD^vPX"
INK, MUTED, IDLE = "#222222", "#767676", "#c9c9c9"

# What a figure can be saved as.
FIGURE_KINDS = ("png", "svg", "pdf")

_NOTEBOOK_DPI = 100


def new_figure(width_in: float, height_in: float) -> "Figure":
    """An empty figure of that size in inches which lays itself out and draws itself in notebooks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    # On the object, not the class: IPython asks the object, and other figures of the user stay as they are.
    figure.__dict__["_repr_png_"] = partial(png_bytes, figure, _NOTEBOOK_DPI)
    return figure


def png_bytes(figure: "Figure", dpi: int = 150) -> bytes:
    """The figure as a PNG file in memory, `dpi` pixels an inch."""
    return _drawn(figure, "png", dpi)


def save_figure(figure: "Figure", path: str | PathLike[str], dpi: int = 150) -> Path:
    """Write the figure as what its path ends in: `.png`, `.svg` or `.pdf`.

    The picture is drawn in memory first, so a figure that cannot be drawn leaves no file behind.

    Args:
        dpi: pixels an inch, of a PNG.

    Returns:
        The path it was written to.

    Raises:
        ValueError: the path ends in something else.
        OSError: the folder does not exist or cannot be written to.
    """
    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    if kind not in FIGURE_KINDS:
        found = f"ends in {target.suffix!r}" if kind else "has no ending"
        raise ValueError(f"a figure is saved as .png, .svg or .pdf, and {str(target)!r} {found}")
    target.write_bytes(_drawn(figure, kind, dpi))
    return target


def _drawn(figure: "Figure", kind: str, dpi: int) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi)
    return buffer.getvalue()


def trial_colour(trial_id: int) -> str:
    """The colour of a trial, the same in every figure; neighbours differ."""
    return PALETTE[trial_id % len(PALETTE)]


def trial_marker(trial_id: int) -> str:
    """The marker of a trial: changes when the colours have been used up."""
    return MARKERS[trial_id // len(PALETTE) % len(MARKERS)]
