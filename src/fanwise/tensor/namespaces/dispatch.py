"""`fanwise.tensor.exp(x)`: the names of the standard, each a function that calls the engine's function.

    exp(x)  --type of x-->  {Tensor: torch's exp, ndarray: NumPy's exp, ...}

Each function is compiled from a template with the positional parameters of the standard. It finds the engine's
function when it first sees a combination of array types, and remembers it. Functions without array arguments use the
current engine. Arrays of two engines in one call are an error: nothing is converted silently. Only types that engines
define are remembered, so classes of user code are not kept alive.

Dtypes and `__array_namespace_info__` are those of the current engine, so they are looked up in every access.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from ..adapters import standards
from ..engines import _current, current_engine, engine_of, engine_of_type, find_engine, is_remembered
from ..placement import find_device
from .namespace import CONSTANTS, CREATION, DTYPES, EXTRA_DTYPES, FUNCTIONS, OF_DTYPES, PARTS, VERSION, part_of

Function = Callable[..., Any]
Parameter = inspect.Parameter

_DTYPES = {*DTYPES, *EXTRA_DTYPES}
_EXTENSIONS = {part for part in PARTS if part}
NAMES = frozenset({*PARTS[""], *_EXTENSIONS, *_DTYPES, *CONSTANTS})

_NUMBERS = frozenset({bool, int, float, complex, type(None)})
# Parameters that take arrays, except the first one of a function, which always does.
_ARRAY_PARAMETERS = frozenset(("x1", "x2", "indices", "repeats", "min", "max", "prepend", "append", "sorter"))


def attribute(name: str, module: dict[str, Any], other_names: Iterable[str]) -> Any:
    """Return `fanwise.tensor.<name>` for a name of the standard, and store it in `module` if it never changes."""
    if name in _DTYPES or name == "__array_namespace_info__":
        return getattr(part_of(current_engine()), name)
    constants = CONSTANTS | {"__array_api_version__": VERSION}
    if name in constants:
        return constants[name]
    if name not in NAMES:
        from ...base.nearest import nearest

        near = None if name.startswith("_") else nearest(name, sorted({*NAMES, *other_names}))
        suggestion = f"; did you mean {near!r}?" if near else ""
        raise AttributeError(f"module 'fanwise.tensor' has no attribute {name!r}{suggestion}")
    module[name] = extension(name) if name in _EXTENSIONS else dispatcher(name)
    return module[name]


def signature_of(name: str) -> inspect.Signature:
    """Return the signature of a function of the standard, without types."""
    module: dict[str, Any] = {}
    exec(f"from __future__ import annotations\ndef function{FUNCTIONS[name]}: pass", module)
    parameters = inspect.signature(module["function"]).parameters.values()
    return inspect.Signature([parameter.replace(annotation=Parameter.empty) for parameter in parameters])


def dispatcher(name: str) -> Function:
    """Create the function with this name of the standard."""
    signature = signature_of(name)
    if name in _OWN:
        function: Function = _OWN[name]
    else:
        function = _of_dtypes(name) if name in OF_DTYPES else _compiled(name, signature)
    page = f"See https://data-apis.org/array-api/{VERSION}/"
    function.__doc__ = function.__doc__ or f"`{name}` of the array API standard {VERSION}. {page}"
    function.__signature__ = signature  # type: ignore[attr-defined]
    return _renamed(function, name)


def _renamed(function: Any, name: str) -> Function:
    function.__module__ = "fanwise.tensor"
    function.__name__, function.__qualname__ = name.rpartition(".")[2], name
    function.autograph_info__ = {}  # AutoGraph of TensorFlow would look for the source of a compiled function
    return function  # type: ignore[no-any-return]


class _Chosen(dict[Any, Any]):
    """Functions of an engine by the types of their arrays, or by the current engine."""

    def __init__(self, choose: Callable[[tuple[Any, ...]], Any]) -> None:
        super().__init__()
        self.choose = choose

    def __missing__(self, key: Any) -> Any:
        kinds = key if isinstance(key, tuple) else (key,)
        function = self.choose(kinds)
        if len(kinds) < 10 and all(k in _NUMBERS or not isinstance(k, type) or is_remembered(k) for k in kinds):
            self[key] = function
        return function


def _compiled(name: str, signature: inspect.Signature) -> Function:
    """Compile a function that remembers the engine's function by the types of its arrays, or by the current engine.

    Without keywords and for arrays of one dtype it calls the engine's own function if the engine lists it in DIRECT.
    An engine's own function of a sequence must refuse arrays of other engines.
    """
    positional = [p for p in signature.parameters.values() if p.kind is not Parameter.KEYWORD_ONLY]
    allowed = {p.name for p in signature.parameters.values() if p.kind is Parameter.KEYWORD_ONLY}
    is_sequence = positional[0].name == "arrays"
    if name in CREATION:
        arrays, key = [], "current.get(None)"  # None stands for the engine of the environment, which never changes
    elif is_sequence:
        arrays, key = ["*arrays"], "*map(type, arrays),"
    else:
        arrays = [p.name for i, p in enumerate(positional) if i == 0 or p.name in _ARRAY_PARAMETERS]
        key = ", ".join(f"type({array})" for array in arrays)
    is_pair = "x2" in arrays and not allowed
    call = ", ".join(f"*{p.name}" if p.kind is Parameter.VAR_POSITIONAL else p.name for p in positional)
    if is_sequence:
        first = f"type(arrays) in (list, tuple) and arrays{' and not keywords' if allowed else ''}"
        lines = [f"if {first} and (function := direct[type(arrays[0])]): return function({call})"]
    elif is_pair:
        same = " is ".join(f"type({array})" for array in arrays)
        lines = [f"if {same} and (function := direct[type(x1)]) and x1.dtype is x2.dtype: return function({call})"]
    elif allowed:
        lines = [f"if not keywords: return direct[{key}]({call})"]
    else:
        lines = []
    shown = positional
    if allowed:  # the call with keywords takes 0.1 us more, also if there are none
        shown = [*positional, Parameter("keywords", Parameter.VAR_KEYWORD)]
        lines.append(f"if not plain.issuperset(keywords): check(keywords, {', '.join(arrays)})")
    lines.append(f"return known[{key}]({call}{', **keywords' if allowed else ''})")

    def engine_of_kinds(kinds: Iterable[Any]) -> str:
        return current_engine() if name in CREATION else engine_of_types(kinds, name)

    def choose(kinds: tuple[Any, ...]) -> Function:
        return getattr(part_of(engine_of_kinds(kinds)), name)  # type: ignore[no-any-return]

    def choose_direct(kinds: tuple[Any, ...]) -> Function | None:
        own = getattr(standards[engine_of_kinds(kinds)], "DIRECT", {}).get(name)
        return own or (None if is_pair or is_sequence else choose(kinds))

    def check(keywords: dict[str, Any], *arrays: Any) -> None:
        """Raise TypeError for unknown keywords and for arrays of two engines; replace the name of a device."""
        if unknown := sorted(keywords.keys() - allowed):
            raise TypeError(f"{name} takes no keyword {unknown[0]!r}: it is {name}{signature}")
        values = [*arrays, *(value for keyword, value in keywords.items() if keyword in _ARRAY_PARAMETERS)]
        engine = engine_of_kinds(map(type, values))
        if "device" in keywords:
            keywords["device"] = _device(engine, keywords["device"])

    module: dict[str, Any] = {"known": _Chosen(choose), "direct": _Chosen(choose_direct), "check": check}
    module |= {"current": _current, "plain": allowed - _ARRAY_PARAMETERS - {"device"}}
    source = "\n    ".join([f"def {name}{inspect.Signature(shown)}:", *lines])
    exec(compile(source, f"<fanwise.tensor.{name}>", "exec"), module)
    compiled: Function = module[name]
    return compiled


def _broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    import numpy

    return numpy.broadcast_shapes(*shapes)


def _of_dtypes(name: str) -> Function:
    """Create a function of arrays and dtypes. Dtypes of NumPy are also JAX's and mean the current one of the two."""

    def function(*args: Any, **kwargs: Any) -> Any:
        values = args or tuple(kwargs.values())
        if arrays := [value for value in values if find_engine(type(value))]:
            engine = engine_of_types(map(type, arrays), name)
        else:
            libraries = {type(value).__module__.partition(".")[0] for value in values}
            current = current_engine()
            numpy_or_jax = current if current in ("numpy", "jax") else "numpy"
            engine = next((library for library in ("torch", "tensorflow") if library in libraries), numpy_or_jax)
        return getattr(part_of(engine), name)(*args, **kwargs)

    return function


