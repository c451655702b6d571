"""What a state makes of views, and what the coordinator decides, without any link or time."""

from dataclasses import replace

import pytest

from fanwise.rpc.membership.coordinator import (
    Admit,
    Coordinator,
    Count,
    Dismiss,
    Fence,
    Order,
    Over,
    Refuse,
    Rest,
    Show,
)
from fanwise.rpc.membership.members import Hello, Joined, Left, Lost, Member, MemberState, View
from fanwise.rpc.worker_info import name_error


def member(rank: int, *, name: str = "", life: int = 0) -> Member:
    return Member(name or f"w{rank}", rank, 100 * (life + 1) + rank, f"address {rank}", "host/1", 1000 + rank)


def hello(rank: int, world_size: int | None = None, *, name: str = "", life: int = 0) -> Hello:
    return Hello(member(rank, name=name, life=life), world_size)


class Played:
    """A coordinator whose members see every view at once."""

    def __init__(self, world_size: int | None) -> None:
        self.machine = Coordinator(100, world_size=world_size)
        self.orders: list[Order] = []

    def do(self, orders: list[Order]) -> list[Order]:
        """The orders, and all that follow when each view is seen."""
        done = list(orders)
        for order in done:
            if isinstance(order, Show):
                done += self.machine.seen(order.to, order.view.version)
        self.orders += done
        return done

    def join(self, *hellos: Hello) -> list[Order]:
        return [order for one in hellos for order in self.do(self.machine.hello(one))]


def admitted(orders: list[Order]) -> list[int]:
    return sorted(order.to for order in orders if isinstance(order, Admit))


def refusal(orders: list[Order]) -> Refuse:
    (found,) = [order for order in orders if isinstance(order, Refuse)]
    return found


def static(size: int) -> Played:
    played = Played(size)
    played.join(*(hello(rank, size) for rank in range(size)))
    return played


def test_a_static_group_admits_nobody_until_all_are_there() -> None:
    played = Played(3)
    assert played.join(hello(1, 3), hello(0, 3)) == []
    assert played.machine.missing() == [2]
    assert admitted(played.join(hello(2, 3))) == [100, 101, 102]


def test_a_newcomer_is_admitted_when_all_have_seen_it() -> None:
    played = Played(None)
    played.join(hello(0))
    orders = played.machine.hello(hello(1))
    version = played.machine.view.version
    assert admitted(orders) == []
    assert admitted(played.machine.seen(101, version)) == []
    assert admitted(played.machine.seen(100, version)) == [101]


def test_who_dies_is_not_waited_for_by_a_newcomer() -> None:
    played = Played(None)
    played.join(hello(0), hello(1))
    played.machine.hello(hello(2))
    played.do(played.machine.seen(100, played.machine.view.version))
    played.do(played.machine.seen(102, played.machine.view.version))
    assert admitted(played.do(played.machine.lose(101, "dead"))) == [102]


@pytest.mark.parametrize(
    ("size", "wrong", "text"),
    [
        (None, hello(2, name="w1"), "RPC worker name 'w1' is not unique"),
        (
            None,
            hello(1, name="other"),
            "rank 1, which 'other' (rank 1, process 1001 on host) asks for, is taken by",
        ),
        (None, hello(-1), "out of range"),
        (None, hello(2, 3), "RPC group mixes statically and dynamically initialized members which is not supported."),
        (None, hello(2, name="a b"), "name must match"),
        (2, hello(2, 2), "rank 2 of 'w2' is out of range: world_size=2"),
        (2, hello(1, 3), "world_size=3, but the group has world_size=2"),
        (2, hello(1), "RPC group mixes statically and dynamically initialized members which is not supported."),
        (2, hello(1, 2, life=1), "is taken by 'w1'"),
    ],
)
def test_who_does_not_fit_is_told_why(size: int | None, wrong: Hello, text: str) -> None:
    played = Played(size)
    played.join(hello(0, size), hello(1, size))
    wrong = Hello(replace(wrong.member, incarnation=999), wrong.world_size)
    refused = refusal(played.join(wrong))
    assert refused.kind == "refused" and text in refused.text
    assert sorted(played.machine.members) == [0, 1]


