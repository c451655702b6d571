"""Two results of one function on two engines: in what they differ, in words. Knows numpy arrays and trees only."""

import math
from typing import Any

import ml_dtypes
import numpy as np

from .. import trees
from ..dtype_names import dtype_name
from ..engines import engine_of, is_array_type
from ..exchange import to_numpy
from ..gradients import stop_gradient

# JAX without 64-bit types makes these of what are int64, uint64 and complex128 elsewhere. Floats it refuses.
_NARROW = {("int64", "int32"), ("uint64", "uint32"), ("complex128", "complex64")}


def difference(reference: Any, other: Any, rtol: float | None, times: float = 1.0) -> str | None:
    """What differs first between two trees of arrays and numbers; None: nothing.

    `rtol`: as in `check_portable`; `times` widens it.
    """
    leaves, form = trees.flatten(reference)
    others, other_form = trees.flatten(other)
    if len(leaves) != len(others) or form != other_form:
        return f"the results are {form} and {other_form}"
    for place, (one, two) in enumerate(zip(leaves, others, strict=True)):
        found = _leaf_difference(one, two, rtol, times)
        if found is not None:
            way = trees.path_of(form, place, "result") if len(leaves) > 1 else ""
            return f"{way}: {found}".removeprefix(": ")
    return None


def plain(x: Any) -> tuple[str, "np.ndarray[Any, Any]"] | None:
    """The name of an array's type, and a copy of its values in numpy; None: it is no array."""
    if not is_array_type(type(x)):
        return None
    engine = engine_of(x)
    values = np.array(x) if engine == "numpy" else to_numpy(stop_gradient(x), copy=True)
    return dtype_name(x.dtype), values


def _leaf_difference(one: Any, two: Any, rtol: float | None, times: float) -> str | None:
    first, second = plain(one), plain(two)
    if first is None or second is None:
        if (first is None) != (second is None):
            return f"{type(one).__name__} and {type(two).__name__}"
        return None if _same_plainly(one, two) else f"{one!r} and {two!r}"
    (dtype, x), (other_dtype, y) = first, second
    if dtype != other_dtype and (dtype, other_dtype) not in _NARROW and (other_dtype, dtype) not in _NARROW:
        return f"types {dtype} and {other_dtype}"
    if x.shape != y.shape:
        return f"shapes {x.shape} and {y.shape}"
    return _value_difference(x, y, dtype, rtol, times)


def _same_plainly(one: Any, two: Any) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        return math.isclose(one, two, rel_tol=1e-6) or (math.isnan(one) and math.isnan(two))
    return bool(type(one) is type(two) and (one == two or one is two))


def _value_difference(x: Any, y: Any, dtype: str, rtol: float | None, times: float) -> str | None:
    if x.dtype.kind in "biu":
        wrong = x != y
    else:
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        x, y = x.astype(wide), y.astype(wide)
        scale = float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0))
        precision = ml_dtypes.finfo(dtype).eps  # type: ignore[no-untyped-call]
        tolerance = times * (math.sqrt(precision) if rtol is None else rtol)
        wrong = ~np.isclose(x, y, rtol=0.0, atol=tolerance * scale, equal_nan=True)
    if not np.any(wrong):
        return None
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = f" at {list(place)}" if place else ""
    return f"values {x[place]!s} and {y[place]!s}{where}"
