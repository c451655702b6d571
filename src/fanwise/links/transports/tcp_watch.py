"""Detects that the host at the other end of a TCP link no longer responds: a cut cable, a host that is off.

A process that does not read for a minute may be healthy: its kernel still responds.

    data or probes of this side are unacknowledged, and no packet arrived for `silence_s`, at two checks in a row
        --> the link is lost

Two checks, because one may fall between a probe and its response. Packets are counted, because the kernel's times of
the last arrival ignore the peer's probes: after a cable was unplugged a few times, data may wait ten seconds for its
retransmission, while probes arrive every second. TCP_USER_TIMEOUT cannot be used, because it also counts the time in
which a live host has no room since its process does not read. Linux only; elsewhere, and where no thread drives the
hub, the kernel's limits apply.
"""

import socket
import struct
import sys
from socket import socket as Socket
from typing import NamedTuple, Protocol

from ..hub import Hub, Timer
from ..link import Link

CHECK_INTERVAL_S = 1.0
# struct tcp_info of linux/tcp.h: tcpi_probes, tcpi_unacked and tcpi_segs_in.
_INFO = struct.Struct("=3xB20xI112xI")


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


class HasSocket(Protocol):
    """A transport whose connection may be replaced."""

    @property
    def socket(self) -> Socket | None:
        """The current connection; None if there is none."""


class TcpWatch:
    """Loses `link` when the peer's host was silent for `silence_s` and one check more. Ends with the link."""

    def __init__(self, hub: Hub, link: Link, wire: HasSocket, *, silence_s: float) -> None:
        self._hub = hub
        self._link = link
        self._wire = wire
        self._silence_s = silence_s
        self._num_packets = -1
        self._last_packet_s = 0.0
        self._is_suspect = False
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Start checking. Thread-safe."""
        self._hub.call_soon(self._schedule)
        self._link.on_ended(lambda link, ending: self._hub.call_soon(self._end))

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if self._link.ending is None:
            self._timer = self._hub.call_at(self._hub.clock.now_s() + CHECK_INTERVAL_S, self._check)

    def _check(self) -> None:
        connection = self._wire.socket
        if connection is None:  # it was cut, and is being replaced
            self._is_suspect = False
            self._schedule()
            return
        state = tcp_state(connection)
        if state is None:  # just closed, or no TCP_INFO here
            self._schedule()
            return
        now_s = self._hub.clock.now_s()
        if state.num_packets != self._num_packets:
            self._num_packets, self._last_packet_s = state.num_packets, now_s
        silent_s = now_s - self._last_packet_s
        is_silent = state.unanswered and silent_s >= self._silence_s - CHECK_INTERVAL_S
        if is_silent and self._is_suspect:
            self._link.lose(f"nothing came from its host for {silent_s:.1f} s")
            return
        self._is_suspect = is_silent
        self._schedule()
