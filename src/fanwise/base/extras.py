"""Checks for optional libraries, without importing them."""

import importlib.util
import sys

from .errors import NotInstalled

_DISPLAY_NAMES = {"sklearn": "scikit-learn", "optuna": "Optuna"}


def is_installed(library: str) -> bool:
    """Return True if there is a library with this import name."""
    return sys.modules.get(library) is not None or importlib.util.find_spec(library) is not None


def check_installed(purpose: str, *libraries: str, extra: str) -> None:
    """Raise `NotInstalled` unless all libraries are installed.

    Args:
        purpose: subject and verb of the message, such as "the board needs".
        libraries: import names.
        extra: the extra of fanwise that installs all of them.
    """
    missing = [_DISPLAY_NAMES.get(library, library) for library in libraries if not is_installed(library)]
    if missing:
        raise NotInstalled(f"{purpose} {' and '.join(missing)}. Install it: pip install 'fanwise[{extra}]'.")
