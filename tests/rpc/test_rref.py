"""References: several workers in one process with fake agents, then references that are sent to their owner.

Values that are never created and the end of a worker keep no caller waiting, and leave nothing behind.
"""

import copy
import gc
import inspect
import pickle
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from fake_agents import (
    FakeAgent,
    ask,
    be,
    done_with,
    fake_workers,
    is_empty,
    leave_with_all,
    lose,
    make,
    remote,
    wait_until_empty,
)
from rpc_workers import LIMIT_S, Workers, all_do, leave, num_owned
from torch.futures import Future

import fanwise.rpc as rpc
from fanwise.base.errors import ClosedError, DeadlineExceeded, NotSendableError, OwnerLostError, WorkerLostError
from fanwise.rpc import agent as agents
from fanwise.rpc.calling.futures import result_of
from fanwise.rpc.functions import async_execution
from fanwise.rpc.references.proxy import RRefProxy
from fanwise.rpc.references.rref import RRef, ValueFuture, make_rref
from fanwise.testing import within

# Any throughout: what users' functions take and return.

TIMED_OUT = r"RRef creation via rpc\.remote\(\) timed out"


@pytest.fixture
def three() -> Iterator[list[FakeAgent]]:
    with fake_workers(3) as played:
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


def keep(rref: RRef[Any]) -> None:
    KEPT.append(rref)


KEPT: list[Any] = []


def identity(value: Any) -> Any:
    return value


def call_with(function: Any, value: Any) -> Any:
    return function(value)


def add_by_proxy(proxy: Any, by: int) -> Any:
    return proxy.add(by)


def wait_for_proxy(proxy: Any, by: int) -> Any:
    return proxy.add(by).wait()


def test_attribute_of_a_reference_is_an_error_that_shows_the_proxy(three: list[FakeAgent]) -> None:
    rref: Any = remote(1, Counter, 40)
    with pytest.raises(
        AttributeError, match=r"'RRef' object has no attribute 'add'. It is a reference: rref\.rpc_sync\(\)\.add"
    ):
        rref.add(1)
    with pytest.raises(AttributeError, match=r"has no attribute '_add'$"):
        rref._add(1)
    assert not hasattr(rref, "add")


@pytest.mark.parametrize("reader", [0, 1, 2])
def test_reference_may_be_sent_to_any_worker(three: list[FakeAgent], reader: int) -> None:
    for rref in (remote(1, make, 40), RRef(40), remote(0, make, 40)):
        assert ask(reader, add, rref, 2) == 42
    del rref
    wait_until_empty(three)


def test_value_lives_as_long_as_a_worker_holds_a_reference(three: list[FakeAgent]) -> None:
    rref = remote(1, make, 7)
    ask(2, keep, rref)
    del rref
    within(30.0, lambda: three[1].references.debug_info()["num_forks"] == "1", "only worker 2 holds it")
    be(three[2])
    assert KEPT[0].to_here() == 7
    be(three[0])
    KEPT.clear()
    wait_until_empty(three)


def test_failed_function_raises_at_each_use_and_keeps_nothing(three: list[FakeAgent]) -> None:
    for owner in (0, 1):
        rref = remote(owner, fail, "no")
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="no"):
                rref.to_here()
        with pytest.raises(ZeroDivisionError, match="no"):
            rref._get_type()
    del rref
    wait_until_empty(three)


def test_creation_that_timed_out_raises_at_each_use_and_is_canceled(three: list[FakeAgent]) -> None:
    three[0].late = []
    rref = remote(1, make, 1)
    uses: list[Callable[[RRef[Any]], Any]] = [RRef.to_here, RRef._serialize, RRef._get_type, partial(ask, 2, keep)]
    for use in uses:
        with pytest.raises(RuntimeError, match=TIMED_OUT):
            use(rref)
    del rref
    gc.collect()
    canceled = three[1].references._table._canceled
    within(30.0, lambda: len(canceled) == 1, "the owner knows that it was canceled")
    three[0].late[0]()
    three[0].late = None
    wait_until_empty(three)


def test_call_that_cannot_be_pickled_leaves_no_fork(three: list[FakeAgent]) -> None:
    for rref in (RRef(1), remote(1, make, 1)):
        with pytest.raises(NotSendableError):
            ask(2, add, rref, lambda: 1)
    del rref
    wait_until_empty(three)


