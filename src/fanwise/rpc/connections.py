"""The links of this worker to the agents of its peers, opened on first use.

    to(id)          the open link, or: dial --> hello; both sides use it for their calls
                    a peer on another host that we cannot reach (NAT) is asked, through the coordinator, to dial us
    get_open(id), get_without_waiting(id)   the open link, or the loopback link
    queue(id, call) send the call when another thread has opened a link

A link outlives its connections (`links.transports.resumable`). The end of a link without a goodbye is the loss of its
worker: calls to it fail, no other link to it is opened or accepted, and the coordinator removes it from the group.

If two workers dial each other at the same time there are two links. The calls of a worker stay on one, which keeps
their order, and both end with the member.

Received messages are passed to `handle`.
"""

import contextlib
import logging
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ..base.errors import ClosedError, DeadlineExceeded, FanwiseError, WorkerLostError
from ..links.codec import load_error
from ..links.hub import Hub
from ..links.link import Link, Request
from ..links.peers import Ending
from ..links.transports.unix import link_pair
from ..links.transports.wires import Buffer
from .membership.group import Group
from .membership.members import Member, no_member
from .messages.messages import Message, install_codec
from .routes import QueuedItem, Routes
from .traffic import Traffic
from .worker_info import WorkerInfo

_log = logging.getLogger("fanwise.rpc")

