"""Signs of life of a peer on another host: packets of its kernel, and a port that accepts connections.

`TcpWatch` loses a link whose peer's host has stopped responding, as after a cut cable:

    data or probes of this side are unacknowledged, and no packet arrived for `silence_s`, at two checks in a row

Two checks, because one may fall between a probe and its response. A process that does not read for a minute may be
healthy: its kernel still responds. Packets are counted, because the kernel's times of the last arrival ignore the
peer's probes: after a cable was unplugged a few times, data may wait ten seconds for its retransmission, while probes
arrive every second. TCP_USER_TIMEOUT cannot be used, because it also counts the time in which a live host has no room
since its process does not read. Linux only; elsewhere, and where no thread drives the hub, the kernel's limits apply.

`PortProbe` checks whether a process still listens at a port. The kernel accepts connections for a process that is busy
or stopped, and refuses them when it has ended.
"""

import errno
import socket
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

from ..hub import Hub, Timer

CHECK_INTERVAL_S = 1.0
# struct tcp_info of linux/tcp.h: tcpi_probes, tcpi_unacked and tcpi_segs_in.
_INFO = struct.Struct("=3xB20xI112xI")
_INTERVAL_S, _TIMEOUT_S = 0.2, 2.0
_IN_PROGRESS = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK)
_CONNECTED = (0, errno.EISCONN)


class TcpState(NamedTuple):
    """`unanswered`: something of this side is not acknowledged. `num_packets`: number of packets that have arrived."""

    unanswered: bool
    num_packets: int


def tcp_state(connection: socket.socket) -> TcpState | None:
    """Return the kernel's view; None if it has none, or the connection is closed. Does not block."""
    if sys.platform != "linux":
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError:
        return None
    if len(info) < _INFO.size:
        return None
    probes, unacked, num_packets = _INFO.unpack(info)
    return TcpState(probes > 0 or unacked > 0, num_packets)


class TcpWatch:
    """Calls `lose(reason)` when the peer's host was silent for `silence_s` and one check more.

    Args:
        current_socket: returns the connection; None while it is being replaced.
    """

    def __init__(
        self,
        hub: Hub,
        current_socket: Callable[[], socket.socket | None],
        *,
        lose: Callable[[str], None],
        silence_s: float,
    ) -> None:
        self._hub = hub
        self._current_socket = current_socket
        self._lose = lose
        self._silence_s = silence_s
        self._num_packets = -1
        self._last_packet_s = 0.0
        self._is_suspect = False
        self._has_ended = False
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Start checking. Thread-safe."""
        self._hub.call_soon(self._schedule)

    def end(self) -> None:
        """Stop checking. Thread-safe."""
        self._has_ended = True
        self._hub.call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if not self._has_ended:
            self._timer = self._hub.call_at(self._hub.clock.now_s() + CHECK_INTERVAL_S, self._check)

    def _check(self) -> None:
        connection = self._current_socket()
        if connection is None:
            self._is_suspect = False
        state = tcp_state(connection) if connection is not None else None
        if state is not None:
            now_s = self._hub.clock.now_s()
            if state.num_packets != self._num_packets:
                self._num_packets, self._last_packet_s = state.num_packets, now_s
            silent_s = now_s - self._last_packet_s
            is_silent = state.unanswered and silent_s >= self._silence_s - CHECK_INTERVAL_S
            if is_silent and self._is_suspect:
                self._lose(f"nothing came from its host for {silent_s:.1f} s")
                return
            self._is_suspect = is_silent
        self._schedule()


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
