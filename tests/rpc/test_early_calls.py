"""Calls that come before their worker has joined: served once each, in their order, whatever comes meanwhile."""

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


class Asked:
    """A request, as far as it is looked at."""

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


def receive(server: Server, asked: Asked) -> None:
    server.receive(CALLER, cast(Request, asked))


@given(before=st.integers(0, 4), meanwhile=st.lists(st.integers(0, 3), max_size=8), after=st.integers(0, 3))
def test_no_call_passes_another_that_came_before_it(before: int, meanwhile: list[int], after: int) -> None:
    """`meanwhile`: how many the reading thread brings while each is served."""
    served: list[int] = []
    more, num_made = list(meanwhile), 0

    def bring(count: int) -> None:
        nonlocal num_made
        for _ in range(count):
            num_made += 1
            receive(server, Asked(num_made))

    def serve(sender: WorkerInfo, request: Any, was_cancelled: bool = False) -> None:  # Any: as it was asked
        if more and not is_over:
            count = more.pop()
            reading.submit(bring, count).result()
        served.append(request.number)

    is_over = False
    server = server_with(serve)
    with ThreadPoolExecutor(1) as reading:
        bring(before)
        assert served == []
        server.start()
        is_over = True
        bring(after)
    assert served == list(range(1, num_made + 1))


def test_what_was_given_up_since_is_served_as_such_and_what_cannot_be_served_fails_alone() -> None:
    served: list[tuple[int, bool]] = []

    def serve(sender: WorkerInfo, request: Any, was_cancelled: bool = False) -> None:  # Any: as above
        if request.number == 2:
            raise WireError("it makes another value.")
        served.append((request.number, was_cancelled))

    server = server_with(serve)
    asked = [Asked(1, is_open=False), Asked(2), Asked(3)]
    for one in asked:
        receive(server, one)
    server.start()
    assert served == [(1, True), (3, False)]
    assert [one.failed != [] for one in asked] == [False, True, False]
    with pytest.raises(WireError):
        receive(server, asked[1])
