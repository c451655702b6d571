"""`fanwise.tensor.exp(x)`: the standard's functions, each calling the function of its arrays' engine.

    exp(x)  --type of x-->  {Tensor: torch's exp, ndarray: numpy's exp, ...}

A function chooses the engine's function when it first sees a type, and remembers it. Functions without array arguments
use the current engine. Arrays of two engines in one call are an error: nothing is converted silently.
Invariant: only types that engines define are remembered, so classes of user code are not kept alive.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..engines import current_engine, engine_of, is_array_type, is_remembered
from ..placement import find_device
from .shared import broadcast_shapes
from .spaces import part_of
from .standard import ABOUT_DTYPES, CREATION, FUNCTIONS, PARTS, VERSION, signature_of

Function = Callable[..., Any]  # Any, here and below: arrays of any engine

_NUMBERS = frozenset({bool, int, float, complex, type(None)})
# Parameters that take arrays, except the first one of a function, which always does.
_ARRAY_PARAMETERS = frozenset(("x1", "x2", "indices", "repeats", "min", "max", "prepend", "append", "sorter"))


def dispatcher(name: str) -> Function:
    """Create the function with this name of the standard."""
    if name == "broadcast_shapes":
        return broadcast_shapes
    if name == "asarray":
        return _asarray
    signature = signature_of(FUNCTIONS[name])
    if name in ABOUT_DTYPES:
        function = _by_dtypes(name)
    else:
        create = _by_current_engine if name in CREATION else _by_arrays
        function = create(name, signature)
    function.__module__ = "fanwise.tensor"
    function.__name__ = function.__qualname__ = name
    function.__signature__ = signature  # type: ignore[attr-defined]
    engine = "the current engine" if name in CREATION else "the engine of its arrays"
    function.__doc__ = (
        f"`{name}` of the array API standard {VERSION}, computed by {engine}. "
        f"See https://data-apis.org/array-api/{VERSION}/"
    )
    return function


def _by_arrays(name: str, signature: inspect.Signature) -> Function:
    arguments = _Arguments(name, signature)
    takes_sequence, plain, most = arguments.takes_sequence, arguments.plain, arguments.num_positional
    # Types that may stand beside an array without influencing the choice; None: all types, as only the first matters.
    neutral = _NUMBERS if arguments.has_other_arrays else None
    known: dict[type, Function] = {}

    def choose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Function:
        engine = arguments.engine_of(args, kwargs)
        if "device" in kwargs:
            kwargs["device"] = _device(engine, kwargs["device"])
        found: Function = getattr(part_of(engine, ""), name)
        for kind in map(type, args[0] if takes_sequence else args[:1]):
            if is_remembered(kind):
                known[kind] = found
        return found

    def of_arrays(first: Any, /, *others: Any, **kwargs: Any) -> Any:
        kind = type(first)
        found = known.get(kind)
        if found is None or len(others) >= most or (kwargs and not plain.issuperset(kwargs)):
            return choose((first, *others), kwargs)(first, *others, **kwargs)
        if neutral is not None:
            for other in others:
                if type(other) is not kind and type(other) not in neutral:
                    found = choose((first, *others), kwargs)
        if not kwargs:  # most calls: to pass on arguments one by one is faster than by * and **
            if not others:
                return found(first)
            if len(others) == 1:
                return found(first, others[0])
            if len(others) == 2:
                return found(first, others[0], others[1])
        return found(first, *others, **kwargs)

    def of_sequence(arrays: Any, /, **kwargs: Any) -> Any:
        kinds = {*map(type, arrays)}
        found = known.get(kinds.pop()) if len(kinds) == 1 else None
        if found is None or (kwargs and not plain.issuperset(kwargs)):
            found = choose((arrays,), kwargs)
        return found(arrays, **kwargs) if kwargs else found(arrays)

    return of_sequence if takes_sequence else of_arrays


def _by_current_engine(name: str, signature: inspect.Signature) -> Function:
    arguments = _Arguments(name, signature)
    plain, num_positional = arguments.plain, arguments.num_positional
    known: dict[str, Function] = {}

    def function(*args: Any, **kwargs: Any) -> Any:
        engine = current_engine()
        if len(args) > num_positional or (kwargs and not plain.issuperset(kwargs)):
            arguments.check(args, kwargs)
            kwargs["device"] = _device(engine, kwargs["device"])
        found = known.get(engine)
        if found is None:
            found = known[engine] = getattr(part_of(engine, ""), name)
        return found(*args, **kwargs)

    return function


def _by_dtypes(name: str) -> Function:
    """Create a function of arrays and dtypes. Dtypes of NumPy are also JAX's and mean the current one of the two."""

    def function(*args: Any, **kwargs: Any) -> Any:
        given = args or tuple(kwargs.values())
        if arrays := [each for each in given if is_array_type(type(each))]:
            engine = engine_of_all(arrays, name)
        else:
            libraries = {type(each).__module__.partition(".")[0] for each in given}
            current = current_engine()
            numpy_or_jax = current if current in ("numpy", "jax") else "numpy"
            engine = next((each for each in ("torch", "tensorflow") if each in libraries), numpy_or_jax)
        return getattr(part_of(engine, ""), name)(*args, **kwargs)

    return function


