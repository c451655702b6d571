"""Frames: the format of messages in a stream of bytes. Pure: sends and receives nothing itself.

    +----------------------- header, 32 bytes ------------------------+-----------------+------+-------------+
    | magic u16 | kind u8 | flags u8 | buffers u32 | call u64         | sizes, u64 each | head | buffers ... |
    | head size u64 | total size u64 (all that follows the header)    |                 |      |             |
    +-----------------------------------------------------------------+-----------------+------+-------------+

All numbers are little-endian. The head is a pickle that only the codec reads; buffers are its out-of-band parts. With
the flag SHARED each size is followed by the number of a shared segment, u64, which holds the buffer; 0 if its bytes
follow. Every length is checked against the limits of the link before memory is allocated.

Small frames are parsed in the memory in which they were received. Large ones are received directly into their own
buffers, aligned to 64 bytes, so that arrays can adopt them without a copy.
"""

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..base.errors import NotSendableError, WireError
from ..tensor import aligned_buffer
from .shared_memory.segment_table import SharedBuffer

MAGIC = 0xFA57
HEADER = struct.Struct("<HBBIQQQ")
_HEADER_SIZE = HEADER.size
_STAGING_SIZE = 1 << 16
# The header and the sizes of the buffers are read in the staging area.
BUFFERS_MAX = (_STAGING_SIZE - _HEADER_SIZE) // 8
# A larger head is sent as a separate part: another system call costs less than copying it.
_HEAD_COPIED_BYTES = 1 << 15

REQUEST, NOTICE, REPLY, ERROR, GOODBYE = 1, 2, 3, 4, 5
# Shared memory, see `sharing`.
SEGMENT, RETURN, DROPPED = 6, 7, 8
# A request that costs credit, and credit, see `credits`.
CALL, WANT, CREDIT = 9, 10, 11
CANCEL = 12
_KINDS = frozenset(range(REQUEST, CANCEL + 1))

SHARED = 1  # a flag
_PLACE = struct.Struct("<QQ")
SHARED_BUFFERS_MAX = BUFFERS_MAX * 8 // _PLACE.size

Buffer = bytes | bytearray | memoryview


class Limits(NamedTuple):
    """Limits of messages, checked by the sender and by the receiver before it allocates memory.

    Both sides of a link have the same limits, or have told each other the sizes that they take (`Link.peer_takes`).

    Attributes:
        frame_bytes: of one message.
        buffers: of one message; at most 8188.
        mapped_bytes: shared memory that a peer on this host may make this process map; 0 for none.
        pool_bytes: shared memory in which this process sends large buffers; 0 for none. None: a quarter of the
            machine's memory, at most 4 GiB.
    """

    frame_bytes: int = 1 << 36
    buffers: int = 4096
    mapped_bytes: int = 1 << 40
    pool_bytes: int | None = None


class Frame(NamedTuple):
    """One message: its kind, the call it belongs to (0 for none), the pickled head and its out-of-band buffers."""

    kind: int
    call_id: int
    head: Buffer
    buffers: Sequence[memoryview]
    parts: Sequence[SharedBuffer | None] = ()  # for each buffer, if any is in shared memory


def check_may_be_sent(limits: Limits, head: Buffer, buffers: Sequence[memoryview]) -> None:
    """Raise `NotSendableError` for a message that the other side would refuse."""
    size = _PLACE.size * len(buffers) + len(head) + sum(buffer.nbytes for buffer in buffers)
    if size > limits.frame_bytes or len(buffers) > limits.buffers:
        raise NotSendableError(
            f"a message of {size} bytes in {len(buffers) + 1} parts is too big: a link takes "
            f"{limits.frame_bytes} bytes and {limits.buffers + 1} parts.\n"
            f"Send tensors and arrays in several calls, or join them before."
        )


def encode(kind: int, call_id: int, head: bytes, buffers: Sequence[memoryview] = ()) -> list[Buffer]:
    """Return the parts of a frame, in order. Large ones are not copied."""
    size = len(head)
    if buffers:
        sizes = [buffer.nbytes for buffer in buffers]
        header = HEADER.pack(MAGIC, kind, 0, len(sizes), call_id, size, 8 * len(sizes) + size + sum(sizes))
        header += struct.pack(f"<{len(sizes)}Q", *sizes)
    else:
        header = HEADER.pack(MAGIC, kind, 0, 0, call_id, size, size)
    first: list[Buffer] = [header + head] if size <= _HEAD_COPIED_BYTES else [header, head]
    return [*first, *(buffer.cast("B") for buffer in buffers)] if buffers else first


