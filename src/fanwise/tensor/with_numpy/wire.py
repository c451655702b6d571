"""Encoding and decoding of NumPy, JAX and TensorFlow arrays, and the work on memory that torch shares.

The wire holds little-endian words in C order. JAX and TensorFlow adopt a buffer that is writable and aligned to 64
bytes, and assume it constant. A JAX array arrives on the default device.
"""

from typing import Any

import ml_dtypes
import numpy as np

from ...base.errors import NotSendableError
from ..adapters import exchanges
from ..placement import to_device
from ..wire.header import DTYPES, ENGINE_CODES, WireHeader, pack_header
from .exchange import aligned_copy

_Array = np.ndarray[Any, Any]

# NumPy's own types, and those of ml_dtypes.
_DTYPE_BY_CODE: dict[int, np.dtype[Any]] = {
    dtype.code: np.dtype(getattr(ml_dtypes, dtype.name, dtype.name))
    for dtype in DTYPES.values()
    if "numpy" in dtype.engines
}
_CODE_BY_DTYPE = {dtype: code for code, dtype in _DTYPE_BY_CODE.items()}
# The type of the words in memory: integers of the same size where NumPy lacks the type.
_STORED_AS = {
    dtype.code: np.dtype(dtype.name if dtype.in_numpy else {1: "u1", 2: "i2", 4: "i4"}[dtype.size_bytes])
    for dtype in DTYPES.values()
}
SCALARS = tuple(dtype.type for dtype in _CODE_BY_DTYPE)


def encode(x: Any, engine: str) -> tuple[bytes, memoryview]:
    """Return header and memory; a view of it if it is C-contiguous, native and on a CPU."""
    if engine != "numpy":
        try:
            x, _ = exchanges[engine].export_memory(x, None)
        except (TypeError, ValueError) as error:
            raise NotSendableError(str(error)) from error
    code = _CODE_BY_DTYPE.get(x.dtype)
    if code is None:
        native = x.dtype.newbyteorder("=") if x.dtype.kind in "biufc" else None
        if native not in _CODE_BY_DTYPE:
            raise NotSendableError(
                f"An array of dtype {x.dtype} and shape {x.shape} has no form on the wire. Send x.view('int64') of "
                f"dates, x.tolist() of strings and objects, each field x['name'] of records, x.astype('float64') of "
                f"long doubles, x.astype('int8') of narrower types, x.view('uint8') of raw words; or pickle the array."
            )
        x, code = x.astype(native), _CODE_BY_DTYPE[native]
    return pack_header(ENGINE_CODES[engine], code, x.shape), bytes_of(x)


def decode(header: WireHeader, buffer: memoryview, device: Any) -> Any:
    """Return the array over `buffer`, on `device` if it is not None."""
    is_numpy = header.engine == "numpy"
    if is_numpy and device is not None and str(device) != "cpu":
        raise ValueError(f"a numpy array cannot be on device {str(device)!r}; leave device out or pass 'cpu'")
    array = array_over(header, buffer) if is_numpy else np.frombuffer(buffer, _STORED_AS[header.dtype.code])
    if not array.flags.writeable:  # someone else may change it
        array = aligned_copy(array)
    array = array.reshape(header.shape)
    array = array if header.dtype.in_numpy else array.view(_DTYPE_BY_CODE[header.dtype.code])
    if is_numpy:
        return array
    x = exchanges[header.engine].adopt(array)
    return x if device is None else to_device(x, device)


def bytes_of(x: _Array) -> memoryview:
    """Return the memory in C order, as a one-dimensional view of bytes; of a copy if x is not in C order."""
    if not x.flags.c_contiguous:
        x = x.copy(order="C")
    # np.asarray: a memmap's own methods are slow, and its views would be memmaps.
    return np.asarray(x).reshape(-1).view(np.uint8).data


def array_over(header: WireHeader, buffer: memoryview) -> _Array:
    """Return an array of the header's shape on `buffer`, or on a copy if that is not aligned or not writable."""
    # Not np.ndarray(..., buffer=...): it drops the view, so that a bytearray below could be resized.
    array: _Array = np.frombuffer(buffer, _STORED_AS[header.dtype.code]).reshape(header.shape)
    flags = array.flags
    return array if flags.aligned and flags.writeable else array.copy()
