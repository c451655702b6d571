"""Tensors in a device's memory between processes of one host: lent, copied, given back. Main memory plays the device.

Everything but CUDA itself is real: two processes, handles that the one opens in the other, counters, deaths.
test_on_gpus.py has a GPU's own memory.
"""

import gc
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from played_devices import HostMemory
from rpc_workers import LIMIT_S, Worker, Workers

from fanwise import rpc
from fanwise.base.errors import DeadlineExceeded, WorkerLostError
from fanwise.rpc import agent as agents
from fanwise.rpc import autograd
from fanwise.testing import within

BIG = 1 << 18  # float32: 1 MiB
KEPT: list[Any] = []

# Any throughout: what users' functions take and return.


# -- what the workers do -----------------------------------------------------------------------------------------------


def join_with(name: str, rank: int, url: str, devices: dict[str, str], reach: list[tuple[str, str]]) -> None:
    torch.set_num_threads(1)  # a fork has none of OpenMP's threads
    options = rpc.TensorPipeRpcBackendOptions(init_method=url, rpc_timeout=LIMIT_S)
    options.memory = HostMemory(devices, frozenset(reach))
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def memory() -> HostMemory:
    found = agents.current().lending.memory
    assert isinstance(found, HostMemory)
    return found


def numbers() -> tuple[int, int]:
    """How often this worker has lent, and borrowed."""
    return memory().num_lent, memory().num_borrowed


def nothing_is_lent() -> bool:
    gc.collect()
    return agents.current().lending.num_lent == 0 and memory().collect() == 0


def let_fail(lending: str = "", borrowing: str = "") -> None:
    memory().why_not_lent, memory().why_not_borrowed = lending, borrowing


def is_known(to: str) -> bool:
    """Whether this worker knows what the other one sees. What is big and goes there makes it ask."""
    rpc.rpc_sync(to, echo, (torch.zeros(BIG),))
    lending = agents.current().lending
    return lending._sights.get(lending._key_of(agents.current().worker(to).id)) is not None


def echo(x: Any) -> Any:
    return x


def double_in_place(x: torch.Tensor) -> float:
    return float(x.mul_(2).sum())


def call(to: str, function: Callable[..., Any], *args: Any) -> Any:
    return rpc.rpc_sync(to, function, args)


def change_there_and_here(to: str) -> tuple[float, float, float]:
    """What the callee does to its tensor is not seen here, and what is done here later is not seen there."""
    x = torch.ones(BIG)
    future = rpc.rpc_async(to, double_in_place, (x,))
    x.zero_()
    there = future.wait()
    y = torch.ones(BIG)
    kept = rpc.remote(to, echo, (y,))
    kept.to_here()
    y.zero_()
    KEPT.append(kept)
    return there, float(x.sum()), float(kept.to_here().sum())


def there_and_back(to: str, x: torch.Tensor) -> tuple[torch.Tensor, Any, bool, str]:
    back = rpc.rpc_sync(to, echo, (x,))
    return back.detach().clone(), back.stride(), back.requires_grad, type(back).__name__


def gradient(to: str) -> float:
    weight = torch.ones(BIG, requires_grad=True)
    with autograd.context() as context_id:
        autograd.backward(context_id, [rpc.rpc_sync(to, torch.mul, (weight, 3)).sum()])
        return float(autograd.get_gradients(context_id)[weight].sum())


def send_what_cannot_be_sent(to: str) -> str:
    try:
        rpc.rpc_sync(to, echo, ([torch.zeros(BIG), torch.eye(2).to_mkldnn()],))
    except Exception as error:
        return type(error).__name__
    return ""


def answer_when_told(path: str) -> torch.Tensor:
    within(LIMIT_S, lambda: os.path.exists(path), "it may answer")
    return torch.zeros(BIG)


def give_up_waiting(to: str, path: str) -> str:
    try:
        rpc.rpc_sync(to, answer_when_told, (path,), timeout=0.2)
    except DeadlineExceeded:
        open(path, "w").close()
        return "too late"
    return "in time"


def stop_when_borrowing(path: str) -> None:
    """What is borrowed next stays so as long as this worker lives."""

    def stop() -> None:
        open(path, "w").close()
        within(LIMIT_S, lambda: False, "it is killed")

    memory().on_borrow = stop


def begin(to: str) -> None:
    KEPT.append(rpc.rpc_async(to, double_in_place, (torch.ones(BIG),)))


def num_lent() -> int:
    return agents.current().lending.num_lent


def num_open() -> int:
    return agents.current().open_calls()[0]


def big() -> torch.Tensor:
    return torch.ones(BIG)


def pid() -> int:
    return os.getpid()


