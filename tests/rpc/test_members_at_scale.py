"""What a group of many members says when it changes: about as much for each member and change, however many there are.

Members join, leave and die, one after another or all at once; then the coordinator dies. What is said over the links
is counted, and as bytes.
"""

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_groups import PlayedGroup, agree

from fanwise.rpc.membership.coordinator import Coordinator, Order, Show
from fanwise.rpc.membership.members import Change, Hello, Joined, Left, Lost, Member, MemberState, View

# Each member is told of each change, and answers; what leads to the change is little beside that.
MESSAGES_MAX = 2.5
# What a change of one member is, and the answer. A view has more than a hundred bytes for each member.
BYTES_MAX = 200


class Churn:
    """A group, and what was said in it since the last look."""

    def __init__(self, seed: int, size: int) -> None:
        self.group = PlayedGroup(seed, None)
        self.size = size
        self._chance = random.Random(seed)
        self._ranks = self._chance.sample(range(1, size), 2 * max(1, size // 10))
        self._said = (0, 0)
        self.group.start(0)
        self._run(2.0)

    def phases(self, spread_s: float) -> Iterator[tuple[str, int, float, float]]:
        """What happened, how many times, and how many messages and bytes that was for each time and member."""
        for name, ranks, happen in (
            ("join", range(1, self.size), self.group.start),
            ("leave", self._ranks[::2], lambda rank: self.group.living(rank)[0].leave()),
            ("die", self._ranks[1::2], lambda rank: self.group.living(rank)[0].go(killed=True)),
        ):
            self._look()
            for rank in ranks:
                self._later(spread_s, happen, rank)
            self._run(spread_s + 100.0)
            agree(self.group)
            num_messages, num_bytes = self._look()
            for_each = len(ranks) * self.size
            yield name, len(ranks), num_messages / for_each, num_bytes / for_each

    def coordinator_dies(self) -> tuple[float, float]:
        """How many messages, and bytes, that is for each member."""
        holder = self.group.holder
        assert holder is not None
        self._look()
        holder.go(killed=True)
        self._run(200.0)
        agree(self.group)
        num_messages, num_bytes = self._look()
        return num_messages / self.size, num_bytes / self.size

    def _later(self, spread_s: float, happen: Callable[[int], None], rank: int) -> None:
        self.group.sim.after(self._chance.uniform(0.0, spread_s), lambda: happen(rank))

    def _run(self, for_s: float) -> None:
        self.group.sim.run(until_s=self.group.sim.clock.now_s() + for_s)

    def _look(self) -> tuple[int, int]:
        before, self._said = self._said, (self.group.num_messages.total(), self.group.num_bytes.total())
        return self._said[0] - before[0], self._said[1] - before[1]


SIZES = [10, 100, pytest.param(1000, marks=pytest.mark.soak)]


@pytest.mark.parametrize("size", SIZES)
def test_a_change_is_as_many_messages_and_bytes_for_each_member_however_many_there_are(size: int) -> None:
    churn = Churn(1, size)
    for name, _, messages_each, bytes_each in churn.phases(spread_s=0.1 * size):
        assert messages_each < MESSAGES_MAX and bytes_each < BYTES_MAX, name
    messages_each, bytes_each = churn.coordinator_dies()
    assert messages_each < 10
    assert bytes_each < 2 * BYTES_MAX * size, "it brings its view, and is told the new one"


@pytest.mark.parametrize("size", SIZES)
def test_changes_that_come_all_at_once_are_told_together(size: int) -> None:
    for name, number, messages_each, bytes_each in Churn(2, size).phases(spread_s=0.1):
        assert messages_each * number < 60, f"{name}: {number} changes are a few for each member"
        assert bytes_each < BYTES_MAX, name


def _always_whole(self: Coordinator, to: int) -> list[object]:
    self._told.pop(to, None)
    return _show(self, to)  # type: ignore[return-value]


def _at_once(self: Coordinator, to: int) -> list[object]:
    self.seen_number[to], before = self.number, self.seen_number[to]
    orders = _show(self, to)
    self.seen_number[to] = before
    return orders  # type: ignore[return-value]


_show = Coordinator._show


def test_a_coordinator_that_tells_more_than_has_changed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "_show", _always_whole)
    with pytest.raises(AssertionError):
        test_a_change_is_as_many_messages_and_bytes_for_each_member_however_many_there_are(100)


def test_a_coordinator_that_does_not_wait_for_who_was_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "_show", _at_once)
    with pytest.raises(AssertionError):
        test_changes_that_come_all_at_once_are_told_together(100)


# -- changes -------------------------------------------------------------------------------------------------------


def member(rank: int, life: int) -> Member:
    return Member(f"w{rank}", rank, 100 * life + rank, "", "here", 0)


lives = st.dictionaries(st.integers(0, 6), st.integers(1, 3))
reasons = st.dictionaries(st.integers(100, 306), st.sampled_from(["killed", "stopped"]), max_size=5)


def view(number: int, lives: dict[int, int], lost: dict[int, str]) -> View:
    members = tuple(member(rank, lives[rank]) for rank in sorted(lives))
    return View((3, number), members, tuple(lost.items()), coordinator=7, group=5)


