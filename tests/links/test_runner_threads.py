"""Tier 3: real threads that drive a hub and run jobs, one after another or beside each other."""

import logging
import random
import threading
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from fanwise.links.hub import Hub
from fanwise.links.runner_threads import RunnerThreads
from fanwise.testing import within


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(name="driven")
    yield hub
    hub.close()


def driven(hub: Hub, limit: int = 16) -> RunnerThreads:
    runners = RunnerThreads(hub, name="test", limit=limit)
    runners.start()
    return runners


@pytest.fixture
def runners(hub: Hub) -> Iterator[RunnerThreads]:
    runners = driven(hub)
    yield runners
    runners.close()


def wait_for(event: threading.Event) -> None:
    assert event.wait(10.0), "the event did not come"


def test_a_job_that_comes_in_through_the_hub_runs_on_the_thread_that_read_it(hub: Hub, runners: RunnerThreads) -> None:
    ran: list[int] = []
    done = threading.Event()

    def readable() -> None:
        reader = threading.get_ident()

        def job() -> None:
            ran.extend((reader, threading.get_ident()))
            done.set()

        runners.outside(job)

    hub.call_soon(readable)
    wait_for(done)
    assert ran[0] == ran[1]


def test_a_job_is_not_run_within_a_turn_of_the_hub(hub: Hub, runners: RunnerThreads) -> None:
    seen: list[bool] = []
    done = threading.Event()

    def job() -> None:
        seen.append(hub.is_loop_thread)
        done.set()

    hub.call_soon(lambda: runners.outside(job))
    wait_for(done)
    assert seen == [False]


@pytest.mark.parametrize("tells", [False, True], ids=["silent", "says that it waits"])
def test_the_hub_is_driven_while_a_job_waits(hub: Hub, runners: RunnerThreads, tells: bool) -> None:
    began, turned, ended = threading.Event(), threading.Event(), threading.Event()

    def job() -> None:
        began.set()
        with runners.waiting() if tells else nullcontext():
            wait_for(turned)
        ended.set()

    runners.call(job)
    wait_for(began)
    hub.call_soon(turned.set)
    wait_for(ended)


def test_jobs_that_wait_for_each_other_all_end_when_they_say_so(hub: Hub) -> None:
    runners = driven(hub, limit=2)
    events = [threading.Event() for _ in range(61)]

    def link_of_a_chain(i: int) -> None:
        with runners.waiting():
            wait_for(events[i + 1])
        events[i].set()

    for i in range(60):
        runners.call(lambda i=i: link_of_a_chain(i))  # type: ignore[misc]  # a default binds i
    runners.call(events[60].set)
    wait_for(events[0])
    runners.close()


def test_calls_that_wait_in_silence_keep_their_places_and_what_answers_runs_beside_them(hub: Hub) -> None:
    runners = driven(hub, limit=2)
    resume, answered, began = threading.Event(), threading.Event(), list[int]()

    def job(i: int) -> None:
        began.append(i)
        wait_for(resume)

    for i in range(5):
        runners.call(lambda i=i: job(i))  # type: ignore[misc]  # a default binds i
    runners.answer(answered.set)
    wait_for(answered)
    within(10.0, lambda: len(began) == 2, "as many run as may")
    assert not threading.Event().wait(0.1) and began == [0, 1]
    resume.set()
    within(10.0, lambda: len(began) == 5, "all have begun")
    runners.close()


def test_what_answers_goes_ahead_of_calls_that_came_before_it(hub: Hub) -> None:
    runners = driven(hub, limit=1)
    resume, done, ran = threading.Event(), threading.Event(), list[str]()

    def turn() -> None:
        for i in range(3):
            runners.call(lambda i=i: ran.append(f"call {i}"))  # type: ignore[misc]  # a default binds i
        runners.answer(lambda: ran.append("answer"))
        runners.outside(lambda: ran.append("outside"))
        runners.call(done.set)
        resume.set()

    hub.call_soon(turn)
    wait_for(resume)
    wait_for(done)
    assert ran == ["answer", "outside", "call 0", "call 1", "call 2"]
    runners.close()


