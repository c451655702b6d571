"""What an engine provides to this layer: seven files in the folder with_<engine>, each of which meets a protocol here.

    exchanges["jax"]  --first use-->  with_jax/exchange.py      memory in and out
    device_placements                 with_jax/devices.py       devices by name
    writers                           with_jax/writing.py       `at`, and the variables of `State`
    generators                        with_jax/random.py        random numbers
    wires                             with_jax/wire.py          bytes and back
    differentiators                   with_jax/gradients.py     gradients, compiling; not numpy
    standards                         with_jax/namespace.py     the array API's functions

An engine of this library is such a folder, and its line in `engines.py`; `register_engine` adds others. Parts are
loaded on first use: sending an array does not load the standard's functions.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar, cast

from .engines import add_engine

if TYPE_CHECKING:
    import numpy

    from .engines import Engine
    from .random.keys import Key
    from .wire.header import WireHeader

    NumpyArray = numpy.ndarray[Any, Any]  # Any: shape and element type are known only when it runs

Array = Any  # Any: an array of the engine; those of different engines have no type in common

# -- memory in and out -------------------------------------------------------------------------------------------------

# mutable: the giver's memory, and somebody may write to it. immutable: the giver's, and nobody ever will.
# private: made for this conversion, nobody else has it.
Kind = Literal["mutable", "immutable", "private"]

# A numpy array over an array's elements, and what may happen to its memory. Whether who imports it may share depends on
# that, so each engine tells what it knows and none knows another. A bare pair: a NamedTuple takes 0.2 us to make.
Exported = tuple["NumpyArray", Kind]


class Layout(NamedTuple):
    """Where the elements of an array lie."""

    address: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    size_bytes: int  # of one element


class Exchange(Protocol):
    """`copy` is as in `convert`."""

    def export_memory(self, x: Array, copy: bool | None) -> Exported: ...

    def import_memory(self, exported: Exported, copy: bool | None) -> Array: ...

    def copied(self, x: Array) -> Array: ...

    def layout_of(self, x: Array) -> Layout: ...


class DLPackExchange(Exchange, Protocol):
    """What that of an engine that hands memory on an accelerator on, too, offers: torch and JAX."""

    # By name; None of an array that lies elsewhere, on several, or has no memory.
    def accelerator_of(self, x: Array) -> str | None: ...

    # Something with DLPack's two methods, for `from_dlpack` of the other engine.
    def to_dlpack(self, x: Array, copy: bool | None) -> Any: ...

    # None: DLPack or the engine does not take it. A copy is made when this returns: nothing reads the memory any more.
    def from_dlpack(self, lent: Any, copy: bool | None) -> Array | None: ...


# -- devices -----------------------------------------------------------------------------------------------------------


class DevicePlacement(Protocol):
    """Devices by the names of `placement.py`."""

    def names(self) -> list[str]: ...

    def device_of(self, x: Array) -> str: ...

    def move(self, x: Array, device: str) -> Array: ...


# -- `at` and `State` --------------------------------------------------------------------------------------------------

How = Literal["set", "add", "subtract", "multiply", "divide", "min", "max"]


class Writer(Protocol):
    """`value` is a number or an array of the same engine, of a kind that x holds; an index is as `at` lists them.

    A variable is whatever the engine keeps for a `State`; `assign` returns the one to keep from now on.
    """

    def changed(self, x: Array, index: Any, value: Any, how: How) -> Array: ...

    def write(self, x: Array, index: Any, value: Any, how: How) -> None: ...

    def read(self, x: Array, index: Any) -> Array: ...

    def new_variable(self, x: Array, copy: bool) -> Any: ...

    def value_of(self, variable: Any) -> Array: ...

    def assign(self, variable: Any, index: Any, value: Any, how: How) -> Any: ...


# -- random numbers ----------------------------------------------------------------------------------------------------


class Generator(Protocol):
    """`device` is a name that exists, or None for the engine's choice."""

    def default_integer(self) -> str: ...

    def check_dtype(self, name: str) -> None: ...

    def adopt(self, made: "NumpyArray", device: str | None) -> Array: ...


class CompilingGenerator(Protocol):
    """What that of an engine that puts something in an array's place while it traces offers, too."""

    # make(numbers of the arrays) by the host, whenever compiled code runs; its array has this shape and dtype.
    def called(
        self, make: Callable[[Sequence[Any]], Any], arrays: list[Array], shape: tuple[int, ...], dtype: str
    ) -> Array: ...


# -- the wire ----------------------------------------------------------------------------------------------------------


