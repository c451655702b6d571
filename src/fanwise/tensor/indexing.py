"""`at(x)[i]`: elements of an array, to be read, or to be changed in a new array or in place.

    at(x)[1:3].set(0.0)       a new array; x stays as it is
    at(x)[rows].add(v)        if rows has an index twice, both values are added
    at(x)[i].set(v, copy=False)   x itself, if arrays of the engine can be changed

This file has the rules that hold on all engines: which values an array can hold, and that engines are not mixed.
`with_<engine>/writing.py` writes. An index out of range raises on every engine, except an index that JAX traces,
whose value is not known: JAX skips the write.
"""

import functools
import math
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from .adapters import How, writers
from .dtype_names import BOOL, COMPLEX, FLOAT, INTEGER, dtype_name, dtype_rank, limits
from .engines import engine_of, is_array_type

_Array = Any
Shape = tuple[int, ...]
Index = Any  # as NumPy takes it between brackets


class At:
    """An array to be indexed, returned by `at`."""

    __slots__ = ("_x",)

    def __init__(self, x: _Array) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> "Place":
        return Place(self._x, index)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            hint = f"; index it first: at(x)[...].{name}(...)" if hasattr(Place, name) and name[0] != "_" else ""
            raise AttributeError(f"at(x) has no {name!r}{hint}")


class Place:
    """Elements of an array, returned by `at(x)[index]`. All methods except `get` return the whole changed array.

    The index is an integer, a slice with any step, None, `...`, a boolean mask, a list or array of integers, or a tuple
    of these. A value is a number, or an array of x's engine that broadcasts to the shape of `x[index]` and is converted
    to x's dtype as `astype` does. With `copy=False` x itself is changed and returned.

    Raises (all methods):
        IndexError: the index is out of range, has too many parts, or is a mask of another shape.
        ValueError: the value does not broadcast; or copy=False, and arrays of this engine cannot be changed.
        OverflowError: the value is a Python integer that x's dtype does not hold.
        TypeError: the value is of another engine or of a kind that x does not hold (a float for integers); or the
            operation has no meaning for x's dtype.
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: _Array, index: Any) -> None:
        self._x = x
        self._index = index

    def get(self) -> _Array:
        """Return `x[index]`, with the meaning of NumPy's indices on every engine."""
        return writers[engine_of(self._x)].read(self._x, self._index)

    def set(self, value: Any, copy: bool | None = None) -> _Array:
        """Assign `value`. If an element is selected twice, any of the values may stay."""
        return _changed(self._x, self._index, value, "set", copy)

    def add(self, value: Any, copy: bool | None = None) -> _Array:
        """Add `value`, twice to an element that is selected twice."""
        return _changed(self._x, self._index, value, "add", copy)

    def subtract(self, value: Any, copy: bool | None = None) -> _Array:
        """Subtract `value`, twice from an element that is selected twice."""
        return _changed(self._x, self._index, value, "subtract", copy)

    def multiply(self, value: Any, copy: bool | None = None) -> _Array:
        """Multiply by `value`, an element that is selected twice by both values."""
        return _changed(self._x, self._index, value, "multiply", copy)

    def divide(self, value: Any, copy: bool | None = None) -> _Array:
        """Divide floats by `value`, an element that is selected twice by both values."""
        return _changed(self._x, self._index, value, "divide", copy)

    def min(self, value: Any, copy: bool | None = None) -> _Array:
        """Replace elements by the minimum of them and `value`."""
        return _changed(self._x, self._index, value, "min", copy)

    def max(self, value: Any, copy: bool | None = None) -> _Array:
        """Replace elements by the maximum of them and `value`."""
        return _changed(self._x, self._index, value, "max", copy)


def at(x: _Array, /) -> At:
    """Select elements of the array x to read or change: `at(x)[i].set(v)`, and the other methods of `Place`.

    A new array is returned by default, and x is not changed. Gradients flow to x and to v on torch, JAX and TensorFlow,
    except in JAX if an element is selected twice to be multiplied or divided.

    Args:
        x: an array of any engine, also a traced one.

    Raises:
        TypeError: when written to: x is not an array. See `Place` for the rest.

    >>> import numpy
    >>> at(numpy.zeros(4))[::-2].set(1.0)
    array([0., 1., 0., 1.])
    >>> at(numpy.zeros(3))[[0, 0, 2]].add(1.0)
    array([2., 0., 1.])
    """
    return At(x)


def _changed(x: _Array, index: Any, value: Any, how: How, copy: bool | None) -> _Array:
    writer = writers[engine_of(x)]
    check_value(x, value, how)
    if copy is not False:
        return writer.changed(x, index, value, how)
    writer.write(x, index, value, how)
    return x