@given(lives, reasons, lives, reasons, st.sets(st.integers(100, 306)))
def test_a_change_and_the_view_before_it_are_the_view_after_it(
    before: dict[int, int], lost: dict[int, str], after: dict[int, int], more: dict[int, str], forgotten: set[int]
) -> None:
    kept = {one: why for one, why in lost.items() if one not in forgotten}
    first, second = view(4, before, lost), view(9, after, kept | {one: more[one] for one in more.keys() - lost.keys()})
    told_whole, told_change = MemberState(member(9, 9), None), MemberState(member(9, 9), None)
    for state in (told_whole, told_change):
        state.shown(first)
    assert told_change.shown(Change.between(first, second)) == told_whole.shown(second)
    assert told_change == told_whole and told_change.view == second
    assert list(told_change.members) == sorted(after)


def test_events_of_a_change_say_who_was_lost_who_left_and_who_came() -> None:
    state = MemberState(member(0, 1), None)
    state.shown(view(1, {0: 1, 1: 1, 2: 1}, {}))
    change = Change((3, 5), 1, (1, 2), (member(1, 2),), ((101, "killed"),), ())
    assert state.shown(change) == [Lost(member(1, 1), "killed"), Left(member(2, 1)), Joined(member(1, 2))]
    assert state.shown(change) == [], "it comes again"
    assert state.members == {0: member(0, 1), 1: member(1, 2)}


@pytest.mark.parametrize(
    "change",
    [
        Change((3, 9), 4, (), (), (), ()),
        Change((4, 9), 5, (), (), (), ()),
        Change((3, 9), 5, (6,), (), (), ()),
    ],
    ids=["of an older view", "of another term", "without one who was not there"],
)
def test_a_change_of_another_view_is_refused_and_changes_nothing(change: Change) -> None:
    state = MemberState(member(0, 1), None)
    with pytest.raises(ValueError, match=r"and the newest known is None"):
        state.shown(change)
    known = view(5, {0: 1, 1: 1}, {})
    state.shown(known)
    with pytest.raises(ValueError, match=r"and the newest known is \(3, 5\)"):
        state.shown(change)
    assert state.view == known and state.members == {0: member(0, 1), 1: member(1, 1)}


# -- who is told what ----------------------------------------------------------------------------------------------


def hello(rank: int, known: View | None = None) -> Hello:
    return Hello(member(rank, 1), None, known)


def shown(orders: list[Order]) -> dict[int, View | Change]:
    return {order.to: order.view for order in orders if isinstance(order, Show)}


def seen(machine: Coordinator, *members: int) -> list[Order]:
    return [order for one in members for order in machine.seen(one, machine.view.version)]


def test_who_comes_is_told_the_whole_view_and_the_others_what_has_changed() -> None:
    machine = Coordinator(100, world_size=None)
    machine.hello(hello(0))
    seen(machine, 100)
    told = shown(machine.hello(hello(1)))
    assert told == {100: machine.view, 101: machine.view}, "the coordinator's own process is told all of it"
    seen(machine, 100, 101)
    told = shown(machine.hello(hello(2)))
    assert told[102] == machine.view
    assert told[101] == Change((1, 3), 2, (), (member(2, 1),), (), ())


def test_who_has_not_answered_is_told_the_rest_when_it_does() -> None:
    machine = Coordinator(100, world_size=None)
    for rank in range(3):
        machine.hello(hello(rank))
        seen(machine, *(100 + known for known in range(rank + 1)))
    version = machine.view.version
    assert set(shown(machine.lose(102, "killed"))) == {100, 101}
    assert set(shown(machine.hello(hello(3)))) == {103}, "the others have not answered"
    assert set(shown(machine.lose(103, "killed too"))) == set()
    told = shown(machine.seen(101, (version[0], version[1] + 1)))
    assert told == {101: Change(machine.view.version, version[1] + 1, (), (), ((103, "killed too"),), ())}


def test_who_comes_again_over_another_link_is_told_the_whole_view() -> None:
    machine = Coordinator(100, world_size=None)
    for rank in range(2):
        machine.hello(hello(rank))
        seen(machine, *(100 + known for known in range(rank + 1)))
    assert shown(machine.hello(hello(1, machine.view)))[101] == machine.view


def test_when_a_member_knows_better_all_are_told_the_whole_view_anew() -> None:
    known = View((1, 3), tuple(member(rank, 1) for rank in range(4)), (), 100, 100)
    machine = Coordinator(101, world_size=None, known=known)
    machine.lose(100, "killed")
    for rank in (1, 2):
        machine.hello(hello(rank, known))
        seen(machine, 101, 102)
    newer = View((5, 1), (member(1, 1), member(2, 1), member(3, 1), member(4, 1)), ((100, "killed"),), 103, 100)
    told = shown(machine.hello(hello(3, newer)))
    assert machine.view.version > newer.version
    assert told == dict.fromkeys((101, 102, 103), machine.view)


def test_of_members_that_are_gone_nothing_is_kept() -> None:
    churn = Churn(3, 20)
    for _ in churn.phases(spread_s=0.1):
        machine = churn.group.holder.machine if churn.group.holder is not None else None
        assert machine is not None
        assert set(machine._told) == machine.present == set(machine.seen_number)
        assert set(machine._views) == {machine.number}
