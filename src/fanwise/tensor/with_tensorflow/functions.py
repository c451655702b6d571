"""The standard's functions that TensorFlow has not, or has with another meaning, on its plain operations.

The rest is in the tables of `namespace.py`. So are those here that take tensors and no arrays: what they get is of one
type, of a kind they are for. Sums and products of integers are computed in int64 or uint64, as the standard says, and
wrap around there. Sorting goes by keys: integers in the order of the elements, with -0.0 equal to 0.0 and nan
last; so nan is sorted in one place, ties keep their order both ways, and gradients flow through a gather.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

from ..namespaces.shared import broadcast_shapes as broadcast_shapes
from ..namespaces.unique import unique_all as unique_all
from ..namespaces.unique import unique_counts as unique_counts
from ..namespaces.unique import unique_inverse as unique_inverse
from ..namespaces.unique import unique_values as unique_values
from . import tf
from .arguments import (
    Array,
    Axis,
    Operand,
    Size,
    as_shape,
    as_tensor,
    axes_of,
    axis_of,
    checked,
    flat,
    ints,
    mixed,
    mixed_all,
    ndim_of,
    reduced_axes,
    sizes_of,
)
from .dtypes import (
    ALL,
    BOOL,
    COMPLEX,
    INTEGER,
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

# -- element by element ------------------------------------------------------------------------------------------------

_WORD_OF_SIZE = {2: tf.int16, 4: tf.int32, 8: tf.int64}


def is_so_of_parts(x: Tensor, is_so: Callable[[Tensor], Tensor], together: Callable[..., Tensor]) -> Tensor:
    """A test of floats, of complex numbers too."""
    if x.dtype in COMPLEX:
        return together(is_so(tf.math.real(x)), is_so(tf.math.imag(x)))
    return is_so(tf.zeros_like(x, tf.float32) if x.dtype in INTEGER else x)


def sign(x: Tensor) -> Tensor:
    return tf.cast(tf.not_equal(x, tf.zeros_like(x)), x.dtype) if x.dtype in UNSIGNED else tf.sign(x)


def signbit(x: Tensor) -> Tensor:
    return tf.bitcast(x, _WORD_OF_SIZE[x.dtype.size]) < 0


def copysign(x1: Tensor, x2: Tensor) -> Tensor:
    magnitude = tf.abs(x1)
    return tf.where(signbit(x2), -magnitude, magnitude)


def left_shift(x1: Tensor, x2: Tensor) -> Tensor:
    # TensorFlow's kernel takes more places than there are for one less than there are.
    return tf.where(_all_out(x1, x2), tf.zeros_like(x1), tf.bitwise.left_shift(x1, x2))


def right_shift(x1: Tensor, x2: Tensor) -> Tensor:
    shifted = tf.bitwise.right_shift(x1, x2)
    return tf.where(_all_out(x1, x2), tf.zeros_like(x1), shifted) if x1.dtype in UNSIGNED else shifted


def _all_out(x: Tensor, places: Tensor) -> Tensor:
    return places >= tf.constant(8 * x.dtype.size, x.dtype)


def hypot(x1: Tensor, x2: Tensor) -> Tensor:
    wide = x1.dtype if x1.dtype in (tf.float32, tf.float64) else tf.float32
    return cast(tf.abs(tf.complex(cast(x1, wide), cast(x2, wide))), x1.dtype)


def power(x1: Tensor, x2: Tensor) -> Tensor:
    if x1.dtype in UNSIGNED:  # TensorFlow lacks it; powers modulo 2**64 are right in the low bits
        return tf.cast(tf.pow(tf.cast(x1, tf.int64), tf.cast(x2, tf.int64)), x1.dtype)
    found = tf.raw_ops.Pow(x=x1, y=x2)
    # TensorFlow takes the logarithm of a complex base, which 0 has not.
    return tf.where(tf.equal(x2, tf.zeros_like(x2)), tf.ones_like(found), found) if x1.dtype in COMPLEX else found


def remainder(x1: Tensor, x2: Tensor) -> Tensor:
    left = tf.math.floormod(x1, x2)
    if x1.dtype in INTEGER:
        return left
    return tf.where(tf.equal(left, tf.zeros_like(left)), copysign(tf.zeros_like(left), x2), left)


def logaddexp(x1: Tensor, x2: Tensor) -> Tensor:
    return _logaddexp(x1 + tf.zeros_like(x2), x2 + tf.zeros_like(x1))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _logaddexp(x1: Tensor, x2: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
    # Equal infinities have no difference.
    difference = tf.where(tf.equal(x1, x2), tf.zeros_like(x1), x1 - x2)

    def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
        return upstream * tf.sigmoid(difference), upstream * tf.sigmoid(-difference)

    return tf.maximum(x1, x2) + tf.math.log1p(tf.exp(-tf.abs(difference))), gradient


def clip(x: Array, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    x = checked("clip", x, REAL)
    for bound, limit in ((min, tf.maximum), (max, tf.minimum)):
        if bound is not None:
            x = limit(x, _bound(x, bound))
    return x


def _bound(x: Tensor, bound: Operand) -> Tensor:
    """A bound of x's type; one outside its range becomes the end of the range."""
    if x.dtype in INTEGER and isinstance(bound, int):
        bound = sorted((x.dtype.min, bound, x.dtype.max))[1]
    wide, bound = mixed("clip", x, bound, REAL)
    if wide.dtype != x.dtype and x.dtype in INTEGER:
        bound = tf.clip_by_value(bound, tf.cast(x.dtype.min, bound.dtype), tf.cast(x.dtype.max, bound.dtype))
    return tf.cast(bound, x.dtype)


