"""Members of a group, changes of the membership, and the view of one member. Pure: no link, thread or clock.

The coordinator (`coordinator.py`) numbers the views of its group: each join and each departure makes a new one. A new
member receives all members, afterwards each change.

A member that was declared lost is fenced: its incarnation is refused for good, however late it wakes. A worker says
which view it knows when it connects to another, and a worker that is missing from a view that is not older is no member
any more, so no list of lost members has to be kept.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...base.errors import WorkerLostError
from ..messages.ids import WorkerKey
from ..messages.records import control_codec
from ..worker_info import WorkerInfo

_RANK = operator.itemgetter(0)


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a worker.

    Attributes:
        id: the rank.
        incarnation: number of this incarnation, unique among all workers.
        address: address of its own listener, in the form that its rendezvous uses.
        host: equal for processes that see each other's pids; begins with the name of the host.
        pid, started_ticks: its process; both together are unique on a host until it reboots.
        has_allow_list: True if it accepts only plain calls.
    """

    name: str
    id: int
    incarnation: int
    address: str
    host: str
    pid: int
    started_ticks: int = 0
    has_allow_list: bool = False

    @property
    def key(self) -> WorkerKey:
        return WorkerKey(self.id, self.incarnation)

    @property
    def info(self) -> WorkerInfo:
        return WorkerInfo(self.name, self.id)

    @property
    def process(self) -> tuple[str, int, int]:
        """The process, unique on all hosts."""
        return self.host, self.pid, self.started_ticks

    def __str__(self) -> str:
        return f"{self.name!r} (rank {self.id}, process {self.pid} on {self.host.partition('/')[0]})"


@dataclass(frozen=True, slots=True)
class Departure:
    """The member of rank `id` was lost for the reason `why`, or has left if that is None."""

    id: int
    why: str | None


@dataclass(frozen=True, slots=True)
class Update:
    """View `number` of the group: the change that made it or, for a new member, all members."""

    number: int
    changes: tuple[Member | Departure, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker asks to join."""

    member: Member
    world_size: int | None


control_codec.register(Member, Departure, Update, Hello, first_code=8)


@dataclass(frozen=True, slots=True)
class Joined:
    """Event: `member` has joined the group."""

    member: Member


@dataclass(frozen=True, slots=True)
class Left:
    """Event: `member` has left the group by `shutdown`."""

    member: Member


@dataclass(frozen=True, slots=True)
class Lost:
    """Event: `member` is dead or unreachable, and is refused from now on."""

    member: Member
    why: str


Event = Joined | Left | Lost


def lives(key: WorkerKey, members: Mapping[int, Member]) -> bool:
    """Return True if this incarnation of a worker is one of `members`, which are by rank."""
    member = members.get(key.id)
    return member is not None and member.incarnation == key.incarnation


def no_member(
    id: int, members: Mapping[int, Member], former: Mapping[int, Member], fenced: str | None
) -> WorkerLostError:
    """Return the error for a call to a rank that is not among `members`, with the attributes of a `Group`."""
    if fenced is not None:
        return WorkerLostError(fenced)
    name = f"{former[id].name} (rank {id})" if id in former else str(id)
    present = ", ".join(f"{member.name} ({rank})" for rank, member in sorted(members.items()))
    return WorkerLostError(f"worker {name} is not, or no longer, in the group; there are {present}.")


@dataclass(slots=True)
class MemberState:
    """The view of one member. Updates of the coordinator change it and return events.

    Attributes:
        number: the number of the view; 0 before the first update.
        members: by rank. Other threads read it, so it is replaced and never changed.
        former: the last incarnation of each rank that is no member. Replaced like `members`.
    """

    number: int = 0
    members: dict[int, Member] = field(default_factory=dict)
    former: dict[int, Member] = field(default_factory=dict)

    def apply(self, update: Update) -> list[Event]:
        """Apply an update. The first one, with all members, returns no events."""
        is_first = self.number == 0
        assert is_first or update.number == self.number + 1, f"update {update.number} follows view {self.number}"
        members, former, events = dict(self.members), dict(self.former), list[Event]()
        for change in update.changes:
            if isinstance(change, Member):
                members[change.id] = change
                events.append(Joined(change))
            else:
                member = former[change.id] = members.pop(change.id)
                events.append(Left(member) if change.why is None else Lost(member, change.why))
        self.former = former  # first, so that other threads find a former member in one of the two
        self.number, self.members = update.number, dict(sorted(members.items(), key=_RANK))
        return [] if is_first else events

    def clear(self, me: Member) -> list[Member]:
        """Remove all members except `me` and return them."""
        removed = [member for member in self.members.values() if member != me]
        self.former = {**self.former, **{member.id: member for member in removed}}
        self.members = {me.id: me}
        return removed

    def refuses(self, member: Member, known_number: int) -> bool:
        """Return True if `member`, which knows view `known_number`, was a member and is none any more."""
        return known_number <= self.number and not lives(member.key, self.members)
