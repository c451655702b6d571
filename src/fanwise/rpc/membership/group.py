"""The group of this worker: joining, who is there, who goes, the end. See `members.py` for what is said.

    Group.join --> the coordinator is found, or this worker becomes it (`seeking.py`)
               --> members(), and events: joined, left, lost
    shutdown   --> the barrier of a static group, or a goodbye

Everybody has a link to the coordinator, which has a `CoordinatorServer`. When that link ends, another is sought: at the
entrance, and between hosts, where that may be gone with its host, at the members' own listeners (`on_probe`). What
comes in is handled on the hub's thread, one thing after another, without locks; `members()` may be read by any thread.
What waits or dials runs in the caller's thread, or in one of its own.
"""

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable

from ...base.errors import ClosedError, FanwiseError, JoinError, WorkerLostError
from ...base.version import VERSION
from ...links.hub import Hub
from ...links.link import Link, Reply, Request
from ...links.peers import Ending
from ...links.process_state import look_at, this_host
from ..constants import HEARTBEAT_S
from ..hub_thread import OneShot, run_on_hub
from ..messages.messages import install_codec
from ..rendezvous.entrance import Meeting
from ..worker_info import name_error
from .coordinator import Admit, Coordinator, Count, Dismiss, Fence, Order, Over, Refuse, Rest, Show
from .coordinator_server import PROTOCOL, CoordinatorServer
from .coordinator_watch import CoordinatorWatch
from .leaving import GOODBYE_S, Leaving
from .members import Change, Event, Lost, Member, MemberState, Version, View
from .seeking import FormerCoordinator, Seeker, answer_of, fenced_text, text_of

_log = logging.getLogger("fanwise.rpc")

_SUCCESSION_S = 60.0
_ASK_S = 1.0


