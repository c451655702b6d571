"""Functions that arrange elements anew without computing with them, and those that pick elements by index."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from ...namespaces.shapes import broadcast_shapes as broadcast_shapes
from .. import tf
from .arguments import Array, Size, as_shape, axes_of, axis_of, flat, ints, ndim_of, one, several, shape_from, sizes_of
from .dtypes import ALL, INTEGER, Tensor

Axis = int | tuple[int, ...]


def broadcast_to(x: Array, /, shape: Sequence[Size]) -> Tensor:
    """x repeated along axes of length 1, and new ones in front, up to the shape.

    Raises:
        ValueError: x does not fit into the shape.
    """
    x, shape = one("broadcast_to", x, ALL), shape_from(shape)
    known = isinstance(shape, list) and not any(isinstance(size, tf.Tensor) for size in shape)
    if known and x.shape.is_fully_defined() and broadcast_shapes(tuple(x.shape), tuple(shape)) != tuple(shape):
        raise ValueError(f"an array of shape {tuple(x.shape)} does not broadcast to {tuple(shape)}")
    return tf.broadcast_to(x, as_shape(shape))


def broadcast_arrays(*arrays: Array) -> tuple[Tensor, ...]:
    """All arrays with the shape that they have together.

    Raises:
        ValueError: the shapes do not fit.
    """
    tensors = [one("broadcast_arrays", x, ALL) for x in arrays]
    return tuple(tf.broadcast_to(x, shape) for x in tensors) if (shape := common_shape(tensors)) is not None else ()


def common_shape(tensors: Sequence[Tensor]) -> Any:  # Any: a tuple of ints, or a tensor while tf.function traces
    """The shape tensors have together, computed when it runs if it has to be."""
    if all(x.shape.is_fully_defined() for x in tensors):
        return broadcast_shapes(*(tuple(x.shape) for x in tensors))
    shape = tf.shape(tensors[0])
    for x in tensors[1:]:
        shape = tf.broadcast_dynamic_shape(shape, tf.shape(x))
    return shape


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Tensor:
    """Arrays behind one another along an axis that they have; flattened first if axis is None."""
    tensors = several("concat", arrays, ALL)
    if axis is None:
        return tf.concat([flat(x) for x in tensors], 0)
    return tf.concat(tensors, axis_of(axis, ndim_of(tensors[0])))


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Tensor:
    """Arrays of one shape behind one another along a new axis."""
    tensors = several("stack", arrays, ALL)
    return tf.stack(tensors, axis_of(axis, ndim_of(tensors[0]) + 1))


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The parts of x along an axis, which they no longer have."""
    x = one("unstack", x, ALL)
    return tuple(tf.unstack(x, axis=axis_of(axis, ndim_of(x))))


def expand_dims(x: Array, /, axis: Axis) -> Tensor:
    """x with a new axis of length 1 at the place, or places, of the result.

    Raises:
        IndexError: there is no such place.
    """
    x = one("expand_dims", x, ALL)
    count = 1 if not isinstance(axis, tuple) else len(axis)
    places = axes_of(axis, ndim_of(x) + count)
    old = iter(sizes_of(x))
    return tf.reshape(x, ints([1 if place in places else next(old) for place in range(ndim_of(x) + count)]))


def squeeze(x: Array, /, axis: Axis) -> Tensor:
    """x without an axis, or axes, of length 1.

    Raises:
        ValueError: the axis is longer.
    """
    x = one("squeeze", x, ALL)
    axes = axes_of(axis, ndim_of(x))
    if any(x.shape[place] not in (1, None) for place in axes):
        raise ValueError(f"squeeze drops axes of length 1, got axis {axis} of an array of shape {tuple(x.shape)}")
    return tf.squeeze(x, axes) if axes else x


def flip(x: Array, /, *, axis: Axis | None = None) -> Tensor:
    """x with the order along an axis, axes or all axes turned round."""
    x = one("flip", x, ALL)
    return tf.reverse(x, ints(axes_of(axis, ndim_of(x))))


def permute_dims(x: Array, /, axes: Sequence[int]) -> Tensor:
    """x with its axes in another order: axis i of the result is axis axes[i] of x.

    Raises:
        ValueError: not every axis is named just once.
    """
    x = one("permute_dims", x, ALL)
    order = axes_of(tuple(axes), ndim_of(x))
    if len(order) != ndim_of(x):
        raise ValueError(f"permute_dims needs all {ndim_of(x)} axes, got {tuple(axes)}")
    return tf.transpose(x, ints(order))


def matrix_transpose(x: Array, /) -> Tensor:
    """x with its last two axes exchanged.

    Raises:
        ValueError: x has fewer than two axes.
    """
    x = one("matrix_transpose", x, ALL)
    if ndim_of(x) < 2:
        raise ValueError(f"matrix_transpose needs two axes, got an array of shape {tuple(x.shape)}")
    return tf.linalg.matrix_transpose(x)