def test_what_comes_in_while_many_short_calls_run_is_read_before_they_have_ended(hub: Hub) -> None:
    runners = driven(hub, limit=1)
    num_calls, before, answered, done = [0], list[int](), threading.Event(), threading.Event()

    def call() -> None:
        num_calls[0] += 1
        if not answered.is_set():  # seconds in all, if the answer does not come in between
            threading.Event().wait(0.0003)

    def answer() -> None:
        before.append(num_calls[0])
        answered.set()

    def turn() -> None:
        for _ in range(10_000):
            runners.call(call)
        runners.call(done.set)
        threading.Thread(target=hub.call_soon, args=(lambda: runners.answer(answer),)).start()

    hub.call_soon(turn)
    wait_for(done)
    assert before and before[0] < 10_000
    runners.close()


def test_a_job_that_has_waited_counts_again_and_goes_on_though_its_place_is_taken(hub: Hub) -> None:
    runners = driven(hub, limit=1)
    arrived, resume, end, went_on, began = (threading.Event() for _ in range(5))

    def waits() -> None:
        with runners.waiting():
            wait_for(arrived)
        went_on.set()
        wait_for(resume)

    def takes_its_place() -> None:
        arrived.set()
        wait_for(went_on)
        wait_for(end)

    runners.call(waits)
    runners.call(takes_its_place)
    runners.call(began.set)
    wait_for(went_on)
    end.set()
    assert not began.wait(0.1), "the first one still runs"
    resume.set()
    wait_for(began)
    runners.close()


def test_as_many_jobs_as_the_limit_run_and_the_next_begins_when_one_ends(hub: Hub) -> None:
    runners = driven(hub, limit=3)
    lock, running, most, done = threading.Lock(), [0], [0], threading.Semaphore(0)
    three_run = threading.Event()

    def job() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
            if running[0] == 3:
                three_run.set()
        wait_for(three_run)
        threading.Event().wait(0.005)  # lets go of the interpreter's lock, as arithmetic of torch does
        with lock:
            running[0] -= 1
        done.release()

    for _ in range(30):
        runners.outside(job)
    for _ in range(30):
        assert done.acquire(timeout=10.0)
    assert most[0] == 3
    runners.close()


def test_the_next_job_begins_when_one_says_that_it_waits(hub: Hub) -> None:
    runners = driven(hub, limit=2)
    began, block, end = list[int](), threading.Event(), threading.Event()

    def job() -> None:
        began.append(1)
        wait_for(block)
        with runners.waiting():
            wait_for(end)

    for _ in range(4):
        runners.call(job)
    within(10.0, lambda: len(began) >= 2, "as many run as may")
    assert not threading.Event().wait(0.1) and len(began) == 2
    block.set()
    within(10.0, lambda: len(began) == 4, "the others have begun")
    end.set()
    runners.close()


class Mix:
    """Random jobs, which may add further jobs, and the number of those that run and do not wait."""

    def __init__(self, hub: Hub, runners: RunnerThreads, seed: int) -> None:
        self._hub, self._runners, self._chance = hub, runners, random.Random(seed)
        self._lock = threading.Lock()
        self._running = self.most = self.brought = self.ended = 0
        self.all_ended = threading.Event()

    def bring(self, further: int) -> None:
        """Return a job that adds this number of jobs."""
        with self._lock:
            self.brought += 1
            is_from_hub, wait_s = self._chance.random() < 0.5, self._chance.choice((0.0, 0.0, 0.0005, 0.003))
            says_so, raises = self._chance.random() < 0.3, self._chance.random() < 0.05

        def job() -> None:
            self._count(1)
            for _ in range(further):
                self.bring(0)
            threading.Event().wait(wait_s)
            self._count(-1)
            if says_so:
                with self._runners.waiting():
                    threading.Event().wait(wait_s)
            with self._lock:
                self.ended += 1
                if self.ended == self.brought:
                    self.all_ended.set()
            if raises:
                raise ValueError("a bad job")

        if is_from_hub:
            self._hub.call_soon(lambda: self._runners.call(job))
        else:
            self._runners.call(job)

    def _count(self, by: int) -> None:
        with self._lock:
            self._running += by
            self.most = max(self.most, self._running)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 100))])
