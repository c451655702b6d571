"""Shapes and Python numbers, for the functions of all engines."""

import math
from itertools import zip_longest
from typing import Any


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that arrays of these shapes have together; nothing is computed.

    Raises:
        ValueError: two of them differ in an axis, and neither has length 1 there.

    >>> broadcast_shapes((3, 1), (2,))
    (3, 2)
    """
    found = []
    for lengths in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        wanted = {length for length in lengths if length != 1}
        if len(wanted) > 1:
            raise ValueError(f"the shapes {', '.join(str(tuple(shape)) for shape in shapes)} do not fit together")
        found.append(wanted.pop() if wanted else 1)
    return tuple(found[::-1])


_NUMBERS = {bool, int, float, complex}
_SEQUENCES = {list, tuple}


def made_of_python_numbers(x: object) -> bool:
    """Whether x is a Python number, or lists and tuples of them and nothing else.

    Then its dtype is for us to choose; numbers of an engine brought theirs along. Looks at types in bulk:
    about 10 ns a number.
    """
    kind = type(x)
    if kind not in _SEQUENCES:
        return kind in _NUMBERS
    assert isinstance(x, (list, tuple)), "the types above are lists and tuples"
    kinds = set(map(type, x))
    return kinds <= _NUMBERS or all(made_of_python_numbers(item) for item in x)


def num_reduced(shape: tuple[int, ...], axis: int | tuple[int, ...] | None) -> int:
    """Return how many elements a reduction over these axes combines into one."""
    axes = range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    return math.prod(shape[each] for each in axes)


def check_indices(indices: Any, num_axes: int, axis: int | None) -> None:
    """Raise unless `take` is defined for indices of this shape and an array with this number of axes.

    Raises:
        ValueError: the indices have no axis or several, or the axis is missing. Engines disagree about those.
    """
    if len(indices.shape) != 1:
        raise ValueError(f"take needs indices of one axis, got an array of shape {tuple(indices.shape)}")
    if axis is None and num_axes != 1:
        raise ValueError(f"take needs an axis for an array of {num_axes} axes")


def contains(obj: object, kinds: tuple[type, ...]) -> bool:
    """Return True if obj is of one of these types, or a list or tuple with such an object at any depth."""
    if isinstance(obj, (list, tuple)):
        return any(contains(part, kinds) for part in obj)
    return isinstance(obj, kinds)


def numbers_to_numpy(obj: Any, dtype: Any = None, integer: str = "int64") -> Any:
    """Convert a Python number, nested lists of them, or a NumPy array to a new NumPy array.

    Args:
        obj: the numbers.
        dtype: the dtype of the result. By default floats become float32, complex numbers complex64.
        integer: the dtype of integers if `dtype` is None.

    Raises:
        OverflowError: a Python integer does not fit the dtype.
        TypeError: obj contains something else, such as None or text.
    """
    import numpy as np

    array = np.array(obj)
    is_python = made_of_python_numbers(obj)
    if array.dtype.kind == "O" and is_python:
        raise OverflowError(f"an integer in {obj!r:.100} does not fit into {integer}")
    if array.dtype.kind not in "biufcV":
        raise TypeError(f"asarray takes numbers, got {type(obj).__name__} of {array.dtype}: {obj!r:.100}")
    if dtype is None:
        if not is_python:
            return array
        # NumPy makes uint64 or float64 of integers that int64 cannot hold.
        kind = "i" if array.size and array.dtype.kind in "uf" and _only_integers(obj) else array.dtype.kind
        dtype = {"b": "bool", "i": integer, "f": "float32", "c": "complex64"}[kind]
    return np.array(obj, dtype) if is_python else array.astype(dtype)


def _only_integers(obj: Any) -> bool:
    return all(map(_only_integers, obj)) if isinstance(obj, (list, tuple)) else isinstance(obj, int)


def check_fits(number: int, least_and_greatest: tuple[int, int] | None) -> None:
    """Whether a type of these limits holds the number; None: no type of integers.

    Raises:
        OverflowError: it does not. Engines take it modulo the size of the type, in silence.
    """
    if least_and_greatest is not None and not least_and_greatest[0] <= number <= least_and_greatest[1]:
        least, greatest = least_and_greatest
        raise OverflowError(
            f"the Python integer {number} does not fit into the array's type, which holds {least} to {greatest}; "
            f"convert the array first: fanwise.tensor.astype(x, dtype)"
        )
