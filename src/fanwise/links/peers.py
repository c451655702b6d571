"""The peer of a link, the state that the parts of a link share, and a watch for the peer's death.

End of file is not enough to notice the death of a process: a process that it forked may hold its socket open. A pidfd
reports the death itself.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..base.errors import ClosedError, FanwiseError, WorkerLostError
from .hub import Hub


class Peer(NamedTuple):
    """The process at the other end. `pid` and `uid` as reported by the kernel, 0 and -1 if unknown.

    `address`: of a process on another host.
    """

    pid: int = 0
    uid: int = -1
    address: str = ""

    def __str__(self) -> str:
        return f"the process at {self.address}" if self.address else f"process {self.pid}"


class Ending(NamedTuple):
    """The reason of the end of a link. `clean`: one side closed it on purpose."""

    clean: bool
    reason: str


class NeverSent(WorkerLostError):
    """The link had ended before any byte of the message was sent."""


@dataclass(slots=True)
class LinkState:
    """Shared by the parts of one link.

    Attributes:
        lock: guards the open calls, the credit and `ending`. Held for moments only, never while anything is sent.
        ending: set once, when the link ends.
    """

    hub: Hub
    peer: Peer
    ending: Ending | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ended_error(self, method: str, failure: str, kind: type[WorkerLostError] = NeverSent) -> FanwiseError:
        """Return the error of an operation that the end of the link has made fail: `ClosedError`, or of `kind`."""
        assert self.ending is not None, "only for a link that has ended"
        text = f"{method!r} {failure}: the link to {self.peer} has ended ({self.ending.reason})."
        return ClosedError(text) if self.ending.clean else kind(text)


class PeerWatch:
    """Calls `on_death()` on the hub's thread when the peer has ended. `fd` is its pidfd, -1 if there is none."""

    def __init__(self, hub: Hub, peer: Peer, on_death: Callable[[], None]) -> None:
        self.fd = -1
        self._hub = hub
        self._peer = peer
        self._on_death = on_death

    def begin(self) -> None:
        if self._peer.pid in (0, os.getpid()) or not hasattr(os, "pidfd_open"):
            return
        try:
            self.fd = os.pidfd_open(self._peer.pid)
        except ProcessLookupError:
            self._hub.call_soon(self._on_death)
        except OSError:
            return  # pidfds are not available, so the end of file must do
        else:
            self._hub.watch(self.fd, self._on_exit)

    def end(self) -> None:
        """Stop watching. The descriptor stays open until `close`, because another thread may be using it."""
        if self.fd >= 0:
            self._hub.forget(self.fd)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _on_exit(self, _events: int) -> None:
        self.end()
        self._on_death()
