"""What becomes of a call that is cancelled, in every order of the cancelling, the answer and the end of the link.

Both ends are in this thread and turn when the test says so; nothing is left to the scheduler.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fanwise.base.errors import CancelledError, ClosedError, WireError, WorkerLostError
from fanwise.links import frames
from fanwise.links.calls import TAKEN, was_never_sent
from fanwise.links.credits import WINDOW_MIN
from fanwise.links.hub import Hub
from fanwise.links.link import Link, Reply, Request
from fanwise.links.transports.unix import link_pair

# Any throughout: what is asked and answered.


class Heard:
    """What a call hears of its caller."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def cancelled(self) -> None:
        self.said.append("cancelled")

    def taken(self, num_items: int, num_bytes: int) -> None:
        if num_items > 100:
            raise ValueError("so many were not given")
        self.said.append((num_items, num_bytes))

    def lost(self) -> None:
        self.said.append("lost")


class Two:
    """A link in memory, whose ends turn by hand."""

    def __init__(self) -> None:
        self.hubs = Hub(name="near"), Hub(name="far")
        self.near, self.far = link_pair(*self.hubs)
        self.requests: list[Request] = []
        self.heard: list[Heard] = []
        self.late: list[object] = []
        self.near.on_late = lambda head, buffers: self.late.append(self.near.loads(head, buffers))
        self.far.handler = self.asked
        for link in (self.near, self.far):
            link.open()

    def asked(self, request: Request) -> None:
        self.requests.append(request)
        self.heard.append(Heard())
        request.listener = self.heard[-1]

    def call(self, on_item: Callable[[Any, int], None] | None = None) -> Reply:
        return self.near.call_on_credit("do it", on_item=on_item)

    def turn(self, *which: int) -> None:
        for each in which or (1, 0, 1, 0):
            self.hubs[each].turn(0.0)


@pytest.fixture
def two() -> Iterator[Two]:
    two = Two()
    yield two
    for hub in two.hubs:
        hub.close()


def is_clean(two: Two) -> bool:
    return two.near.num_open == 0 and two.far.asked == {}


def test_a_cancelled_call_fails_at_once_and_is_heard_of_once(two: Two) -> None:
    reply = two.call()
    ended: list[Reply] = []
    reply.add_done_callback(ended.append)
    two.turn()
    assert reply.cancel() and not reply.cancel()
    assert reply.done() and ended == [reply]
    with pytest.raises(CancelledError, match="'do it' was cancelled before it was answered"):
        reply.result()
    two.turn()
    assert two.heard[0].said == ["cancelled"]
    two.requests[0].unanswered()
    two.requests[0].answer("nobody hears this")
    two.turn()
    assert is_clean(two) and two.late == []


@pytest.mark.parametrize("end", [Request.answer, Request.unanswered, lambda request: request.fail(ValueError("no"))])
def test_who_listens_to_a_call_and_what_came_with_it_end_with_the_answer(
    two: Two, end: Callable[[Request], None]
) -> None:
    def asked(request: Request) -> None:
        request.listener = heard = Heard()
        heard.said.append(request)
        listening.append(weakref.ref(heard))
        end(request)

    listening: list[weakref.ref[Heard]] = []
    two.far.handler = asked
    gc.disable()
    try:
        two.call()
        two.turn(1)
        assert len(listening) == 1 and listening[0]() is None
    finally:
        gc.enable()


def test_what_was_answered_cannot_be_cancelled(two: Two) -> None:
    reply = two.call()
    two.turn(1)
    two.requests[0].answer(5)
    two.turn()
    assert not reply.cancel() and reply.result() == 5
    two.turn()
    assert two.heard[0].said == [] and is_clean(two)


def test_an_answer_that_crosses_the_cancelling_comes_late(two: Two) -> None:
    reply = two.call()
    two.turn(1)
    two.requests[0].answer(5)
    assert reply.cancel()
    two.turn()
    with pytest.raises(CancelledError):
        reply.result()
    assert two.late == [5] and two.heard[0].said == [] and is_clean(two)


