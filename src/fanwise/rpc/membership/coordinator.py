"""Decisions of the coordinator of a group. A pure state machine: methods take events and return actions.

    hello  --> Refuse | Confirm      Confirm when all members have confirmed the view with the new member
    leave  --> Confirm               when all members have confirmed the view without it
    lose   --> Evict, SendUpdate     at once
    arrive, counted --> RequestCounts, StartTimer, FinishShutdown: the barrier of a graceful shutdown

The coordinator is a member of the group like the others. Members are identified by their incarnation. A static group
sends no updates before all its ranks have joined. Then it compares the names, so that all workers learn of a duplicate.

A member receives the next update when it has confirmed the last one, so a slow or stopped member receives many changes
in one message.

The barrier: when all members have arrived, each reports (open calls, calls ever started), in rounds. Two equal rounds
in a row without open calls end the shutdown. Members that leave or are lost are not waited for.
"""

import operator
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from ..messages.records import control_codec
from ..worker_info import name_error
from .members import Departure, Hello, Member, Update

RefusalKind = Literal["refused", "again"]

_RANK = operator.attrgetter("id")


@dataclass(frozen=True, slots=True)
class SendUpdate:
    """Action: send `to` the changes of the membership. It answers with `confirm`."""

    to: int
    update: Update


@dataclass(frozen=True, slots=True)
class Confirm:
    """Action: tell `to` that all other members know that it has joined, or left."""

    to: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Action: tell `to` that it cannot join. "again": it may retry; "refused": it does not fit."""

    to: int
    kind: RefusalKind
    text: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Action: tell `to` that it was declared lost, and close its link."""

    to: int
    why: str


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
class FinishShutdown:
    """Action: tell `to` that the shutdown of the group is complete."""

    to: int


control_codec.register(SendUpdate, Confirm, Refuse, Evict, RequestCounts, FinishShutdown, first_code=64)

Action = SendUpdate | Confirm | Refuse | Evict | RequestCounts | StartTimer | FinishShutdown


@dataclass(slots=True)
class Barrier:
    """State of the graceful shutdown of a static group."""

    arrived: set[int] = field(default_factory=set)
    round: int = 0
    is_complete: bool = False
    is_pausing: bool = False
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    previous_counts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def step(self, members: Collection[int]) -> list[Action]:
        """Return the actions that follow from the events so far. Nobody joins while rounds are counted."""
        if self.is_complete or self.is_pausing or not members or not self.arrived.issuperset(members):
            return []
        if self.round == 0:
            return self.begin_round(members)
        if not self.counts.keys() >= set(members):
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
        return [FinishShutdown(to) for to in sorted(members)]

    def begin_round(self, members: Collection[int]) -> list[Action]:
        self.round += 1
        self.is_pausing, self.counts = False, {}
        return [RequestCounts(to, self.round) for to in sorted(members)]


