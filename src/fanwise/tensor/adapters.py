"""The parts of an engine: a protocol for each, and a table of each that imports with_<engine>/<part>.py on first use.

`exchange`, `devices`, `writing` (`at` and `State`), `gradients` (optional, with compilation) and `namespace` (functions
of the array API standard). An engine of fanwise is such a folder and an entry in `engines.py`; `register_engine` adds
others.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, cast

from .engines import Engine, add_engine

if TYPE_CHECKING:
    import numpy

    NumpyArray = numpy.ndarray[Any, Any]

Array = Any  # an array of the engine

# mutable: memory of the source, which may change. immutable: memory of the source, which never changes.
# private: memory made for this conversion, used by no one else.
Kind = Literal["mutable", "immutable", "private"]

# A numpy array over the elements, and the kind of its memory. A plain tuple: a NamedTuple takes 0.2 us to make.
Exported = tuple["NumpyArray", Kind]


class Exchange(Protocol):
    """Arrays in and out. `copy` has the meaning it has in `convert`."""

    def export_memory(self, x: Array, copy: bool | None) -> Exported: ...

    def import_memory(self, exported: Exported, copy: bool | None) -> Array: ...

    # An array over private memory, where the engine puts new arrays.
    def adopt(self, array: "NumpyArray") -> Array: ...

    def copied(self, x: Array) -> Array: ...

    # The first address of its memory, and that after the last; equal if there is none.
    def addresses_of(self, x: Array) -> tuple[int, int]: ...


class DLPackExchange(Exchange, Protocol):
    """The exchange of an engine with `Engine.dlpack`: torch and JAX."""

    # The device name; None if x is in main memory, on several devices, or has no memory.
    def accelerator_of(self, x: Array) -> str | None: ...

    # An object with the two methods of DLPack.
    def to_dlpack(self, x: Array, copy: bool | None) -> Any: ...

    # None if DLPack or the engine lacks the element type. A copy is complete when this returns.
    def from_dlpack(self, source: Any, copy: bool | None) -> Array | None: ...


class DevicePlacement(Protocol):
    """Devices by the names of `placement.py`."""

    def names(self) -> list[str]: ...

    def device_of(self, x: Array) -> str: ...

    def move(self, x: Array, device: str) -> Array: ...


How = Literal["set", "add", "subtract", "multiply", "divide", "min", "max"]


class Writer(Protocol):
    """Writes into parts of arrays.

    `value` is a number or an array of the same engine that x can hold; `index` is as `at` lists it.
    A variable is the storage of a `State`; `assign` returns the variable to keep.
    """

    def changed(self, x: Array, index: Any, value: Any, how: How) -> Array: ...

    def write(self, x: Array, index: Any, value: Any, how: How) -> None: ...

    def read(self, x: Array, index: Any) -> Array: ...

    def new_variable(self, x: Array, copy: bool) -> Any: ...

    def value_of(self, variable: Any) -> Array: ...

    def assign(self, variable: Any, index: Any, value: Any, how: How) -> Any: ...


# The user's function on flat lists: leaves -> (arrays to differentiate, other arrays, static part of the result).
Call = Callable[[list[Array]], tuple[list[Array], list[Array], Any]]
# The way back: a cotangent for each differentiated array (None for zeros) -> a gradient for each wanted leaf.
Pullback = Callable[[Sequence[Array | None]], list[Array]]
# Code to compile: arrays -> (nested lists of arrays, static part of the result).
Run = Callable[[list[Array]], tuple[Any, Any]]


class Differentiator(Protocol):
    """Derivatives of functions of flat lists, so the engine's own trees never matter.

    `wanted` are the positions of the leaves to differentiate by: floating-point arrays. The list `leaves` may be
    changed.
    """

    # The result of `call`, which differentiates one real number, and the gradient by each wanted leaf.
    def value_and_grad(
        self, call: Call, leaves: list[Array], wanted: Sequence[int]
    ) -> tuple[list[Array], list[Array], Any, Sequence[Array]]: ...

    # The result of `call`, and the pullback, which may be called repeatedly.
    def vjp(
        self, call: Call, leaves: list[Array], wanted: Sequence[int]
    ) -> tuple[list[Array], list[Array], Any, Pullback]: ...

    # The result of `call`, and the derivative of each differentiated array along the tangents of the wanted leaves.
    def jvp(
        self, call: Call, leaves: list[Array], wanted: Sequence[int], tangents: list[Array]
    ) -> tuple[list[Array], list[Array], Any, list[Array]]: ...

    def stop_gradient(self, x: Array) -> Array: ...


class CompilingDifferentiator(Differentiator, Protocol):
    """The differentiator of an engine with `Engine.jit`: JAX and TensorFlow."""

    # x is an argument of compiled code, and not a constant of it.
    def is_traced(self, x: Any) -> bool: ...

    def compiled(self, run: Run) -> Run: ...

    # An array of this shape and dtype that `make` computes on the host, from the values of `arrays`, whenever compiled
    # code runs.
    def computed_on_host(
        self, make: Callable[..., "NumpyArray"], arrays: Sequence[Array], shape: tuple[int, ...], dtype: str
    ) -> Array: ...


class Standard(Protocol):
    """The engine's functions, numbers and dtypes by the standard's names, in the part "", "linalg" or "fft"."""

    def names(self, part: str) -> dict[str, Any]: ...


_Part = TypeVar("_Part")


class _Parts(dict[str, _Part], Generic[_Part]):
    """One part of each engine, by the name of the engine, which must be installed."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def __missing__(self, engine: str) -> _Part:
        if engine in _registered:
            raise TypeError(
                f"the engine {engine} was registered without the part {self.file!r}, which this call needs; "
                f"add {self.file}=... to register_engine"
            )
        part = cast(_Part, importlib.import_module(f".with_{engine}.{self.file}", __package__))
        return self.setdefault(engine, part)


exchanges = _Parts[Exchange]("exchange")
device_placements = _Parts[DevicePlacement]("devices")
writers = _Parts[Writer]("writing")
differentiators = _Parts[Differentiator]("gradients")
standards = _Parts[Standard]("namespace")
_TABLES: dict[str, _Parts[Any]] = {
    table.file: table for table in (exchanges, device_placements, writers, differentiators, standards)
}
_registered: set[str] = set()


def register_engine(engine: Engine, array_type: type, **parts: Any) -> None:
    """Add an engine to this process; `examples/own_engine.py` adds MXNet.

    Args:
        engine: name and abilities.
        array_type: class of its arrays; subclasses belong to the engine too.
        parts: "namespace", "exchange", "devices", "writing" and "gradients", each an object with the functions of the
            protocol in `fanwise.tensor.adapters`. Only the parts and functions in use are needed. Random numbers come
            through "exchange".

    Raises:
        TypeError: unknown part. Using a part that was left out raises a TypeError that names it.
    """
    if unknown := sorted(set(parts) - set(_TABLES)):
        raise TypeError(f"an engine has the parts {', '.join(_TABLES)}, got {unknown[0]!r}")
    add_engine(engine, array_type)
    _registered.add(engine.name)
    for name, part in parts.items():
        _TABLES[name][engine.name] = part
