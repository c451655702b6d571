"""The event loop: order and threads of callbacks, timers and hooks, and isolation of failing callbacks."""

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from virtual_clock import VirtualClock

from fanwise.base.errors import ClosedError
from fanwise.links.hub import WRITE, Alarm, Hub
from fanwise.testing import within


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def hub(clock: VirtualClock) -> Iterator[Hub]:
    hub = Hub(clock=clock, name="test")
    yield hub
    hub.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    yield ends
    for end in ends:
        os.close(end)


class Log(list[str]):
    """Return a log of the callbacks, in order."""

    def says(self, word: str) -> Callable[[], None]:
        return lambda: self.append(word)


def test_timers_fire_in_the_order_of_their_times_and_then_of_their_setting(hub: Hub, clock: VirtualClock) -> None:
    log = Log()
    for when_s, word in [(3.0, "c"), (1.0, "a"), (2.0, "b1"), (2.0, "b2"), (9.0, "z")]:
        hub.call_at(when_s, log.says(word))
    hub.turn()
    assert log == []
    clock.advance(0.999)
    hub.turn()
    assert log == []
    clock.advance(2.001)
    hub.turn()
    hub.turn()
    assert log == ["a", "b1", "b2", "c"]


def test_a_cancelled_timer_never_fires_also_when_its_turn_has_begun(hub: Hub, clock: VirtualClock) -> None:
    log = Log()
    before, second = hub.call_at(1.0, log.says("cancelled")), hub.call_at(3.0, log.says("second"))
    hub.call_at(2.0, second.cancel)
    before.cancel()
    clock.advance(5.0)
    hub.turn()
    assert log == []


def test_a_timer_that_sets_itself_again_for_now_lets_the_others_run(hub: Hub, clock: VirtualClock) -> None:
    log = Log()

    def again() -> None:
        log.append("again")
        hub.call_at(clock.now_s(), again)

    hub.call_at(0.0, again)
    hub.turn()
    hub.turn()
    assert log == ["again", "again"]


def test_a_waiting_hub_wakes_for_its_next_timer() -> None:
    hub = Hub()
    log = Log()
    hub.call_at(hub.clock.now_s() + 0.02, log.says("woken"))
    hub.run(until=lambda: bool(log))
    hub.close()


def test_one_turn_runs_what_is_ready_then_timers_then_calls_then_hooks(
    hub: Hub, clock: VirtualClock, pipe: tuple[int, int]
) -> None:
    log = Log()
    hub.at_turn_end(log.says("hook 1"))
    hub.at_turn_end(log.says("hook 2"))
    hub.call_soon(log.says("soon"))
    hub.call_at(0.0, log.says("timer"))
    hub.watch(pipe[0], lambda events: log.append(os.read(pipe[0], 10).decode()))
    os.write(pipe[1], b"ready")
    hub.turn()
    assert log == ["ready", "timer", "soon", "hook 1", "hook 2"]
    hub.forget(pipe[0])


def test_a_call_that_hands_in_another_lets_the_hooks_run_first(hub: Hub) -> None:
    log = Log()
    hub.at_turn_end(log.says("hook"))

    def first() -> None:
        log.append("first")
        hub.call_soon(log.says("second"))

    hub.call_soon(first)
    hub.turn()
    hub.turn(None)  # does not wait: there is something to do
    assert log == ["first", "hook", "second", "hook"]


def test_a_hook_may_take_itself_away_and_the_next_one_still_runs(hub: Hub) -> None:
    log = Log()

    def once() -> None:
        log.append("once")
        hub.not_at_turn_end(once)

    hub.at_turn_end(once)
    hub.at_turn_end(log.says("always"))
    hub.turn()
    hub.turn()
    assert log == ["once", "always", "always"]


