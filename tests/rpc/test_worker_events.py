"""Events of other workers: reported once, in order, on threads that block nothing else."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from rpc_workers import LIMIT_S, Worker, Workers

import fanwise.rpc as rpc
from fanwise.links.hub import Hub
from fanwise.rpc.hub_thread import run_on_hub
from fanwise.rpc.membership.members import Event, Joined, Left, Lost, Member
from fanwise.rpc.worker_events import WorkerEvents
from fanwise.testing import within

# Any throughout: what callbacks are called with.


def member(rank: int, life: int = 1) -> Member:
    return Member(f"w{rank}", rank, 100 * life + rank, "", "here", 0)


def info(rank: int) -> rpc.WorkerInfo:
    return rpc.WorkerInfo(f"w{rank}", rank)


@dataclass
class PlayedGroup:
    """A group whose members the test changes."""

    hub: Hub
    me: Member = field(default_factory=lambda: member(0))
    on_event: list[Callable[[Event], None]] = field(default_factory=list)
    there: dict[int, Member] = field(default_factory=lambda: {0: member(0)})

    def members(self) -> dict[int, Member]:
        return self.there

    def happens(self, *events: Event) -> None:
        """As the group tells it: first its members change."""
        run_on_hub(self.hub, lambda: self._happen(events))

    def _happen(self, events: tuple[Event, ...]) -> None:
        for event in events:
            if isinstance(event, Joined):
                self.there = self.there | {event.member.id: event.member}
            else:
                self.there = {rank: one for rank, one in self.there.items() if rank != event.member.id}
        for event in events:
            for callback in self.on_event:
                callback(event)


@pytest.fixture
def group() -> Iterator[PlayedGroup]:
    hub = Hub(name="events")
    hub.start()
    yield PlayedGroup(hub)
    hub.close()


@pytest.fixture
def events(group: PlayedGroup) -> WorkerEvents:
    return WorkerEvents(group.hub, cast(Any, group))


def expect_reports(list_: list[Any], *expected: Any) -> None:
    within(LIMIT_S, lambda: len(list_) >= len(expected), f"{len(expected)} calls were made, not {list_}")
    assert list_ == list(expected)


def test_each_callback_is_called_once_for_what_it_is_meant_for(group: PlayedGroup, events: WorkerEvents) -> None:
    joined: list[Any] = []
    left: list[Any] = []
    lost: list[Any] = []
    events.subscribe(joined.append, Joined)
    events.subscribe(left.append, Left)
    events.subscribe(lambda *args: lost.append(args), Lost)
    group.happens(Joined(member(1)), Joined(member(2)))
    group.happens(Lost(member(1), "it fell"), Left(member(2)), Joined(member(1, life=2)))
    expect_reports(joined, info(1), info(2), info(1))
    expect_reports(left, info(2))
    expect_reports(lost, (info(1), "it fell"))


def test_who_is_there_already_has_joined_and_who_is_gone_already_is_not_told_of(
    group: PlayedGroup, events: WorkerEvents
) -> None:
    group.happens(Joined(member(1)), Joined(member(2)), Lost(member(2), "early"))
    joined: list[Any] = []
    lost: list[Any] = []
    events.subscribe(joined.append, Joined)
    events.subscribe(lambda *args: lost.append(args), Lost)
    group.happens(Joined(member(3)), Lost(member(3), "late"))
    expect_reports(lost, (info(3), "late"))
    expect_reports(joined, info(1), info(3))


def test_nobody_is_missed_and_nobody_comes_twice_whenever_one_subscribes(
    group: PlayedGroup, events: WorkerEvents
) -> None:
    reported: list[list[Any]] = []
    going = threading.Event()

    def grow() -> None:
        for rank in range(1, 200):
            group.happens(Joined(member(rank)))
            going.set()

    growing = threading.Thread(target=grow)
    growing.start()
    going.wait(LIMIT_S)
    while growing.is_alive():
        reported.append([])
        events.subscribe(reported[-1].append, Joined)
    growing.join()
    for one in reported:
        expect_reports(one, *(info(rank) for rank in range(1, 200)))


def test_a_slow_callback_holds_up_neither_the_hub_nor_another_callback(
    group: PlayedGroup, events: WorkerEvents
) -> None:
    resume, begun = threading.Event(), threading.Event()
    slow: list[Any] = []
    quick: list[Any] = []

    def wait(worker: rpc.WorkerInfo) -> None:
        begun.set()
        resume.wait(LIMIT_S)
        slow.append(worker)

    events.subscribe(wait, Joined)
    events.subscribe(quick.append, Joined)
    group.happens(Joined(member(1)))
    assert begun.wait(LIMIT_S)
    group.happens(Joined(member(2)))
    expect_reports(quick, info(1), info(2))
    assert slow == []
    resume.set()
    expect_reports(slow, info(1), info(2))


@pytest.mark.parametrize("error", [ValueError("wrong"), SystemExit(3)])
def test_a_callback_that_raises_is_shown_and_is_called_again(
    group: PlayedGroup, events: WorkerEvents, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    reported: list[Any] = []

    def report(worker: rpc.WorkerInfo) -> None:
        reported.append(worker)
        if worker.id == 1:
            raise error

    events.subscribe(report, Joined)
    with caplog.at_level(logging.ERROR, logger="fanwise.rpc"):
        group.happens(Joined(member(1)), Joined(member(2)))
        expect_reports(reported, info(1), info(2))
    assert "report" in caplog.text and "w1" in caplog.text and type(error).__name__ in caplog.text


def test_after_cancel_and_after_the_end_nothing_more_is_told(group: PlayedGroup, events: WorkerEvents) -> None:
    reported: list[Any] = []
    others: list[Any] = []
    resume, begun = threading.Event(), threading.Event()

    def report(worker: rpc.WorkerInfo) -> None:
        reported.append(worker)
        begun.set()
        resume.wait(LIMIT_S)

    subscription = events.subscribe(report, Joined)
    events.subscribe(others.append, Joined)
    group.happens(Joined(member(1)), Joined(member(2)))
    assert begun.wait(LIMIT_S)
    subscription.cancel()
    subscription.cancel()
    resume.set()
    group.happens(Joined(member(3)))
    expect_reports(others, info(1), info(2), info(3))
    events.close()
    group.happens(Joined(member(4)))
    assert reported == [info(1)]
    assert others == [info(1), info(2), info(3)]


def test_a_callback_may_subscribe_and_cancel(group: PlayedGroup, events: WorkerEvents) -> None:
    reported: list[Any] = []
    subscriptions: list[Any] = []

    def report(worker: rpc.WorkerInfo) -> None:
        subscriptions[0].cancel()
        events.subscribe(reported.append, Joined)

    subscriptions.append(events.subscribe(report, Joined))
    group.happens(Joined(member(1)), Joined(member(2)))
    expect_reports(reported, info(1), info(2))


def test_where_no_thread_can_be_started_what_happened_is_told_with_the_next(
    group: PlayedGroup, events: WorkerEvents, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[Any] = []
    events.subscribe(reported.append, Joined)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        group.happens(Joined(member(1)))
    assert "no thread could be started" in caplog.text
    group.happens(Joined(member(2)))
    expect_reports(reported, info(1), info(2))


def test_what_is_no_function_is_refused(events: WorkerEvents) -> None:
    with pytest.raises(TypeError, match="a callback should be callable, got 'w1' of type str"):
        events.subscribe("w1", Lost)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("subscribe", [rpc.on_worker_joined, rpc.on_worker_left, rpc.on_worker_lost])
def test_a_process_that_is_no_worker_hears_of_nobody(subscribe: Callable[..., object]) -> None:
    with pytest.raises(RuntimeError, match="init_rpc first"):
        subscribe(print)
    with pytest.raises(RuntimeError, match="init_rpc first"):
        rpc.workers()


# -- real workers --------------------------------------------------------------------------------------------------

HEARD: list[tuple[Any, ...]] = []
STOPPED = threading.Event()


def listen() -> None:
    rpc.on_worker_joined(lambda worker: HEARD.append(("joined", worker.name, names())))
    rpc.on_worker_left(lambda worker: HEARD.append(("left", worker.name, names())))
    rpc.on_worker_lost(lambda worker, why: HEARD.append(("lost", worker.name, names(), why)))


def names() -> list[str]:
    return [worker.name for worker in rpc.workers()]


def reported() -> list[tuple[Any, ...]]:
    return HEARD


def shown() -> list[tuple[Any, ...]]:
    return [(worker.name, worker.id, worker.pid, worker.is_coordinator) for worker in rpc.workers()]


def hang_in_callbacks() -> None:
    rpc.on_worker_lost(lambda worker, why: STOPPED.wait(LIMIT_S))


def ask(to: str) -> int:
    return int(rpc.rpc_sync(to, max, (1, 2)))


def sees(worker: Worker, *event_text: tuple[Any, ...]) -> None:
    def has_heard() -> bool:
        return [one[: len(event_text[0])] for one in worker.do(reported)] == list(event_text)

    within(LIMIT_S, has_heard, f"{worker.name} has heard {event_text}, not {worker.do(reported)}")


def end() -> None:
    STOPPED.set()
    rpc.shutdown(graceful=False)


def test_workers_hear_of_a_death_of_a_goodbye_and_of_a_new_life(real_workers: Workers) -> None:
    first, second, third = real_workers.group(3, dynamic=True)
    first.do(listen)
    assert first.do(shown) == [("w0", 0, first.pid, True), ("w1", 1, second.pid, False), ("w2", 2, third.pid, False)]
    joined = [("joined", "w1", ["w0", "w1", "w2"]), ("joined", "w2", ["w0", "w1", "w2"])]
    sees(first, *joined)
    second.kill()
    sees(first, *joined, ("lost", "w1", ["w0", "w2"]))
    assert "ended" in first.do(reported)[-1][3]
    third.do(end)
    sees(first, *joined, ("lost", "w1", ["w0", "w2"]), ("left", "w2", ["w0"]))
    again = real_workers.join(1)
    sees(first, *joined, ("lost", "w1", ["w0", "w2"]), ("left", "w2", ["w0"]), ("joined", "w1", ["w0", "w1"]))
    again.do(end)
    first.do(end)


def test_a_worker_that_was_stopped_hears_that_all_others_are_lost_to_it(real_workers: Workers) -> None:
    first, second, third = real_workers.group(3, dynamic=True)
    for worker in (first, second):
        worker.do(listen)
    joined = [("joined", "w0"), ("joined", "w2")]
    sees(second, *joined)
    second.send(signal.SIGSTOP)
    within(LIMIT_S, lambda: ("lost", "w1") in [one[:2] for one in first.do(reported)], "the others hear of it")
    second.send(signal.SIGCONT)
    sees(second, *joined, ("lost", "w0"), ("lost", "w2"))
    assert second.do(reported)[-1][2:] == (["w1"], second.do(reported)[-1][3])
    assert "was declared lost" in second.do(reported)[-1][3]
    for worker in (first, third):
        worker.do(end)


def test_calls_go_on_while_a_callback_hangs_and_the_shutdown_does_not_wait_for_it(real_workers: Workers) -> None:
    first, second, third = real_workers.group(3, dynamic=True)
    first.do(hang_in_callbacks)
    first.do(listen)
    third.kill()
    within(LIMIT_S, lambda: ("lost", "w2") in [one[:2] for one in first.do(reported)], "the other callback is called")
    assert first.do(ask, "w1") == 2 and second.do(ask, "w0") == 2
    first.do(end_hanging)
    second.do(end)


def end_hanging() -> None:
    rpc.shutdown(graceful=False)
    assert not STOPPED.is_set()
