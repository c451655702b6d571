"""Decisions of the coordinator, and the view that a member makes of its updates, without any link or time."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.rpc.membership.coordinator import (
    Action,
    Confirm,
    Coordinator,
    Refuse,
    RequestCounts,
    SendUpdate,
    StartTimer,
)
from fanwise.rpc.membership.members import (
    Departure,
    Hello,
    Joined,
    Left,
    Lost,
    Member,
    MemberState,
    Update,
)
from fanwise.rpc.worker_info import name_error


def member(rank: int, *, name: str = "", life: int = 0) -> Member:
    return Member(name or f"w{rank}", rank, 100 * (life + 1) + rank, f"address {rank}", "host/1", 1000 + rank)


def hello(rank: int, world_size: int | None = None, *, name: str = "", life: int = 0) -> Hello:
    return Hello(member(rank, name=name, life=life), world_size)


class Group:
    """A coordinator whose members confirm every update at once, except those in `silent`."""

    def __init__(self, world_size: int | None) -> None:
        self.machine = Coordinator(member(0), world_size=world_size)
        self.states: dict[int, MemberState] = {}
        self.silent: set[int] = set()

    def execute(self, actions: list[Action]) -> list[Action]:
        """Return the actions, and all that follow from them."""
        done = list(actions)
        for action in done:
            if isinstance(action, SendUpdate):
                self.states.setdefault(action.to, MemberState()).apply(action.update)
                if action.to not in self.silent:
                    done += self.machine.confirm(action.to, action.update.number)
        return done

    def join(self, *hellos: Hello) -> list[Action]:
        return [action for one in hellos for action in self.execute(self.machine.hello(one))]


def confirmed(actions: list[Action]) -> list[int]:
    return sorted(action.to for action in actions if isinstance(action, Confirm))


def refusal(actions: list[Action]) -> Refuse:
    (result,) = [action for action in actions if isinstance(action, Refuse)]
    return result


def updates(actions: list[Action]) -> dict[int, Update]:
    return {action.to: action.update for action in actions if isinstance(action, SendUpdate)}


def static(size: int) -> Group:
    group = Group(size)
    group.join(*(hello(rank, size) for rank in range(size)))
    return group


def dynamic(size: int) -> Group:
    group = Group(None)
    group.join(*(hello(rank) for rank in range(size)))
    return group


# -- joining -------------------------------------------------------------------------------------------------------


def test_a_static_group_admits_nobody_until_all_have_joined() -> None:
    group = Group(3)
    assert group.join(hello(1, 3), hello(0, 3)) == []
    assert group.machine.pending_summary() == "2 of 3 workers are there; missing: rank 2"
    assert confirmed(group.join(hello(2, 3))) == [100, 101, 102]


def test_a_newcomer_is_admitted_when_all_have_confirmed_it() -> None:
    group = dynamic(1)
    actions = group.machine.hello(hello(1))
    assert confirmed(actions) == []
    assert confirmed(group.machine.confirm(101, 2)) == []
    assert confirmed(group.machine.confirm(100, 2)) == [101]


def test_a_newcomer_does_not_wait_for_a_lost_member() -> None:
    group = dynamic(2)
    group.silent = {101}
    assert confirmed(group.join(hello(2))) == []
    assert confirmed(group.execute(group.machine.lose(101, "dead"))) == [102]


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
def test_a_refusal_names_what_does_not_fit(size: int | None, wrong: Hello, text: str) -> None:
    group = Group(size)
    group.join(hello(0, size), hello(1, size))
    wrong = Hello(replace(wrong.member, incarnation=999), wrong.world_size)
    refused = refusal(group.join(wrong))
    assert refused.kind == "refused" and text in refused.text
    assert sorted(group.machine.members) == [0, 1]


def test_all_workers_of_a_static_group_learn_of_a_duplicate_name() -> None:
    group = Group(3)
    actions = group.join(hello(0, 3), hello(1, 3), hello(2, 3, name="w0"))
    assert [action.to for action in actions if isinstance(action, Refuse)] == [100, 101, 102]
    assert all("'w0' is not unique" in action.text for action in actions if isinstance(action, Refuse))


@pytest.mark.parametrize("name", ["", " ", "abc*", "a" * 128, "a\n"])
def test_an_invalid_name_is_refused(name: str) -> None:
    assert name_error(name) is not None


def test_a_valid_name_is_accepted() -> None:
    assert name_error("Az09_:-") is None and name_error("a" * 127) is None


# -- leaving and losses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 2])
def test_a_lost_worker_may_return_as_another_incarnation(size: int | None) -> None:
    group = Group(size)
    group.join(hello(0, size), hello(1, size))
    assert Refuse(101, "again", "killed") in group.execute(group.machine.lose(101, "killed"))
    assert confirmed(group.join(hello(1, size, life=1))) == [201]
    assert group.states[100].members[1] == member(1, life=1)


def test_a_lost_member_is_not_lost_again() -> None:
    group = dynamic(2)
    group.execute(group.machine.lose(101, "killed"))
    assert group.machine.lose(101, "again") == []


def test_a_departure_is_confirmed_when_all_know_of_it() -> None:
    group = dynamic(3)
    assert confirmed(group.machine.leave(101)) == []
    assert confirmed(group.machine.confirm(100, 4)) == []
    assert confirmed(group.machine.confirm(102, 4)) == [101]


def test_a_member_that_leaves_a_forming_group_is_confirmed_at_once() -> None:
    group = Group(3)
    group.join(hello(0, 3), hello(1, 3))
    assert confirmed(group.machine.leave(101)) == [101]
    assert group.machine.pending_summary() == "1 of 3 workers are there; missing: rank 1, 2"


# -- updates -----------------------------------------------------------------------------------------------------------


def test_a_newcomer_receives_all_members_and_the_others_what_changed() -> None:
    group = dynamic(2)
    sent = updates(group.machine.hello(hello(2)))
    assert sent[102] == Update(3, (member(0), member(1), member(2)))
    assert sent[100] == sent[101] == Update(3, (member(2),))
    assert updates(group.machine.leave(102)) == dict.fromkeys((100, 101), Update(4, (Departure(2, None),)))


def test_the_summary_names_members_that_have_not_confirmed() -> None:
    group = dynamic(2)
    group.silent = {101}
    group.join(hello(2))
    assert group.machine.pending_summary() == f"these have not answered yet: {member(1)}"


def test_a_stale_confirmation_has_no_effect() -> None:
    group = dynamic(2)
    assert group.machine.confirm(101, 1) == [] and group.machine.confirm(999, 2) == []


def test_the_events_of_an_update_are_its_changes() -> None:
    state = MemberState()
    assert state.apply(Update(3, (member(0), member(1), member(2)))) == []
    assert state.apply(Update(4, (Departure(1, "killed"),))) == [Lost(member(1), "killed")]
    assert state.apply(Update(5, (Departure(2, None),))) == [Left(member(2))]
    assert state.apply(Update(6, (member(1, life=1),))) == [Joined(member(1, life=1))]
    assert state.members == {0: member(0), 1: member(1, life=1)}
    assert state.former == {1: member(1), 2: member(2)}


def test_an_update_that_follows_another_view_is_an_error() -> None:
    state = MemberState()
    state.apply(Update(3, (member(0),)))
    with pytest.raises(AssertionError, match="update 5 follows view 3"):
        state.apply(Update(5, (member(1),)))


def test_an_update_does_not_change_the_dicts_that_other_threads_read() -> None:
    state = MemberState()
    state.apply(Update(2, (member(0), member(1))))
    members, former = state.members, state.former
    state.apply(Update(3, (Departure(1, None),)))
    assert members == {0: member(0), 1: member(1)} and former == {}


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["join", "leave", "lose", "confirm"])), max_size=40))
def test_every_member_that_confirms_has_the_view_of_the_coordinator(steps: list[tuple[int, str]]) -> None:
    group = Group(None)
    machine, life = group.machine, 0
    pending: dict[int, list[Update]] = {}

    def collect(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SendUpdate):
                pending.setdefault(action.to, []).append(action.update)

    def confirm(incarnation: int) -> None:
        if pending.get(incarnation):
            update = pending[incarnation].pop(0)
            group.states.setdefault(incarnation, MemberState()).apply(update)
            collect(machine.confirm(incarnation, update.number))

    collect(machine.hello(hello(0)))
    for rank, step in steps:
        life += 1
        present = machine.members.get(rank)
        if step == "join" and present is None:
            collect(machine.hello(hello(rank, life=life)))
        elif step == "confirm":
            confirm(100 if present is None else present.incarnation)
        elif present is not None and step == "leave":
            collect(machine.leave(present.incarnation))
        elif present is not None and step == "lose":
            collect(machine.lose(present.incarnation, "killed"))
    while any(pending.values()):
        for incarnation in list(pending):
            confirm(incarnation)
    for present in machine.members.values():
        assert group.states[present.incarnation].members == dict(sorted(machine.members.items()))
    assert machine._confirmations == {}


def test_a_worker_that_knows_as_much_and_is_missing_is_refused_and_a_newcomer_is_not() -> None:
    state = MemberState()
    state.apply(Update(5, (member(0), member(1))))
    state.apply(Update(6, (Departure(1, "killed"),)))
    assert state.refuses(member(1), 1) and state.refuses(member(2), 6)
    assert not state.refuses(member(3), 7) and not state.refuses(member(0), 1)


def test_one_of_two_that_lost_their_link_is_lost_but_not_the_coordinator() -> None:
    group = dynamic(3)
    assert Refuse(102, "again", "cut") in group.execute(group.machine.suspect(101, 102, "cut"))
    assert Refuse(101, "again", "cut") in group.execute(group.machine.suspect(101, 100, "cut"))
    assert sorted(group.machine.members) == [0]


def test_clear_leaves_this_worker_only() -> None:
    state = MemberState()
    state.apply(Update(3, (member(0), member(1), member(2))))
    assert state.clear(member(1)) == [member(0), member(2)]
    assert state.members == {1: member(1)} and state.former == {0: member(0), 2: member(2)}


# -- the barrier --------------------------------------------------------------------------------------------------


def count(group: Group, counts: dict[int, tuple[int, int]]) -> list[Action]:
    round = group.machine.barrier.round
    return [action for one, pair in counts.items() for action in group.execute(group.machine.counted(one, round, pair))]


def test_the_barrier_ends_after_two_equal_rounds_without_open_calls() -> None:
    group = static(2)
    assert count(group, {101: (0, 3)}) == []
    assert count(group, {100: (1, 5)}) == [StartTimer(1)]
    assert group.machine.next_round(1) == [RequestCounts(100, 1), RequestCounts(101, 1)]
    assert count(group, {100: (0, 5), 101: (0, 3)}) == [RequestCounts(100, 2), RequestCounts(101, 2)]
    assert count(group, {100: (0, 5), 101: (0, 4)}) == [RequestCounts(100, 3), RequestCounts(101, 3)]
    assert count(group, {100: (0, 5), 101: (0, 4)}) == [Confirm(100), Confirm(101)]


def test_the_barrier_does_not_wait_for_lost_members() -> None:
    group = static(3)
    assert count(group, {100: (0, 1), 101: (0, 0)}) == []
    assert RequestCounts(100, 1) in group.execute(group.machine.lose(102, "killed"))
    count(group, {100: (0, 2)})
    assert RequestCounts(100, 2) in group.execute(group.machine.lose(101, "killed"))
    assert count(group, {100: (0, 2)}) == [Confirm(100)]


def test_the_summary_names_members_with_open_calls() -> None:
    group = static(2)
    count(group, {100: (0, 0), 101: (0, 0)})
    assert group.machine.pending_summary() == "calls were still open"
    count(group, {101: (2, 5)})
    assert group.machine.pending_summary().startswith("calls were still open: made by, or running on, 'w1' (rank 1, ")


def test_the_summary_names_members_that_have_not_called_shutdown() -> None:
    group = static(2)
    count(group, {101: (0, 0)})
    assert group.machine.pending_summary().startswith("these have not called shutdown: 'w0' (rank 0, ")


def test_counts_of_another_round_are_ignored() -> None:
    group = static(2)
    count(group, {100: (0, 0), 101: (0, 0)})
    assert group.machine.counted(100, 7, (0, 0)) == [] and group.machine.barrier.counts == {}


def test_nobody_joins_while_rounds_are_counted() -> None:
    group = static(2)
    count(group, {100: (0, 0), 101: (0, 0)})
    assert refusal(group.join(hello(1, 2, life=1))).kind == "again"