def test_many_threads_hand_in_calls_and_all_run_on_the_hubs_thread() -> None:
    hub = Hub()
    hub.start()
    ran: list[tuple[int, int]] = []
    on_loop: set[bool] = set()

    def run(number: int, i: int) -> None:
        ran.append((number, i))
        on_loop.add(hub.is_loop_thread)

    def hand_in(number: int) -> None:
        for i in range(500):
            hub.call_soon(functools.partial(run, number, i))

    workers = [threading.Thread(target=hand_in, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    within(10.0, lambda: len(ran) == 4000, "every call has run")
    for number in range(8):
        assert [i for n, i in ran if n == number] == list(range(500))
    assert on_loop == {True} and not hub.is_loop_thread
    hub.close()


def test_a_broken_callback_of_any_kind_does_not_stop_the_loop(
    pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    hub = Hub(name="sturdy")
    log = Log()

    def broken(*_: object) -> None:
        raise ValueError("broken")

    def exits() -> None:
        sys.exit("a handler called sys.exit")

    def reads(events: int) -> None:
        os.read(pipe[0], 10)
        broken()

    hub.at_turn_end(broken)
    hub.watch(pipe[0], reads)
    hub.call_at(0.0, broken)
    hub.call_soon(broken)
    hub.call_soon(exits)
    os.write(pipe[1], b"x")
    with caplog.at_level(logging.ERROR):
        hub.start()
        hub.call_soon(log.says("alive"))
        within(30.0, lambda: log == ["alive"], "the loop still runs")
        hub.forget(pipe[0])
        hub.close()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) >= 5 and set(texts) == {
        "sturdy: a callback failed; the hub continues. Please report this with the traceback."
    }
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {ValueError, SystemExit}


def test_an_interrupt_passes_through_a_hub_that_the_caller_drives(hub: Hub) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    hub.call_soon(interrupt)
    with pytest.raises(KeyboardInterrupt):
        hub.run(until=lambda: False)
    assert not hub.driven and not hub.is_loop_thread
    hub.turn()


def test_a_number_that_is_closed_and_used_again_within_a_turn_gets_no_event_of_the_old_one(hub: Hub) -> None:
    log = Log()
    pairs = [os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) for _ in range(2)]
    opened: list[int] = []

    def replace(own: int, other: int) -> None:
        """The first callback closes both descriptors, and an idle pipe reuses the number of the second."""
        log.append("first")
        for fd in (own, other):
            hub.forget(fd)
            os.close(fd)
        opened.extend(os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
        assert {opened[0], opened[1]} == {own, other}
        for fd in opened:
            hub.watch(fd, lambda events: log.append("stale"))

    (first, first_end), (second, second_end) = pairs
    hub.watch(first, lambda events: replace(first, second))
    hub.watch(second, lambda events: replace(second, first))
    os.write(first_end, b"x")
    os.write(second_end, b"x")
    hub.turn()
    hub.turn()
    assert log == ["first"]
    for fd in (*opened, first_end, second_end):
        hub.forget(fd)
        os.close(fd)


def test_watching_can_be_paused_and_changed(hub: Hub, pipe: tuple[int, int]) -> None:
    log = Log()
    hub.watch(pipe[0], lambda events: log.append("readable"))
    os.write(pipe[1], b"x")
    hub.change(pipe[0], 0)
    hub.turn()
    assert log == []
    hub.watch(pipe[1], lambda events: log.append("writable"), WRITE)
    hub.turn()
    assert log == ["writable"]
    hub.forget(pipe[1])
    hub.forget(pipe[0])
    hub.forget(pipe[0])
    hub.turn()
    assert log == ["writable"]


def test_a_turn_that_spins_does_what_comes_meanwhile_and_says_whether_something_did(
    hub: Hub, pipe: tuple[int, int]
) -> None:
    log = Log()
    hub.watch(pipe[0], lambda _: log.append(os.read(pipe[0], 9).decode()))
    assert not hub.turn(0.0, spin_s=1e-9)
    os.write(pipe[1], b"bytes")
    assert hub.turn(None, spin_s=10.0)
    assert log == ["bytes"]
    hub.call_soon(log.says("by another thread"))
    assert hub.turn(None, spin_s=10.0)

    def hand_in() -> None:  # on the thread that drives nobody has to be woken, and so the poll shows nothing
        hub.call_soon(log.says("by this one"))

    hub.call_soon(hand_in)
    hub.turn()
    assert hub.turn(None, spin_s=10.0)
    assert log == ["bytes", "by another thread", "by this one"]
    os.write(pipe[1], b"more")
    assert not hub.turn(None)  # it did not spin
    assert log[3:] == ["more"]
    hub.forget(pipe[0])


def test_an_alarm_rings_at_the_earliest_time_and_uses_one_timer(hub: Hub, clock: VirtualClock) -> None:
    log = Log()
    alarm = Alarm(hub, log.says("ring"))
    for due_s in (5.0, 3.0, 4.0):
        alarm.set(due_s)
    hub.turn()
    clock.advance(3.0)
    hub.turn()
    assert log == ["ring"]
    clock.advance(10.0)
    hub.turn()
    assert log == ["ring"], "it was set to the earliest only"
    alarm.set(20.0)
    hub.turn()
    alarm.cancel()
    clock.advance(10.0)
    hub.turn()
    assert log == ["ring"]


def test_what_was_handed_in_before_close_is_run_also_at_the_end_of_the_last_turn() -> None:
    hub, log = Hub(), Log()
    at_end, resume = threading.Event(), threading.Event()

    def hook() -> None:
        at_end.set()
        resume.wait(10.0)

    hub.at_turn_end(hook)
    hub.start()
    hub.call_soon(log.says("first"))
    at_end.wait(10.0)  # later calls are for the next turn
    hub.call_soon(log.says("second"))
    closer = threading.Thread(target=hub.close)
    closer.start()
    within(10.0, lambda: hub._closing, "it is being closed")
    resume.set()
    closer.join()
    assert log == ["first", "second"]


def test_close_ends_what_lives_on_the_hub_and_may_be_called_by_many() -> None:
    class Thing:
        closed = 0

        def close(self) -> None:
            self.closed += 1

        def close_fork(self) -> None:
            raise AssertionError("no fork here")

    hub, thing = Hub(), Thing()
    hub.close_in_fork(thing)
    hub.start()
    closers = [threading.Thread(target=hub.close) for _ in range(8)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    assert thing.closed == 1
    hub.call_soon(lambda: None)
    with pytest.raises(ClosedError, match="the hub 'hub' of process"):
        hub.start()


def test_a_hub_may_close_itself_in_a_callback() -> None:
    hub = Hub()
    hub.start()
    hub.call_soon(hub.close)
    hub.call_soon(lambda: None)
    within(30.0, lambda: not hub.driven, "the hub is closed")
    other = Hub()
    other.call_soon(other.close)
    other.run(until=lambda: False)  # ends, because it is closed


def test_a_timer_in_a_hundred_years_keeps_nothing_from_happening() -> None:
    hub = Hub(name="far")
    hub.start()
    try:
        for _ in range(2):  # by the second time it has waited with the timer set
            done = threading.Event()
            hub.call_soon(lambda: set_far(hub))
            hub.call_soon(done.set)
            assert done.wait(10.0)
    finally:
        hub.close()


def set_far(hub: Hub) -> None:
    hub.call_at(hub.now_s() + 3e9, lambda: None)
