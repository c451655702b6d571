"""The command `fanwise tune plot`, and the figures of the demo."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..base.errors import NotInstalled
from ..plot import SearchData, incumbent, learning_curves, rungs, save_figure, workers
from ..plot.rung_levels import levels_of
from ..tune import Experiment, load_experiment
from .experiments import folder_for_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(names: Sequence[str | Path], out: Path, kind: str = "png") -> list[Path]:
    """Draw one experiment, or compare several, and return the paths of the files.

    Args:
        names: one experiment for all figures, or several for the figures that compare.
        out: folder for the files. It is created if it does not exist.
        kind: png, svg or pdf.

    Raises:
        ValueError: `out` cannot be created or written to.
    """
    experiments = [load_experiment(name) for name in names]
    searches = [experiment.search_data() for experiment in experiments]
    figures = {"incumbent": incumbent(*searches), "workers": workers(*searches)}
    if len(experiments) == 1:
        figures |= _figures_of_one(experiments[0], searches[0])
    folder_for_output(out)
    return [save_figure(figure, out / f"{name}.{kind}") for name, figure in sorted(figures.items())]


def _figures_of_one(experiment: Experiment, search: SearchData) -> "dict[str, Figure]":
    """Return the figures that do not compare, without those that would be empty."""
    figures = {"learning-curves": learning_curves(search)}
    if levels_of(search):
        figures["rungs"] = rungs(search)
    try:
        figures["importance"] = experiment.plot_importances()
    except ValueError:
        pass  # too few trials
    except NotInstalled as error:
        typer.echo(f"not drawn: importance. {error.message}", err=True)
    if len(experiment.metadata["objectives"]) > 1:
        figures["pareto-front"] = experiment.plot_pareto_front()
    return figures