def test_creation_that_cannot_be_sent_leaves_nothing(three: list[FakeAgent]) -> None:
    for owner in (0, 1):
        with pytest.raises(NotSendableError):
            remote(owner, make, lambda: 1)
    wait_until_empty(three)


def test_call_that_cannot_be_unpickled_leaves_no_fork(three: list[FakeAgent]) -> None:
    rref = remote(1, make, 1)
    with pytest.raises(ArithmeticError, match="not here"):
        ask(2, make, [Unreadable(), rref])
    del rref
    wait_until_empty(three)


class Unreadable:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return fail_to_read, ("not here",)


def fail_to_read(text: str) -> None:
    raise ArithmeticError(text)


def test_value_of_a_lost_owner_is_lost(three: list[FakeAgent]) -> None:
    rref = remote(1, make, 1)
    ask(1, make, RRef(5))
    lose(three, 1)
    with pytest.raises(OwnerLostError, match="worker1 died or left") as raised:
        rref.to_here()
    assert isinstance(raised.value, WorkerLostError) and "fanwise explain owner-lost" in str(raised.value)
    with pytest.raises(OwnerLostError):
        ask(2, add, rref, 1)
    assert rref.owner_name() == "worker1" and not rref.confirmed_by_owner()


def test_references_of_a_lost_user_are_released(three: list[FakeAgent]) -> None:
    rref = remote(1, make, 1)
    ask(2, keep, rref)
    within(30.0, lambda: three[1].references.debug_info()["num_forks"] == "2", "both keep it")
    lose(three, 2)
    within(30.0, lambda: three[1].references.debug_info()["num_forks"] == "1", "the lost one holds nothing")
    assert rref.to_here() == 1
    KEPT.clear()


@pytest.mark.parametrize(("num_failures", "is_lost"), [(2, False), (100, True)])
def test_owner_that_is_not_known_yet_is_asked_again_and_then_lost(
    three: list[FakeAgent], num_failures: int, is_lost: bool
) -> None:
    rref = remote(1, make, 7)
    three[2].newcomers[1] = num_failures
    ask(2, keep, rref)  # runs when the reference is confirmed or lost
    be(three[2])
    if is_lost:
        with pytest.raises(OwnerLostError):
            KEPT[0].to_here()
    else:
        assert KEPT[0].to_here() == 7
    be(three[0])
    three[2].newcomers.clear()
    KEPT.clear()


def test_methods_are_called_on_the_owner(three: list[FakeAgent]) -> None:
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
    wait_until_empty(three)


def test_property_is_no_method_and_the_error_shows_how_to_read_it(three: list[FakeAgent]) -> None:
    rref = remote(1, Counter, 7)
    with pytest.raises(TypeError, match=r"Counter\.twice is no method but a value of type int") as not_callable:
        rref.rpc_sync().twice()
    assert "return rref.local_value().twice" in str(not_callable.value)
    with pytest.raises(
        AttributeError, match="'Counter' has no attribute 'count', and a proxy calls methods"
    ) as not_found:
        rref.rpc_sync().count()
    assert "return rref.local_value().count" in str(not_found.value)
    del rref, not_callable, not_found
    wait_until_empty(three)


@pytest.mark.parametrize("reader", [0, 1, 2])
def test_method_of_a_proxy_can_be_sent_as_a_function(three: list[FakeAgent], reader: int) -> None:
    for rref in (remote(1, Counter, 7), remote(0, Counter, 7)):
        assert ask(reader, rref.rpc_sync().add, 1) == 8
        assert ask(reader, rref.remote().add, 2).to_here() == 10
        assert ask(reader, rref.rpc_sync().later, 3) == 3
        assert ask(reader, call_with, rref.rpc_sync().add, 5) == 15
        assert remote(reader, rref.rpc_sync(5.0).add, 1).to_here() == 16
    del rref
    wait_until_empty(three)