def test_a_name_that_two_have_is_told_to_all_of_a_static_group() -> None:
    played = Played(3)
    orders = played.join(hello(0, 3), hello(1, 3), hello(2, 3, name="w0"))
    assert [order.to for order in orders if isinstance(order, Refuse)] == [100, 101, 102]
    assert all("'w0' is not unique" in order.text for order in orders if isinstance(order, Refuse))


@pytest.mark.parametrize("name", ["", " ", "abc*", "a" * 128, "a\n"])
def test_a_wrong_name_is_refused(name: str) -> None:
    assert name_error(name) is not None


def test_a_right_name_is_taken() -> None:
    assert name_error("Az09_:-") is None and name_error("a" * 127) is None


@pytest.mark.parametrize("size", [None, 2])
def test_a_lost_worker_may_come_back_as_a_new_life_and_only_so(size: int | None) -> None:
    played = Played(size)
    played.join(hello(0, size), hello(1, size))
    assert Fence(101, "killed") in played.do(played.machine.lose(101, "killed"))
    again = refusal(played.join(hello(1, size)))
    assert (again.kind, again.text) == ("fenced", "killed")
    assert admitted(played.join(hello(1, size, life=1))) == [201]


def test_who_was_declared_lost_teaches_nobody_anything() -> None:
    played = Played(None)
    played.join(hello(0), hello(1))
    played.do(played.machine.lose(101, "stopped"))
    alone = View((9, 9), (member(1),), ((100, "it was alone"),), 101)
    assert refusal(played.join(Hello(member(1), None, alone))).kind == "fenced"
    assert played.machine.lost == {101: "stopped"} and sorted(played.machine.members) == [0]


def forgetful(*, kept: int = 0) -> Played:
    """A group whose coordinator has forgotten why worker 1 was lost; w0 and w2 are there."""
    played = Played(None)
    played.machine = Coordinator(100, world_size=None, reasons_kept=kept)
    played.join(hello(0), hello(1), hello(2), hello(3))
    played.do(played.machine.lose(101, "stopped"))
    played.do(played.machine.lose(103, "killed"))
    return played


def test_who_is_not_remembered_any_more_is_fenced_when_it_wakes() -> None:
    played = forgetful()
    assert played.machine.lost == {103: "killed"}, "worker 1's reason is not needed: all have read it"
    old = View((1, 3), (member(0), member(1), member(2)), (), 100, 100)
    again = refusal(played.join(Hello(member(1), None, old)))
    assert (again.kind, again.text) == ("fenced", "the group has gone on without it since it was last heard of")
    alone = View((9, 9), (member(1),), ((100, "it was alone"),), 101, 100)
    assert refusal(played.join(Hello(member(1), None, alone))).kind == "fenced"
    assert sorted(played.machine.members) == [0, 2] and played.machine.lost == {103: "killed"}


def test_the_newest_reasons_are_kept() -> None:
    assert forgetful(kept=2).machine.lost == {101: "stopped", 103: "killed"}


def test_a_reason_is_kept_until_all_members_have_read_it() -> None:
    machine = Coordinator(100, world_size=None, reasons_kept=0)
    for rank in range(4):
        machine.hello(hello(rank))
    machine.seen(100, machine.view.version)
    machine.lose(103, "killed")
    for one in (100, 101):
        machine.seen(one, machine.view.version)
    machine.lose(101, "killed too")
    assert machine.lost == {103: "killed", 101: "killed too"}, "worker 2 has not read it"
    for one in (100, 102):
        machine.seen(one, machine.view.version)
    machine.lose(102, "killed as well")
    assert machine.lost == {102: "killed as well"}


def test_a_successor_fences_whom_it_only_knows_to_be_missing() -> None:
    three = tuple(member(rank) for rank in range(3))
    machine = Coordinator(300, world_size=None)
    machine.hello(hello(3, life=2))
    machine.hello(Hello(three[1], None, View((1, 3), three, (), 100, 100)))
    orders = machine.hello(Hello(three[2], None, View((1, 5), (three[0], three[2]), (), 100, 100)))
    assert [order.to for order in orders if isinstance(order, Fence)] == [101], "it came first, and had been lost"
    assert sorted(machine.members) == [0, 2, 3]


