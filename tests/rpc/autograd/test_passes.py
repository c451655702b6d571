"""The decisions of one worker in a backward pass."""

from hypothesis import given
from hypothesis import strategies as st

from fanwise.rpc.autograd.passes import Begin, ClassOfNodes, Finish, Order, Pass, Run, Zero


def waiting_for(*messages: int) -> ClassOfNodes:
    return ClassOfNodes(frozenset(messages))


def test_a_worker_alone_runs_its_roots_and_is_through() -> None:
    one = Pass(0, {}, {}, [waiting_for()], ())
    assert one.begin() == [Run(0)]
    assert one.ran(0) == [Finish()]


def test_all_known_are_told_first_and_what_went_there() -> None:
    one = Pass(0, {7: 2, 8: 1, 9: 2}, {}, [waiting_for(7), waiting_for(8), waiting_for(9)], [2, 1])
    assert one.begin() == [Begin(1, (8,)), Begin(2, (7, 9))]


def test_a_received_message_that_nothing_reaches_gets_a_zero_at_once() -> None:
    one = Pass(0, {}, {5: 1, 6: 1}, [ClassOfNodes(frozenset(), (6,))], [1])
    assert one.begin() == [Begin(1, (), (5, 6)), Zero(1, (5,)), Run(0)]


def test_a_message_that_never_arrived_gets_a_zero_when_its_sender_tells_of_it() -> None:
    one = Pass(0, {}, {5: 1}, [ClassOfNodes(frozenset(), (5,))], [1])
    one.begin()
    assert one.heard(1, (5, 6), ()) == [Zero(1, (6,))]
    assert one.heard(1, (5,), ()) == []


def test_what_the_one_that_began_it_has_not_received_is_not_waited_for() -> None:
    one = Pass(0, {7: 1, 8: 1, 9: 2}, {}, [waiting_for(7), waiting_for(8), waiting_for(9)], [2])
    assert one.begin() == [Begin(2, (9,))]
    assert one.heard(1, (), (8,)) == [Run(0)]


def test_a_class_waits_for_all_its_messages() -> None:
    one = Pass(0, {7: 1, 8: 1, 9: 1}, {}, [waiting_for(7), waiting_for(8, 9)], [1])
    one.begin()
    assert one.resolved([7]) == [Run(0)]
    assert one.resolved([7, 8]) == []
    assert one.resolved([9]) == [Run(1)]


def test_a_class_waits_for_those_from_which_gradients_flow_into_it_and_others_run_at_the_same_time() -> None:
    one = Pass(0, {7: 1, 8: 1}, {}, [waiting_for(7), waiting_for(8), waiting_for(7, 8)], [1])
    one.begin()
    assert one.resolved([7, 8]) == [Run(0), Run(1)]
    assert one.ran(1) == []
    assert one.ran(0) == [Run(2)]


def test_a_message_to_oneself_that_nothing_reaches_is_not_waited_for() -> None:
    one = Pass(0, {7: 0, 8: 0}, {7: 0}, [waiting_for(7), waiting_for(8)], ())
    assert one.begin() == [Run(0), Run(1)]


def test_through_is_said_once_and_after_those_below() -> None:
    one = Pass(0, {}, {}, [waiting_for()], [1, 2])
    one.begin()
    assert one.ran(0) == []
    assert one.below(1) == [] and one.below(1) == []
    assert one.below(2) == [Finish()]
    assert one.below(2) == [] and one.resolved([1]) == []


@given(st.data())
def test_in_any_order_of_facts_each_class_runs_once_and_after_all_that_flows_into_it(data: st.DataObject) -> None:
    messages = data.draw(st.lists(st.integers(0, 9), unique=True, max_size=6))
    sets = st.lists(st.frozensets(st.sampled_from(messages)) if messages else st.just(frozenset[int]()))
    waits = sorted(data.draw(sets), key=len)
    peers = data.draw(st.lists(st.integers(1, 4), unique=True))
    one = Pass(0, dict.fromkeys(messages, 1), {}, [ClassOfNodes(wait) for wait in waits], peers)
    facts = [("message", number) for number in messages * 2] + [("below", peer) for peer in peers * 2]
    resolved: set[int] = set()
    running: set[int] = set()
    ran: list[int] = []

    def carry_out(orders: list[Order]) -> None:
        for order in orders:
            assert not isinstance(order, Finish) or len(ran) == len(waits)
            if isinstance(order, Run):
                needed = waits[order.number]
                assert needed <= resolved
                assert {n for n, wait in enumerate(waits[: order.number]) if wait <= needed} <= set(ran)
                running.add(order.number)

    carry_out(one.begin())
    for kind, number in data.draw(st.permutations(facts)):
        if kind == "message":
            resolved.add(number)
            carry_out(one.resolved([number]))
        else:
            carry_out(one.below(number))
        for done in data.draw(st.lists(st.sampled_from(sorted(running)), unique=True)) if running else ():
            running.discard(done)
            ran.append(done)
            carry_out(one.ran(done))
    while running:
        ran.append(running.pop())
        carry_out(one.ran(ran[-1]))
    assert sorted(ran) == list(range(len(waits)))
    assert one.open == set()
