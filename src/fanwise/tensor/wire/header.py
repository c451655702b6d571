"""The header of an array on the wire: packed, and unpacked with everything checked. A quiet file.

    byte  0      1        2       3      4      5     6            7     8 ...            then
          magic  version  engine  dtype  flags  ndim  device_len   zero  shape: ndim x i64  device name

All numbers are little-endian. A header that `read_header` accepts describes an array that its engine can
build: known engine, type and flags, at most 64 dimensions, none negative, and a size in bytes that fits a
signed 64-bit number (also with the zeros of the shape left out, because engines compute strides from those).
Knows nothing of memory: whether the buffer fits is for `wire` to see.
"""

import functools
import math
import struct
from typing import NamedTuple

from ...base.errors import WireError
from . import dtypes

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


# A named tuple and not a dataclass: it is made for every array received, and a frozen dataclass of
# seven fields costs as much as all the other work on the header.
class WireHeader(NamedTuple):
    """What a header says. `size_bytes` is the length of the one buffer that follows it.

    `device` is where a torch tensor was on the sender ("cuda:1"; "cpu" on a CPU); empty for the other engines.
    """

    engine: str
    dtype: dtypes.WireDtype
    shape: tuple[int, ...]
    size_bytes: int
    requires_grad: bool
    is_parameter: bool
    device: str


# Both ways are cached: a program sends the same few shapes again and again, and this halves the cost of a
# small array. Equal bytes mean equal headers, and a refusal is not cached.
@functools.lru_cache(maxsize=1024)
def pack_header(engine_code: int, dtype_code: int, shape: tuple[int, ...], flags: int = 0, device: str = "") -> bytes:
    """The header's bytes. `device` is left out for the CPU. The caller has checked `shape` and `flags`."""
    ndim = len(shape)
    name = device.encode("ascii")
    fixed = _WHOLE[ndim].pack(MAGIC, VERSION, engine_code, dtype_code, flags, ndim, len(name), 0, *shape)
    return fixed + name if name else fixed


def read_header(header: bytes | bytearray | memoryview) -> WireHeader:
    """Read and check a header; a receiver learns from it how large a buffer it needs.

    Raises:
        WireError: the bytes are no header of this version, or describe no array that could exist.
    """
    if len(header) > MAX_HEADER_BYTES:
        raise WireError(f"An array's header has at most {MAX_HEADER_BYTES} bytes, got {len(header)}.")
    return _parsed(bytes(header))


@functools.lru_cache(maxsize=1024)
def _parsed(raw: bytes) -> WireHeader:
    if len(raw) < _FIXED.size:
        raise WireError(f"An array's header has at least {_FIXED.size} bytes, got {len(raw)}: {raw.hex()!r}.")
    magic, version, engine_code, dtype_code, flags, ndim, device_length, zero = _FIXED.unpack_from(raw)
    if magic != MAGIC or version != VERSION or zero:
        raise _not_ours(magic=magic, version=version, zero=zero)
    engine = _ENGINE_NAMES.get(engine_code)
    dtype = dtypes.BY_CODE.get(dtype_code)
    if engine is None or dtype is None or ndim > MAX_NDIM:
        raise WireError(
            f"An array's header names engine {engine_code}, dtype {dtype_code} and {ndim} dimensions; known are "
            f"engines {sorted(_ENGINE_NAMES)}, dtypes {sorted(dtypes.BY_CODE)} and at most {MAX_NDIM} dimensions."
        )
    device_at = _FIXED.size + 8 * ndim
    if len(raw) != device_at + device_length:
        raise WireError(
            f"An array's header of {ndim} dimensions and a device name of {device_length} bytes has "
            f"{device_at + device_length} bytes, got {len(raw)}."
        )
    shape = _SHAPES[ndim].unpack_from(raw, _FIXED.size)
    size_bytes = _checked_size(shape, dtype)
    device = raw[device_at:].decode("latin-1") if device_length else ("cpu" if engine == "torch" else "")
    if flags or device_length or not dtype.in_numpy:
        _check_features(engine, dtype, flags=flags, device=device)
    return WireHeader(engine, dtype, shape, size_bytes, bool(flags & REQUIRES_GRAD), bool(flags & PARAMETER), device)


def _checked_size(shape: tuple[int, ...], dtype: dtypes.WireDtype) -> int:
    size_bytes = math.prod(shape) * dtype.size_bytes
    if not shape or (0 < size_bytes <= MAX_SIZE_BYTES and min(shape) > 0):
        return size_bytes
    if min(shape) < 0:
        raise WireError(f"An array's header has a negative dimension: shape {shape}.")
    if math.prod(length or 1 for length in shape) * dtype.size_bytes > MAX_SIZE_BYTES:
        raise WireError(f"An array's header of shape {shape} and type {dtype.name} is too large for any memory.")
    return size_bytes


def _check_features(engine: str, dtype: dtypes.WireDtype, *, flags: int, device: str) -> None:
    """Refuse what the engine cannot have: a flag, a type or a device that only another engine knows."""
    known_flags = REQUIRES_GRAD | PARAMETER if engine == "torch" else 0
    if flags & ~known_flags:
        raise WireError(f"An array's header for {engine} has flags {flags:#04x}; known are {known_flags:#04x}.")
    if flags & REQUIRES_GRAD and not dtype.differentiable:
        raise WireError(f"An array's header asks for the gradient of type {dtype.name}, which has none.")
    if engine not in dtype.engines:
        raise WireError(f"An array's header gives {engine} the type {dtype.name}, which {engine} does not have.")
    if device and (engine != "torch" or not device.isascii() or not device.isprintable()):
        raise WireError(f"An array's header for {engine} names the device {device!r}.")


def _not_ours(*, magic: int, version: int, zero: int) -> WireError:
    if magic == MAGIC and version != VERSION:
        return WireError(
            f"An array's header has version {version}, this fanwise reads version {VERSION}. "
            f"Run the same fanwise version on both sides."
        )
    return WireError(
        f"These bytes are no array's header: they begin with {magic:#04x} and end the fixed part with {zero:#04x}, "
        f"expected {MAGIC:#04x} and 0x00."
    )
