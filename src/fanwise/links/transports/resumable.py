"""A byte stream over one TCP connection after another. A cut between living processes is not visible above it.

    dialer                                            listener
      | -- opening: id, number, bytes received ------->  |   number 0: a new stream; else a new connection of an old one
      | <- answer: accepted or not, bytes received ----  |
      | <== records, both ways ======================>   |   from the first byte that the other side has not received

    a record:  | size of the data, u32 | bytes received so far, u64 | data |      without data: an acknowledgment

`session` keeps the bytes that may have to be sent again. All this travels inside the authenticated connection.
Acknowledgments are no part of the stream: they pass data that waits for its own acknowledgment.

If a connection ends without a goodbye, the dialer connects again, at once and then at intervals, and the listener
waits. The stream is over, and its link lost, when
- the listener refuses the stream, or its port refuses the connection: its process has ended
- the port of the peer accepts connections, but no stream was resumed for `BUSY_S`
- the peer gave no sign of life for `UNREACHABLE_S`; the listener waits only `RETURN_S`, because a dialer that lives
  connects at once. A dialer that listens at a port of its own tells it in the opening, for `PortProbe`.

Only streams whose event loop is driven are resumed; others end with their connection.

Threads: one thread at a time reads, and another writes, holding the lock of `Writer`. Connections are replaced on the
event loop's thread with both excluded: writers by that lock, readers because a replaced connection is not read again.
"""

import logging
import secrets
import struct
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ...base.errors import FanwiseError, WireError
from ..session import Session
from .liveness import PortProbe
from .wires import Buffer

if TYPE_CHECKING:
    from socket import socket as Socket

    from ..hub import Hub
    from ..writer import Writer
    from .tls import TlsWire as Connection

_log = logging.getLogger(__name__)

BUSY_S, UNREACHABLE_S, RETURN_S = 30.0, 5.0, 0.8
_ATTEMPT_S = 2.0
_PAUSES_S = (0.0, 0.01, 0.05, 0.1, 0.2)  # before attempts to reconnect; the last is repeated
_PROBE_EVERY_S = 0.01

_OPENING = struct.Struct("<16sIQ300s")  # id, number of the connection, bytes received, address
_ANSWER = struct.Struct("<BQ")  # accepted, bytes received
_RECORD = struct.Struct("<IQ")  # size of the data, bytes received
# Bytes read at once, so that one big array does not keep the reading thread from everything else.
_READ_AT_ONCE = 1 << 20


class Refused(Exception):
    """The listener does not know the stream: its process is another one, or has closed the link."""


class Opening(NamedTuple):
    """First message of a connection.

    Attributes:
        number: of the connection in its stream, from 0.
        address: "host port" at which the dialer listens, or "".
    """

    stream_id: bytes
    number: int
    num_received: int
    address: str

    def encode(self) -> bytes:
        return _OPENING.pack(*self[:3], self.address.encode())


def new_opening(address: str) -> Opening:
    """Return the opening of a new stream."""
    return Opening(secrets.token_bytes(16), 0, 0, address)


class OpeningReader:
    """Reads the opening of an accepted connection."""

    def __init__(self) -> None:
        self._data = memoryview(bytearray(_OPENING.size))
        self._size = 0

    def read(self, connection: "Connection") -> Opening | None:
        """Return the opening, or None if not all of it has arrived. Raises OSError at the end of the connection."""
        while self._size < len(self._data):
            size = connection.read_into(self._data[self._size :])
            if size < 0:
                raise ConnectionResetError("it was closed before its opening")
            if size == 0:
                return None
            self._size += size
        stream_id, number, num_received, address = _OPENING.unpack(self._data)
        return Opening(stream_id, number, num_received, address.rstrip(b"\0").decode(errors="replace"))


def send_answer(connection: "Connection", num_received: int | None) -> None:
    """Accept a stream, and report how many of its bytes have arrived; None refuses it."""
    connection.write([_ANSWER.pack(num_received is not None, num_received or 0)])


