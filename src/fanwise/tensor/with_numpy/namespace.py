"""The standard's functions on NumPy: array-api-compat's, with what is missing or slow there mended here.

What is mended, and why:
* creation: floats made of Python numbers are float32 as on the other engines; NumPy's own are float64;
* finfo: its fields are NumPy scalars, the standard says Python floats;
* mean, std, var: of integers in float32, as on the other engines; NaN, not inf, if N - correction <= 0;
* repeat: refuses uint64 repeats;
* clip: costs 5 us more than NumPy's own, and writes into array bounds that are out of range;
* broadcast_shapes, isin: keep to the standard's arguments; diff: None is no number to prepend.
"""

import functools
from collections.abc import Callable
from typing import Any

import array_api_compat.numpy as compat
import numpy as np

from ..namespaces.infos import Info, limits_of
from ..namespaces.shared import broadcast_shapes, check_indices, num_reduced, numbers_to_numpy
from ..namespaces.standard import CONSTANTS, DTYPES, PARTS

Array = np.ndarray[Any, Any]  # Any, here and below: shapes and dtypes are known only when it runs

_ARRAYS = (np.ndarray, np.generic)
_NARROW = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64)}
_DTYPE_OF_NUMBER: dict[type, Any] = {float: np.float32, complex: np.complex64}


def names(part: str) -> dict[str, Any]:
    """Every name of that part of the standard, and what it is on NumPy."""
    source = getattr(compat, part) if part else compat
    found = {name: getattr(source, name) for name in PARTS[part] if hasattr(source, name)}
    return found if part else found | _FIXED


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Array:
    if isinstance(obj, _ARRAYS) or (hasattr(obj, "__array__") and not isinstance(obj, (list, tuple))):
        return np.asarray(obj, dtype=dtype, device=device, copy=copy)
    if copy is False:
        raise ValueError(f"asarray(copy=False) takes an array, got {type(obj).__name__}, which has to be copied")
    found: Array = numbers_to_numpy(obj, dtype)
    return found


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Array:
    made = np.arange(start, stop, step, dtype=dtype, device=device)
    return made.astype(_NARROW[made.dtype]) if dtype is None and made.dtype in _NARROW else made


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Array:
    if dtype is None:
        dtype = np.complex64 if isinstance(start, complex) or isinstance(stop, complex) else np.float32
    return np.linspace(start, stop, num, dtype=dtype, endpoint=endpoint, device=device)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    return np.full(shape, fill_value, _DTYPE_OF_NUMBER.get(type(fill_value)) if dtype is None else dtype, device=device)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    if min is None and max is None:
        return np.positive(x)
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        return np.clip(x, _within(min, limits), _within(max, limits))
    if isinstance(min, _ARRAYS):
        min = min.astype(x.dtype, copy=False)
    if isinstance(max, _ARRAYS):
        max = max.astype(x.dtype, copy=False)
    return np.clip(x, min, max)


# A bound that the type cannot hold is replaced by the nearest that it can: it bounds the same.
def _within(bound: Any, limits: "np.iinfo[Any]") -> Any:
    least, most = int(limits.min), int(limits.max)
    if bound is None:
        return None
    if not isinstance(bound, _ARRAYS):
        return least if bound < least else most if bound > most else int(bound)
    if bound.dtype.kind in "iu":
        own = np.iinfo(bound.dtype)
        least, most = sorted((least, int(own.min), most, int(own.max)))[1:3]
    return np.clip(bound, least, most).astype(limits.dtype, copy=False)


def repeat(x: Array, repeats: Any, /, *, axis: int | None = None) -> Array:
    if isinstance(repeats, _ARRAYS) and repeats.dtype == np.uint64:
        repeats = repeats.astype(np.int64)
    return np.repeat(x, repeats, axis=axis)


def take(x: Array, indices: Any, /, *, axis: int | None = None) -> Any:
    check_indices(indices, x.ndim, axis)
    return np.take(x, indices, axis)


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    return np.isin(x1, x2, invert=invert)


def diff(x: Array, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Array:
    ends = {name: end for name, end in (("prepend", prepend), ("append", append)) if end is not None}
    return np.diff(x, n, axis, **ends)


finfo, iinfo = limits_of(np.dtype)


def _defaults() -> dict[str, Any]:
    kinds = {"real floating": np.float32, "complex floating": np.complex64, "integral": np.int64, "indexing": np.intp}
    return {kind: np.dtype(dtype) for kind, dtype in kinds.items()}


_DTYPES = {name: np.dtype(name) for name in DTYPES}
_INFO = Info(lambda: dict(_DTYPES), _defaults, lambda: ("cpu",))


def __array_namespace_info__() -> Info:
    return _INFO


def _extra_dtypes() -> dict[str, Any]:
    import ml_dtypes

    return {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def _real(x: Array) -> Any:
    return np.float32 if x.dtype.kind in "biu" else x.dtype


def _of_floats(function: Callable[..., Any]) -> Callable[..., Any]:
    """mean, std or var: of integers float32, as of Python numbers."""

    @functools.wraps(function)
    def mended(x: Array, /, *, axis: Any = None, **keywords: Any) -> Any:
        count = num_reduced(x.shape, axis)
        if count <= keywords.get("correction", 0.0):  # NumPy divides by 0, array-api#334
            return np.full_like(np.sum(x, axis=axis, keepdims=keywords.get("keepdims", False)), np.nan, dtype=_real(x))
        found = function(x, axis=axis, **keywords)
        return found.astype(np.float32) if x.dtype.kind in "biu" else found

    return mended


def _of_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """What makes floats where no `dtype` is given."""

    @functools.wraps(function)
    def made(*arguments: Any, dtype: Any = None, **keywords: Any) -> Any:
        return function(*arguments, dtype=np.float32 if dtype is None else dtype, **keywords)

    return made


_MENDED: tuple[Callable[..., Any], ...] = (
    *(arange, asarray, broadcast_shapes, clip, diff, finfo, full, iinfo, isin, linspace, repeat, take),
    __array_namespace_info__,
)
_FIXED: dict[str, Any] = {
    **CONSTANTS,
    **_DTYPES,
    **_extra_dtypes(),
    **{function.__name__: function for function in _MENDED},
    **{name: _of_float32(getattr(compat, name)) for name in ("empty", "eye", "ones", "zeros")},
    **{name: _of_floats(getattr(compat, name)) for name in ("mean", "std", "var")},
}
