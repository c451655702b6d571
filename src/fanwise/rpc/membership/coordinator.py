"""Decisions of the coordinator of a group. A pure state machine: methods take events and return actions.

    hello  --> Refuse, or SendUpdate and Confirm   Confirm when all members have confirmed the view with the new member
    leave  --> SendUpdate, Confirm                 Confirm when all members have confirmed the view without it
    lose, suspect --> Refuse, SendUpdate
    counted --> RequestCounts, StartTimer, Confirm: the barrier of a graceful shutdown

The coordinator is a member of the group like the others. Members are identified by their incarnation. A static group
sends no updates before all its ranks have joined. Then it compares the names, so that all workers learn of a duplicate.

The barrier: each member reports (open calls, calls ever started) in rounds; it begins round 0 itself, by its shutdown.
Two equal rounds in a row without open calls end the shutdown. Members that leave or are lost are not waited for.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from ..messages.records import control_codec
from ..worker_info import name_error
from .members import Departure, Hello, Member, Update


@dataclass(frozen=True, slots=True)
class SendUpdate:
    """Action: send `to` a change of the membership. It answers with `confirm`."""

    to: int
    update: Update


@dataclass(frozen=True, slots=True)
class Confirm:
    """Action: tell `to` that all know that it has joined, or left, or that the shutdown of the group is complete."""

    to: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Action: tell `to` that it is no member, and close its link.

    "refused": it does not fit into the group. "again": it may join again; a member was declared lost.
    """

    to: int
    kind: Literal["refused", "again"]
    text: str


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Action: ask `to` for its numbers of calls."""

    to: int
    round: int


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Action: calls are still open; call `next_round(round)` after a pause."""

    round: int


@dataclass(frozen=True, slots=True)
class RequestDial:
    """Action: ask `to` to dial a member that cannot dial it."""

    to: int
    incarnation: int


control_codec.register(SendUpdate, Confirm, Refuse, RequestCounts, RequestDial, first_code=64)

Action = SendUpdate | Confirm | Refuse | RequestCounts | StartTimer | RequestDial


@dataclass(slots=True)
class Barrier:
    """State of the graceful shutdown of a static group."""

    round: int = 0
    is_complete: bool = False
    is_pausing: bool = False
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    previous_counts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def step(self, members: Collection[int]) -> list[Action]:
        """Return the actions that follow from the events so far. Nobody joins while rounds are counted."""
        if self.is_complete or self.is_pausing or not members or not self.counts.keys() >= set(members):
            return []
        counts = {incarnation: self.counts[incarnation] for incarnation in members}
        is_repeated = all(self.previous_counts.get(incarnation) == counts[incarnation] for incarnation in members)
        self.previous_counts = counts
        if any(num_open for num_open, _ in counts.values()):
            self.is_pausing = True
            return [StartTimer(self.round + 1)]
        if not is_repeated:
            return self.begin_round(members)
        self.is_complete = True
        return [Confirm(to) for to in sorted(members)]

    def begin_round(self, members: Collection[int]) -> list[Action]:
        self.round += 1
        self.is_pausing, self.counts = False, {}
        return [RequestCounts(to, self.round) for to in sorted(members)]


@dataclass(frozen=True, slots=True)
class _Confirmation:
    """Members that have yet to confirm a view, and those that wait for it: the new member, or the departing one."""

    missing: set[int]
    waiting: Collection[int]


