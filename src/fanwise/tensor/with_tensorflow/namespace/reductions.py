"""Functions that make fewer numbers of many: sums, extremes, means, and running sums.

Sums and products of integers are computed in int64 or uint64, as the standard says, and wrap around there.
An axis is an int, a tuple of ints, or None for all; an empty tuple reduces nothing.
"""

import builtins
import math
from collections.abc import Callable
from typing import Any

from .. import tf
from .arguments import Array, as_tensor, axes_of, axis_of, check_not_empty, ints, ndim_of, one, sizes_of
from .dtypes import (
    ALL,
    COMPLEX,
    FLOATING,
    INTEGER_OR_BOOL,
    NUMERIC,
    REAL,
    REAL_FLOATING,
    SIGNED,
    UNSIGNED,
    DType,
    Tensor,
    as_dtype,
    cast,
    constant,
)

Axis = int | tuple[int, ...] | None


def _axes(x: Tensor, axis: Axis) -> Any:  # Any: as TensorFlow takes them fastest
    return _as_argument(axes_of(axis, ndim_of(x)))


def _as_argument(axes: list[int]) -> Any:  # Any: the same
    return axes[0] if len(axes) == 1 else ints(axes)


def _summed_dtype(x: Tensor, dtype: DType | None) -> DType:
    if dtype is not None:
        return as_dtype(dtype)
    return tf.int64 if x.dtype in SIGNED else tf.uint64 if x.dtype in UNSIGNED else x.dtype


def _numbers(name: str, x: Array) -> Tensor:
    """x, booleans as integers: the other engines count what is True."""
    x = as_tensor(x)
    return tf.cast(x, tf.int64) if x.dtype == tf.bool else one(name, x, NUMERIC)


def _floats(name: str, x: Array, allowed: frozenset[DType]) -> Tensor:
    """x, integers and booleans in float32, as floats of Python are."""
    x = as_tensor(x)
    return tf.cast(x, tf.float32) if x.dtype in INTEGER_OR_BOOL else one(name, x, allowed)


def sum(x: Array, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False) -> Tensor:
    """The sum; 0 of no elements. Integers are summed in 64 bits unless dtype says otherwise."""
    x = _numbers("sum", x)
    return tf.reduce_sum(cast(x, _summed_dtype(x, dtype)), _axes(x, axis), keepdims)


def prod(x: Array, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False) -> Tensor:
    """The product; 1 of no elements. Integers are multiplied in 64 bits unless dtype says otherwise."""
    x = _numbers("prod", x)
    return tf.reduce_prod(cast(x, _summed_dtype(x, dtype)), _axes(x, axis), keepdims)


def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element; nan if one is nan.

    Raises:
        ValueError: there are no elements.
    """
    return _extreme("max", tf.reduce_max, x, axis, keepdims)


def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element; nan if one is nan.

    Raises:
        ValueError: there are no elements.
    """
    return _extreme("min", tf.reduce_min, x, axis, keepdims)


def _extreme(name: str, reduce: Callable[..., Tensor], x: Array, axis: Axis, keepdims: bool) -> Tensor:
    x = one(name, x, REAL)
    axes = axes_of(axis, ndim_of(x))
    check_not_empty(name, x, axes)
    return reduce(x, _as_argument(axes), keepdims)


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The arithmetic mean; nan of no elements. Of integers in float32."""
    x = _floats("mean", x, FLOATING)
    return tf.reduce_mean(x, _axes(x, axis), keepdims)


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The mean squared distance from the mean, where the sum is divided by the number of elements - correction.

    correction=1 estimates the variance of what a sample was drawn from. The result is nan or infinite where
    there are no more elements than `correction`.
    """
    x = _floats("var", x, REAL_FLOATING)
    axes = axes_of(axis, ndim_of(x))
    count = math.prod([sizes_of(x)[place] for place in axes])
    if isinstance(count, int):
        divisor = constant(builtins.max(count - correction, 0.0), x.dtype)
    else:
        divisor = tf.cast(tf.maximum(tf.cast(count, tf.float64) - correction, 0.0), x.dtype)
    places = _as_argument(axes)
    apart = tf.square(x - tf.reduce_mean(x, places, keepdims=True))
    return tf.reduce_sum(apart, places, keepdims) / divisor


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The square root of `var`."""
    x = _floats("std", x, REAL_FLOATING)
    return tf.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def _truth(x: Array) -> Tensor:
    x = one("all", x, ALL)
    return x if x.dtype == tf.bool else tf.not_equal(x, tf.zeros_like(x))


def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether no element is zero or False; True of no elements."""
    x = _truth(x)
    return tf.reduce_all(x, _axes(x, axis), keepdims)


def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether one element is neither zero nor False; False of no elements."""
    x = _truth(x)
    return tf.reduce_any(x, _axes(x, axis), keepdims)


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements are neither zero nor False, as int64."""
    x = tf.cast(_truth(x), tf.int64)
    return tf.reduce_sum(x, _axes(x, axis), keepdims)


def cumulative_sum(
    x: Array, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Tensor:
    """The sums of the elements up to and including each one; before them a 0 if `include_initial`.

    Raises:
        ValueError: x has not one axis, and none is named.
    """
    return _running("cumulative_sum", tf.cumsum, tf.zeros, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Array, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Tensor:
    """The products of the elements up to and including each one; before them a 1 if `include_initial`.

    Raises:
        ValueError: x has not one axis, and none is named.
    """
    return _running("cumulative_prod", _cumprod, tf.ones, x, axis, dtype, include_initial)


def _cumprod(x: Tensor, axis: int) -> Tensor:
    if x.dtype not in COMPLEX or x.shape[axis] == 0:
        return tf.math.cumprod(x, axis)
    # TensorFlow's own gradient of this lacks a conjugate, that of plain products does not.
    swapped = list(range(ndim_of(x)))
    swapped[0], swapped[axis] = axis, 0
    return tf.transpose(tf.scan(tf.multiply, tf.transpose(x, swapped)), swapped)


def _running(
    name: str,
    accumulate: Callable[..., Tensor],
    initial: Callable[..., Tensor],
    x: Array,
    axis: int | None,
    dtype: DType | None,
    include_initial: bool,
) -> Tensor:
    x = _numbers(name, x)
    if axis is None and ndim_of(x) != 1:
        raise ValueError(f"{name} needs an axis for an array of {ndim_of(x)} axes")
    place = axis_of(0 if axis is None else axis, ndim_of(x))
    x = cast(x, _summed_dtype(x, dtype))
    sums = accumulate(x, place)
    if not include_initial:
        return sums
    shape = sizes_of(x)
    shape[place] = 1
    return tf.concat([initial(ints(shape), x.dtype), sums], place)


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None
) -> Tensor:
    """What each element has more than the one before it along the axis, computed n times.

    Raises:
        ValueError: n is negative.
        TypeError: prepend or append are of another type than x.
    """
    x = one("diff", x, NUMERIC)
    axis = axis_of(axis, ndim_of(x))
    if n < 0:
        raise ValueError(f"diff needs n >= 0, got {n}")
    parts = [as_tensor(part) for part in (prepend, x, append) if part is not None]
    if {part.dtype for part in parts} != {x.dtype}:
        raise TypeError(f"diff needs one type, got {', '.join(part.dtype.name for part in parts)}")
    x = tf.concat(parts, axis) if n and len(parts) > 1 else x
    before = (slice(None),) * axis
    for _ in range(n):
        x = x[(*before, slice(1, None))] - x[(*before, slice(None, -1))]
    return x
