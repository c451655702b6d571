"""Many workers, calls, threads and references, and calls that wait for each other: all are answered, all are freed."""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import faulthandler
import gc
import operator
import os
import random
import threading
from collections.abc import Callable

import pytest
import torch
from rpc_workers import LIMIT_S, Worker, Workers, all_do, call, error_of, leave
from torch.futures import Future

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded
from fanwise.rpc import agent as agents
from fanwise.testing import within

# -- many workers --------------------------------------------------------------------------------------------------


def along(path: list[int]) -> int:
    """Return the length of a path of nested calls."""
    return 1 + rpc.rpc_sync(path[0], along, (path[1:],)) if path else 0


def call_all(size: int) -> list[int]:
    """Call each worker, which calls the next one, which calls back."""
    rank = rpc.get_worker_info().id
    return torch.futures.wait_all([rpc.rpc_async(to, along, ([(to + 1) % size, rank],)) for to in range(size)])


@pytest.mark.parametrize("size", [8, pytest.param(64, marks=pytest.mark.soak)])
def test_many_workers_make_nested_calls_all_to_all(real_workers: Workers, size: int) -> None:
    workers = real_workers.group(size)
    assert all_do(workers, call_all, size) == [[2] * size] * size
    all_do(workers, leave)


# -- many references -----------------------------------------------------------------------------------------------


class Counted:
    """Counts its instances. Large enough that a leak is visible."""

    num_alive = num_created = 0

    def __init__(self) -> None:
        self.space = bytearray(1000)
        Counted.num_alive += 1
        Counted.num_created += 1

    def __del__(self) -> None:
        Counted.num_alive -= 1


