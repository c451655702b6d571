"""Cancellation of calls, in every order of the cancellation, the answer and the end of the link.

Both ends are on this thread and turn when the test says so.
"""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from fanwise.base.errors import CancelledError, WorkerLostError
from fanwise.links.calls import was_never_sent
from fanwise.links.credits import WINDOW_MIN
from fanwise.links.hub import Hub
from fanwise.links.link import Reply, Request
from fanwise.links.transports.unix import link_pair


class Two:
    """A link in memory, whose ends turn by hand."""

    def __init__(self) -> None:
        self.hubs = Hub(name="near"), Hub(name="far")
        self.near, self.far = link_pair(*self.hubs)
        self.requests: list[Request] = []
        self.canceled: list[Request] = []
        self.late: list[object] = []
        self.near.on_late = lambda head, buffers: self.late.append(self.near.loads(head, buffers))
        self.far.handler = self.receive
        for link in (self.near, self.far):
            link.open()

    def receive(self, request: Request) -> None:
        self.requests.append(request)
        request.on_cancel = lambda: self.canceled.append(request)

    def call(self) -> Reply:
        return self.near.call_on_credit("do it")

    def turn(self, *sides: int) -> None:
        for side in sides or (1, 0, 1, 0):
            self.hubs[side].turn(0.0)


@pytest.fixture
def two() -> Iterator[Two]:
    two = Two()
    yield two
    for hub in two.hubs:
        hub.close()


def is_clean(two: Two) -> bool:
    return two.near.num_open == 0 and two.far.asked == {}


def test_a_canceled_call_fails_at_once_and_the_callee_learns_of_it_once(two: Two) -> None:
    reply = two.call()
    ended: list[Reply] = []
    reply.add_done_callback(ended.append)
    two.turn()
    assert reply.cancel() and not reply.cancel()
    assert reply.done() and ended == [reply]
    with pytest.raises(CancelledError, match="'do it' was cancelled before it was answered"):
        reply.result()
    two.turn()
    assert two.canceled == two.requests
    two.requests[0].unanswered()
    two.requests[0].answer("ignored")
    two.turn()
    assert is_clean(two) and two.late == []


@pytest.mark.parametrize("end", [Request.answer, Request.unanswered, lambda request: request.fail(ValueError("no"))])
def test_an_ended_request_is_freed_although_its_callback_refers_to_it(two: Two, end: Callable[[Request], None]) -> None:
    class Content:
        pass

    def receive(request: Request) -> None:
        content = Content()
        request.on_cancel = lambda: (request, content)  # type: ignore[assignment]
        contents.append(weakref.ref(content))
        end(request)

    contents: list[weakref.ref[Content]] = []
    two.far.handler = receive
    gc.disable()
    try:
        two.call()
        two.turn(1)
        assert len(contents) == 1 and contents[0]() is None
    finally:
        gc.enable()


def test_an_answered_call_cannot_be_canceled(two: Two) -> None:
    reply = two.call()
    two.turn(1)
    two.requests[0].answer(5)
    two.turn()
    assert not reply.cancel() and reply.result() == 5
    two.turn()
    assert two.canceled == [] and is_clean(two)


def test_an_answer_that_crosses_the_cancellation_is_late(two: Two) -> None:
    reply = two.call()
    two.turn(1)
    two.requests[0].answer(5)
    assert reply.cancel()
    two.turn()
    with pytest.raises(CancelledError):
        reply.result()
    assert two.late == [5] and two.canceled == [] and is_clean(two)


def test_a_call_whose_link_has_ended_cannot_be_canceled(two: Two) -> None:
    reply = two.call()
    two.near.lose("its process has ended")
    assert not reply.cancel()
    with pytest.raises(WorkerLostError):
        reply.result()


def test_a_call_that_waits_for_room_is_canceled_before_it_is_sent(two: Two) -> None:
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
    assert two.call().cancel(), "its credit was returned"
