"""`at(x)[i]`: elements of an array, to be read, or to be changed in a new array.

    at(x)[1:3].set(0.0)       a new array; x stays as it is
    at(x)[rows].add(v)        if rows has an index twice, both values are added

This file has the rules that hold on all engines: which values an array can hold, and which elements an index selects.
`with_<engine>/writing.py` writes. An index out of range raises on every engine, except an index that JAX traces,
whose value is not known: JAX skips the write.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .adapters import How, writers
from .dtype_names import BOOL, COMPLEX, FLOAT, INTEGER, dtype_name, dtype_rank, limits
from .engines import engine_of
from .namespaces.arguments import check_fits

_Array = Any
Shape = tuple[int, ...]
Index = Any  # as NumPy takes it between brackets
Positions = npt.NDArray[np.int64]
_NO_INDEX: Any = object()


class At:
    """Elements of an array, returned by `at(x)[index]`. All methods except `get` return the whole changed array.

    The index is an integer, a slice with any step, None, `...`, a boolean mask, a list or array of integers, or a tuple
    of these. A value is a number, or an array of x's engine that broadcasts to the shape of `x[index]` and is converted
    to x's dtype as `astype` does.

    Raises (all methods):
        IndexError: the index is out of range, has too many parts, or is a mask of another shape.
        ValueError: the value does not broadcast; or an element is selected twice, except for `set`, `add`, `subtract`.
        OverflowError: the value is a Python integer that x's dtype does not hold.
        TypeError: there is no index; the value is of another engine or of a kind that x does not hold (a float for
            integers); or the operation is not defined for x's dtype.
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: _Array, index: Any = _NO_INDEX) -> None:
        self._x = x
        self._index = index

    def __getitem__(self, index: Any) -> "At":
        if self._index is not _NO_INDEX:
            raise TypeError("at(x)[index] has an index already; give one index, such as at(x)[i, j]")
        return At(self._x, index)

    def get(self) -> _Array:
        """Return `x[index]`, with the meaning of NumPy's indices on every engine."""
        return self._writer().read(self._x, self._index)

    def set(self, value: Any) -> _Array:
        """Assign `value`. If an element is selected twice, any of the values may stay."""
        return self._changed(value, "set")

    def add(self, value: Any) -> _Array:
        """Add `value`, twice to an element that is selected twice."""
        return self._changed(value, "add")

    def subtract(self, value: Any) -> _Array:
        """Subtract `value`, twice from an element that is selected twice."""
        return self._changed(value, "subtract")

    def multiply(self, value: Any) -> _Array:
        """Multiply by `value`."""
        return self._changed(value, "multiply")

    def divide(self, value: Any) -> _Array:
        """Divide floats by `value`."""
        return self._changed(value, "divide")

    def min(self, value: Any) -> _Array:
        """Replace elements by the minimum of them and `value`."""
        return self._changed(value, "min")

    def max(self, value: Any) -> _Array:
        """Replace elements by the maximum of them and `value`."""
        return self._changed(value, "max")

    def _changed(self, value: Any, how: How) -> _Array:
        x, writer = self._x, self._writer()
        check_value(x, value, how)
        return writer.changed(x, self._index, value, how)

    def _writer(self) -> Any:
        if self._index is _NO_INDEX:
            raise TypeError("at(x) has no index; write at(x)[index].set(...), or at(x)[...] for all elements")
        return writers[engine_of(self._x)]


def at(x: _Array, /) -> At:
    """Select elements of the array x to read or change: `at(x)[i].set(v)`, and the other methods of `At`.

    A new array is returned, and x is not changed. Gradients flow to x and to v on torch, JAX and TensorFlow.

    Args:
        x: an array of any engine, also a traced one.

    Raises:
        TypeError: when written to: x is not an array. See `At` for the rest.

    >>> import numpy
    >>> at(numpy.zeros(4))[::-2].set(1.0)
    array([0., 1., 0., 1.])
    >>> at(numpy.zeros(3))[[0, 0, 2]].add(1.0)
    array([2., 0., 1.])
    """
    return At(x)


_number_ranks: dict[type, int] = {bool: BOOL, int: INTEGER, float: FLOAT, complex: COMPLEX}
_LEAST = {"set": BOOL, "divide": FLOAT}
_MOST = {"min": FLOAT, "max": FLOAT}
_allowed: set[tuple[Any, ...]] = set()


