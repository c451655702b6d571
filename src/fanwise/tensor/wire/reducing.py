"""Arrays in a pickle: header and buffer, so that the memory travels beside it and is adopted.

What JAX and TensorFlow pickle themselves is copied, and lies inside the pickle. What numpy pickles names modules of its
own, which another version of numpy does not have. For the tables of picklers (`dispatch_table`); torch's tensors have
their place there already. Loads no engine.
"""

import pickle
import sys
from collections.abc import Callable
from typing import Any

from ...base.errors import NotSendableError
from .coding import from_wire, to_wire
from .sendable import loaded_types

Reducer = Callable[[Any], Any]  # Any: reducers of any type, as copyreg has them
_ENGINES = ("jax", "tensorflow")


def array_reducers() -> dict[type, Reducer]:
    """A reducer for each plain array type of JAX and TensorFlow, as far as they are loaded."""
    return {kind: _reduce for engine in _ENGINES if engine in sys.modules for kind in loaded_types(engine)}


def numpy_reducers() -> dict[type, Reducer]:
    """The same for numpy's arrays and scalars: for readers that may have another numpy."""
    if "numpy" not in sys.modules:
        return {}
    from ..with_numpy.wire import SCALARS

    return dict.fromkeys(loaded_types("numpy"), _reduce) | dict.fromkeys(SCALARS, _reduce_scalar)


def rebuild_array(header: bytes, buffer: bytes | bytearray | memoryview) -> object:
    """The array again, where the pickle is read."""
    return from_wire(header, [memoryview(buffer)])


def rebuild_scalar(header: bytes, data: bytes) -> object:
    """The scalar of numpy again."""
    array: Any = from_wire(header, [data], engine="numpy")
    return array[()]


def _reduce_scalar(x: Any) -> Any:  # Any: a scalar of numpy; what its own pickling returns
    import numpy as np

    header, (buffer,) = to_wire(np.asarray(x))
    return rebuild_scalar, (header, bytes(buffer))


def _reduce(x: Any) -> Any:  # Any: an array; what its own pickling returns
    try:
        header, (buffer,) = to_wire(x)
    except NotSendableError as refusal:  # strings, types of half a byte: its own pickling may know a way
        try:
            return x.__reduce_ex__(5)
        except Exception:  # any: it is the library's; a deleted array of JAX has none either
            raise refusal from None
    from ..with_numpy.exchange import shown_writable

    # A read-only buffer would arrive read-only, and so be copied: but what arrives is the receiver's own memory.
    return rebuild_array, (header, pickle.PickleBuffer(shown_writable(buffer).data))


def kept_view(buffer: pickle.PickleBuffer) -> memoryview:
    """The bytes of a buffer that a pickle leaves out, to be kept until they are sent.

    `raw()` of a buffer over a memoryview is a view that holds the other view. When CPython's collector finds both among
    what is left of an error and its frames, and clears the inner one first, it crashes: python/cpython#77894, mended in
    3.12.7 and never in 3.11. So what is kept is another view of the same memory, beside the first.
    """
    view = buffer.raw()
    of = view.obj
    return of.cast("B") if type(of) is memoryview and of.c_contiguous and of.format in _BYTES else view


_BYTES = frozenset("Bbc")