_number_ranks: dict[type, int] = {bool: BOOL, int: INTEGER, float: FLOAT, complex: COMPLEX}
_LEAST = {"add": INTEGER, "subtract": INTEGER, "multiply": INTEGER, "divide": FLOAT, "min": INTEGER, "max": INTEGER}
_MOST = {"min": FLOAT, "max": FLOAT}
_allowed: set[tuple[Any, ...]] = set()


def check_value(x: _Array, value: Any, how: How) -> None:
    """Check that a value can be written into x with this operation.

    Raises:
        TypeError: another engine's array, a kind that x does not hold, or an operation that x's dtype does not have.
        OverflowError: a Python integer that x's dtype does not hold; torch would wrap it around.
    """
    # The dtype's type too: comparing dtypes of two engines raises.
    key = (type(x.dtype), x.dtype, type(value), how)
    if key in _allowed:
        return
    array_rank = dtype_rank(x.dtype)
    rank = _number_ranks.get(type(value), -1)
    if rank < 0:
        rank = _rank_of_array(x, value)
    if rank > array_rank:
        text = (
            f"an array of {dtype_name(value.dtype)}"
            if hasattr(value, "dtype")
            else f"the {type(value).__name__} {value!r}"
        )
        raise TypeError(f"{text} does not fit into an array of {dtype_name(x.dtype)}; convert it first")
    if not _LEAST.get(how, BOOL) <= array_rank <= _MOST.get(how, COMPLEX):
        raise TypeError(f"{how} has no meaning for an array of {dtype_name(x.dtype)}")
    if type(value) is float or type(value) is complex:
        _allowed.add(key)
    if rank == array_rank == INTEGER and not hasattr(value, "dtype"):
        least, most = limits(dtype_name(x.dtype))
        if not least <= value <= most:
            raise OverflowError(
                f"{value} does not fit into an array of {dtype_name(x.dtype)}, which holds {least} to {most}; "
                f"convert the array first, for example with fanwise.tensor.astype"
            )


def _rank_of_array(x: _Array, value: Any) -> int:
    engine = engine_of(x)
    for kind, rank in _number_ranks.items():
        if isinstance(value, kind):  # numpy.float64 is a float too
            return rank
    if not is_array_type(type(value)):
        raise TypeError(f"a value must be a number or an array of {engine}, got {type(value).__name__}")
    if engine_of(value) != engine:
        raise TypeError(
            f"the array is of {engine} and the value of {engine_of(value)}; "
            f"convert one of them, for example fanwise.tensor.convert(value, {engine!r})"
        )
    return dtype_rank(value.dtype)


# -- the elements that an index selects, computed by NumPy without the array -------------------------------------------
# Used by engines whose own indexing clamps, skips or refuses an index, or gives it another meaning than NumPy does.


def parts_of(index: Index) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def is_basic(index: Index) -> bool:
    """Return True if the index has only integers, slices, None and `...`: then no element is selected twice."""
    return all(
        part is None or part is Ellipsis or isinstance(part, slice) or (isinstance(part, int) and part is not True)
        for part in parts_of(index)
    )


def selected_shape(shape: Shape, index: Index) -> Shape:
    """Return the shape of `x[index]`.

    Raises:
        IndexError: the index does not fit the shape.
    """
    return np.asarray(_one_byte(shape)[index]).shape


def positions(shape: Shape, index: Index) -> npt.NDArray[np.int64]:
    """Return the places in the flat array of the elements of `x[index]`, in the shape of `x[index]`.

    Raises:
        IndexError: the index does not fit the shape.
    """
    selected_shape(shape, index)
    # A copy, because torch refuses the negative stride that a view of one element may have.
    return np.array(np.arange(math.prod(shape)).reshape(shape)[index], order="C")


def has_duplicates(places: npt.NDArray[np.int64]) -> bool:
    return np.unique(places).size < places.size


def last_of_each(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Return where each place occurs last, for flat arrays; None if no place occurs twice."""
    flat = places.reshape(-1)
    _, from_the_end = np.unique(flat[::-1], return_index=True)
    return None if from_the_end.size == flat.size else np.sort(flat.size - 1 - from_the_end)


def check_broadcast(value_shape: Shape, shape: Shape) -> None:
    """Raise ValueError if a value of that shape does not broadcast to the shape of the place."""
    if value_shape in ((), shape):
        return
    try:
        fits = np.broadcast_shapes(value_shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"a value of shape {value_shape} does not broadcast to the shape {shape} of the place")


@functools.lru_cache(maxsize=256)
def _one_byte(shape: Shape) -> npt.NDArray[np.bool_]:
    """Return an array of any shape that takes one byte of memory."""
    return np.broadcast_to(np.False_, shape)
