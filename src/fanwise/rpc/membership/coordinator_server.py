"""The coordinator's server: executes the decisions of `coordinator.py`, in the process that holds the entrance.

    links of members --join, leave, seen, arrive, counted, suspect--> Coordinator --orders--> links, or `here`

Finds out who died: a link that ended without a goodbye and is not made again (`failure_detector` decides how long that
may take), a process that has ended, a process that was stopped for 5 s.
Who is silent is busy, and is left alone; between hosts, where the kernel cannot tell the difference, for `heartbeat_s`.
All of this runs on the hub's thread; nothing here blocks.

The member in this very process is served like the others, by the function `here` instead of a link.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from ...base.errors import DeadlineExceeded, FanwiseError
from ...base.version import VERSION
from ...links.hub import Hub, Timer
from ...links.link import Link, Reply, Request
from ...links.peers import Ending
from ...links.process_state import FROZEN_AFTER_S, LOOK_EVERY_S, FrozenWatch, has_ended
from ..constants import HEARTBEAT_S
from ..messages.messages import install_codec
from ..rendezvous.entrance import Entrance, Meeting
from .coordinator import Admit, Coordinator, Count, Dismiss, Fence, Order, Over, Refuse, Rest, Show
from .failure_detector import RETURN_S, FailureDetector, Sign
from .members import Hello, Member

_log = logging.getLogger("fanwise.rpc")

PROTOCOL = 4
_REST_S = 0.01
# How often to look whether somebody lives whose link was reset, for the first second.
_LOOK_AWAY_S, _LOOK_LATER_S = 0.005, 0.05
FROZEN = f"it was stopped (SIGSTOP) for {FROZEN_AFTER_S:.0f} s"


class CoordinatorServer:
    """See the module.

    Args:
        here: gets what is for this process.
        deposed: called with the reason when another has taken our place.
        wanted: called with the incarnation of a member that cannot dial this one, and asks to be dialled.
        heartbeat_s: between hosts a worker that answers nothing for so long is lost, and so is one that does not come
            back to a new coordinator.
    """

    def __init__(
        self,
        hub: Hub,
        machine: Coordinator,
        me: Member,
        meeting: Meeting,
        *,
        here: Callable[[Order], None],
        deposed: Callable[[str], None],
        wanted: Callable[[int], None],
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.machine = machine
        self._entrance: Entrance | None = None
        self._hub = hub
        self._me = me
        self._meeting = meeting
        self._here = here
        self._deposed = deposed
        self._wanted = wanted
        self._links: dict[int, Link] = {}
        self._detector = FailureDetector(heartbeat_s, hub.clock.now_s())
        self._asked: dict[int, Request] = {}
        self._orders: deque[Order] = deque()
        self._carrying_out = False
        self._watch = FrozenWatch()
        self._heartbeat_s = heartbeat_s
        self._heartbeats = Heartbeats(hub, heartbeat_s)
        self._closed = False
        self._timer: Timer = hub.call_at(hub.clock.now_s() + LOOK_EVERY_S, self._look)

    def open(self, *, instead_of: int | None = None) -> bool:
        """Open the entrance. False: another has it. `instead_of`: one that is frozen, and is to be replaced."""
        self._entrance = self._meeting.try_open(self._hub, self._me.incarnation, self.accept, instead_of=instead_of)
        return self._entrance is not None

    @property
    def has_guests(self) -> bool:
        """Whether any member still has its link to us."""
        return bool(self._links)

    # -- carrying out ----------------------------------------------------------------------------------------------

    def carry_out(self, orders: list[Order]) -> None:
        """Do what the machine says, in order; also when one order leads to new ones."""
        self._orders.extend(orders)
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self._orders and not self._closed:
                self._do(self._orders.popleft())
        finally:
            self._carrying_out = False

    def _do(self, order: Order) -> None:
        if isinstance(order, Rest):
            when_s = self._hub.clock.now_s() + _REST_S
            self._hub.call_at(when_s, lambda: self.carry_out(self.machine.next_round(order.round)))
        elif order.to == self._me.incarnation:
            if isinstance(order, Show) and self._entrance is not None:
                self._entrance.note(self.machine.view.members)
            self._here(order)
        else:
            with contextlib.suppress(FanwiseError):  # its link has just ended: we are about to hear of that
                self._send(order)

    def _send(self, order: Show | Admit | Refuse | Dismiss | Fence | Count | Over) -> None:
        if isinstance(order, Refuse):
            self._links.pop(order.to, None)  # it closes the link when it has read this
        if isinstance(order, (Admit, Refuse, Dismiss)):
            request = self._asked.pop(order.to, None)
            if request is not None:
                request.answer((order.kind, order.text) if isinstance(order, Refuse) else ("done", ""))
            return
        link = self._links.get(order.to)
        if link is None:
            return
        if isinstance(order, Show):
            link.notify("view", order.view)
        elif isinstance(order, Count):
            link.notify("count", order.round, order.last)
        elif isinstance(order, Over):
            link.notify("over")
        else:
            del self._links[order.to]
            link.notify("fenced", order.why)
            link.close("declared lost")

    # -- what members say ------------------------------------------------------------------------------------------

    def accept(self, link: Link) -> None:
        """Somebody who holds the key has come; it must say `join` first."""
        install_codec(link)
        link.handler = self.first_words

    def first_words(self, request: Request) -> None:
        """What somebody says who has come, here or at this worker's own listener."""
        if request.method == "who":
            request.answer(self.whom_it_waits_for())
        elif request.method != "join" or self._closed:
            request.link.close("the group that was here is closing")
        else:
            self._join(request)

    def _join(self, request: Request) -> None:
        protocol, version, hello = request.args
        if (protocol, version) != (PROTOCOL, VERSION):
            text = f"this group runs fanwise {VERSION}, the newcomer runs {version}; install one version everywhere"
            request.answer(("refused", text))
            return
        member, link = hello.member, request.link
        self._bury(member)
        self._asked[member.incarnation] = request
        self._links[member.incarnation] = link
        self._stop_waiting_for(member.incarnation)
        link.handler = partial(self._handle, member.incarnation)
        link.on_ended(partial(self._ended, member.incarnation))
        self.carry_out(self.machine.hello(hello))

    def hello_here(self, hello: Hello) -> None:
        """The member in this process."""
        self.carry_out(self.machine.hello(hello))

    def _handle(self, sender: int, request: Request) -> None:
        machine, method, args = self.machine, request.method, request.args
        if method == "seen":
            self.carry_out(machine.seen(sender, args[0]))
        elif method == "arrive":
            self.carry_out(machine.arrive(sender))
        elif method == "counted":
            self.carry_out(machine.counted(sender, args[0], args[1]))
        elif method == "leave":
            self._asked[sender] = request
            self.carry_out(machine.leave(sender))
        elif method == "suspect":
            self.suspect(sender, *args)
        elif method == "wanted":
            self.pass_on(*args)
        elif method == "fenced":
            self._deposed(args[0])
        elif method == "who":
            request.answer(self.whom_it_waits_for())
        elif method == "beat":
            request.answer()
        else:
            request.fail(LookupError(f"a coordinator does not know {method!r}"))

    def pass_on(self, to: int, wanted_by: int) -> None:
        """Ask `to` to dial `wanted_by`, which cannot reach it. Who has no link to us is not asked."""
        link = self._links.get(to)
        if to == self._me.incarnation:
            self._wanted(wanted_by)
        elif link is not None:
            with contextlib.suppress(FanwiseError):
                link.notify("wanted", wanted_by)

    def whom_it_waits_for(self) -> str:
        """For the message of somebody whose time ran out."""
        if self.machine.forming:
            ranks = ", ".join(map(str, self.machine.missing()))
            refused = self._entrance.refused() if self._entrance is not None else ""
            there = f"{len(self.machine.members)} of {self.machine.world_size} workers are there"
            return f"{there}; missing: rank {ranks}" + (f"; {refused}" if refused else "")
        waiting = self.machine.not_arrived()
        if waiting and self.machine.barrier.arrived:
            return f"these have not called shutdown: {', '.join(map(str, waiting))}"
        unseen = {m: n for m, n in self.machine.seen_number.items() if n < self.machine.number}
        slow = [str(member) for member in self.machine.members.values() if member.incarnation in unseen]
        if slow:
            return f"these have not answered yet: {', '.join(slow)}"
        busy = [str(member) for member in self.machine.busy()]
        return f"calls were still open{': made by, or running on, ' if busy else ''}{', '.join(busy)}"

    # -- death -----------------------------------------------------------------------------------------------------

    def _ended(self, member: int, link: Link, ending: Ending) -> None:
        if self._links.get(member) is not link or self._closed:
            return
        del self._links[member]
        self._asked.pop(member, None)
        if ending.clean:
            self.carry_out(self.machine.gone(member))
        elif ending.dead and link.peer.pid and member in self.machine.alive:
            self._detector.reset(member, self._hub.clock.now_s(), ending.reason)
            self._look_for_away(member)
        else:
            self.carry_out(self.machine.lose(member, ending.reason, dead=ending.dead))

    def _look_for_away(self, incarnation: int) -> None:
        """Its link has ended as when its process ends. Has it, or was the link cut? Then it comes back."""
        member = self.machine.view.member(incarnation)
        if member is None or self._closed or not self._detector.is_awaited(incarnation):
            self._stop_waiting_for(incarnation)
            return
        now_s = self._hub.clock.now_s()
        if not self._is_lost(member, now_s):
            pause_s = _LOOK_AWAY_S if self._detector.for_s(incarnation, now_s) < RETURN_S else _LOOK_LATER_S
            self._hub.call_at(now_s + pause_s, partial(self._look_for_away, incarnation))

    def _is_lost(self, member: Member, now_s: float) -> bool:
        """Whether a member without a link is lost now; then the others are told."""
        gone = self._detector.decide(member.incarnation, now_s, self._sign_of(member))
        if gone is not None:
            self._stop_waiting_for(member.incarnation)
            self.carry_out(self.machine.lose(member.incarnation, gone.why, dead=gone.dead))
        return gone is not None

    def _sign_of(self, member: Member) -> Sign:
        if member.host == self._me.host:
            return "ended" if self._has_ended(member) else "lives"
        return "unknown"

    def _stop_waiting_for(self, incarnation: int) -> None:
        self._detector.over(incarnation)

    def suspect(self, sender: int, incarnation: int, why: str) -> None:
        """The link between two members has ended for good, so one of them must go. This worker stays."""
        lost = sender if incarnation == self._me.incarnation else incarnation
        member = self.machine.view.member(lost)
        if member is not None and member != self._me:
            self.carry_out(self.machine.lose(lost, why, dead=self._has_ended(member)))

    def _bury(self, newcomer: Member) -> None:
        """Whoever had the newcomer's name or rank may have died this moment, and we have not heard yet."""
        for member in list(self.machine.members.values()):
            if (member.id == newcomer.id or member.name == newcomer.name) and self._has_ended(member):
                self.carry_out(self.machine.lose(member.incarnation, "its process has ended"))

    def look_for_the_dead(self, *, patient: bool = True) -> None:
        """Those who never said hello here: they died, or left, together with the coordinator before us."""
        for member in list(self.machine.members.values()):
            is_here = member.host == self._me.host
            if member.incarnation in self._links or member == self._me or not (is_here or self.machine.ruling):
                continue
            is_lost = self._is_lost(member, self._hub.clock.now_s())
            if is_here and not is_lost and not patient and not self._meeting.is_listening(member.address):
                self.carry_out(self.machine.gone(member.incarnation))

    def _has_ended(self, member: Member) -> bool:
        return member.host == self._me.host and has_ended(member.pid, member.started_ticks)

    def _look(self) -> None:
        now_s = self._hub.clock.now_s()
        if self._closed:
            return
        self._timer = self._hub.call_at(now_s + LOOK_EVERY_S, self._look)
        if self._entrance is not None and not self._entrance.is_ours():
            self._deposed("another worker has become the coordinator, as this one was stopped for too long")
            return
        if self._entrance is None:
            self.open()  # whoever held it may have ended
        self.look_for_the_dead(patient=False)
        for incarnation, link in list(self._links.items()):
            self._heartbeats.beat(link, partial(self._silent, incarnation, link))
        on_this_host = [m for m in self.machine.members.values() if m.host == self._me.host and m != self._me]
        frozen = self._watch.look([member.pid for member in on_this_host], now_s)
        for member in on_this_host:
            if member.pid in frozen and member.pid != self._me.pid:
                _log.warning("worker %s is declared lost: %s", member, FROZEN)
                self.carry_out(self.machine.lose(member.incarnation, FROZEN))

    def _silent(self, member: int, link: Link) -> None:
        if self._links.get(member) is link:
            self.carry_out(self.machine.lose(member, silent_text(self._heartbeat_s), dead=False))

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Close the entrance, then the links. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        if self._entrance is not None:
            self._entrance.close()
        links, self._links = self._links, {}
        for link in links.values():
            link.close(reason)


