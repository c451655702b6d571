"""NumPy arrays in the exchange, and the work on memory that all engines share.

Dtypes that NumPy lacks are those of ml_dtypes, found by their names.
Invariant: the result of `aligned_copy` is C-contiguous, native, writable, aligned to 64 bytes, and private.
"""

from typing import Any

import ml_dtypes
import numpy as np

from ..adapters import Exported
from ..buffers import aligned_buffer

Array = np.ndarray[Any, Any]
Dtype = np.dtype[Any]

ALIGNMENT = 64
_UNSIGNED: dict[int, Dtype] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
_PLAIN = frozenset(np.dtype(code) for code in "?bBhHiIlLqQefdFD")


def cannot_share(source: str, reason: str) -> ValueError:
    """Return the error for copy=False where a copy is needed."""
    return ValueError(f"{source} cannot be converted without a copy: {reason}. Leave copy out, or pass copy=True.")


def no_such_type(engine: str, name: str, hint: str) -> TypeError:
    """Return the error for an element type that the other engine lacks."""
    return TypeError(f"{engine} has no element type {name}. Change it first: {hint}.")


def export_memory(x: Any, copy: bool | None) -> Exported:
    if copy is False and isinstance(x, np.generic):
        raise cannot_share(f"A number of numpy, of type {type(x).__name__},", "it has no memory that others could use")
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("Other engines have no masked arrays. Convert x.filled(0), or x.data and x.mask separately.")
    array = x if type(x) is np.ndarray else np.asarray(x)
    dtype = array.dtype
    if dtype in _PLAIN:
        return array, "mutable"
    if dtype.kind in "OSUTMm" or dtype.names is not None or dtype.hasobject:
        raise TypeError(
            f"A numpy array of dtype {dtype} has no form in other engines. Convert numbers: x.view('int64') of dates, "
            f"x.astype('float32') of objects, each field x['name'] of records, numbers that stand for the strings."
        )
    if dtype.isnative:
        return array, "mutable"
    if copy is False:
        raise cannot_share(f"A numpy array of dtype {dtype}", "its bytes are in another order than this machine's")
    return aligned_copy(array), "private"


def import_memory(exported: Exported, copy: bool | None) -> Array:
    array, kind = exported
    return aligned_copy(array) if copy and kind != "private" else array


def adopt(array: Array) -> Array:
    return array


def copied(x: Any) -> Any:
    """Return a copy; of a subclass, one of its own kind."""
    return x.copy() if type(x) is not np.ndarray or x.dtype.hasobject else aligned_copy(x, native=False)


def addresses_of(x: Any) -> tuple[int, int]:
    start, end = np.lib.array_utils.byte_bounds(np.asarray(x))
    return (start, end) if x.size else (0, 0)


def aligned_copy(array: Array, native: bool = True) -> Array:
    """Return a copy, as the head of this file promises."""
    dtype = array.dtype if array.dtype.isnative or not native else array.dtype.newbyteorder("=")
    copy: Array = np.ndarray(array.shape, dtype, aligned_buffer(array.size * dtype.itemsize))
    np.copyto(copy, array)
    return copy


def is_aligned(array: Array) -> bool:
    """Return whether every engine can adopt the memory: in C order from a multiple of 64 bytes on."""
    return array.flags.c_contiguous and array.__array_interface__["data"][0] % ALIGNMENT == 0


def why_not_aligned(array: Array) -> str:
    """Return the reason why `is_aligned` is false."""
    if not array.flags.c_contiguous:
        return f"it is not C-contiguous (strides {array.strides} bytes for shape {array.shape})"
    return f"its memory begins {array.ctypes.data % ALIGNMENT} bytes past a multiple of {ALIGNMENT}"


def locked(array: Array) -> Array:
    """Return a view through which the memory cannot be made writable, even by its flags."""
    return np.asarray(in_words(array).data.toreadonly()).view(array.dtype)


def dtype_named(name: Any) -> Dtype:
    """Return NumPy's dtype for anything that NumPy accepts, or for the name of a type of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name) if isinstance(name, str) else name)


class _Alias:
    __slots__ = ("__array_interface__", "owner")

    def __init__(self, array: Array, interface: dict[str, Any]) -> None:
        self.owner = array  # keeps the memory alive
        interface["data"] = (interface["data"][0], False)  # NumPy makes a new dict each time
        self.__array_interface__ = interface


def writable_alias(array: Array) -> Array:
    """Return the same memory as a writable array, for engines without read-only arrays. Not for types of ml_dtypes."""
    return array if array.flags.writeable else np.asarray(_Alias(array, array.__array_interface__))


def aligned_alias(array: Array) -> Array | None:
    """Return `writable_alias` if `is_aligned`, else None; quicker than calling both."""
    flags, interface = array.flags, array.__array_interface__
    if not flags.c_contiguous or interface["data"][0] % ALIGNMENT:
        return None
    return array if flags.writeable else np.asarray(_Alias(array, interface))


def in_words(array: Array) -> Array:
    """Return the same memory as unsigned integers of the same size, if NumPy lacks the element type."""
    dtype = array.dtype
    return array if dtype.isbuiltin == 1 else array.view(_UNSIGNED[dtype.itemsize])