# -- fewer numbers of many ---------------------------------------------------------------------------------------------


def _summed_dtype(x: Tensor, dtype: DType | None) -> DType:
    if dtype is not None:
        return as_dtype(dtype)
    return tf.int64 if x.dtype in SIGNED else tf.uint64 if x.dtype in UNSIGNED else x.dtype


def numbers(name: str, x: Array) -> Tensor:
    """x, booleans as integers: the other engines count what is True."""
    x = as_tensor(x)
    return tf.cast(x, tf.int64) if x.dtype == tf.bool else checked(name, x, NUMERIC)


def floats(name: str, x: Array, allowed: frozenset[DType]) -> Tensor:
    """x, integers and booleans in float32, as floats of Python are."""
    x = as_tensor(x)
    return tf.cast(x, tf.float32) if x.dtype in INTEGER_OR_BOOL else checked(name, x, allowed)


def sum(x: Array, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False) -> Tensor:
    x = numbers("sum", x)
    return tf.reduce_sum(cast(x, _summed_dtype(x, dtype)), reduced_axes(x, axis), keepdims)


def prod(x: Array, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False) -> Tensor:
    x = numbers("prod", x)
    return tf.reduce_prod(cast(x, _summed_dtype(x, dtype)), reduced_axes(x, axis), keepdims)


def check_not_empty(name: str, x: Tensor, axis: Axis) -> None:
    """As far as sizes are known. TensorFlow gives the least number of the type."""
    if any(x.shape[place] == 0 for place in axes_of(axis, ndim_of(x))):
        raise ValueError(f"{name} of no elements has no value: the array has shape {tuple(x.shape)}")


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    x = floats("var", x, REAL_FLOATING)
    count = math.prod([sizes_of(x)[place] for place in axes_of(axis, ndim_of(x))])
    if isinstance(count, int):
        divisor = constant(max(count - correction, 0.0), x.dtype)
    else:
        divisor = tf.cast(tf.maximum(tf.cast(count, tf.float64) - correction, 0.0), x.dtype)
    axes = reduced_axes(x, axis)
    apart = tf.square(x - tf.reduce_mean(x, axes, keepdims=True))
    return tf.reduce_sum(apart, axes, keepdims) / divisor


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    x = floats("std", x, REAL_FLOATING)
    return tf.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def truth(name: str, x: Array) -> Tensor:
    """x as booleans."""
    x = checked(name, x, ALL)
    return x if x.dtype == tf.bool else tf.not_equal(x, tf.zeros_like(x))


