"""How many elements an array has, and the one element of an array that has one: as Python numbers, on every engine.

torch says `x.numel()` and `x.item()`, JAX and NumPy `x.size`, TensorFlow `tf.size(x)`, a tensor, and `x.numpy()`.
"""

import math
from typing import Any

from .engines import engine_of
from .exchange import to_numpy
from .gradients import stop_gradient


def size(x: Any, /) -> int:  # Any: an array of any engine
    """The number of elements of the array x: 1 for one of shape (). Works while a function is traced, too.

    Raises:
        TypeError: x is no array.
        ValueError: the number is not known: a `tf.function` that takes arrays of any length is being traced.

    >>> import numpy
    >>> size(numpy.zeros((3, 4)))
    12
    """
    engine_of(x)
    if None in (shape := tuple(x.shape)):
        raise ValueError(
            f"how many elements this array of shape {shape} has is known when the function runs, not while it is "
            f"traced; use tensorflow.size(x) there"
        )
    return math.prod(shape)


def item(x: Any, /) -> Any:  # Any: bool, int, float or complex
    """The one element of the array x as a Python number: bool, int, float or complex, after its dtype.

    Blocks until it is computed, and copies from an accelerator. x may want gradients; none flow through a number.

    Raises:
        TypeError: x is no array, or stands for one while a function is traced and has no value yet.
        ValueError: x has more elements than one, or none.

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
