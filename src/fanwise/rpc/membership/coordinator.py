"""The decisions of the coordinator of a group. A pure state machine: takes facts, returns orders.

    hello ----> Admit | Refuse          once all who are present have seen the view with the newcomer
    leave ----> Dismiss                 once all members have come, and seen the view without it
    lose  ----> Fence, Show             at once
    arrive, counted ----> Count, Over   the barrier of a graceful shutdown

Every member is addressed by its incarnation, the coordinator's own process too. A static group shows nothing until all
its ranks are there. Names are compared then: all of them learn of a name that two have, as each must correct it.

The barrier: when all who are alive have arrived, rounds in which each tells (calls open now, calls begun ever). Two
rounds running with the same numbers and nothing open, then a last one which only tells everybody so, then `Over`. The
last round is there for the death of the coordinator: nobody goes before all know that the shutdown is over, so that
whoever takes over either knows it too, or finds everybody still there. Who dies, or leaves, is no longer waited for.

Succession: the next coordinator starts from its own view, and takes over what returning members know better. Where it
cannot be known whether another has taken over too (between hosts, `exclusive=False`), it rules only while the members
that have come to it are a majority (`quorum`): before that it decides nothing, and when it loses it, by a cut, all
on its side are fenced. One who is dead for certain is not missed; one who only cannot be reached is.

Who comes with an old view, and is no member, was lost or has left since: it is fenced, also when nobody remembers it.
Reasons are forgotten when all members have seen a view that tells them, but for the newest, and those of members that
this coordinator has taken over from another.
"""

from dataclasses import dataclass, field
from typing import Literal

from ..worker_info import name_error
from .members import FORGOTTEN, REASONS_KEPT, Change, Hello, Member, Version, View
from .quorum import Quorum

RefusalKind = Literal["refused", "again", "fenced"]


@dataclass(frozen=True, slots=True)
class Show:
    """Order: tell `to` who is in the group; it answers with `seen`."""

    to: int
    view: View | Change


@dataclass(frozen=True, slots=True)
class Admit:
    """Order: `to` is in, and everybody knows."""

    to: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Order: `to` is not let in. "again": not now; "fenced": never, it was declared lost."""

    to: int
    kind: RefusalKind
    text: str


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Order: everybody knows that `to` has left; it may go."""

    to: int


@dataclass(frozen=True, slots=True)
class Fence:
    """Order: tell `to`, if it can still hear, that it was declared lost, and end the link."""

    to: int
    why: str


@dataclass(frozen=True, slots=True)
class Count:
    """Order: ask `to` for its numbers. `last`: nothing is open anywhere; this round only says so."""

    to: int
    round: int
    last: bool


@dataclass(frozen=True, slots=True)
class Rest:
    """Order: calls are still open; call `next_round(round)` in a moment."""

    round: int


@dataclass(frozen=True, slots=True)
class Over:
    """Order: the shutdown of all is over; `to` may go."""

    to: int


Order = Show | Admit | Refuse | Dismiss | Fence | Count | Rest | Over


@dataclass(slots=True)
class Barrier:
    """How far the graceful shutdown of all is."""

    arrived: set[int] = field(default_factory=set)
    round: int = 0
    last: bool = False
    over: bool = False
    resting: bool = False
    asked: set[int] = field(default_factory=set)
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    before: dict[int, tuple[int, int]] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)

    def step(self, alive: set[int], present: set[int]) -> list[Order]:
        """What follows from the facts so far."""
        if self.over:
            untold = sorted(present - self.told)
            self.told |= present
            return [Over(to) for to in untold]
        if not alive or not alive <= self.arrived or self.resting:
            return []
        if self.round > 0 and alive <= set(self.counts):
            return self._round_ended(alive, present)
        if self.round == 0:
            self._begin_round()
        unasked = sorted(present - self.asked)
        self.asked |= present
        return [Count(to, self.round, self.last) for to in unasked]

    def _round_ended(self, alive: set[int], present: set[int]) -> list[Order]:
        now = {incarnation: self.counts[incarnation] for incarnation in alive}
        same = all(self.before.get(incarnation) == now[incarnation] for incarnation in alive)
        self.before = now
        if self.last:
            self.over = True
        elif any(open_now for open_now, _begun in now.values()):
            self.resting = True
            return [Rest(self.round + 1)]
        else:
            self.last = same
            self._begin_round()
        return self.step(alive, present)

    def _begin_round(self) -> None:
        self.round += 1
        self.resting = False
        self.asked, self.counts = set(), {}

    def rested(self) -> None:
        """The rest is over; `step` goes on."""
        self._begin_round()


