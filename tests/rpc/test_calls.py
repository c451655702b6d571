"""Calls between real workers: what torch's own tests leave out, and what is ours."""

import collections
import functools
import gc
import pickle
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from rpc_workers import LIMIT_S, Workers, all_do, leave
from torch.futures import Future

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded, NotSendableError, WorkerLostError
from fanwise.rpc import agent as agents
from fanwise.rpc import autograd, starting, torch_compat
from fanwise.rpc.functions import async_execution
from fanwise.testing import within

# Any throughout: what functions of users take and return.

released = threading.Event()


def where(*args: object) -> tuple[str, tuple[object, ...]]:
    return rpc.get_worker_info().name, args


def call(to: str, function: Callable[..., Any], *args: object, timeout: float = -1.0) -> Any:
    return rpc.rpc_sync(to, function, args=args, timeout=timeout)


def objects_of_open_calls(to: str, number: int) -> dict[str, int]:
    """What the garbage collector has to look at for so many open calls, by type."""
    rpc.rpc_sync(to, where)  # what the first call makes
    gc.collect()
    gc.disable()
    before = {id(each) for each in gc.get_objects()}
    calls = [rpc.rpc_async(to, wait_for_release) for _ in range(number)]
    found = collections.Counter(type(each).__name__ for each in gc.get_objects() if id(each) not in before)
    gc.enable()
    rpc.rpc_sync(to, release)
    for each in calls:
        each.wait()
    return dict(found)


