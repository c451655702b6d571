"""Calls that arrive before their worker has joined are served once each, in their order."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base.errors import WireError
from fanwise.links.link import Request
from fanwise.rpc.calling.server import Server
from fanwise.rpc.worker_info import WorkerInfo

CALLER = WorkerInfo("w0", 0)


class FakeRequest:
    """A fake request."""

    def __init__(self, number: int, *, is_open: bool = True) -> None:
        self.number = number
        self.is_open = is_open
        self.failed: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        self.failed.append(error)


def server_with(serve: Any) -> Server:
    nothing: Any = None
    server = Server(nothing, nothing, references=nothing, enqueue_actor_call=nothing)
    server.serve = serve  # type: ignore[method-assign]
    return server


def receive(server: Server, request: FakeRequest) -> None:
    server.receive(CALLER, cast(Request, request))


@given(before=st.integers(0, 4), meanwhile=st.lists(st.integers(0, 3), max_size=8), after=st.integers(0, 3))
def test_no_call_overtakes_an_earlier_one(before: int, meanwhile: list[int], after: int) -> None:
    """`meanwhile`: numbers of calls that arrive while each is served."""
    served: list[int] = []
    more, num_delivered = list(meanwhile), 0

    def deliver(count: int) -> None:
        nonlocal num_delivered
        for _ in range(count):
            num_delivered += 1
            receive(server, FakeRequest(num_delivered))

    def serve(sender: WorkerInfo, request: Any, was_cancelled: bool = False) -> None:  # Any: as it was requests
        if more and not is_over:
            count = more.pop()
            reading.submit(deliver, count).result()
        served.append(request.number)

    is_over = False
    server = server_with(serve)
    with ThreadPoolExecutor(1) as reading:
        deliver(before)
        assert served == []
        server.start()
        is_over = True
        deliver(after)
    assert served == list(range(1, num_delivered + 1))


def test_canceled_call_is_served_as_canceled_and_an_invalid_one_fails_alone() -> None:
    served: list[tuple[int, bool]] = []

    def serve(sender: WorkerInfo, request: Any, was_cancelled: bool = False) -> None:  # Any: as above
        if request.number == 2:
            raise WireError("it makes another value.")
        served.append((request.number, was_cancelled))

    server = server_with(serve)
    requests = [FakeRequest(1, is_open=False), FakeRequest(2), FakeRequest(3)]
    for request in requests:
        receive(server, request)
    server.start()
    assert served == [(1, True), (3, False)]
    assert [request.failed != [] for request in requests] == [False, True, False]
    with pytest.raises(WireError):
        receive(server, requests[1])
