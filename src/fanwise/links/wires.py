"""Wires: what carries the bytes of a link. One small interface, two kinds here: in memory, and a connected socket.

    read_into(view) -> n   bytes came; 0: nothing now; -1: the other end is closed
    write(parts) -> n      bytes were taken; 0: nothing now; -1: the other end is closed
    wait_readable / wait_writable(timeout_s) -> bool     block until there is something to do

A wire never blocks in `read_into` and `write`. It knows nothing of frames, and nothing of who is at the other end.
TLS between hosts will be one more wire.
"""

import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview
_PARTS_A_CALL = 64  # well under IOV_MAX


class Wire(Protocol):
    """What a link asks of the thing that carries its bytes."""

    def read_into(self, view: memoryview) -> int: ...
    def write(self, parts: Sequence[Buffer]) -> int: ...
    def wait_readable(self, timeout_s: float | None) -> bool: ...
    def wait_writable(self, timeout_s: float | None) -> bool: ...
    def fileno(self) -> int:
        """To be polled; -1 for a wire in memory, which tells of itself through `on_readable`."""

    def on_readable(self, tell: Callable[[], None]) -> None: ...
    def close(self) -> None: ...


def _timeout_ms(timeout_s: float | None) -> int | None:
    return None if timeout_s is None else max(0, int(timeout_s * 1000 + 0.999))


class SocketWire:
    """A connected stream socket. Owns it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._read_poll = select.poll()
        self._read_poll.register(connection, select.POLLIN)
        self._write_poll = select.poll()
        self._write_poll.register(connection, select.POLLOUT)
        self._recv_into = connection.recv_into
        self._sendmsg = connection.sendmsg
        self._send = connection.send

    def read_into(self, view: memoryview) -> int:
        try:
            return self._recv_into(view) or -1
        except BlockingIOError:
            return 0
        except OSError:
            return -1

    def write(self, parts: Sequence[Buffer]) -> int:
        try:
            if len(parts) == 1:
                return self._send(parts[0])
            return self._sendmsg(parts[:_PARTS_A_CALL])
        except BlockingIOError:
            return 0
        except OSError:
            return -1

    def wait_readable(self, timeout_s: float | None) -> bool:
        return bool(self._read_poll.poll(_timeout_ms(timeout_s)))

    def wait_writable(self, timeout_s: float | None) -> bool:
        return bool(self._write_poll.poll(_timeout_ms(timeout_s)))

    def fileno(self) -> int:
        return self._socket.fileno()

    def on_readable(self, tell: Callable[[], None]) -> None:
        """A socket is polled; nothing to do."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


class MemoryWire:
    """One end of a pair in memory, for tests and for one process talking to itself. Safe between threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inbox: deque[bytes] = deque()
        self._closed = False
        self._peer: MemoryWire | None = None
        self._tell: Callable[[], None] | None = None

    @staticmethod
    def pair() -> "tuple[MemoryWire, MemoryWire]":
        """Two ends; what is written into one is read from the other."""
        a, b = MemoryWire(), MemoryWire()
        a._peer, b._peer = b, a
        return a, b

    def read_into(self, view: memoryview) -> int:
        with self._changed:
            if not self._inbox:
                return -1 if self._closed or self._peer is None or self._peer._closed else 0
            data = self._inbox.popleft()
            size = min(len(data), len(view))
            view[:size] = data[:size]
            if size < len(data):
                self._inbox.appendleft(data[size:])
            return size

    def write(self, parts: Sequence[Buffer]) -> int:
        peer = self._peer
        if self._closed or peer is None or peer._closed:
            return -1
        data = b"".join(parts)
        peer._take(data)
        return len(data)

    def _take(self, data: bytes | None) -> None:
        with self._changed:
            if data:
                self._inbox.append(data)
            self._changed.notify_all()
        if self._tell is not None:
            self._tell()

    def wait_readable(self, timeout_s: float | None) -> bool:
        def there_is() -> bool:
            return bool(self._inbox) or self._closed or self._peer is None or self._peer._closed

        with self._changed:
            return self._changed.wait_for(there_is, timeout_s)

    def wait_writable(self, timeout_s: float | None) -> bool:
        return True

    def fileno(self) -> int:
        return -1

    def on_readable(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        if self._inbox or (self._peer is not None and self._peer._closed):
            tell()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._take(None)
            if self._peer is not None:
                self._peer._take(None)
