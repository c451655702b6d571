"""The greeting of a link between hosts: TLS 1.3 on a socket that never blocks, until both have said hello.

OpenSSL never touches the socket. What came after the other side's hello are records, which are not TLS's any more
(`sealed`): `left_over` gives them. Loads `ssl`: nobody imports this before there is a link between hosts.
"""

import contextlib
import socket
import ssl

from ...base.errors import WireError

_RECEIVED_AT_ONCE = 1 << 16
_QUIET = getattr(socket, "MSG_NOSIGNAL", 0)  # user code may have restored SIGPIPE


class TlsStream:
    """One side of TLS over `connection`, which it owns and makes non-blocking.

    Raises as `ssl.SSLObject` does: `SSLWantReadError` and `SSLWantWriteError` when the socket has nothing, or no room.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._came, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._going, server_side=server_side)
        self._unsent = b""

    def do_handshake(self) -> None:
        """As far as it goes now."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                self._receive()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self.flush()  # the other side learns why
                raise
            else:
                self.flush()
                return

    def send(self, data: bytes) -> None:
        """All of it. What has no room in the socket goes with `flush`."""
        self._tls.write(data)
        self.flush()

    def flush(self) -> None:
        while self._unsent or self._going.pending:
            self._unsent = self._unsent or self._going.read()
            try:
                self._unsent = self._unsent[self.socket.send(self._unsent, _QUIET) :]
            except BlockingIOError:
                raise ssl.SSLWantWriteError from None

    def recv(self, size: int) -> bytes:
        """At most `size` bytes. Raises `SSLEOFError` at the end."""
        while True:
            try:
                return self._tls.read(size)
            except ssl.SSLWantReadError:
                self._receive()

    def _receive(self) -> None:
        """Take what the socket has now. An end is found by reading."""
        try:
            data = self.socket.recv(_RECEIVED_AT_ONCE)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None
        if data:
            self._came.write(data)
        else:
            self._came.write_eof()

    def left_over(self) -> bytes:
        """What has come and is not TLS's. Raises WireError when the other side has said more than its hello."""
        if self._tls.pending():
            raise WireError("it said more than its hello.")
        return self._came.read()

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        self.socket.close()
