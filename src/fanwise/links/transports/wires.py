"""Wires carry the bytes of a link. The interface, and two kinds: in memory, and over a connected socket.

    read_into(view) -> n   received bytes; 0: nothing now; -1: the other end is closed
    write(parts) -> n      accepted bytes; 0: no room now; -1: the other end is closed
    wait_readable, wait_writable, wait_any(timeout_s)     block until there is something to do
    holds_bytes            True if it has bytes that polling does not show: it must be read again
    hang_up()              ends both directions and wakes waiting threads; received bytes can still be read
    close()                closes the descriptor; only when nobody uses the wire any more

Only the waits block. One thread at a time reads and waits for bytes, one at a time writes. Frames, and the peer, are
unknown here. The wire between hosts is in `tls`.
"""

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..hub import SPIN_S, Spinning

Buffer = bytes | bytearray | memoryview
_PARTS_A_CALL = 64  # well under IOV_MAX
_READ_FLAGS, _ANY_SIZE, _NO_RIGHTS = (socket.MSG_DONTWAIT,), (0,), ((),)
# User code may have restored SIGPIPE; a peer that is gone must not kill this process.
_WRITE_FLAGS = (socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0),)

_INT = struct.Struct("i")
_RIGHTS_SIZE = socket.CMSG_SPACE(16 * _INT.size)


class Wire(Protocol):
    """The transport of a link."""

    def read_into(self, view: memoryview) -> int: ...
    def write(self, parts: Sequence[Buffer]) -> int: ...
    @property
    def holds_bytes(self) -> bool:
        """True if there are received bytes that polling `fileno()` does not show. Cheap and thread-safe."""

    @property
    def has_unsent(self) -> bool:
        """Return True if bytes that `write` has taken must still be sent, by another `write`, maybe of nothing."""

    @property
    def has_room(self) -> bool:
        """Return False if `write` takes nothing until the peer has acknowledged what it received."""

    @property
    def num_read(self) -> int:
        """Bytes read so far. Exact also when an interrupt, such as Ctrl-C, has stopped `read_into`."""

    @property
    def num_written(self) -> int:
        """Bytes that `write` has taken so far. Exact as `num_read`."""

    def wait_readable(self, timeout_s: float | None) -> bool: ...
    def wait_writable(self, timeout_s: float | None) -> bool: ...
    def wait_any(self, timeout_s: float | None) -> bool: ...
    def fileno(self) -> int:
        """Return the descriptor to poll; -1 for a wire in memory, which calls `notify` of `on_readable` instead."""

    def on_readable(self, notify: Callable[[], None]) -> None: ...
    def hang_up(self) -> None: ...
    def close(self) -> None: ...


def timeout_ms(timeout_s: float | None) -> int | None:
    """Return a timeout for `poll`, rounded up so that a wait does not end early."""
    return None if timeout_s is None else max(0, int(timeout_s * 1000 + 0.999))


def polled(connection: socket.socket, events: int, timeout_s: float | None) -> bool:
    """Block until one of these events. Uses a new poll object, because one serves one thread at a time."""
    poll = select.poll()
    try:
        poll.register(connection, events)
    except ValueError:
        return True  # closed; the next step notices
    return bool(poll.poll(timeout_ms(timeout_s)))


