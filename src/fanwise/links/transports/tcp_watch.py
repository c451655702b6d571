"""Whether the host at the other end of a TCP link still answers: a cut cable, a host that is off, a path that is gone.

A process that reads nothing for a minute may be well; its kernel still answers for it, and that is what is asked here.

    something of ours is unanswered: sent and not acknowledged, or probes of an idle or full connection
    and nothing at all came for `silence_s`, at two looks running  -->  the link is lost

Two looks, as one may fall between a probe and its answer. The kernel's own limit (TCP_USER_TIMEOUT) cannot be used: it
also counts the time in which a live host has no room because its process does not read. Linux only; elsewhere, and
where no thread drives the hub, the kernel's own limits must do. Knows no frame and no call.
"""

import socket
import struct
import sys
from typing import NamedTuple

from ..hub import Hub, Timer
from ..link import Link

LOOK_EVERY_S = 1.0
# struct tcp_info of linux/tcp.h: tcpi_probes, tcpi_unacked, tcpi_last_data_recv and tcpi_last_ack_recv (in ms).
_INFO = struct.Struct("=3xB20xI24xII")


class TcpLook(NamedTuple):
    """One look: whether something of ours is unanswered, and for how long nothing came."""

    unanswered: bool
    silent_s: float


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
    probes, unacked, data_ms, ack_ms = _INFO.unpack(info)
    return TcpLook(probes > 0 or unacked > 0, min(data_ms, ack_ms) / 1000)


class TcpWatch:
    """Loses `link` when the other host has been silent for `silence_s`, and a look more. Ends with the link."""

    def __init__(self, hub: Hub, link: Link, connection: socket.socket, *, silence_s: float) -> None:
        self._hub = hub
        self._link = link
        self._connection = connection
        self._silence_s = silence_s
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
        look = look_at(self._connection)
        if look is None:
            return
        silent = look.unanswered and look.silent_s >= self._silence_s - LOOK_EVERY_S
        if silent and self._is_suspect:
            self._link.lose(f"nothing came from its host for {look.silent_s:.1f} s")
            return
        self._is_suspect = silent
        self._next()
