"""Streams between real workers: order, ends of both sides, the window, and cleanup."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rpc_workers import LIMIT_S, Workers, leave, num_owned

import fanwise.rpc as rpc
from fanwise.base.errors import (
    CallCancelled,
    CancelledError,
    DeadlineExceeded,
    NotSendableError,
)
from fanwise.rpc import agent as agents
from fanwise.testing import within

recorded: list[Any] = []
retained: list[Any] = []
free = threading.Event()


def events() -> list[Any]:
    return list(recorded)


def record(event: Any) -> None:
    recorded.append(event)


def reset() -> None:
    recorded.clear()
    free.clear()


def wait_until_free() -> None:
    free.wait(LIMIT_S)


def set_free() -> None:
    free.set()


def expect_events(at: str, *event: Any) -> None:
    """Wait until exactly these events were recorded there."""
    within(
        LIMIT_S,
        lambda: rpc.rpc_sync(at, events) == list(event),
        f"{event} was recorded; it was {rpc.rpc_sync(at, events)}",
    )


def count(up_to: int) -> Iterator[int]:
    try:
        yield from range(up_to)
    except GeneratorExit:
        recorded.append("closed")
        rpc.rpc_sync(rpc.get_worker_info(), record, ("cleaned up",))
        raise
    finally:
        recorded.append("over")


def fail_after(many: int) -> Iterator[int]:
    yield from range(many)
    raise LookupError("on purpose")


def slow() -> Iterator[int]:
    yield 1
    with rpc.waiting():
        free.wait(LIMIT_S)
    yield 2


def wait_before_first() -> Iterator[int]:
    with rpc.waiting():
        free.wait(LIMIT_S)
    yield 1


def with_references(many: int) -> "Iterator[rpc.RRef[int]]":
    for number in range(many):
        yield rpc.RRef(number)


def tensors(many: int, size: int) -> Iterator[torch.Tensor]:
    for number in range(many):
        yield torch.full((size,), float(number))


def lock_after_one() -> Iterator[Any]:
    yield 1
    try:
        yield threading.Lock()
    finally:
        recorded.append("over")


def no_iterator() -> int:
    return 3


def until_it_fails(stream: Iterable[Any]) -> tuple[list[Any], Exception]:
    """Return the items before the error, and the error."""
    got: list[Any] = []
    try:
        got.extend(stream)
    except Exception as error:
        return got, error
    raise AssertionError(f"{stream} did not fail, and returned {got}")


# -- items --------------------------------------------------------------------------------------------------------


class Data:
    def __init__(self, size: int) -> None:
        self.size = size

    def items(self) -> Iterable[int]:
        return range(self.size)


def read(to: str) -> None:
    assert list(rpc.stream(to, count, args=(1000,))) == list(range(1000))
    expect_events(to, "over")
    rpc.rpc_sync(to, reset)
    assert list(rpc.stream(to, range, (3,))) == [0, 1, 2]
    assert list(rpc.stream(to, count, kwargs={"up_to": 0})) == []
    assert list(rpc.stream(to, count, (5,), window=1)) == [0, 1, 2, 3, 4]
    stream = rpc.stream(to, range, (2,))
    assert [next(stream), next(stream)] == [0, 1]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(stream)
    data = rpc.remote(to, Data, (4,))
    assert list(data.rpc_stream().items()) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="window must be a whole number of at least 1, got 0"):
        rpc.stream(to, range, (2,), window=0)
    step = 3
    assert list(rpc.stream(to, lambda up_to: (step * number for number in range(up_to)), (3,))) == [0, 3, 6]


def read_tensors(to: str) -> None:
    sums = [float(x.sum()) for x in rpc.stream(to, tensors, (20, 1 << 17))]  # through shared memory
    assert sums == [float(number << 17) for number in range(20)]
    small = list(rpc.stream(to, tensors, (50, 10)))
    assert [float(x[0]) for x in small] == list(range(50))
    small[0].add_(1)


def read_references(to: str) -> None:
    assert [rref.to_here() for rref in rpc.stream(to, with_references, (5,))] == list(range(5))
    with rpc.stream(to, with_references, (100,)) as stream:
        next(stream)  # unread references are released too
    del stream
    gc.collect()
    within(LIMIT_S, lambda: rpc.rpc_sync(to, num_owned) == 0, "no reference is left")


def read_failures(to: str) -> None:
    got, error = until_it_fails(rpc.stream(to, fail_after, (70,)))
    assert got == list(range(70)) and type(error) is LookupError
    assert "in fail_after" in "".join(error.__notes__)
    stream = rpc.stream(to, lock_after_one)
    assert next(stream) == 1
    for _ in range(2):
        with pytest.raises(NotSendableError, match="the next item of RRef"):
            next(stream)
    expect_events(to, "over")
    rpc.rpc_sync(to, reset)
    with pytest.raises(TypeError, match="no_iterator was called as a stream but returned int"):
        next(rpc.stream(to, no_iterator))
    with pytest.raises(TypeError, match="missing 1 required"):
        next(rpc.stream(to, fail_after))
    with pytest.raises(RuntimeError, match="nobody"):
        rpc.stream("nobody", count, (1,))


def in_asyncio(to: str) -> None:
    async def work() -> list[list[int]]:
        async def read(function: Any) -> list[int]:
            return [item async for item in rpc.stream(to, function, (200,))]

        both = await asyncio.gather(read(count), read(count))
        async with rpc.stream(to, count, (10**9,)) as stream:
            assert await anext(stream) == 0
        with pytest.raises(LookupError):
            async for _ in rpc.stream(to, fail_after, (2,)):
                pass
        waits = rpc.stream(to, slow, timeout=0)
        assert await anext(waits) == 1
        while (await rpc.rpc_async(to, events)).count("over") < 3:
            pass  # all other generators end
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(waits), 0.05)
        await rpc.rpc_async(to, set_free)
        assert await anext(waits) == 2, "canceling the wait loses no item"
        with pytest.raises(StopAsyncIteration):
            await anext(waits)
        await rpc.rpc_async(to, reset)
        with pytest.raises(DeadlineExceeded):
            await anext(rpc.stream(to, wait_before_first, timeout=0.05))
        await rpc.rpc_async(to, set_free)
        return list(both)

    assert asyncio.run(work()) == [list(range(200))] * 2


@pytest.mark.parametrize("work", [read, read_tensors, read_references, read_failures, in_asyncio])
@pytest.mark.parametrize("to", ["w1", "w0"])
def test_items_of_every_kind_arrive_in_order_and_errors_after_them(
    real_workers: Workers, work: Callable[[str], None], to: str
) -> None:
    one, two = real_workers.group(2)
    one.do(work, to)
    two.begin(leave)
    one.do(leave)
    two.result()
    assert "Leaking" not in one.printed + two.printed


def scaled(weight: torch.Tensor, many: int) -> Iterator[torch.Tensor]:
    for number in range(many):
        yield weight * (number + 1)


def read_with_gradients(to: str) -> list[float]:
    """Return the gradients of all items, and of the consumed ones."""
    weight = torch.tensor([2.0], requires_grad=True)
    gradients = []
    for many in (5, 3):
        with rpc.autograd.context() as context_id:
            with rpc.stream(to, scaled, (weight, 5)) as stream:
                items = [next(stream) for _ in range(many)]
            rpc.autograd.backward(context_id, [sum(items, torch.zeros(1)).sum()])
            gradients.append(rpc.autograd.get_gradients(context_id)[weight].item())
    return gradients


def test_gradients_flow_through_consumed_items(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    assert one.do(read_with_gradients, "w1") == [15.0, 6.0]


# -- ends --------------------------------------------------------------------------------------------------------------


def leave_loops_early(to: str) -> None:
    ended = ("closed", "cleaned up", "over")
    for item in rpc.stream(to, count, (10**9,)):
        if item == 5:
            break
    expect_events(to, *ended)
    with rpc.stream(to, count, (10**9,)) as stream:
        assert next(stream) == 0
    expect_events(to, *ended, *ended)
    with pytest.raises(StopIteration):
        next(stream)
    stream = rpc.stream(to, count, (10**9,))
    next(stream)
    del stream
    expect_events(to, *ended * 3)
    ring: list[Any] = [rpc.stream(to, count, (10**9,))]
    ring.append(ring)
    next(ring[0])
    del ring
    gc.collect()
    within(LIMIT_S, lambda: rpc.rpc_sync(to, events).count("over") == 4, "a collected cycle has ended its stream")
    rpc.rpc_sync(to, reset)


def wait_too_long(to: str) -> None:
    stream = rpc.stream(to, slow, timeout=0.1)
    assert next(stream) == 1
    for _ in range(2):  # not StopIteration
        with pytest.raises(DeadlineExceeded, match="worker w1 sent no item of slow within 0"):
            next(stream)
    rpc.rpc_sync(to, set_free)


def fail_to_unpickle() -> None:
    raise ValueError("cannot be unpickled")


class Unreadable:
    def __reduce__(self) -> tuple[Any, ...]:
        return fail_to_unpickle, ()


def with_one_unreadable() -> Iterator[Any]:
    yield 1
    yield Unreadable()
    yield 3


def read_the_unreadable(to: str) -> None:
    stream = rpc.stream(to, with_one_unreadable)
    assert next(stream) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be unpickled"):
            next(stream)


def wait_and_yield(to: str) -> Iterator[int]:
    yield 1
    recorded.append("waits")
    try:
        rpc.rpc_sync(to, wait_until_free, timeout=0)
    except CallCancelled:
        recorded.append("heard")
        raise
    yield 2


def end_one_that_waits(to: str, other: str) -> None:
    stream = rpc.stream(to, wait_and_yield, (other,))
    assert next(stream) == 1
    expect_events(to, "waits")
    stream.close()
    expect_events(to, "waits", "heard")
    rpc.rpc_sync(to, reset)


def read_for_another(to: str) -> int:
    return sum(rpc.stream(to, slow, timeout=0))


def cancel_one_that_reads(to: str, other: str) -> None:
    """A stream ends with the call that reads it."""
    call = rpc.rpc_async(to, read_for_another, (other,), timeout=0)
    within(LIMIT_S, lambda: rpc.rpc_sync(other, num_calls) > 1, "it reads")
    assert call.cancel()
    rpc.rpc_sync(other, set_free)
    within(LIMIT_S, lambda: rpc.rpc_sync(other, num_calls) == 1, "the stream has ended")
    with pytest.raises(CancelledError):
        call.wait()


def num_calls() -> int:
    """Return the number of calls that run here, including this one."""
    return agents.current().server.num_open


def test_a_consumer_that_stops_reading_ends_the_function(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3, num_worker_threads=1)
    one.do(leave_loops_early, "w1")
    one.do(wait_too_long, "w1")
    one.do(read_the_unreadable, "w1")
    two.do(reset)
    one.do(end_one_that_waits, "w1", "w2")
    three.do(set_free)
    three.do(reset)
    one.do(cancel_one_that_reads, "w1", "w2")
    for worker in (two, three):
        worker.do(set_free)
        worker.do(reset)
    for worker in (one, two, three):
        worker.begin(leave)
    for worker in (one, two, three):
        worker.result()
    assert "Traceback" not in two.printed


def begin_to_read(to: str) -> None:
    recorded.append(rpc.stream(to, count, (10**9,), window=10))
    assert next(recorded[0]) == 0


def read_to_the_end() -> tuple[int, str]:
    got, error = until_it_fails(recorded.pop())
    return len(got), type(error).__name__


def test_a_lost_producer_is_an_error_after_the_received_items_and_a_lost_consumer_ends_the_function(
    real_workers: Workers,
) -> None:
    one, two, three = real_workers.group(3)
    one.do(begin_to_read, "w1")
    three.do(begin_to_read, "w1")
    three.kill()
    within(LIMIT_S, lambda: two.do(events) == ["closed", "cleaned up", "over"], "the generator has ended")
    two.kill()
    assert one.do(read_to_the_end) == (10, "WorkerLostError")
    one.do(leave)


def test_a_graceful_shutdown_ends_the_streams_of_the_program_and_their_functions(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.do(begin_to_read, "w1")
    two.begin(leave)
    one.do(leave)
    two.result()
    assert two.do(events)[:1] == ["closed"] and two.do(events)[-1] == "over"
    assert one.do(read_to_the_end) == (10, "ClosedError"), "items that had arrived may still be read"


class Keeper:
    """Keeps a stream open after the call that opened it."""

    def begin(self, to: str) -> int:
        self.items = rpc.stream(to, count, (10**9,), window=10)
        return int(next(self.items))


def have_a_stream_kept(at: str, by: str) -> None:
    retained.append(rpc.remote(by, Keeper, serial=True))
    assert retained[0].rpc_sync().begin(at) == 0


def read_on_signal(to: str, begun: Path, resume: Path, got: Path) -> None:
    """Read with a window of one item, and wait before the second."""
    with rpc.stream(to, count, (20,), window=1) as items:
        first = next(items)
        begun.touch()
        within(LIMIT_S, resume.exists, "the others leave")
        got.write_text(f"{[first, *items]}")


def begin_to_read_on_signal(to: str, *args: Any) -> None:
    retained.append(rpc.rpc_async(to, read_on_signal, (rpc.get_worker_info().name, *args), timeout=0))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graceful_shutdown_ends_streams_that_no_call_reads_any_more(
    real_workers: Workers, tmp_path: Path, dynamic: bool
) -> None:
    one, two = real_workers.group(2, dynamic=dynamic)
    one.do(have_a_stream_kept, "w0", "w1")
    one.do(begin_to_read_on_signal, "w1", *(tmp_path / name for name in ("begun", "go on", "got")))
    within(LIMIT_S, (tmp_path / "begun").exists, "it reads")
    two.begin(leave)
    one.begin(leave)
    (tmp_path / "go on").touch()
    one.result()
    two.result()
    assert (tmp_path / "got").read_text() == str(list(range(20))), "a call that reads is waited for"
    assert "closed" in one.do(events) and one.do(events)[-1] == "over"


# -- the window and fairness ------------------------------------------------------------------------------------------


def many_small(many: int) -> Iterator[bytes]:
    for number in range(many):
        recorded[:] = [number]
        yield bytes(1000)


def read_slowly(to: str, many: int, ahead: int) -> int:
    """Return how many items the producer was ahead, at most."""
    most = 0
    stream = rpc.stream(to, many_small, (many,), window=ahead)
    for num_read, _item in enumerate(stream):
        if num_read % (many // 20) == 0:
            most = max(most, rpc.rpc_sync(to, events)[0] - num_read)
    return most


def test_the_producer_is_at_most_a_window_ahead(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    assert one.do(read_slowly, "w1", 2_000, 100) <= 100


def call_beside_streams(to: str, many: int) -> Any:
    """Call while more streams are open than there are slots."""
    streams = [rpc.stream(to, count, (10**9,)) for _ in range(many)]
    first = [next(stream) for stream in streams]
    answers = [rpc.rpc_sync(to, max, (1, 2)) for _ in range(20)]
    return sum(first) + sum(answers)


def test_streams_use_no_slots_of_calls(real_workers: Workers) -> None:
    one, two = real_workers.group(2, num_worker_threads=2)
    assert one.do(call_beside_streams, "w1", 5) == 40
    within(LIMIT_S, lambda: two.do(events).count("over") == 5, "all have ended")