def test_a_call_whose_link_has_ended_cannot_be_cancelled(two: Two) -> None:
    reply = two.call()
    two.near.lose("its process has ended")
    assert not reply.cancel()
    with pytest.raises(WorkerLostError):
        reply.result()


def test_a_link_that_ends_is_heard_of_by_what_was_asked_and_is_not_answered(two: Two) -> None:
    two.call()
    two.call()
    two.turn()
    two.requests[0].answer(1)
    two.near.close()
    two.turn()
    assert [heard.said for heard in two.heard] == [[], ["lost"]]
    with pytest.raises(ClosedError):
        two.requests[1].give("an item")


def test_a_call_that_waits_for_room_is_cancelled_before_it_leaves(two: Two) -> None:
    big = "x" * WINDOW_MIN
    two.near.call_on_credit(big)
    waits: list[Reply] = []

    def watch(turn: Reply) -> None:
        waits.append(turn)
        assert turn.cancel()

    with pytest.raises(CancelledError) as raised:
        two.near.call_on_credit(big, watch=watch)
    assert was_never_sent(raised.value) and len(waits) == 1
    two.turn()
    assert len(two.requests) == 1
    two.requests[0].answer()
    two.turn()
    assert two.call().cancel(), "and the credit is there again"


# -- answers in many parts -------------------------------------------------------------------------------------------


def test_items_come_in_order_before_the_answer_and_what_was_taken_is_told(two: Two) -> None:
    items: list[tuple[object, int]] = []
    reply = two.call(lambda item, cost: items.append((item, cost)))
    two.turn()
    for item in ("a", "b" * 5000, "c"):
        two.requests[0].give(item)
    two.requests[0].answer("over")
    two.turn(0)
    assert [item for item, _ in items] == ["a", "b" * 5000, "c"] and reply.result() == "over"
    assert items[1][1] - items[0][1] >= 4999, "it costs its bytes"
    reply.take(3, 7)
    two.turn()
    assert two.heard[0].said == [], "it is answered"


def test_what_was_taken_is_heard_of_and_items_that_cross_the_cancelling_come_late(two: Two) -> None:
    items: list[object] = []
    reply = two.call(lambda item, cost: items.append(item))
    two.turn()
    reply.take(1, 2)
    two.turn()
    two.requests[0].give("crosses")
    assert reply.cancel()
    two.turn()
    assert two.heard[0].said == [(1, 2), "cancelled"]
    assert items == [] and two.late == ["crosses"]
    two.requests[0].unanswered()
    assert is_clean(two)


def items_that_nobody_asked_for(two: Two) -> Link:
    two.call()
    two.turn()
    two.requests[0].give("an item")
    return two.near


def more_items_than_there_is_room_for(two: Two) -> Link:
    def refuse(item: object, cost: int) -> None:
        raise ValueError("too many")

    two.call(refuse)
    two.turn()
    two.requests[0].give("an item")
    return two.near


def more_taken_than_was_given(two: Two) -> Link:
    two.call(lambda item, cost: None).take(101, 0)
    return two.far


def no_number(two: Two) -> Link:
    reply = two.call(lambda item, cost: None)
    two.near._calls.send_about(frames.TAKEN, reply.call_id, b"none")
    return two.far


@pytest.mark.parametrize(
    "nonsense",
    [items_that_nobody_asked_for, more_items_than_there_is_room_for, more_taken_than_was_given, no_number],
)
def test_nonsense_ends_the_link(two: Two, nonsense: Callable[[Two], Link]) -> None:
    said: list[WireError] = []
    two.near.on_malformed = two.far.on_malformed = said.append
    link = nonsense(two)
    two.turn()
    assert link.ending is not None and not link.ending.clean
    assert (len(said) == 1 and str(said[0]).startswith("the peer")) or "in parts" in str(said[0])


def test_words_about_calls_that_are_not_open_are_nothing(two: Two) -> None:
    two.near._calls.send_about(frames.CANCEL, 99)
    two.near._calls.send_about(frames.TAKEN, 99, TAKEN.pack(1, 1))
    two.far._send_value(frames.ITEM, 99, "an item of nothing", "an answer")
    two.turn()
    assert two.near.ending is None and two.far.ending is None and two.late == ["an item of nothing"]