@pytest.mark.parametrize("reader", [0, 1, 2])
def test_proxy_can_be_sent(three: list[FakeAgent], reader: int) -> None:
    rref = remote(1, Counter, 7)
    assert ask(reader, add_by_proxy, rref.rpc_sync(), 1) == 8
    assert ask(reader, add_by_proxy, rref.remote(), 1).to_here() == 9
    assert ask(reader, wait_for_proxy, rref.rpc_async(), 1) == 10
    proxy = ask(reader, identity, rref.rpc_sync(3.0))
    del rref
    assert proxy.add(1) == 11
    assert repr(proxy).startswith(("<rpc_sync proxy of UserRRef(", "<rpc_sync proxy of OwnerRRef("))
    assert repr(proxy.add).startswith("<rpc_sync method 'add' of ") and proxy.add.__name__ == "add"
    del proxy
    wait_until_empty(three)


def test_copied_proxy_calls_the_same_object(three: list[FakeAgent]) -> None:
    rref = remote(1, Counter, 7)
    assert copy.copy(rref.rpc_sync()).add() == 8
    assert copy.copy(rref.rpc_sync().add)() == 9
    for sent_in_calls_only in (rref.rpc_sync(), rref.rpc_sync().add):
        with pytest.raises(RuntimeError, match="rref can only be pickled when using RPC"):
            pickle.dumps(sent_in_calls_only)
        with pytest.raises(RuntimeError, match="rref can only be pickled when using RPC"):
            copy.deepcopy(sent_in_calls_only)
    del rref, sent_in_calls_only
    wait_until_empty(three)


def test_proxy_has_no_attributes_but_methods(three: list[FakeAgent]) -> None:
    uninitialized: Any = RRefProxy.__new__(RRefProxy)
    for proxy in (uninitialized, RRef([1, 2]).rpc_sync()):
        for name in ("__deepcopy__", "__setstate__", "__wrapped__", "__array__", "__torch_function__"):
            assert not hasattr(proxy, name)
        assert not hasattr(type(proxy), "__len__") and not callable(proxy)
        assert inspect.unwrap(proxy) is proxy and not inspect.isgeneratorfunction(proxy)
    with pytest.raises(AttributeError, match="'RRefProxy' object has no attribute '_state'"):
        uninitialized.append(3)
    three_numbers: Any = remote(1, make, [1, 2, 3])
    assert three_numbers.rpc_sync().__len__() == three_numbers.rpc_sync().__getitem__(2) == 3
    assert (
        three_numbers.rpc_sync()[2] == three_numbers.rpc_async()[-1].wait() == three_numbers.remote()[2].to_here() == 3
    )
    for way in (three_numbers.rpc_sync(), three_numbers.rpc_async()):
        with pytest.raises(TypeError, match=r"one by one: fetch it with to_here\(\)"):
            list(way)
    del three_numbers, way
    wait_until_empty(three)


def test_type_of_a_value_is_not_waited_for_on_its_owner(three: list[FakeAgent]) -> None:
    value = ValueFuture()
    rref = make_rref(three[0].references, three[0].references.new_id(), value, None)
    kind = rref._get_type(blocking=False)
    assert not kind.done() and rref._get_type(blocking=False) is kind
    value.settle(None, 1)
    assert kind.wait() is rref._get_type() is int


def test_references_may_be_collected_by_any_thread(three: list[FakeAgent]) -> None:
    for _ in range(50):
        ring: list[Any] = [remote(1, make, 1)]
        ring.append(ring)
    del ring
    wait_until_empty(three)


# -- values that are never created ---------------------------------------------------------------------------------


def fail_always() -> None:
    raise ValueError("it has failed")


@pytest.mark.parametrize("way", ["the value", "its creation"])
def test_raised_error_keeps_no_variables_of_the_caller_alive(three: list[FakeAgent], way: str) -> None:
    """The garbage collector does not see through the future in C++ that holds the error."""
    rref = remote(0, fail_always)
    if way == "its creation":
        three[0].creations = Future()
        rref = remote(1, make, 1)
        three[0].creations.set_exception(ValueError("it has failed"))
    variables: list[weakref.ref[threading.Event]] = []

    def use() -> None:
        variable = threading.Event()
        variables.append(weakref.ref(variable))
        rref.local_value() if way == "the value" else rref._get_future().wait()

    with pytest.raises(ValueError, match="it has failed"):
        use()
    gc.collect()
    assert [variable() for variable in variables] == [None]


