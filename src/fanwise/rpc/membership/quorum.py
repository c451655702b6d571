"""Decides whether one side of a partition may continue. Pure: no link, thread or clock.

    V    all members of a view          R    V without members that are certainly dead or have left
    S    the members connected to this coordinator: this side

S may continue if it is more than half of R, or exactly half and contains the lowest rank of R. Two sides have no member
in common, so at most one may continue, whatever each knows about deaths, as long as no live member counts as dead. The
coordinator usually has the lowest rank: of two hosts with one worker each, its host continues.

A view alone decides only after all its members have seen it; until then each earlier view must also have a majority.
Otherwise a coordinator that is cut off during a change would count by a view that the others do not have. A new
coordinator uses the newest view of all connected members.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from .members import Member

Voter = tuple[int, int]  # rank, incarnation


@dataclass(slots=True)
class Quorum:
    """The views that count, the oldest first, and who is dead for certain."""

    _open: list[tuple[int, frozenset[Voter]]] = field(default_factory=list)
    _gone: set[int] = field(default_factory=set)

    def shown(self, number: int, members: Iterable[Member]) -> None:
        """A view has been shown, under this number."""
        self._open.append((number, frozenset((member.id, member.incarnation) for member in members)))

    def learned(self, number: int, members: Iterable[Member], *, instead: bool) -> None:
        """A newer view than ours has come, and the next one to be shown has this number. `instead`: only it counts."""
        self._open = [] if instead else [(number, voters) for _, voters in self._open]
        self.shown(number, members)

    def gone(self, incarnation: int) -> None:
        """It has ended for certain, or left."""
        self._gone.add(incarnation)

    def seen(self, numbers: Mapping[int, int]) -> None:
        """The newest number that each who is present has seen. What came before a view that all have seen is over."""
        for place in reversed(range(len(self._open))):
            number, voters = self._open[place]
            if all(numbers.get(incarnation, -1) >= number for _, incarnation in self._living(voters)):
                del self._open[:place]
                return

    def may_go_on(self, present: Set[int]) -> bool:
        """Whether this side may."""
        return all(_is_majority(self._living(voters), present) for _, voters in self._open)

    def count(self, present: Set[int]) -> tuple[int, int]:
        """For messages: how many are on this side, and of how many, where it is too few."""
        for _, voters in self._open:
            living = self._living(voters)
            if not _is_majority(living, present):
                return len([1 for _, incarnation in living if incarnation in present]), len(living)
        return len(present), len(present)

    def _living(self, voters: frozenset[Voter]) -> list[Voter]:
        return sorted(voter for voter in voters if voter[1] not in self._gone)


def _is_majority(living: list[Voter], present: Set[int]) -> bool:
    here = sum(incarnation in present for _, incarnation in living)
    return 2 * here > len(living) or (2 * here == len(living) and (not living or living[0][1] in present))
