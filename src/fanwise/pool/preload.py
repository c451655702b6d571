"""Which modules a function will import, found by looking at it; and which source files may have changed since.

The warm process imports these modules once, so that a job forked from it starts with them.

    function -> its code (nested code too) -> names it uses -> modules, functions, classes, objects
                                           -> import statements inside it

What travels by value (functions and classes of `__main__`, lambdas, local functions) is followed as deep as it goes:
unpickling it imports whatever it names. A function that travels by reference brings along all that its module imports.
Only the import statements inside it, and inside the functions of the user's own files that it calls, are new.

Pure inspection: nothing is imported. A module may be listed that turns out not to exist (an optional import in a
`try`); who imports the list must bear that. Knows nothing of processes.
"""

import dis
import functools
import importlib.machinery
import os
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import cloudpickle

_OURS = __name__.partition(".")[0]
_NEVER = frozenset({"", "__main__", "__mp_main__", "builtins"})

_MOST_THINGS = 20_000  # where a walk ends; a function that drags more along is served, with a module less
_MOST_ITEMS = 1_000  # of one container; its items are mostly alike

Snapshot = dict[Path, tuple[int, int]]  # file -> (time of the last change in ns, size in bytes)


def modules_needed(*functions: Callable[..., object]) -> tuple[str, ...]:
    """The modules that `functions`, and what they use, will import: dotted names, in order of discovery, each once.

    >>> import json
    >>> modules_needed(lambda text: json.loads(text))
    ('json',)
    """
    search = _Search()
    search.walk(*functions)
    return tuple(search.modules)


def travels_by_value(thing: types.FunctionType | type) -> bool:
    """Whether pickling a function or class sends its code, because its module and name do not lead back to it."""
    name = thing.__module__ or ""
    if name == "builtins":
        return False
    module = sys.modules.get(name)
    if name in _NEVER or module is None or only_here(name):
        return True
    registered = cloudpickle.list_registry_pickle_by_value()
    if any(name == known or name.startswith(f"{known}.") for known in registered):
        return True
    found: object = module
    for part in thing.__qualname__.split("."):
        # Not getattr: a module with a __getattr__ of its own may import something to answer.
        found = getattr(found, "__dict__", {}).get(part)
        found = getattr(found, "__func__", found)  # static and class methods
    return found is not thing


def only_here(name: str) -> bool:
    """Whether a loaded module of the user's cannot be found again by its name: not by another process with our path.

    So it is with a test module that pytest loaded in its mode `importlib`, and with any module that was loaded from a
    file by hand. If another file is found under the name, that is a different module.
    """
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py") or not _is_users(name):
        return False
    return _only_here(name, file, tuple(sys.path))


