"""Many workers, calls, threads and references, and calls that wait for each other: all answered, all freed."""

import ctypes
import gc
import operator
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rpc_workers import LIMIT_S, Worker, Workers, all_do, leave
from torch.futures import Future

import fanwise.rpc as rpc
from fanwise.rpc import agent as agents
from fanwise.testing import within

# Any throughout: what users' functions take and return.


def pid() -> int:
    return os.getpid()


def call(to: str, function: Any, *args: object) -> Any:
    return rpc.rpc_sync(to, function, args)


# -- many workers --------------------------------------------------------------------------------------------------


def along(path: list[int], value: int) -> int:
    """One is added at each worker of the path."""
    if not path:
        return value
    added: int = rpc.rpc_sync(path[0], along, (path[1:], value + 1))
    return added


def call_all(size: int) -> int:
    """To each worker, from there to the next, and from there back here."""
    me = rpc.get_worker_info().id
    calls: list[Future[int]] = [rpc.rpc_async(other, along, ([(other + 1) % size, me], 0)) for other in range(size)]
    return sum(torch.futures.wait_all(calls))


def check_all_to_all(real_workers: Workers, size: int) -> None:
    workers = [real_workers.start(f"w{rank}") for rank in range(size)]
    for rank, worker in enumerate(workers):
        worker.begin(join_by_default, worker.name, rank, size, real_workers.url)
    for worker in workers:
        worker.result()
    assert all_do(workers, call_all, size) == [2 * size] * size
    all_do(workers, leave)


def join_by_default(name: str, rank: int, size: int, url: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=url)
    rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=options)


def test_8_workers_make_nested_calls_all_to_all(real_workers: Workers) -> None:
    check_all_to_all(real_workers, 8)


@pytest.mark.soak
def test_64_workers_make_nested_calls_all_to_all(real_workers: Workers) -> None:
    check_all_to_all(real_workers, 64)


# -- many references -----------------------------------------------------------------------------------------------


class Counted:
    """Knows how many of its kind there are here. Big enough that a leak of it shows."""

    alive = 0
    made = 0

    def __init__(self) -> None:
        self.space = bytearray(1000)
        Counted.alive += 1
        Counted.made += 1

    def __del__(self) -> None:
        Counted.alive -= 1


