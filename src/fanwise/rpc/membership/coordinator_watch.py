"""Whether the coordinator at the other end of a link still answers. It looks at everybody; everybody looks at it.

Looked for twice a second, on the hub's thread: a process of this host that was stopped (`frozen`), and one of another
host that answers nothing (`Heartbeats`). That its link ends is heard without looking. Decides nothing.
"""

from collections.abc import Callable
from functools import partial

from ...links.hub import Hub, Timer
from ...links.link import Link
from ...links.process_state import LOOK_EVERY_S, FrozenWatch
from .coordinator_server import FROZEN, Heartbeats, silent_text
from .members import Member


class CoordinatorWatch:
    """See the module.

    Args:
        me: this worker.
        heartbeat_s: how long a coordinator on another host may be silent.
        current: the link to the coordinator, and who that is; None while there is none.
        lost: called with that link, why it counts as dead, and whether it is so for certain.
    """

    def __init__(
        self,
        hub: Hub,
        me: Member,
        heartbeat_s: float,
        *,
        current: Callable[[], tuple[Link, Member | None] | None],
        lost: Callable[[Link, str, bool], None],
    ) -> None:
        self._hub = hub
        self._me = me
        self._heartbeat_s = heartbeat_s
        self._current = current
        self._lost = lost
        self._frozen = FrozenWatch()
        self._heartbeats = Heartbeats(hub, heartbeat_s)
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Look from now on. A second call does nothing."""
        if self._timer is None:
            self._timer = self._hub.call_at(self._hub.clock.now_s() + LOOK_EVERY_S, self._look)

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now_s = self._hub.clock.now_s()
        self._timer = self._hub.call_at(now_s + LOOK_EVERY_S, self._look)
        found = self._current()
        if found is None:
            return
        link, chief = found
        self._heartbeats.beat(link, partial(self._lost, link, silent_text(self._heartbeat_s), False))
        pid = link.peer.pid or (chief.pid if chief is not None and chief.host == self._me.host else 0)
        if pid not in (0, self._me.pid) and self._frozen.look([pid], now_s):
            self._lost(link, FROZEN, True)
