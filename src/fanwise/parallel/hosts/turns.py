"""Who takes part in a run over several hosts, and how far all have come. A quiet file: events in, messages out.

    arrive(content) --Arrived--> the coordinator: all members have --Released--> every member has everybody's content

A turn is one exchange of all. The coordinator is the member of the lowest rank that lives; it releases a turn when all
members of the view have arrived at it, and a turn that it has released is committed: nothing of it is done again. When
it loses a member it decides the next view, which says who is left and what was released last; what came after that is
done again by those.

Every process has a link to every other, so each sees deaths for itself. When the coordinator dies, the next one asks
nobody: all that are left send it what they know (`Survived`), and the newest of that is what was committed, because
whatever any of them has acted upon is among it. What only the dead have seen counts for nothing.

Who is not in a view that others have gone on with, although it lives, is told so (`Out`), and ends. Messages of a
process whose link has ended are not heard any more, and those of an old view change nothing.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Arrived:
    """To the coordinator: this member is at this turn, with this content."""

    view: int
    turn: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Released:
    """To a member: all have arrived, with these contents, by place."""

    view: int
    turn: int
    contents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """What one process knows: the view, its members, and the last turn that was released, with its contents."""

    view: int
    members: tuple[int, ...]
    turn: int = 0
    contents: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """To a member: the next view, and what was released before it."""

    known: Known


@dataclass(frozen=True, slots=True)
class Survived:
    """To the next coordinator: the last one is gone, and this is what this process knows."""

    known: Known


@dataclass(frozen=True, slots=True)
class Unreachable:
    """To the coordinator: the link to this rank has ended here."""

    rank: int


@dataclass(frozen=True, slots=True)
class Hung:
    """To the coordinator: these ranks live, and have not come for too long to the turn after this one."""

    view: int
    turn: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Out:
    """To a process without which the others have gone on."""


Message = Arrived | Released | Decided | Survived | Unreachable | Hung | Out


@dataclass(frozen=True, slots=True)
class Send:
    """Order: give this message to another process."""

    rank: int
    message: Message


@dataclass(slots=True)
class Turns:
    """One process of the run: a member, and the coordinator when it is its turn to be.

    Args:
        rank: of this process. known: where it begins: view 1 with all members.

    Attributes:
        lost: the ranks to which the link has ended.
        is_out: the others have gone on without this process.
    """

    rank: int
    known: Known
    lost: set[int] = field(default_factory=set)
    is_out: bool = False
    _came: dict[int, bytes] = field(default_factory=dict)
    _survived: dict[int, Known] = field(default_factory=dict)
    _waits_for_survivors: bool = False

    @property
    def coordinator(self) -> int:
        """The lowest rank of the view whose link has not ended here."""
        return min(rank for rank in self.known.members if rank not in self.lost)

    # -- events ----------------------------------------------------------------------------------------------------

    def arrive(self, content: bytes) -> list[Send]:
        """This process has come to the turn after the last one that was released."""
        return self._send(self.coordinator, Arrived(self.known.view, self.known.turn + 1, content))

    def heard(self, rank: int, message: Message) -> list[Send]:
        """A message of another process, in the order in which it sent them."""
        if rank in self.lost or self.is_out:
            return []
        return self._take(rank, message)

    def lose(self, rank: int) -> list[Send]:
        """The link to this rank has ended: it is dead, or out of reach."""
        if rank in self.lost or self.is_out:
            return []
        before = self.coordinator
        self.lost.add(rank)
        if rank not in self.known.members:
            return []
        if before == rank:
            return self._send(self.coordinator, Survived(self.known))
        if before == self.rank:
            return self._decide_if_all_survived() if self._waits_for_survivors else self._go_on_without({rank})
        return self._send(before, Unreachable(rank))

    def cut_off(self, rank: int, other: int) -> list[Send]:
        """Both are in reach of this coordinator, and not of each other: one of them has to go."""
        in_reach = {rank, other} <= set(self.known.members) - self.lost
        if self.is_out or self.coordinator != self.rank or self._waits_for_survivors or not in_reach:
            return []
        return self._go_on_without({max(rank, other)})

    def give_up(self, ranks: set[int]) -> list[Send]:
        """These live, and have not come for too long to the next turn: others go on without them."""
        ranks = ranks & set(self.known.members) - self.lost - {self.rank}
        if self.is_out or not ranks:
            return []
        if self.coordinator not in ranks and not self._waits_for_survivors:
            return self._send(self.coordinator, Hung(self.known.view, self.known.turn, tuple(sorted(ranks))))
        # Nobody decides about them: to all that wait, they are as lost as if their links had ended.
        orders: list[Send] = []
        for rank in sorted(ranks):
            orders.append(Send(rank, Out()))
            if self.coordinator in (rank, self.rank):
                orders += self.lose(rank)
            else:
                self.lost.add(rank)  # the next coordinator finds out by itself
        return orders

    # -- what was heard --------------------------------------------------------------------------------------------

    def _send(self, rank: int, message: Message) -> list[Send]:
        """What goes to this process itself is heard at once."""
        return self._take(rank, message) if rank == self.rank else [Send(rank, message)]

    def _take(self, rank: int, message: Message) -> list[Send]:
        match message:
            case Arrived():
                return self._arrived(rank, message)
            case Released(view, turn, contents):
                if view == self.known.view and turn == self.known.turn + 1:
                    self.known = Known(view, self.known.members, turn, contents)
            case Decided(known):
                return self._enter(known)
            case Survived(known):
                self._survived[rank] = known
                return self._survivor_came(rank)
            case Hung(view, turn, ranks):
                is_now = (view, turn) == (self.known.view, self.known.turn)
                if is_now and self.coordinator == self.rank and not self._waits_for_survivors:
                    return self._go_on_without(set(ranks) - {self.rank})
            case Out():
                self.is_out = True
            case Unreachable():
                pass  # whether it is so is seen in a while
        return []

    def _arrived(self, rank: int, message: Arrived) -> list[Send]:
        is_next = (message.view, message.turn) == (self.known.view, self.known.turn + 1)
        if self.coordinator != self.rank or self._waits_for_survivors or not is_next:
            return []
        self._came[rank] = message.content
        members = self.known.members
        if not set(self._came) >= set(members):
            return []
        contents = tuple(self._came[each] for each in members)
        self._came.clear()
        self.known = Known(message.view, members, message.turn, contents)
        return self._tell_all(Released(message.view, message.turn, contents))

    def _enter(self, known: Known) -> list[Send]:
        if known.view <= self.known.view:
            return []
        before, self.known = self.known, known
        self._came.clear()
        self.is_out = self.rank not in known.members
        # Those without which all go on may live, and have lost their way to the coordinator alone.
        gone = set(before.members) - set(known.members) - self.lost - {self.rank}
        for rank in gone:
            self._survived.pop(rank, None)
        return [Send(rank, Out()) for rank in sorted(gone)]

    # -- when the coordinator has changed --------------------------------------------------------------------------

    def _survivor_came(self, rank: int) -> list[Send]:
        if rank not in self.known.members:
            return [Send(rank, Out())]
        if self.coordinator != self.rank:
            return []  # it has seen the coordinator's end before this process, which will see it, too, or be told
        is_new = not self._waits_for_survivors and self.rank in self._survived
        self._waits_for_survivors = self._waits_for_survivors or is_new
        return self._decide_if_all_survived()

    def _decide_if_all_survived(self) -> list[Send]:
        living = set(self.known.members) - self.lost
        if not self._waits_for_survivors or not set(self._survived) >= living:
            return []
        newest = max((self._survived[rank] for rank in living), key=_age)
        self._waits_for_survivors = False
        self._survived.clear()
        self.known = newest
        if self.rank not in newest.members:
            self.is_out = True
            return []
        gone = set(newest.members) - living
        return [*(Send(rank, Out()) for rank in living - set(newest.members)), *self._go_on_without(gone)]

    def _go_on_without(self, gone: set[int]) -> list[Send]:
        """Decide the next view."""
        known = self.known
        members = tuple(rank for rank in known.members if rank not in gone)
        orders = self._enter(Known(known.view + 1, members, known.turn, known.contents))
        return [*self._tell_all(Decided(self.known)), *orders]

    def _tell_all(self, message: Message) -> list[Send]:
        return [Send(rank, message) for rank in self.known.members if rank != self.rank and rank not in self.lost]


def _age(known: Known) -> tuple[int, int]:
    return known.view, known.turn
