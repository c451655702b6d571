"""The wire of a link between hosts, once TLS has proved both sides: a socket, and records that nobody else can read.

    write      --64 KiB at most--> sealed --some records at a time--> socket
    read_into  <-----opened------- records <--256 KiB at most-------- socket

    a record:  | bytes that it holds, u32 | these, sealed, and a tag of 16 bytes |     (security.record_keys)

Python's `ssl` would take 16 KiB at a time and copy each byte four times: half the rate (benchmarks/link_stream.py).

An interrupt, such as Ctrl-C, in the middle of `write` or `read_into` ends the connection: a record that was sealed or
opened in part is neither sent nor read again.

One thread may read while another writes. What came and was not asked for yet is kept here, so polling the descriptor
does not tell all; `holds_bytes` does. What was sealed must go out as it is: when it did not fit, `write` tells nothing
of it and must be called with the same bytes again, as links do anyway.
"""

import contextlib
import errno
import select
import socket
import struct
from collections.abc import Callable, Iterator, Sequence

from ...base.errors import WireError
from ..security.record_keys import TAG_SIZE, RecordKey
from .wires import Buffer, polled, timeout_ms

RECORD_BYTES = 1 << 16  # that a record holds, at most
_SIZE = struct.Struct("<I")
_ADDED = _SIZE.size + TAG_SIZE
_RECORDS_AT_ONCE = 4  # received, or sealed before the socket is given them
_ROOM = _RECORDS_AT_ONCE * (RECORD_BYTES + _ADDED)
# So that one big array does not keep the reading thread from everything else.
_READ_AT_ONCE = 1 << 20
_PARTS_JOINED = 16
# Errors of a connection that prove nothing about the process at its other end.
_OUT_OF_REACH = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}
_QUIET = getattr(socket, "MSG_NOSIGNAL", 0)  # user code may have restored SIGPIPE


