"""Which experiments the running cell of a notebook shows already, so that its last line does not show them again.

Knows IPython by what is loaded, and loads nothing.
"""

import sys
from pathlib import Path

# The number of the cell in which a search was last shown to its end, by the experiment's folder.
_shown_in: dict[Path, int] = {}


def _cell() -> int | None:
    """The number of the cell that runs; None outside a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "execution_count", None) if hasattr(shell, "kernel") else None


def note_shown(path: Path) -> None:
    """The cell that runs shows this experiment."""
    cell = _cell()
    if cell is not None:
        _shown_in[path] = cell


def is_shown(path: Path) -> bool:
    """Whether the cell that runs shows it already."""
    cell = _cell()
    return cell is not None and _shown_in.get(path) == cell