def moveaxis(x: Array, source: Axis, destination: Axis, /) -> Tensor:
    """x with axes moved to other places; the others keep their order.

    Raises:
        ValueError: source and destination name different numbers of axes.
    """
    x = one("moveaxis", x, ALL)
    sources, places = (axes_of(axis, ndim_of(x)) for axis in (source, destination))
    if len(sources) != len(places):
        raise ValueError(f"moveaxis needs as many sources as destinations, got {source} and {destination}")
    if sources == places:
        return x
    order = [axis for axis in range(ndim_of(x)) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return tf.transpose(x, ints(order))


def reshape(x: Array, /, shape: Sequence[Size], *, copy: bool | None = None) -> Tensor:
    """The elements of x, in their order, in another shape; -1 stands for the one length that follows.

    Raises:
        tf.errors.InvalidArgumentError: the shape has another number of elements.
    """
    return tf.reshape(one("reshape", x, ALL), as_shape(shape))


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Tensor:
    """Each element of x, or part along an axis, several times in a row.

    Args:
        repeats: how often: one number, or one for each part.
        axis: None flattens x first.
    """
    x = one("repeat", x, ALL)
    if axis is None:
        x, axis = flat(x), 0
    axis = axis_of(axis, ndim_of(x))
    if not isinstance(repeats, int):
        repeats = tf.cast(one("repeat", repeats, INTEGER), tf.int32)
    places = tf.repeat(tf.range(sizes_of(x)[axis]), repeats)
    return tf.gather(x, places, axis=axis)


def tile(x: Array, repetitions: Sequence[int], /) -> Tensor:
    """x several times behind itself along each axis; missing numbers in front are 1."""
    x = one("tile", x, ALL)
    ndim, count = ndim_of(x), len(repetitions)
    if count > ndim:
        x = tf.reshape(x, ints([1] * (count - ndim) + sizes_of(x)))
    times = ints([1] * (ndim - count) + list(repetitions))
    if x.dtype == tf.uint16:  # TensorFlow lacks it
        return tf.cast(tf.tile(tf.cast(x, tf.int32), times), tf.uint16)
    return tf.tile(x, times)


def roll(x: Array, /, shift: Axis, *, axis: Axis | None = None) -> Tensor:
    """x with its elements moved on by `shift` places along the axes; those pushed out come in again in front.

    Raises:
        ValueError: several shifts, and another number of axes.
    """
    x = one("roll", x, ALL)
    if axis is None:
        return tf.reshape(roll(flat(x), shift, axis=0), ints(sizes_of(x)))
    shifts = list(shift) if isinstance(shift, tuple) else [shift]
    axes = [axis_of(one_axis, ndim_of(x)) for one_axis in (axis if isinstance(axis, tuple) else (axis,))]
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll needs as many shifts as axes, got shift={shift} and axis={axis}")
    if 0 in x.shape.as_list():  # there is nothing to move, and TensorFlow divides by the length
        return x
    return tf.roll(
        x, [_within_int32(one_shift, x.shape[place]) for one_shift, place in zip(shifts, axes, strict=True)], axes
    )


def _within_int32(shift: int, size: int | None) -> int:
    return operator.index(shift) if size is None else operator.index(shift) % size


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Tensor:
    """The parts of x along an axis that the indices name; negative ones count from the end.

    Raises:
        ValueError: x has not one axis, and none is named.
        IndexError: an index is out of bounds. In a tf.function it is an InvalidArgumentError; a GPU gives zeros.
    """
    x, indices = one("take", x, ALL), one("take", indices, INTEGER)
    if axis is None and ndim_of(x) != 1:
        raise ValueError(f"take needs an axis for an array of {ndim_of(x)} axes")
    axis = axis_of(0 if axis is None else axis, ndim_of(x))
    return _in_range(x, axis, lambda: tf.gather(x, _from_front(indices, sizes_of(x)[axis]), axis=axis))


def _in_range(x: Tensor, axis: int, gather: Callable[[], Tensor]) -> Tensor:
    try:
        return gather()
    except tf.errors.InvalidArgumentError as error:
        raise IndexError(f"an index is out of range for axis {axis} with {x.shape[axis]} elements") from error


def _from_front(indices: Tensor, size: Size) -> Tensor:
    indices = tf.cast(indices, tf.int64)
    return tf.where(indices < 0, indices + tf.cast(size, tf.int64), indices)


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Tensor:
    """For each place of `indices` the element of x at that place, but at the index named there along the axis.

    Raises:
        ValueError: x and indices differ in the number of axes.
        IndexError: an index is out of bounds; as for `take`.
    """
    x, indices = one("take_along_axis", x, ALL), one("take_along_axis", indices, INTEGER)
    if ndim_of(x) != ndim_of(indices):
        raise ValueError(f"take_along_axis needs equally many axes, got {ndim_of(x)} and {ndim_of(indices)}")
    axis = axis_of(axis, ndim_of(x))
    x, indices = moveaxis(x, axis, -1), moveaxis(indices, axis, -1)
    if x.shape[:-1] != indices.shape[:-1] or not x.shape[:-1].is_fully_defined():
        x, indices = _broadcast_outer(x, indices)
    places = _from_front(indices, sizes_of(x)[-1])
    picked = _in_range(x, -1, lambda: tf.gather(x, places, batch_dims=ndim_of(x) - 1))
    return moveaxis(picked, -1, axis)


def _broadcast_outer(x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the same lengths of all axes but the last."""
    outer = tf.broadcast_dynamic_shape(tf.shape(x)[:-1], tf.shape(indices)[:-1])
    if x.shape.is_fully_defined() and indices.shape.is_fully_defined():
        outer = broadcast_shapes(tuple(x.shape)[:-1], tuple(indices.shape)[:-1])
    parts = (tf.broadcast_to(part, tf.concat([outer, tf.shape(part)[-1:]], 0)) for part in (x, indices))
    return next(parts), next(parts)
