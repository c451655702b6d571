"""Functions and arguments that are sent to workers: serialized by value, and checked before they are sent.

Functions of `__main__` (scripts, notebook cells), lambdas and local functions are sent by value, with the variables,
defaults and globals that they use, and so are functions and classes of a module that only this process can import.
Other functions are sent by name. Objects that cannot be sent are refused in the caller's process, with the path to the
offending object.

Refused although they could be pickled: open files (cloudpickle would send a copy of their text) and tensors on an
accelerator (unpickling one uses the device, which a warm process must not do and a job may not have). torch is not
imported.
"""

import dis
import functools
import hashlib
import inspect
import io
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle

from ..base.errors import NotSendableError
from ..links.codec import reducers
from .modules import modules_needed, only_here
from .specs import Packed

Function = Callable[..., Any]

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


def pack(
    function: Function,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    caller: str = "pool.submit",
) -> Packed:
    """Serialize a call for a worker. `caller`: the function that the user called, for messages.

    Raises:
        TypeError: a worker cannot call `function`; often it is the result of calling it here.
        NotSendableError: the function or an argument holds an object that cannot leave this process.

    >>> packed = pack(lambda x, offset: x + offset, (2,), {"offset": 3})
    >>> args, kwargs = unpack_arguments(packed.arguments)
    >>> unpack_function(packed.function)(*args, **kwargs)
    5
    """
    _check_callable(function, caller)
    name = name_of(function)
    body = _dump(function, label=name, description=name)
    try:
        arguments = _pickle((tuple(args), dict(kwargs or {})))
    except Exception:
        _refuse_argument(name, args, kwargs or {})
        raise
    # Functions among the arguments, as in trainings, are not unpickled by the warm process, but need modules, too.
    modules = modules_needed(function, *(value for value in (*args, *(kwargs or {}).values()) if callable(value)))
    function_id = hashlib.sha256("\0".join(modules).encode() + b"\0" + body).hexdigest()
    return Packed(body, arguments, function_id, name, modules)


def unpack_function(packed: bytes) -> Function:
    """Deserialize a function from an authenticated peer. Imports the modules that it refers to."""
    function: Function = pickle.loads(packed)
    return function


def unpack_arguments(packed: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Deserialize args and kwargs from an authenticated peer."""
    args, kwargs = pickle.loads(packed)
    return args, kwargs


def name_of(function: Function) -> str:
    """Return a short name for messages: of the function inside a partial, or of the class of a callable object."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _check_callable(function: object, caller: str) -> None:
    if not callable(function):
        kind = "None" if function is None else f"a {type(function).__name__}"
        raise TypeError(
            f"{caller} got a result ({kind}), not a function: was the function called here, in this process?\n"
            f"  wrong:  {caller}(train(3))\n"
            f"  right:  {caller}(train, 3)"
        )
    name, target = name_of(function), _target(function)
    if inspect.iscoroutinefunction(target):
        problem, wrapper = "a coroutine function (async def); a worker calls plain functions", "asyncio.run"
    elif inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        problem = "a generator function (it has a yield); its values cannot come back one by one"
        wrapper = "list"
    else:
        return
    arguments = "*args, **kwargs" if inspect.signature(target).parameters else ""
    raise TypeError(
        f"{caller} got {name}, {problem}.\n"
        f"  wrong:  {caller}({name})\n"
        f"  right:  {caller}(lambda{' ' if arguments else ''}{arguments}: {wrapper}({name}({arguments})))"
    )


def _target(function: object) -> Any:
    """Return the function that runs when `function` is called, for `inspect`."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__


def _refuse_argument(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    for number, value in enumerate(args, 1):
        _dump(value, label=f"argument {number} of {name}", description=f"an argument of {name}")
    for key, value in kwargs.items():
        _dump(value, label=f"argument {key!r} of {name}", description=f"an argument of {name}")


def _dump(obj: object, *, label: str, description: str) -> bytes:
    try:
        return _pickle(obj)
    except Exception as error:
        path, cause, cause_error = _find_culprit(obj, label, error)
        kind, advice = _describe(cause)
        raise NotSendableError(
            f"{description} cannot be sent to a worker: {' -> '.join((*path, kind))}\n"
            f"({type(cause_error).__name__}: {cause_error}). {advice}"
        ) from error


# -- serialization -----------------------------------------------------------------------------------------------------


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
            raise _RefusedError(problem)
        if (name := _module_name(obj)) and only_here(name):
            with _registered_by_value(sys.modules[name]):
                if isinstance(obj, types.ModuleType):  # otherwise reduced after this block
                    return self.dispatch_table[types.ModuleType](obj)
                return super().reducer_override(obj)
        return super().reducer_override(obj)


def _module_name(obj: object) -> str | None:
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


def _pickle(obj: object) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file).dump(obj)
        return file.getvalue()


# -- objects that cannot be sent ---------------------------------------------------------------------------------------


class _RefusedError(TypeError):
    """An object could be pickled, but must not be sent."""


def _find_culprit(obj: object, label: str, error: Exception) -> tuple[list[str], object, Exception]:
    """Return the part of an object that cannot be pickled, after the labels that lead to it, and its error."""
    path, cause = [label], _cause(obj) or (obj, error)
    visited: set[int] = set()
    while id(obj) not in visited:
        visited.add(id(obj))
        for label, part in _parts(obj):
            if id(part) not in visited and (part_cause := _cause(part)) is not None:
                path.append(label)
                obj, cause = part, part_cause
                break
    return path, *cause


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