@pytest.mark.parametrize("owner", [0, 1])
def test_reference_cannot_be_used_after_its_creation_failed(three: list[FakeAgent], owner: int) -> None:
    """Threads that wait for a future of torch continue before its callbacks have run."""
    creation: Future[Any] = Future()
    resume = threading.Event()
    errors: list[str] = []

    def stop(_: "Future[Any]") -> None:
        resume.wait()

    creation.add_done_callback(stop)
    three[0].creations = creation
    rref = remote(owner, make, 1)
    rref._get_future().add_done_callback(lambda _: errors.append(error_of_use(rref)))
    failing = threading.Thread(target=creation.set_exception, args=(DeadlineExceeded("RPC ran for more than that"),))
    failing.start()
    within(30.0, creation.done, "the call has failed")
    was_done = rref._get_future().done()
    resume.set()
    assert not was_done, "the callback had not run yet"
    with pytest.raises(DeadlineExceeded, match="RPC ran for more than"):
        rref._get_future().wait()
    with pytest.raises(DeadlineExceeded, match=TIMED_OUT):
        rref.to_here()
    within(30.0, lambda: len(errors) == 1, "the callback was called")
    assert re.match(TIMED_OUT, errors[0])
    failing.join()


def error_of_use(rref: RRef[Any]) -> str:
    """Return the error of an operation that does not block."""
    with pytest.raises(RuntimeError) as raised:
        rref._serialize()
    return str(raised.value)


def test_value_whose_call_was_not_sent_fails_for_the_owner(three: list[FakeAgent]) -> None:
    creation: Future[Any] = Future()
    three[0].creations = creation
    rref = remote(0, make, 1)
    value = three[0].references.value_of(rref._rref_id)
    creation.set_exception(DeadlineExceeded("the call still waited for its link"))
    assert value.done()
    with pytest.raises(DeadlineExceeded, match=TIMED_OUT):
        value.wait()
    del rref
    wait_until_empty(three)


@pytest.mark.parametrize(
    ("error", "user_error", "owner_error"),
    [
        (DeadlineExceeded("it waited"), DeadlineExceeded, DeadlineExceeded),
        (WorkerLostError("no way"), OwnerLostError, WorkerLostError),
        (ValueError("refused"), ValueError, WorkerLostError),
    ],
    ids=["late", "lost", "refused"],
)
def test_value_whose_call_was_not_sent_fails_for_a_third_worker(
    three: list[FakeAgent], error: Exception, user_error: type[Exception], owner_error: type[Exception]
) -> None:
    creation: Future[Any] = Future()
    three[0].creations = creation
    rref = remote(1, make, 1)
    ask(2, keep, rref)
    passed_on = KEPT.pop()
    value = three[1].references.value_of(rref._rref_id)
    within(30.0, passed_on.confirmed_by_owner, "the owner knows of it")
    assert not value.done()
    creation.set_exception(error)
    within(30.0, value.done, "the waiting worker gets the error")
    reason = (
        "waited for its link until its time ran out" if owner_error is DeadlineExceeded else "could not send the call"
    )
    for future in (value, three[1].references.value_of(rref._rref_id)):  # also later
        with pytest.raises(owner_error, match=f"worker0 {reason}"):
            result_of(future)
    with pytest.raises(user_error):
        rref.to_here()
    del rref, passed_on, value
    wait_until_empty(three)


def test_reference_whose_creation_fails_while_it_is_sent_is_not_sent(three: list[FakeAgent]) -> None:
    creation: Future[Any] = Future()
    three[0].creations = creation
    rref = remote(1, make, 1)
    new_id = three[0].references.new_id

    def fail_creation_first() -> Any:
        creation.set_exception(DeadlineExceeded("the call still waited for its link"))
        return new_id()

    three[0].references.new_id = fail_creation_first  # type: ignore[method-assign]  # between two checks of the reference
    with pytest.raises(DeadlineExceeded, match=TIMED_OUT):
        ask(2, make, rref)
    del rref
    wait_until_empty(three)


def test_shutdown_ends_waits_for_values(three: list[FakeAgent]) -> None:
    three[0].creations = Future()
    rref = remote(0, make, 1)
    value = three[0].references.value_of(rref._rref_id)
    three[0].references.destroy()
    assert value.done()
    with pytest.raises(ClosedError, match="RPC was shut down in this process before the value was made"):
        value.wait()


