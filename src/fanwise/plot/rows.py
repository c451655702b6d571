"""Workers as rows, trials as boxes: the drawing that `workers` and the strip below the learning curves share.

    worker 0 |//|    0    |//|  2  |//|   4    |
    worker 1 |//|  1  |//|      3        |     <- idle in grey

A box has the colour of its trial and, where it fits, its number. Start-up is sand and, where it is wide, hatched; idle
time is grey, a failed trial cross-hatched. Two bars at the end of a box: the trial paused; a triangle at the beginning
of another one: it was taken up again there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .axis_scales import TimeUnit
from .canvas import IDLE, INK, MUTED, trial_colour
from .data import SearchData, Timeline, WorkerInterval

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# Neither a grey, like idle time, nor the colour of a trial; the hatch is for boxes with room for it.
_STARTUP_FACE, _STARTUP_HATCH = "#fbe6c8", "#c2a878"
_BOX_HEIGHT = 0.8  # of a row
_CHAR_WIDTH, _CHAR_HEIGHT = 0.65, 1.2  # of the font size
_POINTS_PER_INCH = 72.0
_DARK_COLOURS = frozenset({"#0072b2", "#009e73", "#d55e00"})


@dataclass(frozen=True, slots=True)
class RowScale:
    """How large things come out: inches of one second and of one row. Decides what fits; need not be exact."""

    inches_per_s: float
    row_in: float

    def font_size(self) -> float:
        """Points of the largest number that fits a box of one row, at most 9."""
        return min(9.0, self.row_in * _BOX_HEIGHT / _CHAR_HEIGHT * _POINTS_PER_INCH)

    def is_wide(self, width_s: float) -> bool:
        """Whether a box of that many seconds has room for an edge and a hatch; without it shows only a colour."""
        return width_s * self.inches_per_s >= 0.05

    def fits(self, text: str, width_s: float) -> bool:
        """Whether the text fits a box that lasts `width_s`."""
        size = self.font_size()
        return size >= 5.0 and (len(text) + 0.6) * _CHAR_WIDTH * size / _POINTS_PER_INCH <= width_s * self.inches_per_s


def draw_rows(axes: "Axes", search: SearchData, timeline: Timeline, *, unit: TimeUnit, scale: RowScale) -> bool:
    """Draw a row for each worker, worker 0 on top, and a dashed line where the search stopped starting trials.

    Returns:
        Whether pauses are marked.
    """
    rows: dict[int, list[WorkerInterval]] = {slot: [] for slot in range(timeline.n_workers)}
    for interval in timeline.intervals:
        rows.setdefault(interval.slot, []).append(interval)
    n_rows = max(rows) + 1
    for slot, row in rows.items():
        wide = [i for i in row if scale.is_wide(i.end_s - i.begin_s)]
        for edged, boxes in ((False, [i for i in row if not scale.is_wide(i.end_s - i.begin_s)]), (True, wide)):
            _draw_boxes(axes, slot, [i for i in boxes if i.kind == "idle"], unit, _look(IDLE))
            startup = _look(_STARTUP_FACE, _STARTUP_HATCH, "//////", 0.3) if edged else _look(_STARTUP_FACE)
            _draw_boxes(axes, slot, [i for i in boxes if i.kind == "start-up"], unit, startup)
            busy = [i for i in boxes if i.kind == "busy"]
            colours = [_colour(i) for i in busy]
            _draw_boxes(axes, slot, busy, unit, _look(colours, "white", width=0.7) if edged else _look(colours))
        busy = [i for i in wide if i.kind == "busy"]
        _draw_boxes(axes, slot, [i for i in busy if i.status == "Failed"], unit, _look("none", INK, "xxxx"))
        _number_boxes(axes, slot, busy, unit, scale)
    marked = _mark_pauses(axes, timeline, unit, scale)
    if search.stop_s is not None:
        axes.axvline(search.stop_s / unit.seconds, color=INK, linewidth=1.0, linestyle="--")
    axes.set_ylim(n_rows - 0.45, -0.55)
    step = max(1, -(-int(1000 * 0.17) // max(1, int(1000 * scale.row_in))))
    axes.set_yticks(range(0, n_rows, step))
    axes.tick_params(axis="y", length=0)
    return marked


def _mark_pauses(axes: "Axes", timeline: Timeline, unit: TimeUnit, scale: RowScale) -> bool:
    """Bars where a trial paused, a triangle where it went on, in boxes that have room for both and for the number.

    Returns:
        Whether any box had.
    """
    if not scale.inches_per_s:
        return False
    size = min(7.0, scale.row_in * _BOX_HEIGHT * 0.5 * _POINTS_PER_INCH)  # points
    room_s = size / _POINTS_PER_INCH / scale.inches_per_s
    paused: set[int] = set()
    marks: dict[tuple[str, str], list[tuple[float, int]]] = {}  # by marker and colour
    for interval in sorted(timeline.intervals, key=lambda i: i.begin_s):
        if interval.kind != "busy" or interval.trial_id is None:
            continue
        colour = "white" if _colour(interval) in _DARK_COLOURS else INK
        has_room = interval.end_s - interval.begin_s > 4 * room_s
        if interval.trial_id in paused:
            paused.remove(interval.trial_id)
            if has_room:
                marks.setdefault((">", colour), []).append((interval.begin_s + 0.8 * room_s, interval.slot))
        if interval.status == "Paused":
            paused.add(interval.trial_id)
            if has_room:
                for offset in (0.5, 1.0):
                    marks.setdefault(("|", colour), []).append((interval.end_s - offset * room_s, interval.slot))
    for (marker, colour), places in marks.items():
        times = [t_s / unit.seconds for t_s, _ in places]
        axes.plot(times, [slot for _, slot in places], marker, color=colour, markersize=size, markeredgewidth=1.3)
    return bool(marks)


def legend_handles(timelines: Iterable[Timeline], *, stopped: bool, marked: bool) -> "list[Artist]":
    """What the kinds of boxes and marks mean; only those that occur."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.path import Path

    intervals = [interval for timeline in timelines for interval in timeline.intervals]
    handles: list[Artist] = [Patch(facecolor=trial_colour(0), label="in the objective (trial number)")]
    if any(interval.kind == "start-up" for interval in intervals):
        handles.append(Patch(facecolor=_STARTUP_FACE, edgecolor=_STARTUP_HATCH, hatch="//////", label="start-up"))
    if any(interval.status == "Failed" for interval in intervals):
        handles.append(Patch(facecolor="white", edgecolor=INK, hatch="xxxx", label="failed"))
    handles.append(Patch(facecolor=IDLE, label="idle"))
    if marked:
        two_bars = Path([(-0.3, -0.5), (-0.3, 0.5), (0.3, -0.5), (0.3, 0.5)], [Path.MOVETO, Path.LINETO] * 2)
        for marker, label in ((two_bars, "paused"), (">", "taken up again")):
            handles.append(Line2D([], [], color=INK, marker=marker, markersize=7, linestyle="none", label=label))
    if stopped:
        handles.append(Line2D([], [], color=INK, linewidth=1.0, linestyle="--", label="no new trials"))
    return handles


