"""The queues of actors, with jobs that the test runs: which calls wait, start, and never run."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from virtual_clock import VirtualClock

from fanwise.base.errors import DeadlineExceeded, WireError, WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.peers import Ending
from fanwise.links.runner_threads import RunnerThreads
from fanwise.rpc.actors.queues import Queues
from fanwise.rpc.calling.server import ReceivedCall
from fanwise.rpc.messages.ids import GlobalId
from fanwise.rpc.messages.messages import addressed, compose, loads
from fanwise.rpc.messages.metadata import ADDRESS_BYTES, Address, pack_address, unpack_address

ACTOR = GlobalId(1, 11, -1)


class FakeRunners:
    """Keeps jobs until the test runs them."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def call(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def run_all(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


class FakeLink:
    """The link of one caller. `blocked`: jobs that wait until the caller reads its replies, or None if it does."""

    def __init__(self) -> None:
        self.ending: Ending | None = None
        self.blocked: list[Callable[[], None]] | None = None

    def read_replies(self) -> None:
        blocked, self.blocked = self.blocked or [], None
        for job in blocked:
            job()


class FakeCall:
    """A received call, whose end the test reports."""

    def __init__(self, owner: "Owner", name: str, link: FakeLink) -> None:
        self.owner, self.name, self.link = owner, name, link
        self.request = self
        self.error: Exception | None = None
        self.on_end: Callable[[], None]

    def __call__(self) -> None:
        self.owner.started.append(self.name)

    def drop(self, error: Exception) -> None:
        self.owner.dropped.append(self.name)
        self.error = error
        self.on_end()

    def when_answers_leave(self, on_drained: Callable[[], None]) -> bool:
        if self.link.blocked is None:
            return False
        self.link.blocked.append(on_drained)
        return True


class Owner:
    """A worker with an actor. `started` and `dropped`: names of calls, in order."""

    def __init__(self) -> None:
        self.clock, self.runners = VirtualClock(), FakeRunners()
        self.queues = Queues(cast(Hub, SimpleNamespace(clock=self.clock)), cast(RunnerThreads, self.runners))
        self.started: list[str] = []
        self.dropped: list[str] = []
        self.calls: dict[str, FakeCall] = {}
        self.value: Any = type("Value", (), {})()

    def receive(self, name: str, link: FakeLink, *, left_s: float = 0.0, concurrency: int = 0) -> None:
        call = self.calls[name] = FakeCall(self, name, link)
        self.queues.enqueue(Address(ACTOR, left_s, concurrency), cast(ReceivedCall, call))
        self.runners.run_all()

    def reply(self, name: str) -> None:
        self.calls[name].on_end()
        self.runners.run_all()

    def create(self, concurrency: int, link: FakeLink) -> None:
        self.receive("create", link, concurrency=concurrency)
        self.queues.register(ACTOR, self.value)
        self.reply("create")


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_no_call_starts_while_the_actor_is_created_and_then_as_many_as_the_limit(owner: Owner) -> None:
    link = FakeLink()
    owner.receive("create", link, concurrency=2)
    owner.queues.register(ACTOR, owner.value)
    for name in "abc":
        owner.receive(name, link)
    assert owner.started == ["create"] and owner.queues.concurrency_of(ACTOR) == 0
    owner.reply("create")
    assert owner.started == ["create", "a", "b"] and owner.queues.concurrency_of(ACTOR) == 2
    assert owner.queues.num_waiting == 1
    owner.reply("b")
    assert owner.started == ["create", "a", "b", "c"]


def test_calls_that_arrive_before_the_creating_one_do_not_block_it(owner: Owner) -> None:
    link = FakeLink()
    owner.receive("a", link)
    owner.receive("b", link)
    assert owner.started == ["a"]
    owner.receive("create", link, concurrency=3)
    assert owner.started == ["a", "create"], "a waits for the value"
    owner.queues.register(ACTOR, owner.value)
    owner.reply("create")
    assert owner.started == ["a", "create", "b"]


def test_the_queue_of_a_freed_or_never_created_actor_is_deleted(owner: Owner) -> None:
    link = FakeLink()
    owner.receive("a", link)
    assert owner.queues._queues
    owner.reply("a")
    assert not owner.queues._queues
    owner.receive("create", link, concurrency=1)
    owner.reply("create")
    assert not owner.queues._queues
    owner.create(1, link)
    assert owner.queues._queues
    owner.value = None
    assert not owner.queues._queues


def test_a_call_that_times_out_in_the_queue_does_not_run(owner: Owner) -> None:
    link = FakeLink()
    owner.create(1, link)
    owner.receive("first", link, left_s=0.5)
    owner.receive("late", link, left_s=1.0)
    owner.receive("last", link, left_s=2.0)
    owner.clock.advance(1.0)
    owner.reply("first")
    assert owner.started == ["create", "first", "last"] and owner.dropped == ["late"]
    assert isinstance(owner.calls["late"].error, DeadlineExceeded)


def test_queued_calls_of_a_lost_caller_do_not_run_and_those_of_one_that_left_do(owner: Owner) -> None:
    lost, left, other = FakeLink(), FakeLink(), FakeLink()
    owner.create(1, other)
    for name, link in (("first", other), ("of lost", lost), ("of left", left), ("last", other)):
        owner.receive(name, link)
    lost.ending, left.ending = Ending(False, "cut"), Ending(True, "left")
    owner.reply("first")
    assert owner.dropped == ["of lost"] and isinstance(owner.calls["of lost"].error, WorkerLostError)
    owner.reply("of left")
    assert owner.started == ["create", "first", "of left", "last"]


def test_a_call_starts_when_its_caller_reads_its_replies_unless_it_is_lost_meanwhile(owner: Owner) -> None:
    blocked, other = FakeLink(), FakeLink()
    owner.create(1, other)
    blocked.blocked = []
    owner.receive("first", blocked)
    owner.receive("second", blocked)
    owner.receive("last", other)
    assert owner.started == ["create"]
    blocked.read_replies()
    owner.runners.run_all()
    assert owner.started == ["create", "first"]
    blocked.blocked = []
    owner.reply("first")
    blocked.ending = Ending(False, "cut")
    blocked.read_replies()
    owner.runners.run_all()
    assert owner.dropped == ["second"] and owner.started == ["create", "first", "last"]


def test_addresses_come_back_as_they_were_and_others_are_refused() -> None:
    for address in (Address(ACTOR, 0.0, 1), Address(ACTOR, 1.5)):
        message = addressed(compose(b"", [], b"N.", [], "f"), address)
        received, rest = loads(message.head, [])
        assert (received.address, bytes(received.head), rest) == (address, b"\3N.", ())
    data = pack_address(Address(ACTOR, 1.0))
    for wrong in (
        data[:-1],
        pack_address(Address(ACTOR._replace(local_id=1), 1.0)),
        pack_address(Address(ACTOR, -1.0)),
    ):
        with pytest.raises(WireError):
            unpack_address(memoryview(wrong))
    assert len(data) == ADDRESS_BYTES
    with pytest.raises(WireError, match="is not a call"):
        loads(b"\5" + data + b"\4N.", [])
