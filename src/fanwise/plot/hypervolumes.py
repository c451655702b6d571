"""The hypervolume over time: how much of the space of the objectives the reports of a search dominate together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .axes import clean_axes, say_nothing_yet
from .axis_scales import number, plain, time_unit
from .canvas import PALETTE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINE_STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True, slots=True)
class VolumeData:
    """How the hypervolume of one search grew.

    Args:
        reference_point: name of each objective to the value up to which the volume counts; empty: no report yet.
        steps: seconds since the first worker was ready, and the volume from then on.
        last_s: the time of the last event, likewise.
    """

    name: str
    reference_point: Mapping[str, float]
    steps: Sequence[tuple[float, float]]
    last_s: float


def hypervolume(*searches: VolumeData, labels: Sequence[str] | None = None) -> "Figure":
    """The hypervolume over time, a line for each search; their reference points must be one.

    Args:
        labels: one a search; by default the names of the searches.

    Raises:
        ValueError: no search, another number of labels, or different reference points.

    Example:
        >>> search = VolumeData("demo", {"error": 1.0, "seconds": 9.0}, [(1.0, 0.5), (4.0, 2.0)], 5.0)
        >>> hypervolume(search).axes[0].get_title(loc="left")
        'demo: hypervolume 2 up to error 1, seconds 9'
    """
    if not searches:
        raise ValueError("at least one search is needed to draw a figure, got none")
    if labels is not None and len(labels) != len(searches):
        raise ValueError(f"labels must name each search: got {len(labels)} labels for {len(searches)} searches")
    points = [dict(search.reference_point) for search in searches if search.reference_point]
    if any(point != points[0] for point in points):
        raise ValueError(f"volumes up to different reference points cannot be compared: {points}; give one for all")
    names = list(labels) if labels is not None else [search.name for search in searches]
    figure = new_figure(9.0, 4.8)
    axes = figure.subplots()
    unit = time_unit(max(search.last_s for search in searches))
    for i, (search, name) in enumerate(zip(searches, names, strict=True)):
        if not search.steps:
            continue
        times = [0.0, *(t_s for t_s, _ in search.steps), max(search.last_s, search.steps[-1][0])]
        volumes = [0.0, *(volume for _, volume in search.steps), search.steps[-1][1]]
        style = _LINE_STYLES[i // len(PALETTE) % len(_LINE_STYLES)]
        label = f" {plain(name)}: {number(volumes[-1])}"  # a leading underscore would keep it from the legend
        axes.step(
            [t_s / unit.seconds for t_s in times],
            volumes,
            where="post",
            color=PALETTE[i % len(PALETTE)],
            linestyle=style,
            linewidth=2.2,
            label=label,
        )
    last_s = max(search.last_s for search in searches)
    axes.set_xlim(0.0, 1.04 * last_s / unit.seconds if last_s > 0 else 1.0)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel(f"wall-clock time since the first worker was ready [{unit.name}]")
    axes.set_ylabel("hypervolume")
    clean_axes(axes)
    if not points:
        say_nothing_yet(axes, "no report with finite values yet")
        axes.set_title(plain(names[0]) if len(names) == 1 else "hypervolume", loc="left")
        return figure
    if not any(search.steps for search in searches):
        say_nothing_yet(axes, "no report is better than this in all objectives and meets all constraints")
    limits = ", ".join(f"{plain(metric)} {number(value)}" for metric, value in points[0].items())
    head = f"{plain(names[0])}: hypervolume {number(searches[0].steps[-1][1] if searches[0].steps else 0.0)}"
    axes.set_title(f"{head if len(searches) == 1 else 'hypervolume'} up to {limits}", loc="left")
    if len(searches) > 1:
        axes.legend(loc="lower right")
    return figure
