"""Calls between real workers, as far as torch's own tests do not cover them."""

import collections
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rpc_workers import LIMIT_S, Worker, Workers, call, error_of, leave
from torch.futures import Future

import fanwise.rpc as rpc
from fanwise.base.errors import WorkerLostError
from fanwise.rpc import agent as agents
from fanwise.rpc import autograd, starting
from fanwise.rpc.functions import async_execution
from fanwise.testing import within

# Any throughout: arguments and results of users' functions.

KEPT: list[Any] = []


def own_name(*args: object) -> str:
    return rpc.get_worker_info().name


# -- arguments and functions ---------------------------------------------------------------------------------------


def change(tensor: torch.Tensor, numbers: list[int]) -> tuple[torch.Tensor, list[int]]:
    tensor.add_(1)
    numbers.append(1)
    return tensor, numbers


def call_change(to: str, size: int) -> bool:
    tensor, numbers = torch.zeros(size), [0]
    for _ in range(2):
        changed_tensor, changed_numbers = rpc.rpc_sync(to, change, (tensor, numbers))
        assert int(changed_tensor.sum()) == size and changed_numbers == [0, 1]
    return int(tensor.sum()) == 0 and numbers == [0]


@pytest.mark.parametrize("size", [1, 1000, 1_000_000])
def test_function_that_changes_its_arguments_does_not_change_those_of_the_caller(pair: list[Worker], size: int) -> None:
    assert pair[0].do(call_change, "w1", size) and pair[0].do(call_change, "w0", size)


def replaced() -> str:
    return "the first"


def replace() -> None:
    globals()["replaced"] = lambda: "the second"


def call_function_that_is_replaced_meanwhile(to: str) -> Any:
    first = replaced
    replace()
    return rpc.rpc_sync(to, first)


def test_function_whose_name_now_belongs_to_another_is_sent_by_value(new_pair: list[Worker]) -> None:
    new_pair[1].do(replace)
    assert new_pair[0].do(call_function_that_is_replaced_meanwhile, "w1") == "the first"


# -- memory --------------------------------------------------------------------------------------------------------


def fail(_: object) -> None:
    raise ValueError("on purpose")


def call_back(to: str) -> object:
    return rpc.rpc_sync(to, own_name), rpc.rpc_async(to, own_name).wait()


def stop_collecting() -> None:
    gc.collect()
    gc.disable()


def num_collected() -> int:
    gc.enable()
    return gc.collect()


def num_collected_after_calls(to: str) -> tuple[int, int]:
    """Return how many objects of both workers only the garbage collector frees."""

    def make_calls() -> None:
        x = torch.ones(3)
        rpc.rpc_sync(to, own_name, args=(x,))
        rpc.rpc_async(to, own_name, args=(x,)).then(lambda done: done.value()).wait()
        rpc.rpc_sync(to, call_back, args=(own_name(),))
        rpc.remote(to, own_name, args=(x,)).to_here()
        with pytest.raises(ValueError, match="on purpose"):
            rpc.rpc_sync(to, fail, args=(x,))

    make_calls()  # creates objects that stay
    rpc.rpc_sync(to, stop_collecting)
    stop_collecting()
    for _ in range(10):
        make_calls()
    return num_collected(), rpc.rpc_sync(to, num_collected)


def test_calls_leave_nothing_to_the_garbage_collector(new_pair: list[Worker]) -> None:
    # Otherwise tensors in shared memory stay in use until a collection, and the next ones need fresh memory.
    assert new_pair[0].do(num_collected_after_calls, "w1") == (0, 0)


# -- the state that torch keeps for each thread --------------------------------------------------------------------


def leave_changed(state: str) -> None:
    if state == "grad":
        torch.set_grad_enabled(False)
        return
    KEPT.append(torch.inference_mode() if state == "inference" else torch.autocast("cpu", dtype=torch.bfloat16))
    KEPT[-1].__enter__()


def state_of_torch(x: torch.Tensor) -> tuple[bool, bool, torch.dtype]:
    return (x * 2).requires_grad, x.is_inference(), (x @ x).dtype


@pytest.mark.parametrize("state", ["grad", "inference", "autocast"])
def test_state_of_torch_that_a_function_changes_is_reset_for_later_calls(real_workers: Workers, state: str) -> None:
    one, _two = real_workers.group(2, num_worker_threads=1)
    x = torch.ones(2, 2, requires_grad=True)
    one.do(call, "w1", leave_changed, state)
    for _ in range(5):
        assert one.do(call, "w1", state_of_torch, x) == (True, False, torch.float32)


async def leave_changed_in_a_coroutine() -> None:
    torch.set_grad_enabled(False)


async def has_gradient(x: torch.Tensor) -> bool:
    return (x * 2).requires_grad


