"""The server of calls: who must not overtake whom."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from fanwise.base.errors import NotSendableError, RemoteError, WireError
from fanwise.links.link import Request
from fanwise.links.runner_threads import RunnerThreads
from fanwise.rpc.calling.cancellation import Scope, current_call
from fanwise.rpc.calling.coroutines import Coroutines
from fanwise.rpc.calling.serializer import Serializer
from fanwise.rpc.calling.server import Server
from fanwise.rpc.messages.ids import Created, GlobalId
from fanwise.rpc.messages.messages import Message, metadata_of
from fanwise.rpc.messages.metadata import Address
from fanwise.rpc.worker_info import WorkerInfo

ME = WorkerInfo("me", 0)


class Jobs:
    """Replaces RunnerThreads: jobs run when the test calls them."""

    def __init__(self) -> None:
        self.begun: list[Callable[[], None]] = []

    def call(self, job: Callable[[], None]) -> None:
        self.begun.append(job)


class Asked:
    """A request without a link."""

    link = None

    def __init__(self, method: Message) -> None:
        self.method = method
        self.answers: list[object] = []

    def when_answers_leave(self, again: Callable[[], None]) -> bool:
        return False

    def taken_up(self) -> None: ...

    def answer(self, value: object = None) -> bool:
        self.answers.append(value)
        return True

    def fail(self, error: BaseException) -> None:
        self.answers.append(error)

    def unanswered(self) -> None:
        self.answers.append("unanswered")


class Expecting:
    """Replaces References: records expected values and their results."""

    def __init__(self) -> None:
        self.values: dict[Created, list[Any]] = {}  # Any: results and errors

    def expect(self, made: Created) -> list[Any]:
        return self.values.setdefault(made, [])

    def set_value(self, rref_id: GlobalId, future: list[Any], error: Exception | None, value: object) -> None:
        assert any(future is values and rref_id == created[0] for created, values in self.values.items())
        future.append(value if error is None else error)

    def confirmation(self) -> None: ...


def server_with(jobs: Jobs, references: Expecting) -> Server:
    def enqueue_nothing(*_: object) -> None:
        raise AssertionError("no call is for an actor")

    return Server(
        Serializer(),
        cast(RunnerThreads, jobs),
        references=references,  # type: ignore[arg-type]  # played
        enqueue_actor_call=enqueue_nothing,
    )


def served(*functions: Callable[..., Any]) -> tuple[Server, Jobs, list[Asked]]:  # Any: their results
    jobs = Jobs()
    server = server_with(jobs, Expecting())
    requests = [Asked(server._serializer.serialize((function, (3,), {}), 0, call="f")) for function in functions]
    for request in requests:
        server.serve(ME, cast(Request, request))
    return server, jobs, requests


MADE = GlobalId(0, 1, 5), GlobalId(0, 1, 6)


def call_that_makes(value: object, server: Server) -> Message:
    return server._serializer.serialize((str, (value,), {}), 0, call="f", remote=MADE)


@pytest.fixture
def expecting() -> tuple[Server, Jobs, Expecting]:
    jobs, references = Jobs(), Expecting()
    return server_with(jobs, references), jobs, references


def test_a_value_is_expected_as_soon_as_the_call_that_makes_it_is_here(
    expecting: tuple[Server, Jobs, Expecting],
) -> None:
    server, jobs, references = expecting
    server.serve(ME, cast(Request, Asked(call_that_makes(3, server))))
    assert references.values == {MADE: []} and (server.num_open, server.num_begun) == (1, 1)
    jobs.begun[0]()
    assert references.values == {MADE: ["3"]} and (server.num_open, server.num_begun) == (0, 1)


def test_the_value_of_a_call_that_cannot_be_opened_is_an_error(expecting: tuple[Server, Jobs, Expecting]) -> None:
    server, jobs, references = expecting
    whole = call_that_makes(torch.ones(2), server)
    head, metadata = bytes(whole.head), bytes(metadata_of(whole))
    request = Asked(whole._replace(head=head[: head.index(metadata) + len(metadata) + 2]))  # and two bytes of the table
    server.serve(ME, cast(Request, request))
    jobs.begun[0]()
    (error,), (reply,) = references.values[MADE], request.answers
    assert isinstance(error, Exception) and not isinstance(reply, Exception) and server.num_open == 0


def test_coroutines_that_still_run_are_cancelled_when_it_closes_and_their_loop_ends() -> None:
    coroutines = Coroutines()
    begun = threading.Event()

    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    future = coroutines.run(wait_for_ever())
    assert begun.wait(10.0)
    coroutines.close()
    with pytest.raises(RemoteError, match="CancelledError"):
        future.wait()
    assert coroutines._loop is not None and coroutines._loop.is_closed()
    coroutines.close()


def test_a_loop_whose_coroutines_have_all_ended_is_closed_without_a_word() -> None:
    coroutines = Coroutines()
    said: list[object] = []

    async def five() -> int:
        return 5

    assert coroutines.run(five()).wait() == 5
    before, threading.excepthook = threading.excepthook, said.append
    try:
        coroutines.close()
    finally:
        threading.excepthook = before
    assert coroutines._loop is not None and coroutines._loop.is_closed() and said == []


def test_a_coroutine_that_is_cancelled_before_its_loop_has_begun_it_ends_all_the_same() -> None:
    coroutines, scope = Coroutines(), Scope()

    class Called:
        def scope(self) -> Scope:
            return scope

        def is_cancelled(self) -> bool:
            return scope.is_cancelled

    begun = threading.Event()

    async def never() -> None:
        begun.set()

    async def hold() -> None:
        references_held.set()
        released.wait(10.0)  # the loop: all that comes now, comes at once

    references_held, released = threading.Event(), threading.Event()
    holding = coroutines.run(hold())
    assert references_held.wait(10.0)
    token = current_call.set(Called())
    try:
        future = coroutines.run(never())
    finally:
        current_call.reset(token)
    scope.cancel()
    released.set()
    holding.wait()
    with pytest.raises(RemoteError, match="CancelledError"):
        future.wait()
    assert not begun.is_set()
    coroutines.close()


def test_a_call_that_was_canceled_before_its_job_began_never_begins() -> None:
    begun: list[int] = []
    server, jobs, (requests,) = served(begun.append)
    cast(Request, requests).on_cancel()  # type: ignore[misc]
    jobs.begun[0]()
    assert (begun, requests.answers, server.num_open) == ([], ["unanswered"], 0)


def make_lock(_: int) -> object:
    return threading.Lock()


def test_a_result_that_cannot_be_sent_is_named_with_its_function() -> None:
    _server, jobs, requests = served(make_lock)
    jobs.begun[0]()
    (error,) = requests[0].answers
    assert isinstance(error, NotSendableError) and isinstance(error, TypeError)
    assert "what make_lock returned (a _thread.lock) cannot be sent: TypeError: cannot pickle" in str(error)
    assert "keep it on its worker with rpc.remote" in str(error)


def test_the_value_of_a_call_that_waits_at_an_actor_is_expected_meanwhile(
    expecting: tuple[Server, Jobs, Expecting],
) -> None:
    server, jobs, references = expecting
    turns: list[Callable[[], None]] = []
    server._enqueue_actor_call = lambda address, call: turns.append(call)
    message = call_that_makes(3, server)._replace(address=Address(GlobalId(0, 1, -1), 0.0))
    server.serve(ME, cast(Request, Asked(message)))
    assert references.values == {MADE: []} and jobs.begun == []
    turns[0]()
    assert references.values == {MADE: ["3"]}


def test_a_call_that_makes_an_actor_makes_no_other_value(expecting: tuple[Server, Jobs, Expecting]) -> None:
    server, _jobs, references = expecting
    message = call_that_makes(3, server)._replace(address=Address(GlobalId(0, 1, -1), 0.0, 1))
    with pytest.raises(WireError, match="makes another value"):
        server.serve(ME, cast(Request, Asked(message)))
    assert references.values == {} and server.num_open == 0
