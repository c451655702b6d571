"""`size` and `item`: the number of elements of an array, and its only element, as Python numbers on every engine."""

import math
from typing import Any

from .engines import engine_of
from .exchange import to_numpy
from .gradients import stop_gradient


def size(x: Any, /) -> int:
    """Return the number of elements of the array x: 1 for shape (). Works while a function is traced, too.

    Raises:
        TypeError: x is not an array.
        ValueError: the number is not known, because a `tf.function` that takes arrays of any length is traced.

    >>> import numpy
    >>> size(numpy.zeros((3, 4)))
    12
    """
    engine_of(x)
    if None in (shape := tuple(x.shape)):
        raise ValueError(f"the size of an array of shape {shape} is not known yet; use tensorflow.size(x) there")
    return math.prod(shape)


def item(x: Any, /) -> Any:
    """Return the only element of the array x as a bool, int, float or complex number.

    Blocks until it is computed, and copies from an accelerator. No gradient flows through the number.

    Raises:
        TypeError: x is not an array, or it is traced and has no value yet.
        ValueError: x does not have exactly one element.

    >>> import numpy
    >>> item(numpy.asarray([3.5]))
    3.5
    """
    if (count := size(x)) != 1:
        raise ValueError(
            f"item takes an array of one element, got one of shape {tuple(x.shape)}, which has {count}. Choose one: "
            f"item(x[0]); for all of them to_numpy(x).tolist()"
        )
    value = to_numpy(stop_gradient(x)).item()
    return value if isinstance(value, (bool, int, float, complex)) else float(value)  # bfloat16 and float8
