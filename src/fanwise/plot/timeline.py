"""The worker timeline: the trials of each worker over time.

    worker 0 |//|    0    |//|  2  |//|   4    |
    worker 1 |//|  1  |//|      3        |

A box is a trial in its objective, with the trial's color and, if there is room, its number. Start-up is sand-colored,
with a hatch if there is room. Idle time is gray. Failed trials are cross-hatched. Two bars at the end of a box mark a
paused trial, and a triangle marks where it is resumed.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..base.text import counted
from . import canvas
from .data import SearchData, Timeline, WorkerInterval, worker_timeline
from .incumbents import checked_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_AXES_WIDTH_IN = 8.0  # of a figure without the labels of its value axis
_STARTUP_FACE, _STARTUP_HATCH = "#fbe6c8", "#c2a878"
_DARK_COLORS = frozenset({"#0072b2", "#009e73", "#d55e00"})
_BOX_HEIGHT = 0.8  # share of a row
_MIN_WIDE_IN = 0.05  # a box with room for an edge and a hatch
_MAX_COLORED = 1000  # with more boxes, most are too narrow to tell their colors apart


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
    names = checked_labels(searches, labels)
    timelines = [worker_timeline(search) for search in searches]
    n_rows = [timeline.n_workers for timeline in timelines]
    row_in = max(0.12, min(0.45, 6.0 / sum(n_rows)))
    figure = canvas.new_figure(canvas.WIDTH_IN, sum(n_rows) * row_in + 0.75 * len(searches) + 0.9)
    panels = figure.subplots(len(searches), 1, sharex=True, squeeze=False, height_ratios=n_rows)[:, 0]
    last_s = max(search.last_s for search in searches)
    for axes, search, timeline, name in zip(panels, searches, timelines, names, strict=True):
        draw_rows(axes, search, timeline, row_in, last_s)
        head = f"{canvas.plain(name)}: {counted(len({span.trial_id for span in search.spans}), 'trial')}"
        if search.startup_s is not None:
            head += f"; the first worker was ready after {search.startup_s:.1f} s"
        shares = timeline.utilization_in_words()
        axes.set_title(f"{head}\nworker utilization {shares}" if shares else head, loc="left", fontsize=11)
        if not timeline.intervals:
            canvas.show_empty(axes, "no trial has run" if search.spans else "no trial has started")
    canvas.finish_time_axis(panels[-1], searches)
    canvas.add_legend(figure)
    return figure


def draw_rows(axes: "Axes", search: SearchData, timeline: Timeline, row_in: float, last_s: float) -> None:
    """Draw a row for each worker.

    Args:
        row_in: height of a row, in inches.
        last_s: end of the time axis.
    """
    s_per_in = max(last_s, 1e-9) / _AXES_WIDTH_IN
    all_busy = [interval for interval in timeline.intervals if interval.kind == "busy"]
    is_colored = len(all_busy) <= _MAX_COLORED
    for is_wide in (False, True):  # wide boxes over narrow ones
        boxes = [i for i in timeline.intervals if (i.length_s >= _MIN_WIDE_IN * s_per_in) is is_wide]
        busy = [interval for interval in boxes if interval.kind == "busy"]
        faces = [canvas.trial_color(i.trial_id or 0) for i in busy] if is_colored else canvas.PALETTE[0]
        edge: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.7} if is_wide and is_colored else {}
        hatch: dict[str, Any] = {"edgecolors": _STARTUP_HATCH, "linewidths": 0.3, "hatch": "//////"} if is_wide else {}
        _draw_boxes(axes, busy, "in the objective (trial number)", facecolors=faces, **edge)
        _draw_boxes(axes, [i for i in boxes if i.kind == "start-up"], "start-up", facecolors=_STARTUP_FACE, **hatch)
        _draw_boxes(axes, [i for i in boxes if i.kind == "idle"], "idle", facecolors=canvas.IDLE)
    failed = [interval for interval in busy if interval.status == "Failed"]
    _draw_boxes(axes, failed, "failed", facecolors="none", edgecolors=canvas.INK, hatch="xxxx")
    _number_boxes(axes, busy, row_in, s_per_in)
    _mark_pauses(axes, all_busy, row_in, s_per_in)
    for (_, end_s, _), (begin_s, _, _) in pairwise(search.windows):
        if begin_s > end_s:
            style: dict[str, Any] = {"facecolor": "none", "edgecolor": canvas.IDLE, "hatch": "...", "linewidth": 0.0}
            axes.axvspan(end_s, begin_s, label="search interrupted", zorder=0, **style)
    if search.stop_s is not None:
        axes.axvline(search.stop_s, color=canvas.INK, linewidth=1.0, linestyle="--", label="no new trials")
    axes.set_ylim(timeline.n_workers - 0.45, -0.55)
    axes.set_yticks(range(0, timeline.n_workers, max(1, math.ceil(0.17 / row_in))))
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("worker")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_boxes(axes: "Axes", intervals: Sequence[WorkerInterval], label: str, **style: Any) -> None:
    from matplotlib.collections import PolyCollection

    if not intervals:
        return
    corners = []
    for interval in intervals:
        low, high = interval.slot - _BOX_HEIGHT / 2, interval.slot + _BOX_HEIGHT / 2
        begin_s, end_s = interval.begin_s, interval.end_s
        corners.append([(begin_s, low), (end_s, low), (end_s, high), (begin_s, high)])
    axes.add_collection(PolyCollection(corners, label=label, **{"edgecolors": "none", "linewidths": 0.0, **style}))


def _number_boxes(axes: "Axes", busy: Sequence[WorkerInterval], row_in: float, s_per_in: float) -> None:
    """Write the trial numbers into boxes with room for them."""
    size = min(9.0, 48 * row_in)  # in points
    for interval in busy:
        text = str(interval.trial_id)
        if size < 5.0 or interval.length_s < (len(text) + 0.6) * 0.009 * size * s_per_in:
            continue
        middle_s = (interval.begin_s + interval.end_s) / 2
        color = canvas.trial_color(interval.trial_id or 0)
        ink = "white" if color in _DARK_COLORS else canvas.INK
        style: dict[str, Any] = {"ha": "center", "va": "center", "clip_on": True}
        if interval.status == "Failed":  # a number on a hatched box needs a background
            style["bbox"] = {"facecolor": color, "edgecolor": "none", "pad": 0.6}
        # Outside of the layout, which would measure a thousand numbers again and again.
        axes.text(middle_s, interval.slot, text, fontsize=size, color=ink, in_layout=False, **style)


def _mark_pauses(axes: "Axes", busy: Sequence[WorkerInterval], row_in: float, s_per_in: float) -> None:
    """Mark paused and resumed trials in boxes with room for it."""
    paused_trials: set[int | None] = set()
    offset_s = 0.07 * s_per_in
    marks: dict[str, list[tuple[float, int]]] = {"paused": [], "resumed": []}  # (time, row)
    for interval in sorted(busy, key=lambda i: i.begin_s):
        has_room = interval.length_s > 4 * offset_s
        if interval.trial_id in paused_trials and has_room:
            marks["resumed"].append((interval.begin_s + offset_s, interval.slot))
        paused_trials.discard(interval.trial_id)
        if interval.status == "Paused":
            paused_trials.add(interval.trial_id)
            if has_room:
                marks["paused"].append((interval.end_s - offset_s, interval.slot))
    style: dict[str, Any] = {"color": canvas.INK, "s": min(7.0, 29 * row_in) ** 2, "linewidths": 0.5, "zorder": 3}
    for marker, (label, positions) in zip(("$||$", ">"), marks.items(), strict=True):
        if positions:
            axes.scatter(*zip(*positions, strict=True), marker=marker, label=label, **style)
