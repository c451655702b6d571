"""Who takes part in a run, as the supervisor keeps it: views, agreements, what is committed. A quiet file.

    facts:   lost(rank), agreed(rank, view)       told when they happen
    asked:   arrived(rank) -> (view, turn)                                        looked up when a view ends
    orders:  Pause(view)                          an odd view: everybody is to agree
             Decide(view, members, committed)     all have: the next view begins

A view ends when a member is lost. It ends in two steps, because a member that has not yet seen the end may still
arrive somewhere: only when all that live have agreed does nothing move any more, and what all members of the old view
had arrived at, the dead included, is what is committed. It stays so in the views after, for a member may see only the
last of several changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Pause:
    """Order: show this odd view."""

    view: int


@dataclass(frozen=True, slots=True)
class Decide:
    """Order: write down members and committed turn, then show this even view."""

    view: int
    members: tuple[int, ...]
    committed: int


Order = Pause | Decide


@dataclass(slots=True)
class Membership:
    """See the module.

    Args:
        members: the ranks of the first view.
        arrived: where a rank is, as the control block has it: view and turn.
    """

    members: tuple[int, ...]
    arrived: Callable[[int], tuple[int, int]]
    view: int = 2
    committed: int = 0
    living: set[int] = field(default_factory=set)
    _agreed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.living = set(self.members)

    @property
    def is_changing(self) -> bool:
        return self.view % 2 == 1

    def lost(self, rank: int) -> list[Order]:
        """Its process is gone: nothing more comes from it."""
        if rank not in self.living:
            return []
        self.living.discard(rank)
        return self._decided() if self.is_changing else self._pause()

    def agreed(self, rank: int, view: int) -> list[Order]:
        """This rank has seen that the view changes, and moves no more until it has."""
        if view != self.view or rank not in self.living:
            return []
        self._agreed.add(rank)
        return self._decided()

    def _pause(self) -> list[Order]:
        self.view += 1
        self._agreed.clear()
        return [Pause(self.view)]

    def _decided(self) -> list[Order]:
        if not self.living or not self._agreed >= self.living:
            return []
        self.committed = max(self.committed, self._committed())
        self.members = tuple(sorted(self.living))
        self.view += 1
        return [Decide(self.view, self.members, self.committed)]

    def _committed(self) -> int:
        """The last turn that all members of the view that ends had arrived at; 0: none, in this view."""
        places = (self.arrived(rank) for rank in self.members)
        return min(turn if view == self.view - 1 else 0 for view, turn in places)
