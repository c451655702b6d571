"""Records of members and views, and the state of one member. Pure: no link, thread or clock.

    Member       one life of a worker; `incarnation` is unique for each life, `id` is the rank
    View         who is alive, and who was declared lost, under a version that only grows
    Change       what a view has that an older one of the same coordinator had not
    Hello        how somebody asks to be let in, or comes back after the coordinator has changed
    MemberState  what one member knows: the newest view, and how far its shutdown is

The coordinator (`coordinator.py`) makes views; everybody else takes the newest and forgets the others, so a late or
repeated announcement changes nothing. What happened is the difference of two views: joined, left, lost. Who comes is
told the whole view, and from then on what has changed since the last one that it was told.

A member that was declared lost is fenced: its incarnation is refused for good, however late it wakes. Nobody has to
remember it for that: it says which view it knows, and who is missing from a view that is not older is no member any
more. The reason is kept until all have read it, and of the newest REASONS_KEPT for whoever asks later.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...base.errors import WorkerLostError
from ..messages.ids import WorkerKey
from ..messages.records import control_codec
from ..worker_info import WorkerInfo

REASONS_KEPT = 64

_ID = operator.attrgetter("id")

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
        """This life of the worker."""
        return WorkerKey(self.id, self.incarnation)

    @property
    def info(self) -> WorkerInfo:
        """The worker, as users see it."""
        return WorkerInfo(self.name, self.id)

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
class Change:
    """What makes the view of number `since` the one of `version`, both of one term of one coordinator.

    Attributes:
        gone: the ranks whose members are no more in it; another life of theirs may have come.
        came: who is in the second only.
        lost: what `View.lost` has more. forgotten: what it has no more, by incarnation.
    """

    version: Version
    since: int
    gone: tuple[int, ...]
    came: tuple[Member, ...]
    lost: tuple[tuple[int, str], ...]
    forgotten: tuple[int, ...]

    @classmethod
    def between(cls, before: View, after: View) -> "Change":
        """What has changed; of two views of one term and group."""
        lost_before, lost_after = dict(before.lost), dict(after.lost)
        known = {member.incarnation for member in before.members}
        stayed = {member.incarnation for member in after.members}
        return cls(
            after.version,
            before.version[1],
            tuple(member.id for member in before.members if member.incarnation not in stayed),
            tuple(member for member in after.members if member.incarnation not in known),
            tuple((incarnation, why) for incarnation, why in after.lost if incarnation not in lost_before),
            tuple(incarnation for incarnation in lost_before if incarnation not in lost_after),
        )

    def fits(self, before: View, members: Mapping[int, Member]) -> bool:
        """Whether `before`, which has these members by id, is the view that it is for."""
        return before.version == (self.version[0], self.since) and all(rank in members for rank in self.gone)

    def of(self, before: View, members: Mapping[int, Member]) -> View:
        """The view after `before`, which has these members by id, where it `fits`."""
        after, forgotten = dict(members), set(self.forgotten)
        for rank in self.gone:
            del after[rank]
        after.update((member.id, member) for member in self.came)
        return View(
            self.version,
            tuple(map(after.__getitem__, sorted(after))),
            (*(known for known in before.lost if known[0] not in forgotten), *self.lost),
            before.coordinator,
            before.group,
        )


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


control_codec.register(Member, View, Change, Hello, first_code=8)


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


def lives(key: WorkerKey, members: Mapping[int, Member]) -> bool:
    """Whether this life of a worker is among these, which are by id."""
    member = members.get(key.id)
    return member is not None and member.incarnation == key.incarnation


def no_member(id: int, members: Mapping[int, Member], former: Mapping[int, Member]) -> WorkerLostError:
    """The error of whoever asks for a worker that is not there, given who is and who was last, by id."""
    name = f"{former[id].name} (rank {id})" if id in former else str(id)
    there = ", ".join(f"{other.name} ({rank})" for rank, other in sorted(members.items()))
    return WorkerLostError(f"worker {name} is not, or no longer, in the group; there are {there}.")


@dataclass(slots=True)
class MemberState:
    """What one member knows. Takes facts from the coordinator, returns what happened.

    Attributes:
        arrived: this member has called its graceful shutdown.
        prepared: all have, and nothing is open anywhere: if the coordinator goes now, the shutdown is over.
        leaving: this member has said goodbye; it is let in by no other coordinator any more.
        fenced: why this member was declared lost; None while it was not.
        members: who is there, by id.
        former: who is not any more, by id: the last life of each.
    """

    me: Member
    world_size: int | None
    view: View | None = None
    arrived: bool = False
    prepared: bool = False
    fenced: str | None = None
    leaving: bool = False
    members: dict[int, Member] = field(default_factory=dict)
    former: dict[int, Member] = field(default_factory=dict)

    def hello(self) -> Hello:
        """How to ask the coordinator, the first or another one, to be let in."""
        return Hello(self.me, self.world_size, self.view, self.arrived, self.prepared, self.leaving)

    def shown(self, told: View | Change) -> list[Event]:
        """A view has come, whole or as a change. An older one than the newest known changes nothing.

        ValueError when it changes a view that is not known here.
        """
        before = self.view
        if self.fenced is not None or (before is not None and told.version <= before.version):
            return []
        known, gone, came = self.members, [], []
        if isinstance(told, View):
            self.view = told
            if before is not None:
                were, are = ({member.incarnation for member in view.members} for view in (before, told))
                gone = [member for member in before.members if member.incarnation not in are]
                came = [member for member in told.members if member.incarnation not in were]
        elif before is not None and told.fits(before, known):
            self.view = told.of(before, known)
            gone, came = [known[rank] for rank in told.gone], list(told.came)
        else:
            newest = None if before is None else before.version
            raise ValueError(f"a change of view {told.since} to {told.version} came, and the newest known is {newest}")
        self.members = dict(zip(map(_ID, self.view.members), self.view.members, strict=True))
        if gone:  # another one, as other threads may be looking at it
            self.former = {**self.former, **{one.id: one for one in gone}}
        lost = dict(self.view.lost)
        self.fenced = lost.get(self.me.incarnation)
        left = [Left(one) if (why := lost.get(one.incarnation)) is None else Lost(one, why) for one in gone]
        return [*left, *map(Joined, came)]

    def successors(self, without: int) -> list[Member]:
        """Who may be the coordinator after the one of incarnation `without`, the first choice first."""
        return [] if self.view is None else [m for m in self.view.members if m.incarnation != without]