class Coordinator:
    """See the module. Everything it knows is here.

    Args:
        known: the view of a member that takes over.
        exclusive: whether nobody else can be the coordinator, for some reason outside.
        reasons_kept: of how many members that were lost the reason is told for good.

    Attributes:
        ruling: whether it may decide anything.
    """

    def __init__(
        self,
        me: int,
        *,
        world_size: int | None,
        known: View | None = None,
        exclusive: bool = True,
        reasons_kept: int = REASONS_KEPT,
    ) -> None:
        self.me = me
        self.world_size = world_size
        self.members: dict[int, Member] = {m.id: m for m in known.members} if known else {}
        self.lost: dict[int, str] = dict(known.lost) if known else {}
        self._lost_in: dict[int, int] = dict.fromkeys(self.lost, 1)  # the number of the first view that tells it
        self._reasons_kept = reasons_kept
        self.group = known.group if known else me
        self.newest: Version = known.version if known else (0, 0)
        self._learnt: dict[int, Version] = {known.group: known.version} if known else {}  # by group
        self._taken_over: set[int] = {m.incarnation for m in known.members} if known else set()
        self.term = self.newest[0] + 1
        self.number = 0
        self.forming = world_size is not None and known is None
        self.closing = False
        self.seen_number: dict[int, int] = {}  # of all who are present: have said hello to this coordinator
        self.joining: dict[int, int] = {}
        self.leaving: dict[int, int] = {}
        self.barrier = Barrier()
        self.ruling = exclusive or known is None
        self._exclusive = exclusive
        self._quorum = Quorum()
        self._returned: dict[int, int] = {}  # with a view of this group; 0: with one of ours
        self._unshown = False
        self._told: dict[int, int] = {}  # by member: the number of the view that it was told last, by this link
        self._views: dict[int, View] = {}  # by number: the newest, and those that members were told last
        self._changes: dict[int, Change] = {}  # by number: what makes that view the newest
        self._seen_by_all = 0
        self._lowest, self._num_lowest = 0, 0  # the least of `seen_number`, and of how many; 0: to be counted anew
        if known is not None:
            self._quorum.shown(1, known.members)

    # -- what is asked of it ---------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        members = tuple(self.members[rank] for rank in sorted(self.members))
        return View((self.term, self.number), members, tuple(self.lost.items()), self.me, self.group)

    @property
    def present(self) -> set[int]:
        """The incarnations of all members that have said hello to this coordinator."""
        return set(self.seen_number)

    @property
    def alive(self) -> set[int]:
        """The incarnations of all members."""
        return {member.incarnation for member in self.members.values()}

    def missing(self) -> list[int]:
        """The ranks that a static group still waits for."""
        return [rank for rank in range(self.world_size or 0) if rank not in self.members]

    def not_arrived(self) -> list[Member]:
        """Who has not called its graceful shutdown yet."""
        return [member for member in self.view.members if member.incarnation not in self.barrier.arrived]

    def busy(self) -> list[Member]:
        """Who said in the last round of the shutdown that calls were open there."""
        counts = self.barrier.before | self.barrier.counts
        return [member for member in self.view.members if counts.get(member.incarnation, (0, 0))[0]]

    # -- facts -----------------------------------------------------------------------------------------------------

    def hello(self, hello: Hello) -> list[Order]:
        """Somebody is at the entrance: a newcomer, or a member that returns to a new coordinator. May be repeated."""
        to = hello.member.incarnation
        if to in self.lost:
            return [Refuse(to, "fenced", self.lost[to])]
        if hello.view is not None and not hello.leaving and self._has_gone_on(hello.view, to):
            return [Refuse(to, "fenced", FORGOTTEN)]
        orders = self._learn(hello.view) if hello.view is not None else []
        if hello.leaving:  # it had begun to leave when the coordinator before us went
            return [*orders, *self.leave(to)]
        refusal = self._refusal(hello)
        if refusal is not None:
            return [*orders, refusal, *self._settle()]
        self.members[hello.member.id] = hello.member
        self.barrier.asked.discard(to)  # it may not have heard, if it comes again because its link was cut
        self.barrier.told.discard(to)
        self.seen_number[to], self._num_lowest = 0, 0
        self._told.pop(to, None)
        self._change()
        self.joining[to] = self.number
        if hello.view is not None:
            self._returned[to] = self._returned.get(to, 0) if hello.view.coordinator == self.me else hello.view.group
        if hello.arrived:
            self.barrier.arrived.add(to)
        self.barrier.over = self.barrier.over or hello.prepared
        return [*orders, *self._settle()]

    def seen(self, member: int, version: Version) -> list[Order]:
        """A member has taken a view."""
        before = self.seen_number.get(member)
        if before is None or version[0] != self.term or version[1] <= before:
            return []
        self.seen_number[member] = version[1]
        self._num_lowest -= before == self._lowest and self._num_lowest > 0
        # Most of what is seen is seen by others later: then all that follows is that this one is told what came since.
        if before > self._seen_by_all or self._lowest_seen() == self._seen_by_all:
            return self._show(member)
        return self._settle()

    def _lowest_seen(self) -> int:
        """The least of `seen_number`: looked for once for a view that all see, and not once for each who sees it."""
        if self._num_lowest == 0:
            numbers = list(self.seen_number.values())
            self._lowest = min(numbers)
            self._num_lowest = numbers.count(self._lowest)
        return self._lowest

    def leave(self, member: int) -> list[Order]:
        """A member goes on its own. Also for one that has left already: it is dismissed again."""
        self._quorum.gone(member)
        self._remove(member)
        self.leaving.setdefault(member, self.number)
        return self._settle()

    def gone(self, member: int) -> list[Order]:
        """Its link has ended with a goodbye: nobody is left to be dismissed."""
        if not self._exclusive and member in self.joining:
            return self._turned_away(member)
        self._quorum.gone(member)
        self._remove(member)
        self.leaving.pop(member, None)
        return self._settle()

    def lose(self, member: int, why: str, *, dead: bool = True) -> list[Order]:
        """A member counts as dead. Not for one that has left. `dead`: for certain; else it may be out of reach only."""
        if dead:
            self._quorum.gone(member)
        if member not in self.alive:
            return []
        if not self.ruling and not dead and member in self.seen_number:
            return self._turned_away(member)
        present = member in self.seen_number
        self._declare_lost(member, why)
        self._remove(member)
        return [*([Fence(member, why)] if present else []), *self._settle()]

    def arrive(self, member: int) -> list[Order]:
        """A member has called its graceful shutdown."""
        self.barrier.arrived.add(member)
        return self._settle()

    def counted(self, member: int, round: int, counts: tuple[int, int]) -> list[Order]:
        """A member's numbers: calls open now, calls begun ever. Those of another round are not taken."""
        if round == self.barrier.round and not self.barrier.resting:
            self.barrier.counts[member] = counts
        return self._settle()

    def next_round(self, round: int) -> list[Order]:
        """The rest before `round` is over."""
        if not self.barrier.resting or round != self.barrier.round + 1:
            return []
        self.barrier.rested()
        return self._settle()

    # -- decisions -------------------------------------------------------------------------------------------------

    def _refusal(self, hello: Hello) -> Refuse | None:
        member, to = hello.member, hello.member.incarnation
        holder = self.members.get(member.id)
        if to in self.lost:  # as its own view says
            return Refuse(to, "fenced", self.lost[to])
        if hello.view is None and not self.ruling:
            return Refuse(to, "again", "this group has lost its coordinator, and has no other yet")
        if hello.view is None and (self.closing or self.barrier.over or self.barrier.round):
            return Refuse(to, "again", "the group that was here is closing")
        if holder is not None and holder.incarnation != to and hello.view is not None:
            self._declare_lost(to, f"its place was taken by {holder}")
            return Refuse(to, "fenced", self.lost[to])
        text = self._wrong(hello)
        if text is not None:
            return Refuse(to, "refused", text)
        return self._taken(member, holder)

    def _taken(self, newcomer: Member, holder: Member | None) -> Refuse | None:
        """Whether its rank or name is another's. Who has not come back to a new coordinator yet may have gone."""
        if holder is not None and holder.incarnation != newcomer.incarnation:
            other, text = holder, f"rank {newcomer.id}, which {newcomer} asks for, is taken by {holder}, which is alive"
        elif self.forming:  # names are compared when all are there
            return None
        else:
            namesakes = (m for m in self.members.values() if m.name == newcomer.name and m.id != newcomer.id)
            namesake = next(namesakes, None)
            if namesake is None:
                return None
            other, text = namesake, not_unique(namesake, newcomer)
        return Refuse(newcomer.incarnation, "refused" if other.incarnation in self.seen_number else "again", text)

    def _wrong(self, hello: Hello) -> str | None:
        member = hello.member
        wrong = name_error(member.name)
        if wrong is not None:
            return wrong
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

    def _has_gone_on(self, view: View, incarnation: int) -> bool:
        """Whether one that comes with `view` is no member any more, for all that is in that view is known here.

        The view of a coordinator that has ruled, and comes itself, is worth nothing: the others have left it.
        """
        is_known = view.coordinator in (self.me, incarnation) or view.version <= self._learnt.get(view.group, (0, 0))
        return is_known and incarnation not in self.alive

    def _declare_lost(self, incarnation: int, why: str) -> None:
        if incarnation not in self.lost:
            self.lost[incarnation], self._lost_in[incarnation] = why, self.number + 1

    def _forget_the_lost(self) -> None:
        """A new view is made. What all members have read in an older one need not be in it.

        But for those who were members before this coordinator: somebody may yet come with a view that has them.
        """
        known = min(self.seen_number.values(), default=0) if self.alive <= self.present else 0
        for incarnation in list(self.lost)[: max(0, len(self.lost) - self._reasons_kept)]:
            if self._lost_in[incarnation] <= known and incarnation not in self._taken_over:
                del self.lost[incarnation], self._lost_in[incarnation]

    def _learn(self, view: View) -> list[Order]:
        """A returning member's view. Where it is newer than all seen so far, it knows better, but for who is here."""
        if view.coordinator == self.me:
            return []
        for member in view.members:
            mine = self.members.get(member.id)
            if mine is not None and mine.incarnation in self.seen_number and mine.incarnation != member.incarnation:
                self._declare_lost(member.incarnation, f"its place was taken by {mine}")
        if view.version <= self.newest:
            return []
        self.newest = self._learnt[view.group] = view.version
        self.group = view.group
        self._taken_over.update(member.incarnation for member in view.members)
        self.lost.update(view.lost)
        present = self.seen_number
        kept = {rank: member for rank, member in self.members.items() if member.incarnation in present}
        for member in kept.values():  # it came with an older view, and was lost between the two
            came_with = self._returned.get(member.incarnation)
            if came_with == view.group and view.member(member.incarnation) is None:
                self.lost.setdefault(member.incarnation, FORGOTTEN)
        self.members = {m.id: m for m in view.members if m.incarnation not in self.lost} | kept
        self.forming = self.forming and not view.members
        self._views, self._told = {}, {}
        if view.version[0] >= self.term:
            self.term, self.number = view.version[0] + 1, 0
            self.seen_number, self._num_lowest = dict.fromkeys(self.seen_number, 0), 0
        self._change()
        self._lost_in = dict.fromkeys(self.lost, self.number)
        self._quorum.learned(self.number, view.members, instead=not self.ruling)
        self.joining = dict.fromkeys(self.joining, self.number)
        self.leaving = dict.fromkeys(self.leaving, self.number)
        fenced = [member.incarnation for member in kept.values() if member.incarnation in self.lost]
        for incarnation in fenced:
            self._remove(incarnation)
        return [Fence(incarnation, self.lost[incarnation]) for incarnation in fenced]

    def _turned_away(self, incarnation: int) -> list[Order]:
        """It did not wait to be let in, and may be with another coordinator now: it is neither here nor gone."""
        if incarnation in self._returned:
            self._returned.pop(incarnation)
            self._absent(incarnation)
        else:
            self._remove(incarnation)
        return self._settle()

    def _remove(self, incarnation: int) -> None:
        for rank, member in list(self.members.items()):
            if member.incarnation == incarnation:
                del self.members[rank]
                self._change()
        self._absent(incarnation)

    def _absent(self, incarnation: int) -> None:
        for known in (self.seen_number, self.joining, self._told):
            known.pop(incarnation, None)
        self._num_lowest = 0

    def _change(self) -> None:
        self.number += 1
        self._unshown = True

    def _settle(self) -> list[Order]:
        """All that follows now: views to show, who is known to all, the barrier."""
        if self.forming:
            if len(self.members) < (self.world_size or 0):
                return [Dismiss(to) for to in self._take(self.leaving, self.number)]
            twice = _same_name(list(self.members.values()))
            if twice is not None:
                self.closing = True
                return [Refuse(to, "refused", twice) for to in sorted(self.present)]
            self.forming = False
        if not self._exclusive and not self.barrier.over:
            self._quorum.seen(self.seen_number)
            ruled, self.ruling = self.ruling, self._quorum.may_go_on(self.present)
            if not self.ruling:
                return self._overruled() if ruled else []
        orders: list[Order] = []
        if self._unshown and not self.barrier.over:
            self._unshown = False
            self._forget_the_lost()
            if not self._exclusive:
                self._quorum.shown(self.number, self.members.values())
            self._views[self.number], self._changes = self.view, {}
        for to in sorted(self.present):
            orders += self._show(to)
        if len(self._views) > 1:
            told = {*self._told.values(), self.number}
            self._views = {number: view for number, view in self._views.items() if number in told}
        self._seen_by_all = known = min(self.seen_number.values(), default=self.number)
        orders += [Admit(to) for to in self._take(self.joining, known)]
        # Who has not come back yet knows an old view, and might be the next who starts from it.
        if self.alive <= self.present:
            orders += [Dismiss(to) for to in self._take(self.leaving, known)]
        return orders + self.barrier.step(self.alive, self.present)

    def _show(self, to: int) -> list[Order]:
        """Tell `to` the newest view, unless it was told, or has not answered yet: then its answer leads here again.

        So whoever is slow, or stopped, is told once what happened meanwhile, and many changes at once are one for all.
        """
        view, told = self._views.get(self.number), self._told.get(to)
        if view is None or told == self.number:
            return []
        if told is not None and self.seen_number[to] < told:
            return []
        self._told[to] = self.number
        if told is None or to == self.me:  # in this process, where a view is no longer than a change
            return [Show(to, view)]
        if told not in self._changes:
            self._changes[told] = Change.between(self._views[told], view)
        return [Show(to, self._changes[told])]

    def _overruled(self) -> list[Order]:
        """This side of a cut has too few: all of it end, this coordinator last."""
        here, size = self._quorum.count(self.present)
        why = (
            f"it is on a side of a cut that has {here} of {size} workers; the others, where they live, go on without it"
        )
        return [Fence(to, why) for to in sorted(self.present, key=lambda to: (to == self.me, to))]

    def _take(self, waiting: dict[int, int], known: int) -> list[int]:
        done = sorted(incarnation for incarnation, number in waiting.items() if number <= known)
        for incarnation in done:
            del waiting[incarnation]
        return done


def not_unique(one: Member, other: Member) -> str:
    """Two workers have one name."""
    return f"RPC worker name {one.name!r} is not unique: {one} and {other} both have it"


def _same_name(members: list[Member]) -> str | None:
    by_name: dict[str, Member] = {}
    for member in members:
        if member.name in by_name:
            return not_unique(by_name[member.name], member)
        by_name[member.name] = member
    return None
