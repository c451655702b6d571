"""Why calls fail whose link was lost: the worker is lost, or it lives and only the link was cut.

    ask(member, link, fail)  --> looks until a fact decides --> fail(how to make the error of each call)

Facts: the group says that it is lost, or has left; its process, on this host, has ended; it has answered over a new
link. When nothing of this is known in 2 s, a worker of this host lives, for its process is there. Of another host the
group has more time to decide, as it hears of a cut when we do; then it is out of reach.
Looks on the hub's thread, and never blocks.
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

# A process that ends closes its sockets a moment before it counts as ended.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.02
_DECIDED_S, _DECIDED_FAR_S = 2.0, 10.0


class Links(Protocol):
    """What is asked of the links of this worker."""

    @property
    def closed(self) -> bool: ...
    @property
    def group(self) -> "Group": ...


class _Case(NamedTuple):
    member: Member
    reason: str
    until_s: float
    fail: Fail
    has_answered: bool = False  # since, over a new link


class LinkLosses:
    """See the module."""

    def __init__(self, hub: Hub, links: Links) -> None:
        self._hub = hub
        self._links = links
        self._lock = threading.Lock()
        self._cases: list[_Case] = []
        self._is_due = False
        self._pause_s = _FIRST_PAUSE_S

    @property
    def num_open(self) -> int:
        """Links whose calls wait to hear what became of it."""
        return len(self._cases)

    def ask(self, member: Member, link: Link, fail: Fail) -> None:
        """The link to `member` was lost, with calls open. By any thread."""
        reason = link.ending.reason if link.ending is not None else ""
        is_here = member.host == self._links.group.me.host
        until_s = self._hub.clock.now_s() + (_DECIDED_S if is_here else _DECIDED_FAR_S)
        with self._lock:
            self._cases.append(_Case(member, reason, until_s, fail))
            self._pause_s = _FIRST_PAUSE_S
        self._hub.call_soon(self.look)

    def answered(self, member: Member) -> None:
        """`member` has answered just now, over a new link or about one that had ended. By any thread."""
        with self._lock:
            self._cases = [case._replace(has_answered=True) if case.member == member else case for case in self._cases]
        if self._cases:
            self._hub.call_soon(self.look)

    def look(self) -> None:
        """Decide what can be decided. On the hub's thread."""
        decided = []
        with self._lock:
            cases, self._cases = self._cases, []
            for case in cases:
                error = self._cause_of(case)
                if error is None:
                    self._cases.append(case)
                else:
                    decided.append((case, error))
            again = bool(self._cases) and not self._is_due
            self._is_due = self._is_due or again
        for case, error in decided:
            case.fail(error)
        if again:
            self._hub.call_at(self._hub.clock.now_s() + self._pause_s, self._look_again)
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _look_again(self) -> None:
        self._is_due = False
        self.look()

    def close(self) -> None:
        """This worker ends. By any thread."""
        with self._lock:
            cases, self._cases = self._cases, []
        for case in cases:
            case.fail(lambda _: ClosedError("RPC was shut down in this process."))

    def _cause_of(self, case: _Case) -> Callable[[str], FanwiseError] | None:
        member, group = case.member, self._links.group
        if self._links.closed:
            return lambda _: ClosedError("RPC was shut down in this process.")
        if group.fenced is not None:
            return _lost(case, f"this worker was declared lost by the others: {group.fenced}")
        if group.members().get(member.id) != member:
            return _lost(case, "it was lost, as the group says")
        is_here = member.host == group.me.host
        if is_here and has_ended(member.pid, member.started_ticks):
            return _lost(case, "its process has ended")
        if case.has_answered:
            return _cut(case)
        if self._hub.clock.now_s() < case.until_s:
            return None
        return _cut(case) if is_here else _lost(case, "it is out of reach")


def _lost(case: _Case, why: str) -> Callable[[str], FanwiseError]:
    return lambda method: WorkerLostError(
        f"{method!r} was not answered: the link has ended ({case.reason}), and {why}."
    )


def _cut(case: _Case) -> Callable[[str], FanwiseError]:
    member = case.member
    return lambda method: LinkLostError(
        f"the link to worker {member.name} (rank {member.id}) was cut before {method!r} was answered ({case.reason}); "
        f"the worker lives.\nThe call may have run there, or not. The next call makes a new link: repeat this one if "
        f"it does no harm to run it twice."
    )
