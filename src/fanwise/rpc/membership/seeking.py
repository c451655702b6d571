"""Finding the coordinator of a group, or becoming it: at first, and whenever it has died or left.

    again and again:   the entrance is open --> say hello there, wait for the answer
                       it is closed         --> when it is our turn: open it, and be the coordinator

Whose turn: at first rank 0's; in a dynamic group anybody's, after a while. After the death of a coordinator the lowest
rank that is alive, and each other one a moment later, so that nobody waits for one that is dead or busy; a newcomer,
rank 0 come back too, leaves it to them.

Between hosts the entrance may be gone together with the host it was on. Then the members that are left ask each other,
the lowest ranks first, at their own listeners; whose turn it is becomes the coordinator without an entrance, and begins
to rule when enough have come (`quorum`). Who does not get enough in a while gives up, and asks the others again.
A coordinator whose links were reset may live: it is asked first. While its host takes connections for it, and it says
nothing, it is at work, and nobody takes its place before it has been silent for as long as any worker may.

Blocks, so it never runs on the hub's thread. Who is admitted, and what is said, is not decided here.
"""

import contextlib
import threading
from typing import NamedTuple, Protocol

from ...base.errors import ClosedError, DeadlineExceeded, FanwiseError, JoinError, WorkerLostError
from ...links.hub import Hub
from ...links.link import Link, Reply
from ..hub_thread import OneShot, run_on_hub
from ..rendezvous.addresses import Rendezvous
from ..rendezvous.entrance import Meeting
from .members import Member, MemberState
from .peer_probing import ENTRANCE, PROBE_S, PeerProber

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_DIAL_S = 5.0
# Each rank waits so much longer than the one below it before it takes the coordinator's place.
_TURN_S = 0.1
# Members of another host than the entrance's wait so much longer: newcomers would not find the group with one of them.
_AWAY_S = 1.0
# How long to wait for enough of the group, as a coordinator that does not rule yet; and when a lower rank is there.
_CANDIDACY_S, _PRECEDED_S = 4.0, 1.0
# A newcomer to a dynamic group waits so long for rank 0, or whoever is there, before it opens the group itself.
_ALONE_S = 1.0
# Members of a group whose coordinator has died go first. They need a moment; or more, when they hold the interpreter.
_SURVIVORS_S = 5.0


class FormerCoordinator(NamedTuple):
    """The coordinator that is no more.

    Attributes:
        why: None: it has left.
        frozen: its process may still be there.
        dead: for certain; else it may be out of reach only.
    """

    incarnation: int
    why: str | None
    frozen: bool
    dead: bool


class Host(Protocol):
    """What the group does for its seeker, on the hub's thread. Answers go to the mailbox."""

    def say_hello(self, link: Link, answer: OneShot) -> None: ...
    def become_coordinator(self, gone: FormerCoordinator | None, answer: OneShot) -> bool: ...
    def resign(self) -> bool: ...
    def dial(self, member: Member, *, within_s: float) -> Link: ...
    def drop_link(self) -> None: ...
    def who_is_missing(self) -> str: ...


