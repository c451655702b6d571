"""numpy arrays on the wire, and the memory work that other engines on the CPU share.

Loaded when the first array is sent or received. The wire holds little-endian words in C order; a big-endian
array is converted on sending and arrives native. Invariant: an array made here is aligned and writable.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ...base.errors import NotSendableError
from ..adapters import Exported
from ..wire import dtypes
from ..wire.header import ENGINE_CODES, WireHeader, pack_header
from .exchange import aligned_copy

_Array = np.ndarray[Any, Any]  # Any: shape and element type are known only when it runs

_ENGINE_CODE = ENGINE_CODES["numpy"]
# Of numpy itself, and of ml_dtypes where numpy has none.
DTYPE_BY_CODE: dict[int, np.dtype[Any]] = {
    dtype.code: np.dtype(getattr(ml_dtypes, dtype.name, dtype.name))
    for dtype in dtypes.BY_CODE.values()
    if "numpy" in dtype.engines
}
CODE_BY_DTYPE = {dtype: code for code, dtype in DTYPE_BY_CODE.items()}
_WORDS: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.int16), 4: np.dtype(np.int32)}
# What numpy calls each type; where it has none, raw words of the same size.
STORED_AS = {
    dtype.code: np.dtype(dtype.name) if dtype.in_numpy else _WORDS[dtype.size_bytes]
    for dtype in dtypes.BY_CODE.values()
}
SCALARS = tuple(dtype.type for dtype in CODE_BY_DTYPE)
_BYTE = np.dtype(np.uint8)


def encode(x: _Array) -> tuple[bytes, memoryview]:
    """Header and memory of an array; a view of it when it is C-contiguous and native."""
    code = CODE_BY_DTYPE.get(x.dtype)
    if code is None:
        x = _made_native(x)
        code = CODE_BY_DTYPE[x.dtype]
    return pack_header(_ENGINE_CODE, code, x.shape), bytes_of(x)


def encode_constant(x: Any, engine: str, hand_out: Callable[[Any, None], Exported]) -> tuple[bytes, memoryview]:
    """Header and memory of an array that cannot change, of another engine: `hand_out` shows it as numpy's."""
    try:
        array, _ = hand_out(x, None)
    except (TypeError, ValueError) as error:
        raise NotSendableError(str(error)) from error
    code = CODE_BY_DTYPE.get(array.dtype)
    if code is None:
        raise NotSendableError(
            f"An array of {engine} of type {array.dtype.name} and shape {array.shape} has no form on the wire. "
            f"Send it as int8 or float32, or pickle it."
        )
    return pack_header(ENGINE_CODES[engine], code, array.shape), bytes_of(array)


def decode(header: WireHeader, buffer: memoryview, device: object) -> _Array:
    """The array over `buffer`. numpy has one device."""
    if device is not None and str(device) != "cpu":
        raise ValueError(f"a numpy array cannot be on device {str(device)!r}; leave device out or give 'cpu'")
    array = array_over(header, buffer)
    return array if header.dtype.in_numpy else array.view(DTYPE_BY_CODE[header.dtype.code])


def bytes_of(x: _Array) -> memoryview:
    """The memory of an array in C order, as a one-dimensional view of bytes; of a copy if it is not in C order."""
    if not x.flags.c_contiguous:
        x = x.copy(order="C")
    # np.asarray: a memmap's own methods are slow, and its views would be memmaps.
    return np.asarray(x).reshape(-1).view(_BYTE).data


def array_over(header: WireHeader, buffer: memoryview) -> _Array:
    """An array of the header's shape on `buffer`, or on a copy if that is not aligned or not writable.

    The length of `buffer` has been checked.
    """
    # Not np.ndarray(..., buffer=...): that lets go of the view, and then a bytearray below could be resized.
    array: _Array = np.frombuffer(buffer, STORED_AS[header.dtype.code]).reshape(header.shape)
    flags = array.flags
    return array if flags.aligned and flags.writeable else array.copy()


def constant_over(header: WireHeader, buffer: memoryview) -> _Array:
    """The same for an engine whose arrays never change, in the type itself: a copy if somebody else has the memory."""
    array: _Array = np.frombuffer(buffer, STORED_AS[header.dtype.code]).reshape(header.shape)
    if not array.flags.writeable:
        array = aligned_copy(array)
    return array if header.dtype.in_numpy else array.view(DTYPE_BY_CODE[header.dtype.code])


def _made_native(x: _Array) -> _Array:
    """A big-endian array in native order. Every other type that has no code is refused."""
    if x.dtype.kind in "biufc" and (native := x.dtype.newbyteorder("=")) in CODE_BY_DTYPE:
        return x.astype(native)
    raise NotSendableError(
        f"A numpy array of dtype {x.dtype} and shape {x.shape} has no form on the wire. {_what_to_do(x)}"
    )


def _what_to_do(x: _Array) -> str:
    if x.dtype.names is not None:
        return "Send each field of the structured array on its own (x['name']), or pickle it."
    if x.dtype.kind in "mM":
        return "Send x.view('int64') and the unit, and view it again on the other side."
    if x.dtype.kind in "OSUT":
        return "Send the list x.tolist(), or pickle the array."
    if x.dtype.kind in "fc":
        return "Its size differs between machines: send x.astype('float64') or x.astype('complex128')."
    return "Send its raw words, for example x.view('uint8'), or a torch tensor of the type."
