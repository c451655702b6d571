"""The modules that a function will import, and the user's source files of imported modules.

The warm process imports these modules before the function is called. Functions and classes that are sent by value (of
`__main__`, lambdas, local functions) are followed without limit, because unpickling them imports everything that they
refer to. For a function that is sent by reference, its module imports the rest; only import statements inside it, and
inside functions of the user's files that it calls, are added.

Nothing is imported here. A listed module may not exist (an optional import in a `try`), so importers must ignore
errors. A process that keeps imported modules for later jobs must not run old code, so it compares `Sources`.
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

_LIBRARY = __name__.partition(".")[0]
_NOT_IMPORTED = frozenset({"", "__main__", "__mp_main__", "builtins"})

_MAX_OBJECTS = 20_000  # of a whole search
_MAX_ITEMS = 1_000  # of one container, whose items are usually alike


def modules_needed(*functions: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of the modules that functions will import, in order of discovery.

    >>> import json
    >>> modules_needed(lambda text: json.loads(text))
    ('json',)
    """
    return tuple(_Search(functions).modules)


def travels_by_value(obj: types.FunctionType | type) -> bool:
    """Return whether pickling a function or class sends its code, because its module and name do not lead to it."""
    name = obj.__module__ or ""
    if name == "builtins":
        return False
    module = sys.modules.get(name)
    if name in _NOT_IMPORTED or module is None or only_here(name):
        return True
    registered = cloudpickle.list_registry_pickle_by_value()
    if any(name == known or name.startswith(f"{known}.") for known in registered):
        return True
    target: object = module
    for part in obj.__qualname__.split("."):
        # Not getattr, because a module's __getattr__ may import something.
        target = getattr(target, "__dict__", {}).get(part)
        target = getattr(target, "__func__", target)  # static and class methods
    return target is not obj


def only_here(name: str) -> bool:
    """Return whether no other process with our `sys.path` can import a loaded module of the user.

    Examples are modules that pytest loads in its mode `importlib`, and modules that were loaded from a file by hand.
    """
    path = _user_file(name)
    return path is not None and _only_here(name, str(path), tuple(sys.path))


