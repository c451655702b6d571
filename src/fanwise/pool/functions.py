"""Functions and their arguments on their way to a worker: packed by value, checked before they leave.

    pack(function, args, kwargs) --> Packed (bytes) --> a worker --> unpack_function, unpack_arguments

Functions of `__main__` (scripts, notebook cells), lambdas and local functions travel by value, with the variables,
defaults and globals they use; what can be imported travels as its name. Whatever cannot travel is refused here, in
the caller's process and at the caller's line, with the way to the offending object: a failure in the worker would
come later and say less. `check_signature` compares a function with the names it is going to be called with.

Knows nothing of workers, links or torch. How things are pickled, and found when they cannot be, is in `sendable`.
"""

import difflib
import functools
import hashlib
import inspect
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..base.errors import NotSendableError
from .preload import modules_needed
from .sendable import dump, find_culprit
from .specs import Packed as Packed

Function = Callable[..., Any]  # Any: a user's function returns what it likes


def pack(
    function: Function,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    caller: str = "pool.submit",
) -> Packed:
    """Make a call ready to travel, or say why it cannot.

    Args:
        function: what a worker will call; not a coroutine function and not a generator function.
        args, kwargs: its arguments.
        caller: what the user called, for messages.

    Raises:
        TypeError: `function` is not something a worker can call; often the result of calling it here.
        NotSendableError: the function, or an argument, holds something that cannot leave this process.

    >>> packed = pack(lambda x, offset: x + offset, (2,), {"offset": 3})
    >>> args, kwargs = unpack_arguments(packed.arguments)
    >>> unpack_function(packed.function)(*args, **kwargs)
    5
    """
    _check_callable(function, caller)
    name = name_of(function)
    body = _dump(function, label=name, whole=name)
    try:
        arguments = dump((tuple(args), dict(kwargs or {})))
    except Exception:
        _refuse_argument(name, args, kwargs or {})
        raise
    # A function that is given to another one, as trainings are to ours, would be imported in each process again.
    modules = modules_needed(function, *(value for value in (*args, *(kwargs or {}).values()) if callable(value)))
    function_id = hashlib.sha256("\0".join(modules).encode() + b"\0" + body).hexdigest()
    return Packed(body, arguments, function_id, name, modules)


def unpack_function(packed: bytes) -> Function:
    """The function that was packed. Imports what it names.

    Only for bytes from a peer that has proved who it is: unpickling runs what the bytes say.

    Raises:
        ImportError, AttributeError: a module or name that existed where it was packed is not there here.
    """
    function: Function = pickle.loads(packed)
    return function


def unpack_arguments(packed: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:  # Any: a user's arguments
    """The args and kwargs that were packed; same conditions as `unpack_function`."""
    args, kwargs = pickle.loads(packed)
    return args, kwargs


def name_of(function: Function) -> str:
    """A short name for messages: of the function inside a partial, of the class of a callable object.

    >>> name_of(functools.partial(print, end=""))
    'print'
    """
    if isinstance(function, functools.partial):
        return name_of(function.func)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]


def check_signature(function: Function, names: Iterable[str], *, sometimes: Iterable[str] = ()) -> None:
    """Return if `function` can be called with exactly these keyword arguments, and without those in `sometimes`.

    Args:
        function: function, bound method, partial, class or callable object. One whose signature Python does not know
            (some built-in functions) passes.
        names: the names of the space.
        sometimes: those of them that some configurations leave out.

    Raises:
        ValueError: names arguments that the space lacks, names that the function does not take, and arguments that
            need a default because some configurations leave them out.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    problems = _misfits(signature, list(names), set(sometimes))
    if problems:
        call = f"{name_of(function)}{signature.replace(return_annotation=inspect.Signature.empty)}"
        raise ValueError(f"{call} does not fit the space:\n" + "\n".join(f"  {problem}" for problem in problems))


def _misfits(signature: inspect.Signature, names: list[str], sometimes: set[str]) -> list[str]:
    parameters = signature.parameters.values()
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unnamed = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    problems = [
        f"argument {p.name!r} is positional-only, and values are passed by name: remove the '/'"
        for p in unnamed
        if p.default is p.empty or (p.name in names and not takes_any)
    ]
    missing = [name for name, p in by_name.items() if p.default is p.empty and name not in names]
    surplus = [
        name for name in names if not takes_any and name not in by_name and name not in {p.name for p in unnamed}
    ]
    for name in missing:
        problems.append(f"argument {name!r} is not in the space: add it (a constant will do) or give it a default")
    for name, p in by_name.items():
        if p.default is p.empty and name in sometimes:
            problems.append(f"argument {name!r} does not exist in every configuration: give it a default, {name}=None")
    for name in surplus:
        nearest = difflib.get_close_matches(name, missing or by_name, 1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "add it to the arguments, or take it out of the space"
        problems.append(f"the space has {name!r}, which is not an argument: {hint}")
    return problems


def _check_callable(function: object, caller: str) -> None:
    if not callable(function):
        what = "None" if function is None else f"a {type(function).__name__}"
        raise TypeError(
            f"{caller} got a result ({what}), not a function: was the function called here, in this process?\n"
            f"  wrong:  {caller}(train(3))\n"
            f"  right:  {caller}(train, 3)"
        )
    name, target = name_of(function), _called(function)
    if inspect.iscoroutinefunction(target):
        raise TypeError(
            f"{caller} got {name}, a coroutine function (async def); a worker calls plain functions.\n"
            f"  wrong:  {caller}({name})\n"
            f"  right:  {caller}({_inside('asyncio.run', name, target)})"
        )
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise TypeError(
            f"{caller} got {name}, a generator function (it has a yield); its values cannot come back one by one.\n"
            f"  wrong:  {caller}({name})\n"
            f"  right:  {caller}({_inside('list', name, target)})"
        )


def _inside(wrapper: str, name: str, function: Any) -> str:  # Any: what is called
    """Source of a plain function that calls this one inside another, and passes its arguments on."""
    passed = "*args, **kwargs" if inspect.signature(function).parameters else ""
    return f"lambda{' ' if passed else ''}{passed}: {wrapper}({name}({passed}))"


def _called(function: object) -> object:
    """What runs when `function` is called, for inspect."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__


def _refuse_argument(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    for number, value in enumerate(args, 1):
        _dump(value, label=f"argument {number} of {name}", whole=f"an argument of {name}")
    for key, value in kwargs.items():
        _dump(value, label=f"argument {key!r} of {name}", whole=f"an argument of {name}")


def _dump(thing: object, *, label: str, whole: str) -> bytes:
    try:
        return dump(thing)
    except Exception as error:
        culprit = find_culprit(thing, label, error)
        raise NotSendableError(
            f"{whole} cannot be sent to a worker: {' -> '.join((*culprit.path, culprit.kind))}\n"
            f"({type(culprit.error).__name__}: {culprit.error}). {culprit.advice}"
        ) from error
