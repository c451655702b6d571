"""Messages and bytes of a change in a group of many members: about as many for each member, however many there are.

Members join, leave and die, one at a time or all at once. Messages over the links are counted, and their bytes.
"""

import random
from collections.abc import Callable, Collection, Iterator

import pytest
from played_groups import PlayedGroup, check

from fanwise.rpc.membership.coordinator import Coordinator, SendUpdate
from fanwise.rpc.membership.members import Departure, Member

# An update and its confirmation for each member and change, and a little for the change itself.
MESSAGES_MAX = 2.5
# An update of one change, and its confirmation. All members would be more than a hundred bytes each.
BYTES_MAX = 200


class Churn:
    """A group that changes."""

    def __init__(self, seed: int, size: int) -> None:
        self.group = PlayedGroup(seed, None)
        self.size = size
        self._chance = random.Random(seed)
        self._ranks = self._chance.sample(range(1, size), 2 * max(1, size // 10))
        self._counted = (0, 0)
        self.group.start(0)
        self._run(2.0)

    def phases(self, spread_s: float) -> Iterator[tuple[str, int, float, float]]:
        """Yield each kind of change, its number, and messages and bytes per change and member."""
        for name, ranks, change in (
            ("join", range(1, self.size), self.group.start),
            ("leave", self._ranks[::2], lambda rank: self.group.living(rank)[0].leave()),
            ("die", self._ranks[1::2], lambda rank: self.group.living(rank)[0].stop(killed=True)),
        ):
            self._count()
            for rank in ranks:
                self._later(spread_s, change, rank)
            self._run(spread_s + 100.0)
            check(self.group)
            num_messages, num_bytes = self._count()
            divisor = len(ranks) * self.size
            yield name, len(ranks), num_messages / divisor, num_bytes / divisor

    def _later(self, spread_s: float, change: Callable[[int], None], rank: int) -> None:
        self.group.sim.after(self._chance.uniform(0.0, spread_s), lambda: change(rank))

    def _run(self, for_s: float) -> None:
        self.group.sim.run(until_s=self.group.sim.clock.now_s() + for_s)

    def _count(self) -> tuple[int, int]:
        before, self._counted = self._counted, (self.group.num_messages.total(), self.group.num_bytes.total())
        return self._counted[0] - before[0], self._counted[1] - before[1]


SIZES = [10, 100, pytest.param(1000, marks=pytest.mark.soak)]


@pytest.mark.parametrize("size", SIZES)
def test_messages_and_bytes_of_a_change_do_not_depend_on_the_size(size: int) -> None:
    for name, _, messages_each, bytes_each in Churn(1, size).phases(spread_s=0.1 * size):
        assert messages_each < MESSAGES_MAX and bytes_each < BYTES_MAX, name


def _welcome_all(self: Coordinator, change: Member | Departure, to: set[int], waiting: Collection[int] = ()) -> object:
    actions = _publish(self, change, to, waiting)
    return [self._welcome(action.to) if isinstance(action, SendUpdate) else action for action in actions]


_publish = Coordinator._publish


def test_a_coordinator_that_sends_all_members_for_each_change_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "_publish", _welcome_all)
    with pytest.raises(AssertionError):
        test_messages_and_bytes_of_a_change_do_not_depend_on_the_size(100)


def test_nothing_is_kept_of_former_members() -> None:
    churn = Churn(3, 20)
    for _ in churn.phases(spread_s=0.1):
        machine = churn.group.holder.machine if churn.group.holder is not None else None
        assert machine is not None and machine._confirmations == {}