class Group:
    """See the module. Made by `join`; `close()` must be called before the hub is closed.

    Attributes:
        me: this worker.
        heartbeat_s: as in `join`.
        ending: is filled when the shutdown of all is over, or this worker was declared lost.
        on_event: called with what has happened to a member, on the hub's thread, in the order of their coming.
        on_wanted: called with a member that cannot dial us and asks to be dialled, on the hub's thread.
        on_fenced: called with the reason, on the hub's thread, when the others have declared this worker lost: all that
            waits for them has to fail. Nothing that this worker says is taken any more.
    """

    def __init__(
        self, hub: Hub, meeting: Meeting, me: Member, world_size: int | None, *, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self.me = me
        self.world_size = world_size
        self.on_event: list[Callable[[Event], None]] = []
        self.on_fenced: list[Callable[[str], None]] = []
        self.on_wanted: list[Callable[[Member], None]] = []
        self._hub = hub
        self._meeting = meeting
        self._state = MemberState(me, world_size)
        self._coordinator: CoordinatorServer | None = None
        self._link: Link | None = None
        self._answer = OneShot()
        self.ending = OneShot()  # of the shutdown
        self._dismissed = OneShot()
        self._open_calls: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._joined = False
        self._seeking = True
        self._closed = threading.Event()
        self._seeker = Seeker(hub, meeting, self._state, self, self._closed, heartbeat_s=heartbeat_s)
        self._succession: threading.Thread | None = None
        self.heartbeat_s = heartbeat_s
        self._watch = CoordinatorWatch(hub, me, heartbeat_s, current=self._current, lost=self._give_up)
        self._leaving = Leaving(hub, self, self.ending, self._dismissed, self._closed)

    # -- joining ---------------------------------------------------------------------------------------------------

    @classmethod
    def join(
        cls,
        hub: Hub,
        meeting: Meeting,
        *,
        name: str,
        rank: int,
        world_size: int | None,
        address: str,
        within_s: float,
        heartbeat_s: float = HEARTBEAT_S,
        has_allow_list: bool = False,
    ) -> "Group":
        """Become a member; blocks until all others know. `hub` must be driven by another thread.

        Args:
            meeting: where, as `meeting_at` gives it.
            world_size: of a static group, which is complete before this returns; None for a dynamic one.
            address: where this worker listens, as `meeting.listen` gives it.
            within_s: seconds after which to give up.
            heartbeat_s: as in the options of a worker.
            has_allow_list: True if this worker accepts only plain calls.

        Raises:
            JoinError: (a RuntimeError) this worker does not fit: its name, rank, world size or version.
            DeadlineExceeded: nobody opened the entrance, or somebody is missing; says who.
        """
        wrong = name_error(name)
        if wrong is not None:
            raise JoinError(f"{wrong}.")
        process = look_at(pid := os.getpid())
        me = Member(name, rank, secrets.randbits(62), address, this_host(), pid, process.started_ticks, has_allow_list)
        group = cls(hub, meeting, me, world_size, heartbeat_s=heartbeat_s)
        try:
            group._seeker.seek(within_s)
        except BaseException:
            group.close()
            raise
        return group

    # -- what the seeker asks for, on the hub's thread -------------------------------------------------------------

    def say_hello(self, link: Link, answer: OneShot) -> None:
        """Say hello at the entrance, at the other end of `link`."""
        if self._closed.is_set():
            link.close("closed")
            answer.set("again", "closed")
            return
        self._link = link
        install_codec(link)
        link.handler = self._from_coordinator
        link.on_ended(self._link_ended)
        link.watch_peer()
        link.open()
        try:
            reply = link.call("join", PROTOCOL, VERSION, self._state.hello())
        except FanwiseError as error:
            answer.set("again", error.message)
            return
        reply.add_done_callback(lambda reply: self._answered(answer, *answer_of(reply)))
        self._watch.begin()

    def become_coordinator(self, gone: FormerCoordinator | None, answer: OneShot) -> bool:
        """Open the entrance, and be the coordinator. False: somebody else is."""
        if self._closed.is_set():
            return False
        exclusive = self._meeting.is_exclusive
        machine = Coordinator(
            self.me.incarnation, world_size=self.world_size, known=self._state.view, exclusive=exclusive
        )
        server = CoordinatorServer(
            self._hub,
            machine,
            self.me,
            self._meeting,
            here=self._here,
            deposed=self._fence,
            wanted=self._wanted,
            heartbeat_s=self.heartbeat_s,
        )
        is_open = server.open(instead_of=gone.incarnation if gone is not None and gone.frozen else None)
        if not is_open and (exclusive or gone is None or (self._meeting.where.is_any_here and not gone.frozen)):
            server.close("somebody else is the coordinator")
            return False
        self._coordinator = server
        self._answer = answer
        if gone is not None and gone.why is not None:
            server.carry_out(machine.lose(gone.incarnation, gone.why, dead=gone.dead))
        elif gone is not None:
            server.carry_out(machine.gone(gone.incarnation))
        server.hello_here(self._state.hello())
        server.look_for_the_dead()
        return True

    def resign(self) -> bool:
        """Be no coordinator, when too few have come. False: enough have, or this worker is none."""
        server = self._coordinator
        if server is None or server.machine.ruling:
            return False
        self._coordinator = None
        server.close("too few have come")
        return True

    def on_probe(self, request: Request) -> None:
        """Somebody who looks for the coordinator asks here, at this worker's own listener. On the hub's thread."""
        view, (*_, hello) = self._state.view, request.args
        lost = dict(view.lost).get(hello.member.incarnation) if view is not None else None
        if self._coordinator is not None:
            self._coordinator.accept(request.link)
            self._coordinator.first_words(request)
        elif lost is not None:
            request.answer(("fenced", lost))
        else:
            request.answer(("again", f"{self.me} is not the coordinator"))

    def drop_link(self) -> None:
        """The coordinator has not let us in; the next try makes a new link."""
        link, self._link = self._link, None
        if link is not None:
            link.close("not let in")

    def who_is_missing(self) -> str:
        """Ask the coordinator, for a message. Blocks; not on the hub's thread."""
        if self._coordinator is not None:
            return run_on_hub(self._hub, self._coordinator.whom_it_waits_for)
        link, said = self._link, OneShot()
        if link is not None:
            with contextlib.suppress(FanwiseError):
                link.call("who").add_done_callback(lambda reply: said.set(*text_of(reply)))
        return (said.wait(_ASK_S) or ("", "the coordinator does not answer"))[1]

    def _answered(self, answer: OneShot, kind: str, text: str = "") -> None:
        if kind == "done":
            self._seeking, self._joined = False, True
        answer.set(kind, text)

    # -- who is there ----------------------------------------------------------------------------------------------

    def members(self) -> dict[int, Member]:
        """All that are alive, this one included, by id. A snapshot, not to be changed. Never blocks."""
        return self._state.members

    @property
    def former(self) -> dict[int, Member]:
        """Who is not there any more, by id: the last of each. Not to be changed."""
        return self._state.former

    def find(self, to: str | int) -> Member:
        """The member of this name or rank. Raises RuntimeError that lists those there are."""
        members = self.members()
        for member in members.values():
            if to in (member.name, member.id):
                return member
        known = ", ".join(f"{member.name} ({rank})" for rank, member in sorted(members.items()))
        raise RuntimeError(f"could not find destination {to!r}: the workers of this group are {known}.")

    @property
    def coordinator(self) -> int:
        """The incarnation of the coordinator, as far as this worker knows."""
        return 0 if self._state.view is None else self._state.view.coordinator

    @property
    def fenced(self) -> str | None:
        """Why the others have declared this worker lost; None while they have not."""
        return self._state.fenced

    @property
    def has_left(self) -> bool:
        """Whether this worker is no member any more: what it knows of the others changes no more."""
        return self._closed.is_set()

    @property
    def knows(self) -> Version:
        """The version of the newest view here."""
        return (0, 0) if self._state.view is None else self._state.view.version

    def refusal(self, member: Member, incarnation: int, knows: Version) -> str | None:
        """Why not to take a link of `member`, which believes to reach `incarnation`; None when there is no reason."""
        view = self._state.view
        if incarnation != self.me.incarnation:
            return f"{self.me} is another life of the worker that was to be called; the one before is gone"
        lost = view.refusal(member.incarnation, knows) if view is not None else None
        return None if lost is None else f"{member} was declared lost: {lost}"

    def dial(self, member: Member, *, within_s: float) -> Link:
        """A link to the listener of `member`. Blocks; raises as `links.dial` does."""
        return self._meeting.dial_member(self._hub, member, within_s=within_s)

    def suspect(self, member: Member, why: str) -> None:
        """Our own link to it has ended without a goodbye. By any thread."""
        self._hub.call_soon(lambda: self._suspect(member.incarnation, why))

    def ask_to_dial(self, member: Member) -> None:
        """Have `member` make a link to us, as we cannot reach it. By any thread; there is no answer but the link."""
        self._hub.call_soon(lambda: self._ask_to_dial(member.incarnation))

    def _ask_to_dial(self, incarnation: int) -> None:
        if self._coordinator is not None:
            self._coordinator.pass_on(incarnation, self.me.incarnation)
        else:
            self._tell("wanted", incarnation, self.me.incarnation)

    def _wanted(self, incarnation: int) -> None:
        member = self._state.view.member(incarnation) if self._state.view is not None else None
        if member is not None:
            for callback in list(self.on_wanted):
                callback(member)

    def _suspect(self, incarnation: int, why: str) -> None:
        if self._coordinator is not None:
            self._coordinator.suspect(self.me.incarnation, incarnation, why)
        else:
            self._tell("suspect", incarnation, why)

    # -- what the coordinator says ---------------------------------------------------------------------------------

    def _from_coordinator(self, request: Request) -> None:
        if request.link is not self._link:
            return
        method, args = request.method, request.args
        if method == "view":
            try:
                self._shown(args[0])
            except ValueError as error:  # something was lost on the way: over another link all is told anew
                request.link.lose(str(error))
        elif method == "count":
            self._count(*args)
        elif method == "over":
            self._over()
        elif method == "fenced":
            self._fence(args[0])
        elif method == "wanted":
            self._wanted(args[0])
        elif method == "beat":
            request.answer()

    def _here(self, order: Order) -> None:
        """What the coordinator in this process says."""
        if isinstance(order, Show):
            self._shown(order.view)
        elif isinstance(order, Count):
            self._count(order.round, order.last)
        elif isinstance(order, Over):
            self._over()
        elif isinstance(order, Fence):
            self._fence(order.why)
        elif isinstance(order, Admit):
            self._answered(self._answer, "done")
        elif isinstance(order, Refuse):
            self._answer.set(order.kind, order.text)
        elif isinstance(order, Dismiss):
            self._dismissed.set("done")
        else:
            assert not isinstance(order, Rest), "the server keeps that to itself"

    def _shown(self, told: View | Change) -> None:
        events = self._state.shown(told)
        if self._coordinator is None:
            self._tell("seen", told.version)
        else:
            self._coordinator.carry_out(self._coordinator.machine.seen(self.me.incarnation, told.version))
        for event in events:
            if event.member != self.me:
                self._happened(event)
        if self._state.fenced is not None:
            self._fence(self._state.fenced)

    def _happened(self, event: Event) -> None:
        if isinstance(event, Lost):
            _log.warning("worker %s was lost: %s", event.member, event.why)
        for hear in list(self.on_event):
            try:
                hear(event)
            except Exception:
                _log.exception("a callback about worker %s failed", event.member)

    def _count(self, round: int, last: bool) -> None:
        self._state.prepared = self._state.prepared or last
        counts = self._open_calls()
        if self._coordinator is None:
            self._tell("counted", round, counts)
        else:
            self._coordinator.carry_out(self._coordinator.machine.counted(self.me.incarnation, round, counts))

    def _over(self) -> None:
        self._answered(self._answer, "done")
        self.ending.set("over")

    def _tell(self, method: str, *args: object) -> None:
        """To the coordinator. While there is none, nothing: whoever is next learns all from our hello."""
        if self._link is not None:
            with contextlib.suppress(FanwiseError):
                self._link.notify(method, *args)

    # -- the death of the coordinator, and our own -----------------------------------------------------------------

    def _link_ended(self, link: Link, ending: Ending) -> None:
        if link is self._link:
            self._link = None
            self._coordinator_gone(None if ending.clean else ending.reason, frozen=False, dead=ending.dead)

    def _coordinator_gone(self, why: str | None, *, frozen: bool, dead: bool) -> None:
        if self._seeking or self._closed.is_set() or self._state.fenced is not None:
            return  # who seeks finds that its answer does not come
        self._seeking = True
        assert self._state.view is not None, "it was shown before it was admitted"
        gone = FormerCoordinator(self._state.view.coordinator, why, frozen, dead)
        self._succession = threading.Thread(target=self._succeed, args=(gone,), name="fanwise-succession", daemon=True)
        self._succession.start()

    def _succeed(self, gone: FormerCoordinator) -> None:
        try:
            # A coordinator that only computes is waited for as long as a heartbeat; then there must be time left.
            self._seeker.seek(_SUCCESSION_S + max(0.0, self.heartbeat_s - HEARTBEAT_S), gone)
        except ClosedError:
            return
        except FanwiseError as error:
            why = self._seeker.why_fenced or error.message
            self._hub.call_soon(lambda: self._fence(why))

    def _current(self) -> tuple[Link, Member | None] | None:
        """The link to the coordinator, and who that is."""
        view = self._state.view
        return None if self._link is None else (self._link, view.member(view.coordinator) if view is not None else None)

    def _give_up(self, link: Link, why: str, dead: bool) -> None:
        """The coordinator at the other end of `link` counts as dead."""
        if link is not self._link:
            return
        if self._joined:
            self._link = None
            with contextlib.suppress(FanwiseError):
                link.notify("fenced", why)
            self._coordinator_gone(why, frozen=True, dead=dead)
        link.close("declared lost")

    def _fence(self, why: str) -> None:
        first, self._state.fenced = not self._closed.is_set() and not self.ending.is_set, why
        self._joined = False
        self.ending.set("fenced", why)
        self._answer.set("fenced", why)
        self._dismissed.set("done")
        self._watch.end()
        if self._coordinator is not None:
            self._coordinator.close("declared lost")
        link, self._link = self._link, None
        if link is not None:
            link.close("declared lost")
        for callback in list(self.on_fenced) if first else ():
            try:
                callback(fenced_text(self._state, why))
            except Exception:
                _log.exception("a callback failed")
        others = [member for member in self._state.members.values() if member != self.me] if first else []
        for member in others:  # for whoever waits for one of them: none of them will hear or tell anything any more
            self._happened(Lost(member, f"this worker was declared lost: {why}"))

    # -- the end ---------------------------------------------------------------------------------------------------

    def shutdown(
        self,
        *,
        graceful: bool,
        within_s: float | None,
        open_calls: Callable[[], tuple[int, int]] = lambda: (0, 0),
        when_quiet: Callable[[], None] = lambda: None,
    ) -> None:
        """Leave the group, and close. Blocks.

        Graceful in a static group: until all who are alive have called this, and no call is open anywhere. Graceful in
        a dynamic group: until none is open here. `open_calls()` tells (open now, begun ever), from any thread; then
        `when_quiet()` is called, while the others can still be reached.

        Raises `DeadlineExceeded`, which says who is missing, after `within_s` seconds, and `WorkerLostError` when
        this worker was declared lost. The group is closed all the same.
        """
        until_s = None if within_s is None else self._hub.clock.now_s() + within_s
        self._open_calls = open_calls
        try:
            if graceful and self._state.fenced is None:
                self._leaving.settle(within_s, until_s, open_calls)
                when_quiet()
            self._leaving.leave(graceful=graceful)
            if self._state.fenced is not None:
                raise WorkerLostError(fenced_text(self._state, self._state.fenced))
        finally:
            self.close()

    def arrive(self) -> None:
        """This worker has called its graceful shutdown. On the hub's thread."""
        self._state.arrived = True
        if self._coordinator is not None:
            self._coordinator.carry_out(self._coordinator.machine.arrive(self.me.incarnation))
        else:
            self._tell("arrive")

    @property
    def has_guests(self) -> bool:
        """Whether this worker is the coordinator, and somebody still has a link to it."""
        return self._coordinator is not None and self._coordinator.has_guests

    def say_goodbye(self) -> None:
        """This worker leaves; nobody hears it while there is no coordinator. May be repeated. On the hub's thread."""
        self._state.leaving = True
        if self._coordinator is not None:
            self._coordinator.machine.closing = True
            self._coordinator.carry_out(self._coordinator.machine.leave(self.me.incarnation))
        elif self._link is not None:
            with contextlib.suppress(FanwiseError):
                self._link.call("leave").add_done_callback(self._heard_goodbye)

    def _heard_goodbye(self, reply: Reply) -> None:
        if answer_of(reply)[0] == "done":
            self._dismissed.set("done")

    def close(self) -> None:
        """Be a member no more, at once: the others see that this worker has left. A second call does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(FanwiseError):
            run_on_hub(self._hub, self._close)
        if self._succession is not None and not self._hub.is_loop_thread:
            self._succession.join(GOODBYE_S)

    def _close(self) -> None:
        self._watch.end()
        if self._coordinator is not None:
            self._coordinator.close("left")
        link, self._link = self._link, None
        if link is not None:
            link.close("left")
        self._seeker.stop()
