"""References of several workers in one process: real tables, keepers, serializer and RRefs on played agents."""

import copy
import gc
import inspect
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from played_agents import (
    PlayedAgent,
    all_empty,
    ask,
    be,
    done_with,
    is_empty,
    lose,
    make,
    played_workers,
    remote,
)
from torch.futures import Future

from fanwise.base.errors import NotSendableError, OwnerLostError, WorkerLostError
from fanwise.rpc.functions import async_execution
from fanwise.rpc.references.proxy import RRefProxy
from fanwise.rpc.references.rref import RRef, ValueFuture, make_rref
from fanwise.testing import within

# Any throughout: what users' functions take and return.

TIMED_OUT = r"RRef creation via rpc\.remote\(\) timed out"


@pytest.fixture
def three() -> Iterator[list[PlayedAgent]]:
    with played_workers(3) as played:
        yield played


class Counter:
    """Has methods of all kinds."""

    def __init__(self, start: int) -> None:
        self.count = start

    def add(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @property
    def twice(self) -> int:
        return 2 * self.count

    @staticmethod
    @async_execution
    def later(value: int) -> "Future[int]":
        return done_with(value)


def fail(text: str) -> None:
    raise ZeroDivisionError(text)


def add(rref: RRef[Any], value: Any) -> Any:
    return rref.to_here() + value


def hold(rref: RRef[Any]) -> None:
    HELD.append(rref)


HELD: list[RRef[Any]] = []


def same(value: Any) -> Any:
    return value


def call_with(function: Any, value: Any) -> Any:
    return function(value)


def add_by_proxy(proxy: Any, by: int) -> Any:
    return proxy.add(by)


def wait_for_proxy(proxy: Any, by: int) -> Any:
    return proxy.add(by).wait()


def test_a_value_of_ones_own_is_there_at_once(three: list[PlayedAgent]) -> None:
    value = [1, 2]
    rref: RRef[list[int]] = RRef[list[int]](value)
    assert rref.is_owner() and rref.confirmed_by_owner() and rref.owner_name() == "worker0"
    assert rref.to_here() is rref.local_value() is value
    assert str(rref) == repr(rref) == "OwnerRRef(GloballyUniqueId(created_on=0, local_id=0))"
    assert rref._get_type() is rref._get_type(blocking=False).wait() is list
    assert rref._get_future().done() and is_empty(three[0])


def test_a_remote_value_comes_as_a_copy(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, torch.ones(2))
    assert torch.equal(rref.to_here(), torch.ones(2))
    assert not rref.is_owner() and rref.confirmed_by_owner() and rref.owner() == three[1].info
    assert str(rref) == (
        "UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id=0), "
        "ForkId = GloballyUniqueId(created_on=0, local_id=1))"
    )
    assert three[1].references.debug_info() == {
        "num_owner_rrefs": "1",
        "num_pending_users": "0",
        "num_pending_futures": "0",
        "num_forks": "1",
    }
    del rref
    all_empty(three)


def test_whoever_takes_a_reference_for_its_value_is_told_how_to_reach_that(three: list[PlayedAgent]) -> None:
    rref: Any = remote(1, Counter, 40)
    with pytest.raises(
        AttributeError, match=r"'RRef' object has no attribute 'add'. It is a reference: rref\.rpc_sync\(\)\.add"
    ):
        rref.add(1)
    with pytest.raises(AttributeError, match=r"has no attribute '_add'$"):
        rref._add(1)
    assert not hasattr(rref, "add")


def test_local_value_of_a_user_names_ids_and_owner(three: list[PlayedAgent]) -> None:
    with pytest.raises(RuntimeError) as caught:
        remote(1, make, 1).local_value()
    assert str(caught.value) == (
        "For UserRRef(rref_id=GloballyUniqueId(created_on=0, local_id=0), fork_id=GloballyUniqueId(created_on=0, "
        "local_id=1)), can't call localValue() on user WorkerInfo(id=0, name=worker0). Call it on owner "
        "WorkerInfo(id=1, name=worker1)"
    )


@pytest.mark.parametrize("reader", [0, 1, 2])
def test_a_reference_may_go_to_anybody(three: list[PlayedAgent], reader: int) -> None:
    for rref in (remote(1, make, 40), RRef(40), remote(0, make, 40)):
        assert ask(reader, add, rref, 2) == 42
    del rref
    all_empty(three)


def test_a_value_lives_as_long_as_somebody_holds_it(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 7)
    ask(2, hold, rref)
    del rref
    within(30.0, lambda: three[1].references.debug_info()["num_forks"] == "1", "only worker 2 holds it")
    be(three[2])
    assert HELD[0].to_here() == 7
    be(three[0])
    HELD.clear()
    all_empty(three)


def test_a_failed_function_fails_each_use_and_keeps_nothing(three: list[PlayedAgent]) -> None:
    for owner in (0, 1):
        rref = remote(owner, fail, "no")
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="no"):
                rref.to_here()
        with pytest.raises(ZeroDivisionError, match="no"):
            rref._get_type()
    del rref
    all_empty(three)