def _device(engine: str, device: Any) -> Any:
    """Return the full name of a device given by a name or as a torch.device; leave an engine's device as it is."""
    is_named = isinstance(device, str) or type(device).__module__ == "torch"
    return find_device(engine, device) if is_named else device


def engine_of_types(kinds: Iterable[type], name: str) -> str:
    """Return the one engine of arrays of these types; numbers and None belong to any. Raise TypeError otherwise."""
    engines = {engine_of_type(kind): None for kind in kinds if kind not in _NUMBERS}
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
        TypeError: obj contains something that is not a number.
    """
    engine = current_engine()
    if device is not None:
        device = _device(engine, device)
    if find_engine(type(obj)) and engine_of(obj) != engine:
        from ..exchange import convert

        obj = convert(obj, engine, copy=copy, device=device)
        copy = None
    return part_of(engine).asarray(obj, dtype=dtype, device=device, copy=copy)


_OWN: dict[str, Function] = {"asarray": _asarray, "broadcast_shapes": _broadcast_shapes}


@functools.cache
def extension(part: str) -> Any:
    """Return `fanwise.tensor.linalg` or `fanwise.tensor.fft`: each function calls that of its arrays' engine.

    Functions without array arguments (`fft.fftfreq`) use the current engine.
    """

    def dispatching(name: str) -> Function:
        def function(*args: Any, **kwargs: Any) -> Any:
            arrays = [value for value in (*args, *kwargs.values()) if find_engine(type(value))]
            engine = engine_of_types(map(type, arrays), name) if arrays else current_engine()
            if "device" in kwargs:
                kwargs["device"] = _device(engine, kwargs["device"])
            return getattr(part_of(engine, part), name)(*args, **kwargs)

        return _renamed(function, f"{part}.{name}")

    return SimpleNamespace(**{name: dispatching(name) for name in PARTS[part]})
