"""`at(x)[i]`: a place in an array, and what can be written there.

    at(x)[1:3].set(0.0)       a new array; x stays as it is
    at(x)[rows].add(v)        rows may name a place twice: then both are added
    at(x)[i].set(v, copy=False)   x itself, written to, on engines whose arrays can be

The index is what NumPy takes: integers, slices with any step, None, `...`, boolean masks, lists and arrays of
integers, and tuples of these. Knows the rules that hold on all engines: what may be written into what, and that
engines are not mixed. The engine's file does the writing. Invariant: what is out of range raises on every
engine; only an index that is itself traced, and so not known yet, is left to the engine (JAX skips the write).
"""

from typing import TYPE_CHECKING, Any, NoReturn

from ..adapters import How, writers
from ..dtype_names import BOOL, COMPLEX, FLOAT, INTEGER, dtype_name, dtype_rank, limits
from ..engines import engine_of, is_array_type

_Array = Any  # An array of whichever engine x is of; they have no type in common.


class At:
    """An array about to be changed; made by `at`. Index it."""

    __slots__ = ("_x",)

    def __init__(self, x: _Array) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> "Place":  # Any: an index, as `at` lists them
        return Place(self._x, index)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            hint = f"; index it first: at(x)[...].{name}(...)" if hasattr(Place, name) and name[0] != "_" else ""
            raise AttributeError(f"at(x) has no {name!r}{hint}")


class Place:
    """A place in an array; made by `at(x)[index]`. Its methods, but for `get`, return the whole array, changed there.

    `get` reads. The others take a number, or an array of x's engine that broadcasts to the shape of `x[index]` and
    is converted to x's dtype as `astype` does (integers that are out of range wrap around). `copy` None or True: a
    new array. False: x itself, changed in place.

    Raises (all methods):
        IndexError: the index is out of range, has too many parts, or a mask of another shape.
        ValueError: the value does not broadcast; or copy=False, and arrays of this engine cannot be changed.
        OverflowError: the value is a Python integer that x's dtype does not hold.
        TypeError: the value is of another engine or of a kind that x does not hold (a float for integers); or the
            operation has no meaning for x's dtype.
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: _Array, index: Any) -> None:  # Any: an index, as `at` lists them
        self._x = x
        self._index = index

    def get(self) -> _Array:
        """The elements there, `x[index]`: every index of NumPy on every engine, and out of range raises in JAX too."""
        return writers[engine_of(self._x)].read(self._x, self._index)

    def set(self, value: Any, copy: bool | None = None) -> _Array:  # Any, here and below: see the class
        """The array with `value` there. Which one stays where an index names a place twice is not said."""
        return _changed(self._x, self._index, value, "set", copy)

    def add(self, value: Any, copy: bool | None = None) -> _Array:
        """The array with `value` added there; for each time that an index names a place."""
        return _changed(self._x, self._index, value, "add", copy)

    def subtract(self, value: Any, copy: bool | None = None) -> _Array:
        """The array with `value` subtracted there; for each time that an index names a place."""
        return _changed(self._x, self._index, value, "subtract", copy)

    def multiply(self, value: Any, copy: bool | None = None) -> _Array:
        """The array multiplied by `value` there; for each time that an index names a place."""
        return _changed(self._x, self._index, value, "multiply", copy)

    def divide(self, value: Any, copy: bool | None = None) -> _Array:
        """The array, of floats, divided by `value` there; for each time that an index names a place."""
        return _changed(self._x, self._index, value, "divide", copy)

    def min(self, value: Any, copy: bool | None = None) -> _Array:
        """The array with the lesser of it and `value` there."""
        return _changed(self._x, self._index, value, "min", copy)

    def max(self, value: Any, copy: bool | None = None) -> _Array:
        """The array with the greater of it and `value` there."""
        return _changed(self._x, self._index, value, "max", copy)


def at(x: _Array, /) -> At:
    """The array x, to be indexed and changed: `at(x)[i].set(v)`, `.add`, `.min` ... as `Place` has them.

    Pure unless told otherwise: x stays as it is and a new array comes back, so gradients flow to x and to v on
    torch, JAX and TensorFlow. In JAX they do not where an index names a place twice to multiply or divide.

    Args:
        x: an array of any engine, also a traced one.

    Raises:
        TypeError: when written to: x is no array. See `Place` for the rest.

    >>> import numpy
    >>> at(numpy.zeros(4))[::-2].set(1.0)
    array([0., 1., 0., 1.])
    >>> at(numpy.zeros(3))[[0, 0, 2]].add(1.0)
    array([2., 0., 1.])
    """
    return At(x)


def check_value(x: _Array, value: Any, how: How) -> None:  # Any: what a caller gave
    """Refuse what cannot be written into x, whatever the place.

    Raises:
        TypeError: another engine's array, a kind that x does not hold, or an operation that x's dtype does not have.
        OverflowError: a Python integer that x's dtype does not hold. torch would wrap it around.
    """
    held = dtype_rank(x.dtype)
    kind = type(value)
    try:
        rank = _number_ranks[kind]
    except KeyError:
        rank = _rank_of_array(x, value)
    if rank > held:
        raise TypeError(f"{_described(value)} does not fit into an array of {dtype_name(x.dtype)}; convert it first")
    if rank == held == INTEGER and not hasattr(value, "dtype"):
        _check_fits(dtype_name(x.dtype), value)
    if how != "set" and not _LEAST[how] <= held <= _MOST[how]:
        raise TypeError(f"{how} has no meaning for an array of {dtype_name(x.dtype)}")


def _changed(x: _Array, index: Any, value: Any, how: How, copy: bool | None) -> _Array:
    writer = writers[engine_of(x)]
    check_value(x, value, how)
    if copy is not False:
        return writer.changed(x, index, value, how)
    writer.write(x, index, value, how)
    return x


_number_ranks: dict[type, int] = {bool: BOOL, int: INTEGER, float: FLOAT, complex: COMPLEX}
_LEAST = {"add": INTEGER, "subtract": INTEGER, "multiply": INTEGER, "divide": FLOAT, "min": INTEGER, "max": INTEGER}
_MOST = {"add": COMPLEX, "subtract": COMPLEX, "multiply": COMPLEX, "divide": COMPLEX, "min": FLOAT, "max": FLOAT}


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


def _check_fits(dtype: str, number: int) -> None:
    least, most = limits(dtype)
    if not least <= number <= most:
        raise OverflowError(
            f"{number} does not fit into an array of {dtype}, which holds {least} to {most}; "
            f"convert the array first, for example with fanwise.tensor.astype"
        )


def _described(value: Any) -> str:
    return (
        f"an array of {dtype_name(value.dtype)}" if hasattr(value, "dtype") else f"the {type(value).__name__} {value!r}"
    )
