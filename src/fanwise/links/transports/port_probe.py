"""Checks whether a process still listens at a TCP port of another host.

The kernel accepts connections for a process that is busy or stopped, and refuses them when it has ended. Each attempt
opens a connection and closes it at once, without sending anything. Never blocks: every call continues the last attempt.
"""

import errno
import socket

_INTERVAL_S, _TIMEOUT_S = 0.2, 2.0
_IN_PROGRESS = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK)
_CONNECTED = (0, errno.EISCONN)


class PortProbe:
    """Connects to one port repeatedly, as long as `is_open` is called.

    Args:
        host: a numeric address, because names are not looked up.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self._next_s = float("-inf")
        self._is_open = False

    def is_open(self, now_s: float) -> bool:
        """Return True if the last completed attempt was accepted. Call it every few milliseconds."""
        if self._socket is None and now_s >= self._next_s:
            self._next_s = now_s + _INTERVAL_S
            family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
            try:
                self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            except OSError:  # too many open files: the next attempt may succeed
                return self._is_open
        if self._socket is not None:
            status = self._connect(self._socket)
            if status not in _IN_PROGRESS or now_s > self._next_s + _TIMEOUT_S:
                self._is_open = status in _CONNECTED
                self.close()
        return self._is_open

    def _connect(self, connection: socket.socket) -> int | None:
        try:
            return connection.connect_ex(self._address)
        except OSError as error:  # not an address
            return error.errno

    def close(self) -> None:
        """Close the socket of an attempt in progress."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
