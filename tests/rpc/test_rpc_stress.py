"""Several threads of three workers call each other in all ways, in an order that a seed draws: nothing is lost."""

import contextlib
import faulthandler
import random
import threading
from collections.abc import Callable

import pytest
import torch
from rpc_workers import LIMIT_S, Worker, Workers, all_do, leave
from torch.futures import Future

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded

SIZE, THREADS, STEPS = 3, 4, 40
_STACKS_AFTER_S = LIMIT_S - 5.0

# -- what is called ------------------------------------------------------------------------------------------------


def double(x: int) -> int:
    return 2 * x


def double_late(x: int, wait_s: float) -> int:
    threading.Event().wait(wait_s)
    return 2 * x


def fail(x: int) -> None:
    raise KeyError(x)


def along(path: list[int]) -> int:
    """The length of the path, by nested calls."""
    return 1 + rpc.rpc_sync(path[0], along, (path[1:],)) if path else 0


def along_by_futures(path: list[int]) -> int:
    return 1 + rpc.rpc_async(path[0], along_by_futures, (path[1:],)).wait() if path else 0


_LOCK = threading.Lock()
_PROMISED: "dict[str, Future[int]]" = {}


def _promised(name: str) -> "Future[int]":
    with _LOCK:
        return _PROMISED.setdefault(name, Future())


@rpc.functions.async_execution
def promise(name: str) -> "Future[int]":
    return _promised(name)


def keep(name: str, value: int) -> None:
    _promised(name).set_result(value)


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


# -- the steps of a thread -----------------------------------------------------------------------------------------


class Steps:
    """What a thread may do next, each with a check of its outcome."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.random = random.Random(name)
        self.number = 0

    def one(self) -> None:
        self.number += 1
        steps: list[Callable[[int], None]] = [
            self.call,
            self.wait_for_many,
            self.nest,
            self.be_promised,
            self.answer_later,
            self.run_out_of_time,
            self.wait_in_two_threads,
            self.be_called_back,
            self.raise_there,
            self.hold_an_object,
        ]
        self.random.choice(steps)(self.random.randrange(SIZE))

    def call(self, to: int) -> None:
        assert rpc.rpc_sync(to, double, (3,), timeout=self.random.choice([0, -1, 20])) == 6
        assert rpc.rpc_async(to, double, (4,), timeout=self.random.choice([0, -1, 20])).wait() == 8

    def wait_for_many(self, _to: int) -> None:
        count = self.random.randrange(1, 20)
        calls: list[Future[int]] = [rpc.rpc_async(self.random.randrange(SIZE), double, (i,)) for i in range(count)]
        assert torch.futures.wait_all(calls) == [2 * i for i in range(len(calls))]

    def nest(self, to: int) -> None:
        path = [self.random.randrange(SIZE) for _ in range(self.random.randrange(5))]
        assert rpc.rpc_sync(to, self.random.choice([along, along_by_futures]), (path,)) == len(path)

    def be_promised(self, to: int) -> None:
        name = f"{self.name} {self.number}"
        promised: list[Future[int]] = [rpc.rpc_async(to, promise, (name,)) for _ in range(2)]
        rpc.rpc_async(to, keep, (name, 5))
        assert torch.futures.wait_all(promised) == [5, 5]

    def answer_later(self, to: int) -> None:
        assert rpc.rpc_sync(to, double_elsewhere, ((to + 1) % SIZE, 3)) == 6
        assert rpc.rpc_sync(to, double_in_a_coroutine, (3,)) == 6

    def run_out_of_time(self, to: int) -> None:
        limit_s = self.random.uniform(0.0005, 0.004)
        with contextlib.suppress(DeadlineExceeded):
            assert rpc.rpc_sync(to, double_late, (3, self.random.uniform(0, 0.004)), timeout=limit_s) == 6
        late, told = rpc.rpc_async(to, double_late, (3, self.random.uniform(0, 0.004)), timeout=limit_s), Future[None]()
        late.add_done_callback(lambda _: told.set_result(None))
        with contextlib.suppress(DeadlineExceeded):
            assert late.wait() == 6
        told.wait()

    def wait_in_two_threads(self, to: int) -> None:
        future = rpc.rpc_async(to, double_late, (3, self.random.uniform(0, 0.003)))
        seen: list[int] = []
        other = threading.Thread(target=lambda: seen.append(future.wait()))
        other.start()
        assert future.wait() == 6
        other.join()
        assert seen == [6]

    def be_called_back(self, to: int) -> None:
        added = [rpc.rpc_async(to, double, (i,)).then(lambda done: done.wait() + 1) for i in range(4)]
        assert [one.wait() for one in torch.futures.collect_all(added).wait()] == [1, 3, 5, 7]

    def raise_there(self, to: int) -> None:
        with contextlib.suppress(KeyError):
            rpc.rpc_sync(to, fail, (3,))
            raise AssertionError("it has not raised")

    def hold_an_object(self, to: int) -> None:
        counter = rpc.remote(to, Counter)
        torch.futures.wait_all([counter.rpc_async().add(1) for _ in range(3)])
        assert counter.rpc_sync().add(1) == counter.rpc_sync().add(0) == 4
        assert rpc.remote(to, double, (3,)).to_here() == 6


def run_threads(seed: int) -> int:
    """How many steps the threads of this worker have made. What one raises is raised; who hangs prints its stacks."""
    made, errors = [0] * THREADS, []
    faulthandler.dump_traceback_later(_STACKS_AFTER_S)

    def run(number: int) -> None:
        steps = Steps(f"{seed} {rpc.get_worker_info().id} {number}")
        try:
            for _ in range(STEPS):
                steps.one()
                made[number] += 1
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
    return sum(made)


def group(real_workers: Workers, num_worker_threads: int) -> list[Worker]:
    """Their calls may take for ever: a lost answer is a hang, of which the stacks are printed."""
    return real_workers.group(SIZE, num_worker_threads=num_worker_threads, rpc_timeout=0)


def check(workers: list[Worker], seed: int) -> None:
    assert all_do(workers, run_threads, seed) == [THREADS * STEPS] * SIZE, seed


@pytest.mark.parametrize("num_worker_threads", [1, 16])
def test_no_answer_is_lost_among_threads_that_call_in_all_ways(real_workers: Workers, num_worker_threads: int) -> None:
    three = group(real_workers, num_worker_threads)
    check(three, seed=num_worker_threads)
    all_do(three, leave)


@pytest.mark.soak
@pytest.mark.parametrize("num_worker_threads", [1, 2, 16])
def test_no_answer_is_lost_in_a_long_time(real_workers: Workers, num_worker_threads: int) -> None:
    three = group(real_workers, num_worker_threads)
    for seed in range(40):
        check(three, seed)
    all_do(three, leave)
