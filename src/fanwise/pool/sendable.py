"""Pickling with care: what may travel to a worker, and the way to what may not.

    dump(thing)          bytes, or the error of whatever could not be pickled or is refused
    find_culprit(thing)  walks down from a thing that failed, always into the first part that fails alone, until
                         no part of it fails: that is the culprit, and the steps are the way to it

Refused although they could be pickled: open files (cloudpickle would send a copy of their text) and tensors on an
accelerator (unpacking one touches the device, which a warm process must not and a job may have no lease for).
Sent by value although they have a name: functions and classes of a module that only this process can find.
torch is not imported: if it is not loaded, there are no tensors. Runs the `__reduce_ex__` of users' objects, as
pickling does. Only the way of failure is slow.
"""

import dis
import functools
import io
import pickle
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle

from ..links.codec import reducers
from .preload import only_here

Parts = Iterator[tuple[str, object]]  # the parts of a thing, each with its label in messages

# cloudpickle's list of modules that travel by value is one for the whole process.
_listing = threading.RLock()

_ADVICE = {
    "lock": "Make it inside the function: a job is a process of its own, where a lock of this one guards nothing.",
    "file": "Pass its path, and open it inside the function.",
    "socket": "Connect inside the function.",
    "stream": "Pass a list, or make it inside the function.",
    "tensor": "Pass it as .cpu(), and move it to the job's own device inside the function.",
    "other": "Make it inside the function, or pass what it is made from.",
}


class RefusedError(TypeError):
    """Could be pickled, but must not travel."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """What cannot travel: the labels on the way to it, what it is, and what to do instead."""

    path: tuple[str, ...]
    kind: str
    advice: str
    error: Exception


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's pickler with the reducers of `links`, which also refuses."""

    def __init__(self, file: io.BytesIO) -> None:
        self.dispatch_table = reducers()
        super().__init__(file, protocol=5)

    def reducer_override(self, obj: object) -> Any:  # Any: what pickle's protocol says
        if (problem := _refusal(obj)) is not None:
            raise RefusedError(problem)
        if (name := _name_of_module(obj)) and only_here(name):
            with _listed_by_value(sys.modules[name]):
                is_module = isinstance(obj, types.ModuleType)  # these are reduced later, unless it is done here
                return self.dispatch_table[types.ModuleType](obj) if is_module else super().reducer_override(obj)
        return super().reducer_override(obj)


def _name_of_module(obj: object) -> str | None:
    """The module that a function, class or module would be found in again; None for other objects."""
    if isinstance(obj, types.FunctionType | type):
        return obj.__module__
    return obj.__name__ if isinstance(obj, types.ModuleType) else None


@contextmanager
def _listed_by_value(module: types.ModuleType) -> Iterator[None]:
    """For the reduction of one object; others of this process may use cloudpickle too."""
    with _listing:
        if module.__name__ in cloudpickle.list_registry_pickle_by_value():
            yield
            return
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def dump(thing: object) -> bytes:
    """Pickle by value where needed, protocol 5.

    Raises:
        Exception: of any type; what pickling the thing, or a part of it, raised.
    """
    with io.BytesIO() as file:
        _Pickler(file).dump(thing)
        return file.getvalue()


def find_culprit(thing: object, label: str, error: Exception) -> Culprit:
    """The innermost part of `thing` that cannot be pickled; `error` is what pickling `thing` raised."""
    path = [label]
    above = {id(thing)}
    while (found := _first_failing(thing, above)) is not None:
        label, thing, error = found
        path.append(label)
        above.add(id(thing))
    return Culprit(tuple(path), *_describe(thing), error)


def _first_failing(thing: object, above: set[int]) -> tuple[str, object, Exception] | None:
    """The first part that fails alone; `above` holds the ids of what leads here, for things that hold themselves."""
    for label, part in _parts(thing):
        if id(part) not in above and (error := _failure(part)) is not None:
            return label, part, error
    return None


def _failure(thing: object) -> Exception | None:
    try:
        dump(thing)
    except Exception as error:
        return error
    return None


def _refusal(thing: object) -> str | None:
    if isinstance(thing, io.TextIOWrapper | io.BufferedReader | io.BufferedWriter | io.BufferedRandom | io.FileIO):
        return None if thing is sys.stdout or thing is sys.stderr else "an open file belongs to its process"
    if (device := _accelerator(thing)) is not None:
        return f"unpacking it would touch {device}"
    return None


