"""The figure of the hyperparameter importances, with a check of the model behind them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def importance(
    name: str,
    metric: str,
    hyperparameters: Sequence[tuple[str, float, float]],
    predicted: Sequence[float],
    actual: Sequence[float],
    note: str,
) -> "Figure":
    """Draw the importances as bars, and the predicted and actual rank of each trial as dots.

    The model predicts the rank of a trial without having seen the trial.

    Args:
        name, metric: names of the search and of the objective.
        hyperparameters: (name, importance, standard deviation) of each, the most important first.
        predicted, actual: ranks of the trials, from 0 (best) to 1.
        note: number of trials, and quality of the model.

    Example:
        >>> importance("demo", "error", [("lr", 0.5, 0.1)], [0.2, 0.8], [0.0, 1.0], "2 trials").axes[1].get_xlabel()
        'actual rank (0: best)'
    """
    figure = canvas.new_figure(11.0, max(3.6, 1.2 + 0.4 * len(hyperparameters)))
    bars, dots = figure.subplots(1, 2, width_ratios=[3, 2])
    names, means, deviations = zip(*hyperparameters, strict=True)
    positions = list(range(len(names), 0, -1))
    bars.barh(positions, means, xerr=deviations, color=canvas.PALETTE[0], ecolor=canvas.INK, capsize=3)
    bars.set_yticks(positions, [canvas.plain(name, 30) for name in names])
    bars.set_xlabel("how much worse the model predicts without it (share of the spread)")
    head = f"{canvas.plain(name)}: importance for {canvas.plain(metric)}\n{note}"
    figure.suptitle(head, x=0.02, ha="left", fontsize=12)
    dots.plot([0, 1], [0, 1], color=canvas.DOTS, linewidth=1.0)
    size, alpha = (14, 0.7) if len(actual) <= 500 else (5, 0.5)
    dots.scatter(actual, predicted, s=size, color=canvas.PALETTE[0], linewidths=0, alpha=alpha)
    dots.set_xlabel("actual rank (0: best)")
    dots.set_ylabel("predicted rank")
    for axes in (bars, dots):
        canvas.clean_axes(axes)
    return figure
