"""The links of this worker to the agents of its peers, opened on first use.

    to(id)          the open link, or: dial --> hello --> adopt; both sides use it for their calls
                    a peer on another host that we cannot reach (NAT) is asked, through the coordinator, to dial us
    get_open(id), get_without_waiting(id)   the open link, or the loopback link
    queue(id, call) send the call when a link was opened by another thread

A link outlives its connections (`links.transports.resumable`). The end of a link without a goodbye is the loss of its
worker: calls to it fail, no other link to it is opened or accepted, and the coordinator removes it from the group.

If two workers dial each other at the same time there are two links. The calls of a worker stay on one, which keeps
their order, and both end with the member. A peer that accepts but does not reply is busy and is dialed again while it
is a member. If nothing listens, the group is about to report the peer as lost or as restarted.

Received messages are passed to `handle`.
"""

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ...base.errors import ClosedError, DeadlineExceeded, FanwiseError, WorkerLostError
from ...links.codec import load_error
from ...links.hub import Hub
from ...links.link import Link, Request
from ...links.peers import Ending
from ...links.transports.unix import memory_links
from ...links.transports.wires import Buffer
from ..membership.group import Group
from ..membership.members import Member, no_member
from ..messages.messages import Message, install_codec
from ..worker_info import WorkerInfo
from .routes import QueuedItem, Routes
from .traffic import Traffic

_log = logging.getLogger("fanwise.rpc")

_CONNECT_S = 10.0
# A peer on another host that does not accept in this time is asked to dial us.
_DIRECT_S = 2.0
_RETRY_S = 0.5
_REPEAT_REQUEST_S = 2.0
# Time to wait for a membership change when nothing listens at the address of a peer.
_INCARNATION_WAIT_S = 2.0
_PAUSE_S = 0.002
# A connection may be cut during the handshake, before it is a link: a peer that refuses it is dialed again for so long.
_UNREACHABLE_S = 0.05
_TRIES = 10
# Maximum number of tracked incarnations before those that are not members are removed.
_MAX_TRACKED = 4096


