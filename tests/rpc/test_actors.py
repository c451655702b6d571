"""Actors between real workers: order, concurrency, cancellation and the loss of workers."""

import asyncio
import gc
import operator
import re
import threading
import time
from typing import Any

import pytest
import torch
from rpc_workers import LIMIT_S, Worker, Workers, all_do, leave, num_owned
from torch.futures import Future

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded, NotSendableError, OwnerLostError, WorkerLostError
from fanwise.rpc import agent as agents
from fanwise.rpc.functions import async_execution
from fanwise.testing import within

CALLERS, CALLS = 8, 125


class Log:
    """Records its calls, and how many ran at a time."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.now = self.most = 0
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.promised: Future[Any] = Future()

    def _begin(self, label: Any) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.seen.append(label)

    def _end(self) -> None:
        with self.lock:
            self.now -= 1

    def add(self, label: Any) -> int:
        self._begin(label)
        self._end()
        return len(self.seen)

    def wait(self, label: Any) -> None:
        self._begin(label)
        with rpc.waiting():
            assert self.gate.wait(LIMIT_S)
        self._end()

    async def sleep(self, label: Any) -> str:
        self._begin(label)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._end()
        return "slept"

    async def sleep_long(self, label: Any) -> None:
        self._begin(label)
        try:
            await asyncio.Event().wait()
        finally:
            self._end()

    @async_execution
    def promise(self, label: Any) -> "Future[Any]":
        self._begin(label)

        def end(future: "Future[Any]") -> Any:
            self._end()
            return future.value()

        return self.promised.then(end)

    def fail(self) -> None:
        raise ArithmeticError("on purpose")

    def both(self) -> tuple[int, list[Any]]:
        return self.most, self.seen

    def call_itself(self, me: "rpc.RRef[Log]", how: str) -> Any:
        if how == "rpc_async":
            me.rpc_async().add("itself, later")
            return None
        return me.rpc_sync().add("itself")

    async def call_itself_in_a_coroutine(self, me: "rpc.RRef[Log]") -> None:
        me.rpc_sync().add("itself")

    def lock_of(self) -> Any:
        return self.lock

    @async_execution
    def promise_nothing(self) -> "Future[Any]":
        return 3  # type: ignore[return-value]  # wrong on purpose

    def other(self, me: "rpc.RRef[Log]") -> "rpc.RRef[Log]":
        return me


LOGS: list[Any] = []


def make(to: str, **kwargs: Any) -> None:
    LOGS.append(rpc.remote(to, Log, **kwargs))


def pass_to(to: str) -> None:
    rpc.rpc_sync(to, enqueue, (LOGS[0],))


def enqueue(rref: Any) -> None:
    LOGS.append(rref)


def call(name: str, *args: object, **kwargs: Any) -> Any:
    return getattr(LOGS[0].rpc_sync(**kwargs), name)(*args)


def begin(name: str, *args: object, **kwargs: Any) -> None:
    CALLS_BEGUN.append(getattr(LOGS[0].rpc_async(**kwargs), name)(*args))


CALLS_BEGUN: list[Any] = []


def outcome_of(index: int) -> str:
    """The result of a call of `begin`, or the name of its error."""
    try:
        return str(CALLS_BEGUN[index].wait())
    except Exception as error:
        return type(error).__name__


def outcomes() -> list[str]:
    return [outcome_of(index) for index in range(len(CALLS_BEGUN))]


def value_of(rref: Any, name: str) -> Any:
    found = getattr(rref.local_value(), name)
    return list(found) if name == "seen" else found


def look(name: str) -> Any:
    """Read an attribute of the actor without queueing."""
    return rpc.rpc_sync(LOGS[0].owner(), value_of, (LOGS[0], name))


def open_gate(rref: Any) -> None:
    rref.local_value().gate.set()


def open_the_gate() -> None:
    rpc.rpc_sync(LOGS[0].owner(), open_gate, (LOGS[0],))


def forget() -> None:
    LOGS.clear()
    CALLS_BEGUN.clear()
    gc.collect()


def queues() -> tuple[int, int]:
    """Return the numbers of actors and of threads of this worker."""
    gc.collect()
    return len(agents.current().queues._queues), threading.active_count()


def num_waiting() -> int:
    return agents.current().queues.num_waiting


def call_from_threads(me: int) -> None:
    """Run half of the callers, each a thread that calls without waiting."""

    def caller(number: int) -> None:
        calls = [LOGS[0].rpc_async().add((number, i)) for i in range(CALLS)]
        for each in calls:
            each.wait()

    threads = [threading.Thread(target=caller, args=(me + 2 * k,)) for k in range(CALLERS // 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def end(workers: list[Worker]) -> None:
    all_do(workers, forget)
    all_do(workers, leave)


def test_a_thousand_calls_of_eight_callers_run_one_at_a_time_and_in_the_order_of_each_caller(
    real_workers: Workers,
) -> None:
    one, two, three = workers = real_workers.group(3)
    one.do(make, "w2", serial=True)
    one.do(pass_to, "w1")
    one.begin(call_from_threads, 0)
    two.begin(call_from_threads, 1)
    one.result(), two.result()
    most, labels = one.do(call, "both")
    assert most == 1 and len(labels) == CALLERS * CALLS
    for number in range(CALLERS):
        assert [i for who, i in labels if who == number] == list(range(CALLS))
    all_do(workers, forget)
    within(LIMIT_S, lambda: three.do(queues)[0] == 0, "the queue of an unused actor is deleted")
    all_do(workers, leave)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_calls_run_up_to_the_limit_and_queued_ones_use_no_thread(real_workers: Workers, concurrency: int) -> None:
    workers = one, two = real_workers.group(2, num_worker_threads=4)
    one.do(make, "w1", concurrency=concurrency)
    one.do(call, "add", "first")
    before = two.do(queues)[1]
    for i in range(40):
        one.do(begin, "wait", i)
    within(LIMIT_S, lambda: two.do(num_waiting) == 40 - concurrency, "all have arrived")
    assert one.do(look, "now") == concurrency, "other functions run"
    assert two.do(queues)[1] <= before + concurrency + 2
    one.do(open_the_gate)
    assert one.do(outcomes) == ["None"] * 40
    most, labels = one.do(call, "both")
    assert (most, labels) == (concurrency, ["first", *range(40)])
    end(workers)


def test_a_call_ends_with_its_reply_for_every_kind_of_method(real_workers: Workers) -> None:
    workers = one, _two = real_workers.group(2)
    one.do(make, "w1", serial=True)
    for name in ("sleep", "promise", "add"):
        one.do(begin, name, name)
    one.do(begin, "fail")
    one.do(begin, "nothing_of_that_name")
    one.do(begin, "add", "last")
    within(LIMIT_S, lambda: one.do(look, "seen") == ["sleep", "promise"], "the promised one runs")
    one.do(keep_the_promise)
    assert one.do(outcomes) == ["slept", "kept", "3", "ArithmeticError", "AttributeError", "4"]
    assert one.do(call, "both") == (1, ["sleep", "promise", "add", "last"])
    end(workers)


def keep_the_promise() -> None:
    rpc.rpc_sync(LOGS[0].owner(), set_promise, (LOGS[0],))


def set_promise(rref: Any) -> None:
    rref.local_value().promised.set_result("kept")


def begin_with_references(timeout: float) -> None:
    CALLS_BEGUN.append(LOGS[0].rpc_async(timeout=timeout).add(rpc.RRef("argument")))
    LOGS.append(LOGS[0].remote(timeout=timeout).add("never"))


def value_of_last() -> Any:
    return LOGS.pop().to_here()


def test_call_that_times_out_in_the_queue_does_not_run_and_releases_its_references(real_workers: Workers) -> None:
    workers = one, two = real_workers.group(2)
    one.do(make, "w1", serial=True)
    one.do(begin, "wait", "first", timeout=0)
    within(LIMIT_S, lambda: one.do(look, "now") == 1, "the first one runs")
    one.do(begin, "add", "late", timeout=0.2)
    one.do(begin_with_references, 0.2)
    one.do(begin, "add", "last", timeout=0)
    within(LIMIT_S, lambda: two.do(num_waiting) == 4, "all have arrived")
    deadline_s = two.do(time.monotonic) + 0.2  # the owner counts from the arrival
    assert one.do(outcome_of, 1) == one.do(outcome_of, 2) == "DeadlineExceeded"
    within(LIMIT_S, lambda: two.do(time.monotonic) > deadline_s, "they have timed out at the owner, too")
    one.do(open_the_gate)
    assert one.do(outcome_of, -1) == "2"
    with pytest.raises(DeadlineExceeded, match=r"did not run|timed out"):
        one.do(value_of_last)
    assert one.do(look, "seen") == ["first", "last"]
    within(LIMIT_S, lambda: one.do(num_owned) == 0, "the reference in the arguments is released")
    end(workers)


def test_a_serial_actor_that_waits_for_itself_gets_an_error(
    real_workers: Workers,
) -> None:
    workers = one, _two = real_workers.group(2)
    one.do(make, "w1", serial=True)
    with pytest.raises(RuntimeError, match="'add' was called with rpc_sync by a method of the same actor") as raised:
        one.do(call_with_itself, "call_itself", "rpc_sync")
    assert "right:  self.add(...)" in str(raised.value)
    with pytest.raises(RuntimeError, match="by a method of the same actor"):
        one.do(call_with_itself, "call_itself_in_a_coroutine")
    one.do(call_with_itself, "call_itself", "rpc_async")
    within(LIMIT_S, lambda: one.do(look, "seen") == ["itself, later"], "it called itself")
    one.do(forget)
    one.do(make, "w1", concurrency=2)
    assert one.do(call_with_itself, "call_itself", "rpc_sync") == 1
    end(workers)


def call_with_itself(name: str, *args: object) -> Any:
    return getattr(LOGS[0].rpc_sync(), name)(LOGS[0], *args)


def test_every_kind_of_method_call_is_queued(real_workers: Workers) -> None:
    workers = one, two = real_workers.group(2)
    one.do(make, "w1", serial=True)
    assert one.do(in_every_way) == [1, 2, 3, 4]
    two.do(make, "w1", serial=True)
    assert two.do(in_every_way) == [1, 2, 3, 4], "on its own worker too"
    assert one.do(give_it_back), "a method may return a reference"
    end(workers)


def in_every_way() -> list[Any]:
    log = LOGS[-1]
    made = log.remote().add(3)
    proxy = log.rpc_sync()
    return [
        log.rpc_sync().add(1) - 1,
        log.rpc_async().add(torch.ones(3)).wait() - 1,
        made.to_here() + 2,
        rpc.rpc_sync(log.owner(), proxy.add, args=(4,)),
    ]


def give_it_back() -> bool:
    again = LOGS[0].rpc_sync().other(LOGS[0])
    return bool(again.rpc_sync().add("again") == 5)


@pytest.mark.parametrize("serial", [True, False])
def test_errors_of_method_calls_name_the_method_and_its_arguments(real_workers: Workers, serial: bool) -> None:
    workers = one, _two = real_workers.group(2)
    one.do(make, "w1", serial=serial)
    with pytest.raises(NotSendableError, match=r"what lock_of returned \(a _thread.lock\) cannot be sent"):
        one.do(call, "lock_of")
    with pytest.raises(RuntimeError, match=r"but (Log\.)?promise_nothing returned int"):
        one.do(call, "promise_nothing")
    for how in ("rpc_sync", "rpc_async", "remote"):
        with pytest.raises(NotSendableError, match=r"argument 0 \(a builtins.function\) of the call of add on w1"):
            one.do(add_unsendable, how)
    if not serial:
        with pytest.raises(TypeError, match=r"^add was called as a stream but returned int, which"):
            one.do(read_as_stream, "add")
    end(workers)


def add_unsendable(how: str) -> None:
    found = getattr(LOGS[0], how)().add(lambda: 1)
    if how == "rpc_async":
        found.wait()


def read_as_stream(name: str) -> list[Any]:
    return list(getattr(LOGS[0].rpc_stream(), name)(1))


released = threading.Event()


class Slow:
    def wait(self) -> None:
        with rpc.waiting():
            assert released.wait(LIMIT_S)

    def four(self) -> int:
        return 4


def test_an_actor_lives_until_its_calls_are_answered_without_references(real_workers: Workers) -> None:
    workers = one, two = real_workers.group(2)
    one.do(call_and_drop)
    within(LIMIT_S, lambda: two.do(num_owned) == 1, "the later value is freed")
    two.do(release)
    assert one.do(outcomes) == ["None", "4"]
    one.do(forget)
    within(LIMIT_S, lambda: two.do(num_owned) == 0, "it is freed")
    end(workers)


def release() -> None:
    released.set()


def call_and_drop() -> None:
    slow = rpc.remote("w1", Slow, serial=True)
    assert slow.rpc_sync().four() == 4
    CALLS_BEGUN.extend([slow.rpc_async().wait(), slow.rpc_async().four()])
    later = rpc.remote("w1", Slow)
    assert later.rpc_sync().four() == 4
    del slow
    gc.collect()


class CannotBeCreated:
    def __init__(self) -> None:
        raise LookupError("cannot be created")

    def step(self) -> None: ...


def test_each_call_of_an_actor_that_could_not_be_created_raises_the_error(real_workers: Workers) -> None:
    workers = one, two = real_workers.group(2)
    for how in ("rpc_sync", "rpc_async", "remote"):
        with pytest.raises(LookupError, match="cannot be created"):
            one.do(call_failed_actor, how)
    one.do(forget)  # with the error that it holds
    within(LIMIT_S, lambda: two.do(queues)[0] == 0, "its queue is deleted")
    end(workers)


def call_failed_actor(how: str) -> Any:
    actor = rpc.remote("w1", CannotBeCreated, serial=True)
    found = getattr(actor, how)().step()
    return found.wait() if how == "rpc_async" else found.to_here() if how == "remote" else found


def test_invalid_actors_are_refused(real_workers: Workers) -> None:
    one, *_ = workers = real_workers.group(1)
    for kwargs, error, text in (
        ({"func": operator.add, "serial": True}, TypeError, "an actor is an object of a class"),
        ({"func": Log, "concurrency": 0}, ValueError, "concurrency must be at least 1 and less than 4294967295, got 0"),
        ({"func": Log, "concurrency": 2**32}, ValueError, "less than 4294967295, got 4294967296"),
        ({"func": Log, "concurrency": 1.0}, TypeError, "concurrency must be an int, got 1.0"),
        ({"func": Log, "serial": "yes"}, TypeError, "serial must be True or False, got 'yes'"),
        ({"func": Log, "serial": 0}, TypeError, "serial must be True or False, got 0"),
        ({"func": Log, "concurrency": True}, TypeError, "concurrency must be an int, got True"),
        ({"func": Log, "serial": True, "concurrency": 2}, ValueError, "leave one out"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            one.do(rpc.remote, "w0", **kwargs)
    end(workers)


def test_calls_of_an_actor_whose_worker_is_killed_fail(
    real_workers: Workers,
) -> None:
    one, two = real_workers.group(2)
    one.do(make, "w1", serial=True)
    one.do(begin, "wait", "first")
    one.do(begin, "add", "second")
    within(LIMIT_S, lambda: two.do(num_waiting) == 1, "both have arrived")
    two.kill()
    assert one.do(outcomes) == ["WorkerLostError"] * 2
    with pytest.raises((OwnerLostError, WorkerLostError)):
        one.do(call, "add", 1)
    one.do(forget)
    one.do(rpc.shutdown, graceful=False)
