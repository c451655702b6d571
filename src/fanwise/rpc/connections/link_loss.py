"""Decides the error of calls whose link was lost: the worker is lost, or only the link.

    add(member, link, fail)  --> checked until a fact decides --> fail(function that creates the error of each call)

Facts: the group reports the worker as lost or left; its process, on this host, has ended; it has replied over a new
link. Without any of these within 2 s, a worker of this host is alive, because its process runs. For a worker of another
host the group has more time to decide; then it is unreachable. Runs on the hub's thread and does not block.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...base.errors import ClosedError, FanwiseError, LinkLostError, WorkerLostError
from ...links.hub import Hub
from ...links.link import Fail, Link
from ...links.process_state import has_ended
from ..membership.members import Member

if TYPE_CHECKING:
    from ..membership.group import Group

# A terminating process closes its sockets shortly before it counts as ended.
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.001, 0.02
_DECISION_S, _REMOTE_DECISION_S = 2.0, 10.0


class Connections(Protocol):
    @property
    def closed(self) -> bool: ...
    @property
    def group(self) -> "Group": ...


class _PendingFailure(NamedTuple):
    member: Member
    reason: str
    deadline_s: float
    fail: Fail
    has_replied: bool = False  # over a new link


class LinkLossResolver:
    """See the module."""

    def __init__(self, hub: Hub, links: Connections) -> None:
        self._hub = hub
        self._links = links
        self._lock = threading.Lock()
        self._pending: list[_PendingFailure] = []
        self._is_due = False
        self._pause_s = _MIN_PAUSE_S

    @property
    def num_open(self) -> int:
        """Number of links whose pending calls wait for a decision."""
        return len(self._pending)

    def add(self, member: Member, link: Link, fail: Fail) -> None:
        """Decide about the pending calls of a lost link. Thread-safe."""
        reason = link.ending.reason if link.ending is not None else ""
        is_local = member.host == self._links.group.me.host
        deadline_s = self._hub.clock.now_s() + (_DECISION_S if is_local else _REMOTE_DECISION_S)
        with self._lock:
            self._pending.append(_PendingFailure(member, reason, deadline_s, fail))
            self._pause_s = _MIN_PAUSE_S
        self._hub.call_soon(self.resolve)

    def on_reply(self, member: Member) -> None:
        """Record that `member` has replied over a new link. Thread-safe."""
        with self._lock:
            self._pending = [
                failure._replace(has_replied=True) if failure.member == member else failure for failure in self._pending
            ]
        if self._pending:
            self._hub.call_soon(self.resolve)

    def resolve(self) -> None:
        """Decide all failures that can be decided, on the hub's thread."""
        resolved = []
        with self._lock:
            pending, self._pending = self._pending, []
            for failure in pending:
                error = self._decide(failure)
                if error is None:
                    self._pending.append(failure)
                else:
                    resolved.append((failure, error))
            needs_timer = bool(self._pending) and not self._is_due
            self._is_due = self._is_due or needs_timer
        for failure, error in resolved:
            failure.fail(error)
        if needs_timer:
            self._hub.call_at(self._hub.clock.now_s() + self._pause_s, self._resolve_again)
            self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)

    def _resolve_again(self) -> None:
        self._is_due = False
        self.resolve()

    def close(self) -> None:
        """Fail all pending calls. Thread-safe."""
        with self._lock:
            pending, self._pending = self._pending, []
        for failure in pending:
            failure.fail(lambda _: ClosedError("RPC was shut down in this process."))

    def _decide(self, failure: _PendingFailure) -> Callable[[str], FanwiseError] | None:
        member, group = failure.member, self._links.group
        if self._links.closed:
            return lambda _: ClosedError("RPC was shut down in this process.")
        if group.fenced is not None:
            return lambda method: WorkerLostError(f"{method!r} was not answered: {group.fenced}")
        if group.members().get(member.id) != member:
            return _worker_lost(failure, "the group has declared it lost")
        is_local = member.host == group.me.host
        if is_local and has_ended(member.pid, member.started_ticks):
            return _worker_lost(failure, "its process has ended")
        if failure.has_replied:
            return _link_lost(failure)
        if self._hub.clock.now_s() < failure.deadline_s:
            return None
        return _link_lost(failure) if is_local else _worker_lost(failure, "it is unreachable")


def _worker_lost(failure: _PendingFailure, why: str) -> Callable[[str], FanwiseError]:
    return lambda method: WorkerLostError(
        f"{method!r} was not answered: the link has ended ({failure.reason}), and {why}."
    )


def _link_lost(failure: _PendingFailure) -> Callable[[str], FanwiseError]:
    member = failure.member
    return lambda method: LinkLostError(
        f"the link to worker {member.name} (rank {member.id}) was cut before {method!r} was answered "
        f"({failure.reason}); the worker is alive.\nThe call may have run there. The next call opens a new link: "
        f"repeat this one if it is harmless to run it twice."
    )
