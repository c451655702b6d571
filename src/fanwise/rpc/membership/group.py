"""The membership of this worker: joining, the other members, leaving, the end of the group.

    Group.join --> rank 0 opens the address and coordinates; the others connect to it
               --> members(), and events: joined, left, lost
    shutdown   --> the barrier of a static group, or a goodbye

Every member has a link to the coordinator, which runs a `CoordinatorServer` in its own process. When the coordinator
leaves or is lost, the group has ended for all its members (`fenced`). Messages are handled on the hub's thread without
locks. `members()` may be called by any thread. Functions that wait run in the thread of the caller.
"""

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...base.errors import DeadlineExceeded, FanwiseError, JoinError, WorkerLostError
from ...base.version import VERSION
from ...links.hub import Hub
from ...links.link import Link, Reply, Request
from ...links.peers import Ending
from ...links.process_state import stat_of, this_host
from ...rendezvous.rendezvous import Rendezvous
from ..constants import HEARTBEAT_S
from ..hub_thread import OneShot, run_on_hub
from ..messages.messages import install_codec
from ..worker_info import name_error
from .coordinator import Action, Coordinator, Refuse, RequestCounts, RequestDial, SendUpdate
from .coordinator_server import PROTOCOL, CoordinatorServer
from .link_watch import LinkWatch
from .members import Event, Hello, Left, Lost, Member, MemberState, Update

_log = logging.getLogger("fanwise.rpc")

_DIAL_S = 5.0
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.002, 0.05
# At an address without a host, another rank opens a dynamic group if rank 0 has left, or has not done so in this time.
_ALONE_S = 1.0
_ASK_S = 1.0
_GOODBYE_S = 5.0