def open_stream(connection: "Connection", opening: Opening, until_s: float) -> int:
    """Send `opening` and return how many bytes the listener has received. Blocks until `until_s` (time.monotonic).

    Raises `Refused`, TimeoutError, or OSError if the connection ended.
    """
    left: list[Buffer] = [opening.encode()]
    while left:
        size = connection.write(left)
        if size < 0:
            raise ConnectionResetError("it was closed")
        left = [part for part in [left[0][size:]] if part]
        if left and not connection.wait_writable(until_s - time.monotonic()):
            raise TimeoutError
    answer, size = bytearray(_ANSWER.size), 0
    while size < len(answer):
        if not connection.wait_readable(max(0.0, until_s - time.monotonic())):
            raise TimeoutError
        got = connection.read_into(memoryview(answer)[size:])
        if got < 0:
            raise ConnectionResetError("it was closed")
        size += got
    is_accepted, num_received = _ANSWER.unpack(answer)
    if not is_accepted:
        raise Refused
    return int(num_received)


class ResumableWire:
    """See the module. The transport of a link between hosts.

    Args:
        connection: the first connection, after its opening was answered.
        opening: of the first connection.
        connect: on the dialer's side, opens an authenticated connection. Blocks for at most the given seconds.
    """

    def __init__(
        self,
        hub: "Hub",
        connection: "Connection",
        opening: Opening,
        *,
        connect: "Callable[[float], Connection] | None" = None,
    ) -> None:
        self._hub = hub
        self._connection: Connection | None = connection
        self._fd = connection.fileno()
        # The connection that is read, the header that has begun to arrive, and the number of bytes of data after it.
        self._read_from = connection
        self._header = memoryview(bytearray(_RECORD.size))
        self._header_size = self._data_left = 0
        self._num_acknowledged = 0  # as read; the thread that writes tells the session
        self._outgoing: list[memoryview] = []  # the rest of a record
        self._is_waited_for = False
        self._opening = opening
        self._connect = connect
        self._session = Session()
        self._lose: Callable[[str], None] | None = None  # None after `close`
        self._writer: Writer
        self._schedule_read: Callable[[], None]
        self._changed = threading.Condition()
        self._ended: list[Connection] = []  # perhaps in use by a thread that writes
        self._retired: list[Connection] = []  # closed by the thread that reads
        self._is_over = False
        self._number = 0  # of the newest connection
        self._cut_s = 0.0
        self._probe: PortProbe | None = None

    def attach(self, writer: "Writer", schedule_read: Callable[[], None], lose: Callable[[str], None]) -> None:
        """Set the writer of the link, and how to make it read bytes that polling does not show, and end it."""
        self._writer, self._schedule_read, self._lose = writer, schedule_read, lose

    @property
    def socket(self) -> "Socket | None":
        """The socket of the current connection."""
        connection = self._connection
        return None if connection is None else connection.socket

    # -- reading ---------------------------------------------------------------------------------------------------

    def read_into(self, view: memoryview) -> int:
        while self._retired:
            self._retired.pop().close()
        connection = self._connection
        if connection is None:
            return -1 if self._is_over else 0
        try:
            size = self._read_records(connection, view)
            if size > 0:
                with self._changed:
                    if connection is not self._connection:
                        return 0  # the bytes will be sent again
                    self._session.received(size)
        except WireError:
            raise
        except BaseException:
            self._cut(connection)
            raise
        if size > 0:
            return size
        if size < 0 and (self._is_over or not self._hub.driven):
            self._is_over = True
        elif size < 0:
            self._cut(connection)
            return 0
        return size

    def _read_records(self, connection: "Connection", view: memoryview) -> int:
        """Return how many bytes of data were read; 0: nothing now; -1: the connection has ended."""
        if connection is not self._read_from:  # a new one begins with a record
            self._read_from, self._data_left, self._header_size = connection, 0, 0
        size, limit = 0, min(len(view), _READ_AT_ONCE)
        while size < limit:
            if self._data_left:
                read = connection.read_into(view[size : min(limit, size + self._data_left)])
            else:
                read = connection.read_into(self._header[self._header_size :])
            if read <= 0:
                return size or read
            if self._data_left:
                self._data_left -= read
                size += read
                if not (self._data_left or connection.holds_bytes):
                    break  # to ask the socket would be in vain
            else:
                self._header_size += read
                if self._header_size == len(self._header):
                    self._read_header()
        return size

    def _read_header(self) -> None:
        self._header_size = 0
        self._data_left, num_received = _RECORD.unpack(self._header)
        if num_received > self._session.num_sent:
            raise WireError("the peer has acknowledged bytes that were not sent to it.")
        self._num_acknowledged = max(self._num_acknowledged, num_received)

    @property
    def holds_bytes(self) -> bool:
        connection = self._connection
        return connection is not None and connection.holds_bytes

    @property
    def is_write_due(self) -> bool:
        """Return True if something that was read lets the sender write or free memory: call it after reading."""
        return self._has_new_acknowledgment or self._session.is_acknowledgment_due

    @property
    def _has_new_acknowledgment(self) -> bool:
        """Return True if the thread that writes must tell the session of an acknowledgment, to free memory."""
        return self._num_acknowledged > self._session.num_acknowledged

    # -- writing ---------------------------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        return bool(self._outgoing or self._session.has_unsent or self.is_write_due)

    @property
    def has_room(self) -> bool:
        return self._session.has_room or self._has_new_acknowledgment

    @property
    def num_written(self) -> int:
        return self._session.num_accepted

    @property
    def num_read(self) -> int:
        return self._session.num_received

    def write(self, parts: Sequence[Buffer]) -> int:
        if self._is_over:
            return -1
        connection, session, size = self._connection, self._session, 0
        if connection is None:
            return 0
        try:
            if self._has_new_acknowledgment:
                session.acknowledge(self._num_acknowledged)
                if self._is_waited_for:
                    with self._changed:
                        self._changed.notify_all()
            while self._send(connection) and (accepted := session.accept(parts, size)):
                size += accepted
        except BaseException:
            self._cut(connection)
            raise
        return size

    def _send(self, connection: "Connection") -> bool:
        """Send unsent bytes. Return False if the connection takes no more now."""
        session = self._session
        while True:
            if not self._outgoing:
                if not session.has_unsent and not session.is_acknowledgment_due:
                    return True
                data: Buffer = session.next() if session.has_unsent else b""
                self._outgoing = [memoryview(_RECORD.pack(len(data), session.acknowledgment()))]
                if data:
                    self._outgoing.append(memoryview(data))
            size = connection.write(self._outgoing)
            if size <= 0:  # at the end of the connection, the thread that reads finds it
                return False
            while self._outgoing and size >= len(self._outgoing[0]):
                size -= len(self._outgoing.pop(0))
            if size:
                self._outgoing[0] = self._outgoing[0][size:]

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait_readable(self, timeout_s: float | None) -> bool:
        connection = self._connection
        return self._wait(timeout_s) if connection is None else connection.wait_readable(timeout_s)

    def wait_writable(self, timeout_s: float | None) -> bool:
        connection = self._connection
        if connection is None or not (self.has_unsent or self.has_room):
            self._is_waited_for = True
            try:
                return self._wait(timeout_s, for_room=True)
            finally:
                self._is_waited_for = False
        return connection.wait_writable(timeout_s)

    def wait_any(self, timeout_s: float | None) -> bool:
        connection = self._connection
        if connection is None:
            return self._wait(timeout_s)
        is_writable = self.has_unsent or self.has_room  # else only an acknowledgment makes it so
        return connection.wait_any(timeout_s) if is_writable else connection.wait_readable(timeout_s)

    def _wait(self, timeout_s: float | None, *, for_room: bool = False) -> bool:
        """Block until there is a connection, with room for more bytes if asked, or the stream is over."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_over or (self._connection is not None and (not for_room or self.has_room)),
                timeout_s,
            )

    def fileno(self) -> int:
        return self._fd

    # -- reconnecting ----------------------------------------------------------------------------------------------

    def _cut(self, connection: "Connection") -> None:
        """Replace a connection that has ended."""
        with self._changed:
            if connection is not self._connection:
                return
            self._connection = None
            self._ended.append(connection)
        connection.hang_up()
        self._hub.call_soon(self._begin_reconnecting)

    def _retire(self) -> None:
        """Let the thread that reads close connections that have ended: no other uses them any more."""
        self._writer.disconnect()
        while self._ended:
            self._retired.append(self._ended.pop())

    def _begin_reconnecting(self) -> None:
        if self._is_over or self._connection is not None:
            return
        self._retire()
        self._cut_s = self._hub.clock.now_s()
        _log.info("a connection was cut (%s)", "it is replaced" if self._connect else "its dialer is awaited")
        if self._connect is not None:
            reconnect = partial(self._reconnect, self._connect)
            threading.Thread(target=reconnect, name="fanwise-reconnect", daemon=True).start()
            return
        host, _, port = self._opening.address.rpartition(" ")
        self._probe = PortProbe(host, int(port)) if port.isdecimal() else None
        self._wait_for_dialer(self._number)

    def _reconnect(self, connect: "Callable[[float], Connection]") -> None:
        """Dialer: connect until the stream is resumed or over. On a thread of its own."""
        attempt, reason, is_busy = 0, "", False
        while not self._is_over:
            cut_for_s = self._hub.clock.now_s() - self._cut_s
            if cut_for_s > (BUSY_S if is_busy else UNREACHABLE_S):
                self._end(f"its connection was cut and could not be replaced in {cut_for_s:.0f} s ({reason})")
                return
            time.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
            attempt += 1
            self._number += 1
            try:
                self._connect_once(connect)
                return
            except Refused:
                self._end("its connection was cut, and its process has closed the link or is another one")
                return
            except ConnectionRefusedError:
                self._end("its connection was cut, and nobody listens at its address")
                return
            except TimeoutError as error:  # the host accepts connections for a busy process
                is_busy, reason = True, str(error) or "it does not answer"
            except (OSError, FanwiseError) as error:
                reason = str(error)

    def _connect_once(self, connect: "Callable[[float], Connection]") -> None:
        connection = connect(_ATTEMPT_S)
        try:
            opening = self._opening._replace(number=self._number, num_received=self._session.num_received)
            num_received = open_stream(connection, opening, time.monotonic() + _ATTEMPT_S)
        except BaseException:
            connection.close()
            raise
        self._hub.call_soon(partial(self._use, connection, num_received))

    def _wait_for_dialer(self, number: int) -> None:
        """Listener: end the stream if the dialer does not return in time. `number`: of the connection that was cut."""
        if self._is_over or self._number != number:
            return
        now_s = self._hub.clock.now_s()
        is_alive = self._probe is not None and self._probe.is_open(now_s)
        if now_s - self._cut_s > (BUSY_S if is_alive else RETURN_S):
            self._end("its connection was cut, and it did not connect again")
            return
        self._hub.call_at(now_s + _PROBE_EVERY_S, partial(self._wait_for_dialer, number))

    def resume(self, connection: "Connection", opening: Opening) -> None:
        """Listener: continue over another connection. The last one may not be known to be cut yet."""
        if self._is_over:
            send_answer(connection, None)
            connection.close()
            return
        if opening.number <= self._number:  # the dialer has given this connection up already
            connection.close()
            return
        self._number = opening.number
        with self._changed:
            last, self._connection = self._connection, None
            num_received = self._session.num_received
        if last is not None:
            last.hang_up()
            self._ended.append(last)
        send_answer(connection, num_received)
        self._use(connection, opening.num_received)

    def _use(self, connection: "Connection", num_received: int) -> None:
        """Continue over `connection`. `num_received`: by the peer."""
        if self._is_over:
            connection.close()
            return
        self._retire()
        self._close_probe()

        def replace() -> int:
            self._session.resume(num_received)
            self._outgoing = []
            with self._changed:
                self._connection, self._fd = connection, connection.fileno()
                self._changed.notify_all()
            return self._fd

        try:
            is_used = self._writer.reconnect(replace)
        except WireError as error:
            connection.close()
            self._end(error.message)
            return
        if not is_used:
            connection.close()
        elif connection.holds_bytes:
            self._schedule_read()

    def _end(self, reason: str) -> None:
        """The stream is over. By any thread."""
        lose = self._lose
        if lose is not None:
            self._hub.call_soon(partial(lose, reason))

    # -- the end ---------------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        self._is_over = True
        connection = self._connection
        if connection is not None:
            connection.hang_up()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Close all sockets, without locks, because forked children call this too."""
        self._is_over, self._lose = True, None
        connection, self._connection = self._connection, None
        for each in (connection, *self._ended, *self._retired):
            if each is not None:
                each.close()
        self._ended.clear()
        self._retired.clear()
        self._close_probe()

    def _close_probe(self) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.close()