def cumulative_sum(
    x: Array, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Tensor:
    return _running("cumulative_sum", tf.cumsum, tf.zeros, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Array, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Tensor:
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
    x = numbers(name, x)
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
    x = checked("diff", x, NUMERIC)
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


# -- where elements are, and their order -------------------------------------------------------------------------------


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    return _place("argmax", tf.argmax, x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    return _place("argmin", tf.argmin, x, axis, keepdims)


def _place(name: str, find: Callable[..., Tensor], x: Array, axis: int | None, keepdims: bool) -> Tensor:
    x = checked(name, x, REAL)
    check_not_empty(name, x, axis)
    if axis is None:
        place = find(flat(x), 0, tf.int64)
        return tf.reshape(place, ints([1] * ndim_of(x))) if keepdims else place
    axis = axis_of(axis, ndim_of(x))
    place = find(x, axis, tf.int64)
    return tf.expand_dims(place, axis) if keepdims else place


def nonzero(x: Array, /) -> tuple[Tensor, ...]:
    x = truth("nonzero", x)
    if ndim_of(x) == 0:
        raise ValueError("nonzero needs an array of one axis or more")
    return tuple(tf.unstack(tf.where(x), num=ndim_of(x), axis=1))


def where(condition: Array, x1: Operand, x2: Operand, /) -> Tensor:
    condition = checked("where", condition, BOOL)
    x1, x2 = mixed("where", x1, x2, ALL)
    return tf.where(condition, x1, x2)


def _keys(x: Tensor) -> Tensor:
    """Integers whose order is that of the elements."""
    if x.dtype == tf.bool:
        return tf.cast(x, tf.int32)
    if x.dtype in INTEGER:
        return x
    if x.dtype.size == 2:
        x = tf.cast(x, tf.float32)
    # Of two negative floats the one with larger bits is the smaller.
    x = tf.where(tf.equal(x, tf.zeros_like(x)), tf.zeros_like(x), x)
    word = _WORD_OF_SIZE[x.dtype.size]
    bits = tf.bitcast(x, word)
    mask = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, x.dtype.size * 8 - 1), word.max)
    return tf.where(tf.math.is_nan(x), tf.constant(word.max, word), tf.bitwise.bitwise_xor(bits, mask))


def _order(keys: Tensor, *, descending: bool = False) -> Tensor:
    """The indices that sort keys along the last axis; equal keys stay in their order."""
    # TensorFlow's top_k puts the lower index first among equals; turning all bits over turns the order round.
    keys = keys if descending else tf.bitwise.invert(keys)
    return tf.cast(tf.math.top_k(keys, sizes_of(keys)[-1]).indices, tf.int64)


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    x = checked("argsort", x, REAL)
    axis = axis_of(axis, ndim_of(x))
    return moveaxis(_order(_keys(moveaxis(x, axis, -1)), descending=descending), -1, axis)


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    return take_along_axis(x, argsort(x, axis=axis, descending=descending), axis=axis)


def searchsorted(
    x1: Array, x2: Operand, /, *, side: Literal["left", "right"] = "left", sorter: Array | None = None
) -> Tensor:
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', got {side!r}")
    x1, x2 = mixed("searchsorted", x1, x2, REAL)
    if sorter is not None:
        x1 = tf.gather(x1, tf.cast(checked("searchsorted", sorter, INTEGER), tf.int64))
    return _places(_keys(x1), _keys(x2), side)


def _places(sorted_keys: Tensor, keys: Tensor, side: str) -> Tensor:
    places = tf.searchsorted(sorted_keys, flat(keys), side=side, out_type=tf.int64)
    return tf.reshape(places, ints(sizes_of(keys)))


def isin(x1: Operand, x2: Operand, /, *, invert: bool = False) -> Tensor:
    x1, x2 = mixed("isin", x1, x2, ALL)
    elements = flat(x2)
    if x1.dtype in COMPLEX:
        found = tf.reduce_any(tf.equal(x1[..., tf.newaxis], elements), -1)
    else:
        keys = _keys(elements)
        in_order, wanted = tf.gather(keys, _order(keys)), _keys(x1)
        found = _places(in_order, wanted, "right") > _places(in_order, wanted, "left")
    if x1.dtype in REAL_FLOATING:
        found = tf.logical_and(found, tf.logical_not(tf.math.is_nan(x1)))
    return tf.logical_not(found) if invert else found


# -- arranging and picking ---------------------------------------------------------------------------------------------


def broadcast_to(x: Array, /, shape: Sequence[Size]) -> Tensor:
    # tf.broadcast_to cuts nothing off, but drops axes in silence.
    x = checked("broadcast_to", x, ALL)
    known = isinstance(shape, (tuple, list)) and all(isinstance(size, int) for size in shape)
    if known and x.shape.is_fully_defined() and broadcast_shapes(tuple(x.shape), tuple(shape)) != tuple(shape):
        raise ValueError(f"an array of shape {tuple(x.shape)} does not broadcast to {tuple(shape)}")
    return tf.broadcast_to(x, as_shape(shape))


def broadcast_arrays(*arrays: Array) -> tuple[Tensor, ...]:
    tensors = [checked("broadcast_arrays", x, ALL) for x in arrays]
    if all(x.shape.is_fully_defined() for x in tensors):
        shape = broadcast_shapes(*(tuple(x.shape) for x in tensors))
    else:
        shape = tf.shape(tensors[0])
        for x in tensors[1:]:
            shape = tf.broadcast_dynamic_shape(shape, tf.shape(x))
    return tuple(tf.broadcast_to(x, shape) for x in tensors)


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Tensor:
    tensors = mixed_all("concat", arrays, ALL)
    if axis is None:
        return tf.concat([flat(x) for x in tensors], 0)
    return tf.concat(tensors, axis_of(axis, ndim_of(tensors[0])))


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Tensor:
    tensors = mixed_all("stack", arrays, ALL)
    return tf.stack(tensors, axis_of(axis, ndim_of(tensors[0]) + 1))


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    x = checked("unstack", x, ALL)
    return tuple(tf.unstack(x, axis=axis_of(axis, ndim_of(x))))


def expand_dims(x: Array, /, axis: int | tuple[int, ...]) -> Tensor:
    x = checked("expand_dims", x, ALL)
    ndim = ndim_of(x) + (len(axis) if isinstance(axis, tuple) else 1)
    places, old = axes_of(axis, ndim), iter(sizes_of(x))
    return tf.reshape(x, ints([1 if place in places else next(old) for place in range(ndim)]))


def squeeze(x: Array, /, axis: int | tuple[int, ...]) -> Tensor:
    x = checked("squeeze", x, ALL)
    axes = axes_of(axis, ndim_of(x))
    if any(x.shape[place] not in (1, None) for place in axes):
        raise ValueError(f"squeeze drops axes of length 1, got axis {axis} of an array of shape {tuple(x.shape)}")
    return tf.squeeze(x, axes) if axes else x


def flip(x: Array, /, *, axis: Axis = None) -> Tensor:
    x = checked("flip", x, ALL)
    return tf.reverse(x, ints(axes_of(axis, ndim_of(x))))


def permute_dims(x: Array, /, axes: Sequence[int]) -> Tensor:
    x = checked("permute_dims", x, ALL)
    return tf.transpose(x, ints(axes_of(tuple(axes), ndim_of(x))))


def moveaxis(x: Array, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Tensor:
    x = checked("moveaxis", x, ALL)
    sources, places = (axes_of(axis, ndim_of(x)) for axis in (source, destination))
    return x if sources == places else tf.experimental.numpy.moveaxis(x, sources, places)


def reshape(x: Array, /, shape: Sequence[Size], *, copy: bool | None = None) -> Tensor:
    return tf.reshape(checked("reshape", x, ALL), as_shape(shape))


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Tensor:
    x = checked("repeat", x, ALL)
    if axis is None:
        x, axis = flat(x), 0
    axis = axis_of(axis, ndim_of(x))
    if not isinstance(repeats, int):
        repeats = tf.cast(checked("repeat", repeats, INTEGER), tf.int32)
    return tf.gather(x, tf.repeat(tf.range(sizes_of(x)[axis]), repeats), axis=axis)


def tile(x: Array, repetitions: Sequence[int], /) -> Tensor:
    x = checked("tile", x, ALL)
    ndim, count = ndim_of(x), len(repetitions)
    if count > ndim:
        x = tf.reshape(x, ints([1] * (count - ndim) + sizes_of(x)))
    times = ints([1] * (ndim - count) + list(repetitions))
    if x.dtype == tf.uint16:  # TensorFlow lacks it
        return tf.cast(tf.tile(tf.cast(x, tf.int32), times), tf.uint16)
    return tf.tile(x, times)


def roll(x: Array, /, shift: int | tuple[int, ...], *, axis: Axis = None) -> Tensor:
    x = checked("roll", x, ALL)
    if axis is None:
        return tf.reshape(roll(flat(x), shift, axis=0), ints(sizes_of(x)))
    axes = [axis_of(each, ndim_of(x)) for each in (axis if isinstance(axis, tuple) else (axis,))]
    shifts = list(shift) if isinstance(shift, tuple) else [shift] * len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll needs as many shifts as axes, got shift={shift} and axis={axis}")
    if 0 in x.shape.as_list():  # there is nothing to move, and TensorFlow divides by the length
        return x
    sizes = [x.shape[place] for place in axes]
    return tf.roll(x, [each % size if size else each for each, size in zip(shifts, sizes, strict=True)], axes)


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Tensor:
    x, indices = checked("take", x, ALL), checked("take", indices, INTEGER)
    if axis is None and ndim_of(x) != 1:
        raise ValueError(f"take needs an axis for an array of {ndim_of(x)} axes")
    axis = axis_of(0 if axis is None else axis, ndim_of(x))
    return _in_range(x, axis, lambda: tf.gather(x, _from_front(indices, sizes_of(x)[axis]), axis=axis))


def _in_range(x: Tensor, axis: int, gather: Callable[[], Tensor]) -> Tensor:
    try:
        return gather()
    except tf.errors.InvalidArgumentError as error:  # in a tf.function it stays one; a GPU gives zeros
        raise IndexError(f"an index is out of range for axis {axis} with {x.shape[axis]} elements") from error


def _from_front(indices: Tensor, size: Size) -> Tensor:
    indices = tf.cast(indices, tf.int64)
    return tf.where(indices < 0, indices + tf.cast(size, tf.int64), indices)


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Tensor:
    x, indices = checked("take_along_axis", x, ALL), checked("take_along_axis", indices, INTEGER)
    if ndim_of(x) != ndim_of(indices):
        raise ValueError(f"take_along_axis needs equally many axes, got {ndim_of(x)} and {ndim_of(indices)}")
    axis = axis_of(axis, ndim_of(x))
    x, indices = moveaxis(x, axis, -1), moveaxis(indices, axis, -1)
    if x.shape[:-1] != indices.shape[:-1] or not x.shape[:-1].is_fully_defined():
        outer = tf.broadcast_dynamic_shape(tf.shape(x)[:-1], tf.shape(indices)[:-1])
        x, indices = (tf.broadcast_to(each, tf.concat([outer, tf.shape(each)[-1:]], 0)) for each in (x, indices))
    places = _from_front(indices, sizes_of(x)[-1])
    picked = _in_range(x, -1, lambda: tf.gather(x, places, batch_dims=ndim_of(x) - 1))
    return moveaxis(picked, -1, axis)
