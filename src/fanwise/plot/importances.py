"""The figure of the hyperparameter importances, with a check of the model behind them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .canvas import DOTS, INK, PALETTE, clean_axes, new_figure
from .scales import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MIN_CORRELATION = 0.3  # the model then explains a tenth of the variance of the ranks


def importance(
    name: str,
    metric: str,
    hyperparameters: Sequence[tuple[str, float, float]],
    predicted: Sequence[float],
    observed: Sequence[float],
    correlation: float,
) -> "Figure":
    """Draw the importances as bars, and the predicted and observed rank of each trial as dots.

    The model predicts the rank of a trial without having seen the trial.

    Args:
        name: name of the search.
        metric: name of the metric.
        hyperparameters: (name, importance, standard deviation) of each, the most important first.
        predicted, observed: predicted and observed ranks of the trials, from 0 (best) to 1.
        correlation: correlation of the ranks.

    Example:
        >>> importance("demo", "error", [("lr", 0.5, 0.1)], [0.2, 0.8], [0.0, 1.0], 1.0).axes[1].get_xlabel()
        'observed rank (0: best)'
    """
    figure = new_figure(11.0, max(3.6, 1.2 + 0.4 * len(hyperparameters)))
    bars, dots = figure.subplots(1, 2, width_ratios=[3, 2])
    names, means, deviations = zip(*hyperparameters, strict=True)
    positions = list(range(len(names), 0, -1))
    bars.barh(positions, means, xerr=deviations, color=PALETTE[0], ecolor=INK, capsize=3)
    bars.set_yticks(positions, [plain(name, 30) for name in names])
    bars.set_xlabel("how much worse the model predicts without it (share of the spread)")
    head = f"{plain(name)}: importance for {plain(metric)}\nmodel: {correlation_in_words(correlation)}"
    figure.suptitle(head, x=0.02, ha="left", fontsize=12)
    dots.plot([0, 1], [0, 1], color=DOTS, linewidth=1.0)
    dots.scatter(observed, predicted, s=14, color=PALETTE[0], linewidths=0, alpha=0.7)
    dots.set_xlabel("observed rank (0: best)")
    dots.set_ylabel("predicted rank")
    for axes in (bars, dots):
        clean_axes(axes)
    return figure


def correlation_in_words(correlation: float) -> str:
    """Return the correlation, and whether it is too low for the importances to mean anything.

    >>> correlation_in_words(0.9), correlation_in_words(0.1)
    ('correlation 0.90', 'correlation 0.10, too low to say anything')
    """
    return f"correlation {correlation:.2f}" + ("" if correlation >= _MIN_CORRELATION else ", too low to say anything")
