"""Which function of this folder has which name of the standard, part by part; and what TensorFlow tells of itself."""

from types import ModuleType
from typing import Any

from ...namespaces.infos import Info
from ...namespaces.standard import CONSTANTS, DTYPES, EXTRA_DTYPES, PARTS
from .. import tf
from . import (
    arithmetic,
    comparisons,
    creation,
    dtypes,
    elementwise,
    fft,
    linalg,
    manipulation,
    products,
    reductions,
    searching,
    sorting,
)
from .dtypes import DEFAULT_COMPLEX, DEFAULT_FLOAT, DEFAULT_INT, DType

_FILES: dict[str, tuple[ModuleType, ...]] = {
    "": (
        *(arithmetic, comparisons, creation, dtypes, elementwise),
        *(manipulation, products, reductions, searching, sorting),
    ),
    "linalg": (linalg,),
    "fft": (fft,),
}


def names(part: str) -> dict[str, Any]:  # Any: functions, numbers and types
    """Every name of that part of the standard, and what it is on TensorFlow."""
    offered = {name: function for file in _FILES[part] for name, function in vars(file).items()}
    found = {name: _as_it_is(offered[name]) for name in PARTS[part]}
    return found if part else found | CONSTANTS | _dtypes() | {"__array_namespace_info__": __array_namespace_info__}


def _as_it_is(function: Any) -> Any:  # Any: a function
    """The function, marked so that tf.function calls it as it is.

    Rewriting its source, as is done with user code, would take tens of milliseconds a function and do nothing:
    branches here depend on Python values alone. The mark is the one of tf.autograph.experimental.do_not_convert,
    whose wrapper would cost every call.
    """
    function.autograph_info__ = {}
    return function


def _standard_dtypes() -> dict[str, DType]:
    return {name: getattr(tf, name) for name in DTYPES}


def _dtypes() -> dict[str, DType]:
    return _standard_dtypes() | {name: getattr(tf, name) for name in EXTRA_DTYPES}


def _defaults() -> dict[str, DType]:
    return {
        "real floating": DEFAULT_FLOAT,
        "complex floating": DEFAULT_COMPLEX,
        "integral": DEFAULT_INT,
        "indexing": DEFAULT_INT,
    }


def _devices() -> tuple[str, ...]:
    """The devices, as `x.device` names them; the one where TensorFlow puts floats first."""
    default = str(tf.zeros(()).device)
    task = default.partition("/device:")[0]
    kinds = ("CPU", "GPU")
    named = [task + device.name for device in tf.config.list_logical_devices() if device.device_type in kinds]
    return (default, *(name for name in named if name != default))


# Eight axes are what the kernels for slices and transposes of every type take.
_INFO = Info(_standard_dtypes, _defaults, _devices, max_dimensions=8)


def __array_namespace_info__() -> Info:
    """The standard's inspection of TensorFlow: devices, types, defaults."""
    return _INFO