def test_a_member_that_returns_to_the_coordinator_that_it_had_teaches_it_nothing() -> None:
    played = Played(None)
    played.join(hello(0), hello(1), hello(2))
    old = played.machine.view
    played.do(played.machine.leave(102))
    version = played.machine.view.version
    assert admitted(played.join(Hello(member(1), None, old))) == [101]
    assert sorted(played.machine.members) == [0, 1], "worker 2 has left, whatever the old view says"
    assert played.machine.view.version[0] == version[0]


def test_a_link_of_who_knows_as_much_and_is_missing_is_refused_and_that_of_a_newcomer_is_not() -> None:
    view = View((2, 5), (member(0),), ((101, "killed"),), 100)
    assert view.refusal(101, (1, 1)) == "killed"
    assert view.refusal(102, (2, 5)) is not None and view.refusal(102, (1, 9)) is not None
    assert view.refusal(103, (2, 6)) is None and view.refusal(100, (1, 1)) is None


def test_who_is_lost_already_is_not_lost_again() -> None:
    played = Played(None)
    played.join(hello(0), hello(1))
    played.do(played.machine.lose(101, "killed"))
    assert played.machine.lose(101, "again") == [] and played.machine.lost == {101: "killed"}


def test_who_leaves_is_dismissed_when_all_know() -> None:
    played = Played(None)
    played.join(hello(0), hello(1), hello(2))
    orders = played.machine.leave(101)
    assert Dismiss(101) not in orders
    played.machine.seen(100, played.machine.view.version)
    assert Dismiss(101) in played.machine.seen(102, played.machine.view.version)
    assert played.machine.lost == {}


def test_events_are_the_differences_of_views_and_old_views_are_none() -> None:
    one, two, three = member(0), member(1), member(2)
    state = MemberState(one, None)
    assert state.shown(View((1, 1), (one, two))) == []
    lost = ((two.incarnation, "killed"),)
    assert state.shown(View((1, 3), (one, three), lost)) == [Lost(two, "killed"), Joined(three)]
    assert state.shown(View((1, 2), (one,))) == []
    assert state.shown(View((2, 0), (one,), lost)) == [Left(three)]
    assert state.members == {0: one}


def test_a_view_that_calls_us_lost_fences_us() -> None:
    one = member(0)
    state = MemberState(one, None)
    state.shown(View((1, 1), (one,)))
    state.shown(View((1, 2), (), ((one.incarnation, "stopped"),)))
    assert state.fenced == "stopped"


# -- the barrier --------------------------------------------------------------------------------------------------


def arrive(played: Played, *members: int) -> list[Order]:
    return [order for one in members for order in played.do(played.machine.arrive(one))]


def counted(played: Played, counts: dict[int, tuple[int, int]]) -> list[Order]:
    round = played.machine.barrier.round
    return [order for one, two in counts.items() for order in played.do(played.machine.counted(one, round, two))]


def test_the_barrier_ends_after_two_equal_rounds_of_nothing_and_a_last_one() -> None:
    played = static(2)
    assert arrive(played, 101) == []
    assert arrive(played, 100) == [Count(100, 1, False), Count(101, 1, False)]
    assert counted(played, {100: (1, 5), 101: (0, 3)}) == [Rest(2)]
    assert played.machine.next_round(2) == [Count(100, 2, False), Count(101, 2, False)]
    assert counted(played, {100: (0, 5), 101: (0, 3)}) == [Count(100, 3, False), Count(101, 3, False)]
    assert counted(played, {100: (0, 5), 101: (0, 4)}) == [Count(100, 4, False), Count(101, 4, False)]
    assert counted(played, {100: (0, 5), 101: (0, 4)}) == [Count(100, 5, True), Count(101, 5, True)]
    assert counted(played, {100: (0, 5), 101: (0, 4)}) == [Over(100), Over(101)]


def test_who_dies_in_the_barrier_is_no_longer_waited_for() -> None:
    played = static(3)
    assert arrive(played, 100, 101) == []
    assert Count(100, 1, False) in played.do(played.machine.lose(102, "killed"))
    counted(played, {100: (0, 1)})
    assert Count(100, 2, False) in played.do(played.machine.lose(101, "killed"))
    counted(played, {100: (0, 1)})
    assert counted(played, {100: (0, 1)})[-1] == Over(100)


