"""`fanwise.tensor.exp(x)`: the standard's functions, each going to the engine of its array.

    exp(x) --type(x)--> {Tensor: torch's exp, ndarray: numpy's exp, ...} --not yet in it--> choose: engine_of, namespace

One small function is made for each name when it is first used, from its signature in `standard.py`, so that a call
costs one look into a dict and the arguments go on as they came. Functions that take no array use the current
engine. Arrays of two engines in one call are an error: nothing is converted in silence.
Knows no engine. Invariant: only types that engines define are remembered, so classes of user code are not kept alive.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..engines import ENGINES, current_engine, engine_of, is_array_type, is_remembered
from .shapes import broadcast_shapes
from .spaces import part_of
from .standard import ABOUT_DTYPES, CREATION, PARTS, VERSION

Function = Callable[..., Any]  # Any, here and below: arrays of any engine

# What may stand beside an array without being one.
_NUMBERS = frozenset({bool, int, float, complex, type(None)})
_ARRAYS = ("x", "x1", "x2", "condition", "indices", "repeats", "min", "max", "prepend", "append", "sorter")

_BY_ARRAY = """
def {name}{signature}:
    kind = type({first})
    function = functions.get(kind)
    if function is None{doubt}:
        function = choose({arrays})
    {call}
"""
_DOUBT = """ or (
        type({other}) is not kind
        and type({other}) not in numbers
        and functions.get(type({other})) is not function
    )"""
_BY_ARRAYS = """
def {name}{signature}:
    kind = type({first}[0]) if {first} else None
    function = functions.get(kind)
    if len({first}) == 2:  # mostly; a loop costs as much as all the rest
        if type({first}[1]) is not kind:
            function = None
    else:
        for each in {first}:
            if type(each) is not kind:
                function = None
    if function is None:
        function = choose(*{first})
    {call}
"""
_BY_CURRENT = """
def {name}{signature}:
    function = functions[current_engine()]
    {call}
"""
# Engines take up to 0.9 us to read keywords, also those that say what they would do anyway.
_CALL_WITH_KEYWORDS = """if {usual}:
        return function({positional})
    return function({positional}, {keywords})"""


def dispatcher(name: str, part: str = "") -> Function:
    """The function of that name of the standard, going to the engine of its arrays."""
    if name == "broadcast_shapes":
        return broadcast_shapes
    if name == "asarray":
        return _asarray
    if name in ABOUT_DTYPES and not part:
        return _named(_about_dtypes(name), name, part)
    template = _BY_CURRENT if name in CREATION[part] else _BY_ARRAY
    return _named(_made(template, name, part), name, part)


def _made(template: str, name: str, part: str) -> Function:
    signature = PARTS[part][name]
    parameters = list(_signature_of(signature).parameters.values())
    first = parameters[0].name
    others = [each.name for each in parameters[1:] if each.name in _ARRAYS]
    if first == "arrays":
        template = _BY_ARRAYS
    source = template.format(
        name=name,
        signature=signature,
        first=first,
        doubt="".join(_DOUBT.format(other=other) for other in others),
        arrays=", ".join([first, *others]),
        call=_call(parameters),
    )
    functions = _ByEngine(name, part)
    around: dict[str, Any] = {
        "functions": functions,
        "choose": functions.choose,
        "numbers": _NUMBERS,
        "current_engine": current_engine,
    }
    exec(source, around)
    made: Function = around[name]
    return made


def _signature_of(text: str) -> inspect.Signature:
    around: dict[str, Any] = {}
    exec(f"def function{text}: pass", around)
    return inspect.signature(around["function"])


def _call(parameters: list[inspect.Parameter]) -> str:
    """The lines that call `function` with what came."""
    keywords = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
    starred = (f"{'*' if each.kind is each.VAR_POSITIONAL else ''}{each.name}" for each in parameters)
    positional = ", ".join(list(starred)[: len(parameters) - len(keywords)])
    if not keywords:
        return f"return function({positional})"
    return _CALL_WITH_KEYWORDS.format(
        usual=" and ".join(map(_is_default, keywords)),
        positional=positional,
        keywords=", ".join(f"{each.name}={each.name}" for each in keywords),
    )


def _is_default(parameter: inspect.Parameter) -> str:
    default = parameter.default
    same = "is" if default is None or isinstance(default, bool) else "=="
    return f"{parameter.name} {same} {default!r}"


def _named(function: Function, name: str, part: str) -> Function:
    """With the name that pickle looks for, and a docstring."""
    function.__module__ = "fanwise.tensor"
    function.__name__ = name
    function.__qualname__ = f"{part}.{name}" if part else name
    page = f"https://data-apis.org/array-api/{VERSION}/"
    where = "by the current engine" if name in CREATION[part] else "by the engine of its arrays"
    function.__doc__ = f"`{name}` of the array API standard {VERSION}, computed {where}. See {page}"
    return function


class _ByEngine(dict[Any, Function]):
    """The functions of one name: by the type of the array, and by the name of the engine."""

    def __init__(self, name: str, part: str) -> None:
        super().__init__()
        self._name = name
        self._part = part

    def __missing__(self, engine: str) -> Function:
        function: Function = getattr(part_of(engine, self._part), self._name)
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
    engines = {engine_of(each) for each in arrays if type(each) not in _NUMBERS}
    if len(engines) == 1:
        return engines.pop()
    if not engines:
        raise TypeError(f"{name} takes arrays, and got none; make one with fanwise.tensor.asarray")
    first = next(engine_of(each) for each in arrays if type(each) not in _NUMBERS)
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
    if is_array_type(type(obj)) and engine_of(obj) != engine:
        from ..exchange import convert

        # array-api-strict, which `check_portable` makes the current one, is no engine: its arrays are made of numpy's.
        obj = convert(obj, engine, copy=copy, device=device) if engine in ENGINES else convert(obj, "numpy")
        copy = None
    return part_of(engine, "").asarray(obj, dtype=dtype, device=device, copy=copy)


_asarray.__name__ = _asarray.__qualname__ = "asarray"
_asarray.__module__ = "fanwise.tensor"


def _about_dtypes(name: str) -> Function:
    functions = _ByEngine(name, "")

    def function(*arguments: Any, **keywords: Any) -> Any:
        return functions[_engine_of_dtypes(arguments or tuple(keywords.values()), name)](*arguments, **keywords)

    function.__signature__ = _signature_of(PARTS[""][name])  # type: ignore[attr-defined]
    return function


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
    """`fanwise.tensor.linalg` and `fanwise.tensor.fft`: functions that go to the engine of their arrays."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Function:
        if name not in PARTS[self._part]:
            raise AttributeError(f"{self!r} has no {name!r}; it has {', '.join(PARTS[self._part])}")
        function = dispatcher(name, self._part)
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
