"""The unique elements of an array, for engines whose own functions miscount NaN or know no complex numbers.

In functions of the standard. NaN differs from NaN, so each stays, as the standard wants it. Knows no engine.
"""

from typing import Any, NamedTuple

from .spaces import Namespace, namespace

# Any throughout: arrays of one engine.


class UniqueAll(NamedTuple):
    """Of `unique_all`."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """Of `unique_counts`."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """Of `unique_inverse`."""

    values: Any
    inverse_indices: Any


def unique_all(x: Any, /) -> UniqueAll:
    """The elements in order, where each is first, which of them stands where in x, and how often each does."""
    xp = namespace(x)
    elements = xp.reshape(x, (-1,))
    order = _order(xp, elements)
    in_order = xp.take(elements, order)
    is_first = xp.concat([xp.ones_like(in_order[:1], dtype=xp.bool), in_order[1:] != in_order[:-1]])
    numbers = xp.cumulative_sum(xp.astype(is_first, xp.int64)) - 1
    starts = xp.nonzero(is_first)[0]
    counts = xp.diff(starts, append=xp.reshape(xp.count_nonzero(xp.ones_like(order)), (1,)))
    inverse_indices = xp.take(numbers, xp.argsort(order))
    if len(x.shape) != 1:  # the length of one axis need not be known while a tf.function is traced
        inverse_indices = xp.reshape(inverse_indices, x.shape)
    return UniqueAll(xp.take(in_order, starts), xp.take(order, starts), inverse_indices, counts)


def _order(xp: Namespace, elements: Any) -> Any:
    """The indices that sort; complex numbers by real, then imaginary part."""
    if xp.isdtype(elements.dtype, "bool"):  # the standard's argsort takes numbers
        return xp.argsort(xp.astype(elements, xp.uint8))
    if not xp.isdtype(elements.dtype, "complex floating"):
        return xp.argsort(elements)
    by_imag = xp.argsort(xp.imag(elements))
    return xp.take(by_imag, xp.argsort(xp.real(xp.take(elements, by_imag))))


def unique_counts(x: Any, /) -> UniqueCounts:
    """The elements in order, and how often each stands in x."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """The elements in order, and which of them stands where in x."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any, /) -> Any:
    """The elements in order."""
    return unique_all(x).values
