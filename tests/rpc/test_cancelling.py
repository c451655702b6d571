"""Cancellation of calls between real workers."""

import asyncio
import signal
import threading
from collections.abc import Callable

import pytest
from rpc_workers import LIMIT_S, Workers, leave, num_owned
from torch.futures import Future

import fanwise.rpc as rpc
from fanwise.base.errors import CallCancelled, CancelledError, WorkerLostError
from fanwise.rpc.functions import async_execution
from fanwise.testing import within

events: list[str] = []
unset: "Future[int]" = Future()
released = threading.Event()


def recorded_events() -> list[str]:
    return events


def record(text: str) -> None:
    events.append(text)


def release() -> None:
    released.set()


def wait_until_released() -> None:
    released.wait(LIMIT_S)


def record_wait(wait: Callable[[], object]) -> None:
    """Wait, and record how that ended."""
    record("waits")
    try:
        wait()
    except CallCancelled:
        record("canceled")
        raise
    finally:
        rpc.rpc_sync(rpc.get_worker_info(), record, ("cleaned up",))  # cleanup may wait


def by_rpc_sync(to: str) -> None:
    record_wait(lambda: rpc.rpc_sync(to, wait_until_released))


def by_rpc_sync_without_limit(to: str) -> None:
    record_wait(lambda: rpc.rpc_sync(to, wait_until_released, timeout=0))


def by_future(to: str) -> None:
    call = rpc.rpc_async(to, wait_until_released, timeout=0)
    record_wait(call.wait)


def by_future_of_a_chain(to: str) -> None:
    record_wait(rpc.rpc_async(to, wait_until_released).then(lambda done: done.wait()).wait)


def by_own_future(_to: str) -> None:
    record_wait(unset.wait)


def by_reference(to: str) -> None:
    record_wait(rpc.remote(to, wait_until_released).to_here)


def by_waiting(_to: str) -> None:
    def wait() -> None:
        while True:
            with rpc.waiting():
                released.wait(0.01)

    record_wait(wait)


def by_asking(_to: str) -> None:
    record("waits")
    while not rpc.cancelled():
        released.wait(0.001)
    record("canceled")
    record("cleaned up")


async def by_await(to: str) -> None:
    record("waits")
    try:
        await rpc.rpc_async(to, wait_until_released)
    except asyncio.CancelledError:
        record("canceled")
        await rpc.rpc_async(rpc.get_worker_info(), record, ("cleaned up",))
        raise


def cancel_when_it_waits(to: str, other: str, function: Callable[[str], object]) -> str:
    """Return the text of the caller's error."""
    call = rpc.rpc_async(to, function, (other,), timeout=0)
    within(LIMIT_S, lambda: rpc.rpc_sync(to, recorded_events) == ["waits"], "it waits")
    assert call.cancel() and not call.cancel()
    assert call.done()
    within(LIMIT_S, lambda: "canceled" in rpc.rpc_sync(to, recorded_events), "it was canceled")
    within(
        LIMIT_S, lambda: rpc.rpc_sync(to, recorded_events) == ["waits", "canceled", "cleaned up"], "it has cleaned up"
    )
    with pytest.raises(CancelledError) as raised:
        call.wait()
    return str(raised.value)


WAYS = [
    *(by_rpc_sync, by_rpc_sync_without_limit, by_future, by_future_of_a_chain, by_own_future, by_reference),
    *(by_waiting, by_asking, by_await),
]


def forget() -> None:
    events.clear()


def test_next_wait_of_a_canceled_function_raises(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3)
    for way in WAYS:
        text = one.do(cancel_when_it_waits, "w1", "w2", way)
        assert "the call on worker w1 was canceled here before it was answered" in text
        two.do(forget)
    three.do(release)
    for worker in (one, two, three):
        worker.begin(leave)
    for worker in (one, two, three):
        worker.result()
    assert "Leaking" not in one.printed + two.printed + three.printed
    assert "Traceback" not in two.printed, "it is not reported as an error"


def wait_for_one_that_waits(to: str) -> None:
    record_wait(lambda: rpc.rpc_sync(to, by_own_future, (to,)))


