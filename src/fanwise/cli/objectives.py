"""The objective that a command line names, in one of three ways.

    train.py:train            a file by itself: run under a name that nobody can import; its functions travel by value
    package/train.py:train    a file of a package (`__init__.py` beside it): imported as package.train
    package.train:train       a module, found as `python -m` finds it: in the working folder, or installed

What is imported keeps its module, so relative imports work, and the workers import it too. The main block of a file
does not run in any of them. Whatever fails while it is loaded is the user's: told with its place, as a ValueError.
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
from .usage import UsageError

# The module name of a file by itself.
_RUN_NAME = "fanwise_objective_file"


def place_and_name(target: str) -> tuple[str, str]:
    """The file or module, and the function, that FILE:FUNCTION or MODULE:FUNCTION names. Loads nothing.

    Raises:
        UsageError: it is of another form, or the file is not there.
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
    """The function that FILE:FUNCTION or MODULE:FUNCTION names.

    Raises:
        UsageError: it names neither of them, or no such file, module or function is there; says which there are.
        ValueError: it fails when it is loaded; says where.
    """
    place, name = place_and_name(target)
    module_name, names = _load(place)
    function = names.get(name)
    if callable(function):
        return function  # type: ignore[no-any-return]  # callable was just checked
    own = [key for key, value in names.items() if callable(value) and getattr(value, "__module__", "") == module_name]
    near = nearest(name, own)
    hint = f"; did you mean {near!r}?" if near else "."
    raise UsageError(f"{place} has no function {name!r}{hint} Its functions: {', '.join(map(repr, own)) or 'none'}.")


def _load(place: str) -> tuple[str, Mapping[str, Any]]:  # Any: whatever the file defines
    """The name of the module and all names in it."""
    path = Path(place)
    if path.is_file():
        package = _package_of(path)
        return _file_of_package(path, package) if package else (_RUN_NAME, _file_alone(path))
    find_modules_here()
    return place, _module(place, place)


def find_modules_here() -> None:
    """From now on modules of the working folder are found, as `python -m` finds them."""
    _find_first(os.getcwd())


def _file_alone(path: Path) -> Mapping[str, Any]:  # Any: whatever the file defines
    _find_first(str(path.resolve().parent))  # the file may import its neighbours, here and in the workers
    with _told(str(path), str(path)):
        return runpy.run_path(str(path), run_name=_RUN_NAME)


def _package_of(path: Path) -> list[Path]:
    """The folders of the package that a file belongs to, the innermost first; empty when it is none's."""
    folders = []
    for folder in path.resolve().parents:
        if not (folder / "__init__.py").is_file():
            break
        folders.append(folder)
    return folders


def _file_of_package(path: Path, package: list[Path]) -> tuple[str, Mapping[str, Any]]:  # Any: as above
    _find_first(str(package[-1].parent))
    sys.path.append(str(package[0]))  # last, so that a neighbour it imports by its bare name hides no other module
    parts = [folder.name for folder in reversed(package)]
    name = ".".join(parts if path.name == "__init__.py" else [*parts, path.stem])
    names = _module(name, str(path))
    if Path(names.get("__file__") or "").resolve() != path.resolve():
        raise UsageError(
            f"{path} is {name} by its folders, but that name belongs to {names.get('__file__')!r}. "
            f"Rename the folder, or move the file out of the package."
        )
    return name, names


def _module(name: str, shown: str) -> Mapping[str, Any]:  # Any: as above
    with _told(shown):  # the packages it is in are imported, and run
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise
            found = None
    if found is None:
        raise UsageError(
            f"there is no file and no module {shown!r}{_modules_beside(name)}\n"
            f"Modules are looked for in the working folder and among what is installed."
        )
    with _told(shown, found.origin or ""):
        return vars(importlib.import_module(name))


def _modules_beside(name: str) -> str:
    """The modules of the package that should have had this one; nothing where there is no such package."""
    parent, _, last = name.rpartition(".")
    beside = getattr(sys.modules.get(parent), "__path__", None)
    return did_you_mean(last, [module.name for module in pkgutil.iter_modules(beside)]) if beside else "."


def _find_first(folder: str) -> None:
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)


@contextmanager
def _told(shown: str, file: str = "") -> Iterator[None]:
    """What a module raises while it is loaded, as one message with its place."""
    try:
        yield
    except SystemExit as error:
        raise ValueError(
            f"{shown} ended with exit code {error.code!r} while it was loaded. "
            f"Put what it does as a program below `if __name__ == '__main__':`."
        ) from error
    except Exception as error:
        hint = ""
        if isinstance(error, ImportError) and "relative import" in str(error):
            hint = "\nA file with relative imports is part of a package: name it as package.module:FUNCTION."
        text = f"{type(error).__name__}: {error}{_line_in(file, error)}{hint}"
        raise ValueError(f"{shown} cannot be loaded: {text}") from error


def _line_in(file: str, error: Exception) -> str:
    """Where in the file an error arose: the last of its lines in the traceback."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return f" (in line {lines[-1]})" if lines else ""
