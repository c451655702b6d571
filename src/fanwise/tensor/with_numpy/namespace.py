"""The standard's functions on NumPy: those of array-api-compat, and corrections where NumPy or compat is wrong.

Each function below says what upstream does. Floats made from Python numbers are float32, as on the other engines.
"""

import functools
from collections.abc import Callable
from typing import Any

import array_api_compat.numpy as compat
import ml_dtypes
import numpy as np
from array_api_compat.numpy._info import __array_namespace_info__ as compat_info

from ..dtype_names import limits
from ..namespaces.arguments import check_bounds, check_indices, num_reduced, numbers_to_numpy, with_float32_defaults
from ..namespaces.namespace import CONSTANTS, DTYPES, PARTS

_Function = Callable[..., Any]
_Array = np.ndarray[Any, Any]
_ARRAYS = (np.ndarray, np.generic)
_LIMITS = {np.dtype(name): limits(name) for name in DTYPES if name.startswith(("int", "uint"))}
_NARROW = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64)}


def names(part: str) -> dict[str, Any]:
    """Return the functions, constants and dtypes of one part of the standard by name."""
    source = getattr(compat, part) if part else compat
    functions = {name: getattr(source, name) for name in PARTS[part] if hasattr(source, name)}
    created = {"empty", "eye", "fftfreq", "ones", "rfftfreq", "zeros"} & functions.keys()
    functions |= {name: _of_float32(functions[name]) for name in created}
    if part:
        return functions
    functions |= {name: _of_floats(functions[name]) for name in ("mean", "std", "var")}
    functions |= {name: np.dtype(name) for name in (*DTYPES, "float16")} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
    return functions | CONSTANTS | {function.__name__: function for function in _CORRECTED}


def _of_float32(function: _Function) -> _Function:
    @functools.wraps(function)
    def created(*arguments: Any, dtype: Any = None, **keywords: Any) -> Any:
        return function(*arguments, dtype=np.float32 if dtype is None else dtype, **keywords)

    return created


# NumPy makes float64 of integers, and divides by N - correction <= 0 (array-api#334).
def _of_floats(function: _Function) -> _Function:
    @functools.wraps(function)
    def reduced(x: _Array, /, *, axis: Any = None, **keywords: Any) -> Any:
        dtype = np.float32 if x.dtype.kind in "biu" else x.dtype
        if num_reduced(x.shape, axis) <= keywords.get("correction", 0.0):
            return np.full_like(np.sum(x, axis=axis, keepdims=keywords.get("keepdims", False)), np.nan, dtype=dtype)
        result = function(x, axis=axis, **keywords)
        return result.astype(np.float32) if x.dtype.kind in "biu" else result

    return reduced


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> _Array:
    if isinstance(obj, _ARRAYS) or (hasattr(obj, "__array__") and not isinstance(obj, (list, tuple))):
        return np.asarray(obj, dtype=dtype, device=device, copy=copy)
    return numbers_to_numpy(obj, dtype, copy=copy)  # type: ignore[no-any-return]


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> _Array:
    result = np.arange(start, stop, step, dtype=dtype, device=device)
    return result.astype(_NARROW[result.dtype]) if dtype is None and result.dtype in _NARROW else result


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> _Array:
    if dtype is None:
        dtype = np.complex64 if isinstance(start, complex) or isinstance(stop, complex) else np.float32
    return np.linspace(start, stop, num, dtype=dtype, endpoint=endpoint, device=device)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> _Array:
    defaults: dict[type, Any] = {float: np.float32, complex: np.complex64}
    return np.full(shape, fill_value, defaults.get(type(fill_value)) if dtype is None else dtype, device=device)


# compat writes into bounds that are arrays, and takes 5 us more than NumPy.
def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    check_bounds(x, (min, max), _LIMITS)
    return np.positive(x) if min is None and max is None else np.clip(x, min, max)


# np.take ravels the array without an axis, and allows indices of any shape.
def take(x: _Array, indices: Any, /, *, axis: int | None = None) -> Any:
    check_indices(indices, x.ndim, axis)
    return np.take(x, indices, axis)


# np.diff takes None for a number.
def diff(x: _Array, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> _Array:
    ends = {name: end for name, end in (("prepend", prepend), ("append", append)) if end is not None}
    return np.diff(x, n, axis, **ends)


# The defaults of NumPy are float64 and complex128.
def __array_namespace_info__() -> Any:
    return with_float32_defaults(compat_info(), np.dtype(np.float32), np.dtype(np.complex64))


_CORRECTED: tuple[_Function, ...] = (arange, asarray, clip, diff, full, linspace, take, __array_namespace_info__)