class Coordinator:
    """See the module.

    Attributes:
        members: by rank.
        number: the number of the newest view.
        is_forming: True until all ranks of a static group have joined.
    """

    def __init__(self, me: Member, *, world_size: int | None) -> None:
        self.me = me
        self.world_size = world_size
        self.members: dict[int, Member] = {}
        self.number = 0
        self.is_forming = world_size is not None
        self.barrier = Barrier()
        self._is_closing = False
        self._confirmations: dict[int, _Confirmation] = {}  # by number of the view

    # -- queries ---------------------------------------------------------------------------------------------------

    def member(self, incarnation: int) -> Member | None:
        """Return the member of this incarnation."""
        return next((member for member in self.members.values() if member.incarnation == incarnation), None)

    def pending_summary(self) -> str:
        """Return why a join or a shutdown is not complete, for the message of a timeout."""
        members, barrier = self.members.values(), self.barrier
        if self.is_forming:
            missing = ", ".join(str(rank) for rank in range(self.world_size or 0) if rank not in self.members)
            return f"{len(members)} of {self.world_size} workers are there; missing: rank {missing}"
        absent = [str(member) for member in members if member.incarnation not in barrier.counts]
        if absent and barrier.counts and barrier.round == 0:
            return f"these have not called shutdown: {', '.join(absent)}"
        unconfirmed = set[int]().union(*(confirmation.missing for confirmation in self._confirmations.values()))
        slow = [str(member) for member in members if member.incarnation in unconfirmed]
        if slow:
            return f"these have not answered yet: {', '.join(slow)}"
        counts = barrier.previous_counts | barrier.counts
        busy = [str(member) for member in members if counts.get(member.incarnation, (0, 0))[0]]
        return f"calls were still open{': made by, or running on, ' if busy else ''}{', '.join(busy)}"

    # -- events ----------------------------------------------------------------------------------------------------

    def hello(self, hello: Hello) -> list[Action]:
        """A worker asks to join."""
        refusal = self._refusal(hello)
        if refusal is not None:
            return [refusal]
        member = hello.member
        self.members[member.id] = member
        if self.is_forming:
            return self._form()
        known_members = self._incarnations() - {member.incarnation}
        actions = self._publish(member, known_members, waiting=[member.incarnation])
        return [*actions, self._welcome(member.incarnation)]

    def confirm(self, member: int, number: int) -> list[Action]:
        """A member has applied an update."""
        confirmation = self._confirmations.get(number)
        if confirmation is None:
            return []
        confirmation.missing.discard(member)
        return self._complete(number)

    def leave(self, member: int) -> list[Action]:
        """A member leaves, or has closed its link."""
        former = self._remove(member)
        if former is None or self.is_forming:
            return [Confirm(member)]
        return [*self._publish(Departure(former.id, None), self._incarnations(), waiting=[member]), *self._settle()]

    def lose(self, member: int, why: str) -> list[Action]:
        """A member is lost. Without effect if it is no member."""
        former = self._remove(member)
        if former is None:
            return []
        refusal = Refuse(member, "again", why)
        if self.is_forming:
            return [refusal]
        return [refusal, *self._publish(Departure(former.id, why), self._incarnations()), *self._settle()]

    def suspect(self, member: int, peer: int, why: str) -> list[Action]:
        """The link between two members has ended, so one of them is lost. The coordinator stays."""
        return self.lose(member if peer == self.me.incarnation else peer, why)

    def request_dial(self, member: int, to: int) -> list[Action]:
        """A member cannot dial `to`."""
        return [RequestDial(to, member)]

    def counted(self, member: int, round: int, counts: tuple[int, int]) -> list[Action]:
        """A member reports (open calls, calls ever started), for round 0 when it calls its graceful shutdown.

        Ignored unless it is for the current round.
        """
        if round == self.barrier.round and not self.barrier.is_pausing:
            self.barrier.counts[member] = counts
        return self.barrier.step(self._incarnations())

    def next_round(self, round: int) -> list[Action]:
        """The pause before `round` is over."""
        if not self.barrier.is_pausing or round != self.barrier.round + 1:
            return []
        return self.barrier.begin_round(self._incarnations())

    # -- decisions -------------------------------------------------------------------------------------------------

    def _refusal(self, hello: Hello) -> Refuse | None:
        member = hello.member
        if self._is_closing or self.barrier.round or self.barrier.is_pausing:
            return Refuse(member.incarnation, "again", "the group at this address is closing")
        problem = self._mismatch(hello) or self._conflict(member)
        return None if problem is None else Refuse(member.incarnation, "refused", problem)

    def _mismatch(self, hello: Hello) -> str | None:
        """Return why a worker does not fit into this group."""
        member = hello.member
        problem = name_error(member.name)
        if problem is not None:
            return problem
        if (hello.world_size is None) != (self.world_size is None):
            return (
                "RPC group mixes statically and dynamically initialized members which is not supported.\n"
                f"{member} gave world_size={hello.world_size!r}, the group has world_size={self.world_size!r}; "
                "give world_size to all or to none"
            )
        if hello.world_size != self.world_size:
            return f"{member} gave world_size={hello.world_size}, but the group has world_size={self.world_size}"
        if member.id < 0 or (self.world_size is not None and member.id >= self.world_size):
            return f"rank {member.id} of {member.name!r} is out of range: world_size={self.world_size}"
        return None

    def _conflict(self, member: Member) -> str | None:
        """Return why the rank or name of a new member is taken. A static group compares names when it is complete."""
        holder = self.members.get(member.id)
        if holder is not None:
            return f"rank {member.id}, which {member} asks for, is taken by {holder}, which is alive"
        if self.is_forming:
            return None
        namesake = next((known for known in self.members.values() if known.name == member.name), None)
        return None if namesake is None else _not_unique(namesake, member)

    def _incarnations(self) -> set[int]:
        return {member.incarnation for member in self.members.values()}

    def _form(self) -> list[Action]:
        """Send the members to all, if all ranks of a static group have joined."""
        if len(self.members) < (self.world_size or 0):
            return []
        incarnations = sorted(self._incarnations())
        problem = _duplicate_name(self.members.values())
        if problem is not None:
            self._is_closing = True
            return [Refuse(to, "refused", problem) for to in incarnations]
        self.is_forming = False
        self.number += 1
        self._confirmations[self.number] = _Confirmation(set(incarnations), incarnations)
        return [self._welcome(to) for to in incarnations]

    def _welcome(self, to: int) -> SendUpdate:
        """Send all members to a new one."""
        return SendUpdate(to, Update(self.number, tuple(member for _, member in sorted(self.members.items()))))

    def _publish(self, change: Member | Departure, to: set[int], waiting: Collection[int] = ()) -> list[Action]:
        """Make a new view. Confirm it to `waiting` when all members have confirmed it."""
        if self.barrier.is_complete:  # all leave, and do not report each other
            return [Confirm(incarnation) for incarnation in waiting]
        self.number += 1
        self._confirmations[self.number] = _Confirmation(self._incarnations(), waiting)
        update = Update(self.number, (change,))
        return [*(SendUpdate(incarnation, update) for incarnation in sorted(to)), *self._complete(self.number)]

    def _complete(self, number: int) -> list[Action]:
        """Confirm a view to those that wait for it, if all members have confirmed it."""
        if self._confirmations[number].missing:
            return []
        return [Confirm(incarnation) for incarnation in self._confirmations.pop(number).waiting]

    def _remove(self, incarnation: int) -> Member | None:
        member = self.member(incarnation)
        if member is not None:
            del self.members[member.id]
            for confirmation in self._confirmations.values():
                confirmation.missing.discard(incarnation)
        return member

    def _settle(self) -> list[Action]:
        """Return what follows from the absence of a former member."""
        actions = [action for number in list(self._confirmations) for action in self._complete(number)]
        return actions + self.barrier.step(self._incarnations())


def _not_unique(first: Member, second: Member) -> str:
    return f"RPC worker name {first.name!r} is not unique: {first} and {second} both have it"


def _duplicate_name(members: Collection[Member]) -> str | None:
    by_name: dict[str, Member] = {}
    for member in members:
        if member.name in by_name:
            return _not_unique(by_name[member.name], member)
        by_name[member.name] = member
    return None