def silent_text(heartbeat_s: float) -> str:
    """Why somebody is lost who did not answer."""
    return f"it answered nothing for {heartbeat_s:g} s"


class Heartbeats:
    """Asks who is at the other end of links between hosts, where the kernel cannot tell. On one host: nothing.

    The answer comes from the hub's thread of the peer, which needs the interpreter's lock for a moment only.
    """

    def __init__(self, hub: Hub, heartbeat_s: float) -> None:
        self._hub = hub
        self._heartbeat_s = heartbeat_s
        self._next_s: dict[Link, float] = {}

    def beat(self, link: Link, silent: Callable[[], None]) -> None:
        """Ask when it is time. `silent()` is called when there is no answer for `heartbeat_s`. Call it every second."""
        now_s = self._hub.clock.now_s()
        if link.peer.pid != 0 or self._next_s.get(link, 0.0) > now_s:
            return
        self._next_s = {known: s for known, s in self._next_s.items() if known.ending is None}
        self._next_s[link] = now_s + self._heartbeat_s / 3
        with contextlib.suppress(FanwiseError):
            link.call("beat", deadline_s=self._heartbeat_s).add_done_callback(partial(_unless_answered, silent))


def _unless_answered(silent: Callable[[], None], reply: Reply) -> None:
    try:
        reply.result()
    except DeadlineExceeded:
        silent()
    except FanwiseError:
        pass  # the link has ended: that is heard of elsewhere