def test_jobs_of_all_kinds_run_once_within_the_limit_and_wait_for_nothing_else(hub: Hub, seed: int) -> None:
    limit = 1 + seed % 4
    runners = driven(hub, limit=limit)
    mix = Mix(hub, runners, seed)
    chance = random.Random(seed)
    for _ in range(100):
        mix.bring(chance.randrange(4))
        if chance.random() < 0.1:
            threading.Event().wait(0.002)  # so that the runners come to rest in between
    wait_for(mix.all_ended)
    within(10.0, lambda: mix.ended == mix.brought, "all have ended")
    assert mix.most <= limit
    runners.close()


def test_a_job_that_raises_is_logged_and_the_next_one_runs(
    runners: RunnerThreads, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def broken() -> None:
        raise SystemExit(3)

    with caplog.at_level(logging.ERROR):
        runners.outside(broken)
        runners.outside(done.set)
        wait_for(done)
    assert "a job of test failed" in caplog.text


def test_close_does_not_wait_for_a_job_that_goes_on(hub: Hub) -> None:
    runners = driven(hub)
    began, resume, ended = threading.Event(), threading.Event(), threading.Event()

    def job() -> None:
        began.set()
        wait_for(resume)
        ended.set()

    runners.outside(job)
    wait_for(began)
    runners.close()
    hub.close()
    resume.set()
    wait_for(ended)


def test_what_was_handed_in_before_a_close_but_not_begun_is_dropped(hub: Hub) -> None:
    runners = driven(hub)
    runners.close()
    ran: list[int] = []
    runners.outside(lambda: ran.append(1))
    assert ran == []


@pytest.mark.parametrize("by", ["a thread", "a job that drives", "a call that waits"])
def test_who_waits_for_an_answer_hears_of_the_end_though_all_places_are_taken(hub: Hub, by: str) -> None:
    runners = driven(hub, limit=1)
    hangs, resume, closed, results = threading.Event(), threading.Event(), threading.Event(), list[int]()

    def hang() -> None:
        hangs.set()
        wait_for(resume)

    def close() -> None:
        runners.close()
        closed.set()

    def waits() -> None:
        with runners.waiting():
            close()

    runners.answer(hang)
    wait_for(hangs)
    for i in range(9):
        runners.answer(lambda i=i: results.append(i))  # type: ignore[misc]  # a default binds i
    runners.call(lambda: results.append(-1)) if by == "a thread" else None
    if by == "a thread":
        close()
    else:
        runners.call(close if by == "a job that drives" else waits)
    wait_for(closed)
    within(10.0, lambda: len(results) >= 9, "all have heard")
    runners.answer(lambda: results.append(9))
    assert [i for i in results if i >= 0] == list(range(10))
    resume.set()


def test_close_may_come_from_a_job(hub: Hub) -> None:
    runners = driven(hub)
    closed = threading.Event()

    def job() -> None:
        runners.close()
        closed.set()

    runners.outside(job)
    wait_for(closed)


def test_after_a_storm_of_blocking_jobs_few_threads_are_left(hub: Hub, runners: RunnerThreads) -> None:
    resume = threading.Event()
    began = threading.Semaphore(0)

    def job() -> None:
        with runners.waiting():
            began.release()
            wait_for(resume)

    for _ in range(40):
        runners.outside(job)
    for _ in range(40):
        assert began.acquire(timeout=10.0)
    resume.set()
    within(10.0, lambda: _threads() <= 7, "spares have ended")


@pytest.mark.parametrize("comes_back", ["a thread whose job ends", "a thread that can be started again"])
def test_when_the_system_gives_no_more_threads_another_drives_as_soon_as_there_is_one(
    runners: RunnerThreads, monkeypatch: pytest.MonkeyPatch, comes_back: str
) -> None:
    refused, resume, ran = threading.Event(), threading.Event(), threading.Event()

    def refuse(_thread: threading.Thread) -> None:
        refused.set()
        raise RuntimeError("can't start new thread")

    def job() -> None:
        with runners.waiting():
            wait_for(resume)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        runners.outside(job)
        wait_for(refused)
        runners.outside(ran.set)
        if comes_back == "a thread whose job ends":
            resume.set()
            wait_for(ran)
    wait_for(ran)
    resume.set()


def _threads() -> int:
    return sum(thread.name.startswith("fanwise-test") for thread in threading.enumerate())