class Connections:
    """See the module.

    Args:
        info: this worker.
        hub: event loop of the links.
        handle: handles a message (sender, request), on a reading thread.
        waiting: context manager for blocking waits.
        outside: runs a job on a thread that may wait.
        load_error: deserializes errors of remote functions; None for those of builtin types and of fanwise only.
        unwanted: releases the contents of a late reply, on a reading thread.
    """

    def __init__(
        self,
        info: WorkerInfo,
        hub: Hub,
        *,
        handle: Callable[[WorkerInfo, Request], None],
        waiting: Callable[[], AbstractContextManager[None]],
        outside: Callable[[Callable[[], None]], None],
        load_error: Callable[[bytes], Any] | None = load_error,
        unwanted: Callable[[Message, Link], None] = lambda answer, link: None,
    ) -> None:
        self._info = info
        self._hub = hub
        self._handle = handle
        self._waiting = waiting
        self._outside = outside
        self._load_error = load_error
        self._unwanted = unwanted
        self._group: Group | None = None
        self._closing = threading.Event()
        self._routes = Routes(hub)
        self._links = self._routes.links  # by id: the links for calls
        self.get_open = self._routes.get_open
        self.withdraw = self._routes.withdraw
        self.open_calls = self._routes.open_calls
        self._links_of_incarnation: dict[int, list[Link]] = {}
        self._lost: dict[int, str] = {}  # why incarnations were lost that the group has not removed yet
        self._connecting: dict[int, threading.Lock] = {}
        self._dial_back_events: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self.traffic = Traffic()

    @property
    def group(self) -> Group:
        """The group, set by `joined`."""
        assert self._group is not None, "set before the first call"
        return self._group

    def joined(self, group: Group) -> None:
        """Set the group, which allows dialing its members."""
        self._group = group

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    @property
    def num_open(self) -> int:
        """Number of calls of this worker that are queued or wait for a reply."""
        return self._routes.num_open

    def calls_waiting_for_links(self) -> dict[str, int]:
        """Return the number of calls to each worker, by name, that wait for a link."""
        peers = self.group.former | self.group.members()
        return {peers[id].name: number for id, number in self._routes.num_queued().items() if id in peers}

    # -- dialing ---------------------------------------------------------------------------------------------------

    def to(self, id: int, *, by_request: bool = False, within_s: float | None = None) -> Link:
        """Return the link for calls to worker `id`, opening one if necessary. Blocks for at most `within_s` seconds.

        `by_request`: the peer cannot dial us and has asked for a link. Raises WorkerLostError, DeadlineExceeded,
        ClosedError.
        """
        link = self._links.get(id)
        if link is not None and link.ending is None:
            return link
        deadline_s = None if within_s is None else self._hub.clock.now_s() + within_s
        with self._lock:
            connecting = self._connecting.setdefault(id, threading.Lock())
        if not connecting.acquire(blocking=False):
            with self._waiting():
                acquired = connecting.acquire(timeout=-1 if within_s is None else min(within_s, threading.TIMEOUT_MAX))
            if not acquired:
                raise DeadlineExceeded(f"the link to worker {id} was not made within {within_s} s.")
        try:
            link = self._routes.link_to(id) or self._connect(id, by_request, deadline_s)
            return self._routes.flush(id, link)
        finally:
            connecting.release()

    def get_without_waiting(self, id: int) -> Link | None:
        """Return the loopback link if `id` is this worker, otherwise None. Does not block.

        Raises WorkerLostError or ClosedError if no link can be opened.
        """
        self._member(id)
        return self.to(id) if id == self._info.id else None

    def queue(self, id: int, call: QueuedItem) -> bool:
        """Send `call` over the link to worker `id`, after all calls queued before. Return False if the queue is full.

        Does not block: another thread opens the link if necessary, and `call` fails if that fails.
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
                self._routes.fail_all(id, error, unless_linked=True)

    def _member(self, id: int) -> Member:
        if self.closed:
            raise ClosedError("RPC has been shut down in this process; call init_rpc first.")
        member = self.group.members().get(id)
        if member is None:
            raise no_member(id, self.group.members(), self.group.former, self.group.fenced)
        reason = self._lost.get(member.incarnation)
        if reason is not None:
            raise WorkerLostError(f"worker {member.name} (rank {id}) was lost: {reason}.")
        return member

    def _connect(self, id: int, by_request: bool, deadline_s: float | None) -> Link:
        member = self._member(id)
        if id == self._info.id:
            return self._open_loopback()
        with self._waiting():
            for _ in range(_TRIES):
                try:
                    return self._connect_to(member, by_request, self._remaining_s(deadline_s))
                except WorkerLostError as error:
                    lost, newer = error, None if by_request else self._await_new_incarnation(member, deadline_s)
                    if newer is None:
                        raise
                    member = newer
            raise lost

    def _remaining_s(self, deadline_s: float | None) -> float | None:
        return None if deadline_s is None else max(0.0, deadline_s - self._hub.clock.now_s())

    def _connect_to(self, member: Member, by_request: bool, within_s: float | None) -> Link:
        if member.host == self.group.me.host:
            return self._dial_with_retries(member, within_s)
        now_s = self._hub.clock.now_s
        start_s = now_s()
        while True:
            dial_start_s = now_s()
            try:
                return self.dial(member, _DIRECT_S)
            except DeadlineExceeded:  # the host is reachable and the peer is busy
                return self._dial_with_retries(member, within_s)
            except WorkerLostError as error:
                last_error = error
            if self.closed or now_s() - start_s > _UNREACHABLE_S:
                break
            self._closing.wait(_PAUSE_S)
        if by_request:
            raise last_error
        return self._request_dial_back(member, last_error, within_s, dial_as_well=now_s() - dial_start_s < _RETRY_S)

    def _await_new_incarnation(self, member: Member, deadline_s: float | None) -> Member | None:
        """Wait for the group to report an unreachable member. Return its successor or None."""
        now_s = self._hub.clock.now_s
        start_s = now_s()
        limit_s = start_s + _INCARNATION_WAIT_S
        if deadline_s is not None:
            limit_s = min(limit_s, deadline_s)
        while now_s() < limit_s and not (self.group.ending.is_set or self.group.has_left):
            current = self.group.members().get(member.id)
            if current != member:
                return current
            self._closing.wait(_PAUSE_S)
        return None

    def _open_loopback(self) -> Link:
        link, far_end = memory_links(self._hub, self._hub)
        self._serve_on(far_end, self._info)
        self._serve_on(link, self._info)
        self._links_of_incarnation[self.group.me.incarnation] = [link]
        for end in (link, far_end):
            self.traffic.add_link(self._info.name, end)
        return self._routes.add(self._info.id, link)

    def _dial_with_retries(self, member: Member, within_s: float | None) -> Link:
        deadline_s = None if within_s is None else self._hub.clock.now_s() + within_s
        while True:
            remaining_s = _CONNECT_S if deadline_s is None else min(_CONNECT_S, deadline_s - self._hub.clock.now_s())
            try:
                return self.dial(member, max(0.0, remaining_s))
            except DeadlineExceeded:
                is_member = self.group.fenced is None and self.group.members().get(member.id) == member
                if self.closed or not is_member or remaining_s < _CONNECT_S:
                    raise

    def dial(self, member: Member, within_s: float) -> Link:
        """Open a link to `member`. Return the link to use: an existing one takes precedence."""
        link = self.group.dial(member, within_s=within_s)
        try:
            if self.closed:
                raise ClosedError("RPC was shut down in this process.")
            self._serve_on(link, member.info)
            self._track(link, member)
            hello = self.group.me, member.incarnation, link.frame_bytes, self.group.knows
            link.peer_takes(link.ask("hello", *hello, within_s=_CONNECT_S))
        except BaseException:
            link.close("not welcome")
            raise
        return self._adopt(link, member)  # after the hello, because other threads use it at once

    def _request_dial_back(
        self, member: Member, error: FanwiseError, within_s: float | None, *, dial_as_well: bool
    ) -> Link:
        """Ask `member` to dial us and wait for its link.

        The peer may be waiting for us in the same way, and the link to the coordinator may be lost. Therefore requests
        are repeated, and a worker that was refused at once also dials (`dial_as_well`).
        """
        now_s = self._hub.clock.now_s
        request_at_s = now_s()
        deadline_s = request_at_s + (_CONNECT_S if within_s is None else min(_CONNECT_S, within_s))
        while now_s() < deadline_s:
            event = self._dial_back_events[member.id] = threading.Event()
            if now_s() >= request_at_s:
                self.group.request_dial(member)
                request_at_s = now_s() + _REPEAT_REQUEST_S
            event.wait(min(_RETRY_S, max(0.0, deadline_s - now_s())))
            link = self._routes.link_to(member.id)
            if link is not None:
                return link
            if dial_as_well:
                with contextlib.suppress(DeadlineExceeded, WorkerLostError):
                    return self.dial(member, _DIRECT_S)
            if self.closed or self.group.ending.is_set or self.group.members().get(member.id) != member:
                raise error
        if within_s is not None and within_s < _CONNECT_S:
            raise DeadlineExceeded(f"the link to worker {member.name} was not made within {within_s:.3g} s.")
        address = ":".join(self.group.me.address.split()[:2])
        raise WorkerLostError(
            f"this worker, {self.group.me}, and {member} cannot reach each other. Here: {error.message.rstrip('.')}; "
            f"and when asked to, it did not dial {address} within {_CONNECT_S:.0f} s.\n"
            f"One of the two must be able to open a TCP connection to the other: check their firewalls."
        ) from error

    def dial_back(self, member: Member) -> None:
        """Dial `member`, which cannot reach us. Blocks."""
        try:
            self.to(member.id, by_request=True)
        except FanwiseError as error:
            _log.info("%s asked to be dialed, which failed: %s", member, error)

    # -- accepting -------------------------------------------------------------------------------------------------

    def accept(self, link: Link) -> None:
        """Handle an authenticated connection. Its first request must be `hello`."""
        install_codec(link)
        link.handler = partial(self._on_first_request, link)

    def _on_first_request(self, link: Link, request: Request) -> None:
        if request.method != "hello":
            link.close("protocol error: the first request on a link must be `hello`")
            return
        member, incarnation, frame_bytes, knows = request.args
        refusal = self._group.refusal(member, incarnation, knows) if self._group is not None else None
        if refusal is None and member.incarnation in self._lost:
            refusal = f"{member} was lost: {self._lost[member.incarnation]}"
        if refusal is not None:
            self.traffic.count_refusal(member.name, "not_welcome")
            request.fail(WorkerLostError(refusal))
            return
        self._serve_on(link, member.info)
        self._track(link, member)
        link.peer_takes(frame_bytes)
        request.answer(link.frame_bytes)
        self._adopt(link, member)

    def _serve_on(self, link: Link, peer: WorkerInfo) -> None:
        install_codec(link, self._load_error)
        link.handler = partial(self._handle, peer)
        link.on_late = partial(self._on_late_reply, weakref.ref(link))
        link.open()

    def _on_late_reply(self, of: "weakref.ref[Link]", head: Buffer, buffers: Sequence[memoryview]) -> None:
        """Release the contents of a late reply, on a reading thread."""
        link = of()
        assert link is not None, "the link is being read"
        answer = link.loads(head, buffers)
        if type(answer) is Message:
            self._unwanted(answer, link)

    def _track(self, link: Link, member: Member) -> None:
        """Register a link, so that it is closed when the member is removed."""
        with self._lock:
            self._links_of_incarnation.setdefault(member.incarnation, []).append(link)
        self.traffic.add_link(member.name, link)
        link.on_ended(partial(self._link_ended, member))

    def _adopt(self, link: Link, member: Member) -> Link:
        """Use a link for calls. An existing one takes precedence and keeps their order."""
        link = self._routes.add(member.id, link)
        event = self._dial_back_events.pop(member.id, None)
        if event is not None:
            event.set()
        return link

    # -- the end of a link -----------------------------------------------------------------------------------------

    def _link_ended(self, member: Member, link: Link, ending: Ending) -> None:
        self._routes.remove(member.id, link)
        with self._lock:
            links = self._links_of_incarnation.get(member.incarnation, [])
            if link in links:
                links.remove(link)
            is_lost = not ending.clean and not self.closed and self._is_member(member)
            is_first = is_lost and member.incarnation not in self._lost
            if is_lost:
                self._lost.setdefault(member.incarnation, ending.reason)
            if len(self._links_of_incarnation) > _MAX_TRACKED:
                self._prune()
            others = links.copy() if is_first else []
        if is_first:
            self.group.suspect(member, ending.reason)
            self._routes.fail_all(member.id, WorkerLostError(f"worker {member.name} was lost: {ending.reason}"))
        for other in others:
            other.lose(ending.reason)

    def _is_member(self, member: Member) -> bool:
        return self._group is not None and self._group.members().get(member.id) == member

    def _prune(self) -> None:
        """Remove the older half of incarnations that sent a hello and are not members. Called with the lock."""
        members = {member.incarnation for member in self.group.members().values()}
        stale = [
            incarnation
            for incarnation, links in self._links_of_incarnation.items()
            if not links and incarnation not in members
        ]
        for incarnation in stale[: len(stale) // 2 + 1]:
            self._links_of_incarnation.pop(incarnation, None)
            self._lost.pop(incarnation, None)

    def lost(self, member: Member) -> None:
        """Fail everything that waits for a lost member."""
        links = self._links_of(member)
        self._routes.fail_all(member.id, WorkerLostError(f"worker {member.name} was lost."))
        for link in links:
            link.lose(f"worker {member.name} was lost")

    def left(self, member: Member) -> None:
        """Close the links to a member that has left the group."""
        links = self._links_of(member)
        self._routes.fail_all(member.id, ClosedError(f"worker {member.name} has left."))
        for link in links:
            link.close(f"worker {member.name} has left")

    def _links_of(self, member: Member) -> list[Link]:
        """Remove and return all links of a former member."""
        with self._lock:
            self._lost.pop(member.incarnation, None)
            links = self._links_of_incarnation.pop(member.incarnation, [])
        for link in links:
            self._routes.remove(member.id, link)
        return links

    def fenced(self, why: str) -> None:
        """Fail all pending calls because the group has ended for this worker."""
        with self._lock:
            links = [link for links in self._links_of_incarnation.values() for link in links]
        self._routes.close(lambda: WorkerLostError(why), for_good=False)
        for link in links:
            link.close(why)  # with a goodbye, so that the peer knows the reason

    def close(self) -> None:
        """Close all links, refuse new ones and fail all pending calls."""
        self._closing.set()
        self._routes.close(lambda: ClosedError("RPC was shut down in this process."))
        with self._lock:
            links = [link for links in self._links_of_incarnation.values() for link in links]
        for link in links:
            link.close()