class SealedWire:
    """See the module. Owns `connection`, which must not block.

    Args:
        seals, opens: the keys of both directions.
        came: of the other side's records, taken from the socket already.
    """

    def __init__(self, connection: socket.socket, seals: RecordKey, opens: RecordKey, came: bytes = b"") -> None:
        self.socket = connection
        self._read_poll = select.poll()
        self._read_poll.register(connection, select.POLLIN)
        # Reading: sealed bytes from `_begin` to `_end`, and plain ones of a record that was longer than what was asked.
        self._opens = opens
        self._sealed = memoryview(bytearray(max(_ROOM, len(came))))
        self._sealed[: len(came)] = came
        self._begin, self._end = 0, len(came)
        self._opened = memoryview(b"")
        self._failure: WireError | None = None
        self._is_over = False
        self.holds_bytes = bool(came)
        # Writing: records that are on their way, and the plain bytes of which they are.
        self._seals = seals
        self._outgoing = memoryview(bytearray(_ROOM))
        self._unsent = memoryview(b"")
        self._owed = 0
        self._is_torn = False

    # -- reading ---------------------------------------------------------------------------------------------------

    def read_into(self, view: memoryview) -> int:
        """Raises `WireError` when bytes on the way were changed."""
        size, limit, more = 0, min(len(view), _READ_AT_ONCE), True
        try:
            while size < limit and not self._is_over:
                if self.holds_bytes:
                    size += self._open(view[size:limit])
                elif more:  # else to ask the socket would be in vain, and dear
                    more = self._receive()
                else:
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            is_out_of_reach = error.errno in _OUT_OF_REACH
            self._fail(WireError(f"its host cannot be reached ({error.strerror}).") if is_out_of_reach else None)
        except BaseException:
            self._tear()
            raise
        if size == 0 and self._is_over:
            if self._failure is not None:
                raise self._failure
            return -1
        return size

    def _receive(self) -> bool:
        """Take what the socket has now; whether it may have more. Raises BlockingIOError when it has nothing."""
        if self._end + RECORD_BYTES > len(self._sealed):
            self._sealed[: self._end - self._begin] = bytes(self._sealed[self._begin : self._end])
            self._begin, self._end = 0, self._end - self._begin
        room = self._sealed[self._end :]
        got = self.socket.recv_into(room)
        if got == 0:
            self._fail(None)
            return False
        self._end += got
        self.holds_bytes = True
        return got == len(room)

    def _open(self, view: memoryview) -> int:
        """Plain bytes of the records that have come, as many as there are."""
        size = self._take(view)
        try:
            while (holds := self._next_size()) and size < len(view):
                begin = self._begin + _SIZE.size
                sealed = self._sealed[begin : begin + holds + TAG_SIZE]
                if holds <= len(view) - size:
                    self._opens.open(sealed, view[size : size + holds])
                    size += holds
                else:
                    self._opened = memoryview(bytearray(holds))
                    self._opens.open(sealed, self._opened)
                    size += self._take(view[size:])
                self._begin += holds + _ADDED
            if self._begin == self._end:
                self._begin = self._end = 0
            self.holds_bytes = bool(self._opened) or holds > 0
        except WireError as error:
            self._fail(error)
        return size

    def _next_size(self) -> int:
        """What the next record holds; 0: not all of it has come. Raises WireError when it is none."""
        has = self._end - self._begin
        if has < _SIZE.size:
            return 0
        (size,) = _SIZE.unpack_from(self._sealed, self._begin)
        if not 0 < size <= RECORD_BYTES:
            raise WireError("bytes came that the other side did not send.")
        return int(size) if has >= size + _ADDED else 0

    def _take(self, view: memoryview) -> int:
        """Of a record that was opened before."""
        size = min(len(view), len(self._opened))
        if size:
            view[:size] = self._opened[:size]
            self._opened = self._opened[size:]
        return size

    def _fail(self, failure: WireError | None) -> None:
        # Polling shows nothing more, and yet the end must be found.
        self._failure, self._is_over, self.holds_bytes = failure, True, True

    def _tear(self) -> None:
        """After an interrupt nobody knows which bytes have left or were opened, so none may follow."""
        self._is_torn = True
        self._fail(None)
        self.hang_up()

    # -- writing ---------------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        return self._owed > 0

    def write(self, parts: Sequence[Buffer]) -> int:
        if self._is_torn:
            return -1
        size = 0
        try:
            if self._owed:
                return self._send()
            for record in _records(parts):
                if len(self._unsent) + len(record) + _ADDED > len(self._outgoing):
                    size += self._send()
                self._seal(record)
            size += self._send()
        except BlockingIOError:
            return size
        except OSError:
            return size or -1
        except BaseException:
            self._tear()
            raise
        return size

    def _seal(self, record: Buffer) -> None:
        begin, size = len(self._unsent), len(record)
        _SIZE.pack_into(self._outgoing, begin, size)
        self._seals.seal(record, self._outgoing[begin + _SIZE.size : begin + size + _ADDED])
        self._unsent = self._outgoing[: begin + size + _ADDED]
        self._owed += size

    def _send(self) -> int:
        """Send what was sealed; how many plain bytes that was. Raises BlockingIOError when not all of it fits."""
        while self._unsent:
            self._unsent = self._unsent[self.socket.send(self._unsent, _QUIET) :]
        sent, self._owed = self._owed, 0
        return sent

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait_readable(self, timeout_s: float | None) -> bool:
        return self.holds_bytes or bool(self._read_poll.poll(timeout_ms(timeout_s)))

    def wait_writable(self, timeout_s: float | None) -> bool:
        return polled(self.socket, select.POLLOUT, timeout_s)

    def wait_any(self, timeout_s: float | None) -> bool:
        return self.holds_bytes or polled(self.socket, select.POLLIN | select.POLLOUT, timeout_s)

    def fileno(self) -> int:
        return self.socket.fileno()

    def on_readable(self, tell: Callable[[], None]) -> None:
        """A socket is polled; but some may have come together with the greeting."""
        if self.holds_bytes:
            tell()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()


def _records(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """All of `parts`, as records hold them: small ones joined, big ones cut."""
    joined: list[Buffer] = []
    room = RECORD_BYTES
    for part in parts:
        if joined and (len(part) > room or len(joined) == _PARTS_JOINED):
            yield _one(joined)
            joined, room = [], RECORD_BYTES
        if len(part) > room:
            view = memoryview(part)
            yield from (view[at : at + RECORD_BYTES] for at in range(0, len(view), RECORD_BYTES))
        elif len(part):
            joined.append(part)
            room -= len(part)
    if joined:
        yield _one(joined)


def _one(joined: list[Buffer]) -> Buffer:
    return joined[0] if len(joined) == 1 else b"".join(joined)