def _accelerator(thing: object) -> str | None:
    """The device of a tensor that is not in host memory."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "nn"):  # another thread imports it: nobody has a tensor yet
        return None
    assert torch is not None
    if not isinstance(thing, torch.Tensor | torch.UntypedStorage | torch.Generator):
        return None
    return None if thing.device.type in ("cpu", "meta") else str(thing.device)


def _describe(thing: object) -> tuple[str, str]:
    """What it is, for people, and what to do instead."""
    kind = type(thing)
    full_name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    named = f"{'an' if full_name[0] in 'aeiouAEIOU' else 'a'} {full_name}"
    if (device := _accelerator(thing)) is not None:
        return f"{named} on {device}", _ADVICE["tensor"]
    if isinstance(thing, io.IOBase):
        return f"{named} ({getattr(thing, 'name', '?')!r})", _ADVICE["file"]
    if kind.__module__ in ("_thread", "threading", "multiprocessing.synchronize"):
        return named, _ADVICE["lock"]
    if kind.__module__ in ("socket", "_socket", "ssl"):
        return named, _ADVICE["socket"]
    if isinstance(thing, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        return named, _ADVICE["stream"]
    return named, _ADVICE["other"]


def _parts(thing: object) -> Parts:
    """What pickling `thing` would pickle besides it."""
    if isinstance(thing, types.FunctionType):
        yield from _parts_of_function(thing)
    elif isinstance(thing, types.MethodType):
        yield "its object", thing.__self__
        yield "its function", thing.__func__
    elif isinstance(thing, functools.partial):
        yield "the function", thing.func
        yield from _numbered(thing.args)
        yield from ((f"argument {name!r}", value) for name, value in thing.keywords.items())
    elif isinstance(thing, staticmethod | classmethod):
        yield "its function", thing.__func__
    elif isinstance(thing, property):
        yield from (("its function", inner) for inner in (thing.fget, thing.fset, thing.fdel))
    elif isinstance(thing, type | types.ModuleType):
        yield from (("base class", base) for base in getattr(thing, "__bases__", ()))
        hidden = ("__dict__", "__weakref__")
        yield from ((f"attribute {name!r}", value) for name, value in vars(thing).items() if name not in hidden)
    elif type(thing) in (list, tuple, set, frozenset, dict):
        yield from _parts_of_container(thing)
    else:
        yield from _parts_of_object(thing)


def _parts_of_function(function: types.FunctionType) -> Parts:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # an unbound variable has no content
            yield f"closure variable {name!r}", cell.cell_contents
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    yield from ((f"default of {name!r}", value) for name, value in zip(names, defaults, strict=True))
    yield from ((f"default of {name!r}", value) for name, value in (function.__kwdefaults__ or {}).items())
    for name in dict.fromkeys(_global_names(code)):
        if name in function.__globals__:
            yield f"global variable {name!r}", function.__globals__[name]
    yield from ((f"attribute {name!r}", value) for name, value in vars(function).items())


def _global_names(code: types.CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _parts_of_container(thing: object) -> Parts:
    if isinstance(thing, dict):
        yield from ((f"key {key!r}", key) for key in thing)
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, list | tuple):
        yield from ((f"[{index}]", value) for index, value in enumerate(thing))
    elif isinstance(thing, set | frozenset):
        yield from (("item", value) for value in thing)


def _parts_of_object(thing: object) -> Parts:
    """By the way the object describes itself to pickle: arguments of its constructor, state, items."""
    try:
        reduced = _reduced(thing)
    except Exception:
        return  # it cannot describe itself, so it is the culprit
    if not isinstance(reduced, tuple):
        return
    _make, args, state, items, pairs = (*reduced, None, None, None, None)[:5]
    yield from _parts_of_state(state)
    for value in args or ():
        yield ("its class" if value is type(thing) else "what it is made from"), value
    yield from ((f"[{index}]", value) for index, value in enumerate(items or ()))
    yield from ((f"[{key!r}]", value) for key, value in pairs or ())


def _reduced(thing: object) -> Any:  # Any: what pickle's protocol says
    try:
        reducer = reducers()[type(thing)]
    except KeyError:
        return thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    return reducer(thing)


def _parts_of_state(state: object) -> Parts:
    """Attributes: a dict, or a pair of dicts for classes with slots; or any object."""
    tables: Iterable[object] = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for table in tables:
        if isinstance(table, dict):
            yield from ((f"attribute {name!r}", value) for name, value in table.items())
        elif table is not None:
            yield "its state", table


def _numbered(args: Iterable[object]) -> Parts:
    yield from ((f"argument {number}", value) for number, value in enumerate(args, 1))
