"""The objective that is named on the command line, in one of two forms.

    train.py:train            a single file, run under a name that cannot be imported; its functions are sent by value
    package.train:train       a module in the working folder, or an installed one, as with `python -m`

Functions of modules keep their module, so relative imports work, and the workers import the module, too. The main block
of a file is never run. Errors while the file is loaded are raised as ValueError with their line.
"""

import importlib
import importlib.util
import os
import pkgutil
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..base.nearest import did_you_mean, nearest
from .console import UsageError

# Module name of a single file.
_RUN_NAME = "fanwise_objective_file"


def split_target(target: str) -> tuple[str, str]:
    """Split FILE:FUNCTION or MODULE:FUNCTION. Loads nothing.

    Raises:
        UsageError: the target has another form, or the file does not exist.
    """
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(
            f"the objective must be FILE:FUNCTION, e.g. train.py:train, or MODULE:FUNCTION, e.g. package.train:train, "
            f"got {target!r}"
        )
    if (place.endswith(".py") or os.sep in place) and not Path(place).is_file():
        raise UsageError(f"there is no file {place!r} (from {target!r})")
    return place, name


def load_function(target: str) -> Callable[..., Any]:  # Any: the user's function
    """Load the function of FILE:FUNCTION or MODULE:FUNCTION.

    Raises:
        UsageError: the target is invalid, or the file, module or function does not exist.
        ValueError: the file or module raises an error when it is loaded.
    """
    place, name = split_target(target)
    module_name, names = _load(place)
    function = names.get(name)
    if callable(function):
        return function  # type: ignore[no-any-return]  # callable was just checked
    functions = [
        key for key, value in names.items() if callable(value) and getattr(value, "__module__", "") == module_name
    ]
    near = nearest(name, functions)
    hint = f"; did you mean {near!r}?" if near else "."
    raise UsageError(
        f"{place} has no function {name!r}{hint} Its functions: {', '.join(map(repr, functions)) or 'none'}."
    )


def _load(place: str) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the module and its contents."""
    path = Path(place)
    if path.is_file():
        _insert_path(str(path.resolve().parent))  # the file may import other files of its folder
        with _errors_with_line(place, place):
            return _RUN_NAME, runpy.run_path(place, run_name=_RUN_NAME)
    find_modules_here()
    return place, _module(place)


def find_modules_here() -> None:
    """Make modules of the working folder importable, as `python -m` does."""
    _insert_path(os.getcwd())


def _module(name: str) -> Mapping[str, Any]:  # Any: as above
    with _errors_with_line(name):  # imports the parent packages
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise
            spec = None
    if spec is None:
        raise UsageError(
            f"there is no file and no module {name!r}{_similar_modules(name)}\n"
            f"The working folder and the installed packages were searched."
        )
    with _errors_with_line(name, spec.origin or ""):
        return vars(importlib.import_module(name))


def _similar_modules(name: str) -> str:
    """Return a hint with similar modules of the parent package."""
    parent, _, last = name.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None)
    return did_you_mean(last, [module.name for module in pkgutil.iter_modules(path)]) if path else "."


def _insert_path(folder: str) -> None:
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)


@contextmanager
def _errors_with_line(shown: str, file: str = "") -> Iterator[None]:
    """Raise errors of the block, which loads a module, as ValueError with the line."""
    try:
        yield
    except SystemExit as error:
        raise ValueError(
            f"{shown} ended with exit code {error.code!r} while it was loaded. "
            f"Put the code of the program below `if __name__ == '__main__':`."
        ) from error
    except Exception as error:
        hint = ""
        if isinstance(error, ImportError) and "relative import" in str(error):
            hint = "\nA file with relative imports is part of a package: name it as package.module:FUNCTION."
        text = f"{type(error).__name__}: {error}{_line_in(file, error)}{hint}"
        raise ValueError(f"{shown} cannot be loaded: {text}") from error


def _line_in(file: str, error: Exception) -> str:
    """Return the last line of the file in the traceback, as text."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return f" (in line {lines[-1]})" if lines else ""
