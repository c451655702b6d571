"""Partial dependence: what a model predicts at each value of a hyperparameter, and how much it varies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .axes import clean_axes
from .axis_scales import number, plain
from .canvas import INK, MUTED, PALETTE, new_figure
from .data import Hyperparameter
from .importances import correlation_in_words
from .landscapes import place_of, tick_texts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class DependenceData:
    """What is drawn for one hyperparameter.

    Args:
        axis: its ticks, and where trials lie.
        places: where on the axis a rank is predicted.
        means, lows, highs: the predicted rank there, 0 the best and 1 the worst; the mean of trials, and the limits of
            their middle 80 %.
    """

    axis: Hyperparameter
    places: Sequence[float]
    means: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]


def partial_dependence(
    name: str,
    metric: str,
    hyperparameters: Sequence[DependenceData],
    quarters: Sequence[float],
    correlation: float,
) -> "Figure":
    """A panel for each hyperparameter: the predicted rank, its spread, and below where trials were.

    Args:
        name: of the search.
        metric: whose ranks these are.
        quarters: the metric's values at the ranks 0, 0.25, 0.5, 0.75 and 1, written beside each full row.
        correlation: of ranks predicted and seen, for trials that the model did not know.

    Example:
        >>> axis = Hyperparameter("lr", [(0.0, "0.1"), (1.0, "1")], {0: 0.2}, is_discrete=False)
        >>> lr = DependenceData(axis, [0.0, 1.0], [0.2, 0.7], [0.1, 0.6], [0.3, 0.8])
        >>> figure = partial_dependence("demo", "error", [lr], [0.1, 0.2, 0.3, 0.4, 0.5], 0.9)
        >>> figure.get_suptitle()
        'demo: partial dependence of error\\nmodel: correlation 0.90'
    """
    n_panels = len(hyperparameters)
    n_columns = min(3, n_panels)
    n_rows = -(-n_panels // n_columns)
    figure = new_figure(9.0 if n_columns < 3 else 12.0, 1.0 + 3.0 * n_rows)
    panels = list(figure.subplots(n_rows, n_columns, squeeze=False, sharey=True).flat)
    head = f"{plain(name)}: partial dependence of {plain(metric)}\nmodel: {correlation_in_words(correlation)}"
    figure.suptitle(head, x=0.02, ha="left", fontsize=12)
    for axes in panels[n_panels:]:
        axes.remove()
    for i, (axes, data) in enumerate(zip(panels, hyperparameters, strict=False)):
        axes.set_ylim(-0.06, 1.02)
        clean_axes(axes)
        _draw(axes, data)
        if i % n_columns == 0:
            axes.set_ylabel("predicted rank (0: the best)")
        if i % n_columns == n_columns - 1:
            _write_values(axes, metric, quarters)
    text = "line: the mean of the trials; band: their middle 80 %; below: where trials were"
    figure.supxlabel(text, fontsize=8, color=MUTED)
    return figure


def _draw(axes: "Axes", data: DependenceData) -> None:
    axes.set_xlabel(plain(data.axis.name))
    axes.set_xticks(*tick_texts(data.axis))
    axes.set_xlim(-0.03, 1.03)
    if data.axis.is_discrete:
        below = [mean - low for mean, low in zip(data.means, data.lows, strict=True)]
        above = [high - mean for mean, high in zip(data.means, data.highs, strict=True)]
        # A mean may lie outside of the middle 80 %.
        spread = [[max(0.0, each) for each in below], [max(0.0, each) for each in above]]
        axes.errorbar(data.places, data.means, yerr=spread, fmt="o", color=PALETTE[0], ecolor="#9ec9e2", elinewidth=6)
    else:
        axes.fill_between(data.places, data.lows, data.highs, color=PALETTE[0], alpha=0.2, linewidth=0)
        axes.plot(data.places, data.means, color=PALETTE[0], linewidth=2.0)
    seen = [place_of(data.axis, trial_id) for trial_id in data.axis.places]
    axes.plot(seen, [-0.03] * len(seen), "|", color=INK, markersize=6, alpha=0.35, markeredgewidth=0.8)


def _write_values(axes: "Axes", metric: str, quarters: Sequence[float]) -> None:
    """What the ranks stand for."""
    right = axes.secondary_yaxis("right")
    right.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0], [number(value) for value in quarters], fontsize=8)
    right.set_ylabel(f"{plain(metric)} of that rank", fontsize=9)
    right.spines["right"].set_visible(False)