class SocketWire:
    """A connected stream socket. Owns it.

    CPython delivers signals between bytecodes, so a signal handler that raises may come between a system call and the
    assignment of its result. Results are therefore appended to a list by C code, `list.extend(map(...))`.
    """

    holds_bytes = has_unsent = False
    has_room = True

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)  # each call has a flag for non-blocking
        self._socket = connection
        self._read_poll = select.poll()
        self._read_poll.register(connection, select.POLLIN)
        self._recv_into = connection.recv_into
        self._recvmsg_into = connection.recvmsg_into
        self._sendmsg = connection.sendmsg
        self._send = connection.send
        # The sum of former results, and the last result, if any.
        self._reads: tuple[int, list[Any]] = 0, []
        self._writes: tuple[int, list[int]] = 0, []
        self._spinning = Spinning()
        self._takes_descriptors = False
        self._descriptors: deque[int] = deque()

    def read_into(self, view: memoryview) -> int:
        try:
            if self._takes_descriptors:
                return self._read_with_descriptors(view) or -1
            total, sizes = self._reads
            if sizes:
                self._reads = total, sizes = total + sizes[0], []
            sizes.extend(map(self._recv_into, (view,), _ANY_SIZE, _READ_FLAGS))
            return sizes[0] or -1
        except BlockingIOError:
            return 0
        except OSError:
            return -1

    def _spin(self) -> bool:
        """Poll actively for a moment. Return True if something arrived."""
        if not self._spinning.is_due():
            return False
        poll, yield_cpu, now_s = self._read_poll.poll, os.sched_yield, time.perf_counter
        until_s = now_s() + SPIN_S
        while not (seen := bool(poll(0))) and now_s() < until_s:
            yield_cpu()
        self._spinning.ended(seen=seen)
        return seen

    def write(self, parts: Sequence[Buffer]) -> int:
        try:
            total, sizes = self._writes
            if sizes:
                self._writes = total, sizes = total + sizes[0], []
            if len(parts) == 1:
                sizes.extend(map(self._send, parts, _WRITE_FLAGS))
            else:
                sizes.extend(map(self._sendmsg, (parts[:_PARTS_A_CALL],), _NO_RIGHTS, _WRITE_FLAGS))
            return sizes[0]
        except BlockingIOError:
            return 0
        except OSError:
            return -1

    # -- descriptors (Unix sockets) --------------------------------------------------------------------------------

    def take_descriptors(self) -> None:
        """Keep received descriptors from now on. Until then the kernel drops them, and reading is cheaper."""
        self._takes_descriptors = True

    def next_descriptor(self) -> int:
        """Return the next received descriptor, owned by the caller from now on; -1 if there is none."""
        return self._descriptors.popleft() if self._descriptors else -1

    @property
    def has_descriptors(self) -> bool:
        return bool(self._descriptors)

    def write_with_descriptor(self, part: Buffer, fd: int) -> int:
        """As `write`; the descriptor is sent with the first byte and stays the caller's."""
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _INT.pack(fd))]
            total, sizes = self._writes
            if sizes:
                self._writes = total, sizes = total + sizes[0], []
            sizes.extend(map(self._sendmsg, ([part],), (rights,), _WRITE_FLAGS))
            return sizes[0]
        except BlockingIOError:
            return 0
        except OSError:
            return -1

    def _read_with_descriptors(self, view: memoryview) -> int:
        total, results = self._reads
        if results:
            self._reads = total, results = total + _size_of(results[0]), []
        results.extend(map(self._recvmsg_into, ([view],), (_RIGHTS_SIZE,), (_READ_FLAGS[0] | socket.MSG_CMSG_CLOEXEC,)))
        size, rights, _, _ = results[0]
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors += [fd for (fd,) in _INT.iter_unpack(data[: len(data) // _INT.size * _INT.size])]
        return int(size)

    @property
    def num_read(self) -> int:
        total, results = self._reads
        return total + (_size_of(results[0]) if results else 0)

    @property
    def num_written(self) -> int:
        total, sizes = self._writes
        return total + sum(sizes)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait_readable(self, timeout_s: float | None) -> bool:
        # Not a blocking recv, which also wakes up when the peer reads what this side has sent.
        return self._spin() or bool(self._read_poll.poll(timeout_ms(timeout_s)))

    def wait_writable(self, timeout_s: float | None) -> bool:
        return polled(self._socket, select.POLLOUT, timeout_s)

    def wait_any(self, timeout_s: float | None) -> bool:
        return polled(self._socket, select.POLLIN | select.POLLOUT, timeout_s)

    def fileno(self) -> int:
        return self._socket.fileno()

    def on_readable(self, notify: Callable[[], None]) -> None:
        """Nothing to do: a socket is polled."""

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())


def _size_of(result: Any) -> int:
    """Return how many bytes `recv_into` or `recvmsg_into` has read."""
    return result if type(result) is int else int(result[0])


class MemoryWire:
    """One end of a pair in memory, for tests and for links within a process. Always has room."""

    has_unsent = False
    has_room = True
    holds_bytes = False  # it has no descriptor, and is read to the end

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # (bytes written until the end of the part, what is unread of it). Never empty, so that one assignment or append
        # changes the bytes and their count together, and an interrupt cannot come between.
        self._inbox: deque[tuple[int, memoryview]] = deque([(0, memoryview(b""))])
        self._closed = False
        self._peer: MemoryWire | None = None
        self._notify: Callable[[], None] | None = None

    @staticmethod
    def pair() -> "tuple[MemoryWire, MemoryWire]":
        """Return two connected ends."""
        a, b = MemoryWire(), MemoryWire()
        a._peer, b._peer = b, a
        return a, b

    @property
    def num_read(self) -> int:
        end, unread = self._inbox[0]
        return end - len(unread)

    @property
    def num_written(self) -> int:
        return 0 if self._peer is None else self._peer._inbox[-1][0]

    @property
    def _is_over(self) -> bool:
        return self._closed or self._peer is None or self._peer._closed

    @property
    def _has_bytes(self) -> bool:
        return self.num_read < self._inbox[-1][0]

    def read_into(self, view: memoryview) -> int:
        with self._changed:
            while not len(self._inbox[0][1]) and len(self._inbox) > 1:
                self._inbox.popleft()
            end, unread = self._inbox[0]
            if not len(unread):
                return -1 if self._is_over else 0
            size = min(len(unread), len(view))
            view[:size] = unread[:size]
            self._inbox[0] = (end, unread[size:])
            return size

    def write(self, parts: Sequence[Buffer]) -> int:
        if self._is_over:
            return -1
        data = b"".join(parts)
        assert self._peer is not None, "otherwise it is over"
        try:
            self._peer._take(data)
        except BaseException:  # an interrupt: the reader may not have heard of the data yet
            self._peer._wake_reader()
            raise
        return len(data)

    def _take(self, data: bytes) -> None:
        with self._changed:
            self._inbox.append((self._inbox[-1][0] + len(data), memoryview(data)))
        self._wake_reader()

    def _wake_reader(self) -> None:
        with self._changed:
            self._changed.notify_all()
        if self._notify is not None:
            self._notify()

    def wait_readable(self, timeout_s: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._has_bytes or self._is_over, timeout_s)

    def wait_writable(self, timeout_s: float | None) -> bool:
        return True

    def wait_any(self, timeout_s: float | None) -> bool:
        return True

    def fileno(self) -> int:
        return -1

    def on_readable(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        if self._has_bytes or self._is_over:
            notify()

    def hang_up(self) -> None:
        if not self._closed:
            self._closed = True
            self._wake_reader()
            if self._peer is not None:
                self._peer._wake_reader()

    def close(self) -> None:
        self.hang_up()