def cancel_nested(to: str, other: str) -> None:
    call = rpc.rpc_async(to, wait_for_one_that_waits, (other,), timeout=0)
    within(LIMIT_S, lambda: rpc.rpc_sync(other, recorded_events) == ["waits"], "the last waits")
    call.cancel()
    ended = ["waits", "canceled", "cleaned up"]
    within(
        LIMIT_S,
        lambda: [rpc.rpc_sync(each, recorded_events) for each in (to, other)] == [ended, ended],
        "both were canceled",
    )


def record_text(text: str, rref: "rpc.RRef[int]") -> None:
    record(text)


def cancel_queued_call(to: str) -> list[bool]:
    """Cancel the second of three calls that wait for a slot."""
    rref = rpc.RRef(1)
    first = rpc.rpc_async(to, wait_until_released)
    queued = [rpc.rpc_async(to, record_text, (text, rref)) for text in ("a", "b", "c")]
    assert queued[1].cancel()
    return [not call.done() for call in (first, *queued)]


def results(to: str) -> list[str]:
    return list(rpc.rpc_sync(to, recorded_events))


def check_answered_calls_cannot_be_canceled(to: str) -> None:
    call = rpc.rpc_async(to, max, (1, 2))
    assert call.wait() == 2 and not call.cancel() and call.wait() == 2
    failed = rpc.rpc_async(to, max, ())
    with pytest.raises(TypeError):
        failed.wait()
    assert not failed.cancel()
    never = rpc.rpc_async(to, max, (1, 2), timeout=-2.0)
    assert not never.cancel()


class Thing:
    def wait(self) -> None:
        record_wait(unset.wait)

    @async_execution
    def later(self) -> "Future[None]":
        record("waits")
        return rpc.rpc_async("w2", wait_until_released).then(lambda done: record("canceled"))


def cancel_a_method(to: str, name: str) -> None:
    thing = rpc.remote(to, Thing)
    call = getattr(thing.rpc_async(timeout=0), name)()
    within(LIMIT_S, lambda: rpc.rpc_sync(to, recorded_events) == ["waits"], "it waits")
    assert call.cancel()
    last = "cleaned up" if name == "wait" else "canceled"
    within(LIMIT_S, lambda: rpc.rpc_sync(to, recorded_events)[-1] == last, "it was canceled")
    with pytest.raises(CancelledError):
        call.wait()


def cancel_in_asyncio(to: str) -> str:
    async def work() -> str:
        assert await rpc.rpc_async(to, max, (1, 2)) == 2
        both = await asyncio.gather(rpc.rpc_async(to, max, (3, 2)), rpc.rpc_async(to, min, (3, 2)))
        assert list(both) == [3, 2]
        with pytest.raises(TypeError):
            await rpc.rpc_async(to, max, ())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rpc.rpc_async(to, by_own_future, (to,), timeout=0), 0.2)
        call = rpc.rpc_async(to, wait_until_released)
        asyncio.get_running_loop().call_later(0.01, call.cancel)
        with pytest.raises(CancelledError):
            await call
        return "done"

    result = asyncio.run(work())
    within(
        LIMIT_S,
        lambda: rpc.rpc_sync(to, recorded_events) == ["waits", "canceled", "cleaned up"],
        "the call of the task was canceled",
    )
    return result


def test_calls_that_a_canceled_function_has_made_are_canceled(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3)
    one.do(cancel_nested, "w1", "w2")
    one.do(check_answered_calls_cannot_be_canceled, "w1")
    for name in ("wait", "later"):
        two.do(forget)
        one.do(cancel_a_method, "w1", name)
    two.do(forget)
    assert one.do(cancel_in_asyncio, "w1") == "done"
    three.do(release)
    two.do(release)
    for worker in (one, two, three):
        worker.begin(leave)
    for worker in (one, two, three):
        worker.result()


def test_canceled_call_that_has_not_started_never_starts_and_releases_its_references(real_workers: Workers) -> None:
    one, two = real_workers.group(2, num_worker_threads=1)
    assert one.do(cancel_queued_call, "w1") == [True, True, False, True]
    two.do(release)
    within(LIMIT_S, lambda: one.do(results, "w1") == ["a", "c"], "the others have run")
    within(LIMIT_S, lambda: one.do(num_owned) == 0, "the references in the calls were released")
    one.begin(leave)
    two.do(leave)
    one.result()


