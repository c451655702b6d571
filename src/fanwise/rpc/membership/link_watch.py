"""Detection of processes that do not answer although their links are open. Members and coordinator watch each other.

The end of a process ends its links. The kernel also reports that a process of this host was stopped. A process of
another host may compute, be stopped or be unreachable, so it is asked regularly. Its reply comes from the thread of the
event loop, which needs the interpreter for a moment only.
"""

import contextlib
from collections.abc import Callable

from ...base.errors import DeadlineExceeded, FanwiseError
from ...links.hub import Hub
from ...links.link import Link, Reply
from ...links.process_state import FROZEN_AFTER_S, LOOK_EVERY_S, FrozenWatch

STOPPED = f"it was stopped (SIGSTOP) for {FROZEN_AFTER_S:.0f} s"


class LinkWatch:
    """Watches the process at the other end of a link, until the link ends.

    Args:
        pid: returns the process ID of the peer if it is on this host and the kernel does not tell, otherwise 0.
        on_lost: called with the reason, on the hub's thread. It must end the link.
    """

    def __init__(
        self, hub: Hub, link: Link, heartbeat_s: float, *, pid: Callable[[], int], on_lost: Callable[[str], None]
    ) -> None:
        self._hub = hub
        self._link = link
        self._heartbeat_s = heartbeat_s
        self._pid = pid
        self._on_lost = on_lost
        self._frozen = FrozenWatch()
        self._next_beat_s = hub.clock.now_s()
        self._schedule()

    def _schedule(self) -> None:
        self._hub.call_at(self._hub.clock.now_s() + LOOK_EVERY_S, self._check)

    def _check(self) -> None:
        if self._link.ending is not None:
            return
        self._schedule()
        now_s, pid = self._hub.clock.now_s(), self._link.peer.pid or self._pid()
        if self._link.peer.pid == 0 and now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._heartbeat_s / 3
            with contextlib.suppress(FanwiseError):
                self._link.call("beat", deadline_s=self._heartbeat_s).add_done_callback(self._on_reply)
        if pid and self._frozen.look([pid], now_s):
            self._on_lost(STOPPED)

    def _on_reply(self, reply: Reply) -> None:
        with contextlib.suppress(FanwiseError):  # the link has ended
            try:
                reply.result()
            except DeadlineExceeded:
                if self._link.ending is None:
                    self._on_lost(f"it answered nothing for {self._heartbeat_s:g} s")
