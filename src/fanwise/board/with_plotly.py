"""Where the drawing library of the pages lies: plotly.js, as the package `plotly` brings it. Nothing of that is run."""

import importlib.util
from pathlib import Path

from ..base.errors import NotInstalled


def plotly_file() -> Path:
    """The one file of plotly.js. Raises NotInstalled."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(folder) / "package_data" / "plotly.min.js"
        if file.is_file():
            return file
    raise NotInstalled("the board needs plotly. Install it: pip install 'fanwise[board]'.")
