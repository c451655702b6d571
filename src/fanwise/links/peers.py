"""Who is at the other end of a link on this host, and the news of its death.

End of file is not enough: a process that the peer forked may hold its socket open. A pidfd tells the death of the
process itself; where there is none, end of file must do. Knows no link.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from .hub import Hub


class Peer(NamedTuple):
    """Who is at the other end, as the operating system tells; pid 0 is unknown. `address`: of one on another host."""

    pid: int = 0
    uid: int = -1
    address: str = ""

    def __str__(self) -> str:
        return f"the process at {self.address}" if self.address else f"process {self.pid}"


class Ending(NamedTuple):
    """How a link ended. `clean`: one side closed it on purpose."""

    clean: bool
    reason: str


class PeerWatch:
    """Calls `on_death()` on the hub's thread when the process has ended. `fd` is its pidfd, -1 when there is none."""

    def __init__(self, hub: Hub, peer: Peer, on_death: Callable[[], None]) -> None:
        self.fd = -1
        self._hub = hub
        self._peer = peer
        self._on_death = on_death

    def begin(self) -> None:
        """Look for the end from now on."""
        if self._peer.pid in (0, os.getpid()) or not hasattr(os, "pidfd_open"):
            return
        try:
            self.fd = os.pidfd_open(self._peer.pid)
        except ProcessLookupError:
            self._hub.call_soon(self._on_death)
        except OSError:
            return  # no pidfd is to be had: end of file must do
        else:
            self._hub.watch(self.fd, self._ended)

    def end(self) -> None:
        """Look no more. The descriptor stays open until `close`: somebody may just be using it."""
        if self.fd >= 0:
            self._hub.forget(self.fd)

    def close(self) -> None:
        """Give the descriptor back."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _ended(self, _events: int) -> None:
        self.end()
        self._on_death()
