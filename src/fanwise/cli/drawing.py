"""The command `fanwise tune plot`, and the figures of the demo."""

from collections.abc import Sequence
from pathlib import Path

import typer

from ..plot import incumbent, save_figure, workers
from ..tune import load_experiment
from ..tune.plot_data import figures_of, search_data
from ..tune.record.overview import read_search
from .experiments import folder_for_output


def draw(names: Sequence[str | Path], out: Path, kind: str = "png") -> list[Path]:
    """Draw all figures of one experiment, or those that compare several. Return the paths of the files.

    Raises ValueError if the folder `out` cannot be created or written to.
    """
    histories = [read_search(load_experiment(name).path).search for name in names]
    if len(histories) == 1:
        figures, note = figures_of(histories[0])
        if note:
            typer.echo(f"not drawn: importance. {note}", err=True)
    else:
        searches = [search_data(history) for history in histories]
        figures = {"incumbent": incumbent(*searches), "workers": workers(*searches)}
    folder_for_output(out)
    return [save_figure(figure, out / f"{name}.{kind}") for name, figure in sorted(figures.items())]
