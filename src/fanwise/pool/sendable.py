"""Serialization for workers, and the search for an object that cannot be serialized.

Refused although they could be pickled: open files (cloudpickle would send a copy of their text) and tensors on an
accelerator (unpickling one uses the device, which a warm process must not do and a job may not have). Functions and
classes of a module that only this process can import are sent by value. torch is not imported.
"""

import dis
import functools
import io
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle

from ..links.codec import reducers
from .preload import only_here

# cloudpickle has one list of modules sent by value for the whole process.
_registry_lock = threading.RLock()

_ADVICE = {
    "lock": "Create it inside the function: a job has its own process, where a lock of this process has no effect.",
    "file": "Pass its path, and open it inside the function.",
    "socket": "Connect inside the function.",
    "stream": "Pass a list, or create it inside the function.",
    "tensor": "Pass it as .cpu(), and move it to the job's own device inside the function.",
    "other": "Create it inside the function, or pass the values to create it from.",
}


class RefusedError(TypeError):
    """An object could be pickled, but must not be sent."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """An object that cannot be sent: labels that lead to it, its type in words, advice, and the error."""

    path: tuple[str, ...]
    kind: str
    advice: str
    error: Exception


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's pickler with the reducers of `links`. Refuses some objects.

    Attributes:
        last: the last object that was not of a built-in type: after an error, its cause.
    """

    def __init__(self, file: io.BytesIO) -> None:
        self.dispatch_table = reducers()
        self.last: object = None
        super().__init__(file, protocol=5)

    def reducer_override(self, obj: object) -> Any:
        self.last = obj
        if (problem := _refusal(obj)) is not None:
            raise RefusedError(problem)
        if (name := _module_name(obj)) and only_here(name):
            with _registered_by_value(sys.modules[name]):
                if isinstance(obj, types.ModuleType):  # otherwise reduced after this block
                    return self.dispatch_table[types.ModuleType](obj)
                return super().reducer_override(obj)
        return super().reducer_override(obj)


def _module_name(obj: object) -> str | None:
    """Return the module from which a function, class or module is imported; None for other objects."""
    if isinstance(obj, types.FunctionType | type):
        return obj.__module__
    return obj.__name__ if isinstance(obj, types.ModuleType) else None


@contextmanager
def _registered_by_value(module: types.ModuleType) -> Iterator[None]:
    """Register a module for one reduction, because other code of this process may use cloudpickle, too."""
    with _registry_lock:
        if module.__name__ in cloudpickle.list_registry_pickle_by_value():
            yield
            return
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def dump(obj: object) -> bytes:
    """Pickle an object with protocol 5, by value where needed.

    Raises:
        Exception: any error of pickling the object or a part of it.
    """
    with io.BytesIO() as file:
        _Pickler(file).dump(obj)
        return file.getvalue()


def find_culprit(obj: object, label: str, error: Exception) -> Culprit:
    """Return the part of an object that cannot be pickled. Follows variables and defaults of functions.

    Args:
        label: name of the object.
        error: the error of pickling it.
    """
    path, cause = [label], _cause(obj) or (obj, error)
    visited: set[int] = set()
    while id(obj) not in visited:
        visited.add(id(obj))
        for label, part in _parts(obj):
            if id(part) not in visited and (part_cause := _cause(part)) is not None:
                path.append(label)
                obj, cause = part, part_cause
                break
    return Culprit(tuple(path), *_describe(cause[0]), cause[1])


def _cause(obj: object) -> tuple[object, Exception] | None:
    """Return the object inside `obj` that cannot be pickled, with the error; None if all can."""
    pickler = _Pickler(io.BytesIO())
    try:
        pickler.dump(obj)
    except Exception as error:
        return pickler.last, error
    return None


def _parts(obj: object) -> Iterator[tuple[str, object]]:
    """Yield the objects that are pickled with a function, with their labels."""
    if isinstance(obj, types.MethodType):
        yield "its object", obj.__self__
    elif isinstance(obj, functools.partial):
        yield "the function", obj.func
        yield from ((f"argument {number}", value) for number, value in enumerate(obj.args, 1))
        yield from ((f"argument {name!r}", value) for name, value in obj.keywords.items())
    elif isinstance(obj, types.FunctionType):
        code = obj.__code__
        for name, cell in zip(code.co_freevars, obj.__closure__ or (), strict=True):
            if cell != types.CellType():  # an unbound variable has no content
                yield f"closure variable {name!r}", cell.cell_contents
        defaults = obj.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        for name, value in (*zip(names, defaults, strict=True), *(obj.__kwdefaults__ or {}).items()):
            yield f"default of {name!r}", value
        for name in dict.fromkeys(_global_names(code)):
            if name in obj.__globals__:
                yield f"global variable {name!r}", obj.__globals__[name]


def _global_names(code: types.CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _refusal(obj: object) -> str | None:
    """Return why an object must not be sent, or None."""
    if isinstance(obj, io.TextIOWrapper | io.BufferedReader | io.BufferedWriter | io.BufferedRandom | io.FileIO):
        return None if obj is sys.stdout or obj is sys.stderr else "an open file belongs to its process"
    if (device := _accelerator(obj)) is not None:
        return f"unpacking it would touch {device}"
    return None


def _accelerator(obj: object) -> str | None:
    """Return the device of a tensor outside of host memory, or None."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "nn"):  # still being imported by another thread, so there are no tensors
        return None
    assert torch is not None
    if not isinstance(obj, torch.Tensor | torch.UntypedStorage | torch.Generator):
        return None
    return None if obj.device.type in ("cpu", "meta") else str(obj.device)


def _describe(obj: object) -> tuple[str, str]:
    kind = type(obj)
    full_name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    named = f"{'an' if full_name[0] in 'aeiouAEIOU' else 'a'} {full_name}"
    if (device := _accelerator(obj)) is not None:
        return f"{named} on {device}", _ADVICE["tensor"]
    if isinstance(obj, io.IOBase):
        return f"{named} ({getattr(obj, 'name', '?')!r})", _ADVICE["file"]
    if kind.__module__ in ("_thread", "threading", "multiprocessing.synchronize"):
        return named, _ADVICE["lock"]
    if kind.__module__ in ("socket", "_socket", "ssl"):
        return named, _ADVICE["socket"]
    if isinstance(obj, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        return named, _ADVICE["stream"]
    return named, _ADVICE["other"]