class Wire(Protocol):
    """A header and one buffer, and the array that they describe."""

    def encode(self, x: Array) -> tuple[bytes, memoryview]: ...

    def decode(self, header: "WireHeader", buffer: memoryview, device: Any) -> Array: ...  # Any: a name, torch.device


# -- gradients ---------------------------------------------------------------------------------------------------------

# What f gave beside its value, in pieces an engine can pass through: arrays, and all else unseen.
Call = Callable[[list[Array]], tuple[Array, list[Array], Any]]  # Any: static, passed through
Run = Callable[[list[Array]], tuple[Any, Any]]  # Any: nested tuples and lists of arrays; static
Pull = Callable[[list[Array | None]], list[Array]]


class NoGradient(Exception):
    """An engine was given a leaf that has no gradient. Whoever knows the leaf's name says which."""


class Differentiator(Protocol):
    """Functions here take flat lists of arrays: the engine's own idea of trees never matters."""

    # 0-d, real, floating-point, as far as is known while tracing: asked in every call.
    def is_real_scalar(self, x: Array) -> bool: ...

    # ((value, gradients, arrays beside the value), what `call` passed through): with the first two given it is a Run.
    # The leaves belong to who is called, here and below.
    def value_and_grad(self, call: Call, wanted: Sequence[int], leaves: list[Array]) -> tuple[Any, Any]: ...

    # The arrays f returned, what `call` passed through, and the way back, which keeps alive what it needs.
    def vjp(self, call: Call, leaves: list[Array], wanted: Sequence[int]) -> tuple[list[Array], Any, Pull]: ...

    # All arrays that f returned, what `apply` passed through, and of each array its derivative along the tangents of
    # the wanted leaves; None of one that has none.
    def jvp(
        self, apply: Run, leaves: list[Array], wanted: Sequence[int], tangents: list[Array]
    ) -> tuple[list[Array], Any, list[Array | None]]: ...

    def stop_gradient(self, x: Array) -> Array: ...


class CompilingDifferentiator(Differentiator, Protocol):
    """What that of an engine that compiles flat lists of arrays offers, too: JAX and TensorFlow."""

    # Whether compiled code takes x as an argument, and does not have it built in.
    def is_traced(self, x: Array) -> bool: ...

    def compiled(self, run: Run) -> Run: ...

    # Whether Python needed the value of an array while the engine traced.
    def is_not_concrete(self, error: Exception) -> bool: ...

    # A key as compiled code takes it.
    def words_of_key(self, key: "Key") -> Array: ...


# -- the array API standard --------------------------------------------------------------------------------------------


class Standard(Protocol):
    """For "", "linalg" and "fft" what each name of the standard that the engine has means there."""

    def names(self, part: str) -> dict[str, Any]: ...  # Any: functions, numbers and dtypes


# -- where they stand --------------------------------------------------------------------------------------------------

_Part = TypeVar("_Part")


class _Parts(dict[str, _Part], Generic[_Part]):
    """By the name of the engine, which must be installed. `get` tells what is loaded: the quickest way to it."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = file

    def __missing__(self, engine: str) -> _Part:
        found = cast(_Part, importlib.import_module(f".with_{engine}.{self._file}", __package__))
        return self.setdefault(engine, found)


exchanges = _Parts[Exchange]("exchange")
device_placements = _Parts[DevicePlacement]("devices")
writers = _Parts[Writer]("writing")
generators = _Parts[Generator]("random")
wires = _Parts[Wire]("wire")
differentiators = _Parts[Differentiator]("gradients")
standards = _Parts[Standard]("namespace")
_TABLES: dict[str, _Parts[Any]] = {
    "exchange": exchanges,
    "devices": device_placements,
    "writing": writers,
    "random": generators,
    "gradients": differentiators,
    "namespace": standards,
}


def register_engine(engine: "Engine", array_type: type, **parts: Any) -> None:
    """Add an engine to this process: `examples/own_engine.py` adds MXNet.

    Args:
        engine: its name and abilities.
        array_type: the class of its arrays; subclasses belong to the engine too.
        parts: "namespace", "exchange", "devices", "writing", "random" or "gradients", each an object with
            the functions of the protocol of this module. Only what is used is needed.

    Raises:
        TypeError: a part has another name.
    """
    if unknown := sorted(set(parts) - set(_TABLES)):
        raise TypeError(f"an engine has the parts {', '.join(_TABLES)}, got {unknown[0]!r}")
    add_engine(engine, array_type)
    for name, part in parts.items():
        _TABLES[name][engine.name] = part