def _colour(interval: WorkerInterval) -> str:
    return MUTED if interval.trial_id is None else trial_colour(interval.trial_id)


def _look(face: str | list[str], edge: str = "none", hatch: str | None = None, width: float = 0.0) -> dict[str, object]:
    return {"facecolors": face, "edgecolors": edge, "hatch": hatch, "linewidth": width}


def _draw_boxes(
    axes: "Axes", slot: int, row: Sequence[WorkerInterval], unit: TimeUnit, style: dict[str, object]
) -> None:
    if row:
        ranges = [(i.begin_s / unit.seconds, (i.end_s - i.begin_s) / unit.seconds) for i in row]
        # The style is a plain dict of artist properties; the stubs of matplotlib want one keyword each.
        axes.broken_barh(ranges, (slot - _BOX_HEIGHT / 2, _BOX_HEIGHT), **style)  # type: ignore[arg-type]


def _number_boxes(axes: "Axes", slot: int, busy: Iterable[WorkerInterval], unit: TimeUnit, scale: RowScale) -> None:
    for interval in busy:
        text = str(interval.trial_id)
        ground = {"facecolor": _colour(interval), "edgecolor": "none", "pad": 0.6}
        if scale.fits(text, interval.end_s - interval.begin_s):
            axes.text(
                (interval.begin_s + interval.end_s) / 2 / unit.seconds,
                slot,
                text,
                ha="center",
                va="center",
                fontsize=scale.font_size(),
                color="white" if _colour(interval) in _DARK_COLOURS else INK,
                # Without a ground of its own the number would be lost in the hatching.
                bbox=ground if interval.status == "Failed" else None,
                clip_on=True,
                in_layout=False,  # a thousand numbers would be measured again and again
            )