def test_an_open_call_is_three_objects_for_the_garbage_collector(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    found = one.do(objects_of_open_calls, "w1", 100)
    assert sum(found.values()) < 330, found


def fails(_: object) -> None:
    raise ValueError("on purpose")


def calls_back(to: str) -> object:
    return rpc.rpc_sync(to, where), rpc.rpc_async(to, where).wait()


def begin_to_count() -> None:
    gc.collect()
    gc.disable()


def end_of_count() -> int:
    gc.enable()
    return gc.collect()


def make_calls_of_all_kinds(to: str) -> tuple[int, int]:
    """How many objects of both sides only the garbage collector would have found afterwards."""

    def make() -> None:
        x = torch.ones(3)
        rpc.rpc_sync(to, where, args=(x,))
        rpc.rpc_async(to, where, args=(x,)).then(lambda done: done.value()).wait()
        rpc.rpc_sync(to, calls_back, args=(rpc.get_worker_info().name,))
        rpc.remote(to, where, args=(x,)).to_here()
        with pytest.raises(ValueError, match="on purpose"):
            rpc.rpc_sync(to, fails, args=(x,))

    make()  # what is made once
    rpc.rpc_sync(to, begin_to_count)
    begin_to_count()
    for _ in range(10):
        make()
    return end_of_count(), rpc.rpc_sync(to, end_of_count)


def test_what_a_call_leaves_ends_without_the_garbage_collector(real_workers: Workers) -> None:
    # Else a tensor in shared memory is in use until that comes, and the next one is written into fresh memory.
    one, _two = real_workers.group(2)
    assert one.do(make_calls_of_all_kinds, "w1") == (0, 0)


# -- functions by value -----------------------------------------------------------------------------------------------


def call_a_lambda(to: str) -> Any:
    offset = torch.full((2,), 3.0)
    return rpc.rpc_sync(to, lambda x: (rpc.get_worker_info().name, x + offset), args=(torch.ones(2),))


def call_a_partial_of_a_local_function(to: str) -> Any:
    def times(x: int, y: int) -> int:
        return x * y

    return rpc.rpc_async(to, functools.partial(times, 6), args=(7,)).wait()


def call_a_lambda_with_a_reference(to: str, owner: str) -> Any:
    rref = rpc.remote(owner, torch.ones, args=(3,))
    result = rpc.rpc_sync(to, lambda: rref.to_here().sum().item())
    return rpc.remote(to, lambda: result + 1).to_here()


def call_a_local_function_that_answers_later(to: str, back: str) -> Any:
    @async_execution
    def later() -> "Future[int]":
        return rpc.rpc_async(back, min, args=(5, 4)).then(lambda future: future.wait() + 1)

    return rpc.rpc_sync(to, later)


def replaced() -> str:
    return "the first"


def replace() -> None:
    globals()["replaced"] = lambda: "the second"


def call_one_that_is_replaced_now(to: str) -> Any:
    first = replaced
    replace()
    return rpc.rpc_sync(to, first)


def test_a_function_whose_name_another_has_by_now_goes_by_value(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    two.do(replace)
    assert one.do(call_one_that_is_replaced_now, "w1") == "the first"


def test_a_function_without_a_name_goes_by_value(real_workers: Workers) -> None:
    one, _two, _three = real_workers.group(3)
    name, result = one.do(call_a_lambda, "w1")
    assert name == "w1" and torch.equal(result, torch.full((2,), 4.0))
    assert one.do(call_a_partial_of_a_local_function, "w1") == 42
    assert one.do(call_a_lambda_with_a_reference, "w1", "w2") == 4.0
    assert one.do(call_a_local_function_that_answers_later, "w1", "w2") == 5


def call_with_a_lock(to: str) -> None:
    rpc.rpc_sync(to, where, args=(1, threading.Lock()))


def call_a_lambda_with_a_lock(to: str) -> None:
    lock = threading.Lock()
    rpc.rpc_sync(to, lambda: lock)


def test_what_cannot_be_sent_is_named(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    with pytest.raises(NotSendableError, match=r"argument 1 \(a _thread.lock\) of the call of where on w1"):
        one.do(call_with_a_lock, "w1")
    with pytest.raises(NotSendableError, match=r"the function .* of the call of .*<lambda> on w1"):
        one.do(call_a_lambda_with_a_lock, "w1")


def an_operator() -> Any:
    return torch.ops.aten.add.Tensor


def a_lock() -> Any:
    return threading.Lock()


UNSENDABLE: dict[str, Callable[[str], Any]] = {
    r"the function .*OpOverload\) of the call of .*torch.ops.aten.add.Tensor cannot be found": lambda to: rpc.rpc_sync(
        to, torch.ops.aten.add.Tensor, args=(torch.ones(2), torch.ones(2))
    ),
    r"argument 0 \(a torch.storage.UntypedStorage\) of the call of len on w1 .*Send a tensor": lambda to: rpc.rpc_sync(
        to, len, args=(torch.ones(2).untyped_storage(),)
    ),
    r"what an_operator returned .* cannot be sent: torch.ops.aten.add.Tensor cannot be found": lambda to: rpc.rpc_sync(
        to, an_operator
    ),
    r"the value of RRef\(GloballyUniqueId\(created_on=0, local_id=\d+\)\) \(a _thread.lock\)": lambda to: rpc.remote(
        to, a_lock
    ).to_here(),
}


def unsendable(pattern: str, to: str) -> None:
    UNSENDABLE[pattern](to)


def test_what_torch_cannot_pickle_is_named_too(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    for pattern in UNSENDABLE:
        with pytest.raises(NotSendableError, match=f"(?s){pattern}"):
            one.do(unsendable, pattern, "w1")


# -- the state that torch keeps for each thread -----------------------------------------------------------------------

LEFT: list[Any] = []


def leave_changed(what: str) -> None:
    if what == "grad":
        torch.set_grad_enabled(False)
        return
    LEFT.append(torch.inference_mode() if what == "inference" else torch.autocast("cpu", dtype=torch.bfloat16))
    LEFT[-1].__enter__()


async def leave_changed_in_a_coroutine() -> None:
    torch.set_grad_enabled(False)


def state_of_torch(x: torch.Tensor) -> tuple[bool, bool, torch.dtype]:
    return (x * 2).requires_grad, x.is_inference(), (x @ x).dtype


async def has_gradient_in_a_coroutine(x: torch.Tensor) -> bool:
    return (x * 2).requires_grad


async def without_gradients(x: torch.Tensor) -> list[bool]:
    """Steps of two coroutines in turn: of this one with gradients off."""
    with torch.no_grad():
        found = [(x * 2).requires_grad]
        there = await rpc.rpc_async(rpc.get_worker_info(), has_gradient_in_a_coroutine, (x,))
        return [*found, there, (x * 2).requires_grad]


@pytest.mark.parametrize("what", ["grad", "inference", "autocast"])
def test_what_a_function_leaves_changed_in_torch_is_not_there_for_later_calls(real_workers: Workers, what: str) -> None:
    one, _two = real_workers.group(2, num_worker_threads=1)
    x = torch.ones(2, 2, requires_grad=True)
    one.do(call, "w1", leave_changed, what)
    for _ in range(5):
        assert one.do(call, "w1", state_of_torch, x) == (True, False, torch.float32)


def test_coroutines_have_each_their_own_grad_mode(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    x = torch.ones(2, 2, requires_grad=True)
    one.do(call, "w1", leave_changed_in_a_coroutine)
    assert one.do(call, "w1", has_gradient_in_a_coroutine, x) is True
    assert one.do(call, "w1", without_gradients, x) == [False, True, False]


# -- references of an earlier group ------------------------------------------------------------------------------------


def is_given(rref: Any) -> bool:
    return True


def take_from_left(index: int) -> Any:
    return LEFT[index]


def use_what_an_earlier_group_left(url: str) -> tuple[dict[str, str], str]:
    """What each use of such a reference raises, and how many forks are left when all have."""

    def join(number: int) -> None:
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"{url}{number}", rpc_timeout=LIMIT_S)
        rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=options)

    join(1)
    own, made = rpc.RRef([1]), rpc.remote("w0", list)
    actor = rpc.remote("w0", collections.Counter, serial=True)
    made.to_here()
    LEFT[:] = [own]
    rpc.shutdown()
    join(2)
    uses: dict[str, Callable[[], Any]] = {
        "argument": lambda: rpc.rpc_sync("w0", is_given, (own,)),
        "rpc_async": lambda: rpc.rpc_async("w0", is_given, (made,)).wait(),
        "container": lambda: rpc.rpc_sync("w0", is_given, ({"a": [made]},)),
        "remote": lambda: rpc.remote("w0", is_given, (own,)).to_here(),
        "result": lambda: rpc.rpc_sync("w0", take_from_left, (0,)),
        "stream": lambda: list(rpc.stream("w0", is_given, (own,))),
        "proxy": lambda: own.rpc_sync().append(2),
        "proxy as an argument": lambda: rpc.rpc_sync("w0", is_given, (own.rpc_sync(),)),
        "actor": lambda: actor.rpc_sync().total(),
    }
    said = {}
    for name, use in uses.items():
        with pytest.raises(RuntimeError) as raised:
            use()
        said[name] = str(raised.value)
    with autograd.context(), pytest.raises(RuntimeError) as raised:
        rpc.rpc_sync("w0", is_given, (own,))
    said["in a context"] = str(raised.value)
    num_forks = agents.current().references.debug_info()["num_forks"]
    assert own.to_here() == own.local_value() == [1]
    rpc.shutdown()
    return said, num_forks


def test_a_reference_of_a_group_that_was_shut_down_is_refused_where_it_is_used(real_workers: Workers) -> None:
    said, num_forks = real_workers.start("w0").do(use_what_an_earlier_group_left, real_workers.url)
    assert {name: text for name, text in said.items() if "belongs to a group that was shut down" not in text} == {}
    assert num_forks == "0", "nothing that a shutdown waits for"


def use_a_users_reference_of_an_earlier_group(url: str) -> list[str]:
    made, actor = rpc.remote("w1", list), rpc.remote("w1", collections.Counter, serial=True)
    made.to_here()
    rpc.shutdown(timeout=LIMIT_S)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"{url}-next", rpc_timeout=LIMIT_S)
    rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=options)
    said = []
    for use in (lambda: rpc.rpc_sync("w0", is_given, (made,)), made.to_here, actor.rpc_sync().total):
        with pytest.raises(RuntimeError) as raised:
            use()
        said.append(str(raised.value))
    rpc.shutdown()
    return said


def test_a_users_reference_of_a_group_that_was_shut_down_says_that_it_was_deleted(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    two.begin(leave)
    assert all(
        "has been deleted" in text for text in one.do(use_a_users_reference_of_an_earlier_group, real_workers.url)
    )
    two.result()


# -- shutdown ---------------------------------------------------------------------------------------------------------

NEVER: list[Any] = []


@async_execution
def answer_when_told() -> Any:
    NEVER.append(Future())
    return NEVER[-1]


def tell() -> None:
    NEVER.pop().set_result(None)


def begin_and_leave(to: str) -> None:
    starting._NOTICE_S = 0.1
    NEVER.append(rpc.rpc_async(to, answer_when_told))
    rpc.shutdown()


def test_a_shutdown_that_waits_for_a_call_says_for_which(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.begin(begin_and_leave, "w1")
    within(LIMIT_S, lambda: "answer_when_told on w1" in one.printed, "it is said")
    assert "shutdown has waited for 0 s on worker w0, as 1 call made there is open" in one.printed
    two.do(tell)
    two.do(leave)
    one.result()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"args": 3}, r"arguments of where, got one int\. One argument needs a comma:\n  wrong:  args=\(x\)"),
    ({"args": ("abc")}, "got one str"),
    ({"args": torch.ones(2)}, "got one Tensor"),
    ({"kwargs": ["x"]}, r"kwargs must be a dict of .*; got \['x'\]"),
    ({"timeout": None}, "timeout must be a number of seconds, 0 for no limit; got None"),
]


