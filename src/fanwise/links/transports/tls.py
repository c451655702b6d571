"""TLS 1.3 between hosts: the handshake of a connection, and the wire over it.

    Handshake(connection, peer).step() --> TlsWire     both certificates, then one hello in each direction (`hello`)
    TlsWire                                            the `Wire` of a link, over a non-blocking `ssl.SSLSocket`

One thread may read while another writes. An OpenSSL connection serves one thread at a time, so both hold a lock, for
one record or one write, and never while they wait for the network.

OpenSSL requires that a write that did not fit is repeated with the same bytes. `TlsWire` keeps them, counts them as
not written, and expects them again at the beginning of the next `write`.

An interrupt, such as Ctrl-C, during `write` or `read_into` ends the connection, because OpenSSL may have processed
bytes that were not counted. Loads `ssl`: only import this module to make a link between hosts.
"""

import contextlib
import errno
import select
import signal
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence

from ...base.errors import WireError
from ...base.version import VERSION
from ..security.handshake import HELLO_SIZE, check_hello, hello
from .wires import Buffer, polled, timeout_ms

_RECORD_BYTES = 1 << 14  # of TLS, at most
_WRITE_BYTES = 1 << 16
_READ_BYTES = 1 << 20  # so that one big array does not keep the reading thread from other links
_JOINED_PARTS = 16
# Errors of a connection that say nothing about the peer's process.
_UNREACHABLE = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}
_WANTS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


class Handshake:
    """The handshake over a non-blocking `connection`. `peer`: its address, for messages."""

    def __init__(self, connection: ssl.SSLSocket, peer: str) -> None:
        self.connection = connection
        self.peer = peer
        self.is_authenticated = False
        self._has_sent_hello = False
        self._received = b""

    def step(self) -> "TlsWire":
        """Continue without blocking. Return the wire when the handshake is complete; it owns the connection.

        Raises `SSLWantReadError` or `SSLWantWriteError` when it must be called again, other `OSError` or `WireError`
        when the handshake has failed.
        """
        with _sigpipe_blocked():
            if not self.is_authenticated:
                self.connection.do_handshake()
                self.is_authenticated = True
            if not self._has_sent_hello:
                self.connection.send(hello(VERSION))
                self._has_sent_hello = True
        while len(self._received) < HELLO_SIZE:
            data = self.connection.recv(HELLO_SIZE - len(self._received))
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
            self._received += data
        check_hello(self._received, self.peer, VERSION)
        return TlsWire(self.connection)


class TlsWire:
    """See the module. Owns `connection`, which is non-blocking and authenticated."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self.socket = connection
        self.holds_bytes = connection.pending() > 0
        self._lock = threading.Lock()
        self._read_poll = select.poll()
        self._read_poll.register(connection, select.POLLIN)
        self._failure: WireError | None = None
        self._has_ended = False
        self._unsent = b""
        self._is_torn = False

    def read_into(self, view: memoryview) -> int:
        """Raises `WireError` when the peer's data fails the checks of TLS, or its host cannot be reached."""
        size, limit = 0, min(len(view), _READ_BYTES)
        try:
            while size < limit and not self._has_ended:
                with self._lock:
                    received = self.socket.recv_into(view[size:limit])
                size += received
                if received == 0:
                    self._end()
                elif received < _RECORD_BYTES and not self._read_poll.poll(0):
                    break  # at a lower cost than `recv_into`
            with self._lock:
                self.holds_bytes = self._has_ended or self.socket.pending() > 0
        except _WANTS:
            self.holds_bytes = False
        except _ENDS:
            self._end()
        except ssl.SSLError as error:
            self._end(WireError(f"data from the peer failed the checks of TLS ({error.reason or error})."))
        except OSError as error:
            is_unreachable = error.errno in _UNREACHABLE
            self._end(WireError(f"its host cannot be reached ({error.strerror}).") if is_unreachable else None)
        except BaseException:
            self._tear()
            raise
        if size == 0 and self._has_ended:
            if self._failure is not None:
                raise self._failure
            return -1
        return size

    def _end(self, failure: WireError | None = None) -> None:
        # Polling may show nothing more, and the reader must find the end.
        self._failure, self._has_ended, self.holds_bytes = failure, True, True

    def _tear(self) -> None:
        self._is_torn = True
        self._end()
        self.hang_up()

    def write(self, parts: Sequence[Buffer]) -> int:
        if self._is_torn:
            return -1
        size = 0
        try:
            if self._unsent:
                return self._send(self._unsent)
            for data in _chunks(parts):
                sent = self._send(data)
                size += sent
                if sent < len(data):
                    break
        except _WANTS:
            return size
        except OSError:
            return size or -1
        except BaseException:
            self._tear()
            raise
        return size

    def _send(self, data: Buffer) -> int:
        try:
            with self._lock, _sigpipe_blocked():
                sent = self.socket.send(data)
        except _WANTS:
            self._unsent = bytes(data)
            raise
        self._unsent = b""
        return sent

    def wait_readable(self, timeout_s: float | None) -> bool:
        return self.holds_bytes or bool(self._read_poll.poll(timeout_ms(timeout_s)))

    def wait_writable(self, timeout_s: float | None) -> bool:
        return polled(self.socket, select.POLLOUT, timeout_s)

    def wait_any(self, timeout_s: float | None) -> bool:
        return self.holds_bytes or polled(self.socket, select.POLLIN | select.POLLOUT, timeout_s)

    def fileno(self) -> int:
        return self.socket.fileno()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            # Not `SSLSocket.shutdown`, after which the socket would be read and written in plain text.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()


@contextlib.contextmanager
def _sigpipe_blocked() -> Iterator[None]:
    """Prevent that a closed connection kills a program that has restored SIGPIPE: OpenSSL uses no MSG_NOSIGNAL."""
    if signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN:
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
    try:
        yield
    finally:
        signal.sigtimedwait([signal.SIGPIPE], 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _chunks(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield the bytes of `parts` in pieces to write at once: small parts are joined, big ones are cut."""
    joined: list[Buffer] = []
    room = _RECORD_BYTES
    for part in parts:
        if joined and (len(part) > room or len(joined) == _JOINED_PARTS):
            yield b"".join(joined)
            joined, room = [], _RECORD_BYTES
        if len(part) > room:
            view = memoryview(part)
            yield from (view[start : start + _WRITE_BYTES] for start in range(0, len(view), _WRITE_BYTES))
        elif len(part):
            joined.append(part)
            room -= len(part)
    if joined:
        yield joined[0] if len(joined) == 1 else b"".join(joined)
