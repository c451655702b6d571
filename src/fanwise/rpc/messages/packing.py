"""Packs many buffers into few, so that a message with thousands of tensors has hundreds of buffers. Pure.

    pack:    pieces --> buffers, and one row per piece: buffer, offset, size
    unpack:  rows, buffers --> the pieces, as views without a copy

A frame has a limited number of buffers, and each costs both sides more than copying a few pages. Large pieces keep a
buffer of their own; the others are copied together, into packs large enough for shared memory. A piece that is kept
keeps its pack alive: at least 1 MiB, at most a 256th of the message.
"""

import struct
from collections.abc import Sequence

from ...base.errors import WireError
from ...tensor import aligned_buffer

Buffer = bytes | bytearray | memoryview

# Fewer buffers are not packed, so that a received buffer lives only as long as its array.
PACKED_FROM = 256
_PACK_BYTES = 1 << 20
_LARGE_SHARE = 256
_ALIGNED_BYTES = 64  # required by the engines to use memory without a copy
_ROW = struct.Struct("<IQQ")  # number of the buffer, offset in it, size


def pack(pieces: Sequence[memoryview]) -> tuple[list[memoryview], bytes]:
    """Return at most about 800 buffers with the contents of `pieces`, and the rows for `unpack`."""
    limit = max(_PACK_BYTES, sum(piece.nbytes for piece in pieces) // _LARGE_SHARE)
    buffers: list[memoryview | None] = []
    rows: list[bytes] = []
    packed: list[tuple[int, memoryview]] = []
    number, end = -1, 0

    def flush() -> None:
        if packed:
            buffers[number] = _concatenate(packed, end)
            packed.clear()

    for piece in pieces:
        size = piece.nbytes
        if size >= limit:
            rows.append(_ROW.pack(len(buffers), 0, size))
            buffers.append(piece)
            continue
        offset = -(-end // _ALIGNED_BYTES) * _ALIGNED_BYTES
        if not packed or offset + size > limit:
            flush()
            number, offset = len(buffers), 0
            buffers.append(None)
        rows.append(_ROW.pack(number, offset, size))
        packed.append((offset, piece))
        end = offset + size
    flush()
    return [buffer for buffer in buffers if buffer is not None], b"".join(rows)


def _concatenate(pieces: Sequence[tuple[int, memoryview]], size: int) -> memoryview:
    memory = aligned_buffer(size)
    for offset, piece in pieces:
        memory[offset : offset + piece.nbytes] = piece.cast("B")
    return memory


def unpack(rows: Buffer, buffers: Sequence[memoryview]) -> list[memoryview]:
    """Return the packed pieces. Raises WireError for a piece outside of its buffer."""
    pieces = []
    for number, offset, size in _ROW.iter_unpack(rows):
        if number >= len(buffers) or offset + size > buffers[number].nbytes:
            raise WireError(f"a message names {size} bytes from {offset} of its buffer {number}, which do not exist.")
        pieces.append(buffers[number][offset : offset + size])
    return pieces


def size_of_rows(count: int) -> int:
    """Return the size of the rows of `count` pieces in bytes."""
    return count * _ROW.size