def answer_with_a_reference() -> "rpc.RRef[int]":
    wait_until_released()
    return rpc.RRef(3)


def time_out(to: str) -> None:
    with pytest.raises(TimeoutError):
        rpc.rpc_sync(to, answer_with_a_reference, timeout=0.05)


def test_reference_in_a_late_reply_is_released(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.do(time_out, "w1")
    two.do(release)
    one.do(rpc.rpc_sync, "w1", recorded_events)
    within(LIMIT_S, lambda: two.do(num_owned) == 0, "the value is freed")


def cancel_call_to_stopped_worker(to: str, stopped: str) -> None:
    """Cancel a call to a worker that waits for a stopped worker, so only the cancellation can wake it."""
    call = rpc.rpc_async(to, by_rpc_sync_without_limit, (stopped,), timeout=0)
    direct = rpc.rpc_async(stopped, wait_until_released, timeout=0)
    within(LIMIT_S, lambda: rpc.rpc_sync(to, recorded_events) == ["waits"], "it waits")
    print("ready", flush=True)
    within(LIMIT_S, released.is_set, "the last is stopped")
    assert direct.cancel() and call.cancel()
    with pytest.raises(CancelledError):
        direct.wait()
    within(LIMIT_S, lambda: "canceled" in rpc.rpc_sync(to, recorded_events), "it was canceled")


def by_stream(to: str) -> None:
    record_wait(lambda: list(rpc.stream(to, iter, ((1,),), timeout=0)))


def cancel_while_connecting(to: str, stopped: str) -> None:
    for function in (by_rpc_sync_without_limit, by_stream):
        rpc.rpc_sync(to, forget)
        call = rpc.rpc_async(to, function, (stopped,), timeout=0)
        within(LIMIT_S, lambda: rpc.rpc_sync(to, recorded_events) == ["waits"], "it connects")
        assert call.cancel()
        within(
            LIMIT_S, lambda: rpc.rpc_sync(to, recorded_events) == ["waits", "canceled", "cleaned up"], "it was canceled"
        )


def test_call_that_connects_to_a_stopped_worker_can_be_canceled(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3)
    three.send(signal.SIGSTOP)
    one.do(cancel_while_connecting, "w1", "w2")
    three.send(signal.SIGCONT)
    for worker in (one, two, three):
        worker.begin(leave)
    for worker in (one, two, three):
        worker.result()


def cancel_call_to_lost_worker(to: str) -> bool:
    call = rpc.rpc_async(to, wait_until_released, timeout=0)
    print("called", flush=True)
    with pytest.raises(WorkerLostError):
        call.wait()
    return call.cancel()


def test_call_to_a_stopped_or_lost_worker_can_be_canceled(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3)
    one.begin(cancel_call_to_stopped_worker, "w1", "w2")
    within(LIMIT_S, lambda: "ready" in one.printed, "both wait")
    three.send(signal.SIGSTOP)
    two.do(rpc.rpc_sync, "w0", release)
    one.result()
    three.send(signal.SIGCONT)
    two.begin(cancel_call_to_lost_worker, "w2")
    within(LIMIT_S, lambda: "called" in two.printed, "it waits")
    three.kill()
    assert two.result() is False


class Actor:
    def note(self, text: str, rref: "rpc.RRef[str]") -> None:
        record(text)

    def wait(self) -> None:
        record_wait(unset.wait)


def cancel_in_the_queue_of_an_actor(to: str) -> None:
    actor = rpc.remote(to, Actor, serial=True)
    first = actor.rpc_async(timeout=0).wait()
    queued = [actor.rpc_async(timeout=0).note(text, rpc.RRef(text)) for text in ("a", "b", "c")]
    within(LIMIT_S, lambda: rpc.rpc_sync(to, recorded_events) == ["waits"], "the first waits")
    assert queued[1].cancel() and first.cancel()
    queued[2].wait()
    assert rpc.rpc_sync(to, recorded_events) == ["waits", "canceled", "cleaned up", "a", "c"]


def test_canceled_call_of_an_actor_never_starts_or_lets_the_next_one_start(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    one.do(cancel_in_the_queue_of_an_actor, "w1")
    within(LIMIT_S, lambda: one.do(num_owned) == 0, "the references in the calls were released")
