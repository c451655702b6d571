"""What is installed: optional libraries, and the extras of this package that bring them.

    check_installed("fanwise.rpc needs", "torch", extra="rpc")    NotInstalled, with the line for pip, or nothing

Looks for a library without loading it, so that it may be asked before anything starts.
"""

import importlib.util
import sys

from .errors import NotInstalled

_SHOWN = {"sklearn": "scikit-learn", "optuna": "Optuna"}


def is_installed(library: str) -> bool:
    """Whether there is a library of this import name."""
    return sys.modules.get(library) is not None or importlib.util.find_spec(library) is not None


def check_installed(what: str, *libraries: str, extra: str) -> None:
    """Raise `NotInstalled` unless all libraries are there.

    Args:
        what: that needs them, and the verb, as in "the board needs".
        libraries: the names of their imports.
        extra: that brings them all.
    """
    missing = [_SHOWN.get(library, library) for library in libraries if not is_installed(library)]
    if missing:
        raise NotInstalled(f"{what} {' and '.join(missing)}. Install it: pip install 'fanwise[{extra}]'.")
