"""What an index selects from an array of a given shape, found by NumPy without the array.

The engines that clamp, skip or refuse what NumPy's indexing means ask here. Loaded with the first such engine.
"""

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

Shape = tuple[int, ...]
Index = Any  # Whatever NumPy takes between brackets.


def parts_of(index: Index) -> tuple[Any, ...]:  # Any: the parts of an index
    return index if isinstance(index, tuple) else (index,)


def is_basic(index: Index) -> bool:
    """Whether the index has only integers, slices, None and `...`: then it names no place twice."""
    return all(
        part is None or part is Ellipsis or isinstance(part, slice) or (isinstance(part, int) and part is not True)
        for part in parts_of(index)
    )


def selected_shape(shape: Shape, index: Index) -> Shape:
    """The shape of `x[index]`.

    Raises:
        IndexError: the index does not fit the shape; in NumPy's words.
    """
    return np.asarray(_nothing(shape)[index]).shape


def positions(shape: Shape, index: Index) -> npt.NDArray[np.int64]:
    """Which elements `x[index]` has, counted along the last axis first, in the shape of `x[index]`.

    Raises:
        IndexError: the index does not fit the shape; in NumPy's words.
    """
    selected_shape(shape, index)
    # A copy: of one element, numpy calls a negative stride contiguous, and torch does not take it.
    return np.array(np.arange(math.prod(shape)).reshape(shape)[index], order="C")


def names_twice(found: npt.NDArray[np.int64]) -> bool:
    """Whether one position is there more than once."""
    return np.unique(found).size < found.size


def last_of_each(found: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Return where each position in `found` occurs last, for flat arrays; None if no position occurs twice."""
    flat = found.reshape(-1)
    _, from_the_end = np.unique(flat[::-1], return_index=True)
    return None if from_the_end.size == flat.size else np.sort(flat.size - 1 - from_the_end)


def check_broadcast(value_shape: Shape, to: Shape) -> None:
    """
    Raises:
        ValueError: an array of the one shape does not broadcast to the other.
    """
    try:
        fits = np.broadcast_shapes(value_shape, to) == to
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"a value of shape {value_shape} does not broadcast to the shape {to} of the place")


@functools.lru_cache(maxsize=256)
def _nothing(shape: Shape) -> npt.NDArray[np.bool_]:
    # An array of any shape over one byte.
    return np.broadcast_to(np.False_, shape)
