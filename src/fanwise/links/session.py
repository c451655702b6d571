"""State of a byte stream that outlives its connections. Pure: no socket, lock, thread or clock.

    accept(parts)       copy bytes to send, and keep them until the peer has acknowledged them
    next()              the next bytes that the current connection has not carried yet
    acknowledge(n)      the peer has received the first n bytes of the stream
    received(n)         n more bytes of the peer's stream have arrived
    resume(n)           a new connection: the peer has received n bytes, so everything after them is unsent again

Both sides count bytes from the start of the stream. Every byte is delivered once and in order if each side tells the
other `num_received` over a new connection, and calls `resume` with the other's number before it sends anything.

If an interrupt, such as Ctrl-C, stops a method halfway, the connection must be replaced: `resume` repairs the state.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..base.errors import WireError

# Maximum number of unacknowledged bytes. The sender then waits, as for a full socket.
KEPT_BYTES_MAX = 8 << 20
# Received bytes after which an acknowledgment is due.
ACKNOWLEDGE_EVERY_BYTES = 512 << 10
# Largest size of a copy. Smaller parts are joined.
CHUNK_BYTES = 256 << 10

Buffer = bytes | bytearray | memoryview


class _Chunk(NamedTuple):
    start: int
    data: Buffer

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class Session:
    """See the module.

    Attributes:
        num_received: bytes of the peer's stream that have arrived.
        num_acknowledged: bytes of our stream that the peer is known to have received.
        num_sent: bytes of our stream that were given to some connection.
    """

    def __init__(
        self, *, kept_bytes_max: int = KEPT_BYTES_MAX, acknowledge_every_bytes: int = ACKNOWLEDGE_EVERY_BYTES
    ) -> None:
        self.num_received = 0
        self.num_acknowledged = 0
        self.num_sent = 0
        self._num_reported = 0  # of the received bytes
        self._kept_bytes_max = kept_bytes_max
        self._acknowledge_every_bytes = acknowledge_every_bytes
        self._kept: deque[_Chunk] = deque()
        self._unsent: deque[_Chunk] = deque()

    # -- sending ---------------------------------------------------------------------------------------------------

    @property
    def num_accepted(self) -> int:
        """Length of our stream so far."""
        return self._kept[-1].end if self._kept else self.num_acknowledged

    @property
    def has_unsent(self) -> bool:
        """Return True if the current connection was not given all accepted bytes."""
        return bool(self._unsent)

    @property
    def has_room(self) -> bool:
        """Return True if more bytes can be accepted."""
        return self.num_accepted < self.num_acknowledged + self._kept_bytes_max

    def accept(self, parts: Sequence[Buffer], skip: int = 0) -> int:
        """Copy up to `CHUNK_BYTES` of `parts` without their first `skip` bytes. Return how many bytes were accepted.

        0 if there is no room, or nothing is left.
        """
        start = self.num_accepted
        room = min(CHUNK_BYTES, self.num_acknowledged + self._kept_bytes_max - start)
        data = _slice(parts, skip, room) if room > 0 else b""
        if data:
            chunk = _Chunk(start, data)
            self._kept.append(chunk)
            self._unsent.append(chunk)
        return len(data)

    def next(self) -> Buffer:
        """Return up to `CHUNK_BYTES` unsent bytes, to be sent now. There must be some."""
        chunk = self._unsent.popleft()
        self.num_sent = max(self.num_sent, chunk.end)
        return chunk.data

    def acknowledge(self, num_received: int) -> None:
        """The peer has received this number of bytes. A smaller number than before changes nothing."""
        self.num_acknowledged = max(self.num_acknowledged, num_received)
        while self._kept and self._kept[0].end <= self.num_acknowledged:
            self._kept.popleft()

    # -- receiving -------------------------------------------------------------------------------------------------

    def received(self, size: int) -> None:
        """`size` more bytes of the peer's stream have arrived."""
        self.num_received += size

    @property
    def is_acknowledgment_due(self) -> bool:
        """Return True if the peer should be told `num_received`."""
        return self.num_received - self._num_reported >= self._acknowledge_every_bytes

    def acknowledgment(self) -> int:
        """Return `num_received`, which the caller reports to the peer."""
        self._num_reported = self.num_received
        return self._num_reported

    # -- a new connection ------------------------------------------------------------------------------------------

    def resume(self, num_received: int) -> None:
        """Send everything after the first `num_received` bytes again, over a new connection.

        Raises `WireError` if the number is impossible, or if bytes that the peer lacks were discarded.
        """
        if not self.num_acknowledged <= num_received <= self.num_sent:
            raise WireError(
                f"the peer resumes at byte {num_received}, but bytes {self.num_acknowledged} to "
                f"{self.num_sent} are kept."
            )
        self.acknowledge(num_received)
        self._num_reported = self.num_received  # reported when the peer connected
        self._unsent = deque(
            _Chunk(max(chunk.start, num_received), memoryview(chunk.data)[max(0, num_received - chunk.start) :])
            for chunk in self._kept
        )


def _slice(parts: Sequence[Buffer], skip: int, room: int) -> bytes:
    """Return a copy of at most `room` bytes of `parts` after the first `skip`."""
    pieces: list[Buffer] = []
    for part in parts:
        size = len(part)
        if skip >= size:
            skip -= size
            continue
        piece = part if not skip and size <= room else memoryview(part)[skip : skip + room]
        skip = 0
        pieces.append(piece)
        room -= len(piece)
        if not room:
            break
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
