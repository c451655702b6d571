"""Where elements are: the extreme ones, those that are not zero; and the choice between two arrays."""

from collections.abc import Callable

from .. import tf
from .arguments import Array, Operand, axis_of, check_not_empty, flat, ints, ndim_of, one, two
from .dtypes import ALL, BOOL, REAL, Tensor


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the largest element, the first one of equals; of all elements in their order if axis is None.

    Raises:
        ValueError: there are no elements.
    """
    return _place("argmax", tf.argmax, x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the smallest element, the first one of equals; of all elements in their order if axis is None.

    Raises:
        ValueError: there are no elements.
    """
    return _place("argmin", tf.argmin, x, axis, keepdims)


def _place(name: str, find: Callable[..., Tensor], x: Array, axis: int | None, keepdims: bool) -> Tensor:
    x = one(name, x, REAL)
    ndim = ndim_of(x)
    check_not_empty(name, x, range(ndim) if axis is None else [axis_of(axis, ndim)])
    if axis is None:
        place = find(flat(x), 0, tf.int64)
        return tf.reshape(place, ints([1] * ndim)) if keepdims else place
    axis = axis_of(axis, ndim)
    place = find(x, axis, tf.int64)
    return tf.expand_dims(place, axis) if keepdims else place


def nonzero(x: Array, /) -> tuple[Tensor, ...]:
    """The indices of the elements that are neither zero nor False, one array of them for each axis.

    Raises:
        ValueError: x has no axes.
    """
    x = one("nonzero", x, ALL)
    if ndim_of(x) == 0:
        raise ValueError("nonzero needs an array of one axis or more")
    where_not_zero = x if x.dtype == tf.bool else tf.not_equal(x, tf.zeros_like(x))
    return tuple(tf.unstack(tf.where(where_not_zero), num=ndim_of(x), axis=1))


def where(condition: Array, x1: Operand, x2: Operand, /) -> Tensor:
    """The elements of x1 where the condition holds, those of x2 elsewhere."""
    condition = one("where", condition, BOOL)
    x1, x2 = two("where", x1, x2, ALL)
    return tf.where(condition, x1, x2)