def error_of_a_call(**wrong: Any) -> tuple[str, str]:
    try:
        rpc.rpc_sync("w0", where, **wrong)
    except TypeError as sync_error:
        try:
            rpc.remote("w0", where, **wrong)
        except TypeError as remote_error:
            return str(sync_error), str(remote_error)
    return "none", "none"


def test_arguments_that_are_no_tuple_are_refused_before_they_are_taken_apart(real_workers: Workers) -> None:
    (one,) = real_workers.group(1)
    for wrong, text in WRONG:
        for error in one.do(error_of_a_call, **wrong):
            assert re.search(text, error), error
    assert one.do(rpc.rpc_sync, "w0", where, [1, 2]) == ("w0", (1, 2))


# -- errors -----------------------------------------------------------------------------------------------------------


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class WithLock(Exception):
    def __init__(self) -> None:
        super().__init__("foo")
        self.lock = threading.Lock()


class Plain(Exception):
    pass


def fail(kind: str) -> None:
    if kind == "lock":
        raise WithLock
    raise TwoArguments(3, "foo") if kind == "two" else Plain("line one\nline two", 7)


async def fail_in_a_coroutine() -> None:
    fail("two")


def fail_as_a_stream() -> Iterator[int]:
    yield 1
    fail("two")


@async_execution
def fail_later() -> Any:
    return rpc.rpc_async(rpc.get_worker_info(), fail, ("two",))


