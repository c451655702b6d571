"""The server of the coordinator: executes the actions of `coordinator.py`, in the process that opened the group.

    members' links --join, then `EVENTS`--> Coordinator --actions--> links, or `on_action`

A member is lost when its link ends without a goodbye, when its process was stopped for 5 s, or when it answers nothing
for `heartbeat_s` (between hosts). Everything runs on the hub's thread and does not block. The member in this process
has no link: its actions go to the function `on_action`.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ...base.errors import FanwiseError
from ...base.version import VERSION
from ...links.hub import Hub
from ...links.link import Link, Request
from ...links.peers import Ending
from ...links.process_state import has_ended
from ...rendezvous.rendezvous import Listener, Rendezvous
from ..messages.messages import install_codec
from .coordinator import Action, Coordinator, Refuse, StartTimer
from .link_watch import LinkWatch
from .members import Member

PROTOCOL = 6
_PAUSE_S = 0.01
EVENTS = {"confirm", "counted", "leave", "suspect", "request_dial"}


class CoordinatorServer:
    """See the module.

    Args:
        on_action: receives the actions for the member in this process.
        heartbeat_s: a worker of another host that answers nothing for so long is lost.
    """

    def __init__(
        self,
        hub: Hub,
        machine: Coordinator,
        *,
        on_action: Callable[[Action], None],
        heartbeat_s: float,
    ) -> None:
        self.machine = machine
        self._hub = hub
        self._me = machine.me
        self._on_action = on_action
        self._listener: Listener | None = None
        self._links: dict[int, Link] = {}
        self._actions: deque[Action] = deque()
        self._is_executing = False
        self._heartbeat_s = heartbeat_s
        self._is_closed = False

    def open(self, rendezvous: Rendezvous) -> bool:
        """Listen for new members. Return False if another process has the address."""
        self._listener = rendezvous.open(self._hub, self._accept)
        return self._listener is not None

    @property
    def has_connected_members(self) -> bool:
        return bool(self._links)

    # -- actions ---------------------------------------------------------------------------------------------------

    def execute(self, actions: list[Action]) -> None:
        """Execute actions in their order, also those that follow from them."""
        self._actions.extend(actions)
        if self._is_executing:
            return
        self._is_executing = True
        try:
            while self._actions and not self._is_closed:
                self._execute(self._actions.popleft())
        finally:
            self._is_executing = False

    def _execute(self, action: Action) -> None:
        if isinstance(action, StartTimer):
            when_s = self._hub.clock.now_s() + _PAUSE_S
            self._hub.call_at(when_s, lambda: self.execute(self.machine.next_round(action.round)))
        elif action.to == self._me.incarnation:
            self._on_action(action)
        elif action.to in self._links:
            link = self._links[action.to]
            with contextlib.suppress(FanwiseError):  # the end of the link is about to be reported
                link.notify("action", action)
            if isinstance(action, Refuse):
                del self._links[action.to]
                link.close(action.text)

    # -- messages of members ---------------------------------------------------------------------------------------

    def _accept(self, link: Link) -> None:
        """Handle an authenticated connection. Its first request must be `join`."""
        install_codec(link)
        link.handler = self._on_first_request

    def _on_first_request(self, request: Request) -> None:
        if request.method != "join" or self._is_closed:
            request.link.close("the group at this address is closing")
            return
        protocol, version, hello = request.args
        if (protocol, version) != (PROTOCOL, VERSION):
            text = f"this group runs fanwise {VERSION}, the newcomer runs {version}; install one version everywhere"
            request.answer(("refused", text, 0))
            return
        member, link = hello.member, request.link
        self._remove_predecessor(member)
        self._links[member.incarnation] = link
        link.handler = partial(self._on_request, member.incarnation)
        link.on_ended(partial(self._on_link_ended, member.incarnation))
        pid = member.pid if member.host == self._me.host else 0
        on_lost = partial(self._lose, member.incarnation)
        LinkWatch(self._hub, link, self._heartbeat_s, pid=lambda: pid, on_lost=on_lost)
        request.answer(("received", "", self._me.id))
        self.execute(self.machine.hello(hello))

    def _remove_predecessor(self, member: Member) -> None:
        """Remove an older incarnation, whose process has ended or joins again, before its link reports it."""
        for known in list(self.machine.members.values()):
            if known.id == member.id or known.name == member.name:
                is_same = known.process == member.process
                if is_same or (known.host == self._me.host and has_ended(known.pid, known.started_ticks)):
                    self._lose(known.incarnation, "its process has ended or has joined again")

    def _on_request(self, sender: int, request: Request) -> None:
        if request.method == "pending":
            request.answer(self.pending_summary())
        elif request.method == "beat":
            request.answer()
        else:
            self.on_event(sender, request.method, *request.args)

    def on_event(self, sender: int, method: str, *args: Any) -> None:
        """Handle an event of a member: a method of `Coordinator`."""
        if method in EVENTS:
            self.execute(getattr(self.machine, method)(sender, *args))

    def pending_summary(self) -> str:
        """As `Coordinator.pending_summary`, and why connections were refused."""
        refused = self._listener.refused.items() if self._listener is not None and self.machine.is_forming else ()
        refusals = ", ".join(f"{why}: {count}" for why, count in sorted(refused))
        summary = self.machine.pending_summary()
        return f"{summary}; connections that were refused: {refusals}" if refusals else summary

    # -- lost members ----------------------------------------------------------------------------------------------

    def _on_link_ended(self, member: int, link: Link, ending: Ending) -> None:
        if self._links.get(member) is not link or self._is_closed:
            return
        del self._links[member]
        self.execute(self.machine.leave(member) if ending.clean else self.machine.lose(member, ending.reason))

    def _lose(self, member: int, why: str) -> None:
        self.execute(self.machine.lose(member, why))

    # -- closing ---------------------------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Close the listener, then all links. A second call has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
        links, self._links = self._links, {}
        for link in links.values():
            link.close(reason)