def check_value(x: _Array, value: Any, how: How) -> None:
    """Raise TypeError or OverflowError unless a value can be written into x with this operation."""
    dtype = x.dtype
    # The dtype's type too: comparing dtypes of two engines raises.
    key = (type(dtype), dtype, type(value), how)
    if key in _allowed:
        return
    array_name, array_rank = dtype_name(dtype), dtype_rank(dtype)
    # numpy.float64 is a float too.
    rank = next((rank for kind, rank in _number_ranks.items() if isinstance(value, kind)), None)
    if rank is None:
        if (engine := engine_of(value)) != engine_of(x):
            raise TypeError(
                f"the array is of {engine_of(x)} and the value of {engine}; "
                f"convert one of them, for example fanwise.tensor.convert(value, {engine_of(x)!r})"
            )
        rank = dtype_rank(value.dtype)
    if rank > array_rank:
        text = f"an array of {dtype_name(value.dtype)}" if hasattr(value, "dtype") else f"{value!r}"
        raise TypeError(f"{text} does not fit into an array of {array_name}; convert it first")
    if not _LEAST.get(how, INTEGER) <= array_rank <= _MOST.get(how, COMPLEX):
        raise TypeError(f"{how} is not defined for an array of {array_name}")
    if type(value) is float or type(value) is complex:
        _allowed.add(key)
    if type(value) is int and array_rank == INTEGER:
        check_fits(value, limits(array_name))


# -- the elements that an index selects, computed by NumPy -------------------------------------------------------------
# Engines clamp, skip or refuse some indices, or give them another meaning than NumPy does.


def operation(library: Any, how: How) -> Callable[[Any, Any], Any]:
    """Return the function of two arrays that changes elements; `library` has minimum and maximum."""
    function: Callable[[Any, Any], Any] = _OPERATORS.get(how) or getattr(library, f"{how}imum")
    return function


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
}


def parts_of(index: Index) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def is_basic(index: Index) -> bool:
    """Return True if the index has only integers, slices, None and `...`: then no element is selected twice."""
    return all(
        part is None or part is Ellipsis or isinstance(part, slice) or (isinstance(part, int) and part is not True)
        for part in parts_of(index)
    )


def selected_shape(shape: Shape, index: Index) -> Shape:
    """Return the shape of `x[index]`. Raise IndexError if the index does not fit the shape."""
    return np.asarray(np.broadcast_to(np.False_, shape)[index]).shape


def positions(shape: Shape, index: Index) -> Positions:
    """Return the positions in the flat array of the elements of `x[index]`, in its shape. Raise IndexError."""
    result = np.zeros(selected_shape(shape, index), np.int64)
    stride = 1
    for axis in reversed(range(len(shape))):
        steps = np.arange(shape[axis]).reshape(-1, *(1,) * (len(shape) - axis - 1))
        result += stride * np.broadcast_to(steps, shape)[index]
        stride *= shape[axis]
    return result


def positions_to_write(
    shape: Shape, index: Index, value_shape: Shape, how: How
) -> tuple[Positions, Positions | None, Shape]:
    """Return the flat positions to write, which elements of the flat value to write there, and the value's full shape.

    The second is None for all elements. If an element is selected twice to be set, the last value counts, also for
    gradients. Raise ValueError if the value does not broadcast, or `how` does not allow an element twice.
    """
    selected = positions(shape, index)
    check_broadcast(value_shape, selected.shape)
    flat = selected.reshape(-1)
    if how in ("add", "subtract") or is_basic(index):
        return flat, None, selected.shape
    _, from_the_end = np.unique(flat[::-1], return_index=True)
    if from_the_end.size == flat.size:
        return flat, None, selected.shape
    if how != "set":
        raise ValueError(f"the index selects an element twice; only set, add and subtract allow that, not {how}")
    last = np.sort(flat.size - 1 - from_the_end)
    return flat[last], last, selected.shape


def check_broadcast(value_shape: Shape, shape: Shape) -> None:
    """Raise ValueError if a value of that shape does not broadcast to the selected shape."""
    if value_shape in ((), shape):
        return
    try:
        fits = np.broadcast_shapes(value_shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"a value of shape {value_shape} does not broadcast to the selected shape {shape}")