def create_and_drop(to: str, count: int, batch: int) -> None:
    for _ in range(count // batch):
        references = [rpc.remote(to, Counted) for _ in range(batch)]
        references[-1].to_here()
        del references


def counted() -> tuple[int, int]:
    return Counted.num_alive, Counted.num_created


def reference_counts() -> dict[str, str]:
    return agents.current().references.debug_info()


def resident_mb() -> float:
    """Return the memory of this process, after returning free memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def wait_until_freed(two: list[Worker], num_created: int) -> None:
    within(LIMIT_S, lambda: two[1].do(counted) == (0, num_created), f"all {num_created} values were freed")
    for worker in two:
        within(LIMIT_S, lambda: set(worker.do(reference_counts).values()) == {"0"}, "nothing is kept")  # noqa: B023


def test_1000_remote_objects_are_freed(new_pair: list[Worker]) -> None:
    new_pair[0].do(create_and_drop, "w1", 1000, 200)
    wait_until_freed(new_pair, 1000)


@pytest.mark.soak
def test_100000_remote_objects_are_freed_and_memory_does_not_grow(new_pair: list[Worker]) -> None:
    seen_mb = []
    for number in range(1, 11):
        new_pair[0].do(create_and_drop, "w1", 10_000, 500)
        wait_until_freed(new_pair, number * 10_000)
        seen_mb.append(all_do(new_pair, resident_mb))
    grown_mb = [seen_mb[-1][i] - seen_mb[1][i] for i in range(2)]
    assert max(grown_mb) < 12, seen_mb  # 80,000 values are 80 MB, and their ids in a table as much again


# -- calls that wait for calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [[0], [1, 0, 1, 1, 0, 0]], ids=str)
def test_calls_nest_50_deep_with_one_thread(real_workers: Workers, path: list[int]) -> None:
    two = real_workers.group(2, num_worker_threads=1)
    whole = (path * 50)[:50]
    assert two[0].do(along, whole) == 50
    assert all_do(two, along, whole) == [50, 50]
    all_do(two, leave)


RUNNING: list[int] = []


def num_running(number: int) -> int:
    """Return how many calls of this function run at the moment."""
    RUNNING.append(number)
    threading.Event().wait(0.01)  # ten times as long as until another thread reads the next call
    running = len(RUNNING)
    RUNNING.remove(number)
    return running


def max_over_calls(to: str, function: Callable[..., int], count: int) -> int:
    results: list[int] = torch.futures.wait_all([rpc.rpc_async(to, function, (number,)) for number in range(count)])
    return max(results)


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_as_many_functions_run_as_there_are_worker_threads(real_workers: Workers, to: str) -> None:
    two = real_workers.group(2, num_worker_threads=2)
    assert two[0].do(max_over_calls, to, num_running, 20) == 2
    all_do(two, leave)


def wait_for_chained_futures(number: int) -> int:
    """Wait for futures that `then` and `collect_all` return, not for those of the calls."""
    other = 1 - rpc.get_worker_info().id
    first = rpc.rpc_async(other, operator.add, (number, 1)).then(lambda done: done.wait() + 1)
    second = rpc.rpc_async(other, operator.add, (number, 2)).then(lambda done: done.wait() + 2)
    return int(torch.futures.collect_all([first, second]).wait()[1].wait()) - int(first.wait())


def make_chained_calls(count: int) -> int:
    return max_over_calls(f"w{1 - rpc.get_worker_info().id}", wait_for_chained_futures, count)


def test_function_that_waits_for_a_chained_future_gives_up_its_slot(real_workers: Workers) -> None:
    two = real_workers.group(2, num_worker_threads=1)
    assert all_do(two, make_chained_calls, 30) == [2, 2]
    all_do(two, leave)


LOCK = threading.Lock()
EVENTS: dict[str, threading.Event] = {}
FUTURES: dict[str, "Future[int]"] = {}


def event(name: str) -> threading.Event:
    with LOCK:
        return EVENTS.setdefault(name, threading.Event())


def future(name: str) -> "Future[int]":
    with LOCK:
        return FUTURES.setdefault(name, Future())


def wait_for_event(name: str) -> str:
    with rpc.waiting():
        event(name).wait()
    return name


def set_event(name: str) -> None:
    event(name).set()


def wait_for_future(name: str) -> int:
    return future(name).wait()


def set_future(name: str, value: int) -> None:
    future(name).set_result(value)


@rpc.functions.async_execution
def return_future(name: str) -> "Future[int]":
    return future(name)


async def wait_in_a_coroutine(name: str) -> int:
    result: concurrent.futures.Future[int] = concurrent.futures.Future()
    future(name).add_done_callback(lambda done: result.set_result(done.value()))
    return await asyncio.wrap_future(result)


def wait_for_events(to: str, count: int) -> list[str]:
    names = [str(number) for number in range(count)]
    waiting: list[Future[str]] = [rpc.rpc_async(to, wait_for_event, (name,)) for name in names]
    setting: list[Future[None]] = [rpc.rpc_async(to, set_event, (name,)) for name in reversed(names)]
    torch.futures.wait_all(setting)
    return torch.futures.wait_all(waiting)


def wait_for_futures(to: str, wait: Callable[[str], object], count: int) -> int:
    """Let all calls wait for futures that later calls set. Return the sum of the results."""
    prefix = f"{wait.__name__} "
    waiting: list[Future[int]] = [rpc.rpc_async(to, wait, (f"{prefix}{number}",)) for number in range(count)]
    torch.futures.wait_all([rpc.rpc_async(to, set_future, (f"{prefix}{number}", number)) for number in range(count)])
    return sum(torch.futures.wait_all(waiting))


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_functions_that_wait_for_later_calls_end_with_one_thread(real_workers: Workers, to: str) -> None:
    two = real_workers.group(2, num_worker_threads=1)
    assert two[0].do(wait_for_events, to, 20) == [str(number) for number in range(20)]
    assert two[0].do(wait_for_futures, to, wait_for_future, 20) == 190
    all_do(two, leave)


def test_functions_that_answer_later_and_coroutines_hold_no_thread(new_pair: list[Worker]) -> None:
    for wait in (return_future, wait_in_a_coroutine):
        assert new_pair[0].do(wait_for_futures, "w1", wait, 500) == 499 * 250
    assert new_pair[0].do(call, "w1", threading.active_count) < 16


async def end_the_loop(way: str) -> None:
    raise {"exit": SystemExit(3), "canceled": asyncio.CancelledError(), "interrupt": KeyboardInterrupt()}[way]


def errors_of_coroutines(to: str) -> list[str]:
    return [error_of(rpc.rpc_sync, to, end_the_loop, (way,)) for way in ("exit", "canceled", "interrupt")]


def test_coroutine_that_exits_does_not_end_the_loop(pair: list[Worker]) -> None:
    exited, canceled, interrupted = pair[0].do(errors_of_coroutines, "w1")
    assert "SystemExit: 3" in exited and "CancelledError" in canceled and "KeyboardInterrupt" in interrupted
    assert pair[0].do(wait_for_futures, "w1", wait_in_a_coroutine, 10) == 45


# -- random calls of several threads -------------------------------------------------------------------------------

SIZE, THREADS, STEPS = 3, 4, 40


def double(x: int) -> int:
    return 2 * x


def double_late(x: int, wait_s: float) -> int:
    threading.Event().wait(wait_s)
    return 2 * x


def fail(x: int) -> None:
    raise KeyError(x)


def along_by_futures(path: list[int]) -> int:
    return 1 + rpc.rpc_async(path[0], along_by_futures, (path[1:],)).wait() if path else 0


@rpc.functions.async_execution
def double_elsewhere(to: int, x: int) -> "Future[int]":
    return rpc.rpc_async(to, double, (x,)).then(lambda done: int(done.wait()))


async def double_in_a_coroutine(x: int) -> int:
    return 2 * x


class Counter:
    def __init__(self) -> None:
        self.value = 0
        self.lock = threading.Lock()

    def add(self, amount: int) -> int:
        with self.lock:
            self.value += amount
            return self.value


class Steps:
    """The operations of one thread, each with a check of its result."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.random = random.Random(name)
        self.number = 0

    def step(self) -> None:
        self.number += 1
        steps: list[Callable[[int], None]] = [
            *(self.call, self.wait_for_many, self.nest, self.set_future, self.answer_later, self.time_out),
            *(self.wait_in_two_threads, self.call_back, self.raise_error, self.use_an_object),
        ]
        self.random.choice(steps)(self.random.randrange(SIZE))

    def call(self, to: int) -> None:
        assert rpc.rpc_sync(to, double, (3,), timeout=self.random.choice([0, -1, 20])) == 6
        assert rpc.rpc_async(to, double, (4,), timeout=self.random.choice([0, -1, 20])).wait() == 8

    def wait_for_many(self, _to: int) -> None:
        count = self.random.randrange(1, 20)
        calls: list[Future[int]] = [rpc.rpc_async(self.random.randrange(SIZE), double, (i,)) for i in range(count)]
        assert torch.futures.wait_all(calls) == [2 * i for i in range(len(calls))]

    def nest(self, _to: int) -> None:
        path = [self.random.randrange(SIZE) for _ in range(1 + self.random.randrange(5))]
        nested = self.random.choice([along, along_by_futures])
        assert rpc.rpc_sync(path[0], nested, (path[1:],)) == len(path) - 1

    def set_future(self, to: int) -> None:
        name = f"{self.name} {self.number}"
        waiting: list[Future[int]] = [rpc.rpc_async(to, return_future, (name,)) for _ in range(2)]
        rpc.rpc_async(to, set_future, (name, 5))
        assert torch.futures.wait_all(waiting) == [5, 5]

    def answer_later(self, to: int) -> None:
        assert rpc.rpc_sync(to, double_elsewhere, ((to + 1) % SIZE, 3)) == 6
        assert rpc.rpc_sync(to, double_in_a_coroutine, (3,)) == 6

    def time_out(self, to: int) -> None:
        limit_s = self.random.uniform(0.0005, 0.004)
        with contextlib.suppress(DeadlineExceeded):
            assert rpc.rpc_sync(to, double_late, (3, self.random.uniform(0, 0.004)), timeout=limit_s) == 6
        late = rpc.rpc_async(to, double_late, (3, self.random.uniform(0, 0.004)), timeout=limit_s)
        called = threading.Event()
        late.add_done_callback(lambda _: called.set())
        with contextlib.suppress(DeadlineExceeded):
            assert late.wait() == 6
        called.wait()

    def wait_in_two_threads(self, to: int) -> None:
        future = rpc.rpc_async(to, double_late, (3, self.random.uniform(0, 0.003)))
        results: list[int] = []
        other = threading.Thread(target=lambda: results.append(future.wait()))
        other.start()
        assert future.wait() == 6
        other.join()
        assert results == [6]

    def call_back(self, to: int) -> None:
        added = [rpc.rpc_async(to, double, (i,)).then(lambda done: done.wait() + 1) for i in range(4)]
        assert [one.wait() for one in torch.futures.collect_all(added).wait()] == [1, 3, 5, 7]

    def raise_error(self, to: int) -> None:
        with pytest.raises(KeyError):
            rpc.rpc_sync(to, fail, (3,))

    def use_an_object(self, to: int) -> None:
        counter = rpc.remote(to, Counter)
        torch.futures.wait_all([counter.rpc_async().add(1) for _ in range(3)])
        assert counter.rpc_sync().add(1) == counter.rpc_sync().add(0) == 4
        assert rpc.remote(to, double, (3,)).to_here() == 6


def run_threads(seed: int) -> int:
    """Return the number of steps of all threads, or raise the first error. Prints all stacks if a thread hangs."""
    num_steps, errors = [0] * THREADS, []
    faulthandler.dump_traceback_later(LIMIT_S - 5.0)

    def run(number: int) -> None:
        steps = Steps(f"{seed} {rpc.get_worker_info().id} {number}")
        try:
            for _ in range(STEPS):
                steps.step()
                num_steps[number] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    faulthandler.cancel_dump_traceback_later()
    if errors:
        raise errors[0]
    return sum(num_steps)


@pytest.mark.parametrize(
    ("num_worker_threads", "num_seeds"),
    [(1, 1), (16, 1), *(pytest.param(num, 40, marks=pytest.mark.soak) for num in (1, 2, 16))],
)
def test_no_reply_is_lost_among_threads_that_call_in_all_ways(
    real_workers: Workers, num_worker_threads: int, num_seeds: int
) -> None:
    # Calls have no limit, so a lost reply is a hang whose stacks are printed.
    three = real_workers.group(SIZE, num_worker_threads=num_worker_threads, rpc_timeout=0)
    for seed in range(num_seeds):
        assert all_do(three, run_threads, seed) == [THREADS * STEPS] * SIZE, seed
    all_do(three, leave)
