"""The modules of this package under Syne Tune's own names, for programs that are run unchanged.

    sys.modules["syne_tune.backend"] is fanwise.tune.syne_tune.backend

A program finds them because `unchanged/` is on its path, first; so do its trials, in whatever process they run.
"""

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

from .missing import refuses_names

_OURS = __name__.rpartition(".")[0]
_ITS = "syne_tune"


def install() -> None:
    """Put them into `sys.modules`. What Syne Tune has besides is then an ImportError that names our way."""
    ours = sys.modules[_OURS]
    sys.modules[_ITS] = ours
    for found in pkgutil.walk_packages(ours.__path__, f"{_OURS}."):
        if not found.name.endswith("__main__"):
            sys.modules[_ITS + found.name.removeprefix(_OURS)] = importlib.import_module(found.name)
    if not any(isinstance(finder, _NoMore) for finder in sys.meta_path):
        sys.meta_path.append(_NoMore())


class _NoMore(MetaPathFinder):
    """Asked last, when nobody has a module."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{_ITS}."):
            return None
        _refuse(name)


def _refuse(name: str) -> NoReturn:
    package, _, last = name.rpartition(".")
    refuses_names(package)(last)