class Group:
    """See the module. Created by `join`; `close` must be called before the hub is closed.

    Attributes:
        me: this worker.
        coordinator: the rank of the coordinator: 0, unless another rank has opened a dynamic group.
        heartbeat_s: as in `join`.
        ending: set when the shutdown of the group is complete, or the group has ended for this worker.
        fenced: the reason, for errors, why the group has ended for this worker before it left; otherwise None.
        on_event: called with each event of another member, on the hub's thread and in the order of events.
        on_dial_request: called with a member that cannot dial this worker and asks to be dialed, on the hub's thread.
        on_fenced: called with `fenced`, on the hub's thread, before all other members are reported as lost.
    """

    def __init__(
        self, hub: Hub, rendezvous: Rendezvous, me: Member, world_size: int | None, *, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self.me = me
        self.coordinator = 0
        self.world_size = world_size
        self.heartbeat_s = heartbeat_s
        self.fenced: str | None = None
        self.ending = OneShot()
        self.on_event: list[Callable[[Event], None]] = []
        self.on_fenced: Callable[[str], None] = lambda why: None
        self.on_dial_request: Callable[[Member], None] = lambda member: None
        self._hub = hub
        self._rendezvous = rendezvous
        self._state = MemberState()
        self._server: CoordinatorServer | None = None
        self._link: Link | None = None
        self._answer = OneShot()  # to the request to join
        self._left = threading.Event()
        self._is_member = False
        self._is_error = False  # `fenced` is an error, not the departure of the coordinator
        self._open_calls: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._closed = threading.Event()

    # -- joining ---------------------------------------------------------------------------------------------------

    @classmethod
    def join(
        cls,
        hub: Hub,
        rendezvous: Rendezvous,
        *,
        name: str,
        rank: int,
        world_size: int | None,
        address: str,
        within_s: float,
        heartbeat_s: float = HEARTBEAT_S,
        has_allow_list: bool = False,
    ) -> "Group":
        """Become a member. Blocks until all other members know. Another thread must drive `hub`.

        `address` is that of the listener of this worker, from `rendezvous.listen`. A static group, with a `world_size`,
        is complete when this returns. Raises JoinError (a RuntimeError) if this worker does not fit, and
        DeadlineExceeded, with the missing workers, if rank 0 or others have not joined in time.
        """
        problem = name_error(name)
        if problem is not None:
            raise JoinError(f"{problem}.")
        process = stat_of(pid := os.getpid())
        me = Member(name, rank, secrets.randbits(62), address, this_host(), pid, process.started_ticks, has_allow_list)
        group = cls(hub, rendezvous, me, world_size, heartbeat_s=heartbeat_s)
        try:
            group._join(within_s)
        except BaseException:
            group.close()
            raise
        return group

    def _join(self, within_s: float) -> None:
        now_s, url = self._hub.clock.now_s, self._rendezvous.address.url
        pause_s, reason = _MIN_PAUSE_S, ""
        start_s, deadline_s = now_s(), now_s() + within_s
        while True:
            if self._connect(now_s() - start_s, deadline_s):
                answer = self._answer.wait(deadline_s - now_s())
                if answer is None:
                    pending = self._pending_summary()
                    raise DeadlineExceeded(f"{self.me} was not in the group at {url} within {within_s} s: {pending}.")
                kind, reason = answer
                if kind == "done":
                    return
                if kind == "refused":
                    raise JoinError(f"{reason}.")
                run_on_hub(self._hub, lambda: self._close_connections("not admitted"))
            if now_s() >= deadline_s:
                host = " on this host" if self._rendezvous.address.is_here else ""
                last = f" The last answer was: {reason.rstrip('.')}." if reason else ""
                raise DeadlineExceeded(
                    f"nobody opened the group at {url}{host} within {within_s} s, so {self.me} could not join.\n"
                    f"Rank 0 opens it: was it started, by the same user, with the same address?{last}"
                )
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _connect(self, waited_s: float, deadline_s: float) -> bool:
        """Open the group or connect to its coordinator, and ask to join. Return False if neither is possible now."""
        self._answer, self._state = OneShot(), MemberState()
        # A worker that asks again is another incarnation: the group may have declared the one before lost.
        self.me = replace(self.me, incarnation=secrets.randbits(62))
        has_host = bool(self._rendezvous.address.port)
        may_open = self.me.id == 0 or (self.world_size is None and not has_host and waited_s >= _ALONE_S)
        if may_open and run_on_hub(self._hub, self._open):
            return True
        left_s = min(_DIAL_S, max(0.001, deadline_s - self._hub.clock.now_s()))
        try:
            link = self._rendezvous.dial(self._hub, within_s=left_s)
        except DeadlineExceeded:
            return False
        if link is not None:
            run_on_hub(self._hub, lambda: self._ask_to_join(link))
        return link is not None

    def _open(self) -> bool:
        """Become the coordinator. Return False if the address is in use."""
        machine = Coordinator(self.me, world_size=self.world_size)
        server = CoordinatorServer(self._hub, machine, on_action=self._on_action, heartbeat_s=self.heartbeat_s)
        if not server.open(self._rendezvous):
            return False
        self._server, self.coordinator = server, self.me.id
        server.execute(machine.hello(Hello(self.me, self.world_size)))
        return True

    def _ask_to_join(self, link: Link) -> None:
        self._link = link
        install_codec(link)
        link.handler = self._on_message
        link.on_ended(self._on_link_ended)
        link.watch_peer()
        link.open()
        try:
            reply = link.call("join", PROTOCOL, VERSION, Hello(self.me, self.world_size))
        except FanwiseError as error:
            self._answer.set("again", error.message)
            return
        reply.add_done_callback(self._on_reply)
        on_lost = partial(self._lose_coordinator, link)
        LinkWatch(self._hub, link, self.heartbeat_s, pid=self._coordinator_pid, on_lost=on_lost)

    def _coordinator_pid(self) -> int:
        """Return the process ID of the coordinator, or 0 if it is unknown or of another host."""
        coordinator = self._state.members.get(self.coordinator)
        return coordinator.pid if coordinator is not None and coordinator.host == self.me.host else 0

    def _on_reply(self, reply: Reply) -> None:
        """Handle the reply to a request to join. The coordinator decides later, unless its version is another."""
        try:
            kind, text, self.coordinator = reply.result()
        except FanwiseError as error:
            kind, text = "again", error.message
        if kind != "received":
            self._answer.set(kind, text)

    def _pending_summary(self) -> str:
        """Ask the coordinator why the join or shutdown is not complete. Blocks; not on the hub's thread."""
        if self._server is not None:
            return run_on_hub(self._hub, self._server.pending_summary)
        link = self._link
        with contextlib.suppress(FanwiseError):
            if link is not None:
                return str(link.ask("pending", within_s=_ASK_S))
        return "the coordinator does not answer"

    # -- members ---------------------------------------------------------------------------------------------------

    def members(self) -> dict[int, Member]:
        """Return all members by rank, including this one. Must not be changed. Does not block."""
        return self._state.members

    @property
    def former(self) -> dict[int, Member]:
        """The last incarnation of each rank that is no member any more. Must not be changed."""
        return self._state.former

    def find(self, to: str | int) -> Member:
        """Return the member with this name or rank. Raises RuntimeError, which lists the members."""
        members = self.members()
        for member in members.values():
            if to in (member.name, member.id):
                return member
        known = ", ".join(f"{member.name} ({rank})" for rank, member in sorted(members.items()))
        raise RuntimeError(f"could not find destination {to!r}: the workers of this group are {known}.")

    @property
    def knows(self) -> int:
        """The number of the view of this worker."""
        return self._state.number

    def refusal(self, member: Member, incarnation: int, knows: int) -> str | None:
        """Return why to refuse a link of `member`, which knows view `knows` and dials `incarnation`; None to accept."""
        if incarnation != self.me.incarnation:
            return f"the worker that was to be called has ended; {self.me} is a later incarnation of it"
        if self.fenced is not None:
            return self.fenced
        return f"{member} was declared lost, or has left" if self._state.refuses(member, knows) else None

    def dial(self, member: Member, *, within_s: float) -> Link:
        """Open a link to the listener of `member`. Blocks; raises like `links.dial`."""
        return self._rendezvous.dial_member(self._hub, member.address, member.host, within_s=within_s)

    def request_dial(self, member: Member) -> None:
        """Ask `member`, which this worker cannot reach, to dial this worker. Does not block; from any thread."""
        self._hub.call_soon(lambda: self._notify("request_dial", member.incarnation))

    def suspect(self, member: Member, why: str) -> None:
        """Report that the link to `member` has ended, so one of the two is lost. Does not block; from any thread."""
        self._hub.call_soon(lambda: self._notify("suspect", member.incarnation, why))

    # -- messages of the coordinator -------------------------------------------------------------------------------

    def _on_message(self, request: Request) -> None:
        if request.link is not self._link:
            return
        if request.method == "action":
            self._on_action(*request.args)
        elif request.method == "beat":
            request.answer()

    def _on_action(self, action: Action) -> None:
        """Handle an action of the coordinator for this member."""
        if isinstance(action, SendUpdate):
            self._apply(action.update)
        elif isinstance(action, RequestCounts):
            self._notify("counted", action.round, self._open_calls())
        elif isinstance(action, Refuse):
            self._on_refused(action)
        elif isinstance(action, RequestDial):
            for member in self._state.members.values():
                if member.incarnation == action.incarnation:
                    self.on_dial_request(member)
        elif self._is_member:  # it has left, or waits for the others in a shutdown
            self._left.set()
            self.ending.set("finished")
        else:
            self._is_member = True
            self._answer.set("done")

    def _apply(self, update: Update) -> None:
        if self.fenced is not None:
            return
        events = self._state.apply(update)
        self._notify("confirm", update.number)
        for event in events:
            if event.member != self.me:
                if isinstance(event, Lost):
                    _log.warning("worker %s was lost: %s", event.member, event.why)
                self._report(event)

    def _report(self, event: Event) -> None:
        for callback in list(self.on_event):
            try:
                callback(event)
            except Exception:
                _log.exception("a callback about worker %s failed", event.member)

    def _notify(self, event: str, *args: object) -> None:
        """Report an event of this member to the coordinator, see `CoordinatorServer.on_event`."""
        if self._server is not None:
            self._server.on_event(self.me.incarnation, event, *args)
        elif self._link is not None:
            with contextlib.suppress(FanwiseError):
                self._link.notify(event, *args)

    # -- the end of the group for this worker ----------------------------------------------------------------------

    def _on_link_ended(self, link: Link, ending: Ending) -> None:
        if link is self._link:
            self._end_without_coordinator(None if ending.clean else ending.reason)

    def _lose_coordinator(self, link: Link, why: str) -> None:
        """The coordinator does not answer any more."""
        if link is self._link:
            coordinator = self._state.members.get(self.coordinator)
            if coordinator is not None:
                self._notify("suspect", coordinator.incarnation, f"it considers this coordinator lost: {why}")
            self._end_without_coordinator(why)
        link.close("the coordinator was declared lost")

    def _end_without_coordinator(self, why: str | None) -> None:
        """The coordinator was lost for the reason `why`, or has left if that is None."""
        self._link = None
        if not self._is_member:
            self._answer.set("again", why or "the coordinator has left")
            return
        coordinator = self._state.members[self.coordinator]
        event = Left(coordinator) if why is None else Lost(coordinator, why)
        fate = "has left" if why is None else f"was lost: {why.rstrip('.')}"
        self._end(
            f"the group has ended, because worker {coordinator}, which coordinates it, {fate}.\n"
            f"Call shutdown in all workers, then init_rpc, to form another group.",
            event,
        )

    def _on_refused(self, refusal: Refuse) -> None:
        if not self._is_member:
            self._answer.set(refusal.kind, refusal.text)
            return
        self._end(
            f"this worker, {self.me}, was declared lost by the others: {refusal.text}.\n"
            f"They refuse its messages. Call shutdown, then init_rpc, to join again as another incarnation."
        )

    def _end(self, fenced: str, coordinator_event: Left | Lost | None = None) -> None:
        """Stop being a member. Report the others as lost, unless this worker has left or the shutdown is complete."""
        is_silent = self._closed.is_set() or self.ending.is_set or self.fenced is not None
        self._is_member = False
        self._left.set()
        self._close_connections("declared lost")
        if is_silent:
            return
        self.fenced, self._is_error = fenced, not isinstance(coordinator_event, Left)
        self.ending.set("fenced")
        _log.log(logging.WARNING if self._is_error else logging.INFO, "%s", fenced)
        lost_members = self._state.clear(self.me)
        self.on_fenced(fenced)
        for member in lost_members:  # they cannot be reached without the group
            is_coordinator = coordinator_event is not None and member == coordinator_event.member
            self._report(coordinator_event if coordinator_event and is_coordinator else Lost(member, fenced))

    # -- leaving ---------------------------------------------------------------------------------------------------

    def shutdown(
        self,
        *,
        graceful: bool,
        within_s: float | None,
        open_calls: Callable[[], tuple[int, int]] = lambda: (0, 0),
        before_leaving: Callable[[], None] = lambda: None,
    ) -> None:
        """Leave the group and close. Blocks.

        A graceful shutdown of a static group waits until all members have called it and no call is open in the group,
        that of a dynamic group until no call is open here. `open_calls()` returns (open calls, calls ever started) and
        may be called by any thread. `before_leaving()` is called after the wait, while the others are reachable. The
        wait ends without an error if the coordinator leaves.

        Raises DeadlineExceeded, which names the missing workers, after `within_s` seconds. A graceful shutdown raises
        WorkerLostError if the coordinator was lost, or this worker was declared lost. The group is closed in any case.
        """
        deadline_s = None if within_s is None else self._hub.clock.now_s() + within_s
        self._open_calls = open_calls
        try:
            if graceful and self.fenced is None:
                self._wait_for_others(within_s, deadline_s)
            if graceful and self.fenced is None:
                before_leaving()
            self._leave(is_shutdown_of_all=graceful and self.world_size is not None)
            if graceful and self._is_error:
                raise WorkerLostError(str(self.fenced))
        finally:
            self.close()

    def _wait_for_others(self, within_s: float | None, deadline_s: float | None) -> None:
        is_static = self.world_size is not None
        if is_static:
            run_on_hub(self._hub, lambda: self._notify("counted", 0, self._open_calls()))
        while not self.ending.is_set and (is_static or self._open_calls()[0]):
            left_s = _ASK_S if deadline_s is None else deadline_s - self._hub.clock.now_s()
            if left_s <= 0:
                pending = self._pending_summary()
                self._leave(is_shutdown_of_all=False)
                raise DeadlineExceeded(f"the group was not shut down within {within_s} s: {pending}.")
            self.ending.wait(min(left_s, _ASK_S if is_static else _MIN_PAUSE_S))

    def _leave(self, *, is_shutdown_of_all: bool) -> None:
        """Wait until the others know that this worker leaves, for 5 s at most.

        If all leave, the coordinator waits until the others have read its last message.
        """
        server, deadline_s = self._server, self._hub.clock.now_s() + _GOODBYE_S
        self.ending.set("leaving")
        if server is None and not is_shutdown_of_all:
            run_on_hub(self._hub, lambda: self._notify("leave"))
            if self._link is not None:
                self._left.wait(_GOODBYE_S)
        while is_shutdown_of_all and server is not None and server.has_connected_members:
            if self._hub.clock.now_s() >= deadline_s:
                break
            self._closed.wait(_MIN_PAUSE_S)

    def close(self) -> None:
        """Close all connections of the group, which the others see as a departure. A second call has no effect."""
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(FanwiseError):
            run_on_hub(self._hub, lambda: self._close_connections("left"))

    def _close_connections(self, reason: str) -> None:
        if self._server is not None:
            self._server.close(reason)
        link, self._link = self._link, None
        if link is not None:
            link.close(reason)
