"""Products of vectors, matrices and tensors."""

import math
from collections.abc import Sequence

from .. import tf
from .arguments import Array, axes_of, ints, ndim_of, sizes_of, two
from .dtypes import INTEGER, NUMERIC, Tensor
from .manipulation import broadcast_shapes

# What TensorFlow multiplies; other integers go through int64, whose low bits are right for all of them.
_NATIVE = frozenset({tf.int32, tf.int64})


def matmul(x1: Array, x2: Array, /) -> Tensor:
    """The matrix product over the last two axes; a vector counts as one row on the left, one column on the right.

    Raises:
        ValueError: an array has no axes.
        tf.errors.InvalidArgumentError: the lengths do not fit.
    """
    x1, x2 = two("matmul", x1, x2, NUMERIC)
    first, second = ndim_of(x1), ndim_of(x2)
    if first >= 2 and second >= 2:
        return _matrix_product(x1, x2)
    if first == 0 or second == 0:
        raise ValueError(f"matmul needs arrays of one axis or more, got shapes {x1.shape} and {x2.shape}")
    product = _matrix_product(x1[tf.newaxis] if first == 1 else x1, x2[:, tf.newaxis] if second == 1 else x2)
    if second == 1:
        product = tf.squeeze(product, -1)
    return tf.squeeze(product, -1 if second == 1 else -2) if first == 1 else product


def _matrix_product(x1: Tensor, x2: Tensor) -> Tensor:
    dtype = x1.dtype
    if dtype in INTEGER and dtype not in _NATIVE:
        return tf.cast(tf.matmul(tf.cast(x1, tf.int64), tf.cast(x2, tf.int64)), dtype)
    return tf.matmul(x1, x2)


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sum of products over pairs of axes; the remaining axes of x1 come first.

    Args:
        axes: how many of the last axes of x1 go with the first ones of x2, or which axes of both.

    Raises:
        ValueError: the axes differ in number, or in length.
    """
    x1, x2 = two("tensordot", x1, x2, NUMERIC)
    ndim1, ndim2 = ndim_of(x1), ndim_of(x2)
    if isinstance(axes, int):
        if not 0 <= axes <= min(ndim1, ndim2):
            raise ValueError(f"tensordot over {axes} axes of arrays of {ndim1} and {ndim2} axes")
        summed1, summed2 = list(range(ndim1 - axes, ndim1)), list(range(axes))
    else:
        summed1, summed2 = axes_of(tuple(axes[0]), ndim1), axes_of(tuple(axes[1]), ndim2)
    _check_lengths(x1, x2, summed1, summed2)
    free1 = [axis for axis in range(ndim1) if axis not in summed1]
    free2 = [axis for axis in range(ndim2) if axis not in summed2]
    sizes1, sizes2 = sizes_of(x1), sizes_of(x2)
    inner = math.prod([sizes1[axis] for axis in summed1])
    rows, columns = (math.prod([sizes[axis] for axis in free]) for sizes, free in ((sizes1, free1), (sizes2, free2)))
    left = tf.reshape(tf.transpose(x1, ints(free1 + summed1)), ints([rows, inner]))
    right = tf.reshape(tf.transpose(x2, ints(summed2 + free2)), ints([inner, columns]))
    shape = [sizes1[axis] for axis in free1] + [sizes2[axis] for axis in free2]
    return tf.reshape(_matrix_product(left, right), ints(shape))


def _check_lengths(x1: Tensor, x2: Tensor, axes1: list[int], axes2: list[int]) -> None:
    if len(axes1) != len(axes2):
        raise ValueError(f"tensordot needs equally many axes of both, got {len(axes1)} and {len(axes2)}")
    lengths = [(x1.shape[one], x2.shape[two_]) for one, two_ in zip(axes1, axes2, strict=True)]
    if any(one != other and None not in (one, other) for one, other in lengths):
        raise ValueError(f"tensordot over axes of different lengths: {lengths}")


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Tensor:
    """The sum over an axis, counted from the end, of conj(x1) * x2.

    Raises:
        ValueError: the axis is not negative, or is longer in one of the two.
    """
    x1, x2 = two("vecdot", x1, x2, NUMERIC)
    if not -min(ndim_of(x1), ndim_of(x2)) <= axis <= -1:
        raise ValueError(f"vecdot needs an axis counted from the end that both have, got {axis}")
    if None not in (lengths := (x1.shape[axis], x2.shape[axis])) and lengths[0] != lengths[1]:
        raise ValueError(f"vecdot over axes of different lengths, {lengths[0]} and {lengths[1]}")
    return tf.reduce_sum(tf.math.conj(x1) * x2, axis)


def broadcast_stacks(x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    """Two stacks of matrices with the same axes before the last two."""
    if x1.shape.is_fully_defined() and x2.shape.is_fully_defined():
        outer = broadcast_shapes(tuple(x1.shape)[:-2], tuple(x2.shape)[:-2])
        return tf.broadcast_to(x1, outer + tuple(x1.shape)[-2:]), tf.broadcast_to(x2, outer + tuple(x2.shape)[-2:])
    outer = tf.broadcast_dynamic_shape(tf.shape(x1)[:-2], tf.shape(x2)[:-2])
    parts = (tf.broadcast_to(x, tf.concat([outer, tf.shape(x)[-2:]], 0)) for x in (x1, x2))
    return next(parts), next(parts)
