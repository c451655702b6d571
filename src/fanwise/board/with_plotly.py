"""Finds plotly.js in the package `plotly`. The package is not imported."""

import importlib.util
from pathlib import Path

from ..base.errors import NotInstalled


def plotly_file() -> Path:
    """Return the path of plotly.js. Raises NotInstalled."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(folder) / "package_data" / "plotly.min.js"
        if file.is_file():
            return file
    raise NotInstalled("the board needs plotly. Install it: pip install 'fanwise[board]'.")
