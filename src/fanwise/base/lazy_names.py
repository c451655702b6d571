"""Names of a package that are loaded on first use (PEP 562), listed once, where type checkers read them.

if TYPE_CHECKING:
    from .tuner import Tuner as Tuner
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
"""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

_LAZY_IMPORT = re.compile(r"^    from (\.+\w\S*) import (\w+) as \2$", re.MULTILINE)
_LAZY_SUBMODULE = re.compile(r"^    from \. import (\w+) as \1$", re.MULTILINE)


def lazy_modules(file: str) -> dict[str, str]:
    """Return the relative module of each name that a package's file imports for type checkers only."""
    return {name: module for module, name in _LAZY_IMPORT.findall(_read(file))}


def _read(file: str) -> str:
    with open(file, encoding="utf-8") as source:  # importing pathlib would take longer than all the rest
        return source.read()


def lazy_names(
    package: str, file: str, *, check: Callable[[], None] = lambda: None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: its name.
        file: its file, `__init__.py`.
        check: called before a name is loaded, for example to check that a library is installed.
    """
    modules = lazy_modules(file)
    submodules = _LAZY_SUBMODULE.findall(_read(file))
    namespace = vars(sys.modules[package])
    own = {name for name, value in namespace.items() if not isinstance(value, ModuleType) and not name.startswith("_")}
    names = sorted({*modules, *submodules} | own - {"TYPE_CHECKING", "lazy_names"})

    def load(name: str) -> Any:  # Any: of any type
        if name in submodules:
            return import_module(f".{name}", package)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}")
        check()
        value = namespace[name] = getattr(import_module(modules[name], package), name)
        return value

    return load, lambda: names, names