def lose_it_while_copying(to: str) -> str:
    """The answer has come, and its sender dies before it is copied."""
    its = rpc.rpc_sync(to, pid)

    def kill() -> None:
        os.kill(its, signal.SIGKILL)
        within(LIMIT_S, lambda: len(agents.current().workers()) == 1, "the loss is known")

    memory().on_settle = kill
    try:
        rpc.rpc_sync(to, big)
    except WorkerLostError as error:
        return str(error)
    return ""


# -- the tests ---------------------------------------------------------------------------------------------------------

ONE = {"cpu": "card-1"}


def two(
    real_workers: Workers, one: dict[str, str] = ONE, other: dict[str, str] = ONE, *reach: tuple[str, str]
) -> list[Worker]:
    workers = [real_workers.start("w0"), real_workers.start("w1")]
    for rank, (worker, devices) in enumerate(zip(workers, (one, other), strict=True)):
        worker.begin(join_with, worker.name, rank, real_workers.url, devices, list(reach))
    for worker in workers:
        worker.result()
    return workers


def two_that_know(real_workers: Workers) -> list[Worker]:
    workers = two(real_workers)
    for worker, to in zip(workers, ("w1", "w0"), strict=True):
        within(LIMIT_S, lambda worker=worker, to=to: worker.do(is_known, to), f"{worker.name} knows what {to} sees")  # type: ignore[misc]
    all_comes_back(*workers)  # what they lent to find out
    return workers


def all_comes_back(*workers: Worker) -> None:
    for worker in workers:
        within(LIMIT_S, lambda worker=worker: worker.do(nothing_is_lent), f"nothing of {worker.name} is lent")  # type: ignore[misc]


def test_big_tensors_are_lent_both_ways_and_come_back(real_workers: Workers) -> None:
    workers = two_that_know(real_workers)
    before = [worker.do(numbers) for worker in workers]
    assert workers[0].do(call, "w1", echo, torch.arange(float(BIG))).equal(torch.arange(float(BIG)))
    after = [worker.do(numbers) for worker in workers]
    assert [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)] == [(1, 1), (1, 1)]
    all_comes_back(*workers)


def fail_to_see_once() -> None:
    sight = memory().sight

    def fail() -> Any:
        memory().sight = sight  # type: ignore[method-assign]
        raise RuntimeError("the driver is busy")

    memory().sight = fail  # type: ignore[method-assign]


def test_what_the_other_sees_is_asked_again_when_it_could_not_say(real_workers: Workers) -> None:
    one, other = two(real_workers)
    other.do(fail_to_see_once)
    within(LIMIT_S, lambda: one.do(is_known, "w1"), "w0 knows what w1 sees")


def test_the_first_message_and_small_ones_are_staged(real_workers: Workers) -> None:
    workers = two(real_workers)
    assert float(workers[0].do(call, "w1", echo, torch.ones(BIG)).sum()) == BIG
    assert workers[0].do(numbers) == (0, 0)
    within(LIMIT_S, lambda: workers[0].do(is_known, "w1"), "it knows")
    before = workers[0].do(numbers)
    workers[0].do(call, "w1", torch.neg, torch.ones(100))
    assert workers[0].do(numbers) == before


def test_what_arrives_is_the_receivers_own_and_what_is_sent_may_be_changed(real_workers: Workers) -> None:
    workers = two_that_know(real_workers)
    assert workers[0].do(change_there_and_here, "w1") == (2.0 * BIG, 0.0, BIG)
    all_comes_back(*workers)  # while the value is kept there


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(512, 600).t(),
        torch.randn(1024, 512)[::2],
        torch.randn(BIG).to(torch.bfloat16).repeat(2),
        torch.randn(BIG, requires_grad=True),
        torch.nn.Parameter(torch.randn(BIG)),
        torch.nn.Parameter(torch.randn(BIG), requires_grad=False),
        torch.randn(BIG, dtype=torch.complex64).conj(),
        torch.randn(BIG).expand(3, BIG),
        torch.ones(BIG).to_sparse(),
    ],
    ids=["transposed", "stepped", "bfloat16", "grad", "Parameter", "frozen", "conjugate", "expanded", "sparse"],
)
def test_all_kinds_arrive_as_they_do_when_they_are_staged(real_workers: Workers, x: torch.Tensor) -> None:
    workers = two_that_know(real_workers)
    before = workers[0].do(numbers)
    if x.layout is torch.sparse_coo:
        assert workers[0].do(call, "w1", echo, x).to_dense().equal(x.to_dense())
    else:
        lent = workers[0].do(there_and_back, "w1", x)
        lent_there = workers[0].do(numbers)
        workers[0].do(let_fail, "not now")
        workers[1].do(let_fail, "not now")
        staged = workers[0].do(there_and_back, "w1", x)
        assert lent[0].equal(x.detach()) and lent[1:] == staged[1:]
        assert workers[0].do(numbers) == lent_there
    assert workers[0].do(numbers)[0] > before[0]
    all_comes_back(*workers)


