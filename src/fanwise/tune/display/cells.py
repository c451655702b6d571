"""Remembers the experiments displayed by the running notebook cell, so that its last line does not repeat them.

Detects IPython among the loaded modules and imports nothing.
"""

import sys
from pathlib import Path

# Experiment folder -> number of the cell that last displayed its search.
_shown_in: dict[Path, int] = {}


def _cell() -> int | None:
    """Return the number of the running cell, or None outside a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "execution_count", None) if hasattr(shell, "kernel") else None


def note_shown(path: Path) -> None:
    """Note that the running cell displays this experiment."""
    cell = _cell()
    if cell is not None:
        _shown_in[path] = cell


def is_shown(path: Path) -> bool:
    """Return True if the running cell has displayed this experiment."""
    cell = _cell()
    return cell is not None and _shown_in.get(path) == cell