def test_shutdown_does_not_wait_for_workers_that_have_left(three: list[FakeAgent]) -> None:
    three[0].late = []
    rref = remote(1, make, 1)
    leave_with_all(three, 1)
    three[0].references.delete_all_user_and_unforked_owner_rrefs(5.0)
    assert is_empty(three[0]), "its message needs no reply"
    assert not rref.confirmed_by_owner()


# -- references to their owner, between real workers ---------------------------------------------------------------

released = threading.Event()


def create(to: str) -> None:
    KEPT.append(rpc.remote(to, list, args=([1, 2],)))
    assert KEPT[0].to_here() == [1, 2]
    within(LIMIT_S, KEPT[0].confirmed_by_owner, "its owner has confirmed it")


def value_of(rref: Any, container: Any = None) -> Any:
    return rref.local_value()


def value_after_release(rref: Any) -> Any:
    assert released.wait(LIMIT_S)
    KEPT.append(rref)
    return kept_value()


def kept_value() -> Any:
    return KEPT[0].local_value()


def release() -> None:
    released.set()


def num_requests() -> int:
    """Return the number of messages that were sent to other workers and are no calls."""
    connections = agents.current().connections
    links = [connections.get_open(info.id) for info in rpc.workers() if info != rpc.get_worker_info()]
    return sum(link._calls.num_opened - link._calls.num_on_credit for link in links if link is not None)


def send_to_owner(times: int) -> list[Any]:
    owner, rref = KEPT[0].owner(), KEPT[0]
    results = [rpc.rpc_sync(owner, value_of, (rref,)) for _ in range(times)]
    results += [rpc.rpc_async(owner, value_of, (rref, {"among others": [rref, rref]})).wait() for _ in range(times)]
    results += [rpc.remote(owner, value_of, (rref,)).to_here() for _ in range(times)]
    return results + [list(rref.rpc_sync().copy()) for _ in range(times)]


def test_call_with_a_reference_to_its_owner_is_two_messages(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.do(create, "w1")
    one.do(send_to_owner, 1)
    before = two.do(num_requests)
    assert one.do(send_to_owner, 10) == [[1, 2]] * 40
    assert two.do(num_requests) == before, "the owner has sent no message about references"
    one.do(forget)
    within(LIMIT_S, lambda: two.do(num_owned) == 0, "the value is freed")
    all_do([one, two], leave)


def begin_and_forget(timeout: float) -> None:
    """Call with the only reference."""
    rref = KEPT.pop()
    KEPT.append(rpc.rpc_async(rref.owner(), value_after_release, (rref,), timeout=timeout))
    del rref
    gc.collect()


def result() -> Any:
    return KEPT.pop().wait()


def forget() -> None:
    KEPT.clear()
    gc.collect()


def test_value_lives_until_the_call_is_answered_or_as_long_as_its_function_keeps_it(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.do(create, "w1")
    one.do(begin_and_forget, 0)
    assert two.do(num_owned) == 1, "the call holds it"
    two.do(release)
    assert one.do(result) == [1, 2]
    within(LIMIT_S, lambda: two.do(num_owned) == 0, "no other worker holds it")
    assert two.do(kept_value) == [1, 2], "a reference of the owner keeps the value"
    all_do([one, two], forget)
    all_do([one, two], leave)


def test_call_that_times_out_releases_the_value_and_a_late_function_gets_an_error(real_workers: Workers) -> None:
    one, two = real_workers.group(2, num_worker_threads=1)
    one.do(create, "w1")
    one.do(occupy, "w1")
    one.do(begin_and_forget, 0.05)
    with pytest.raises(DeadlineExceeded):
        one.do(result)
    within(LIMIT_S, lambda: two.do(num_owned) == 0, "the value is freed")
    two.do(release)
    within(LIMIT_S, lambda: "does not have the value of" in two.printed, "the late function has failed")
    assert OwnerLostError.__name__ in two.printed
    all_do([one, two], forget)
    all_do([one, two], leave)


def occupy(to: str) -> None:
    """Occupy its only thread."""
    rpc.rpc_async(to, wait_until_free, timeout=0)


def wait_until_free() -> None:
    released.wait(LIMIT_S)
