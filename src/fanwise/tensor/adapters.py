"""The parts of an engine, in tables that import with_<engine>/<part>.py on first use.

An engine of fanwise is such a folder and an entry in `engines.py`; `register_engine` adds others. The parts have these
functions:

    exchange    export_memory(x, copy)              the memory of x as `Exported`
                reason_to_copy(array, kind, copy)   why memory that is not private must be copied before `share`; or ""
                share(array)                        an array over this NumPy memory
                adopt(array)                        the same of private memory, where the engine puts new arrays
                copied(x)                           a copy
                devices(), device_of(x), move(x, device)    by the names of `placement.py`
      if Engine.dlpack:
                accelerator_of(x)                   device name; None in main memory, on several devices, or traced
                to_dlpack(x, copy)                  an object with the two methods of DLPack
                from_dlpack(source, copy)           None if the element type is unknown; a copy is complete on return
    writing     changed(x, index, value, how)       a new array; value is a number or array that x can hold
                read(x, index)
                new_variable(x, copy)               the storage of a `State`
                value_of(variable)
                assign(variable, index, value, how) the variable to keep
    gradients   value_and_grad(call, leaves, wanted)    `call` differentiates one real number
                vjp(call, leaves, wanted)           the result of `call`, and a `Pullback`
                stop_gradient(x)
      if Engine.jit:
                is_argument(x)                      x is an argument of compiled code, not a constant
                compiled(run)
    namespace   names(part)                         functions, numbers and dtypes of the part "", "linalg" or "fft"

`copy` has the meaning it has in `convert`. Derivatives are of flat lists, so the engine's own trees never matter;
`wanted` are the positions of the leaves to differentiate by, and the list `leaves` may be changed.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from .engines import Engine, add_engine

if TYPE_CHECKING:
    import numpy

    NumpyArray = numpy.ndarray[Any, Any]

Array = Any  # an array of the engine

# mutable: memory of the source, which may change. immutable: memory of the source, which never changes.
# private: memory made for this conversion, used by no one else.
Kind = Literal["mutable", "immutable", "private"]
# A NumPy array over the elements, and the kind of its memory. A plain tuple: a NamedTuple takes 0.2 us to make.
Exported = tuple["NumpyArray", Kind]

How = Literal["set", "add", "subtract", "multiply", "divide", "min", "max"]

# The user's function on flat lists: leaves -> (arrays to differentiate, other arrays, static part of the result).
Call = Callable[[list[Array]], tuple[list[Array], list[Array], Any]]
# A cotangent for each differentiated array (None for zeros) -> a gradient for each wanted leaf. Called repeatedly.
Pullback = Callable[[Sequence[Array | None]], list[Array]]
# Code to compile: arrays -> (nested lists of arrays, static part of the result).
Run = Callable[[list[Array]], tuple[Any, Any]]


class _Parts(dict[str, Any]):
    """One part of each engine, by the name of the engine, which must be installed."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def __missing__(self, engine: str) -> Any:
        if engine in _registered:
            raise TypeError(
                f"the engine {engine} was registered without the part {self.file!r}, which this call needs; "
                f"add {self.file}=... to register_engine"
            )
        return self.setdefault(engine, importlib.import_module(f".with_{engine}.{self.file}", __package__))


exchanges, writers, differentiators, standards = map(_Parts, ("exchange", "writing", "gradients", "namespace"))
_TABLES = {table.file: table for table in (exchanges, writers, differentiators, standards)}
_registered: set[str] = set()


def register_engine(engine: Engine, array_type: type, **parts: Any) -> None:
    """Add an engine to this process; `examples/own_engine.py` adds MXNet.

    Args:
        engine: name and abilities.
        array_type: class of its arrays; subclasses belong to the engine too.
        parts: "namespace", "exchange", "writing" and "gradients", each an object with the functions that the top of
            `fanwise.tensor.adapters` lists. Only the parts and functions in use are needed. Random numbers come through
            "exchange".

    Raises:
        TypeError: unknown part. Using a part that was left out raises a TypeError that names it.
    """
    if unknown := sorted(set(parts) - set(_TABLES)):
        raise TypeError(f"an engine has the parts {', '.join(_TABLES)}, got {unknown[0]!r}")
    add_engine(engine, array_type)
    _registered.add(engine.name)
    for name, part in parts.items():
        _TABLES[name][engine.name] = part