def make_and_drop(to: str, count: int, at_a_time: int) -> None:
    for _ in range(count // at_a_time):
        references = [rpc.remote(to, Counted) for _ in range(at_a_time)]
        references[-1].to_here()
        del references


def counted() -> tuple[int, int]:
    return Counted.alive, Counted.made


def state() -> dict[str, str]:
    return agents.current().references.debug_info()


def resident_mb() -> float:
    """Of this process, without what it has freed and not given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def check_all_freed(two: list[Worker], made: int) -> None:
    within(LIMIT_S, lambda: two[1].do(counted) == (0, made), f"all {made} values were freed")
    for worker in two:
        within(LIMIT_S, lambda: set(worker.do(state).values()) == {"0"}, "nothing is kept")  # noqa: B023


def test_1000_remote_objects_are_all_freed(real_workers: Workers) -> None:
    two = real_workers.group(2)
    two[0].do(make_and_drop, "w1", 1000, 200)
    check_all_freed(two, 1000)
    all_do(two, leave)


@pytest.mark.soak
def test_100000_remote_objects_are_all_freed_and_memory_stays_flat(real_workers: Workers) -> None:
    two = real_workers.group(2)
    seen_mb = []
    for number in range(1, 11):
        two[0].do(make_and_drop, "w1", 10_000, 500)
        check_all_freed(two, number * 10_000)
        seen_mb.append(all_do(two, resident_mb))
    grown_mb = [seen_mb[-1][i] - seen_mb[1][i] for i in range(2)]
    print("".join(f"{user:8.1f} {owner:8.1f} MB\n" for user, owner in seen_mb))
    print(f"80,000 more: the user grew by {grown_mb[0]:.1f} MB, the owner by {grown_mb[1]:.1f} MB")
    assert max(grown_mb) < 12  # the values alone would be 80 MB, an id of each and its place in a table as much again
    all_do(two, leave)


# -- many calls ----------------------------------------------------------------------------------------------------


def double(x: int) -> int:
    return 2 * x


def call_from_threads(to: str, num_threads: int, each: int) -> int:
    totals = [0] * num_threads

    def run(number: int) -> None:
        calls = [rpc.rpc_async(to, double, (number * each + i,)) for i in range(each)]
        totals[number] = sum(future.wait() for future in calls)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(totals)


@pytest.mark.parametrize("each", [250, pytest.param(1250, marks=pytest.mark.soak)])
@pytest.mark.parametrize("to", ["w0", "w1"])
def test_calls_of_8_threads_at_once_are_all_answered(real_workers: Workers, to: str, each: int) -> None:
    two = real_workers.group(2)
    assert two[0].do(call_from_threads, to, 8, each) == 8 * each * (8 * each - 1)
    all_do(two, leave)


def test_workers_that_flood_each_other_are_all_answered(real_workers: Workers) -> None:
    two = real_workers.group(2)
    two[0].begin(call_with_tensors, "w1", 100)
    two[1].begin(call_with_tensors, "w0", 100)
    assert two[0].result() == two[1].result() == 100 * 10_000
    all_do(two, leave)


def call_with_tensors(to: str, count: int) -> int:
    calls = [rpc.rpc_async(to, torch.add, (torch.zeros(10_000), 1)) for _ in range(count)]
    return int(sum(future.wait().sum() for future in calls))


# -- calls that wait for calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [[0], [1], [0, 1], [1, 0, 1, 1, 0, 0]], ids=str)
def test_calls_nest_50_deep_with_one_thread(real_workers: Workers, path: list[int]) -> None:
    two = real_workers.group(2, num_worker_threads=1)
    whole = (path * 50)[:50]
    assert two[0].do(along, whole, 0) == 50
    assert all_do(two, along, whole, 0) == [50, 50]
    all_do(two, leave)


def fibonacci(n: int) -> int:
    if n < 2:
        return n
    other = 1 - rpc.get_worker_info().id
    calls = [rpc.rpc_async(other, fibonacci, (n - 1,)), rpc.rpc_async(other, fibonacci, (n - 2,))]
    return sum(future.wait() for future in calls)


RUNNING: list[int] = []


def be_counted(number: int) -> int:
    """How many run at this moment."""
    RUNNING.append(number)
    threading.Event().wait(0.01)  # ten times as long as the threads give a call before another one reads
    found = len(RUNNING)
    RUNNING.remove(number)
    return found


def chained(number: int) -> int:
    """Waits for a future that is not of the call, but of what is done with it."""
    other = 1 - rpc.get_worker_info().id
    first = rpc.rpc_async(other, operator.add, (number, 1)).then(lambda done: done.wait() + 1)
    second = rpc.rpc_async(other, operator.add, (number, 2)).then(lambda done: done.wait() + 2)
    return int(torch.futures.collect_all([first, second]).wait()[1].wait()) - int(first.wait())


def most_at_once(to: str, function: Callable[..., int], count: int) -> int:
    found: list[int] = torch.futures.wait_all([rpc.rpc_async(to, function, (number,)) for number in range(count)])
    return max(found)


def chained_at(count: int) -> int:
    return most_at_once(f"w{1 - rpc.get_worker_info().id}", chained, count)


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_as_many_functions_run_as_there_are_worker_threads(real_workers: Workers, to: str) -> None:
    two = real_workers.group(2, num_worker_threads=2)
    assert two[0].do(most_at_once, to, be_counted, 20) == 2
    all_do(two, leave)


def test_waiting_for_what_then_and_collect_all_made_lends_the_place(real_workers: Workers) -> None:
    two = real_workers.group(2, num_worker_threads=1)
    assert all_do(two, chained_at, 30) == [2, 2]
    all_do(two, leave)


def test_a_recursion_over_two_workers_ends_with_one_thread(real_workers: Workers) -> None:
    two = real_workers.group(2, num_worker_threads=1)
    assert two[0].do(fibonacci, 10) == 55
    all_do(two, leave)


EVENTS: dict[str, threading.Event] = {}
FUTURES: dict[str, "Future[int]"] = {}
LOCK = threading.Lock()


def event(name: str) -> threading.Event:
    with LOCK:
        return EVENTS.setdefault(name, threading.Event())


def future(name: str) -> "Future[int]":
    with LOCK:
        if name not in FUTURES:
            FUTURES[name] = Future()
        return FUTURES[name]


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


def wait_and_set(to: str, count: int) -> list[str]:
    """All wait before the first is set."""
    names = [str(number) for number in range(count)]
    waiting = [rpc.rpc_async(to, wait_for_event, (name,)) for name in names]
    setting: list[Future[None]] = [rpc.rpc_async(to, set_event, (name,)) for name in reversed(names)]
    torch.futures.wait_all(setting)
    return [future.wait() for future in waiting]


def wait_and_fill(to: str, count: int) -> int:
    waiting = [rpc.rpc_async(to, wait_for_future, (str(number),)) for number in range(count)]
    setting: list[Future[None]] = [rpc.rpc_async(to, set_future, (str(number), number)) for number in range(count)]
    torch.futures.wait_all(setting)
    return sum(future.wait() for future in waiting)


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_functions_that_wait_for_what_other_calls_do_end_with_one_thread(real_workers: Workers, to: str) -> None:
    two = real_workers.group(2, num_worker_threads=1)
    assert two[0].do(wait_and_set, to, 20) == [str(number) for number in range(20)]
    assert two[0].do(wait_and_fill, to, 20) == 190
    all_do(two, leave)


@rpc.functions.async_execution
def promise(name: str) -> "Future[int]":
    return future(name)


def promise_and_fill(to: str, count: int) -> int:
    waiting = [rpc.rpc_async(to, promise, (str(number),)) for number in range(count)]
    setting: list[Future[None]] = [rpc.rpc_async(to, set_future, (str(number), number)) for number in range(count)]
    torch.futures.wait_all(setting)
    return sum(future.wait() for future in waiting)


def num_threads() -> int:
    return threading.active_count()


def test_functions_that_answer_later_hold_no_thread(real_workers: Workers) -> None:
    two = real_workers.group(2)
    assert two[0].do(promise_and_fill, "w1", 500) == 499 * 250
    assert two[0].do(call, "w1", num_threads) < 16
    all_do(two, leave)


async def wait_on_the_loop(name: str) -> int:
    import asyncio

    value: int = await asyncio.wrap_future(_concurrent(name))
    return value + 1


def _concurrent(name: str) -> Any:
    import concurrent.futures

    result: concurrent.futures.Future[int] = concurrent.futures.Future()
    future(name).add_done_callback(lambda done: result.set_result(done.value()))
    return result


def wait_on_loops(to: str, count: int) -> int:
    waiting = [rpc.rpc_async(to, wait_on_the_loop, (str(number),)) for number in range(count)]
    torch.futures.wait_all([rpc.rpc_async(to, set_future, (str(number), number)) for number in range(count)])
    return sum(future.wait() for future in waiting)


async def end_the_loop(how: str) -> None:
    import asyncio

    if how == "exit":
        raise SystemExit(3)
    if how == "cancelled":
        raise asyncio.CancelledError
    raise KeyboardInterrupt


def errors_of_loops(to: str) -> list[str]:
    errors = []
    for how in ("exit", "cancelled", "interrupt"):
        try:
            rpc.rpc_sync(to, end_the_loop, (how,))
        except RuntimeError as error:
            errors.append(str(error))
    return errors


def test_coroutines_wait_side_by_side_and_none_of_them_ends_their_loop(real_workers: Workers) -> None:
    two = real_workers.group(2)
    exit_error, cancelled, interrupted = two[0].do(errors_of_loops, "w1")
    assert "SystemExit: 3" in exit_error and "CancelledError" in cancelled and "KeyboardInterrupt" in interrupted
    assert two[0].do(wait_on_loops, "w1", 200) == 199 * 100 + 200
    all_do(two, leave)
