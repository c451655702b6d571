"""Functions and arguments that are sent to workers: serialized by value, and checked before they are sent.

    pack(function, args, kwargs) --> Packed (bytes) --> a worker --> unpack_function, unpack_arguments

Functions of `__main__` (scripts, notebook cells), lambdas and local functions are sent by value, with the variables,
defaults and globals that they use. Importable functions are sent by name. Objects that cannot be sent are refused in
the caller's process, with the path to the offending object. See `sendable` for the serialization.
"""

import functools
import hashlib
import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..base.errors import NotSendableError
from .preload import modules_needed
from .sendable import dump, find_culprit
from .specs import Packed

Function = Callable[..., Any]


def pack(
    function: Function,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    caller: str = "pool.submit",
) -> Packed:
    """Serialize a call.

    Args:
        function: callable for a worker; not a coroutine function and not a generator function.
        args, kwargs: its arguments.
        caller: the function that the user called, for messages.

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
        arguments = dump((tuple(args), dict(kwargs or {})))
    except Exception:
        _refuse_argument(name, args, kwargs or {})
        raise
    # Functions among the arguments, as in trainings, are not unpickled by the warm process, but need modules, too.
    modules = modules_needed(function, *(value for value in (*args, *(kwargs or {}).values()) if callable(value)))
    function_id = hashlib.sha256("\0".join(modules).encode() + b"\0" + body).hexdigest()
    return Packed(body, arguments, function_id, name, modules)


def unpack_function(packed: bytes) -> Function:
    """Deserialize a function. Imports the modules that it refers to.

    Only for bytes from an authenticated peer, because unpickling can run any code.

    Raises:
        ImportError, AttributeError: a module or name does not exist here.
    """
    function: Function = pickle.loads(packed)
    return function


def unpack_arguments(packed: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Deserialize args and kwargs, under the conditions of `unpack_function`."""
    args, kwargs = pickle.loads(packed)
    return args, kwargs


def name_of(function: Function) -> str:
    """Return a short name for messages: of the function inside a partial, or of the class of a callable object.

    >>> name_of(functools.partial(print, end=""))
    'print'
    """
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
        raise TypeError(
            f"{caller} got {name}, a coroutine function (async def); a worker calls plain functions.\n"
            f"  wrong:  {caller}({name})\n"
            f"  right:  {caller}({_wrapped_in('asyncio.run', name, target)})"
        )
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise TypeError(
            f"{caller} got {name}, a generator function (it has a yield); its values cannot come back one by one.\n"
            f"  wrong:  {caller}({name})\n"
            f"  right:  {caller}({_wrapped_in('list', name, target)})"
        )


def _wrapped_in(wrapper: str, name: str, function: Any) -> str:
    """Return source code of a plain function that calls `function` inside `wrapper` and passes its arguments on."""
    arguments = "*args, **kwargs" if inspect.signature(function).parameters else ""
    return f"lambda{' ' if arguments else ''}{arguments}: {wrapper}({name}({arguments}))"


def _target(function: object) -> object:
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
        return dump(obj)
    except Exception as error:
        culprit = find_culprit(obj, label, error)
        raise NotSendableError(
            f"{description} cannot be sent to a worker: {' -> '.join((*culprit.path, culprit.kind))}\n"
            f"({type(culprit.error).__name__}: {culprit.error}). {culprit.advice}"
        ) from error
