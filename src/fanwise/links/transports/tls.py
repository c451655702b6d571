"""TLS on a socket that never blocks, and the wire over it: what a `SocketWire` is on one host, between two.

    socket --up to 256 KiB--> OpenSSL, in memory --plain bytes, a record at a time--> read_into
    socket <---- sealed ----- OpenSSL, in memory <--plain bytes, some records at a time-- write

OpenSSL never touches the socket: many records come with one system call, where it would make two for each. One thread
may read while another writes. OpenSSL's object bears only one at a time, so a lock is held, for some records, and never
while waiting for the network.

What came and was not asked for yet is kept here, so polling the descriptor does not tell all; `holds_bytes` does. What
was sealed must go out as it is: when it did not fit, `write` tells nothing of it and must be called with the same bytes
again, as links do anyway. Loads `ssl`: nobody imports this before there is a link between hosts.
"""

import contextlib
import errno
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from ...base.errors import WireError
from .wires import Buffer, polled, timeout_ms

_RECORD_BYTES = 16384
_RECEIVED_AT_ONCE = 16 * _RECORD_BYTES
# So that one big array does not keep the reading thread from everything else, nor a writer from the lock.
_READ_AT_ONCE = 64 * _RECORD_BYTES
_ASKED_AT_ONCE = 1 << 20  # a record comes of it all the same; OpenSSL's number for it is an int
_WRITTEN_AT_ONCE = 8 * _RECORD_BYTES
_PARTS_JOINED = 16
# Errors of a connection that prove nothing about the process at its other end.
_OUT_OF_REACH = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}
_QUIET = getattr(socket, "MSG_NOSIGNAL", 0)  # user code may have restored SIGPIPE


class TlsStream:
    """One side of TLS over `connection`, which it owns and makes non-blocking.

    `lock` must be held for `read_into` and `seal`, which use OpenSSL's object, when two threads use the stream. Raises
    as `ssl.SSLObject` does: `SSLWantReadError` and `SSLWantWriteError` when the socket has nothing, or no room.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.lock = threading.Lock()
        self._came, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._going, server_side=server_side)
        self._sealed = memoryview(b"")
        self._room = memoryview(bytearray(_RECEIVED_AT_ONCE))
        self.read_into = cast(Callable[[int, memoryview], int], self._tls.read)
        self.seal = self._tls.write

    @property
    def holds_bytes(self) -> bool:
        """Whether bytes have come that nobody has read; perhaps only some of a record."""
        return self._came.pending > 0 or self._tls.pending() > 0

    def receive(self) -> bool:
        """Take what the socket has now; False when it has no more for the moment. An end is found by reading.

        Raises `SSLWantReadError` when it has nothing.
        """
        try:
            size = self.socket.recv_into(self._room)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None
        with self.lock:
            if size:
                self._came.write(self._room[:size])
            else:
                self._came.write_eof()
        return size == len(self._room)

    def flush(self) -> None:
        """Send what was sealed. Raises `SSLWantWriteError` when not all of it fits."""
        while self._sealed or self._going.pending:
            if not self._sealed:
                with self.lock:
                    self._sealed = memoryview(self._going.read())
            try:
                self._sealed = self._sealed[self.socket.send(self._sealed, _QUIET) :]
            except BlockingIOError:
                raise ssl.SSLWantWriteError from None

    def do_handshake(self) -> None:
        """As far as it goes now."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                self.receive()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self.flush()  # the other side learns why
                raise
            else:
                self.flush()
                return

    def send(self, data: bytes) -> None:
        """Seal and send all of it. What has no room in the socket is sent with what comes next."""
        self.seal(data)
        self.flush()

    def recv(self, size: int) -> bytes:
        """At most `size` bytes. Raises `SSLEOFError` at the end."""
        while True:
            try:
                return self._tls.read(size)
            except ssl.SSLWantReadError:
                self.receive()

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        self.socket.close()