def encode_shared(
    kind: int, call_id: int, head: bytes, buffers: Sequence[memoryview], parts: Sequence[SharedBuffer | None]
) -> list[Buffer]:
    """As `encode`, if the buffers with a `SharedBuffer` were copied into shared memory."""
    both = zip(buffers, parts, strict=True)
    table = b"".join(_PLACE.pack(buffer.nbytes, part.segment if part else 0) for buffer, part in both)
    inline = [buffer.cast("B") for buffer, part in zip(buffers, parts, strict=True) if not part]
    total = len(table) + len(head) + sum(buffer.nbytes for buffer in inline)
    return [HEADER.pack(MAGIC, kind, SHARED, len(parts), call_id, len(head), total) + table + head, *inline]


Mark = tuple[int, int, int, "_BigFrame | None", tuple[int, int] | None]


class FrameReader:
    """Splits a stream into frames: receive bytes into `space()`, then `filled(n)` returns the complete frames.

    After a `WireError` the link must be closed.
    """

    def __init__(self, limits: Limits, memory: Callable[[int], memoryview] = aligned_buffer) -> None:
        if limits.buffers > BUFFERS_MAX:
            raise ValueError(f"a frame can have at most {BUFFERS_MAX} buffers, got a limit of {limits.buffers}")
        self._limits = limits
        self._memory = memory
        self._staging = bytearray(_STAGING_SIZE)
        self._view = memoryview(self._staging)
        self._start = 0
        self._end = 0
        self._big: _BigFrame | None = None
        self.num_filled = 0  # bytes so far

    @property
    def is_between_frames(self) -> bool:
        """Return True if no part of a frame has arrived."""
        return self._big is None and self._start == self._end

    @property
    def is_in_large_frame(self) -> bool:
        """Return True if a part of a large frame has arrived."""
        return self._big is not None

    def space(self) -> memoryview:
        """Return the memory for the next bytes; never empty."""
        if self._big is not None:
            return self._big.space()
        if self._start:
            self._compact()
        return self._view[self._end :] if self._end else self._view

    def mark(self) -> Mark:
        """Return the current state, for `reset`. Call it after `space`."""
        big = self._big
        return self.num_filled, self._start, self._end, big, None if big is None else big.mark()

    def filled(self, size: int) -> list[Frame]:
        """`size` bytes were received into the last `space()`. Raises `WireError` if they are no valid frame."""
        self.num_filled += size
        frames: list[Frame] = []
        if self._big is not None:
            if self._big.filled(size):
                frames.append(self._big.frame())
                self._big = None
            return frames
        end = self._end = self._end + size
        if self._start == 0 and end >= _HEADER_SIZE:  # exactly one small frame, as usual; otherwise `_cut`
            magic, kind, flags, n_buffers, call_id, head_size, total = HEADER.unpack_from(self._staging)
            if (
                end == _HEADER_SIZE + total
                and head_size == total
                and not (n_buffers or flags)
                and magic == MAGIC
                and kind in _KINDS
                and total <= self._limits.frame_bytes
            ):
                self._end = 0
                return [Frame(kind, call_id, self._staging[_HEADER_SIZE:end], ())]
        while self._start < self._end and self._big is None and self._cut(frames):
            pass
        if self._start == self._end:
            self._start = self._end = 0
        return frames

    def reset(self, mark: Mark) -> None:
        """Undo `filled`, which an interrupt may have stopped halfway, since `mark`."""
        self.num_filled, self._start, self._end, self._big, parts = mark
        if self._big is not None and parts is not None:
            self._big.reset(parts)

    def _cut(self, frames: list[Frame]) -> bool:
        """Take one frame, or the beginning of a large one, from the staging area. False: more bytes are needed."""
        have = self._end - self._start
        if have < _HEADER_SIZE:
            return False
        magic, kind, flags, n_buffers, call_id, head_size, total = HEADER.unpack_from(self._staging, self._start)
        if magic != MAGIC or kind not in _KINDS or flags > SHARED:
            raise WireError(f"not a frame: magic {magic:#06x}, kind {kind}, flags {flags}. The link is closed.")
        self._check(n_buffers, head_size, total, _PLACE.size if flags else 8)
        if n_buffers == 0 and total <= _STAGING_SIZE - _HEADER_SIZE:
            if have < _HEADER_SIZE + total:
                return False
            begin = self._start + _HEADER_SIZE
            self._start = begin + total
            frames.append(Frame(kind, call_id, self._staging[begin : begin + total], ()))
            return True
        return self._begin_big(kind, call_id, n_buffers, head_size, total, frames, flags)

    def _check(self, n_buffers: int, head_size: int, total: int, entry: int) -> None:
        if total > self._limits.frame_bytes:
            raise WireError(
                f"a frame of {total} bytes was announced; this link takes {self._limits.frame_bytes}, which depends on "
                f"the memory of this process.\nSend larger values in several calls."
            )
        if n_buffers > self._limits.buffers:
            raise WireError(f"a frame of {n_buffers} buffers was announced; this link takes {self._limits.buffers}.")
        if entry > 8 and n_buffers > SHARED_BUFFERS_MAX:
            raise WireError(f"a frame of {n_buffers} buffers was announced, some in shared memory: too many for that.")
        if head_size + entry * n_buffers > total or (n_buffers == 0 and head_size != total):
            raise WireError(f"a frame's lengths contradict each other: head {head_size}, total {total}.")

    def _begin_big(
        self, kind: int, call_id: int, n_buffers: int, head_size: int, total: int, frames: list[Frame], flags: int
    ) -> bool:
        table = _HEADER_SIZE + (_PLACE.size if flags else 8) * n_buffers
        if self._end - self._start < table:
            return False
        sizes, parts = self._table(n_buffers, flags)
        if head_size + table - _HEADER_SIZE + sum(sizes) != total:
            raise WireError(f"a frame's buffers have {sum(sizes)} bytes, its header promises another number.")
        big = _BigFrame(kind, call_id, [head_size, *sizes], parts, self._memory)
        used = big.feed(self._view[self._start + table : self._end])
        self._start += table + used
        if big.complete:
            frames.append(big.frame())
            return True
        self._big = big
        return False

    def _table(self, n_buffers: int, flags: int) -> tuple[Sequence[int], Sequence[SharedBuffer | None]]:
        """Return the number of bytes of each buffer that follow, and the buffers in shared memory."""
        at = self._start + _HEADER_SIZE
        if not flags:
            return struct.unpack_from(f"<{n_buffers}Q", self._staging, at), ()
        rows = list(_PLACE.iter_unpack(self._staging[at : at + n_buffers * _PLACE.size]))
        parts = [SharedBuffer(segment, size) if segment else None for size, segment in rows]
        return [0 if segment else size for size, segment in rows], parts

    def _compact(self) -> None:
        have = self._end - self._start
        self._staging[:have] = self._staging[self._start : self._end]
        self._start, self._end = 0, have


