"""Wires carry the bytes of a link. The interface, and the wire over a connected socket of this host.

    read_into(view) -> n   received bytes; 0: nothing now; -1: the other end is closed
    write(parts) -> n      accepted bytes; 0: no room now; -1: the other end is closed
    wait_readable, wait_writable, wait_any(timeout_s)     block until there is something to do
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
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from ..hub import SPIN_S, Spinning

Buffer = bytes | bytearray | memoryview
_PARTS_A_CALL = 64  # well under IOV_MAX
# User code may have restored SIGPIPE; a closed connection must not kill this process.
_WRITE_FLAGS = (socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0),)
_NO_RIGHTS = ((),)

_INT = struct.Struct("i")
_RIGHTS_SIZE = (socket.CMSG_SPACE(16 * _INT.size),)
_READ_FLAGS = (socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0),)


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
        """Return False if `write` takes nothing until the peer has acknowledged received bytes."""

    @property
    def num_read(self) -> int:
        """Bytes read so far. Exact also when an interrupt, such as Ctrl-C, has stopped `read_into`."""

    @property
    def num_written(self) -> int:
        """Bytes that `write` has taken so far. Exact as `num_read`."""

    def wait_readable(self, timeout_s: float | None) -> bool: ...
    def wait_writable(self, timeout_s: float | None) -> bool: ...
    def wait_any(self, timeout_s: float | None) -> bool: ...
    def fileno(self) -> int: ...
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
    """A connected Unix stream socket, which can carry descriptors. Owns it.

    CPython delivers signals between bytecodes, so a signal handler that raises may come between a system call and the
    assignment of its result. Results are therefore appended to a list by C code, `list.extend(map(...))`.

    Attributes:
        descriptors: received and not taken by `next_descriptor`.
    """

    holds_bytes = has_unsent = False
    has_room = True

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)  # each call has a flag for non-blocking
        self._socket = connection
        self._read_poll = select.poll()
        self._read_poll.register(connection, select.POLLIN)
        self._recvmsg_into = connection.recvmsg_into
        self._sendmsg = connection.sendmsg
        self._send = connection.send
        # The sum of former results, and the last result, if any.
        self._reads: tuple[int, list[Any]] = 0, []
        self._has_kept = False  # the descriptors of the last read
        self._writes: tuple[int, list[int]] = 0, []
        self._spinning = Spinning()
        self.descriptors: deque[int] = deque()

    def read_into(self, view: memoryview) -> int:
        total, results = self._reads
        if results:
            self._keep_descriptors()
            self._reads = total, results = total + results[0][0], []
            self._has_kept = False
        try:
            results.extend(map(self._recvmsg_into, ([view],), _RIGHTS_SIZE, _READ_FLAGS))
        except BlockingIOError:
            return 0
        except OSError:
            return -1
        size, rights, _, _ = results[0]
        if rights:
            self._keep_descriptors()
        return size or -1

    def _keep_descriptors(self) -> None:
        """Keep the descriptors of the last read, if an interrupt has prevented it until now."""
        results = self._reads[1]
        if not results or self._has_kept:
            return
        received: list[int] = []
        for level, kind, data in results[0][1]:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received += [fd for (fd,) in _INT.iter_unpack(data[: len(data) // _INT.size * _INT.size])]
        self._has_kept = True
        self.descriptors += received

    def write(self, parts: Sequence[Buffer]) -> int:
        if len(parts) == 1:
            return self._written(map(self._send, parts, _WRITE_FLAGS))
        return self._written(map(self._sendmsg, (parts[:_PARTS_A_CALL],), _NO_RIGHTS, _WRITE_FLAGS))

    def write_with_descriptor(self, part: Buffer, fd: int) -> int:
        """As `write`; the descriptor is sent with the first byte and stays the caller's."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _INT.pack(fd))]
        return self._written(map(self._sendmsg, ([part],), (rights,), _WRITE_FLAGS))

    def _written(self, call: "map[int]") -> int:
        total, sizes = self._writes
        if sizes:
            self._writes = total, sizes = total + sizes[0], []
        try:
            sizes.extend(call)
        except BlockingIOError:
            return 0
        except OSError:
            return -1
        return sizes[0]

    @property
    def num_read(self) -> int:
        total, results = self._reads
        return total + (int(results[0][0]) if results else 0)

    @property
    def num_written(self) -> int:
        total, sizes = self._writes
        return total + sum(sizes)

    def next_descriptor(self) -> int:
        """Return the next received descriptor, owned by the caller from now on; -1 if there is none."""
        self._keep_descriptors()
        return self.descriptors.popleft() if self.descriptors else -1

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait_readable(self, timeout_s: float | None) -> bool:
        # Not a blocking recv, which also wakes up when the peer reads the bytes that this side has sent.
        return self._spin() or bool(self._read_poll.poll(timeout_ms(timeout_s)))

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

    def wait_writable(self, timeout_s: float | None) -> bool:
        return polled(self._socket, select.POLLOUT, timeout_s)

    def wait_any(self, timeout_s: float | None) -> bool:
        return polled(self._socket, select.POLLIN | select.POLLOUT, timeout_s)

    def fileno(self) -> int:
        return self._socket.fileno()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
        self._keep_descriptors()
        while self.descriptors:
            os.close(self.descriptors.popleft())
