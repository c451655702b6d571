"""The header of an array on the wire: element types, packing, and parsing with all checks.

    byte  0      1        2       3      4      5     6            7     8 ...            then
          magic  version  engine  dtype  flags  ndim  device_len   zero  shape: ndim x i64  device name

All numbers are little-endian. An accepted header describes an array that its engine can build: known engine, type and
flags, at most 64 dimensions, none negative, and a size in bytes that fits a signed 64-bit integer (also without the
zeros of the shape, because engines compute strides from the rest). The caller checks the length of the buffer.
"""

import functools
import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

from ...base.errors import WireError

MAGIC = 0xFA
VERSION = 1
MAX_NDIM = 64
MAX_SIZE_BYTES = 2**63 - 1
REQUIRES_GRAD = 1
PARAMETER = 2

ENGINE_CODES = {"numpy": 1, "torch": 2, "jax": 3, "tensorflow": 4}
_ENGINE_NAMES = {code: name for name, code in ENGINE_CODES.items()}
MAX_HEADER_BYTES = 8 + 8 * MAX_NDIM + 255
_FIXED = struct.Struct("<8B")
_SHAPES = tuple(struct.Struct(f"<{ndim}q") for ndim in range(MAX_NDIM + 1))
_WHOLE = tuple(struct.Struct(f"<8B{ndim}q") for ndim in range(MAX_NDIM + 1))


@dataclass(frozen=True, slots=True)
class WireDtype:
    """An element type. Codes are permanent: types may be added, codes never change and are never reused.

    Args:
        in_numpy: NumPy itself has the type. Others are types of ml_dtypes, or integers of the same size.
        engines: the engines that have the type.
    """

    code: int
    name: str
    size_bytes: int
    in_numpy: bool = True
    engines: frozenset[str] = frozenset(ENGINE_CODES)


DTYPES = {
    code: WireDtype(code, name, size_bytes)
    for code, name, size_bytes in (
        *((1, "bool", 1), (2, "int8", 1), (3, "int16", 2), (4, "int32", 4), (5, "int64", 8)),
        *((6, "uint8", 1), (7, "uint16", 2), (8, "uint32", 4), (9, "uint64", 8)),
        *((16, "float16", 2), (17, "float32", 4), (18, "float64", 8), (24, "complex64", 8), (25, "complex128", 16)),
    )
} | {
    code: WireDtype(code, name, size_bytes, False, frozenset(engines.split()))
    for code, name, size_bytes, engines in (
        (32, "bfloat16", 2, "numpy torch jax tensorflow"),
        (33, "complex32", 4, "torch"),
        (40, "float8_e4m3fn", 1, "numpy torch jax tensorflow"),
        (41, "float8_e4m3fnuz", 1, "numpy torch jax tensorflow"),
        (42, "float8_e5m2", 1, "numpy torch jax tensorflow"),
        (43, "float8_e5m2fnuz", 1, "numpy torch jax tensorflow"),
        (44, "float8_e8m0fnu", 1, "numpy torch jax"),
        (45, "float8_e4m3b11fnuz", 1, "numpy jax tensorflow"),
        (46, "float8_e4m3", 1, "numpy jax"),
        (47, "float8_e3m4", 1, "numpy jax"),
        (48, "float4_e2m1fn_x2", 1, "torch"),  # two numbers a byte; size and shape count bytes, as in torch
    )
}


# A named tuple: a frozen dataclass costs as much as all other work on the header.
class WireHeader(NamedTuple):
    """A parsed header. `size_bytes` is the length of the one buffer that follows it.

    `device` is the sender's device of a torch tensor ("cuda:1", "cpu"); empty for the other engines.
    """

    engine: str
    dtype: WireDtype
    shape: tuple[int, ...]
    size_bytes: int
    requires_grad: bool
    is_parameter: bool
    device: str


