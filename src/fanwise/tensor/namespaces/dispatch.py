"""`fanwise.tensor.exp(x)`: the standard's functions, each going to the engine of its array.

    exp(x) --type(x)--> {Tensor: torch's exp, ndarray: numpy's exp, ...} --not yet in it--> choose: engine_of, namespace

One small closure is made for each name when it is first used. A call costs one look into a dict, and arguments and
keywords go on as they came, once the names of the keywords are known to be the standard's: engines have others, which
would make code that runs on one engine alone. Functions that take no array use the current engine. Arrays of two
engines in one call are an error: nothing is converted in silence.
Knows no engine. Invariant: only types that engines define are remembered, so classes of user code are not kept alive.
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


class _Absent:
    """What stands for an argument that was not given: to gather arguments as `*args` takes 0.2 us."""


_ABSENT = _Absent()
# What may stand beside an array without being one.
_NUMBERS = frozenset({bool, int, float, complex, type(None)})
_PLAIN = _NUMBERS | {_Absent}
_ARRAYS = frozenset(("x1", "x2", "indices", "repeats", "min", "max", "prepend", "append", "sorter"))


def dispatcher(name: str) -> Function:
    """The function of that name of the standard, going to the engine of its arrays."""
    if name == "broadcast_shapes":
        return broadcast_shapes
    if name == "asarray":
        return _asarray
    signature = signature_of(FUNCTIONS[name])
    functions = _ByEngine(name)
    if name in ABOUT_DTYPES:
        made = _about_dtypes(name, functions)
    elif name in CREATION:
        made = _by_current_engine(functions, _Keywords(name, signature))
    else:
        made = _by_arrays(name, signature, functions)
    return _named(made, name, signature)


def _by_arrays(name: str, signature: inspect.Signature, functions: "_ByEngine") -> Function:
    """The closure for how the name takes its arrays. Those without keywords are what programs call most."""
    parameters = list(signature.parameters.values())
    keywords = _Keywords(name, signature)
    first = parameters[0]
    if first.kind is first.VAR_POSITIONAL:
        return _of_many(functions, keywords)
    if first.name == "arrays":
        return _of_sequence(functions, keywords)
    if len(parameters) == 1:
        return _of_one(functions)
    if [each.name for each in parameters] == ["x1", "x2"]:
        return _of_two(functions)
    others = [each.name in _ARRAYS for each in parameters[1:] if each.kind is not each.KEYWORD_ONLY]
    if others == [False] or not (others or keywords.arrays or "axis" in keywords.names):
        return _of_one_and_another(functions, keywords)
    if others and all(others):
        return _of_up_to_three(functions, keywords)
    return (_of_some if others or keywords.arrays else _of_one_and_axis)(functions, keywords)


def _of_one(functions: "_ByEngine") -> Function:
    get, choose = functions.get, functions.choose

    def function(x: Any, /) -> Any:
        found = get(type(x))
        if found is None:
            found = choose(x)
        return found(x)

    return function


def _of_two(functions: "_ByEngine") -> Function:
    get, choose, numbers = functions.get, functions.choose, _NUMBERS

    def function(x1: Any, x2: Any, /) -> Any:
        kind, other = type(x1), type(x2)
        found = get(kind)
        if found is None or (other is not kind and other not in numbers and get(other) is not found):
            found = choose(x1, x2)
        return found(x1, x2)

    return function


def _of_one_and_axis(functions: "_ByEngine", allowed: "_Keywords") -> Function:
    """For what mostly gets `axis` and `keepdims`: to gather keywords and hand them on is 0.5 us."""
    get, choose, known = functions.get, functions.choose, allowed.names

    has_keepdims = "keepdims" in known

    def function(x: Any, /, *, axis: Any = _ABSENT, keepdims: Any = _ABSENT, **keywords: Any) -> Any:
        found = get(type(x))
        if found is None:
            found = choose(x)
        if not keywords:
            if keepdims is _ABSENT:
                return found(x) if axis is _ABSENT else found(x, axis=axis)
            if has_keepdims and axis is not _ABSENT:
                return found(x, axis=axis, keepdims=keepdims)
        if axis is not _ABSENT:
            keywords["axis"] = axis
        if keepdims is not _ABSENT:
            keywords["keepdims"] = keepdims
        if not known.issuperset(keywords):
            raise allowed.refused(keywords)
        return found(x, **keywords)

    return function


def _of_one_and_another(functions: "_ByEngine", allowed: "_Keywords") -> Function:
    """Of one array, and mostly an argument that is none: a shape, axes, a dtype. It may come by keyword."""
    get, choose, known, has_another = functions.get, functions.choose, allowed.names, allowed.num_positional > 1

    def function(x: Any, another: Any = _ABSENT, /, **keywords: Any) -> Any:
        found = get(type(x))
        if found is None:
            found = choose(x)
        if not keywords:
            if another is _ABSENT:
                return found(x)
            if has_another:
                return found(x, another)
        if not known.issuperset(keywords) or not (has_another or another is _ABSENT):
            raise allowed.refused(keywords, 2)
        if "device" in keywords:
            keywords["device"] = _device(engine_of(x), keywords["device"])
        return found(x, **keywords) if another is _ABSENT else found(x, another, **keywords)

    return function


def _of_up_to_three(functions: "_ByEngine", allowed: "_Keywords") -> Function:
    """Of arrays, Python numbers among them: two or three by position, and some by keyword."""
    get, choose, plain, known = functions.get, functions.choose, _PLAIN, allowed.names
    by_keyword, has_third = allowed.arrays, allowed.num_positional > 2

    def function(x: Any, second: Any = _ABSENT, third: Any = _ABSENT, /, **keywords: Any) -> Any:
        kind, other, another = type(x), type(second), type(third)
        found = get(kind)
        if (
            found is None
            or (other is not kind and other not in plain and get(other) is not found)
            or (another is not kind and another not in plain and get(another) is not found)
        ):
            found = choose(x, second, third)
        if not keywords:
            if another is not _Absent:
                if has_third:
                    return found(x, second, third)
            else:
                return found(x) if other is _Absent else found(x, second)
        given = [each for each in (second, third) if each is not _ABSENT]
        if 1 + len(given) > allowed.num_positional or not known.issuperset(keywords):
            raise allowed.refused(keywords, 1 + len(given))
        if not by_keyword.isdisjoint(keywords):
            found = choose(x, *given, *(keywords[name] for name in by_keyword if name in keywords))
        return found(x, *given, **keywords)

    return function


def _of_some(functions: "_ByEngine", allowed: "_Keywords") -> Function:
    """Of an array, others that may come by keyword, and positional arguments that are none."""

    def function(x: Any, /, *others: Any, **keywords: Any) -> Any:
        found = functions.choose(x, *(keywords[name] for name in allowed.arrays if name in keywords))
        if 1 + len(others) > allowed.num_positional or not allowed.names.issuperset(keywords):
            raise allowed.refused(keywords, 1 + len(others))
        return found(x, *others, **keywords)

    return function


def _of_sequence(functions: "_ByEngine", allowed: "_Keywords") -> Function:
    get, choose, known = functions.get, functions.choose, allowed.names

    def function(arrays: Any, /, *, axis: Any = _ABSENT, **keywords: Any) -> Any:
        kind = type(arrays[0]) if arrays else None
        found = get(kind)
        if len(arrays) == 2:  # mostly; a loop costs as much as all the rest
            if type(arrays[1]) is not kind:
                found = None
        else:
            for each in arrays:
                if type(each) is not kind:
                    found = None
        if found is None:
            found = choose(*arrays)
        if not keywords:
            return found(arrays) if axis is _ABSENT else found(arrays, axis=axis)
        if not known.issuperset(keywords):
            raise allowed.refused(keywords)
        return found(arrays, **keywords) if axis is _ABSENT else found(arrays, axis=axis, **keywords)

    return function


def _of_many(functions: "_ByEngine", allowed: "_Keywords") -> Function:
    def function(*arrays: Any, **keywords: Any) -> Any:
        if not allowed.names.issuperset(keywords):
            raise allowed.refused(keywords)
        return functions.choose(*arrays)(*arrays, **keywords)

    return function


def _by_current_engine(functions: "_ByEngine", allowed: "_Keywords") -> Function:
    known, most, has_dtype = allowed.names, allowed.num_positional, "dtype" in allowed.names

    # `dtype` by itself, and no `*others`: to gather arguments and hand them on is 0.5 us.
    def function(
        first: Any = _ABSENT, second: Any = _ABSENT, third: Any = _ABSENT, /, *, dtype: Any = _ABSENT, **keywords: Any
    ) -> Any:
        found = functions[current_engine()]
        if not keywords and first is not _ABSENT:
            if second is _ABSENT:
                if dtype is _ABSENT:
                    return found(first)
                if has_dtype:
                    return found(first, dtype=dtype)
            elif dtype is _ABSENT and most > 1:
                if third is _ABSENT:
                    return found(first, second)
                if most > 2:
                    return found(first, second, third)
        others = [each for each in (first, second, third) if each is not _ABSENT]
        if dtype is not _ABSENT:
            keywords["dtype"] = dtype
        if len(others) > most or not known.issuperset(keywords):
            raise allowed.refused(keywords, len(others))
        if "device" in keywords:
            keywords["device"] = _device(current_engine(), keywords["device"])
        return found(*others, **keywords)

    return function


def _device(engine: str, device: Any) -> Any:
    """A device by its name in `placement.py`, which every engine takes; what else it may be is the engine's own."""
    is_named = isinstance(device, str) or type(device).__module__ == "torch"
    return find_device(engine, device) if is_named else device


