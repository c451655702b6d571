"""The worker timeline: the trials of each worker over time.

    worker 0 |//|    0    |//|  2  |//|   4    |
    worker 1 |//|  1  |//|      3        |

A box is a trial in its objective, with the trial's color and, if there is room, its number. Start-up is sand-colored,
with a hatch if there is room. Idle time is gray. Failed trials are cross-hatched. Two bars at the end of a box mark a
paused trial, and a triangle marks where it is resumed.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..base.text import counted
from .canvas import IDLE, INK, MUTED, WIDTH_IN, finish_time_axis, hide_lines, new_figure, show_empty, trial_color
from .data import SearchData, from_first_objective
from .incumbents import checked_labels
from .scales import TimeUnit, plain, time_unit
from .worker_intervals import Timeline, WorkerInterval, worker_timeline

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_AXES_WIDTH_IN = 8.0  # of a figure without the labels of its value axis
_STARTUP_FACE, _STARTUP_HATCH = "#fbe6c8", "#c2a878"
_DARK_COLORS = frozenset({"#0072b2", "#009e73", "#d55e00"})
_BOX_HEIGHT = 0.8  # share of a row
_CHAR_WIDTH, _CHAR_HEIGHT = 0.65, 1.2  # in units of the font size
_POINTS_PER_IN = 72.0


def workers(*searches: SearchData, labels: Sequence[str] | None = None) -> "Figure":
    """Draw the worker timeline: a row for each worker, and a box for each stay of a trial.

    Several searches, such as a synchronous and an asynchronous one, get a panel each on one time axis. Titles contain
    the shares of the workers' time that were spent in objectives (the utilization), on start-up, and idle. A dashed
    line marks the time after which no trial was started. Later times are not counted.

    Args:
        searches: at least one.
        labels: one per search, by default the names of the searches.

    Raises:
        ValueError: there is no search, or the number of labels is wrong.
    """
    default = [f"{s.name}, {'asynchronous' if s.asynchronous else 'synchronous'}" for s in searches]
    names = checked_labels(searches, labels, default)
    startups_s = [search.first_objective_s for search in searches]
    searches = tuple(map(from_first_objective, searches))
    timelines = [worker_timeline(search) for search in searches]
    n_rows = [timeline.n_workers for timeline in timelines]
    row_in = max(0.12, min(0.45, 6.0 / sum(n_rows)))
    figure = new_figure(WIDTH_IN, sum(n_rows) * row_in + 0.75 * len(searches) + 0.9)
    panels = figure.subplots(len(searches), 1, sharex=True, squeeze=False, height_ratios=n_rows)[:, 0]
    unit = time_unit(max(search.last_s for search in searches))
    has_marks = False
    for axes, search, timeline, name, startup_s in zip(panels, searches, timelines, names, startups_s, strict=True):
        has_marks |= draw_rows(axes, search, timeline, unit=unit, scale=row_scale(searches, row_in))
        head = f"{plain(name)}: {counted(len({span.trial_id for span in search.spans}), 'trial')}"
        if startup_s is not None:
            head += f"; the first worker was ready after {startup_s:.1f} s"
        shares = timeline.utilization_in_words()
        axes.set_title(f"{head}\nworker utilization {shares}" if shares else head, loc="left", fontsize=11)
        axes.set_ylabel("worker")
        hide_lines(axes, "top", "right", "left")
        if not search.spans:
            show_empty(axes, "no trial has started yet")
    finish_time_axis(panels[-1], searches, unit)
    has_stopped = any(search.stop_s is not None for search in searches)
    handles = _legend_handles(timelines, has_stopped=has_stopped, has_marks=has_marks)
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


@dataclass(frozen=True, slots=True)
class RowScale:
    """Approximate size of one second and of one row in inches, to decide what fits into a box."""

    in_per_s: float
    row_in: float

    @property
    def font_size(self) -> float:
        """Size in points of a number that fits into the height of a box, at most 9."""
        return min(9.0, self.row_in * _BOX_HEIGHT / _CHAR_HEIGHT * _POINTS_PER_IN)

    def is_wide(self, interval: WorkerInterval) -> bool:
        """Return True if a box has room for an edge and a hatch."""
        return interval.length_s * self.in_per_s >= 0.05

    def fits(self, text: str, length_s: float) -> bool:
        """Return True if a text fits into a box."""
        width_in = (len(text) + 0.6) * _CHAR_WIDTH * self.font_size / _POINTS_PER_IN
        return self.font_size >= 5.0 and width_in <= length_s * self.in_per_s


def row_scale(searches: Sequence[SearchData], row_in: float) -> RowScale:
    """Return the scale of a figure with these searches."""
    longest_s = max(search.last_s for search in searches)
    return RowScale(_AXES_WIDTH_IN / longest_s if longest_s > 0 else 0.0, row_in)


def draw_rows(axes: "Axes", search: SearchData, timeline: Timeline, *, unit: TimeUnit, scale: RowScale) -> bool:
    """Draw a row for each worker. Return whether a paused or resumed trial is marked."""
    for slot in range(timeline.n_workers):
        row = [interval for interval in timeline.intervals if interval.slot == slot]
        for is_wide in (False, True):  # wide boxes over narrow ones
            boxes = [interval for interval in row if scale.is_wide(interval) is is_wide]
            startup_edge = {"edgecolors": _STARTUP_HATCH, "hatch": "//////", "linewidth": 0.3} if is_wide else {}
            busy_edge = {"edgecolors": "white", "linewidth": 0.7} if is_wide else {}
            busy = [interval for interval in boxes if interval.kind == "busy"]
            _draw_boxes(axes, slot, [i for i in boxes if i.kind == "idle"], unit, IDLE)
            _draw_boxes(axes, slot, [i for i in boxes if i.kind == "start-up"], unit, _STARTUP_FACE, **startup_edge)
            _draw_boxes(axes, slot, busy, unit, [_color(interval) for interval in busy], **busy_edge)
            if is_wide:
                failed = [interval for interval in busy if interval.status == "Failed"]
                _draw_boxes(axes, slot, failed, unit, "none", edgecolors=INK, hatch="xxxx")
                _number_boxes(axes, busy, unit, scale)
    if search.stop_s is not None:
        axes.axvline(search.stop_s / unit.seconds, color=INK, linewidth=1.0, linestyle="--")
    axes.set_ylim(timeline.n_workers - 0.45, -0.55)
    axes.set_yticks(range(0, timeline.n_workers, max(1, math.ceil(0.17 / scale.row_in))))
    axes.tick_params(axis="y", length=0)
    return _mark_pauses(axes, timeline, unit, scale)


def _draw_boxes(
    axes: "Axes",
    slot: int,
    row: Sequence[WorkerInterval],
    unit: TimeUnit,
    faces: str | list[str],
    **style: Any,
) -> None:
    if row:
        ranges = [(i.begin_s / unit.seconds, i.length_s / unit.seconds) for i in row]
        style = {"edgecolors": "none", "linewidth": 0.0, **style}
        axes.broken_barh(ranges, (slot - _BOX_HEIGHT / 2, _BOX_HEIGHT), facecolors=faces, **style)


def _number_boxes(axes: "Axes", busy: Iterable[WorkerInterval], unit: TimeUnit, scale: RowScale) -> None:
    for interval in busy:
        text = str(interval.trial_id)
        if not scale.fits(text, interval.length_s):
            continue
        # A number on a hatched box needs a background.
        background = {"facecolor": _color(interval), "edgecolor": "none", "pad": 0.6}
        axes.text(
            (interval.begin_s + interval.end_s) / 2 / unit.seconds,
            interval.slot,
            text,
            ha="center",
            va="center",
            fontsize=scale.font_size,
            color=_ink_on(interval),
            bbox=background if interval.status == "Failed" else None,
            clip_on=True,
            in_layout=False,  # otherwise a thousand numbers are measured again and again
        )


def _mark_pauses(axes: "Axes", timeline: Timeline, unit: TimeUnit, scale: RowScale) -> bool:
    """Mark paused and resumed trials in boxes with room for it. Return whether there are any marks."""
    if not scale.in_per_s:
        return False
    size = min(7.0, scale.row_in * _BOX_HEIGHT * 0.5 * _POINTS_PER_IN)  # in points
    size_s = size / _POINTS_PER_IN / scale.in_per_s
    paused: set[int] = set()
    marks: dict[tuple[str, str], list[tuple[float, int]]] = {}  # (marker, color) -> [(time, row), ...]
    for interval in sorted(timeline.intervals, key=lambda i: i.begin_s):
        if interval.kind != "busy" or interval.trial_id is None:
            continue
        color, slot = _ink_on(interval), interval.slot
        has_room = interval.length_s > 4 * size_s
        if interval.trial_id in paused:
            paused.remove(interval.trial_id)
            if has_room:
                marks.setdefault((">", color), []).append((interval.begin_s + 0.8 * size_s, slot))
        if interval.status == "Paused":
            paused.add(interval.trial_id)
            if has_room:
                bars = [(interval.end_s - offset * size_s, slot) for offset in (0.5, 1.0)]
                marks.setdefault(("|", color), []).extend(bars)
    for (marker, color), positions in marks.items():
        times = [t_s / unit.seconds for t_s, _ in positions]
        axes.plot(times, [slot for _, slot in positions], marker, color=color, markersize=size, markeredgewidth=1.3)
    return bool(marks)


def _legend_handles(timelines: Iterable[Timeline], *, has_stopped: bool, has_marks: bool) -> "list[Artist]":
    """Return the entries of the legend for what occurs in the figure."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.path import Path

    intervals = [interval for timeline in timelines for interval in timeline.intervals]
    handles: list[Artist] = [Patch(facecolor=trial_color(0), label="in the objective (trial number)")]
    if any(interval.kind == "start-up" for interval in intervals):
        handles.append(Patch(facecolor=_STARTUP_FACE, edgecolor=_STARTUP_HATCH, hatch="//////", label="start-up"))
    if any(interval.status == "Failed" for interval in intervals):
        handles.append(Patch(facecolor="white", edgecolor=INK, hatch="xxxx", label="failed"))
    handles.append(Patch(facecolor=IDLE, label="idle"))
    if has_marks:
        two_bars = Path([(-0.3, -0.5), (-0.3, 0.5), (0.3, -0.5), (0.3, 0.5)], [Path.MOVETO, Path.LINETO] * 2)
        for marker, label in ((two_bars, "paused"), (">", "resumed")):
            handles.append(Line2D([], [], color=INK, marker=marker, markersize=7, linestyle="none", label=label))
    if has_stopped:
        handles.append(Line2D([], [], color=INK, linewidth=1.0, linestyle="--", label="no new trials"))
    return handles


def _color(interval: WorkerInterval) -> str:
    return MUTED if interval.trial_id is None else trial_color(interval.trial_id)


def _ink_on(interval: WorkerInterval) -> str:
    """Return the color of text on a box."""
    return "white" if _color(interval) in _DARK_COLORS else INK