_CONNECT_S = 10.0
# A peer on another host that does not accept in this time is asked to dial us.
_DIRECT_S = 2.0
# A peer that refuses a connection is dialed again for so long while it is a member: the connection may have been cut
# during the handshake, before it is a link, or the group may be about to report that the peer was lost.
_REDIAL_S = 1.0
_PAUSE_S = 0.005


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
        self.routes = Routes(hub)
        self.get_open = self.routes.get_open
        self._lock = threading.Lock()
        self._links: dict[int, list[Link]] = {}  # all links to each incarnation
        self._lost: dict[int, str] = {}  # why incarnations were lost that the group has not removed yet
        self._connecting: dict[int, threading.RLock] = {}  # by id, held while a link is opened
        self._early: list[tuple[Link, Request]] = []  # hellos of members that know earlier that the group is complete
        self.traffic = Traffic()

    @property
    def group(self) -> Group:
        assert self._group is not None, "set before the first call"
        return self._group

    def joined(self, group: Group) -> None:
        """Allow links with the members of the group. Those that dialed earlier are accepted now."""
        with self._lock:
            self._group = group
        for link, request in self._early:
            try:
                self._on_hello(link, request)
            except Exception as error:  # as the reader of a link does
                with contextlib.suppress(FanwiseError):
                    request.fail(error)
        self._early.clear()

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    @property
    def num_open(self) -> int:
        """Number of calls of this worker that are queued or wait for a reply."""
        return self.routes.num_open

    # -- dialing ---------------------------------------------------------------------------------------------------

    def to(self, id: int, *, within_s: float | None = None, may_request_dial: bool = True) -> Link:
        """Return the link for calls to worker `id`, opening one if necessary. Blocks for at most `within_s` seconds.

        `may_request_dial`: ask a peer that cannot be reached to dial this worker. Raises WorkerLostError,
        DeadlineExceeded, ClosedError.
        """
        link = self.get_open(id)
        if link is not None:
            return link
        deadline_s = math.inf if within_s is None else self._hub.clock.now_s() + within_s
        with self._lock:
            connecting = self._connecting.setdefault(id, threading.RLock())
        try:  # around the acquisition too, because an interrupt may follow it at once
            if not connecting.acquire(blocking=False):
                with self._waiting():
                    limit_s = -1 if within_s is None else min(within_s, threading.TIMEOUT_MAX)
                    is_acquired = connecting.acquire(timeout=limit_s)
                if not is_acquired:
                    raise DeadlineExceeded(f"the link to worker {id} was not made within {within_s} s.")
            link = self.routes.link_to(id) or self._open(self._member(id), deadline_s, may_request_dial)
            return self.routes.flush(id, link)
        finally:
            try:  # not `suppress`, which could be interrupted itself
                connecting.release()
            except RuntimeError:  # this thread did not acquire it
                pass

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
        queued = self.routes.queue(id, call)
        if queued == "first":
            self._outside(partial(self._open_for_queue, id))
        return queued != "full"

    def _open_for_queue(self, id: int) -> None:
        while self.routes.is_awaited(id):
            try:
                self.to(id)
            except FanwiseError as error:
                self.routes.fail_all(id, error, unless_linked=True)
            except BaseException as error:  # such as too many open files
                self.routes.fail_all(id, WorkerLostError(f"no link to worker {id} could be opened: {error}"))
                raise

    def dial_back(self, member: Member) -> None:
        """Dial `member`, which cannot reach us. Blocks."""
        try:
            self.to(member.id, may_request_dial=False)
        except FanwiseError as error:
            _log.info("%s asked to be dialed, which failed: %s", member, error)

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

    def _is_member(self, member: Member) -> bool:
        return self._group is not None and self._group.members().get(member.id) == member

    def _open(self, member: Member, deadline_s: float, may_request_dial: bool) -> Link:
        if member.id == self._info.id:
            return self._open_loopback()
        with self._waiting():
            try:
                return self._dial_repeatedly(member, deadline_s)
            except WorkerLostError as error:
                if not may_request_dial or member.host == self.group.me.host:
                    raise
                return self._request_dial(member, error, deadline_s)

    def _open_loopback(self) -> Link:
        link, far_end = link_pair(self._hub, self._hub)
        self._serve_on(far_end, self._info)
        self._serve_on(link, self._info)
        self._links[self.group.me.incarnation] = [link]
        for end in (link, far_end):
            self.traffic.add_link(self._info.name, end)
        return self.routes.add(self._info.id, link)

    def _dial_repeatedly(self, member: Member, deadline_s: float) -> Link:
        """Dial a peer that is busy and does not reply while it is a member; one that refuses, for a limited time."""
        now_s = self._hub.clock.now_s
        refused_until_s = min(deadline_s, now_s() + _REDIAL_S)
        limit_s = _CONNECT_S if member.host == self.group.me.host else _DIRECT_S
        while True:
            try:
                return self.dial(member, max(0.0, min(limit_s, deadline_s - now_s())))
            except DeadlineExceeded:
                if self.closed or not self._is_member(member) or now_s() >= deadline_s:
                    raise
                limit_s = _CONNECT_S
            except WorkerLostError:
                if self._should_stop_dialing(member) or now_s() >= refused_until_s:
                    raise
            self._closing.wait(_PAUSE_S)

    def _should_stop_dialing(self, member: Member) -> bool:
        return self.closed or self.group.ending.is_set or not self._is_member(member)

    def dial(self, member: Member, within_s: float) -> Link:
        """Open a link to `member`. Return the link to use: an existing one takes precedence."""
        deadline_s = self._hub.clock.now_s() + within_s
        link = self.group.dial(member, within_s=within_s)
        try:
            if self.closed:
                raise ClosedError("RPC was shut down in this process.")
            self._serve_on(link, member.info)
            self._track(link, member)
            hello = self.group.me, member.incarnation, link.frame_bytes, self.group.knows
            link.peer_takes(link.ask("hello", *hello, within_s=max(0.0, deadline_s - self._hub.clock.now_s())))
        except BaseException:
            link.close("not welcome")
            raise
        return self.routes.add(member.id, link)  # after the hello, because other threads use it at once

    def _request_dial(self, member: Member, error: FanwiseError, deadline_s: float) -> Link:
        """Ask `member` to dial us and wait for its link."""
        now_s = self._hub.clock.now_s
        limit_s = now_s() + _CONNECT_S
        self.group.request_dial(member)
        while (link := self.routes.link_to(member.id)) is None:
            if self._should_stop_dialing(member):
                raise error
            if now_s() >= deadline_s:
                raise DeadlineExceeded(f"the link to worker {member.name} was not made in time.")
            if now_s() >= limit_s:
                address = ":".join(self.group.me.address.split()[:2])
                raise WorkerLostError(
                    f"this worker, {self.group.me}, and {member} cannot reach each other. "
                    f"Here: {error.message.rstrip('.')}; and when asked to, it did not dial {address} within "
                    f"{_CONNECT_S:.0f} s.\n"
                    f"One of the two must be able to open a TCP connection to the other: check their firewalls."
                ) from error
            self._closing.wait(_PAUSE_S)
        return link

    # -- accepting -------------------------------------------------------------------------------------------------

    def accept(self, link: Link) -> None:
        """Handle an authenticated connection. Its first request must be `hello`."""
        install_codec(link)
        link.handler = partial(self._on_first_request, link)

    def _on_first_request(self, link: Link, request: Request) -> None:
        if request.method != "hello":
            link.close("protocol error: the first request on a link must be `hello`")
            return
        with self._lock:
            if self._group is None:
                self._early.append((link, request))
                return
        self._on_hello(link, request)

    def _on_hello(self, link: Link, request: Request) -> None:
        member, incarnation, frame_bytes, knows = request.args
        refusal = self.group.refusal(member, incarnation, knows)
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
        self.routes.add(member.id, link)

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
            self._links.setdefault(member.incarnation, []).append(link)
        self.traffic.add_link(member.name, link)
        link.on_ended(partial(self._on_link_ended, member))

    # -- the end of a link -----------------------------------------------------------------------------------------

    def _on_link_ended(self, member: Member, link: Link, ending: Ending) -> None:
        self.routes.remove(member.id, link)
        with self._lock:
            open_links = [known for known in self._links.pop(member.incarnation, []) if known is not link]
            if open_links:
                self._links[member.incarnation] = open_links
            if ending.clean or self.closed or not self._is_member(member) or member.incarnation in self._lost:
                return
            self._lost[member.incarnation] = ending.reason
        self.group.suspect(member, ending.reason)
        self.routes.fail_all(member.id, WorkerLostError(f"worker {member.name} was lost: {ending.reason}"))
        for open_link in open_links:
            open_link.lose(ending.reason)

    def lost(self, member: Member) -> None:
        """Fail everything that waits for a lost member."""
        self._remove(member, WorkerLostError(f"worker {member.name} was lost."), Link.lose)

    def left(self, member: Member) -> None:
        """Close the links to a member that has left the group."""
        self._remove(member, ClosedError(f"worker {member.name} has left."), Link.close)

    def _remove(self, member: Member, error: FanwiseError, end: Callable[[Link, str], None]) -> None:
        with self._lock:
            self._lost.pop(member.incarnation, None)
            links = self._links.pop(member.incarnation, [])
        for link in links:
            self.routes.remove(member.id, link)
        self.routes.fail_all(member.id, error)
        for link in links:
            end(link, error.message.rstrip("."))

    def fenced(self, why: str) -> None:
        """Fail all pending calls because the group has ended for this worker."""
        links = self._all_links()
        self.routes.close(lambda: WorkerLostError(why), for_good=False)
        for link in links:
            link.close(why)  # with a goodbye, so that the peer knows the reason

    def close(self) -> None:
        """Close all links, refuse new ones and fail all pending calls."""
        self._closing.set()
        self.routes.close(lambda: ClosedError("RPC was shut down in this process."))
        for link in self._all_links():
            link.close()

    def _all_links(self) -> list[Link]:
        with self._lock:
            return [link for links in self._links.values() for link in links]