def test_who_says_that_calls_are_open_is_known_for_a_message() -> None:
    played = static(2)
    arrive(played, 100, 101)
    assert played.machine.busy() == []
    counted(played, {101: (2, 5)})
    assert [member.id for member in played.machine.busy()] == [1]


def test_the_numbers_of_another_round_are_not_taken() -> None:
    played = static(2)
    arrive(played, 100, 101)
    assert played.machine.counted(100, 7, (0, 0)) == [] and played.machine.barrier.counts == {}


def test_nobody_new_comes_in_while_rounds_are_counted() -> None:
    played = static(2)
    arrive(played, 100, 101)
    assert refusal(played.join(hello(1, 2, life=1))).kind == "again"


# -- succession ---------------------------------------------------------------------------------------------------


def test_the_next_coordinator_learns_what_others_know_better() -> None:
    three = tuple(member(rank) for rank in range(3))
    old, new = View((1, 3), three, (), 100), View((1, 5), (*three[:2], member(3)), ((102, "killed"),), 100)
    machine = Coordinator(101, world_size=None, known=old)
    machine.lose(100, "killed too")
    machine.hello(Hello(three[1], None, old))
    machine.hello(Hello(member(3), None, new))
    assert sorted(machine.members) == [1, 3]
    assert machine.lost == {100: "killed too", 102: "killed"}
    assert machine.view.version > new.version


def test_who_was_leaving_when_the_coordinator_went_is_no_member_of_the_next() -> None:
    four = tuple(member(rank) for rank in range(4))
    view = View((1, 4), four, (), 100)
    machine = Coordinator(101, world_size=None, known=view)
    machine.gone(100)
    machine.hello(Hello(four[1], None, view))
    orders = machine.hello(Hello(four[2], None, view, leaving=True))
    assert sorted(machine.members) == [1, 3] and 102 not in machine.present
    # The one who has not come yet would take it for a member, if it were the next coordinator.
    assert not {Admit(102), Dismiss(102)} & set(orders)
    machine.seen(101, machine.view.version)
    assert Dismiss(102) not in machine.hello(Hello(four[3], None, view))
    machine.seen(101, machine.view.version)
    assert Dismiss(102) in machine.seen(103, machine.view.version)


def test_a_coordinator_that_leaves_goes_when_all_have_come_and_know() -> None:
    two = tuple(member(rank) for rank in range(2))
    view = View((1, 2), two, (), 99)
    machine = Coordinator(100, world_size=None, known=view)
    machine.hello(Hello(two[0], None, view))
    assert Dismiss(100) not in machine.leave(100)
    assert Dismiss(100) not in machine.hello(Hello(two[1], None, view))
    assert Dismiss(100) in machine.seen(101, machine.view.version)


def test_a_coordinator_that_was_restarted_at_once_takes_the_members_of_the_old_one() -> None:
    view = View((4, 2), (member(0), member(1)), (), 100)
    machine = Coordinator(200, world_size=2)
    machine.hello(Hello(member(0, life=1), 2))
    machine.hello(Hello(member(1), 2, view))
    assert {m.incarnation for m in machine.members.values()} == {200, 101}
    assert 100 in machine.lost and machine.view.version > view.version


def test_the_shutdown_is_over_when_a_returning_member_knows_that_nothing_is_open() -> None:
    view = View((1, 3), tuple(member(rank) for rank in range(3)), (), 100)
    machine = Coordinator(101, world_size=3, known=view)
    machine.lose(100, "killed")
    orders = machine.hello(Hello(member(1), 3, view, arrived=True, prepared=True))
    assert Over(101) in orders
    assert Over(102) in machine.hello(Hello(member(2), 3, view, arrived=True))


def test_who_has_gone_is_known_by_rank_and_what_other_threads_look_at_stays_as_it_is() -> None:
    state = MemberState(member(0), None)
    state.shown(View((1, 1), (member(0), member(1)), (), 100, 100))
    state.shown(View((1, 2), (member(0),), (), 100, 100))
    before = state.former
    assert before == {1: member(1)}
    state.shown(View((1, 3), (member(0), member(1, life=1)), (), 100, 100))
    state.shown(View((1, 4), (member(0),), (), 100, 100))
    assert state.former == {1: member(1, life=1)} and before == {1: member(1)}
