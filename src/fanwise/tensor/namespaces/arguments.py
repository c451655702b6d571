"""Checks and conversions of arguments, and corrections of derivatives, for the functions of all engines."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

_NUMBERS = {bool, int, float, complex}


def made_of_python_numbers(x: object) -> bool:
    """Return True for a Python number, and for lists and tuples of nothing else. Takes about 10 ns per number."""
    if not isinstance(x, (list, tuple)):
        return type(x) in _NUMBERS
    return set(map(type, x)) <= _NUMBERS or all(map(made_of_python_numbers, x))


def contains(obj: object, kinds: tuple[type, ...]) -> bool:
    """Return True if obj is of one of these types, or a list or tuple with such an object at any depth."""
    if isinstance(obj, (list, tuple)):
        return any(contains(part, kinds) for part in obj)
    return isinstance(obj, kinds)


def numbers_to_numpy(obj: Any, dtype: Any = None, integer: str = "int64", *, copy: bool | None = None) -> Any:
    """Convert a Python number, nested lists of them, or a NumPy array to a new NumPy array.

    The default dtypes are float32 for Python floats, complex64 for complex numbers, and `integer`. Raise OverflowError
    for an integer that does not fit, TypeError for anything but numbers, and ValueError if `copy` is False.
    """
    if copy is False:
        raise ValueError(f"asarray(copy=False) takes an array, got {type(obj).__name__}, which has to be copied")
    array = np.array(obj)
    is_python = made_of_python_numbers(obj)
    if array.dtype.kind == "O" and is_python:
        raise OverflowError(f"an integer in {obj!r:.100} does not fit into {integer}")
    if array.dtype.kind not in "biufcV":
        raise TypeError(f"asarray takes numbers, got {type(obj).__name__}: {obj!r:.100}")
    if dtype is None:
        if not is_python:
            return array
        # NumPy makes uint64 or float64 of integers that int64 cannot hold.
        kind = "i" if array.size and array.dtype.kind in "uf" and _only_integers(obj) else array.dtype.kind
        dtype = {"b": "bool", "i": integer, "f": "float32", "c": "complex64"}[kind]
    return np.array(obj, dtype) if is_python else array.astype(dtype)


def _only_integers(obj: Any) -> bool:
    return all(map(_only_integers, obj)) if isinstance(obj, (list, tuple)) else isinstance(obj, int)


def check_fits(number: int, limits: tuple[int, int] | None) -> None:
    """Raise OverflowError for an integer outside of the limits of a dtype, which engines would wrap around."""
    if limits is not None and not limits[0] <= number <= limits[1]:
        raise OverflowError(
            f"the Python integer {number} does not fit into the array's type, which holds {limits[0]} to {limits[1]}; "
            f"convert the array first: fanwise.tensor.astype(x, dtype)"
        )


def check_number(x1: Any, x2: Any, limits_of: dict[Any, tuple[int, int]]) -> None:
    """Raise OverflowError if one argument is a Python integer outside of the limits of the other's dtype."""
    if type(x2) is int:
        check_fits(x2, limits_of.get(getattr(x1, "dtype", None)))
    elif type(x1) is int:
        check_fits(x1, limits_of.get(getattr(x2, "dtype", None)))


def check_numbers(*values: Any) -> None:
    """Raise TypeError for an array among the arguments of `arange` or `linspace`: no gradient would flow through."""
    if any(hasattr(value, "shape") and not isinstance(value, np.generic) for value in values):
        raise TypeError("arange and linspace take numbers, not arrays, through which no gradient would flow")


def check_bounds(x: Any, bounds: tuple[Any, Any], limits_of: dict[Any, tuple[int, int]]) -> None:
    """Raise unless the bounds of `clip` are None, numbers that x's dtype holds, or arrays of that dtype."""
    for bound in bounds:
        if hasattr(bound, "shape") and bound.dtype != x.dtype:
            raise TypeError(f"clip takes bounds of the array's dtype {x.dtype}, got an array of {bound.dtype}")
        if type(bound) is float and x.dtype in limits_of:
            raise TypeError(f"clip takes integers as the bounds of an array of {x.dtype}, got {bound!r}")
        check_number(x, bound, limits_of)


def check_indices(indices: Any, num_axes: int, axis: int | None) -> None:
    """Raise ValueError unless `take` is defined for these indices; engines return different results otherwise."""
    if len(indices.shape) != 1:
        raise ValueError(f"take needs one-dimensional indices, got shape {tuple(indices.shape)}")
    if axis is None and num_axes != 1:
        raise ValueError(f"take needs an axis for an array of {num_axes} dimensions")


def num_reduced(shape: tuple[int, ...], axis: int | tuple[int, ...] | None) -> int:
    """Return how many elements a reduction over these axes combines into one."""
    axes = range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    return math.prod(shape[index] for index in axes)


def with_float32_defaults(info: Any, float32: Any, complex64: Any) -> Any:
    """Return `__array_namespace_info__()` of another library with the default dtypes of this one."""
    upstream = info.default_dtypes
    info.default_dtypes = lambda *, device=None: {
        **upstream(device=device),
        "real floating": float32,
        "complex floating": complex64,
    }
    return info


# -- derivatives; `library` is torch, jax.numpy or tensorflow ----------------------------------------------------------


def root(library: Any, squares: Any) -> Any:
    """Return the square root of numbers that are not negative, with the derivative 0 at 0."""
    is_zero = squares == 0
    safe = library.where(is_zero, library.ones_like(squares), squares)
    return library.where(is_zero, squares, library.sqrt(safe))


def hypot(library: Any, x1: Any, x2: Any, scale: Any) -> Any:
    """Return hypot with the derivatives 0 at 0; `scale` is the larger absolute value as a constant."""
    if "complex" in str(x1.dtype):
        raise TypeError(f"hypot takes real numbers, got an array of {x1.dtype}")
    is_infinite = (abs(x1) == math.inf) | (abs(x2) == math.inf)
    safe = library.where((scale > 0) & (scale < math.inf), scale, library.ones_like(scale))
    result = safe * root(library, (x1 / safe) ** 2 + (x2 / safe) ** 2)
    return library.where(is_infinite, library.ones_like(result) * math.inf, result)


def clip(library: Any, x: Any, low: Any, high: Any) -> Any:
    """Return x within the bounds, with the derivative 1 at a bound, and NaN where a bound is NaN."""
    if low is not None:
        x = library.where((x < low) | (low != low), low, x)
    return x if high is None else library.where((x > high) | (high != high), high, x)


def pow(library: Any, x1: Any, x2: Any, power: Callable[[Any, Any], Any]) -> Any:
    """Return the power, with the derivatives of x**0 and x**1 at 0, where the library has NaN."""
    is_zero, is_one = x1 == 0, x2 == 1
    result = power(library.where(is_zero & (is_one | (x2 == 0)), library.ones_like(x1), x1), x2)
    return library.where(is_zero & is_one, x1, result)
