"""The members of a run on shared memory, as the supervisor keeps them: views, acknowledgments, the committed turn.

    events:  lost(rank), agreed(rank, view)
    input:   arrived(rank) -> (view, turn), read when a view ends
    actions: Pause(view)                          an odd view: every rank acknowledges it
             Decide(view, members, committed)     all have: the next view begins

A view ends when a member is lost. It ends in two steps, because a member that has not seen the end yet may still arrive
at turns. Once all living members have acknowledged it, nothing moves, and the last turn at which all members of the old
view had arrived, the dead included, is committed. It stays committed in later views, because a member may see only
the last of several changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Pause:
    """Show this odd view."""

    view: int


@dataclass(frozen=True, slots=True)
class Decide:
    """Write down the members and the committed turn, then show this even view."""

    view: int
    members: tuple[int, ...]
    committed: int


Order = Pause | Decide


@dataclass(slots=True)
class Membership:
    """See the module.

    Args:
        members: the ranks of the first view.
        arrived: returns the view and the turn at which a rank has arrived last.
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
        """The process of this rank has ended."""
        if rank not in self.living:
            return []
        self.living.discard(rank)
        return self._decided() if self.is_changing else self._pause()

    def agreed(self, rank: int, view: int) -> list[Order]:
        """This rank has acknowledged the odd view, and arrives nowhere until the next one."""
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
        """Return the last turn at which all members of the view that ends had arrived. 0: none, in this view."""
        places = (self.arrived(rank) for rank in self.members)
        return min(turn if view == self.view - 1 else 0 for view, turn in places)