@functools.lru_cache(maxsize=1024)
def _only_here(name: str, file: str, _path: tuple[str, ...]) -> bool:
    places: list[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    at = ""
    for part in name.split("."):
        at = f"{at}.{part}" if at else part
        spec = _ask_all_finders(at, places)
        if spec is None:
            return True
        places = list(spec.submodule_search_locations or [])
    return spec is None or spec.origin is None or Path(spec.origin).resolve() != Path(file).resolve()


def _ask_all_finders(name: str, places: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """As an import would, for instance also the finders of packages that are installed editable."""
    specs = (finder.find_spec(name, places) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in specs if spec is not None), None)


class _Search:
    """One walk from functions, nearest things first; `modules` is an ordered set."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self._seen: dict[int, object] = {}  # keeps what was seen alive, so that no id is used twice
        self._todo: deque[tuple[object, bool]] = deque()

    def walk(self, *starts: object) -> None:
        self._later(*starts)
        while self._todo and len(self._seen) < _MOST_THINGS:
            thing, near = self._todo.popleft()
            if id(thing) not in self._seen:
                self._seen[id(thing)] = thing
                self._look_at(thing, near=near)

    def _later(self, *things: object, near: bool = True) -> None:
        """Look at these in their turn. `near`: they are the function itself or travel by value with it."""
        self._todo.extend((thing, near) for thing in things)

    def _look_at(self, thing: object, *, near: bool) -> None:
        if isinstance(thing, types.ModuleType):
            self._add(thing.__name__)
        elif isinstance(thing, functools.partial):
            self._later(thing.func, *thing.args, *thing.keywords.values(), near=near)
        elif isinstance(thing, types.MethodType):
            self._later(thing.__func__, thing.__self__, near=near)
        elif isinstance(thing, types.FunctionType):
            self._look_at_function(thing, near=near)
        elif isinstance(thing, type):
            self._look_at_class(thing, near=near)
        elif isinstance(thing, types.BuiltinFunctionType):
            self._later(thing.__self__, near=False)  # its module, or the object it is a method of
        elif isinstance(thing, property):
            self._later(thing.fget, thing.fset, near=near)
        elif isinstance(thing, staticmethod | classmethod):
            self._later(thing.__func__, near=near)
        elif isinstance(thing, dict):
            self._later(*islice(thing.values(), _MOST_ITEMS), near=near)
        elif isinstance(thing, list | tuple | set | frozenset):
            self._later(*islice(thing, _MOST_ITEMS), near=near)
        else:
            self._later(type(thing), *getattr(thing, "__dict__", {}).values(), near=near)

    def _look_at_function(self, function: types.FunctionType, *, near: bool) -> None:
        by_value = travels_by_value(function)
        if not by_value:
            self._add(function.__module__)
        if (inner := vars(function).get("__wrapped__")) is not None:
            self._later(inner, near=near)
        is_ours = (function.__module__ or "").partition(".")[0] == _OURS
        if by_value or (_is_users(function.__module__) and (near or not is_ours)):
            self._look_at_code(function, near=by_value)

    def _look_at_class(self, cls: type, *, near: bool) -> None:
        if travels_by_value(cls):
            self._later(*cls.__mro__[1:], *vars(cls).values())
            return
        self._add(cls.__module__)
        if near and _is_users(cls.__module__):
            self._later(*cls.__mro__[1:], *vars(cls).values(), near=False)

    def _look_at_code(self, function: types.FunctionType, *, near: bool) -> None:
        """Everything the function refers to. `near` is False for what is already of an importable module."""
        codes = list(_codes(function.__code__))
        names = dict.fromkeys(name for code in codes for name in code.co_names)
        used = [function.__globals__[name] for name in names if name in function.__globals__]
        for value in used:
            self._later(value, near=near)
            if isinstance(value, types.ModuleType):
                self._look_inside_module(value.__name__, value, names)
        self._later(*map(_cell_content, function.__closure__ or ()), near=near)
        self._later(*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), near=near)
        self._look_at_imports(function.__code__)

    def _look_inside_module(self, called: str, module: types.ModuleType, names: Iterable[str]) -> None:
        """`import a.b` binds only `a`: find `a.b` by the names the code uses; and functions of the user's modules."""
        self._add(called)
        for name in names:
            if (inner := sys.modules.get(f"{called}.{name}")) is not None:
                self._look_inside_module(f"{called}.{name}", inner, [other for other in names if other != name])
            elif isinstance(found := vars(module).get(name), types.FunctionType) and _is_users(called):
                self._later(found, near=False)

    def _look_at_imports(self, code: types.CodeType) -> None:
        for inner in _codes(code):
            for name in _imports(inner):
                self._add(name)

    def _add(self, name: str) -> None:
        hidden = name.startswith("_") and name in sys.builtin_module_names
        if name not in _NEVER and not hidden:
            self.modules.setdefault(name)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and all code objects nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


_IMPORT_NAME = dis.opmap["IMPORT_NAME"]


def _imports(code: types.CodeType) -> Iterator[str]:
    """The modules named by absolute import statements: level, list of names, IMPORT_NAME, in this order."""
    if _IMPORT_NAME not in code.co_code[::2]:  # most have none, and to take one apart costs as much as a hundred looks
        return
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE")]
    for level, wanted, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME" and level.argval == 0:
            yield step.argval
            for name in wanted.argval or ():
                if _is_module(step.argval, name):
                    yield f"{step.argval}.{name}"


def _is_module(package: str, name: str) -> bool:
    """Whether `from package import name` names a module; found without importing the package."""
    if f"{package}.{name}" in sys.modules:
        return True
    if (loaded := sys.modules.get(package)) is not None:
        path = list(vars(loaded).get("__path__", ()))
        return bool(path) and name not in vars(loaded) and _find(f"{package}.{name}", path) is not None
    places: list[str] | None = None
    at = ""
    for part in (*package.split("."), name):
        at = f"{at}.{part}" if at else part
        spec = _find(at, places)
        if spec is None:
            return False
        places = list(spec.submodule_search_locations or [])
    return True


def _find(name: str, places: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    return importlib.machinery.PathFinder.find_spec(name, places)


def _cell_content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not bound yet
        return None


def sources_of(modules: Iterable[str] | None = None) -> Snapshot:
    """The user's own source files among the named modules (all that are loaded, if None), as they are on disk now.

    Files of the standard library, below site-packages or dist-packages, and of fanwise itself wherever it lies are left
    out: who edits those while a search runs knows what to expect, and each job looks at every file that is noted. So is
    `__main__`, whose functions travel by value.
    """
    names = list(sys.modules) if modules is None else modules
    found: Snapshot = {}
    for name in names:
        path = None if name.partition(".")[0] == _OURS else _users_file(name)
        if path is not None and (now := _stamp(path)) is not None:
            found[path] = now
    return found


def changed(snapshot: Snapshot) -> list[Path]:
    """The files of `snapshot` that were edited, replaced or removed since it was taken."""
    return [path for path, then in snapshot.items() if _stamp(path) != then]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _is_users(name: str) -> bool:
    return _users_file(name) is not None


def _users_file(name: str) -> Path | None:
    """The source file of a loaded module, if a user wrote it."""
    if name in _NEVER:
        return None
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    return _users_path(file if os.path.isabs(file) else str(Path(file).absolute()))


@functools.lru_cache(maxsize=4096)
def _users_path(file: str) -> Path | None:
    path = Path(file)
    if {"site-packages", "dist-packages"} & set(path.parts):
        return None
    return None if any(path.is_relative_to(folder) for folder in _stdlib()) else path


@functools.cache
def _stdlib() -> tuple[Path, ...]:
    folders = [Path(sysconfig.get_path(which)) for which in ("stdlib", "platstdlib")]
    return tuple(dict.fromkeys([*folders, *(folder.resolve() for folder in folders)]))
