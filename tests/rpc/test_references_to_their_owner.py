"""A reference that goes to its owner in a call: the caller keeps it until the answer, and nobody is told of it."""

import gc
import threading
from typing import Any

import pytest
from rpc_workers import LIMIT_S, Workers, all_do, leave, num_owned

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded, OwnerLostError
from fanwise.rpc import agent as agents
from fanwise.testing import within

# Any throughout: what users' functions take and return.

kept: list[Any] = []
free = threading.Event()


def make_counted(to: str) -> None:
    kept.append(rpc.remote(to, list, args=([1, 2],)))
    assert kept[0].to_here() == [1, 2]
    within(LIMIT_S, kept[0].confirmed_by_owner, "its owner has counted it")


def value_of(rref: Any, others: Any = None) -> Any:
    return rref.local_value()


def value_when_free(rref: Any) -> Any:
    assert free.wait(LIMIT_S)
    kept.append(rref)
    return value_when_kept()


def value_when_kept() -> Any:
    return kept[0].local_value()


def set_free() -> None:
    free.set()


def num_messages() -> int:
    """That were sent to others and are no calls."""
    connections = agents.current().connections
    links = [connections.get_open(info.id) for info in rpc.workers() if info != rpc.get_worker_info()]
    return sum(link._calls.num_opened - link._calls.num_on_credit for link in links if link is not None)


def ask(times: int) -> list[Any]:
    owner, rref = kept[0].owner(), kept[0]
    found = [rpc.rpc_sync(owner, value_of, (rref,)) for _ in range(times)]
    found += [rpc.rpc_async(owner, value_of, (rref, {"among others": [rref, rref]})).wait() for _ in range(times)]
    found += [rpc.remote(owner, value_of, (rref,)).to_here() for _ in range(times)]
    return found + [list(rref.rpc_sync().copy()) for _ in range(times)]


def test_a_call_with_a_reference_to_its_owner_is_two_messages(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.do(make_counted, "w1")
    one.do(ask, 1)
    before = two.do(num_messages)
    assert one.do(ask, 10) == [[1, 2]] * 40
    assert two.do(num_messages) == before, "the owner has told nobody of what came"
    one.do(forget)
    within(LIMIT_S, lambda: two.do(num_owned) == 0, "the value is freed")
    all_do([one, two], leave)


def begin_and_forget(timeout: float) -> None:
    """The only reference is the one that the call takes along."""
    rref = kept.pop()
    kept.append(rpc.rpc_async(rref.owner(), value_when_free, (rref,), timeout=timeout))
    del rref
    gc.collect()


def result() -> Any:
    return kept.pop().wait()


def forget() -> None:
    kept.clear()
    gc.collect()


def test_the_value_lives_until_the_call_is_answered_and_where_its_function_has_kept_it(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.do(make_counted, "w1")
    one.do(begin_and_forget, 0)
    assert two.do(num_owned) == 1, "the call holds it"
    two.do(set_free)
    assert one.do(result) == [1, 2]
    within(LIMIT_S, lambda: two.do(num_owned) == 0, "nobody refers to it from elsewhere")
    assert two.do(value_when_kept) == [1, 2], "a reference of the owner's own is as good as the value"
    all_do([one, two], forget)
    all_do([one, two], leave)


def test_whoever_gives_up_waiting_lets_the_value_go_and_a_late_function_hears_of_it(real_workers: Workers) -> None:
    one, two = real_workers.group(2, num_worker_threads=1)
    one.do(make_counted, "w1")
    one.do(occupy, "w1")
    one.do(begin_and_forget, 0.05)
    with pytest.raises(DeadlineExceeded):
        one.do(result)
    within(LIMIT_S, lambda: two.do(num_owned) == 0, "the value is freed")
    two.do(set_free)
    within(LIMIT_S, lambda: "does not have the value of" in two.printed, "the late function has failed")
    assert OwnerLostError.__name__ in two.printed
    all_do([one, two], forget)
    all_do([one, two], leave)


def occupy(to: str) -> None:
    """Its only thread waits."""
    rpc.rpc_async(to, wait_until_free, timeout=0)


def wait_until_free() -> None:
    free.wait(LIMIT_S)
