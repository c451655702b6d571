"""The state machine of a backward pass on state worker."""

from hypothesis import given
from hypothesis import strategies as st

from fanwise.rpc.autograd.pass_state import Action, Finish, NodeGroup, PassState, RunGroup, SendBegin, SendZeros


def waiting_for(*messages: int) -> NodeGroup:
    return NodeGroup(frozenset(messages))


def test_a_single_worker_runs_its_roots_and_finishes() -> None:
    state = PassState(0, {}, {}, [waiting_for()], ())
    assert state.start() == [RunGroup(0)]
    assert state.on_group_done(0) == [Finish()]


def test_known_workers_are_told_first_with_the_messages_sent_to_them() -> None:
    state = PassState(0, {7: 2, 8: 1, 9: 2}, {}, [waiting_for(7), waiting_for(8), waiting_for(9)], [2, 1])
    assert state.start() == [SendBegin(1, (8,)), SendBegin(2, (7, 9))]


def test_a_received_message_that_nothing_reaches_gets_a_zero_at_once() -> None:
    state = PassState(0, {}, {5: 1, 6: 1}, [NodeGroup(frozenset(), (6,))], [1])
    assert state.start() == [SendBegin(1, (), (5, 6)), SendZeros(1, (5,)), RunGroup(0)]


def test_a_message_that_never_arrived_gets_a_zero_when_its_sender_reports_it() -> None:
    state = PassState(0, {}, {5: 1}, [NodeGroup(frozenset(), (5,))], [1])
    state.start()
    assert state.on_begin(1, (5, 6), ()) == [SendZeros(1, (6,))]
    assert state.on_begin(1, (5,), ()) == []


def test_messages_that_the_parent_has_not_received_are_not_waited_for() -> None:
    state = PassState(0, {7: 1, 8: 1, 9: 2}, {}, [waiting_for(7), waiting_for(8), waiting_for(9)], [2])
    assert state.start() == [SendBegin(2, (9,))]
    assert state.on_begin(1, (), (8,)) == [RunGroup(0)]


def test_a_group_waits_for_all_its_messages() -> None:
    state = PassState(0, {7: 1, 8: 1, 9: 1}, {}, [waiting_for(7), waiting_for(8, 9)], [1])
    state.start()
    assert state.on_resolved([7]) == [RunGroup(0)]
    assert state.on_resolved([7, 8]) == []
    assert state.on_resolved([9]) == [RunGroup(1)]


def test_a_group_waits_for_groups_that_flow_into_it_and_others_run_concurrently() -> None:
    state = PassState(0, {7: 1, 8: 1}, {}, [waiting_for(7), waiting_for(8), waiting_for(7, 8)], [1])
    state.start()
    assert state.on_resolved([7, 8]) == [RunGroup(0), RunGroup(1)]
    assert state.on_group_done(1) == []
    assert state.on_group_done(0) == [RunGroup(2)]


def test_a_message_to_oneself_that_nothing_reaches_is_not_waited_for() -> None:
    state = PassState(0, {7: 0, 8: 0}, {7: 0}, [waiting_for(7), waiting_for(8)], ())
    assert state.start() == [RunGroup(0), RunGroup(1)]


def test_a_worker_finishes_once_and_after_all_that_it_told() -> None:
    state = PassState(0, {}, {}, [waiting_for()], [1, 2])
    state.start()
    assert state.on_group_done(0) == []
    assert state.on_peer_done(1) == [] and state.on_peer_done(1) == []
    assert state.on_peer_done(2) == [Finish()]
    assert state.on_peer_done(2) == [] and state.on_resolved([1]) == []


@given(st.data())
def test_in_any_order_of_events_each_group_runs_once_and_after_all_that_flows_into_it(data: st.DataObject) -> None:
    messages = data.draw(st.lists(st.integers(0, 9), unique=True, max_size=6))
    sets = st.lists(st.frozensets(st.sampled_from(messages)) if messages else st.just(frozenset[int]()))
    waits = sorted(data.draw(sets), key=len)
    peers = data.draw(st.lists(st.integers(1, 4), unique=True))
    state = PassState(0, dict.fromkeys(messages, 1), {}, [NodeGroup(wait) for wait in waits], peers)
    events = [("message", number) for number in messages * 2] + [("peer", peer) for peer in peers * 2]
    resolved: set[int] = set()
    running: set[int] = set()
    ran: list[int] = []

    def carry_out(actions: list[Action]) -> None:
        for action in actions:
            assert not isinstance(action, Finish) or len(ran) == len(waits)
            if isinstance(action, RunGroup):
                needed = waits[action.number]
                assert needed <= resolved
                assert {n for n, wait in enumerate(waits[: action.number]) if wait <= needed} <= set(ran)
                running.add(action.number)

    carry_out(state.start())
    for kind, number in data.draw(st.permutations(events)):
        if kind == "message":
            resolved.add(number)
            carry_out(state.on_resolved([number]))
        else:
            carry_out(state.on_peer_done(number))
        for done in data.draw(st.lists(st.sampled_from(sorted(running)), unique=True)) if running else ():
            running.discard(done)
            ran.append(done)
            carry_out(state.on_group_done(done))
    while running:
        ran.append(running.pop())
        carry_out(state.on_group_done(ran[-1]))
    assert sorted(ran) == list(range(len(waits)))
    assert state.unresolved == set()
