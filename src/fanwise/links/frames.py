"""Frames: how messages are cut out of a stream of bytes, and put into one. Decides only; moves no byte itself.

    +----------------------- header, 32 bytes ------------------------+-----------------+------+-------------+
    | magic u16 | kind u8 | flags u8 | buffers u32 | call u64         | sizes, u64 each | head | buffers ... |
    | head size u64 | total size u64 (all that follows the header)    |                 |      |             |
    +-----------------------------------------------------------------+-----------------+------+-------------+

All numbers are little-endian. The head is a pickle that only the codec reads; buffers are its out-of-band parts.
With the flag SHARED each size is followed by the number of a shared segment, u64: the buffer is there, and no bytes of
it follow (0: they do).
Knows the limits of a link and checks every length before it asks for memory. Does not know sockets, keys or calls.
Small frames are parsed where they were received; a big one is received straight into its own buffers, each aligned
to 64 bytes, so that arrays can adopt them without a copy.

Invariant: after a `WireError` the reader is of no more use; the link must be closed.
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
# A head above this is sent as a part of its own: a system call more costs less than copying it.
_HEAD_COPIED_BYTES = 1 << 15

REQUEST, NOTICE, REPLY, ERROR, GOODBYE = 1, 2, 3, 4, 5
# About shared memory, see `sharing`.
SEGMENT, RETURN, DROPPED = 6, 7, 8
# A request that costs credit, and about credit, see `credits`.
CALL, WANT, CREDIT = 9, 10, 11
# One more item of an answer, how much of it was taken, and that nobody waits for it any more, see `link`.
ITEM, TAKEN, CANCEL = 12, 13, 14
_KINDS = frozenset(range(REQUEST, CANCEL + 1))

SHARED = 1  # a flag
_PLACE = struct.Struct("<QQ")
SHARED_BUFFERS_MAX = BUFFERS_MAX * 8 // _PLACE.size

Buffer = bytes | bytearray | memoryview


class Limits(NamedTuple):
    """What a peer may send. Checked before it is sent, and again before memory is allocated. At most 8188 buffers.

    Both sides of a link are made with the same limits, or have told each other what they take (`Link.peer_takes`), so
    who sends knows what will be taken.

    Attributes:
        mapped_bytes: how much shared memory a peer on this host may make us map; 0: none, all goes through the socket.
        pool_bytes: up to where the shared memory that this process sends big buffers in may grow for this link; None:
            a quarter of the machine's memory, at most 4 GiB; 0: none.
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
    parts: Sequence[SharedBuffer | None] = ()  # as many as buffers, or none: those that are in shared memory


def check_may_be_sent(limits: Limits, head: Buffer, buffers: Sequence[memoryview]) -> None:
    """Raises `NotSendableError` for a message that the other side would refuse, and end the link for."""
    size = _PLACE.size * len(buffers) + len(head) + sum(buffer.nbytes for buffer in buffers)
    if size > limits.frame_bytes or len(buffers) > limits.buffers:
        raise NotSendableError(
            f"a message of {size} bytes in {len(buffers) + 1} parts is too big: a link takes "
            f"{limits.frame_bytes} bytes and {limits.buffers + 1} parts.\n"
            f"Send tensors and arrays in several calls, or join them before."
        )


def encode(kind: int, call_id: int, head: bytes, buffers: Sequence[memoryview] = ()) -> list[Buffer]:
    """The parts to send, in order, for one frame. Nothing big is copied."""
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
    """As `encode`, for a frame whose buffers with a part have been copied into shared memory."""
    both = zip(buffers, parts, strict=True)
    table = b"".join(_PLACE.pack(buffer.nbytes, part.segment if part else 0) for buffer, part in both)
    inline = [buffer.cast("B") for buffer, part in zip(buffers, parts, strict=True) if not part]
    total = len(table) + len(head) + sum(buffer.nbytes for buffer in inline)
    return [HEADER.pack(MAGIC, kind, SHARED, len(parts), call_id, len(head), total) + table + head, *inline]


Mark = tuple[int, int, int, "_BigFrame | None", tuple[int, int] | None]


class FrameReader:
    """Cuts frames out of a stream.

    Receive into `space()`, then tell `filled(n)` how many bytes came; it returns the frames that are complete.
    Parts of big frames come into what `memory` gives for their sizes.
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
        """Whether no frame has begun to come."""
        return self._big is None and self._start == self._end

    @property
    def is_in_large_frame(self) -> bool:
        """Whether a frame has begun to come that is received part by part, each into its own memory."""
        return self._big is not None

    def space(self) -> memoryview:
        """Return where the next bytes belong; never empty."""
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
        """`size` bytes were written into the last `space()`. Raises `WireError` on bytes that are no frame of ours."""
        self.num_filled += size
        frames: list[Frame] = []
        if self._big is not None:
            if self._big.filled(size):
                frames.append(self._big.frame())
                self._big = None
            return frames
        end = self._end = self._end + size
        if self._start == 0 and end >= _HEADER_SIZE:  # just one small one, as most calls and answers are; else `_cut`
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
        """Take one frame, or the beginning of a big one, from the staging area. False: more bytes are needed."""
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
                f"the memory of this process.\nSend what is larger in several calls."
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
        """How many bytes of each buffer follow, and which buffers are elsewhere."""
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
    """A frame that is received straight into its own memory, part by part: the head, then each buffer.

    Memory for a part is asked for when its first byte comes. A big one is given by the system without pages, which are
    made as bytes come: who announces much and sends little takes little.
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
        """Copy what was received too early; returns how many bytes were used."""
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
        """Go on to the next part that has bytes."""
        while len(self._parts) < len(self._sizes) and (not self._parts or self._at == len(self._parts[-1])):
            size = self._sizes[len(self._parts)]
            try:
                self._parts.append(self._memory(size))
            except MemoryError as error:
                raise WireError(
                    f"a part of {size} bytes of a frame of {sum(self._sizes)} bytes is coming; this machine has no "
                    f"memory for it."
                ) from error
            self._at = 0