def _about_dtypes(name: str, functions: "_ByEngine") -> Function:
    def function(*arguments: Any, **keywords: Any) -> Any:
        return functions[_engine_of_dtypes(arguments or tuple(keywords.values()), name)](*arguments, **keywords)

    return function


class _Keywords:
    """The arguments that a name of the standard takes by keyword."""

    def __init__(self, name: str, signature: inspect.Signature) -> None:
        self._name = name
        self._signature = signature
        parameters = signature.parameters.values()
        by_name = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        self.names = frozenset(by_name)
        self.arrays = self.names & _ARRAYS
        self.num_positional = sum(
            each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters
        )

    def refused(self, keywords: Iterable[str], num_positional: int = 0) -> TypeError:
        """What Python says of the arguments that the standard does not have."""
        unknown = sorted(set(keywords) - self.names)
        what = f"no keyword {unknown[0]!r}" if unknown else f"fewer than {num_positional} positional arguments"
        return TypeError(f"{self._name} takes {what}: it is {self._name}{self._signature}")


def _named(function: Function, name: str, signature: inspect.Signature) -> Function:
    """With the name that pickle looks for, a signature and a docstring."""
    function.__module__ = "fanwise.tensor"
    function.__name__ = function.__qualname__ = name
    function.__signature__ = signature  # type: ignore[attr-defined]
    page = f"https://data-apis.org/array-api/{VERSION}/"
    where = "by the current engine" if name in CREATION else "by the engine of its arrays"
    function.__doc__ = f"`{name}` of the array API standard {VERSION}, computed {where}. See {page}"
    return function