# Cached both ways: programs send the same few shapes repeatedly, and this halves the cost of a small array.
@functools.lru_cache(maxsize=1024)
def pack_header(engine_code: int, dtype_code: int, shape: tuple[int, ...], flags: int = 0, device: str = "") -> bytes:
    """Return the header's bytes. `device` is empty for the CPU. The caller has checked `shape` and `flags`."""
    ndim = len(shape)
    name = device.encode("ascii")
    return _WHOLE[ndim].pack(MAGIC, VERSION, engine_code, dtype_code, flags, ndim, len(name), 0, *shape) + name


def read_header(header: bytes | bytearray | memoryview) -> WireHeader:
    """Parse and check a header, for example to learn how large a buffer the array needs.

    Raises:
        WireError: not a header of this version, or of an array that cannot exist.
    """
    if len(header) > MAX_HEADER_BYTES:
        raise WireError(f"An array's header has at most {MAX_HEADER_BYTES} bytes, got {len(header)}.")
    return _parsed(bytes(header))


@functools.lru_cache(maxsize=1024)
def _parsed(raw: bytes) -> WireHeader:
    if len(raw) < _FIXED.size:
        raise WireError(f"An array's header has at least {_FIXED.size} bytes, got {len(raw)}: {raw.hex()!r}.")
    magic, version, engine_code, dtype_code, flags, ndim, device_length, zero = _FIXED.unpack_from(raw)
    if magic != MAGIC or zero:
        raise WireError(f"These bytes are no array's header: bytes 0 and 7 are {magic:#04x} and {zero:#04x}.")
    if version != VERSION:
        raise WireError(
            f"An array's header has version {version}, this fanwise reads version {VERSION}. "
            f"Run the same fanwise version on both sides."
        )
    engine, dtype = _ENGINE_NAMES.get(engine_code), DTYPES.get(dtype_code)
    if engine is None or dtype is None or ndim > MAX_NDIM:
        raise WireError(
            f"An array's header has engine {engine_code}, dtype {dtype_code} and {ndim} dimensions; known are "
            f"engines {sorted(_ENGINE_NAMES)}, dtypes {sorted(DTYPES)} and at most {MAX_NDIM} dimensions."
        )
    device_at = _FIXED.size + 8 * ndim
    if len(raw) != device_at + device_length:
        raise WireError(
            f"An array's header of {ndim} dimensions and a device name of {device_length} bytes has "
            f"{device_at + device_length} bytes, got {len(raw)}."
        )
    shape = _SHAPES[ndim].unpack_from(raw, _FIXED.size)
    if shape and min(shape) < 0:
        raise WireError(f"An array's header has a negative dimension: shape {shape}.")
    if math.prod(length or 1 for length in shape) * dtype.size_bytes > MAX_SIZE_BYTES:
        raise WireError(f"An array's header of shape {shape} and type {dtype.name} is too large for any memory.")
    device = raw[device_at:].decode("latin-1") if device_length else ("cpu" if engine == "torch" else "")
    known_flags = REQUIRES_GRAD | PARAMETER if engine == "torch" else 0
    if flags & ~known_flags:
        raise WireError(f"An array's header for {engine} has flags {flags:#04x}; known are {known_flags:#04x}.")
    # Types of floats that torch has are differentiable.
    if flags & REQUIRES_GRAD and (dtype.code < 16 or "torch" not in dtype.engines):
        raise WireError(f"An array's header requires a gradient of type {dtype.name}, which has none.")
    if engine not in dtype.engines:
        raise WireError(f"An array's header gives {engine} the type {dtype.name}, which {engine} does not have.")
    if device and (engine != "torch" or not device.isascii() or not device.isprintable()):
        raise WireError(f"An array's header for {engine} names the device {device!r}.")
    size_bytes = math.prod(shape) * dtype.size_bytes
    return WireHeader(engine, dtype, shape, size_bytes, bool(flags & REQUIRES_GRAD), bool(flags & PARAMETER), device)
