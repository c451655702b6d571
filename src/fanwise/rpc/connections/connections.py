"""The links of this worker to the agents of the others, made when they are first needed.

    to(id) --> the link there is, or: dial --> hello --> adopted; both sides use it for their calls
               between hosts, who cannot be dialled, as behind NAT, is asked through the coordinator to dial us
    ready(id), at_once(id)  for who does not wait: the link there is, or the one to this worker itself
    queue(id, call)         the call leaves when a link has been made, elsewhere

A link that was cut is mended at once: both sides dial again, each tells the other over the new link which ones have
ended ("over"), and the other answers when nothing that came over those is read any more. Only then calls go over the
new link; and whoever keeps books (`on_cut`) knows that what has not come by then never will. Calls that were open are
told what became of the worker (`link_loss`): that it is lost, or that it lives and the link was cut. What is said while
a link is made ("hello", "over") does not wait to hear it: that comes over the next link, which nobody would make.

Where two dial each other at the same time there are two links: calls of one worker stay on one, which keeps their
order, and both end with the member. Somebody who is there and does not answer is dialled again as long as it is a
member: then it lives, and something that it does keeps it from answering. Where nobody listens any more, the group is
about to say who is lost, and whether it has come back as another life, which is dialled then.

Knows no call: what comes in goes to `handle`.
"""

import contextlib
import logging
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch.futures import Future

from ...base.errors import ClosedError, DeadlineExceeded, FanwiseError, LinkLostError, WorkerLostError
from ...links.codec import load_error
from ...links.hub import Hub
from ...links.link import Fail, Link, Reply, Request
from ...links.process_state import has_ended
from ...links.transports.unix import memory_links
from ...links.transports.wires import Buffer
from ..devices.lending import ReceivedLoans
from ..membership.group import Group
from ..membership.members import Member, no_member
from ..messages.messages import Message, loads, speak
from ..worker_info import WorkerInfo
from .link_loss import LinkLosses
from .routes import Routes, Waiting
from .traffic import Traffic

_log = logging.getLogger("fanwise.rpc")

_CONNECT_S = 10.0
# Between hosts a worker whose host has not answered so soon is asked to dial us instead.
_DIRECT_S = 2.0
_LOOK_AGAIN_S = 0.5
_ASK_AGAIN_S = 2.0
# Where nobody listens any more: for so long the group's word on that is waited for.
_NEXT_VIEW_S = 2.0
_PAUSE_S = 0.002
# Who refuses, and whose process still lives after so long, is dialled again: the connection was cut, it did not end.
_CUT_OFF_S = 0.05
_TRIES = 10
# So many lives of workers may be known here before those that are no members, or not yet, are forgotten.
_KNOWN_MAX = 4096
OVER = "links.over"


