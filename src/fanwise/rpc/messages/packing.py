"""Many pieces of memory in few: a message with thousands of tensors has no more buffers than one with hundreds.

    pack:    pieces --> buffers, and one row for each piece: which buffer, offset, size
    unpack:  rows, buffers --> the pieces, as views; nothing is copied

A link takes so many buffers a frame, and each costs both sides more than a copy of a few pages. Pieces that are large
beside the whole keep a buffer of their own; the others are copied together, so that a pack is worth shared memory.
Whoever keeps one piece of a pack keeps the memory of the pack: at least 1 MiB, at most a 256th of the message more.
Knows no tensor and no link. Quiet.
"""

import struct
from collections.abc import Sequence

from ...base.errors import WireError
from ...tensor import aligned_buffer

Buffer = bytes | bytearray | memoryview

# With fewer buffers each has its own: what is received is then as long-lived as its one array.
PACKED_FROM = 256
_PACK_BYTES = 1 << 20
_LARGE_SHARE = 256
_ALIGNED_BYTES = 64  # as all engines adopt it
_ROW = struct.Struct("<IQQ")  # number of the buffer, offset in it, size


def pack(pieces: Sequence[memoryview]) -> tuple[list[memoryview], bytes]:
    """The buffers to send in the place of `pieces`, at most about 800, and the rows for `unpack`."""
    limit = max(_PACK_BYTES, sum(piece.nbytes for piece in pieces) // _LARGE_SHARE)
    buffers: list[memoryview | None] = []
    rows: list[bytes] = []
    packed: list[tuple[int, memoryview]] = []
    number, end = -1, 0

    def close() -> None:
        if packed:
            buffers[number] = _together(packed, end)
            packed.clear()

    for piece in pieces:
        size = piece.nbytes
        if size >= limit:
            rows.append(_ROW.pack(len(buffers), 0, size))
            buffers.append(piece)
            continue
        at = -(-end // _ALIGNED_BYTES) * _ALIGNED_BYTES
        if not packed or at + size > limit:
            close()
            number, at = len(buffers), 0
            buffers.append(None)
        rows.append(_ROW.pack(number, at, size))
        packed.append((at, piece))
        end = at + size
    close()
    return [buffer for buffer in buffers if buffer is not None], b"".join(rows)


def _together(pieces: Sequence[tuple[int, memoryview]], size: int) -> memoryview:
    memory = aligned_buffer(size)
    for at, piece in pieces:
        memory[at : at + piece.nbytes] = piece.cast("B")
    return memory


def unpack(rows: Buffer, buffers: Sequence[memoryview]) -> list[memoryview]:
    """The pieces that were packed. Raises `WireError` for one that lies outside of its buffer."""
    pieces = []
    for number, at, size in _ROW.iter_unpack(rows):
        if number >= len(buffers) or at + size > buffers[number].nbytes:
            raise WireError(f"a message names {size} bytes from {at} of its buffer {number}, which do not exist.")
        pieces.append(buffers[number][at : at + size])
    return pieces


def size_of_rows(count: int) -> int:
    """How many bytes the rows of so many pieces take."""
    return count * _ROW.size
