"""What a function can reach outside of itself: its closure, the globals it names, defaults, the object it belongs to.

    def loss_fn(m, x): return critic(m(x), table) + noise.normal()      critic, table and noise are reached

The search follows functions, partials, bound methods, containers and objects of the user's making; it stops at what
belongs to Python, torch, numpy or this library, at large containers, and after so many objects. It reads code, it calls
nothing. What a function finds by other ways - an import inside it, a registry - is not seen.
"""

import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Where a search begins: a function or module, or the place of a loop, which names what its function's locals hold.
Root = Callable[..., Any] | types.FrameType  # Any: of the user's making

_MOST_OBJECTS = 5000
_MOST_MEMBERS = 256
_CONTAINERS = (list, tuple, dict, set, frozenset)
# The roots of modules whose functions and objects are left as they are.
_FOREIGN = sys.stdlib_module_names | {"torch", "torchvision", "torchaudio", "numpy", "scipy", "fanwise", "_pytest"}


@dataclass(frozen=True, slots=True)
class Reached:
    """An object, and by which name it is reached. `home`: the closure cell, or the globals, that hold it directly."""

    name: str
    value: Any  # Any: of the user's making
    home: Any = None  # Any: a cell, or globals


def reached(root: Root) -> Iterator[Reached]:
    """Everything that it reaches, nearest first, each object once."""
    ahead: deque[Reached] = deque(_inside(Reached("", root)))
    seen = {id(root)}
    while ahead and len(seen) < _MOST_OBJECTS:
        found = ahead.popleft()
        if id(found.value) in seen or isinstance(
            found.value, str | bytes | int | float | complex | None | types.ModuleType
        ):
            continue
        seen.add(id(found.value))
        yield found
        ahead.extend(_inside(found))


def _inside(found: Reached) -> Iterator[Reached]:
    value, name = found.value, found.name
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.FrameType):
        yield from _of_frame(value)
    elif isinstance(value, types.MethodType):
        yield Reached(_in(name, "self"), value.__self__)
        yield Reached(name, value.__func__)
    elif isinstance(value, functools.partial):
        yield Reached(name, value.func)
        for place, each in enumerate(value.args):
            yield Reached(f"argument {place} of the partial", each)
        for key, each in value.keywords.items():
            yield Reached(key, each)
    elif isinstance(value, _CONTAINERS):
        if len(value) <= _MOST_MEMBERS:
            members = value.items() if isinstance(value, dict) else enumerate(value)
            yield from (Reached(f"{name}[{key!r}]", each) for key, each in members)
    elif isinstance(value, nn.Module):
        yield from _of_module(value, name)
    elif not isinstance(value, type | Tensor | torch.optim.Optimizer) and _is_users(type(value)):
        yield from (Reached(_in(name, key), each) for key, each in getattr(value, "__dict__", {}).items())
        if isinstance(call := vars(type(value)).get("__call__"), types.FunctionType):
            yield Reached(name, call)


def _of_module(module: nn.Module, name: str) -> Iterator[Reached]:
    """Not its own modules: they are its parts. What it has hidden in lists, and what its forward names."""
    for path, each in module.named_modules():
        where = _in(name, path) if path else name
        registers = ("_parameters", "_buffers", "_modules")
        for key, value in vars(each).items():
            # torch has a dozen dicts of hooks in each module, most of them empty.
            if key not in registers and not (isinstance(value, dict) and not value):
                yield Reached(_in(where, key), value)
        if _is_users(type(each)) and isinstance(type(each).forward, types.FunctionType):
            yield Reached(where, type(each).forward)


def _of_function(function: types.FunctionType) -> Iterator[Reached]:
    if not _is_users(function):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Reached(name, cell.cell_contents, cell)
        except ValueError:
            continue  # not assigned yet
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield Reached(name, function.__globals__[name], function.__globals__)
    for each in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield Reached("a default argument", each)


def _of_frame(frame: types.FrameType) -> Iterator[Reached]:
    """Its locals, of a module too, and the globals that its code names."""
    yield from (Reached(name, value) for name, value in _locals_of(frame).items())
    for name in dict.fromkeys(_names(frame.f_code)):
        if name in frame.f_globals:
            yield Reached(name, frame.f_globals[name], frame.f_globals)


def _locals_of(frame: types.FrameType) -> dict[str, Any]:  # Any: of the user's making
    """The local variables of a function as they are now; of a module none, they are its globals."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    found = frame.f_locals
    copied = dict(found)
    if isinstance(found, dict):  # up to Python 3.12 the frame keeps it, and with it what the function has let go since
        found.clear()
    return copied


def _names(code: types.CodeType) -> Iterator[str]:
    """The globals, and attributes, that a function and those inside it name."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_users(thing: Any) -> bool:  # Any: a function or class
    module = thing.__module__ if isinstance(thing.__module__, str) else ""
    return module.partition(".")[0] not in _FOREIGN


def _in(name: str, inner: str) -> str:
    return f"{name}.{inner}" if name else inner


def named_by(root: Root) -> Iterator[Reached]:
    """What stands in the closure cells, and under the names of globals, of all functions that it reaches."""
    if isinstance(root, types.FrameType):
        yield from (named for named in _of_frame(root) if named.home is not None)
    for function in (root, *(found.value for found in reached(root))):
        if isinstance(function, types.FunctionType):
            yield from (named for named in _of_function(function) if named.home is not None)


def is_of_program(kind: type) -> bool:
    """Whether a class is the program's own, and of no library."""
    home = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return _is_users(kind) and "site-packages" not in home


def modules_reached(root: Root) -> Mapping[str, nn.Module]:
    """The modules that it reaches, by name; not those that are part of another one."""
    return {found.name: found.value for found in reached(root) if isinstance(found.value, nn.Module)}
