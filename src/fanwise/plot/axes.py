"""What all figures do to their axes: limits, labels, grid, and the sentences for what is not drawn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .axis_scales import TimeUnit, ValueScale, number, plain
from .canvas import MUTED
from .data import SearchData, best_point, n_infeasible, n_not_finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The time axis ends a little after the last event: a marker is as wide as that, and often the best report is the last.
TIME_ROOM = 1.04


def title(search: SearchData) -> str:
    """The name of the search and its best value, as soon as there is one."""
    best = best_point(search)
    if best is None:
        none = ": no report meets all constraints" if n_infeasible(search) else ""
        return plain(search.name) + none
    return f"{plain(search.name)}: best {plain(search.metric)} {number(best.value)} (trial {best.trial_id})"


def clean_axes(axes: "Axes") -> None:
    """Only the two axis lines that carry numbers, and a light grid behind the data."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(True, color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def finish_time_axis(axes: "Axes", searches: Sequence[SearchData], unit: TimeUnit) -> None:
    """From zero to the last event of the longest search, and some room for what is marked there.

    Zero is when the first worker was ready, for searches that come from `from_first_ready` and have got so far.
    """
    last_s = max(search.last_s for search in searches)
    axes.set_xlim(0.0, TIME_ROOM * last_s / unit.seconds if last_s > 0 else 1.0)
    since = " since the first worker was ready" if any(s.first_objective_s is not None for s in searches) else ""
    axes.set_xlabel(f"wall-clock time{since} [{unit.name}]")


def use_scale(axes: "Axes", scale: ValueScale) -> None:
    """Set the limits of the value axis."""
    if scale.log:
        axes.set_yscale("log")
    axes.set_ylim(scale.low, scale.high)


def say_nothing_yet(axes: "Axes", text: str) -> None:
    """A sentence in the middle of empty axes."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED)


def note_what_is_hidden(axes: "Axes", search: SearchData, scale: ValueScale) -> None:
    """Say which reports the axes do not show, or that there are none."""
    n_lost = n_not_finite(search)
    if n_lost == len(search.reports):
        say_nothing_yet(axes, f"no finite value in {n_lost} reports" if n_lost else "no report yet")
        return
    beyond = f"{scale.n_beyond} {'above' if search.mode == 'min' else 'below'} this axis" if scale.n_beyond else ""
    parts = [part for part in (beyond, f"{n_lost} not finite" if n_lost else "") if part]
    if parts:
        text = f"reports not shown: {', '.join(parts)}"
        axes.text(1.0, 1.005, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color=MUTED)
