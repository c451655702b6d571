"""The server of calls: who must not overtake whom."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from fanwise.base.errors import NotSendableError, RemoteError
from fanwise.links import Request
from fanwise.links.runner_threads import RunnerThreads
from fanwise.rpc.actors.address import Address
from fanwise.rpc.calling.cancelling import Scope, running
from fanwise.rpc.calling.serving import Server
from fanwise.rpc.messages.messages import Message
from fanwise.rpc.messages.serializer import Serializer
from fanwise.rpc.references.orders import GlobalId
from fanwise.rpc.worker_info import WorkerInfo

ME = WorkerInfo("me", 0)


class Jobs:
    """RunnerThreads that do what the test says, when it says so."""

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

    def answer(self, value: object = None) -> None:
        self.answers.append(value)

    def fail(self, error: BaseException) -> None:
        self.answers.append(error)

    def unanswered(self) -> None:
        self.answers.append("unanswered")


def served(*functions: Callable[..., Any]) -> tuple[Server, Jobs, list[Asked]]:  # Any: what they return
    jobs, serializer = Jobs(), Serializer()
    server = Server(serializer, cast(RunnerThreads, jobs))
    asked = [Asked(serializer.serialize((function, (3,), {}), 0, call="f")) for function in functions]
    for request in asked:
        server.serve(ME, cast(Request, request))
    return server, jobs, asked


def test_earlier_calls_have_begun_when_each_of_them_has() -> None:
    server, jobs, asked = served(str, int)
    waits = server.earlier_have_begun()
    assert waits is not None
    jobs.begun[1]()
    assert not waits.done() and len(asked[1].answers) == 1
    server.serve(ME, cast(Request, Asked(asked[0].method)))  # a later one does not matter
    jobs.begun[0]()
    assert waits.done() and server.earlier_have_begun() is not None


def test_without_calls_on_their_way_there_is_nothing_to_wait_for() -> None:
    server, jobs, _asked = served(str)
    jobs.begun[0]()
    assert server.earlier_have_begun() is None
    assert (server.num_open, server.num_begun) == (0, 1)


def test_a_call_that_cannot_be_opened_holds_up_nobody() -> None:
    server, jobs, asked = served(str)
    asked[0].method = Message(b"\x03no pickle", [], "f")
    waits = server.earlier_have_begun()
    jobs.begun[0]()
    assert waits is not None and waits.done()
    assert isinstance(asked[0].answers[0], Exception)


def test_coroutines_that_still_run_are_cancelled_when_the_server_closes_and_their_loop_ends() -> None:
    server, _jobs, _asked = served()
    begun = threading.Event()

    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    future = server.on_loop(wait_for_ever())
    assert begun.wait(10.0)
    server.close()
    with pytest.raises(RemoteError, match="CancelledError"):
        future.wait()
    assert server._loop is not None and server._loop.is_closed()
    server.close()


def test_a_loop_whose_coroutines_have_all_ended_is_closed_without_a_word() -> None:
    server, _jobs, _asked = served()
    said: list[object] = []

    async def five() -> int:
        return 5

    assert server.on_loop(five()).wait() == 5
    before, threading.excepthook = threading.excepthook, said.append
    try:
        server.close()
    finally:
        threading.excepthook = before
    assert server._loop is not None and server._loop.is_closed() and said == []


def test_a_coroutine_that_is_cancelled_before_its_loop_has_begun_it_ends_all_the_same() -> None:
    server, _jobs, _asked = served()
    scope = Scope()

    class Called:
        def scope(self) -> Scope:
            return scope

        def is_cancelled(self) -> bool:
            return scope.is_cancelled

    begun = threading.Event()

    async def never() -> None:
        begun.set()

    async def hold() -> None:
        held.set()
        released.wait(10.0)  # the loop: all that comes now, comes at once

    held, released = threading.Event(), threading.Event()
    holding = server.on_loop(hold())
    assert held.wait(10.0)
    token = running.set(Called())
    try:
        future = server.on_loop(never())
    finally:
        running.reset(token)
    scope.cancel()
    released.set()
    holding.wait()
    with pytest.raises(RemoteError, match="CancelledError"):
        future.wait()
    assert not begun.is_set()
    server.close()


def test_a_call_that_was_cancelled_while_the_group_was_not_complete_never_begins() -> None:
    server, jobs, _asked = served()
    begun: list[int] = []
    asked = Asked(Serializer().serialize((begun.append, (3,), {}), 0, call="f"))
    server.serve(ME, cast(Request, asked), was_cancelled=True)
    jobs.begun[0]()
    assert (begun, asked.answers, server.num_open) == ([], ["unanswered"], 0)


def make_lock(_: int) -> object:
    return threading.Lock()


def test_a_result_that_cannot_be_sent_is_named_with_its_function() -> None:
    _server, jobs, asked = served(make_lock)
    jobs.begun[0]()
    (error,) = asked[0].answers
    assert isinstance(error, NotSendableError) and isinstance(error, TypeError)
    assert "what make_lock returned (a _thread.lock) cannot be sent: TypeError: cannot pickle" in str(error)
    assert "leave it where it is, with rpc.remote" in str(error)


def test_a_call_that_waits_at_an_actor_holds_up_only_who_waits_for_the_value_that_it_makes() -> None:
    server, jobs, _asked = served()
    made, other = GlobalId(0, 1, 5), GlobalId(0, 1, 6)
    turns: list[Callable[[], None]] = []
    server._take_turn = lambda address, request, make: turns.append(make(request))
    for remote in (None, (made, made)):
        message = server._serializer.serialize((str, (3,), {}), 0, call="f", remote=remote)
        address = Address(GlobalId(0, 1, -1), 0.0)
        server.serve(ME, cast(Request, Asked(message._replace(address=address))))
    assert server.earlier_have_begun(other) is None
    waits = server.earlier_have_begun(made)
    assert waits is not None and not waits.done()
    turns[0]()
    assert not waits.done()
    turns[1]()
    assert waits.done() and server.earlier_have_begun(made) is None
    assert jobs.begun == []