class Seeker:
    """See the module. One for each group; it seeks once at a time."""

    def __init__(
        self, hub: Hub, meeting: Meeting, state: MemberState, host: Host, closed: threading.Event, *, heartbeat_s: float
    ) -> None:
        self._hub = hub
        self._heartbeat_s = heartbeat_s
        self._meeting = meeting
        self._state = state
        self._host = host
        self._closed = closed
        self._answer = OneShot()
        self._prober = PeerProber(hub, state, lambda member, within_s: host.dial(member, within_s=within_s))
        self.why_fenced = ""

    def stop(self) -> None:
        """Wake it; `closed` has been set."""
        self._answer.set("again", "closed")

    def seek(self, within_s: float, gone: FormerCoordinator | None = None) -> None:
        """Block until this member is admitted.

        Raises `JoinError` when it is refused, `WorkerLostError` when it was declared lost, `DeadlineExceeded` after
        `within_s` seconds, `ClosedError` when the group is closed meanwhile.
        """
        now_s = self._hub.clock.now_s
        began_s, pause_s, reason = now_s(), _FIRST_PAUSE_S, ""
        until_s = began_s + within_s
        self._prober.is_busy = False
        while True:
            self._answer = answer = OneShot()
            if self._closed.is_set():
                raise ClosedError("the group was closed while it looked for its coordinator.")
            if gone is not None and self._prober.is_busy:
                gone = gone._replace(dead=False)
            is_awaited = self._prober.is_busy and now_s() - began_s < self._heartbeat_s
            my_turn = now_s() - began_s >= self._patience_s(gone, reason) and not is_awaited
            if self._enter(answer, until_s, gone, my_turn=my_turn):
                reason = self._outcome(answer, until_s, within_s, gone)
                if not reason:
                    return
                run_on_hub(self._hub, self._host.drop_link)
            if now_s() >= until_s:
                raise DeadlineExceeded(self._nobody(within_s, reason))
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _outcome(self, answer: OneShot, until_s: float, within_s: float, gone: FormerCoordinator | None) -> str:
        """Empty when admitted, else why it has to be tried again."""
        now_s = self._hub.clock.now_s
        wait_s = _PRECEDED_S if gone is not None and self._prober.any_below(gone.incarnation) else _CANDIDACY_S
        while (came := answer.wait(min(until_s - now_s(), wait_s))) is None and now_s() < until_s:
            if run_on_hub(self._hub, self._host.resign):
                return "too few of the group are in reach"
        if came is None:
            where, missing = self._meeting.where.url, self._host.who_is_missing()
            raise DeadlineExceeded(f"{self._state.me} was not in the group at {where} within {within_s} s: {missing}.")
        kind, text = came
        if kind == "refused":
            raise JoinError(f"{text}.")
        if kind == "fenced":
            self.why_fenced = text
            raise WorkerLostError(fenced_text(self._state, text))
        return "" if kind == "done" else text or "come again"

    def _patience_s(self, gone: FormerCoordinator | None, reason: str) -> float:
        """How long to leave the entrance to others."""
        me = self._state.me
        if self._state.view is None and me.id != 0 and self._state.world_size is not None:
            return float("inf")  # a static group is opened by rank 0
        if self._state.view is None and self._meeting.has_survivors():
            return _SURVIVORS_S  # else this member would be alone, and the others would not know it yet
        if self._state.view is None and self._meeting.where.others:
            # The group may be at another address by now, and two may be opened at two.
            return _ALONE_S if me.id == 0 else float("inf")
        if self._state.view is None and me.id != 0:
            # A dynamic group may outlive rank 0, or have closed before we came.
            return 0.0 if reason else _ALONE_S
        candidates = [m.incarnation for m in self._state.successors(gone.incarnation if gone else 0)]
        away_s = 0.0 if self._meeting.is_exclusive or self._meeting.where.is_any_here else _AWAY_S
        return away_s + _TURN_S * (candidates.index(me.incarnation) if me.incarnation in candidates else 0)

    def _enter(self, answer: OneShot, until_s: float, gone: FormerCoordinator | None, *, my_turn: bool) -> bool:
        """One try: say hello at the entrance, or open it. False: nothing could be done now."""
        was_busy = self._prober.is_busy
        if gone is None or self._meeting.is_exclusive:
            link = self._at_the_entrance(_DIAL_S, until_s, gone)
        else:
            link = self._among_hosts(until_s, gone, my_turn=my_turn)
        if link is not None:
            run_on_hub(self._hub, lambda: self._host.say_hello(link, answer))
            return True
        if self._prober.is_busy != was_busy:  # that changes whose turn it is
            return False
        return my_turn and run_on_hub(self._hub, lambda: self._host.become_coordinator(gone, answer))

    def _at_the_entrance(self, within_s: float, until_s: float, gone: FormerCoordinator | None) -> Link | None:
        but_not = gone.incarnation if gone is not None and gone.frozen else None
        left_s = min(within_s, max(0.001, until_s - self._hub.clock.now_s()))
        with contextlib.suppress(DeadlineExceeded):
            return self._meeting.dial(self._hub, within_s=left_s, but_not=but_not)
        return None

    def _among_hosts(self, until_s: float, gone: FormerCoordinator, *, my_turn: bool) -> Link | None:
        prober, link, now_s = self._prober, None, self._hub.clock.now_s()
        if prober.is_worth_a_try(ENTRANCE):
            link = self._at_the_entrance(PROBE_S, until_s, gone)
            if link is None:
                prober.tried(ENTRANCE, now_s)
        if link is None and (gone.dead or prober.is_busy) and not gone.frozen:
            link = prober.back(gone.incarnation)
        return link or prober.next(gone.incarnation, my_turn=my_turn)

    def _nobody(self, within_s: float, reason: str) -> str:
        where = self._meeting.where
        again = f" The last answer was: {reason.rstrip('.')}." if reason else ""
        here = "on this host " if where.are_all_here else ""
        return (
            f"nobody opened the group at {where.url} {here}within {within_s} s; {self._state.me} came in vain.\n"
            f"{_who_opens(where)}{again}{_elsewhere(where)}"
        )


def _who_opens(where: Rendezvous) -> str:
    if not where.others:
        return "Rank 0 opens it: was it started, by the same user, with the same address?"
    return (
        "Of several addresses rank 0 opens the first of its own host, and whoever follows it that of theirs: was it "
        "started, with the same addresses?"
    )


def _elsewhere(where: Rendezvous) -> str:
    if where.are_all_here or not where.port:
        return ""
    if where.others:
        return (
            "\nA group goes on without these hosts when they fail, but nobody new can find it then: end it, and start "
            "all workers anew."
        )
    host, port = where.host, where.port
    return (
        "\nA group that was opened there goes on when the last worker of that host has left or died, but nobody new "
        "can find it then: end it, and start all workers anew.\n"
        f"Give all workers more than one address, tcp://{host}:{port},another-host:{port} or "
        f"MASTER_ADDR={host},another-host: then newcomers find it while a worker on one of those hosts lives."
    )


def answer_of(reply: Reply) -> tuple[str, str]:
    """What the coordinator says to a hello: "done", "again", "refused" or "fenced", and why."""
    try:
        kind, text = reply.result()
    except FanwiseError as error:
        return "again", error.message
    except Exception as error:
        return "refused", f"the coordinator could not read our hello: {error}"
    return kind, text


def text_of(reply: Reply) -> tuple[str, str]:
    """What the coordinator says to "who", for a message."""
    try:
        return "", str(reply.result())
    except Exception:
        return "", "the coordinator has gone"


def fenced_text(state: MemberState, why: str) -> str:
    """For the errors of a member that was declared lost."""
    return (
        f"this worker, {state.me}, was declared lost by the others: {why}.\n"
        f"What it says is not taken any more. Join again with init_rpc, as a new life of the same worker."
    )
