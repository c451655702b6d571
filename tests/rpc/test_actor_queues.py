"""The queues of actors, driven by hand: what waits, what begins, and what never runs."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from fanwise.base.clocks import VirtualClock
from fanwise.base.errors import DeadlineExceeded, WireError, WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.link import Request
from fanwise.links.peers import Ending
from fanwise.links.runner_threads import RunnerThreads
from fanwise.rpc.actors.queues import Queues
from fanwise.rpc.messages.ids import GlobalId
from fanwise.rpc.messages.messages import Message, addressed, compose, loads
from fanwise.rpc.messages.metadata import ADDRESS_BYTES, Address, pack_address, unpack_address

# Any throughout: what stands for a link, a hub and runners.

ACTOR = GlobalId(1, 11, -1)


class PlayedHub:
    """Timers that the test lets go off."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        call()

    def call_at(self, when_s: float, call: Callable[[], None]) -> Any:
        self.timers.append((when_s, call))
        return type("Timer", (), {"cancel": lambda _: None})()

    def advance(self, by_s: float) -> None:
        self.clock.advance(by_s)
        due = [timer for timer in self.timers if timer[0] <= self.clock.now_s()]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, call in due:
            call()


class PlayedDrivers:
    """Jobs that are done when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def call(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    outside = call

    def do_all(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


class PlayedLink:
    """Of one caller. `again`: of calls that wait until it takes its answers; None: it takes them."""

    def __init__(self) -> None:
        self.ending: Ending | None = None
        self.again: list[Callable[[], None]] | None = None

    def take_answers(self) -> None:
        again, self.again = self.again or [], None
        for call in again:
            call()


class Asked:
    """A request of one caller."""

    def __init__(self, link: PlayedLink) -> None:
        self.link = link
        self.method = Message(b"\3", [], "a call")
        self.answers: list[object] = []
        self.listener: Any = None

    def taken_up(self) -> None: ...

    def unanswered(self) -> None: ...

    def when_answers_leave(self, again: Callable[[], None]) -> bool:
        if self.link.again is None:
            return False
        self.link.again.append(again)
        return True

    def answer(self, value: object = None) -> None:
        self.answers.append(value)

    def fail(self, error: BaseException) -> None:
        self.answers.append(error)


class Played:
    """Actors at one worker, and what was called there: names of calls, in their order."""

    def __init__(self) -> None:
        self.hub, self.runners = PlayedHub(), PlayedDrivers()
        self.queues = Queues(cast(Hub, self.hub), cast(RunnerThreads, self.runners))
        self.begun: list[str] = []
        self.dropped: list[str] = []
        self.cancelled: list[str] = []
        self.running: dict[str, Any] = {}
        self.asked: dict[str, Asked] = {}
        self.value = type("Value", (), {})()

    def come(self, name: str, link: PlayedLink, *, left_s: float = 0.0, concurrency: int = 0) -> None:
        played, asked = self, Asked(link)
        self.asked[name] = asked

        class Call:
            def __init__(self, answering: Any) -> None:
                played.running[name] = answering

            def __call__(self) -> None:
                played.begun.append(name)

            def cancelled(self) -> None:
                played.cancelled.append(name)

            def taken(self, num_items: int, num_bytes: int) -> None: ...

            def lost(self) -> None: ...

            def drop(self, error: Exception) -> None:
                played.dropped.append(name)
                played.running[name].fail(error)

        self.queues.enqueue(Address(ACTOR, left_s, concurrency), cast(Request, asked), Call)
        self.runners.do_all()

    def answer(self, name: str) -> None:
        self.running[name].answer(name)
        self.runners.do_all()

    def make(self, concurrency: int, link: PlayedLink) -> None:
        self.come("make", link, concurrency=concurrency)
        self.queues.register(ACTOR, self.value)
        self.answer("make")


@pytest.fixture
def played() -> Played:
    return Played()


def test_nothing_begins_while_the_actor_is_made_and_then_as_many_as_may(played: Played) -> None:
    link = PlayedLink()
    played.come("make", link, concurrency=2)
    played.queues.register(ACTOR, played.value)
    for name in "abc":
        played.come(name, link)
    assert played.begun == ["make"] and played.queues.concurrency_of(ACTOR) == 0
    played.answer("make")
    assert played.begun == ["make", "a", "b"] and played.queues.concurrency_of(ACTOR) == 2
    played.answer("b")
    assert played.begun == ["make", "a", "b", "c"]


def test_calls_that_come_before_the_one_that_makes_the_actor_run_one_at_a_time_and_do_not_keep_it_out(
    played: Played,
) -> None:
    link = PlayedLink()
    played.come("a", link)
    played.come("b", link)
    assert played.begun == ["a"]
    played.come("make", link, concurrency=3)
    assert played.begun == ["a", "make"], "a waits for the value"
    played.queues.register(ACTOR, played.value)
    played.answer("make")
    assert played.begun == ["a", "make", "b"]


def test_of_an_actor_that_is_freed_or_never_made_nothing_is_kept(played: Played) -> None:
    link = PlayedLink()
    played.come("a", link)
    assert played.queues._queues
    played.answer("a")
    assert not played.queues._queues
    played.come("make", link, concurrency=1)
    played.running["make"].fail(RuntimeError("cannot be opened"))
    assert not played.queues._queues
    played.make(1, link)
    assert played.queues._queues
    played.value = None
    assert not played.queues._queues


def test_a_call_whose_time_is_over_leaves_the_queue_at_once_and_never_runs(played: Played) -> None:
    link = PlayedLink()
    played.make(1, link)
    played.come("long", link, left_s=0.5)
    played.come("late", link, left_s=1.0)
    played.come("later", link, left_s=2.0)
    played.hub.advance(1.0)
    played.runners.do_all()
    assert played.dropped == ["late"], "not the one that runs"
    assert isinstance(played.asked["late"].answers[0], DeadlineExceeded)
    played.answer("long")
    assert played.begun == ["make", "long", "later"]


def test_a_call_that_is_cancelled_while_it_waits_leaves_the_queue_at_once_and_never_runs(played: Played) -> None:
    link = PlayedLink()
    played.make(1, link)
    for name in ("runs", "waits", "last"):
        played.come(name, link)
    for name in ("runs", "waits"):
        played.asked[name].listener.cancelled()
    played.runners.do_all()
    assert played.cancelled == ["runs", "waits"], "the one that runs hears of it"
    assert played.dropped == ["waits"] and played.begun == ["make", "runs"]
    played.answer("runs")
    played.asked["runs"].listener.cancelled()
    assert played.begun == ["make", "runs", "last"] and len(played.cancelled) == 2


def test_a_call_whose_time_runs_out_between_its_turn_and_a_thread_for_it_does_not_run(played: Played) -> None:
    link = PlayedLink()
    played.make(1, link)
    played.runners.do_all = lambda: None  # type: ignore[method-assign]  # no thread is free
    played.come("late", link, left_s=1.0)
    played.come("next", link)
    played.hub.clock.advance(1.0)
    del played.runners.do_all
    played.runners.do_all()
    assert played.dropped == ["late"] and played.begun == ["make", "next"]


def test_calls_of_a_link_that_was_cut_do_not_run_and_those_of_one_that_was_closed_do(played: Played) -> None:
    cut, closed, other = PlayedLink(), PlayedLink(), PlayedLink()
    played.make(1, other)
    for name, link in (("long", other), ("lost", cut), ("said goodbye", closed), ("other", other)):
        played.come(name, link)
    cut.ending, closed.ending = Ending(False, "cut"), Ending(True, "left")
    for name in ("lost", "said goodbye"):
        played.asked[name].listener.lost()
    played.runners.do_all()
    assert played.dropped == ["lost"] and played.begun == ["make", "long"]
    other.ending = Ending(False, "cut too")
    played.answer("long")
    assert played.begun == ["make", "long", "said goodbye"]
    played.answer("said goodbye")
    assert played.dropped == ["lost", "other"], "of a link that was cut just before its turn"
    assert isinstance(played.asked["lost"].answers[0], WorkerLostError)


def test_a_caller_that_takes_no_answers_keeps_nobody_else_waiting(played: Played) -> None:
    slow, other = PlayedLink(), PlayedLink()
    played.make(1, other)
    played.come("long", other)
    slow.again = []
    for name, link in (("slow 1", slow), ("other 1", other), ("slow 2", slow), ("other 2", other)):
        played.come(name, link)
    played.answer("long")
    played.answer("other 1")
    assert played.begun == ["make", "long", "other 1", "other 2"]
    slow.take_answers()
    played.answer("other 2")
    played.answer("slow 1")
    assert played.begun[-2:] == ["slow 1", "slow 2"]


def test_a_caller_that_takes_its_answers_while_its_call_gives_back_its_turn_is_not_forgotten(played: Played) -> None:
    class TakesThemNow(PlayedLink):
        def __init__(self) -> None:
            super().__init__()
            self.again = cast(Any, self)

        def append(self, again: Callable[[], None]) -> None:
            self.again = None
            again()

    link = TakesThemNow()
    played.make(1, PlayedLink())
    played.come("a", link)
    assert played.begun == ["make", "a"]


def test_addresses_come_back_as_they_were_and_others_are_refused() -> None:
    for address in (Address(ACTOR, 0.0, 1), Address(ACTOR, 1.5)):
        message = addressed(compose(b"", [], b"N.", [], "f"), address)
        came, rest = loads(message.head, [])
        assert (came.address, bytes(came.head), rest) == (address, b"\3N.", ())
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