class _ByEngine(dict[Any, Function]):
    """The functions of one name: by the type of the array, and by the name of the engine."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __missing__(self, engine: str) -> Function:
        function: Function = getattr(part_of(engine, ""), self._name)
        self[engine] = function
        return function

    def choose(self, *arrays: object) -> Function:
        """The function for these arrays, Python numbers among them; remembered by their types."""
        function = self[engine_of_all(arrays, self._name)]
        self.update((kind, function) for kind in map(type, arrays) if is_remembered(kind))
        return function


def engine_of_all(arrays: Iterable[object], name: str) -> str:
    """The one engine of all these arrays; numbers and None among them belong to any.

    Raises:
        TypeError: there is no array among them, or arrays of two engines; the message says how to convert.
    """
    engines = {engine_of(each) for each in arrays if type(each) not in _PLAIN}
    if len(engines) == 1:
        return engines.pop()
    if not engines:
        raise TypeError(f"{name} takes arrays, and got none; make one with fanwise.tensor.asarray")
    first = next(engine_of(each) for each in arrays if type(each) not in _PLAIN)
    raise TypeError(
        f"{name} got arrays of {' and '.join(sorted(engines))}, and takes those of one engine. "
        f"Convert the others first, for example with fanwise.tensor.convert(x, {first!r})"
    )


def _asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    """An array of the current engine, made of numbers, nested lists, or an array of any engine.

    Floats of Python become float32, integers int64 (int32 in JAX with 64 bits off). An array of another engine is
    converted by the rules of `fanwise.tensor.convert`.
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


def _engine_of_dtypes(arguments: tuple[Any, ...], name: str) -> str:
    """The engine of arrays and dtypes. NumPy's dtypes are JAX's too: alone they mean the current one of both."""
    arrays = [each for each in arguments if is_array_type(type(each))]
    if arrays:
        return engine_of_all(arrays, name)
    libraries = {getattr(type(each), "__module__", "").partition(".")[0] for each in arguments}
    for engine in ("torch", "tensorflow"):
        if engine in libraries:
            return engine
    current = current_engine()
    return current if current in ("numpy", "jax") else "numpy"


class Part:
    """`fanwise.tensor.linalg` and `fanwise.tensor.fft`: each function is the one of that name of its arrays' engine.

    Where there is no array (`fft.fftfreq`), it is the current engine's.
    """

    def __init__(self, part: str) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Function:
        if name not in PARTS[self._part]:
            raise AttributeError(f"{self!r} has no {name!r}; it has {', '.join(PARTS[self._part])}")
        part = self._part

        def function(*arguments: Any, **keywords: Any) -> Any:
            arrays = [each for each in (*arguments, *keywords.values()) if is_array_type(type(each))]
            engine = engine_of_all(arrays, name) if arrays else current_engine()
            if "device" in keywords:
                keywords["device"] = _device(engine, keywords["device"])
            return getattr(part_of(engine, part), name)(*arguments, **keywords)

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
    """The one object for `linalg` or `fft`."""
    return Part(part)