async def call_without_gradients(x: torch.Tensor) -> list[bool]:
    """Alternate with a coroutine that has gradients."""
    with torch.no_grad():
        before = (x * 2).requires_grad
        other = await rpc.rpc_async(rpc.get_worker_info(), has_gradient, (x,))
        return [before, other, (x * 2).requires_grad]


def test_each_coroutine_has_its_own_grad_mode(new_pair: list[Worker]) -> None:
    x = torch.ones(2, 2, requires_grad=True)
    new_pair[0].do(call, "w1", leave_changed_in_a_coroutine)
    assert new_pair[0].do(call, "w1", has_gradient, x) is True
    assert new_pair[0].do(call, "w1", call_without_gradients, x) == [False, True, False]


# -- references of an earlier group --------------------------------------------------------------------------------


def join_alone(url: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=url, rpc_timeout=LIMIT_S)
    rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=options)


def is_given(rref: Any) -> bool:
    return True


def retained(index: int) -> Any:
    return KEPT[index]


def use_references_of_an_earlier_group(url: str) -> tuple[dict[str, str], str]:
    """Return the error of each use of such a reference, and the number of forks that are left."""
    join_alone(f"{url}1")
    own, created = rpc.RRef([1]), rpc.remote("w0", list)
    actor = rpc.remote("w0", collections.Counter, serial=True)
    created.to_here()
    KEPT[:] = [own]
    rpc.shutdown()
    join_alone(f"{url}2")
    uses: dict[str, Callable[[], Any]] = {
        "argument": lambda: rpc.rpc_sync("w0", is_given, (own,)),
        "rpc_async": lambda: rpc.rpc_async("w0", is_given, (created,)).wait(),
        "container": lambda: rpc.rpc_sync("w0", is_given, ({"a": [created]},)),
        "remote": lambda: rpc.remote("w0", is_given, (own,)).to_here(),
        "result": lambda: rpc.rpc_sync("w0", retained, (0,)),
        "stream": lambda: list(rpc.stream("w0", is_given, (own,))),
        "proxy": lambda: own.rpc_sync().append(2),
        "proxy as an argument": lambda: rpc.rpc_sync("w0", is_given, (own.rpc_sync(),)),
        "actor": lambda: actor.rpc_sync().total(),
    }
    errors = {name: error_of(use) for name, use in uses.items()}
    with autograd.context():
        errors["in a context"] = error_of(lambda: rpc.rpc_sync("w0", is_given, (own,)))
    num_forks = agents.current().references.debug_info()["num_forks"]
    assert own.to_here() == own.local_value() == [1]
    rpc.shutdown()
    return errors, num_forks


def test_reference_of_a_group_that_was_shut_down_is_refused_where_it_is_used(real_workers: Workers) -> None:
    errors, num_forks = real_workers.start("w0").do(use_references_of_an_earlier_group, real_workers.url)
    assert {name: text for name, text in errors.items() if "belongs to a group that was shut down" not in text} == {}
    assert num_forks == "0", "nothing that a shutdown waits for"


def use_user_references_of_an_earlier_group(url: str) -> list[str]:
    created, actor = rpc.remote("w1", list), rpc.remote("w1", collections.Counter, serial=True)
    created.to_here()
    leave()
    join_alone(f"{url}-next")
    uses = (functools.partial(rpc.rpc_sync, "w0", is_given, (created,)), created.to_here, actor.rpc_sync().total)
    errors = [error_of(use) for use in uses]
    rpc.shutdown()
    return errors


def test_user_reference_of_a_group_that_was_shut_down_has_been_deleted(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    two.begin(leave)
    for error in one.do(use_user_references_of_an_earlier_group, real_workers.url):
        assert "has been deleted" in error
    two.result()


# -- shutdown ------------------------------------------------------------------------------------------------------


@async_execution
def answer_on_request() -> Any:
    KEPT.append(Future())
    return KEPT[-1]


def set_answer() -> None:
    KEPT.pop().set_result(None)


def call_and_leave(to: str) -> None:
    starting._NOTICE_S = 0.1
    KEPT.append(rpc.rpc_async(to, answer_on_request))
    rpc.shutdown()


def test_shutdown_that_waits_for_a_call_names_it(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.begin(call_and_leave, "w1")
    within(LIMIT_S, lambda: "answer_on_request on w1" in one.printed, "the notice was printed")
    assert "shutdown has waited for 0 s on worker w0, as 1 call made there is open" in one.printed
    two.do(set_answer)
    two.do(leave)
    one.result()


def error_in_future(to: str) -> str:
    future = rpc.rpc_async(to, own_name)  # raises nothing
    return error_of(future.wait)


def test_call_to_a_worker_that_has_left_fails_in_its_future(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3)
    assert one.do(call, "w1", own_name) == "w1"
    two.do(rpc.shutdown, graceful=False)
    assert one.do(error_in_future, "w1").startswith(WorkerLostError.__name__)
    assert three.do(call, "w0", own_name) == "w0"