def test_a_creation_that_took_too_long_fails_each_use_and_is_forgotten(three: list[PlayedAgent]) -> None:
    three[0].late = []
    rref = remote(1, make, 1)
    uses: list[Callable[[RRef[Any]], Any]] = [RRef.to_here, RRef._serialize, RRef._get_type, partial(ask, 2, hold)]
    for use in uses:
        with pytest.raises(RuntimeError, match=TIMED_OUT):
            use(rref)
    del rref
    gc.collect()
    forgotten = three[1].references._table._canceled
    within(30.0, lambda: len(forgotten) == 1, "the owner was told to forget it")
    three[0].late[0]()
    three[0].late = None
    all_empty(three)


def test_references_cannot_be_pickled_outside_of_calls(three: list[PlayedAgent]) -> None:
    text = "Can not pickle rref in python pickler, rref can only be pickled when using RPC"
    for rref in (RRef(1), remote(1, make, 1)):
        with pytest.raises(RuntimeError, match=text):
            pickle.dumps(rref)
        with pytest.raises(RuntimeError, match=text):
            rref._serialize()


def test_a_call_that_cannot_be_pickled_leaves_no_fork(three: list[PlayedAgent]) -> None:
    for rref in (RRef(1), remote(1, make, 1)):
        with pytest.raises(NotSendableError):
            ask(2, add, rref, lambda: 1)
    del rref
    all_empty(three)


def test_a_creation_that_cannot_be_sent_leaves_nothing(three: list[PlayedAgent]) -> None:
    for owner in (0, 1):
        with pytest.raises(NotSendableError):
            remote(owner, make, lambda: 1)
    all_empty(three)