class TlsWire:
    """See the module. Owns the stream, whose handshake is done."""

    def __init__(self, stream: TlsStream) -> None:
        self._stream = stream
        self.holds_bytes = stream.holds_bytes
        self._owed = 0  # plain bytes that were sealed, and are not sent yet
        self._failure: WireError | None = None
        self._ended = False
        self._read_poll = select.poll()
        self._read_poll.register(stream, select.POLLIN)

    def read_into(self, view: memoryview) -> int:
        """Raises `WireError` when bytes on the way were changed."""
        size, limit, more = 0, min(len(view), _READ_AT_ONCE), True
        try:
            while size < limit and not self._ended:
                if not self.holds_bytes:
                    if not more:
                        break  # to ask the socket in vain is dear
                    more = self._stream.receive()
                size += self._open(view[size:limit])
        except ssl.SSLWantReadError:
            pass
        except OSError as error:
            if error.errno in _OUT_OF_REACH:
                self._failure = WireError(f"its host cannot be reached ({error.strerror}).")
            self._end()
        except ValueError:  # closed here
            self._end()
        if size == 0 and self._ended:
            if self._failure is not None:
                raise self._failure
            return -1
        return size

    def _open(self, view: memoryview) -> int:
        """Plain bytes of what has come, as many as there are."""
        size, stream = 0, self._stream
        try:
            with stream.lock:
                while size < len(view):
                    asked = min(len(view) - size, _ASKED_AT_ONCE)
                    got = stream.read_into(asked, view[size:])
                    size += got
                    if got == 0:
                        self._end()  # the other side has closed its TLS
                        return size
                    if got < min(asked, _RECORD_BYTES) and not stream.holds_bytes:
                        break
                self.holds_bytes = stream.holds_bytes
        except ssl.SSLWantReadError:
            self.holds_bytes = False
        except (ssl.SSLEOFError, ssl.SSLSyscallError, ssl.SSLZeroReturnError):
            self._end()
        except ssl.SSLError as error:
            self._failure = WireError(f"bytes came that the other side did not send ({error.reason or error}).")
            self._end()
        return size

    def _end(self) -> None:
        # Polling shows nothing more, and yet the end must be found.
        self._ended = self.holds_bytes = True

    def write(self, parts: Sequence[Buffer]) -> int:
        size = 0
        try:
            if self._owed:
                return self._send()
            for data in _in_order(parts):
                with self._stream.lock:
                    self._owed = self._stream.seal(data)
                size += self._send()
        except ssl.SSLWantWriteError:
            return size
        except (OSError, ValueError):
            return size or -1
        return size

    def _send(self) -> int:
        """Send what was sealed; how many plain bytes that was."""
        self._stream.flush()
        sent, self._owed = self._owed, 0
        return sent

    def wait_readable(self, timeout_s: float | None) -> bool:
        return self.holds_bytes or bool(self._read_poll.poll(timeout_ms(timeout_s)))

    def wait_writable(self, timeout_s: float | None) -> bool:
        return polled(self._stream.socket, select.POLLOUT, timeout_s)

    def wait_any(self, timeout_s: float | None) -> bool:
        return self.holds_bytes or polled(self._stream.socket, select.POLLIN | select.POLLOUT, timeout_s)

    def fileno(self) -> int:
        return self._stream.fileno()

    def on_readable(self, tell: Callable[[], None]) -> None:
        """A socket is polled; but some may have come together with the greeting."""
        if self.holds_bytes:
            tell()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()


def _in_order(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """All of `parts` in pieces that are written at once: small ones joined, big ones cut."""
    joined: list[Buffer] = []
    room = _RECORD_BYTES
    for part in parts:
        if joined and (len(part) > room or len(joined) == _PARTS_JOINED):
            yield _one(joined)
            joined, room = [], _RECORD_BYTES
        if len(part) > room:
            view = memoryview(part)
            yield from (view[at : at + _WRITTEN_AT_ONCE] for at in range(0, len(view), _WRITTEN_AT_ONCE))
        elif len(part):
            joined.append(part)
            room -= len(part)
    if joined:
        yield _one(joined)


def _one(joined: list[Buffer]) -> Buffer:
    return joined[0] if len(joined) == 1 else b"".join(joined)