FAILING: dict[str, Callable[[str], Any]] = {
    "rpc_sync": lambda to: rpc.rpc_sync(to, fail, ("two",)),
    "rpc_async": lambda to: rpc.rpc_async(to, fail, ("two",)).wait(),
    "remote": lambda to: rpc.remote(to, fail, ("two",)).to_here(),
    "coroutine": lambda to: rpc.rpc_sync(to, fail_in_a_coroutine),
    "stream": lambda to: list(rpc.stream(to, fail_as_a_stream)),
    "async_execution": lambda to: rpc.rpc_sync(to, fail_later),
    "through another worker": lambda to: rpc.rpc_sync(to, call, ("w2", fail, "two")),
    "through oneself": lambda to: rpc.rpc_sync(to, call, ("w0", fail, "two")),
}


def fail_by(way: str, to: str) -> tuple[bool, int, str, bool]:
    try:
        FAILING[way](to)
    except TwoArguments as error:
        return type(error) is TwoArguments, error.code, str(error), "in fail" in str(getattr(error, "__notes__", ""))
    raise AssertionError("it has not failed")


def test_an_error_keeps_its_type_and_the_remote_traceback(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    with pytest.raises(Plain) as caught:
        one.do(call, "w1", fail, "plain")
    assert caught.value.args == ("line one\nline two", 7)


def fail_with_a_lock(to: str) -> tuple[str, bool, bool]:
    try:
        rpc.rpc_sync(to, fail, ("lock",))
    except WithLock as error:
        return str(error), hasattr(error, "lock"), "it cannot be pickled: lock" in str(error.__notes__)
    raise AssertionError("it has not failed")


def test_an_error_with_an_attribute_that_cannot_be_pickled_comes_without_it(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    for to in ("w1", "w0"):
        assert one.do(fail_with_a_lock, to) == ("foo", False, True)


def test_an_error_whose_constructor_takes_other_arguments_comes_in_its_type(real_workers: Workers) -> None:
    one, *_ = real_workers.group(3)
    for way in FAILING:
        for to in ("w1", "w0"):
            has_notes = way != "remote"  # the value keeps no frames
            assert one.do(fail_by, way, to) == (True, 3, "foo", has_notes), (way, to)


def fail_with(x: torch.Tensor) -> None:
    raise Plain(float(x.sum()))


def fail_with_two(x: torch.Tensor) -> None:
    raise TwoArguments(int(x.sum()), "foo")


def kept_by_failed_calls(to: str) -> list[str]:
    """Ways to call that leave what was sent to the garbage collector."""
    ways: dict[str, Callable[[torch.Tensor], Any]] = {
        "rpc_sync": lambda x: rpc.rpc_sync(to, fail_with, (x,)),
        "wait": lambda x: rpc.rpc_async(to, fail_with, (x,)).wait(),
        "wait_all": lambda x: torch.futures.wait_all([rpc.rpc_async(to, fail_with, (x,)) for _ in range(2)]),
        "to_here": lambda x: rpc.remote(to, fail_with, (x,)).to_here(),
        "of another constructor": lambda x: rpc.rpc_async(to, fail_with_two, (x,)).wait(),
        "rpc_sync to itself": lambda x: rpc.rpc_sync(rpc.get_worker_info(), fail_with, (x,)),
    }
    kept = []
    for way, call in ways.items():
        for size in (10, 1 << 20):
            gc.collect()
            gc.disable()
            x = torch.ones(size)
            seen = weakref.ref(x)
            try:
                call(x)
            except (Plain, TwoArguments):
                del x
            if seen() is not None:
                kept.append(f"{way}, {size}")
            gc.enable()
    return kept


def test_a_call_that_failed_keeps_nothing_of_what_was_sent(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    assert one.do(kept_by_failed_calls, "w1") == []


def release() -> None:
    released.set()


def wait_for_release() -> bool:
    with rpc.waiting():
        return released.wait(60)


def leave_at_the_first_error(to: str) -> tuple[bool, str]:
    blocked = rpc.rpc_async(to, wait_for_release)
    try:
        torch.futures.wait_all([blocked, rpc.rpc_async(to, fail, args=("plain",))])
        error = "none"
    except Plain:
        error = "Plain"
    was_done = blocked.done()
    rpc.rpc_sync(to, release)
    return was_done and blocked.wait(), error


def use_wait_all(to: str) -> tuple[list[int], list[int], bool]:
    results = torch.futures.wait_all([rpc.rpc_async(to, min, args=(1, 2)), rpc.rpc_async(to, max, args=(1, 2))])
    empty: list[int] = torch.futures.wait_all([])
    rpc.shutdown()
    return results, empty, torch.futures.wait_all.__module__ == "torch.futures"


def test_wait_all_leaves_at_the_first_error(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    assert one.do(leave_at_the_first_error, "w1") == (False, "Plain")


def test_wait_all_is_torchs_again_after_the_shutdown(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    two.begin(rpc.shutdown)
    assert one.do(use_wait_all, "w1") == ([1, 2], [], True)


# -- workers that are gone --------------------------------------------------------------------------------------------


def async_error(to: str) -> str:
    future = rpc.rpc_async(to, where)  # raises nothing
    try:
        future.wait()
    except WorkerLostError as error:
        return str(error)
    return "no error"


def test_a_call_to_a_worker_that_has_left_fails_in_its_future(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3)
    assert one.do(call, "w1", where)[0] == "w1"
    two.do(rpc.shutdown, graceful=False)
    assert "w" in one.do(async_error, "w1")
    with pytest.raises(RuntimeError, match="could not find destination 'w7': the workers of this group are"):
        one.do(async_error, "w7")
    assert three.do(call, "w0", where)[0] == "w0"


# -- gathering --------------------------------------------------------------------------------------------------------


def gather(value: int, names: list[str] | None = None) -> dict[str, int]:
    return rpc._all_gather(value, names)  # type: ignore[no-any-return]  # torch_compat's, through the package


def test_all_get_the_values_of_all(real_workers: Workers) -> None:
    workers = real_workers.group(3)
    for _ in range(2):
        for rank, worker in enumerate(workers):
            worker.begin(gather, rank)
        assert [worker.result() for worker in workers] == [{"w0": 0, "w1": 1, "w2": 2}] * 3
    for worker in workers[1:]:
        worker.begin(gather, 5, ["w1", "w2"])
    assert [worker.result() for worker in workers[1:]] == [{"w1": 5, "w2": 5}] * 2


def test_the_loss_of_a_worker_ends_the_wait_for_it(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3)
    assert all_do([one, two, three], gather, 1)[0] == {"w0": 1, "w1": 1, "w2": 1}
    one.begin(gather, 2)
    two.begin(gather, 2)
    three.kill()
    for worker in (one, two):
        with pytest.raises(WorkerLostError, match="worker w2 was lost during an all_gather"):
            worker.result()


def gather_in_vain() -> tuple[str, int]:
    with pytest.raises(DeadlineExceeded) as raised:
        rpc._all_gather(1, ["w0", "w1"], timeout=0.2)
    return str(raised.value), len(torch_compat._gatherer._rounds)


def gather_late() -> str:
    try:
        rpc._all_gather(2, ["w0", "w1"])
    except DeadlineExceeded as error:
        return str(error)
    return "gathered"


def test_a_round_that_was_given_up_leaves_nothing_and_tells_those_who_come_late(real_workers: Workers) -> None:
    two = real_workers.group(2)
    text, num_rounds = two[0].do(gather_in_vain)
    assert "only received values of ['w0']" in text and num_rounds == 0
    assert "round 0 of an all_gather of w0,w1 has timed out here" in two[1].do(gather_late)
    assert all_do(two, gather, 5) == [{"w0": 5, "w1": 5}] * 2


def watch_losses() -> None:
    on_lost = agents.current().on_lost

    def leaves(worker: rpc.WorkerInfo, incarnation: int) -> None:
        on_lost.remove(leaves)

    on_lost += [leaves, lambda worker, incarnation: HEARD.append(worker.name)]


HEARD: list[str] = []


def heard() -> list[str]:
    return HEARD


def test_all_hear_of_a_loss_also_when_one_listens_no_more(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.do(watch_losses)
    two.kill()
    within(LIMIT_S, lambda: one.do(heard) == ["w1"], "it has heard")


# -- the profiler, and picklers of one's own --------------------------------------------------------------------------


def profiled(to: str) -> list[str]:
    with torch.autograd.profiler.profile() as profile:
        rpc.rpc_sync(to, where)
        rpc.rpc_async(to, torch.add, args=(torch.ones(1), 1)).wait()
        rpc.remote(to, where).to_here()
    return sorted({event.name for event in profile.function_events if event.name.startswith("rpc_")})


def test_a_profiler_sees_calls_under_torchs_names(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    names = one.do(profiled, "w1")
    assert {"rpc_sync#where(w0 -> w1)", "rpc_remote#where(w0 -> w1)"} <= set(names)
    assert any(name.startswith("rpc_async#") and name.endswith("add(w0 -> w1)") for name in names)


class Shouting:
    """A pickler that changes what is sent, as programs for torch make them."""

    def serialize(self, value: Any) -> tuple[bytes, list[torch.Tensor]]:
        function, args, kwargs = value
        from fanwise.rpc import torch_compat

        return torch_compat.serialize((function, tuple(str(arg).upper() for arg in args), kwargs))


def call_with_another_pickler(to: str) -> Any:
    from fanwise.rpc import torch_compat

    with torch_compat._use_rpc_pickler(Shouting()):
        loud = rpc.rpc_sync(to, where, args=("hello",))
    return loud, rpc.rpc_sync(to, where, args=("hello",))


def test_a_pickler_of_ones_own_pickles_calls(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    assert one.do(call_with_another_pickler, "w1") == (("w1", ("HELLO",)), ("w1", ("hello",)))


def test_a_part_of_a_message_is_read_in_a_call_only() -> None:
    from fanwise.rpc import torch_compat

    data, tensors = torch_compat.serialize({"a": torch.ones(2), "b": 3})
    assert [tensor.tolist() for tensor in tensors] == [[1.0, 1.0]]
    back = torch_compat.deserialize(data, tensors)
    assert back["a"] is tensors[0] and back["b"] == 3
    with pytest.raises(RuntimeError, match="was loaded outside of a call"):
        pickle.loads(data)
