"""numpy arrays in the exchange, and the work on memory that all engines share.

Element types that numpy lacks are those of ml_dtypes; the engines agree on their names, so a type is found by name.
Invariant: what `aligned_copy` makes is C-contiguous, native, writable, aligned to 64 bytes, and private.
"""

from typing import Any

import ml_dtypes
import numpy as np

from ..adapters import Exported, Layout
from ..buffers import aligned_buffer
from ..exchange.refusals import cannot_share

Array = np.ndarray[Any, Any]  # Any: shape and element type are known only when it runs
Dtype = np.dtype[Any]  # Any: the same

ALIGNMENT = 64
# Words of the same size, in which memory of any element type can be shown to what does not know the type.
WORDS: dict[int, Dtype] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
_PLAIN = frozenset(np.dtype(code) for code in "?bBhHiIlLqQefdFD")


def export_memory(x: Any, copy: bool | None) -> Exported:  # Any: an ndarray, or a numpy scalar
    """The array itself, or what is in native order in its place."""
    if copy is False and isinstance(x, np.generic):
        raise cannot_share(f"A number of numpy, of type {type(x).__name__},", "it has no memory that others could use")
    array = x if type(x) is np.ndarray else _plain(x)
    dtype = array.dtype
    if dtype in _PLAIN:
        return array, "mutable"
    if dtype.kind in "OSUTMm" or dtype.names is not None or dtype.hasobject:
        raise TypeError(f"A numpy array of dtype {dtype} has no form in other engines. {_way_out(dtype)}")
    if not dtype.isnative:
        if copy is False:
            raise cannot_share(f"A numpy array of dtype {dtype}", "its bytes are in another order than this machine's")
        return aligned_copy(array), "private"
    return array, "mutable"


def import_memory(exported: Exported, copy: bool | None) -> Array:
    """The array itself; read-only when its memory must not change."""
    array, kind = exported
    return aligned_copy(array) if copy and kind != "private" else array


def copied(x: Any) -> Any:  # Any: an ndarray, one of a subclass, or a numpy scalar
    """A copy; of a subclass of its own kind."""
    return x.copy() if type(x) is not np.ndarray or x.dtype.hasobject else aligned_copy(x, native=False)


def layout_of(x: Any) -> Layout:  # Any: as above
    """Where its elements lie."""
    return layout_of_array(np.asarray(x))


def layout_of_array(array: Array) -> Layout:
    """The same for an array of numpy."""
    return Layout(array.ctypes.data, array.shape, array.strides, array.itemsize)


def aligned_copy(array: Array, native: bool = True) -> Array:
    """A copy as the head of this file promises."""
    dtype = array.dtype if array.dtype.isnative or not native else array.dtype.newbyteorder("=")
    copy: Array = np.ndarray(array.shape, dtype, aligned_buffer(array.size * dtype.itemsize))
    np.copyto(copy, array)
    return copy


def is_aligned(array: Array) -> bool:
    """Whether every engine can adopt its memory: in C order from a multiple of 64 bytes on."""
    return array.flags.c_contiguous and array.__array_interface__["data"][0] % ALIGNMENT == 0


def why_not_aligned(array: Array) -> str:
    """What `is_aligned` found."""
    if not array.flags.c_contiguous:
        return f"it is not C-contiguous (strides {array.strides} bytes for shape {array.shape})"
    return f"its memory begins {array.ctypes.data % ALIGNMENT} bytes past a multiple of {ALIGNMENT}"


def locked(array: Array) -> Array:
    """A view whose memory cannot be made writable through it, whatever is done to its flags."""
    return np.asarray(in_words(array).data.toreadonly()).view(array.dtype)


def dtype_named(name: Any) -> Dtype:  # Any: what numpy takes for a dtype
    """numpy's dtype of a name, also one of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name) if isinstance(name, str) else name)


class _Alias:
    __slots__ = ("__array_interface__", "owner")

    def __init__(self, array: Array, told: dict[str, Any]) -> None:  # Any: what numpy's protocol says
        self.owner = array  # keeps the memory
        told["data"] = (told["data"][0], False)  # numpy makes this dict anew each time
        self.__array_interface__ = told


def writable_alias(array: Array) -> Array:
    """The same memory as an array that says it can be written to, for an engine that knows no read-only arrays.

    The element type must be one that numpy has itself.
    """
    return array if array.flags.writeable else np.asarray(_Alias(array, array.__array_interface__))


def aligned_alias(array: Array) -> Array | None:
    """The same for memory that every engine can adopt, else None. Quicker than to ask for the one and the other."""
    flags, told = array.flags, array.__array_interface__
    if not flags.c_contiguous or told["data"][0] % ALIGNMENT:
        return None
    return array if flags.writeable else np.asarray(_Alias(array, told))


def shown_writable(buffer: memoryview) -> Array:
    """The bytes of a buffer as an array that says it can be written to. For those who will only read it."""
    return writable_alias(np.frombuffer(buffer, np.uint8))


def in_words(array: Array) -> Array:
    """The same memory as unsigned numbers of the same size, if numpy does not have the element type itself."""
    dtype = array.dtype
    return array if dtype.isbuiltin == 1 else array.view(WORDS[dtype.itemsize])


def _plain(x: Any) -> Array:  # Any: a numpy scalar, or an array of a subclass
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            "A masked array has values that are not there, and other engines have no such thing. "
            "Convert x.filled(0), or x.data and x.mask each on its own."
        )
    return np.asarray(x)


def _way_out(dtype: Dtype) -> str:
    if dtype.names is not None:
        return "Convert each field of the structured array on its own (x['name'])."
    if dtype.kind in "mM":
        return "Convert x.view('int64') and remember the unit."
    if dtype.kind == "O":
        return "Make its element type one of numbers, for example x.astype('float32')."
    return "Convert numbers that stand for the strings."