def test_gradients_flow_through_what_is_lent(real_workers: Workers) -> None:
    workers = two_that_know(real_workers)
    before = workers[0].do(numbers)
    assert workers[0].do(gradient, "w1") == 3.0 * BIG
    assert workers[0].do(numbers)[0] > before[0]
    all_comes_back(*workers)


@pytest.mark.parametrize(
    ("other", "reach", "is_lent"),
    [
        ({"cpu": "card-2"}, [], False),
        ({}, [], False),
        ({"cpu": "card-2", "cuda:1": "card-1"}, [], False),
        ({"cpu": "card-2", "cuda:1": "card-1"}, [("card-2", "card-1")], True),
    ],
    ids=["another card", "none", "seen and not reached", "reached"],
)
def test_a_card_that_the_other_cannot_use_is_staged(
    real_workers: Workers, other: dict[str, str], reach: list[tuple[str, str]], is_lent: bool
) -> None:
    workers = two(real_workers, ONE, other, *reach)
    workers[1].do(let_fail, "no card of its own")
    within(LIMIT_S, lambda: workers[0].do(is_known, "w1"), "it knows")
    assert workers[0].do(call, "w1", double_in_place, torch.ones(BIG)) == 2.0 * BIG
    assert (workers[0].do(numbers)[0] > 0) is is_lent
    all_comes_back(*workers[:1])


def test_what_cannot_be_opened_is_staged_and_not_tried_again(real_workers: Workers) -> None:
    workers = two_that_know(real_workers)
    workers[1].do(let_fail, "", "the driver says no")
    lent = workers[0].do(numbers)[0]
    for _ in range(3):
        assert workers[0].do(call, "w1", double_in_place, torch.ones(BIG)) == 2.0 * BIG
    assert workers[0].do(numbers)[0] == lent + 1
    assert "w1 could not open memory of device card-1: RuntimeError: the driver says no" in workers[0].printed
    assert workers[0].printed.count("go through main memory from now on") == 1
    all_comes_back(*workers)


def test_what_cannot_be_handed_out_is_staged_and_not_tried_again(real_workers: Workers) -> None:
    workers = two_that_know(real_workers)
    workers[0].do(let_fail, "expandable segments")
    assert workers[0].do(call, "w1", double_in_place, torch.ones(BIG)) == 2.0 * BIG
    workers[0].do(let_fail)
    lent = workers[0].do(numbers)[0]
    assert workers[0].do(call, "w1", double_in_place, torch.ones(BIG)) == 2.0 * BIG
    assert workers[0].do(numbers)[0] == lent
    assert "memory of cpu cannot be handed out: expandable segments" in workers[0].printed


def test_what_was_lent_for_a_message_that_is_never_finished_comes_back(real_workers: Workers) -> None:
    workers = two_that_know(real_workers)
    lent = workers[0].do(numbers)[0]
    assert workers[0].do(send_what_cannot_be_sent, "w1") == "NotSendableError"
    assert workers[0].do(numbers)[0] == lent + 1
    all_comes_back(*workers)


def test_what_was_lent_for_an_answer_that_comes_too_late_comes_back(real_workers: Workers) -> None:
    workers = two_that_know(real_workers)
    lent, borrowed = workers[1].do(numbers)[0], workers[0].do(numbers)[1]
    assert workers[0].do(give_up_waiting, "w1", f"{real_workers.url.removeprefix('file://')}-go") == "too late"
    within(LIMIT_S, lambda: workers[1].do(numbers)[0] == lent + 1, "it has answered")
    all_comes_back(*workers)
    assert workers[0].do(numbers)[1] == borrowed


def test_the_death_of_the_borrower_frees(real_workers: Workers) -> None:
    workers = two_that_know(real_workers)
    path = f"{real_workers.url.removeprefix('file://')}-stopped"
    workers[1].do(stop_when_borrowing, path)
    workers[0].do(begin, "w1")
    within(LIMIT_S, lambda: os.path.exists(path), "it has borrowed")
    assert workers[0].do(num_lent) == 1 and workers[0].do(num_open) == 2, "a call, and a loan"
    workers[1].kill()
    all_comes_back(workers[0])
    assert workers[0].do(num_open) == 0


def test_the_death_of_the_lender_while_it_is_copied_is_an_error_and_no_rubbish(real_workers: Workers) -> None:
    workers = two_that_know(real_workers)
    assert "worker w1" in workers[0].do(lose_it_while_copying, "w1")
    all_comes_back(workers[0])