@functools.lru_cache(maxsize=1024)
def _only_here(name: str, file: str, _path: tuple[str, ...]) -> bool:
    spec = _find(name)
    return spec is None or spec.origin is None or Path(spec.origin).resolve() != Path(file).resolve()


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    """Find a module below its packages without importing any of them."""
    folders: list[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    prefix = ""
    for part in name.split("."):
        prefix = f"{prefix}.{part}" if prefix else part
        spec = _find_in(prefix, folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
    return spec


def _find_in(name: str, folders: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    specs = (finder.find_spec(name, folders) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in specs if spec is not None), None)


class _Search:
    """A breadth-first search from functions.

    Objects are visited `near` if they are the function itself, or are sent by value with it.

    Attributes:
        modules: the result, an ordered set.
    """

    def __init__(self, roots: Iterable[object]) -> None:
        self.modules: dict[str, None] = {}
        self._seen: dict[int, object] = {}  # keeps objects alive, so that ids are unique
        self._todo: deque[tuple[object, bool]] = deque()
        self._add_objects(*roots)
        while self._todo and len(self._seen) < _MAX_OBJECTS:
            obj, near = self._todo.popleft()
            if id(obj) not in self._seen:
                self._seen[id(obj)] = obj
                self._visit(obj, near=near)

    def _add_objects(self, *objects: object, near: bool = True) -> None:
        self._todo.extend((obj, near) for obj in objects)

    def _visit(self, obj: object, *, near: bool) -> None:
        if isinstance(obj, types.ModuleType):
            self._add_module(obj.__name__)
        elif isinstance(obj, functools.partial):
            self._add_objects(obj.func, *obj.args, *obj.keywords.values(), near=near)
        elif isinstance(obj, types.MethodType):
            self._add_objects(obj.__func__, obj.__self__, near=near)
        elif isinstance(obj, types.FunctionType):
            self._visit_function(obj, near=near)
        elif isinstance(obj, type):
            self._visit_class(obj, near=near)
        elif isinstance(obj, types.BuiltinFunctionType):
            self._add_objects(obj.__self__, near=False)  # its module, or the object that it is a method of
        elif isinstance(obj, property):
            self._add_objects(obj.fget, obj.fset, near=near)
        elif isinstance(obj, staticmethod | classmethod):
            self._add_objects(obj.__func__, near=near)
        elif isinstance(obj, dict):
            self._add_objects(*islice(obj.values(), _MAX_ITEMS), near=near)
        elif isinstance(obj, list | tuple | set | frozenset):
            self._add_objects(*islice(obj, _MAX_ITEMS), near=near)
        else:
            self._add_objects(type(obj), *getattr(obj, "__dict__", {}).values(), near=near)

    def _visit_function(self, function: types.FunctionType, *, near: bool) -> None:
        by_value = travels_by_value(function)
        if not by_value:
            self._add_module(function.__module__)
        if (inner := vars(function).get("__wrapped__")) is not None:
            self._add_objects(inner, near=near)
        is_ours = (function.__module__ or "").partition(".")[0] == _LIBRARY
        if by_value or (_user_file(function.__module__) is not None and (near or not is_ours)):
            self._visit_code(function, near=by_value)

    def _visit_class(self, cls: type, *, near: bool) -> None:
        if travels_by_value(cls):
            self._add_objects(*cls.__mro__[1:], *vars(cls).values())
            return
        self._add_module(cls.__module__)
        if near and _user_file(cls.__module__) is not None:
            self._add_objects(*cls.__mro__[1:], *vars(cls).values(), near=False)

    def _visit_code(self, function: types.FunctionType, *, near: bool) -> None:
        codes = list(_codes(function.__code__))
        names = dict.fromkeys(name for code in codes for name in code.co_names)
        used = [function.__globals__[name] for name in names if name in function.__globals__]
        for value in used:
            self._add_objects(value, near=near)
            if isinstance(value, types.ModuleType):
                self._visit_module(value.__name__, value, names)
        self._add_objects(*map(_cell_content, function.__closure__ or ()), near=near)
        self._add_objects(*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), near=near)
        for code in codes:
            for name in _imports(code):
                self._add_module(name)

    def _visit_module(self, called: str, module: types.ModuleType, names: Iterable[str]) -> None:
        """Add `a.b` if the code uses both names (`import a.b` binds only `a`), and functions of the user's modules."""
        self._add_module(called)
        for name in names:
            if (inner := sys.modules.get(f"{called}.{name}")) is not None:
                self._visit_module(f"{called}.{name}", inner, [rest for rest in names if rest != name])
            elif isinstance(value := vars(module).get(name), types.FunctionType) and _user_file(called) is not None:
                self._add_objects(value, near=False)

    def _add_module(self, name: str) -> None:
        is_hidden = name.startswith("_") and name in sys.builtin_module_names
        if name not in _NOT_IMPORTED and not is_hidden:
            self.modules.setdefault(name)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


_IMPORT_NAME = dis.opmap["IMPORT_NAME"]


def _imports(code: types.CodeType) -> Iterator[str]:
    """Yield the modules of absolute import statements, which compile to level, list of names, IMPORT_NAME."""
    if _IMPORT_NAME not in code.co_code[::2]:  # usually; disassembling is a hundred times slower than this check
        return
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE")]
    for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME" and level.argval == 0:
            yield step.argval
            for name in names.argval or ():
                if _is_module(step.argval, name):
                    yield f"{step.argval}.{name}"


def _is_module(package: str, name: str) -> bool:
    """Return whether `from package import name` names a module, without importing the package."""
    if f"{package}.{name}" in sys.modules:
        return True
    if (loaded := sys.modules.get(package)) is not None:
        folders = list(vars(loaded).get("__path__", ()))
        return bool(folders) and name not in vars(loaded) and _find_in(f"{package}.{name}", folders) is not None
    return _find(f"{package}.{name}") is not None


def _cell_content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not bound yet
        return None


# -- source files ------------------------------------------------------------------------------------------------------


class Sources:
    """Time of the last change and size of the source files of imported modules. A forked process has a copy."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[int, int]] = {}
        self._modules: set[str] = set()

    def remember(self) -> bool:
        """Add the files of modules that were imported since the last call. Return False if there are none."""
        new = sys.modules.keys() - self._modules
        if new:
            self._modules |= new
            self._files.update({path: stamp for path, stamp in sources_of(new).items() if path not in self._files})
        return bool(new)

    def edited(self) -> list[Path]:
        """Return the files that were edited, replaced or removed since they were added."""
        return [path for path, stamp in self._files.items() if _stamp(path) != stamp]


def sources_of(modules: Iterable[str]) -> dict[Path, tuple[int, int]]:
    """Return the state of the user's source files among these modules, without installed packages and `__main__`."""
    files: dict[Path, tuple[int, int]] = {}
    for name in modules:
        path = None if name.partition(".")[0] == _LIBRARY else _user_file(name)
        if path is not None and (stamp := _stamp(path)) is not None:
            files[path] = stamp
    return files


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _user_file(name: str) -> Path | None:
    """Return the source file of a loaded module if it is neither of the standard library nor installed."""
    if name in _NOT_IMPORTED:
        return None
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    return _user_path(file if os.path.isabs(file) else str(Path(file).absolute()))


@functools.lru_cache(maxsize=4096)
def _user_path(file: str) -> Path | None:
    path = Path(file)
    stdlib = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    stdlib |= {folder.resolve() for folder in stdlib}
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return None if is_installed or any(path.is_relative_to(folder) for folder in stdlib) else path
