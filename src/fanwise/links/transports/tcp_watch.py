"""Whether the host at the other end of a TCP link still answers: a cut cable, a host that is off, a path that is gone.

A process that reads nothing for a minute may be well; its kernel still answers for it, and that is what is asked here.

    something of ours is unanswered: sent and not acknowledged, or probes of an idle or full connection
    and no packet at all came for `silence_s`, at two looks running  -->  the link is lost

Two looks, as one may fall between a probe and its answer. Packets are counted, for the kernel's own times of what came
last leave out the other side's probes: after a cable has dropped out some times, data may wait ten seconds until it is
sent again, while such probes come every second. The kernel's own limit (TCP_USER_TIMEOUT) cannot be used: it also
counts the time in which a live host has no room because its process does not read. Linux only; elsewhere, and where no
thread drives the hub, the kernel's own limits must do. Knows no frame and no call.
"""

import socket
import struct
import sys
from socket import socket as Socket
from typing import NamedTuple, Protocol

from ..hub import Hub, Timer
from ..link import Link

LOOK_EVERY_S = 1.0
# struct tcp_info of linux/tcp.h: tcpi_probes, tcpi_unacked and tcpi_segs_in.
_INFO = struct.Struct("=3xB20xI112xI")


class TcpLook(NamedTuple):
    """One look: whether something of ours is unanswered, and how many packets have come since the connection began."""

    unanswered: bool
    num_packets: int


def look_at(connection: socket.socket) -> TcpLook | None:
    """What the kernel knows; None where it does not tell, or the connection is closed. Does not block."""
    if sys.platform != "linux":
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError:
        return None
    if len(info) < _INFO.size:
        return None
    probes, unacked, num_packets = _INFO.unpack(info)
    return TcpLook(probes > 0 or unacked > 0, num_packets)


class HasSocket(Protocol):
    """A transport whose connection may be replaced."""

    @property
    def socket(self) -> Socket | None:
        """The current connection; None if there is none."""


class TcpWatch:
    """Loses `link` when the other host has been silent for `silence_s`, and a look more. Ends with the link."""

    def __init__(self, hub: Hub, link: Link, wire: HasSocket, *, silence_s: float) -> None:
        self._hub = hub
        self._link = link
        self._wire = wire
        self._silence_s = silence_s
        self._num_packets = -1
        self._heard_s = 0.0
        self._is_suspect = False
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Look from now on. By any thread."""
        self._hub.call_soon(self._next)
        self._link.on_ended(lambda link, ending: self._hub.call_soon(self._end))

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _next(self) -> None:
        if self._link.ending is None:
            self._timer = self._hub.call_at(self._hub.clock.now_s() + LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        connection = self._wire.socket
        if connection is None:  # it was cut, and is replaced
            self._is_suspect = False
            self._next()
            return
        look = look_at(connection)
        if look is None:  # just closed, or no TCP_INFO here
            self._next()
            return
        now_s = self._hub.clock.now_s()
        if look.num_packets != self._num_packets:
            self._num_packets, self._heard_s = look.num_packets, now_s
        silent_s = now_s - self._heard_s
        silent = look.unanswered and silent_s >= self._silence_s - LOOK_EVERY_S
        if silent and self._is_suspect:
            self._link.lose(f"nothing came from its host for {silent_s:.1f} s")
            return
        self._is_suspect = silent
        self._next()
