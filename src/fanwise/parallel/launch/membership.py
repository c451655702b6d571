"""Decides which ranks of a run on shared memory are members, and which operations are committed. A state machine.

    events:  lost(rank), acknowledged(rank, view)
    input:   arrived(rank) -> (view, seq), read when a view ends
    actions: View(number)                        begin an odd view, which every rank acknowledges
             View(number, members, committed)    begin the next even view

A view with the same members has an even number. When a member is lost, the view becomes odd. It does not become even at
once, because ranks that have not noticed the odd view may still arrive at operations. After all living members have
acknowledged the odd view, no rank arrives anywhere. Then the last operation at which all members of the old view had
arrived, also the dead ones, is committed. It stays committed, because some ranks may notice only the last of several
views.
"""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class View:
    """Show this view to the ranks. First write its members and the committed operation, if the number is even."""

    number: int
    members: tuple[int, ...] = ()
    committed: int = 0


@dataclass(slots=True)
class Membership:
    members: tuple[int, ...]  # of the current or last even view
    arrived: Callable[[int], tuple[int, int]]  # view and sequence number of the last operation of a rank
    view: int = 2
    committed: int = 0
    living: set[int] = field(default_factory=set)
    _acknowledged: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.living = set(self.members)

    @property
    def is_changing(self) -> bool:
        return self.view % 2 == 1

    def lost(self, rank: int) -> View | None:
        """The process of this rank has ended."""
        if rank not in self.living:
            return None
        self.living.discard(rank)
        if self.is_changing:
            return self._decide_if_complete()
        self.view += 1
        self._acknowledged.clear()
        return View(self.view)

    def acknowledged(self, rank: int, view: int) -> View | None:
        """This rank has seen the odd view, and arrives at no operation before the next view."""
        if view != self.view or rank not in self.living:
            return None
        self._acknowledged.add(rank)
        return self._decide_if_complete()

    def _decide_if_complete(self) -> View | None:
        if not self.living or not self._acknowledged >= self.living:
            return None
        self.committed = max(self.committed, self._last_complete())
        self.members = tuple(sorted(self.living))
        self.view += 1
        return View(self.view, self.members, self.committed)

    def _last_complete(self) -> int:
        """Return the last operation at which all members of the old view had arrived. 0: none in that view."""
        arrivals = (self.arrived(rank) for rank in self.members)
        return min(seq if view == self.view - 1 else 0 for view, seq in arrivals)
