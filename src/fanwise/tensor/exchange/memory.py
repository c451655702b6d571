"""Memory that all engines can adopt, and whether two arrays lie in the same.

Knows no engine, and loads numpy only when it is called: each engine's file tells where its arrays lie.
"""

import math
from typing import TYPE_CHECKING, Any

from ..adapters import Layout, exchanges
from ..buffers import aligned_buffer
from ..engines import engine_of

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]  # Any: shape and element type are known only when it runs

# To find out whether two arrays of overlapping windows meet can take for ever; what is usual takes a few steps.
_MAX_WORK = 1_000_000


def empty_aligned(shape: int | tuple[int, ...], dtype: Any = "float32") -> "Array":  # Any: what numpy takes for one
    """A new numpy array whose memory begins at a multiple of 64 bytes, in C order, filled with zeros.

    Every engine can adopt it without a copy: `convert(x, "jax", copy=False)`. numpy's own arrays lie so one time in
    four, by chance.

    Args:
        shape: its length, or its lengths.
        dtype: what `numpy.dtype` takes, or the name of a type of ml_dtypes, such as "bfloat16".

    Raises:
        ValueError: a length is negative.
        TypeError: the element type is none, or holds Python objects.
        MemoryError: there is no such piece of memory.

    >>> empty_aligned((2, 3), "int32")
    array([[0, 0, 0],
           [0, 0, 0]], dtype=int32)
    """
    import numpy as np

    from ..with_numpy.exchange import dtype_named

    kind = dtype_named(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind} holds references to Python objects, which have no memory to share")
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    if min(lengths, default=0) < 0:
        raise ValueError(f"lengths must be at least 0, got shape {lengths}")
    buffer = aligned_buffer(math.prod(lengths) * kind.itemsize)
    array: Array = np.frombuffer(buffer, np.uint8).view(kind).reshape(lengths)
    return array


def same_memory(x: Any, y: Any) -> bool:  # Any: arrays of any engines
    """Whether an element of x and one of y lie in the same memory, so that writing to one can change the other.

    Looks at addresses only: moves nothing, changes nothing. Two arrays that lie in one another's gaps have no element
    in common, so they are not the same.

    Raises:
        TypeError: x or y is no array, or has no memory (a value inside a traced function, sparse, quantized), or does
            not tell where it is.

    >>> import numpy
    >>> x = numpy.zeros(4)
    >>> same_memory(x, x[2:]), same_memory(x[:2], x[2:])
    (True, False)
    """
    import numpy as np

    first, second = _stand_in(x), _stand_in(y)
    try:
        # The annotation knows only the special values of max_work.
        return bool(np.shares_memory(first, second, max_work=_MAX_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True  # they interlace in some way that nobody makes by accident


def _stand_in(x: Any) -> "Array":  # Any: an array of any engine
    import numpy as np

    place = exchanges[engine_of(x)].layout_of(x)
    if not place.address or not math.prod(place.shape):
        return np.empty(0, np.uint8)
    return np.asarray(_StandIn(place))


class _StandIn:
    """Tells numpy of memory as of an array there, which nobody reads: it may be on another device."""

    def __init__(self, place: Layout) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (place.address, True),
            "typestr": f"|V{place.size_bytes}",
            "shape": place.shape,
            "strides": place.strides_bytes,
        }
