"""Which hyperparameters matter, with their spread, and beside it whether the model behind that is any good."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .axes import clean_axes
from .axis_scales import plain
from .canvas import INK, PALETTE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOW = 0.3  # of what varies in the ranks not a tenth is explained


def importance(
    name: str,
    metric: str,
    hyperparameters: Sequence[tuple[str, float, float]],
    predicted: Sequence[float],
    seen: Sequence[float],
    correlation: float,
) -> "Figure":
    """Bars of the importances, and a dot a trial: its rank as predicted without it, against its rank as seen.

    Args:
        name: of the search.
        metric: for which they matter.
        hyperparameters: name, importance and standard deviation, the most important one first.
        predicted, seen: ranks of trials, 0 to 1, 0 the best.
        correlation: of the two.

    Example:
        >>> importance("demo", "error", [("lr", 0.5, 0.1)], [0.2, 0.8], [0.0, 1.0], 1.0).axes[1].get_xlabel()
        'rank as seen (0: the best)'
    """
    figure = new_figure(11.0, max(3.6, 1.2 + 0.4 * len(hyperparameters)))
    bars, dots = figure.subplots(1, 2, width_ratios=[3, 2])
    names = [plain(each[0], 30) for each in hyperparameters]
    places = list(range(len(names), 0, -1))
    bars.barh(
        places,
        [each[1] for each in hyperparameters],
        xerr=[each[2] for each in hyperparameters],
        color=PALETTE[0],
        ecolor=INK,
        capsize=3,
    )
    bars.set_yticks(places, names)
    bars.set_xlabel("how much worse the model predicts without it (share of the spread)")
    # On lines of their own: beside each other, or behind a long name, they would run into each other.
    head = f"{plain(name)}: importance for {plain(metric)}\nmodel: {correlation_in_words(correlation)}"
    figure.suptitle(head, x=0.02, ha="left", fontsize=12)
    dots.plot([0, 1], [0, 1], color="#bdbdbd", linewidth=1.0)
    dots.scatter(seen, predicted, s=14, color=PALETTE[0], linewidths=0, alpha=0.7)
    dots.set_xlabel("rank as seen (0: the best)")
    dots.set_ylabel("rank as predicted")
    for axes in (bars, dots):
        clean_axes(axes)
    return figure


def correlation_in_words(correlation: float) -> str:
    """How far to trust the model behind a picture.

    >>> correlation_in_words(0.9), correlation_in_words(0.1)
    ('correlation 0.90', 'correlation 0.10, too low to say anything')
    """
    return f"correlation {correlation:.2f}" + ("" if correlation >= _LOW else ", too low to say anything")