class Connections:
    """See the module.

    Args:
        info: this worker.
        hub: whose links these are.
        handle: what comes in, with its sender; on a reading thread.
        waiting: around what a thread waits for.
        outside: runs a job on a thread that may wait.
        load_error: makes the errors that functions raised on other workers.
        arrived: makes `ReceivedLoans` of a message that came with loans.
        unwanted: gives back what came with an answer that nobody waits for any more; on a reading thread.
    """

    def __init__(
        self,
        info: WorkerInfo,
        hub: Hub,
        *,
        handle: Callable[[WorkerInfo, Request], None],
        waiting: Callable[[], AbstractContextManager[None]],
        outside: Callable[[Callable[[], None]], None],
        load_error: Callable[[bytes], Any] = load_error,  # Any: an error
        arrived: Callable[[WorkerInfo, tuple[int, ...]], ReceivedLoans] | None = None,
        unwanted: Callable[[Message, Link], None] = lambda answer, link: None,
    ) -> None:
        self._info = info
        self._hub = hub
        self._handle = handle
        self._waiting = waiting
        self._outside = outside
        self._load_error = load_error
        self._arrived = arrived
        self._unwanted = unwanted
        self._group: Group | None = None
        self._closing = threading.Event()
        self._routes = Routes(hub)
        self._links = self._routes.links  # by id: over which calls go
        self.ready = self._routes.ready
        self.withdraw = self._routes.withdraw
        self.open_calls = self._routes.open_calls
        self._kept: dict[int, list[Link]] = {}  # by incarnation: all
        self._connecting: dict[int, threading.Lock] = {}
        self._awaited: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self.traffic = Traffic()
        # Each link of another worker has a number that both sides know; and which of them that worker must be told of.
        self._numbers: weakref.WeakKeyDictionary[Link, int] = weakref.WeakKeyDictionary()
        self._owed: dict[int, set[int]] = {}  # by incarnation
        self._losses = LinkLosses(hub, self)
        # Called with a member and the number of a link: nothing that we sent over it will come there any more.
        self.on_cut: list[Callable[[Member, int], None]] = []
        # Called so: nothing that it sent over this link will come here any more.
        self.on_over: list[Callable[[Member, int], None]] = []

    @property
    def group(self) -> Group:
        """The group; set by `joined`."""
        assert self._group is not None, "set before anything is called"
        return self._group

    def joined(self, group: Group) -> None:
        """The group is there: from now on others may be dialled."""
        self._group = group

    @property
    def closed(self) -> bool:
        """Whether this worker has ended."""
        return self._closing.is_set()

    @property
    def num_open(self) -> int:
        """How many calls of ours wait for their answers, or to leave."""
        return self._routes.num_open + self._losses.num_open

    def calls_waiting_for_links(self) -> dict[str, int]:
        """How many calls to each worker, by name, have not left as there is no link."""
        known = self.group.former | self.group.members()
        return {known[id].name: number for id, number in self._routes.num_queued().items() if id in known}

    # -- dialling --------------------------------------------------------------------------------------------------

    def to(self, id: int, *, asked: bool = False, within_s: float | None = None) -> Link:
        """The link for calls to worker `id`. Blocks where one must be made first, for `within_s` seconds at most.

        `asked`: by the other side, which cannot dial us. Raises WorkerLostError, DeadlineExceeded, ClosedError.
        """
        link = self._links.get(id)
        if link is not None and link.ending is None:
            return link
        until_s = None if within_s is None else self._hub.clock.now_s() + within_s
        with self._lock:
            connecting = self._connecting.setdefault(id, threading.Lock())
        if not connecting.acquire(blocking=False):
            with self._waiting():
                acquired = connecting.acquire(timeout=-1 if within_s is None else min(within_s, threading.TIMEOUT_MAX))
            if not acquired:
                raise DeadlineExceeded(f"the link to worker {id} was not made within {within_s} s.")
        try:
            link = self._routes.link_to(id) or self._connect(id, asked, until_s)
            return self._routes.let_out(id, link)
        finally:
            connecting.release()

    def at_once(self, id: int) -> Link | None:
        """The link for calls to worker `id` when there is one, or nobody has to be dialled for it: this worker itself.

        Does not block. Raises what is known without a try: WorkerLostError, ClosedError.
        """
        self._member(id)
        return self.to(id) if id == self._info.id else None

    def queue(self, id: int, call: Waiting) -> bool:
        """`call` leaves over the link to worker `id`, after all that was queued before, when there is one.

        Does not block: if need be the link is made elsewhere. When that fails, as `to` does, so does `call`. False: as
        many as may wait for that link already do; `call` does not.
        """
        queued = self._routes.queue(id, call)
        if queued == "first":
            self._outside(partial(self._make_for_queue, id))
        return queued != "full"

    def _make_for_queue(self, id: int) -> None:
        while self._routes.is_awaited(id):
            try:
                self.to(id)
            except FanwiseError as error:
                self._routes.give_up(id, error, unless_linked=True)

    def _member(self, id: int) -> Member:
        if self.closed:
            raise ClosedError("RPC has been shut down in this process; call init_rpc first.")
        members = self.group.members()
        member = members.get(id)
        if member is None:
            raise no_member(id, members, self.group.former)
        return member

    def _connect(self, id: int, asked: bool, until_s: float | None) -> Link:
        member = self._member(id)
        if id == self._info.id:
            return self._to_oneself()
        with self._waiting():
            for _ in range(_TRIES):
                try:
                    return self._connect_to(member, asked, self._left_s(until_s))
                except WorkerLostError as error:
                    lost, newer = error, None if asked else self._next_life(member, until_s)
                    if newer is None:
                        raise
                    member = newer
            raise LinkLostError(
                f"no link to worker {member.name} (rank {member.id}) could be made in {_TRIES} tries, and its process "
                f"lives: {lost.message}\nWhat was to be sent did not leave. Try again."
            ) from lost

    def _left_s(self, until_s: float | None) -> float | None:
        return None if until_s is None else max(0.0, until_s - self._hub.clock.now_s())

    def _connect_to(self, member: Member, asked: bool, within_s: float | None) -> Link:
        link = self._second_link(member)
        if link is not None:
            return link
        if member.host == self.group.me.host:
            return self._dial_patiently(member, within_s)
        now_s = self._hub.clock.now_s
        begun_s = now_s()
        while True:
            dialled_s = now_s()
            try:
                return self.dial(member, _DIRECT_S)
            except DeadlineExceeded:  # its host is there, and it is busy
                return self._dial_patiently(member, within_s)
            except WorkerLostError as error:
                failed = error
            if self.closed or now_s() - begun_s > _CUT_OFF_S:
                break
            self._closing.wait(_PAUSE_S)  # the connection may have been cut before we had greeted each other
        if asked:
            raise failed
        return self._be_dialled(member, failed, within_s, dial_as_well=now_s() - dialled_s < _LOOK_AGAIN_S)

    def _second_link(self, member: Member) -> Link | None:
        """One that it made and calls with, where ours was cut: it would not dial again, as it has one."""
        with self._lock:
            links = [link for link in self._kept.get(member.incarnation, ()) if link.ending is None]
        for link in links:
            with contextlib.suppress(FanwiseError):  # it has just been cut too
                self._settle_up(link, member)
                return self._adopt(link, member)
        return None

    def _next_life(self, member: Member, until_s: float | None) -> Member | None:
        """It cannot be reached. Wait for what the group says of it: who has its id now, if anybody has.

        One of this host whose process lives may just have been cut off: it is returned itself, to be dialled again.
        """
        now_s = self._hub.clock.now_s
        begun_s = now_s()
        until_s = begun_s + _NEXT_VIEW_S if until_s is None else min(until_s, begun_s + _NEXT_VIEW_S)
        while now_s() < until_s and not (self.group.ending.is_full or self.group.has_left):
            now = self.group.members().get(member.id)
            if now != member or (now_s() - begun_s > _CUT_OFF_S and self._lives_here(member)):
                return now
            self._closing.wait(_PAUSE_S)
        return None

    def _lives_here(self, member: Member) -> bool:
        return member.host == self.group.me.host and not has_ended(member.pid, member.started_ticks)

    def _to_oneself(self) -> Link:
        link, other = memory_links(self._hub, self._hub)
        self._serve_on(other, self._info)
        self._serve_on(link, self._info)
        self._kept[self.group.me.incarnation] = [link]
        for end in (link, other):
            self.traffic.keep(self._info.name, end)
        return self._routes.place(self._info.id, link)

    def _dial_patiently(self, member: Member, within_s: float | None) -> Link:
        until_s = None if within_s is None else self._hub.clock.now_s() + within_s
        while True:
            left_s = _CONNECT_S if until_s is None else min(_CONNECT_S, until_s - self._hub.clock.now_s())
            try:
                return self.dial(member, max(0.0, left_s))
            except DeadlineExceeded:
                is_member = self.group.fenced is None and self.group.members().get(member.id) == member
                if self.closed or not is_member or left_s < _CONNECT_S:
                    raise

    def dial(self, member: Member, within_s: float) -> Link:
        """Make a link to `member`. The one to use is returned: where there was one already, that."""
        link = self.group.dial(member, within_s=within_s)
        try:
            if self.closed:
                raise ClosedError("RPC was shut down in this process.")
            self._serve_on(link, member.info)
            self._keep(link, member)
            number = self._number(link, secrets.randbits(62))
            mine = self.group.me, member.incarnation, number, link.frame_bytes, self.group.knows
            link.peer_takes(link.ask("hello", *mine, within_s=_CONNECT_S, judged=False))
            self._settle_up(link, member)
        except BaseException:
            link.close("not welcome")
            raise
        return self._adopt(link, member)  # not before: another thread would use it before the hello

    def _be_dialled(self, member: Member, error: FanwiseError, within_s: float | None, *, dial_as_well: bool) -> Link:
        """Ask `member` to dial us, and wait until it has.

        Where connections are cut it may wait for us in the same way, and the link to the coordinator may just be gone:
        so both ask again, and who was refused at once dials again itself (`dial_as_well`).
        """
        now_s = self._hub.clock.now_s
        again_s = now_s()
        until_s = again_s + (_CONNECT_S if within_s is None else min(_CONNECT_S, within_s))
        while now_s() < until_s:
            came = self._awaited[member.id] = threading.Event()
            if now_s() >= again_s:
                self.group.ask_to_dial(member)
                again_s = now_s() + _ASK_AGAIN_S
            came.wait(min(_LOOK_AGAIN_S, max(0.0, until_s - now_s())))
            link = self._routes.link_to(member.id) or self._second_link(member)
            if link is not None:
                return link
            if dial_as_well:
                with contextlib.suppress(DeadlineExceeded, WorkerLostError):
                    return self.dial(member, _DIRECT_S)
            if self.closed or self.group.ending.is_full or self.group.members().get(member.id) != member:
                raise error
        if within_s is not None and within_s < _CONNECT_S:
            raise DeadlineExceeded(f"the link to worker {member.name} was not made within {within_s:.3g} s.")
        address = ":".join(self.group.me.address.split()[:2])
        raise WorkerLostError(
            f"this worker, {self.group.me}, and {member} cannot reach each other. Here: {error.message.rstrip('.')}; "
            f"and when asked to, it did not dial {address} within {_CONNECT_S:.0f} s.\n"
            f"One of the two must be able to open a TCP connection to the other: look at their firewalls."
        ) from error

    def dial_back(self, member: Member) -> None:
        """`member` wants to reach us and cannot. Blocks."""
        try:
            self.to(member.id, asked=True)
        except FanwiseError as error:
            _log.info("%s asked to be dialled, in vain: %s", member, error)

    # -- being dialled ---------------------------------------------------------------------------------------------

    def accept(self, link: Link) -> None:
        """Somebody who holds the key has dialled; says first who it is."""
        speak(link)
        link.handler = partial(self._greet, link)

    def _greet(self, link: Link, request: Request) -> None:
        if request.method == "join" and self._group is not None:
            self._group.on_probe(request)
            return
        if request.method != "hello":
            link.close("say hello first")
            return
        member, incarnation, number, frame_bytes, knows = request.args
        refusal = self._group.refusal(member, incarnation, knows) if self._group is not None else None
        if refusal is not None:
            self.traffic.refused(member.name, "not_welcome")
            request.fail(WorkerLostError(refusal))
            return
        self._serve_on(link, member.info)
        self._number(link, number)
        self._keep(link, member)
        link.peer_takes(frame_bytes)
        request.answer(link.frame_bytes)
        self._settle_up_inline(link, member)

    def _serve_on(self, link: Link, peer: WorkerInfo) -> None:
        speak(link, self._load_error)
        if self._arrived is not None:
            link.loads = partial(loads, arrived=partial(self._arrived, peer))
        link.handler = partial(self._handle, peer)
        link.on_late = partial(self._came_late, weakref.ref(link))
        link.open()

    def _came_late(self, of: "weakref.ref[Link]", head: Buffer, buffers: Sequence[memoryview]) -> None:
        """An answer that nobody waits for any more. On a reading thread."""
        link = of()
        assert link is not None, "it is being read"
        answer = link.loads(head, buffers)
        if type(answer) is Message:
            self._unwanted(answer, link)

    def _keep(self, link: Link, member: Member) -> None:
        """It ends when the member does, also when no call of ours goes over it."""
        with self._lock:
            self._kept.setdefault(member.incarnation, []).append(link)
        self.traffic.keep(member.name, link)
        link.judge = partial(self._judge, member)
        link.on_ended(partial(self._link_ended, member))

    def _adopt(self, link: Link, member: Member) -> Link:
        """Calls go over it from now on. Where there is one already, that stays, and keeps their order."""
        link = self._routes.place(member.id, link)
        awaited = self._awaited.pop(member.id, None)
        if awaited is not None:
            awaited.set()
        self._losses.answered(member)
        return link

    # -- links that were cut ---------------------------------------------------------------------------------------

    def number_of(self, link: Link) -> int:
        """The number of a link, which both sides know it by; 0 for that to oneself."""
        return self._numbers.get(link, 0)

    def _number(self, link: Link, number: int) -> int:
        with self._lock:
            self._numbers[link] = number
        return number

    def _judge(self, member: Member, link: Link, fail: Fail) -> None:
        self._losses.ask(member, link, fail)

    def _mend(self, member: Member) -> None:
        """Make a new link in the place of one that was cut, and tell of that. Tries again as long as it is a member."""
        if self.closed or self.group.members().get(member.id) != member or not self._owed_to(member):
            return
        try:
            self._settle_up(self.to(member.id, within_s=_DIRECT_S), member)
        except FanwiseError as error:
            _log.info("the link to %s was cut, and is not mended yet: %s", member, error)
            when_s = self._hub.clock.now_s() + _LOOK_AGAIN_S
            self._hub.call_soon(lambda: self._later(when_s, partial(self._mend, member)))

    def _later(self, when_s: float, job: Callable[[], None]) -> None:
        self._hub.call_at(when_s, lambda: self._outside(job))

    def _owed_to(self, member: Member) -> tuple[int, ...]:
        """The links that have ended here, and the other side has not been told."""
        with self._lock:
            return tuple(sorted(self._owed.get(member.incarnation, ())))

    def _settle_up(self, link: Link, member: Member) -> None:
        """Tell the other side which links have ended here, and wait until it has read all that came over them."""
        while numbers := self._owed_to(member):
            link.ask(OVER, numbers, within_s=_CONNECT_S, judged=False)
            self._settled(member, numbers)

    def _settle_up_inline(self, link: Link, member: Member) -> None:
        """The same on a reading thread: adopt the link when it is done. When it fails, that link has ended too."""
        numbers = self._owed_to(member)
        if not numbers:
            self._adopt(link, member)
            return

        def told(reply: Reply) -> None:
            try:
                reply.result()
            except FanwiseError:
                return
            self._settled(member, numbers)
            self._settle_up_inline(link, member)

        with contextlib.suppress(FanwiseError):
            link.call(OVER, numbers, judged=False).add_done_callback(told)

    def _settled(self, member: Member, numbers: Sequence[int]) -> None:
        with self._lock:
            owed = self._owed.get(member.incarnation)
            if owed is not None:
                owed.difference_update(numbers)
                if not owed:
                    del self._owed[member.incarnation]
        self._losses.answered(member)
        for callback in self.on_cut:
            for number in numbers:
                callback(member, number)

    def on_told_over(self, sender: WorkerInfo, numbers: Sequence[int]) -> "Future[None]":
        """`sender` has lost these links. Done when nothing that came over them is being read here any more."""
        member, done = self.group.members().get(sender.id), Future[None]()
        with self._lock:
            links = [link for link, number in self._numbers.items() if number in numbers]
        for link in links:
            link.lose("the other side has lost it")

        def look() -> None:
            if not all(link.is_read_out for link in links):
                self._hub.call_at(self._hub.clock.now_s() + _PAUSE_S, look)
                return
            if member is not None:
                for callback in self.on_over:
                    for number in numbers:
                        callback(member, number)
            done.set_result(None)

        self._hub.call_soon(look)
        return done

    # -- ends ------------------------------------------------------------------------------------------------------

    def _link_ended(self, member: Member, link: Link, ending: Any) -> None:  # Any: links' Ending
        self._routes.forget(member.id, link)
        with self._lock:
            kept = self._kept.get(member.incarnation, [])
            if link in kept:
                kept.remove(link)
            cut = not ending.clean and not self.closed
            if cut:
                self._owed.setdefault(member.incarnation, set()).add(self._numbers.get(link, 0))
            if len(self._kept) > _KNOWN_MAX:
                self._forget_strangers()
        if cut:
            self.group.suspect(member, ending.reason)
            self._outside(partial(self._mend, member))

    def _forget_strangers(self) -> None:
        """With the lock: what is known of those who said hello and never became members is kept for the newest only."""
        members = {member.incarnation for member in self.group.members().values()}
        gone = [life for life, links in self._kept.items() if not links and life not in members]
        for life in gone[: len(gone) // 2 + 1]:  # the oldest
            for known in (self._kept, self._owed):
                known.pop(life, None)

    def lost(self, member: Member) -> None:
        """All that waits for `member` fails."""
        links = self._links_of(member)
        self._routes.give_up(member.id, WorkerLostError(f"worker {member.name} was lost."))
        for link in links:
            link.lose(f"worker {member.name} was lost")
        self._losses.look()

    def left(self, member: Member) -> None:
        """`member` has said goodbye to the group."""
        links = self._links_of(member)
        self._routes.give_up(member.id, ClosedError(f"worker {member.name} has left."))
        for link in links:
            link.close(f"worker {member.name} has left")

    def _links_of(self, member: Member) -> list[Link]:
        """All links of one that is gone. They are forgotten."""
        with self._lock:
            self._owed.pop(member.incarnation, None)
            links = self._kept.pop(member.incarnation, [])
        for link in links:
            self._routes.forget(member.id, link)
        return links

    def fenced(self, why: str) -> None:
        """The others have declared this worker lost: all that waits here fails, with the reason."""
        with self._lock:
            links = [link for kept in self._kept.values() for link in kept]
        self._routes.close(lambda: WorkerLostError(why), for_good=False)
        for link in links:
            link.lose(why)

    def close(self) -> None:
        """This worker ends: no link is made from now on; what waits for one, or for an answer, fails."""
        self._closing.set()
        self._routes.close(lambda: ClosedError("RPC was shut down in this process."))
        with self._lock:
            links = [link for kept in self._kept.values() for link in kept]
        for link in links:
            link.close()
        self._losses.close()
