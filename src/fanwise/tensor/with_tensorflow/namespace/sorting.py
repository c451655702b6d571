"""Sorting, searching in what is sorted, and the sets built on both.

Everything goes by sort keys: integers in the order of the elements, with -0.0 equal to 0.0 and nan last. So nan
is sorted in one place, ties keep their order both upwards and downwards, and gradients flow through a gather.
"""

from typing import Literal, NamedTuple

from .. import tf
from .arguments import Array, Operand, axis_of, flat, ints, ndim_of, one, sizes_of, two
from .dtypes import ALL, COMPLEX, INTEGER, REAL, REAL_FLOATING, Tensor
from .elementwise import isnan
from .manipulation import moveaxis, take_along_axis


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
    word = tf.int32 if x.dtype == tf.float32 else tf.int64
    bits = tf.bitcast(x, word)
    keys = tf.bitwise.bitwise_xor(
        bits, tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, x.dtype.size * 8 - 1), word.max)
    )
    return tf.where(tf.math.is_nan(x), tf.constant(word.max, word), keys)


def _order(keys: Tensor, *, descending: bool = False) -> Tensor:
    """The indices that sort keys along the last axis; equal keys stay in their order."""
    # TensorFlow's top_k puts the lower index first among equals; turning all bits over turns the order round.
    keys = keys if descending else tf.bitwise.invert(keys)
    return tf.cast(tf.math.top_k(keys, sizes_of(keys)[-1]).indices, tf.int64)


def _flat_order(x: Tensor) -> Tensor:
    """The indices that sort an array of one axis; complex numbers by real, then imaginary part."""
    if x.dtype not in COMPLEX:
        return _order(_keys(x))
    by_imag = _order(_keys(tf.math.imag(x)))
    return tf.gather(by_imag, _order(_keys(tf.gather(tf.math.real(x), by_imag))))


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that sort x along the axis. Always stable; nan comes last, or first if `descending`."""
    x = one("argsort", x, REAL)
    axis = axis_of(axis, ndim_of(x))
    return moveaxis(_order(_keys(moveaxis(x, axis, -1)), descending=descending), -1, axis)


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """x with its elements in order along the axis. Always stable; nan comes last, or first if `descending`."""
    x = one("sort", x, REAL)
    return take_along_axis(x, argsort(x, axis=axis, descending=descending), axis=axis)


def searchsorted(
    x1: Array, x2: Operand, /, *, side: Literal["left", "right"] = "left", sorter: Array | None = None
) -> Tensor:
    """For each element of x2 the place in the sorted x1 where it belongs: before equal ones, or behind ("right").

    Args:
        sorter: the indices that sort x1, if it is not sorted.

    Raises:
        ValueError: side is neither "left" nor "right", or x1 has not one axis.
    """
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', got {side!r}")
    x1, x2 = two("searchsorted", x1, x2, REAL)
    if ndim_of(x1) != 1:
        raise ValueError(f"searchsorted needs x1 of one axis, got shape {tuple(x1.shape)}")
    if sorter is not None:
        x1 = tf.gather(x1, tf.cast(one("searchsorted", sorter, INTEGER), tf.int64))
    return _places(_keys(x1), _keys(x2), side)


def _places(sorted_keys: Tensor, keys: Tensor, side: str) -> Tensor:
    places = tf.searchsorted(sorted_keys, flat(keys), side=side, out_type=tf.int64)
    return tf.reshape(places, ints(sizes_of(keys)))


class UniqueAll(NamedTuple):
    """What `unique_all` returns."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Array, /) -> UniqueAll:
    """The different elements in order, where each comes first, which of them each element is, how often each comes.

    Every nan is an element of its own.
    """
    x = one("unique_all", x, ALL)
    elements = flat(x)
    order = _flat_order(elements)
    in_order = tf.gather(elements, order)
    is_new = tf.concat([tf.ones_like(in_order[:1], tf.bool), tf.not_equal(in_order[1:], in_order[:-1])], 0)
    numbers = tf.cumsum(tf.cast(is_new, tf.int64)) - 1
    starts = tf.boolean_mask(tf.range(tf.size(order, tf.int64)), is_new)
    ends = tf.concat([starts[1:], tf.size(order, tf.int64)[tf.newaxis]], 0)[: tf.size(starts)]
    return UniqueAll(
        values=tf.boolean_mask(in_order, is_new),
        indices=tf.boolean_mask(order, is_new),
        inverse_indices=tf.reshape(tf.gather(numbers, tf.math.invert_permutation(order)), ints(sizes_of(x))),
        counts=ends - starts,
    )


def unique_counts(x: Array, /) -> UniqueCounts:
    """The different elements in order, and how often each comes."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Array, /) -> UniqueInverse:
    """The different elements in order, and which of them each element is."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Array, /) -> Tensor:
    """The different elements, in order."""
    return unique_all(x).values


def isin(x1: Operand, x2: Operand, /, *, invert: bool = False) -> Tensor:
    """Where an element of x1 is in x2; where it is not if `invert`. nan is in nothing."""
    x1, x2 = two("isin", x1, x2, ALL)
    elements = flat(x2)
    if x1.dtype in COMPLEX:
        found = tf.reduce_any(tf.equal(x1[..., tf.newaxis], elements), -1)
    else:
        keys = _keys(elements)
        in_order, wanted = tf.gather(keys, _order(keys)), _keys(x1)
        found = _places(in_order, wanted, "right") > _places(in_order, wanted, "left")
    if x1.dtype in REAL_FLOATING:
        found = tf.logical_and(found, tf.logical_not(isnan(x1)))
    return tf.logical_not(found) if invert else found
