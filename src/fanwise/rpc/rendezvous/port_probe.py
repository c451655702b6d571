"""Whether the process at a TCP port of another host still lives: its kernel takes connections while it listens there.

A process that holds the interpreter's lock, or is stopped, answers nothing, and its host still does. Sends nothing but
the connection, which is closed at once. Never blocks: every look goes on where the last one stopped.
"""

import errno
import socket

_AGAIN_S, _SILENT_S = 0.2, 2.0
_IN_WORK = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK)
_CONNECTED = (0, errno.EISCONN)


class PortProbe:
    """Connects to one port again and again, while somebody looks.

    Args:
        host: an address, no name: names are not looked up here.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self._next_s = float("-inf")
        self._is_open = False

    def look(self, now_s: float) -> bool:
        """Whether the last try that was answered was let in. Call it every few milliseconds, or less often."""
        if self._socket is None and now_s >= self._next_s:
            self._next_s = now_s + _AGAIN_S
            family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if self._socket is not None:
            said = self._connect()
            if said not in _IN_WORK or now_s > self._next_s + _SILENT_S:
                self._is_open = said in _CONNECTED
                self.close()
        return self._is_open

    def _connect(self) -> int | None:
        assert self._socket is not None, "it was made"
        try:
            return self._socket.connect_ex(self._address)
        except OSError as error:  # that is no address
            return error.errno

    def close(self) -> None:
        """Give the descriptor back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