class Coordinator:
    """See the module.

    Attributes:
        members: by rank.
        number: the number of the newest view.
        confirmed: the number of the newest view that each member has confirmed, by incarnation.
        is_forming: True until all ranks of a static group have joined.
    """

    def __init__(self, me: Member, *, world_size: int | None) -> None:
        self.me = me
        self.world_size = world_size
        self.members: dict[int, Member] = {}
        self.number = 0
        self.confirmed: dict[int, int] = {}
        self.is_forming = world_size is not None
        self.barrier = Barrier()
        self._is_closing = False
        self._joining: dict[int, int] = {}  # the view to be confirmed, by incarnation
        self._leaving: dict[int, int] = {}
        self._sent: dict[int, int] = {}  # the newest view sent to each member
        self._changes: list[Member | Departure] = []  # from view `_first_number` on, one for each view
        self._first_number = 0
        self._updates: dict[int, Update] = {}  # updates to the newest view, by the view before
        self._num_confirmed_by_all = 0
        # The lowest of `confirmed` and how many members have it; 0 if unknown.
        self._lowest, self._num_lowest = 0, 0

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
        waiting = [str(member) for member in members if member.incarnation not in barrier.arrived]
        if waiting and barrier.arrived:
            return f"these have not called shutdown: {', '.join(waiting)}"
        slow = [str(member) for member in members if self.confirmed[member.incarnation] < self.number]
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
        self.confirmed[member.incarnation] = self._num_lowest = 0
        self._record(member)
        self._joining[member.incarnation] = self.number
        return self._settle()

    def confirm(self, member: int, number: int) -> list[Action]:
        """A member has applied an update."""
        before = self.confirmed.get(member)
        if before is None or number <= before:
            return []
        self.confirmed[member] = number
        self._num_lowest -= before == self._lowest and self._num_lowest > 0
        if before > self._num_confirmed_by_all or self._lowest_confirmed() == self._num_confirmed_by_all:
            return self._update(member)  # other members have yet to confirm the same view
        return self._settle()

    def leave(self, member: int) -> list[Action]:
        """A member leaves."""
        self._remove(member, None)
        self._leaving.setdefault(member, self.number)
        return self._settle()

    def disconnect(self, member: int) -> list[Action]:
        """A member has closed its link, so it has left."""
        self._remove(member, None)
        self._leaving.pop(member, None)
        return self._settle()

    def lose(self, member: int, why: str) -> list[Action]:
        """A member is lost. Without effect if it is no member."""
        if member not in self.confirmed:
            return []
        self._remove(member, why)
        return [Evict(member, why), *self._settle()]

    def arrive(self, member: int) -> list[Action]:
        """A member has called its graceful shutdown."""
        self.barrier.arrived.add(member)
        return self._settle()

    def counted(self, member: int, round: int, counts: tuple[int, int]) -> list[Action]:
        """A member reports (open calls, calls ever started). Ignored unless it is for the current round."""
        if round == self.barrier.round and not self.barrier.is_pausing:
            self.barrier.counts[member] = counts
        return self._settle()

    def next_round(self, round: int) -> list[Action]:
        """The pause before `round` is over."""
        if not self.barrier.is_pausing or round != self.barrier.round + 1:
            return []
        return self.barrier.begin_round(self.confirmed)

    # -- decisions -------------------------------------------------------------------------------------------------

    def _refusal(self, hello: Hello) -> Refuse | None:
        member = hello.member
        if self._is_closing or self.barrier.is_complete or self.barrier.round:
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

    def _remove(self, incarnation: int, why: str | None) -> None:
        member = self.member(incarnation)
        if member is not None:
            del self.members[member.id]
            for mapping in (self.confirmed, self._joining, self._sent):
                mapping.pop(incarnation, None)
            self._num_lowest = 0
            self._record(Departure(member.id, why))

    def _record(self, change: Member | Departure) -> None:
        """Make a new view."""
        self.number += 1
        self._changes.append(change)
        self._updates.clear()

    def _settle(self) -> list[Action]:
        """Return all actions that follow now: updates, admissions, confirmed departures, the barrier."""
        if self.is_forming:
            if len(self.members) < (self.world_size or 0):
                return [Confirm(to) for to in _take(self._leaving, self.number)]
            problem = _duplicate_name(self.members.values())
            if problem is not None:
                self._is_closing = True
                return [Refuse(to, "refused", problem) for to in sorted(self.confirmed)]
            self.is_forming = False
        actions: list[Action] = []
        if not self.barrier.is_complete:
            for to in sorted(self.confirmed):
                actions += self._update(to)
            self._drop_changes()
        self._num_confirmed_by_all = number = self._lowest_confirmed() if self.confirmed else self.number
        actions += [Confirm(to) for waiting in (self._joining, self._leaving) for to in _take(waiting, number)]
        return actions + self.barrier.step(self.confirmed)

    def _lowest_confirmed(self) -> int:
        """Return the lowest of `confirmed`. Searched once for each view, not once for each confirmation."""
        if self._num_lowest == 0:
            numbers = list(self.confirmed.values())
            self._lowest = min(numbers)
            self._num_lowest = numbers.count(self._lowest)
        return self._lowest

    def _update(self, to: int) -> list[Action]:
        """Send the newest view to a member, unless it has that view or has not confirmed the last update."""
        since = self._sent.get(to, 0)
        if since == self.number or self.confirmed[to] < since:
            return []
        self._sent[to] = self.number
        if since not in self._updates:
            changes = self._changes[since - self._first_number :] if since else sorted(self.members.values(), key=_RANK)
            self._updates[since] = Update(self.number, since, self.me.id, tuple(changes))
        return [SendUpdate(to, self._updates[since])]

    def _drop_changes(self) -> None:
        """Forget the changes that were sent to all members."""
        lowest = min(self._sent.values(), default=self.number)
        del self._changes[: lowest - self._first_number]
        self._first_number = lowest


def _take(waiting: dict[int, int], number: int) -> list[int]:
    """Remove and return the incarnations that wait for a view up to `number`."""
    ready = sorted(incarnation for incarnation, awaited in waiting.items() if awaited <= number)
    for incarnation in ready:
        del waiting[incarnation]
    return ready


def _not_unique(first: Member, second: Member) -> str:
    return f"RPC worker name {first.name!r} is not unique: {first} and {second} both have it"


def _duplicate_name(members: Collection[Member]) -> str | None:
    by_name: dict[str, Member] = {}
    for member in members:
        if member.name in by_name:
            return _not_unique(by_name[member.name], member)
        by_name[member.name] = member
    return None