class _Arguments:
    """The parameters of one function of the standard."""

    def __init__(self, name: str, signature: inspect.Signature) -> None:
        self._name, self._signature = name, signature
        parameters = list(signature.parameters.values())
        first = parameters[0] if parameters else None
        self.takes_sequence = first is not None and first.name == "arrays" and first.kind is not first.VAR_POSITIONAL
        self._is_variadic = first is not None and first.kind is first.VAR_POSITIONAL
        positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        self.num_positional = 1000 if self._is_variadic else len(positional)
        self._array_positions = [i for i, each in enumerate(positional) if i == 0 or each.name in _ARRAY_PARAMETERS]
        self._array_positions += [i for i, each in enumerate(positional) if name == "where" and i]
        self._keywords = frozenset(
            each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        )
        self.has_other_arrays = self._is_variadic or len(self._array_positions) > 1
        # Keywords that influence neither the choice of the engine nor need a conversion.
        self.plain = self._keywords - _ARRAY_PARAMETERS - {"device"}

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError for arguments that the standard does not have; engines may have more."""
        unknown = sorted(set(kwargs) - self._keywords)
        if unknown or len(args) > self.num_positional:
            problem = f"no keyword {unknown[0]!r}" if unknown else f"fewer than {len(args)} positional arguments"
            raise TypeError(f"{self._name} takes {problem}: it is {self._name}{self._signature}")

    def engine_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the engine of the arrays of a call.

        Raises:
            TypeError: as `check` and `engine_of_all`.
        """
        self.check(args, kwargs)
        if self.takes_sequence:
            arrays = list(args[0]) if args else []
        elif self._is_variadic:
            arrays = list(args)
        else:
            arrays = [args[i] for i in self._array_positions if i < len(args)]
        return engine_of_all([*arrays, *(kwargs[each] for each in _ARRAY_PARAMETERS & set(kwargs))], self._name)


def _device(engine: str, device: Any) -> Any:
    """Return the full name of a device given by a name or as a torch.device; leave an engine's device as it is."""
    is_named = isinstance(device, str) or type(device).__module__ == "torch"
    return find_device(engine, device) if is_named else device


def engine_of_all(arrays: Iterable[object], name: str) -> str:
    """Return the one engine of all these arrays; numbers and None among them belong to any.

    Raises:
        TypeError: there is no array among them, or arrays of two engines; the message says how to convert.
    """
    engines = {engine_of(each): None for each in arrays if type(each) not in _NUMBERS}
    if len(engines) == 1:
        return next(iter(engines))
    if not engines:
        raise TypeError(f"{name} takes arrays, and got none; make one with fanwise.tensor.asarray")
    raise TypeError(
        f"{name} got arrays of {' and '.join(sorted(engines))}, and takes those of one engine. "
        f"Convert the others first, for example with fanwise.tensor.convert(x, {next(iter(engines))!r})"
    )


def _asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    """Create an array of the current engine from numbers, nested lists, or an array of any engine.

    Floats of Python become float32, integers int64 (int32 in JAX with 64 bits off). An array of another engine is
    converted by the rules of `fanwise.tensor.convert`. In lists, arrays of the current engine are stacked, and
    gradients flow through them.

    Raises:
        OverflowError: a Python integer does not fit the dtype.
        TypeError: obj contains something that is no number.
    """
    engine = current_engine()
    if device is not None:
        device = _device(engine, device)
    if is_array_type(type(obj)) and engine_of(obj) != engine:
        from ..exchange import convert

        obj = convert(obj, engine, copy=copy, device=device)
        copy = None
    return part_of(engine, "").asarray(obj, dtype=dtype, device=device, copy=copy)


_asarray.__name__ = _asarray.__qualname__ = "asarray"
_asarray.__module__ = "fanwise.tensor"


class Part:
    """`fanwise.tensor.linalg` and `fanwise.tensor.fft`: each function calls that of its arrays' engine.

    Functions without array arguments (`fft.fftfreq`) use the current engine.
    """

    def __init__(self, part: str) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Function:
        if name not in PARTS[self._part]:
            raise AttributeError(f"{self!r} has no {name!r}; it has {', '.join(PARTS[self._part])}")
        part = self._part

        def function(*args: Any, **kwargs: Any) -> Any:
            arrays = [each for each in (*args, *kwargs.values()) if is_array_type(type(each))]
            engine = engine_of_all(arrays, name) if arrays else current_engine()
            if "device" in kwargs:
                kwargs["device"] = _device(engine, kwargs["device"])
            return getattr(part_of(engine, part), name)(*args, **kwargs)

        function.__module__, function.__name__, function.__qualname__ = "fanwise.tensor", name, f"{part}.{name}"
        self.__dict__[name] = function
        return function

    def __dir__(self) -> list[str]:
        return sorted(PARTS[self._part])

    def __reduce__(self) -> tuple[Callable[[str], "Part"], tuple[str]]:
        return extension, (self._part,)

    def __repr__(self) -> str:
        return f"fanwise.tensor.{self._part}"


@functools.cache
def extension(part: str) -> Part:
    """Return the one object for `linalg` or `fft`."""
    return Part(part)