def test_a_call_that_cannot_be_unpickled_leaves_no_fork(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    with pytest.raises(ArithmeticError, match="not here"):
        ask(2, make, [Unreadable(), rref])
    del rref
    all_empty(three)


class Unreadable:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return fail_to_read, ("not here",)


def fail_to_read(text: str) -> None:
    raise ArithmeticError(text)


def test_the_value_of_a_lost_owner_is_lost_with_it(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    kept = RRef(5)
    ask(1, make, kept)
    lose(three, 1)
    with pytest.raises(OwnerLostError, match="worker1 died or left") as caught:
        rref.to_here()
    assert isinstance(caught.value, WorkerLostError) and "fanwise explain owner-lost" in str(caught.value)
    with pytest.raises(OwnerLostError):
        ask(2, add, rref, 1)
    assert rref.owner_name() == "worker1" and not rref.confirmed_by_owner()


def test_what_a_lost_user_held_is_released(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    ask(2, hold, rref)
    within(30.0, lambda: three[1].references.debug_info()["num_forks"] == "2", "both hold it")
    lose(three, 2)
    within(30.0, lambda: three[1].references.debug_info()["num_forks"] == "1", "the lost one holds nothing")
    assert rref.to_here() == 1
    HELD.clear()


@pytest.mark.parametrize(("num_failures", "is_lost"), [(2, False), (100, True)])
def test_an_owner_that_is_not_known_yet_is_asked_again_and_then_lost(
    three: list[PlayedAgent], num_failures: int, is_lost: bool
) -> None:
    rref = remote(1, make, 7)
    three[2].newcomers[1] = num_failures
    ask(2, hold, rref)  # runs when worker 2 knows what has become of the reference
    be(three[2])
    if is_lost:
        with pytest.raises(OwnerLostError):
            HELD[0].to_here()
    else:
        assert HELD[0].to_here() == 7
    be(three[0])
    three[2].newcomers.clear()
    HELD.clear()


def test_methods_are_called_where_the_object_lives(three: list[PlayedAgent]) -> None:
    rref = remote(1, Counter, 7)
    assert rref.rpc_sync().add() == 8
    assert rref.rpc_async().add(by=2).wait() == 10
    assert rref.remote().add(5).to_here() == 15
    assert rref.rpc_sync().later(3) == rref.rpc_async().later(3).wait() == 3
    with pytest.raises(AttributeError, match="nothing"):
        rref.rpc_sync().nothing()
    with pytest.raises(AttributeError, match="nothing"):
        rref.remote().nothing()
    later = rref.rpc_async().nothing()
    with pytest.raises(AttributeError, match="nothing"):
        later.wait()
    del rref, later
    all_empty(three)


def test_a_property_is_no_method_and_the_error_says_how_to_read_it(three: list[PlayedAgent]) -> None:
    rref = remote(1, Counter, 7)
    with pytest.raises(TypeError, match=r"Counter\.twice is no method but a value of type int") as told:
        rref.rpc_sync().twice()
    assert "return rref.local_value().twice" in str(told.value)
    with pytest.raises(AttributeError, match="'Counter' has no attribute 'count', and a proxy calls methods") as missed:
        rref.rpc_sync().count()
    assert "return rref.local_value().count" in str(missed.value)
    del rref, told, missed
    all_empty(three)


@pytest.mark.parametrize("reader", [0, 1, 2])
def test_a_method_of_a_proxy_travels_as_a_function(three: list[PlayedAgent], reader: int) -> None:
    for rref in (remote(1, Counter, 7), remote(0, Counter, 7)):
        assert ask(reader, rref.rpc_sync().add, 1) == 8
        assert ask(reader, rref.remote().add, 2).to_here() == 10
        assert ask(reader, rref.rpc_sync().later, 3) == 3
        assert ask(reader, call_with, rref.rpc_sync().add, 5) == 15
        assert remote(reader, rref.rpc_sync(5.0).add, 1).to_here() == 16
    del rref
    all_empty(three)


@pytest.mark.parametrize("reader", [0, 1, 2])
def test_a_proxy_travels_with_its_reference(three: list[PlayedAgent], reader: int) -> None:
    rref = remote(1, Counter, 7)
    assert ask(reader, add_by_proxy, rref.rpc_sync(), 1) == 8
    assert ask(reader, add_by_proxy, rref.remote(), 1).to_here() == 9
    assert ask(reader, wait_for_proxy, rref.rpc_async(), 1) == 10
    proxy = ask(reader, same, rref.rpc_sync(3.0))
    del rref
    assert proxy.add(1) == 11
    assert repr(proxy).startswith(("<rpc_sync proxy of UserRRef(", "<rpc_sync proxy of OwnerRRef("))
    assert repr(proxy.add).startswith("<rpc_sync method 'add' of ") and proxy.add.__name__ == "add"
    del proxy
    all_empty(three)


def test_a_copied_proxy_calls_the_same_object(three: list[PlayedAgent]) -> None:
    rref = remote(1, Counter, 7)
    assert copy.copy(rref.rpc_sync()).add() == 8
    assert copy.copy(rref.rpc_sync().add)() == 9
    for travels_in_calls_only in (rref.rpc_sync(), rref.rpc_sync().add):
        with pytest.raises(RuntimeError, match="rref can only be pickled when using RPC"):
            pickle.dumps(travels_in_calls_only)
        with pytest.raises(RuntimeError, match="rref can only be pickled when using RPC"):
            copy.deepcopy(travels_in_calls_only)
    del rref, travels_in_calls_only
    all_empty(three)


def test_a_proxy_answers_no_look_ups_but_those_of_methods(three: list[PlayedAgent]) -> None:
    unmade: Any = RRefProxy.__new__(RRefProxy)
    for proxy in (unmade, RRef([1, 2]).rpc_sync()):
        for name in ("__deepcopy__", "__setstate__", "__wrapped__", "__array__", "__torch_function__"):
            assert not hasattr(proxy, name)
        assert not hasattr(type(proxy), "__len__") and not callable(proxy)
        assert inspect.unwrap(proxy) is proxy and not inspect.isgeneratorfunction(proxy)
    with pytest.raises(AttributeError, match="'RRefProxy' object has no attribute '_state'"):
        unmade.append(3)
    three_numbers: Any = remote(1, make, [1, 2, 3])
    assert three_numbers.rpc_sync().__len__() == three_numbers.rpc_sync().__getitem__(2) == 3
    assert (
        three_numbers.rpc_sync()[2] == three_numbers.rpc_async()[-1].wait() == three_numbers.remote()[2].to_here() == 3
    )
    for way in (three_numbers.rpc_sync(), three_numbers.rpc_async()):
        with pytest.raises(TypeError, match=r"one by one: fetch it with to_here\(\)"):
            list(way)
    del three_numbers, way
    all_empty(three)


def test_the_type_is_asked_for_once(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    first = rref._get_type(blocking=False)
    assert rref._get_type(blocking=False) is first and first.wait() is rref._get_type() is int


def test_the_type_of_a_value_to_come_is_not_waited_for_on_its_owner(three: list[PlayedAgent]) -> None:
    value = ValueFuture()
    rref = make_rref(three[0].references, three[0].references.new_id(), value, None)
    kind = rref._get_type(blocking=False)
    assert not kind.done() and rref._get_type(blocking=False) is kind
    value.settle(None, 1)
    assert kind.wait() is rref._get_type() is int


def test_deleted_references_say_so(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    three[0].references.delete_all_user_and_unforked_owner_rrefs(5.0)
    assert is_empty(three[1])
    with pytest.raises(RuntimeError, match=r"Cannot call to_here\(\) on it after deletion\."):
        rref.to_here()
    with pytest.raises(RuntimeError, match=r"Cannot call fork an UserRRef after deletion\."):
        rref._serialize()


def test_a_leak_is_an_error_when_that_is_asked_for(three: list[PlayedAgent]) -> None:
    rref = remote(1, make, 1)
    with pytest.raises(RuntimeError, match=r"Leaking RRef GloballyUniqueId\(created_on=0, local_id=0\) with fork Id"):
        three[1].references.destroy(ignore_leak=False)
    assert rref.confirmed_by_owner()


def test_backward_of_a_user_needs_a_context(three: list[PlayedAgent]) -> None:
    leaf = torch.ones(2, requires_grad=True)
    RRef(leaf.sum()).backward()
    assert leaf.grad is not None and torch.equal(leaf.grad, torch.ones(2))
    with pytest.raises(RuntimeError, match="User RRefs require 'dist_autograd_ctx_id' to be specified"):
        remote(1, make, torch.ones(())).backward()
    with pytest.raises(RuntimeError, match=r"RRef should contain a tensor for \.backward\(\)"):
        RRef(3).backward()


def test_references_die_in_garbage_collections_of_any_thread(three: list[PlayedAgent]) -> None:
    for _ in range(50):
        ring: list[Any] = [remote(1, make, 1)]
        ring.append(ring)
    del ring
    all_empty(three)
