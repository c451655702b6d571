"""NumPy arrays in the exchange, and the work on memory that all engines share.

Dtypes that NumPy lacks are those of ml_dtypes, found by their names.
Invariant: the result of `aligned_copy` is C-contiguous, native, writable, aligned to 64 bytes, and private.
"""

from typing import Any

import numpy as np

from ..adapters import Exported, Kind
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


def reason_to_copy(array: Array, kind: Kind, copy: bool | None) -> str:
    return ""


def share(array: Array) -> Array:
    return array


adopt = share


def copied(x: Any) -> Any:
    """Return a copy; of a subclass, one of its own kind."""
    return x.copy() if type(x) is not np.ndarray or x.dtype.hasobject else aligned_copy(x, native=False)


def devices() -> list[str]:
    return ["cpu"]


def device_of(x: object) -> str:
    return "cpu"


def move(x: Any, device: str) -> Any:
    return x


def aligned_copy(array: Array, native: bool = True) -> Array:
    dtype = array.dtype if array.dtype.isnative or not native else array.dtype.newbyteorder("=")
    copy: Array = np.ndarray(array.shape, dtype, aligned_buffer(array.size * dtype.itemsize))
    np.copyto(copy, array)
    return copy


def reason_unaligned(array: Array) -> str:
    """Return why other engines cannot adopt the memory, in C order from a multiple of 64 bytes on; "" if they can."""
    if not array.flags.c_contiguous:
        return f"it is not C-contiguous (strides {array.strides} bytes for shape {array.shape})"
    offset = array.__array_interface__["data"][0] % ALIGNMENT
    return f"its memory begins {offset} bytes past a multiple of {ALIGNMENT} (see aligned_buffer)" if offset else ""


def locked(array: Array) -> Array:
    """Return a view through which the memory cannot be made writable, even by its flags."""
    return np.asarray(in_words(array).data.toreadonly()).view(array.dtype)


class _Alias:
    __slots__ = ("__array_interface__", "owner")

    def __init__(self, array: Array, interface: dict[str, Any]) -> None:
        self.owner = array  # keeps the memory alive
        interface["data"] = (interface["data"][0], False)  # NumPy makes a new dict each time
        self.__array_interface__ = interface


def writable_alias(array: Array) -> Array:
    """Return the same memory as a writable array, for engines without read-only arrays. Not for types of ml_dtypes."""
    return array if array.flags.writeable else np.asarray(_Alias(array, array.__array_interface__))


def aligned_alias(array: Array) -> Array:
    """Return the `writable_alias`, or an aligned copy if other engines cannot adopt the memory."""
    flags, interface = array.flags, array.__array_interface__  # which takes 1 us
    if not flags.c_contiguous or interface["data"][0] % ALIGNMENT or not array.size:
        return aligned_copy(array)
    return array if flags.writeable else np.asarray(_Alias(array, interface))


def in_words(array: Array) -> Array:
    """Return the same memory as unsigned integers of the same size, if NumPy lacks the element type."""
    dtype = array.dtype
    return array if dtype.isbuiltin == 1 else array.view(_UNSIGNED[dtype.itemsize])