class _BigFrame:
    """A frame that is received directly into its own memory, part by part: the head, then each buffer.

    The memory of a part is allocated when its first byte is due, and its pages when bytes arrive. So a peer that
    announces much and sends little costs little.
    """

    def __init__(
        self,
        kind: int,
        call_id: int,
        sizes: Sequence[int],
        places: Sequence[SharedBuffer | None],
        memory: Callable[[int], memoryview],
    ) -> None:
        self._kind = kind
        self._memory = memory
        self._places = places
        self._call_id = call_id
        self._sizes = sizes
        self._parts: list[memoryview] = []  # the last of them is being filled, if it is not full
        self._at = 0
        self._skip_full()

    @property
    def complete(self) -> bool:
        return len(self._parts) == len(self._sizes) and self._at == self._sizes[-1]

    def space(self) -> memoryview:
        return self._parts[-1][self._at :]

    def filled(self, size: int) -> bool:
        self._at += size
        self._skip_full()
        return self.complete

    def feed(self, data: memoryview) -> int:
        """Copy bytes from the staging area; return their number."""
        used = 0
        while used < len(data) and not self.complete:
            space = self.space()
            size = min(len(space), len(data) - used)
            space[:size] = data[used : used + size]
            used += size
            self.filled(size)
        return used

    def mark(self) -> tuple[int, int]:
        """Return the current state, for `reset`."""
        return len(self._parts), self._at

    def reset(self, mark: tuple[int, int]) -> None:
        """Undo `filled` since `mark`."""
        num_parts, self._at = mark
        del self._parts[num_parts:]

    def frame(self) -> Frame:
        return Frame(self._kind, self._call_id, self._parts[0], self._parts[1:], self._places)

    def _skip_full(self) -> None:
        """Continue with the next part that has bytes."""
        while len(self._parts) < len(self._sizes) and (not self._parts or self._at == len(self._parts[-1])):
            size = self._sizes[len(self._parts)]
            try:
                self._parts.append(self._memory(size))
            except MemoryError as error:
                raise WireError(
                    f"this machine has no memory for a part of {size} bytes of a frame of {sum(self._sizes)} bytes."
                ) from error
            self._at = 0
