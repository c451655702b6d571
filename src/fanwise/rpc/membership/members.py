"""Who is in the group: what is said about members, and what one member knows. Quiet: no link, thread or clock.

    Member       one life of a worker; `incarnation` is unique for each life, `id` is the rank
    View         who is alive, and who was declared lost, under a version that only grows
    Hello        how somebody asks to be let in, or comes back after the coordinator has changed
    MemberState  what one member knows: the newest view, and how far its shutdown is

The coordinator (`coordinator.py`) makes views; everybody else takes the newest and forgets the others, so a late or
repeated announcement changes nothing. What happened is the difference of two views: joined, left, lost.

A member that was declared lost is fenced: its incarnation is refused for good, however late it wakes. Nobody has to
remember it for that: it says which view it knows, and who is missing from a view that is not older is no member any
more. The reason is kept until all have read it, and of the newest REASONS_KEPT for whoever asks later.
"""

import re
from dataclasses import dataclass, field

REASONS_KEPT = 64
NAME_SIZE_MAX = 128  # shorter than this, as torch has it
_NAME = re.compile(r"[A-Za-z0-9_:-]+")

Version = tuple[int, int]  # (term of the coordinator, number within the term)
FORGOTTEN = "the group has gone on without it since it was last heard of"


@dataclass(frozen=True, slots=True)
class Member:
    """One life of a worker.

    Attributes:
        id: its rank.
        incarnation: a number that no other life of any worker has.
        address: where its own listener can be reached; opaque here.
        host: the same text for processes that see each other's pids; begins with the host's name.
        pid, started_ticks: its process; both together name it for good on its host.
    """

    name: str
    id: int
    incarnation: int
    address: str
    host: str
    pid: int
    started_ticks: int = 0

    def __str__(self) -> str:
        return f"{self.name!r} (rank {self.id}, process {self.pid} on {self.host.partition('/')[0]})"


@dataclass(frozen=True, slots=True)
class View:
    """Who is in the group as of `version`; `lost` says why, by incarnation, for those last declared lost.

    `group` is the incarnation of the first coordinator. Two groups may meet: where all of one were stopped for so long
    that another was opened in its place. Versions of different groups say nothing about each other's members.
    """

    version: Version
    members: tuple[Member, ...]
    lost: tuple[tuple[int, str], ...] = ()
    coordinator: int = 0  # an incarnation
    group: int = 0

    def member(self, incarnation: int) -> Member | None:
        """The living member of this incarnation."""
        return next((member for member in self.members if member.incarnation == incarnation), None)

    def refusal(self, incarnation: int, knows: Version) -> str | None:
        """Why not to deal with somebody who knows the view `knows`; None: it is a member, or may become one."""
        why = dict(self.lost).get(incarnation)
        if why is None and knows <= self.version and self.member(incarnation) is None:
            return FORGOTTEN
        return why


@dataclass(frozen=True, slots=True)
class Hello:
    """Somebody at the entrance. `view` is None for a newcomer; else what it knew under the coordinator before.

    `leaving`: it comes to say goodbye only.
    """

    member: Member
    world_size: int | None
    view: View | None = None
    arrived: bool = False
    prepared: bool = False
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """Event: `member` is in the group from now on."""

    member: Member


@dataclass(frozen=True, slots=True)
class Left:
    """Event: `member` has left on its own."""

    member: Member


@dataclass(frozen=True, slots=True)
class Lost:
    """Event: `member` is dead, or counts as such; it is refused everywhere."""

    member: Member
    why: str


Event = Joined | Left | Lost


def wrong_name(name: str) -> str | None:
    """What is wrong with a worker's name, or None."""
    if len(name) >= NAME_SIZE_MAX:
        return f"a worker's name must be shorter than {NAME_SIZE_MAX} characters; this one has {len(name)}"
    if not _NAME.fullmatch(name):
        return f"a worker's name must have letters, digits, '_', ':' and '-' only, and at least one; got {name!r}"
    return None


@dataclass(slots=True)
class MemberState:
    """What one member knows. Takes facts from the coordinator, returns what happened.

    Attributes:
        arrived: this member has called its graceful shutdown.
        prepared: all have, and nothing is open anywhere: if the coordinator goes now, the shutdown is over.
        leaving: this member has said goodbye; it is let in by no other coordinator any more.
        fenced: why this member was declared lost; None while it was not.
    """

    me: Member
    world_size: int | None
    view: View | None = None
    arrived: bool = False
    prepared: bool = False
    fenced: str | None = None
    leaving: bool = False
    members: dict[int, Member] = field(default_factory=dict)

    def hello(self) -> Hello:
        """How to ask the coordinator, the first or another one, to be let in."""
        return Hello(self.me, self.world_size, self.view, self.arrived, self.prepared, self.leaving)

    def shown(self, view: View) -> list[Event]:
        """A view has come. An older one than the newest known changes nothing."""
        if self.fenced is not None or (self.view is not None and view.version <= self.view.version):
            return []
        before, self.view = self.view, view
        self.fenced = dict(view.lost).get(self.me.incarnation)
        self.members = {member.id: member for member in view.members}
        return [] if before is None else _differences(before, view)

    def successors(self, without: int) -> list[Member]:
        """Who may be the coordinator after the one of incarnation `without`, the first choice first."""
        return [] if self.view is None else [m for m in self.view.members if m.incarnation != without]


def _differences(before: View, after: View) -> list[Event]:
    lost = dict(after.lost)
    stayed = {member.incarnation for member in after.members}
    known = {member.incarnation for member in before.members}
    events: list[Event] = []
    for member in before.members:
        if member.incarnation not in stayed:
            why = lost.get(member.incarnation)
            events.append(Left(member) if why is None else Lost(member, why))
    events += [Joined(member) for member in after.members if member.incarnation not in known]
    return events
