"""Streams between real workers: order, ends from both sides, what is ahead, and what is left."""

import asyncio
import gc
import signal
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
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

# Any throughout: what users' functions take and return.

said: list[Any] = []
kept: list[Any] = []
free = threading.Event()


def told() -> list[Any]:
    return list(said)


def say(what: Any) -> None:
    said.append(what)


def forget() -> None:
    said.clear()
    free.clear()


def wait_until_free() -> None:
    free.wait(LIMIT_S)


def set_free() -> None:
    free.set()


def hears(at: str, *what: Any) -> None:
    """Soon this was said there, and nothing else."""
    within(LIMIT_S, lambda: rpc.rpc_sync(at, told) == list(what), f"{what} was said; it was {rpc.rpc_sync(at, told)}")


def count(up_to: int) -> Iterator[int]:
    try:
        yield from range(up_to)
    except GeneratorExit:
        said.append("closed")
        rpc.rpc_sync(rpc.get_worker_info(), say, ("cleaned up",))
        raise
    finally:
        said.append("over")


async def count_async(up_to: int) -> AsyncIterator[int]:
    try:
        for number in range(up_to):
            await asyncio.sleep(0)
            yield number
    finally:
        await rpc.rpc_async(rpc.get_worker_info(), say, ("over",))


async def busy_when_cancelled() -> AsyncIterator[int]:
    try:
        yield 0
        while True:
            while not rpc.cancelled():
                pass  # the loop has no time for what comes
            yield 1
    finally:
        await rpc.rpc_async(rpc.get_worker_info(), say, ("cleaned up",))


def fail_after(many: int) -> Iterator[int]:
    yield from range(many)
    raise LookupError("on purpose")


def slow() -> Iterator[int]:
    yield 1
    free.wait(LIMIT_S)
    yield 2


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
        said.append("over")


def no_iterator() -> int:
    return 3


async def no_async_iterator() -> int:
    return 3


def until_it_fails(stream: Iterable[Any]) -> tuple[list[Any], Exception]:
    """The items before the error, and that."""
    got: list[Any] = []
    try:
        got.extend(stream)
    except Exception as error:
        return got, error
    raise AssertionError(f"{stream} has not failed, but given {got}")


# -- what comes --------------------------------------------------------------------------------------------------------


class Data:
    def __init__(self, size: int) -> None:
        self.size = size

    def items(self) -> Iterable[int]:
        return range(self.size)


def read(to: str) -> None:
    assert list(rpc.stream(to, count, args=(1000,))) == list(range(1000))
    hears(to, "over")
    rpc.rpc_sync(to, forget)
    assert list(rpc.stream(to, count_async, (100,), window_items=3)) == list(range(100))
    hears(to, "over")
    rpc.rpc_sync(to, forget)
    assert list(rpc.stream(to, range, (3,))) == [0, 1, 2]
    assert list(rpc.stream(to, count, kwargs={"up_to": 0})) == []
    assert list(rpc.stream(to, count, (5,), window_items=1, window_bytes=1)) == [0, 1, 2, 3, 4]
    stream = rpc.stream(to, range, (2,))
    assert [next(stream), next(stream)] == [0, 1]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(stream)
    data = rpc.remote(to, Data, (4,))
    assert list(data.rpc_stream().items()) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="window_items must be a whole number of at least 1, got 0"):
        rpc.stream(to, range, (2,), window_items=0)
    with pytest.raises(ValueError, match="window_bytes must be a whole number of at least 1, got True"):
        rpc.stream(to, range, (2,), window_bytes=True)


def read_tensors(to: str) -> None:
    sums = [float(x.sum()) for x in rpc.stream(to, tensors, (20, 1 << 17))]  # through shared memory
    assert sums == [float(number << 17) for number in range(20)]
    small = list(rpc.stream(to, tensors, (50, 10)))
    assert [float(x[0]) for x in small] == list(range(50))
    small[0].add_(1)
    large = list(rpc.stream(to, tensors, (3, 1 << 20), window_bytes=1000))  # each is larger than the window
    assert [float(x[-1]) for x in large] == [0.0, 1.0, 2.0]


def read_references(to: str) -> None:
    assert [rref.to_here() for rref in rpc.stream(to, with_references, (5,))] == list(range(5))
    with rpc.stream(to, with_references, (100,)) as stream:
        next(stream)  # those that nobody takes are given back too
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
        with pytest.raises(NotSendableError, match="an item that lock_after_one yielded"):
            next(stream)
    hears(to, "over")
    rpc.rpc_sync(to, forget)
    for function in (no_iterator, no_async_iterator):
        with pytest.raises(TypeError, match=f"{function.__name__} was called as a stream"):
            next(rpc.stream(to, function))
    with pytest.raises(TypeError, match="missing 1 required"):
        next(rpc.stream(to, fail_after))
    with pytest.raises(RuntimeError, match="nobody"):
        rpc.stream("nobody", count, (1,))


def in_asyncio(to: str) -> None:
    async def work() -> list[list[int]]:
        async def read(function: Any) -> list[int]:
            return [item async for item in rpc.stream(to, function, (200,))]

        both = await asyncio.gather(read(count), read(count_async))
        async with rpc.stream(to, count_async, (10**9,)) as stream:
            assert await anext(stream) == 0
        for _ in range(3):
            async with rpc.stream(to, busy_when_cancelled) as stream:
                assert await anext(stream) == 0
        with pytest.raises(LookupError):
            async for _ in rpc.stream(to, fail_after, (2,)):
                pass
        waits = rpc.stream(to, slow, timeout=0)
        assert await anext(waits) == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(waits), 0.05)
        await rpc.rpc_async(to, set_free)
        assert await anext(waits) == 2, "who stopped waiting has lost no item"
        with pytest.raises(StopAsyncIteration):
            await anext(waits)
        return list(both)

    assert asyncio.run(work()) == [list(range(200))] * 2
    within(LIMIT_S, lambda: rpc.rpc_sync(to, told).count("over") == 3, "all generators have ended")
    within(LIMIT_S, lambda: rpc.rpc_sync(to, told).count("cleaned up") == 3, "undisturbed")
    rpc.rpc_sync(to, forget)


def test_items_come_in_order_whatever_they_are_and_errors_after_them(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    for work in (read, read_tensors, read_references, read_failures, in_asyncio):
        one.do(work, "w1")
        two.do(forget)
    two.do(read, "w1")  # of itself
    two.begin(leave)
    one.do(leave)
    two.result()
    assert "Leaking" not in one.printed + two.printed


def scaled(weight: torch.Tensor, many: int) -> Iterator[torch.Tensor]:
    for number in range(many):
        yield weight * (number + 1)


def read_with_gradients(to: str) -> list[float]:
    """Of all items, and of those that were taken."""
    weight = torch.tensor([2.0], requires_grad=True)
    found = []
    for many in (5, 3):
        with rpc.autograd.context() as context_id:
            with rpc.stream(to, scaled, (weight, 5)) as stream:
                items = [next(stream) for _ in range(many)]
            rpc.autograd.backward(context_id, [sum(items, torch.zeros(1)).sum()])
            found.append(rpc.autograd.get_gradients(context_id)[weight].item())
    return found


def test_gradients_go_through_the_items_that_were_taken(real_workers: Workers) -> None:
    one, _two = real_workers.group(2)
    assert one.do(read_with_gradients, "w1") == [15.0, 6.0]


# -- ends --------------------------------------------------------------------------------------------------------------


def leave_loops_early(to: str) -> None:
    ended = ("closed", "cleaned up", "over")
    for item in rpc.stream(to, count, (10**9,)):
        if item == 5:
            break
    hears(to, *ended)
    with rpc.stream(to, count, (10**9,)) as stream:
        assert next(stream) == 0
    hears(to, *ended, *ended)
    with pytest.raises(StopIteration):
        next(stream)
    stream = rpc.stream(to, count, (10**9,))
    next(stream)
    del stream
    hears(to, *ended * 3)
    ring: list[Any] = [rpc.stream(to, count, (10**9,))]
    ring.append(ring)
    next(ring[0])
    del ring
    gc.collect()
    within(LIMIT_S, lambda: rpc.rpc_sync(to, told).count("over") == 4, "a ring that was collected has ended its stream")
    rpc.rpc_sync(to, forget)


def wait_too_long(to: str) -> None:
    stream = rpc.stream(to, slow, timeout=0.1)
    assert next(stream) == 1
    for _ in range(2):  # who goes on does not take it for the end
        with pytest.raises(DeadlineExceeded, match="worker w1 sent no item of slow within 0"):
            next(stream)
    rpc.rpc_sync(to, set_free)


def only_there() -> None:
    raise ValueError("it cannot be made again")


class Unreadable:
    def __reduce__(self) -> tuple[Any, ...]:
        return only_there, ()


def with_one_unreadable() -> Iterator[Any]:
    yield 1
    yield Unreadable()
    yield 3


def read_the_unreadable(to: str) -> None:
    stream = rpc.stream(to, with_one_unreadable)
    assert next(stream) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="it cannot be made again"):
            next(stream)


def wait_and_yield(to: str) -> Iterator[int]:
    yield 1
    said.append("waits")
    try:
        rpc.rpc_sync(to, wait_until_free, timeout=0)
    except CallCancelled:
        said.append("heard")
        raise
    yield 2


def end_one_that_waits(to: str, other: str) -> None:
    stream = rpc.stream(to, wait_and_yield, (other,))
    assert next(stream) == 1
    hears(to, "waits")
    stream.close()
    hears(to, "waits", "heard")
    rpc.rpc_sync(to, forget)


def read_for_another(to: str) -> int:
    return sum(rpc.stream(to, slow, timeout=0))


def cancel_one_that_reads(to: str, other: str) -> None:
    """A stream is a wait, and it ends with the call that reads it."""
    call = rpc.rpc_async(to, read_for_another, (other,), timeout=0)
    within(LIMIT_S, lambda: rpc.rpc_sync(other, num_calls) > 1, "it reads")
    assert call.cancel()
    rpc.rpc_sync(other, set_free)
    within(LIMIT_S, lambda: rpc.rpc_sync(other, num_calls) == 1, "the stream has ended")
    with pytest.raises(CancelledError):
        call.wait()


def open_and_wait(to: str) -> None:
    said.append(rpc.stream(to, count, (10**9,)))
    assert next(said[0]) == 0
    with rpc.waiting():
        free.wait(LIMIT_S)


def cancel_one_that_has_a_stream(to: str, other: str) -> None:
    """Which somebody keeps: it ends with the call that opened it all the same."""
    call = rpc.rpc_async(to, open_and_wait, (other,), timeout=0)
    within(LIMIT_S, lambda: rpc.rpc_sync(other, num_calls) > 1, "it has a stream")
    within(LIMIT_S, lambda: rpc.rpc_sync(to, has_said), "it waits")
    assert call.cancel()
    within(LIMIT_S, lambda: rpc.rpc_sync(other, told)[-1:] == ["over"], "the generator has ended")


def has_said() -> bool:
    return bool(said)


def num_calls() -> int:
    """That run here, this one too."""
    return agents.current().server.num_open


def test_who_reads_no_further_ends_the_function(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3, num_worker_threads=1)
    one.do(leave_loops_early, "w1")
    one.do(wait_too_long, "w1")
    one.do(read_the_unreadable, "w1")
    two.do(forget)
    one.do(end_one_that_waits, "w1", "w2")
    three.do(set_free)
    three.do(forget)
    one.do(cancel_one_that_reads, "w1", "w2")
    one.do(cancel_one_that_has_a_stream, "w1", "w2")
    assert two.do(read_to_the_end)[1] == "CancelledError"
    for worker in (two, three):
        worker.do(set_free)
        worker.do(forget)
    for worker in (one, two, three):
        worker.begin(leave)
    for worker in (one, two, three):
        worker.result()
    assert "Traceback" not in two.printed


def begin_to_read(to: str) -> None:
    said.append(rpc.stream(to, count, (10**9,), window_items=10))
    assert next(said[0]) == 0


def read_to_the_end() -> tuple[int, str]:
    got, error = until_it_fails(said.pop())
    return len(got), type(error).__name__


def test_a_lost_producer_is_an_error_after_what_came_and_a_lost_reader_ends_the_function(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3)
    one.do(begin_to_read, "w1")
    three.do(begin_to_read, "w1")
    three.kill()
    within(LIMIT_S, lambda: two.do(told) == ["closed", "cleaned up", "over"], "the generator has ended")
    two.kill()
    many, error = one.do(read_to_the_end)
    assert many <= 10 and error == "WorkerLostError"
    one.do(leave)


def test_a_graceful_shutdown_ends_the_streams_of_the_program_and_their_functions(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.do(begin_to_read, "w1")
    two.begin(leave)
    one.do(leave)
    two.result()
    assert two.do(told)[:1] == ["closed"] and two.do(told)[-1] == "over"
    assert one.do(read_to_the_end) == (0, "ClosedError")


class Keeper:
    """Keeps a stream open after the call that opened it."""

    def begin(self, to: str) -> int:
        self.items = rpc.stream(to, count, (10**9,), window_items=10)
        return int(next(self.items))


def have_a_stream_kept(at: str, by: str) -> None:
    kept.append(rpc.remote(by, Keeper, serial=True))
    assert kept[0].rpc_sync().begin(at) == 0


def read_when_told(to: str, begun: Path, go_on: Path, got: Path) -> None:
    """One item ahead at most, and the reader waits."""
    with rpc.stream(to, count, (20,), window_items=1) as items:
        first = next(items)
        begun.touch()
        within(LIMIT_S, go_on.exists, "the others leave")
        got.write_text(f"{[first, *items]}")


def begin_to_read_when_told(to: str, *args: Any) -> None:
    kept.append(rpc.rpc_async(to, read_when_told, (rpc.get_worker_info().name, *args), timeout=0))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graceful_shutdown_ends_streams_that_no_call_reads_any_more(
    real_workers: Workers, tmp_path: Path, dynamic: bool
) -> None:
    one, two = real_workers.group(2, dynamic=dynamic)
    one.do(have_a_stream_kept, "w0", "w1")
    one.do(begin_to_read_when_told, "w1", *(tmp_path / name for name in ("begun", "go on", "got")))
    within(LIMIT_S, (tmp_path / "begun").exists, "it reads")
    two.begin(leave)
    one.begin(leave)
    (tmp_path / "go on").touch()
    one.result()
    two.result()
    assert (tmp_path / "got").read_text() == str(list(range(20))), "a call that reads is waited for"
    assert "closed" in one.do(told) and one.do(told)[-1] == "over"


def test_a_stopped_producer_is_waited_for_and_goes_on(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.do(begin_to_read, "w1")
    two.send(signal.SIGSTOP)
    one.begin(take, 1000)
    two.send(signal.SIGCONT)
    assert one.result() == 1000
    one.do(said_is_empty)


def take(many: int) -> Any:
    return [next(said[0]) for _ in range(many)][-1]


def said_is_empty() -> None:
    said.clear()


# -- memory and fairness -----------------------------------------------------------------------------------------------


def memory_mb(what: str = "VmHWM") -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(what)


def many_small(many: int) -> Iterator[bytes]:
    for number in range(many):
        said[:] = [number]
        yield bytes(1000)


def read_slowly(to: str, many: int, ahead: int) -> int:
    """The producer is never ahead by more than the window, as it says itself."""
    most = 0
    stream = rpc.stream(to, many_small, (many,), window_items=ahead)
    for taken, _item in enumerate(stream):
        if taken % (many // 20) == 0:
            most = max(most, rpc.rpc_sync(to, told)[0] - taken)
    return most


def begin_peak() -> float:
    Path("/proc/self/clear_refs").write_text("5")
    return memory_mb("VmRSS")


@pytest.mark.parametrize("many", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_slow_reader_makes_the_producer_wait(real_workers: Workers, many: int) -> None:
    workers = real_workers.group(2)
    before = [worker.do(begin_peak) for worker in workers]
    assert workers[0].do(read_slowly, "w1", many, 100) <= 100
    after = [worker.do(memory_mb) for worker in workers]
    assert max(peak - base for base, peak in zip(before, after, strict=True)) < 16.0


def call_beside_streams(to: str, many: int) -> Any:
    """Calls go on while more streams are open than there are places."""
    streams = [rpc.stream(to, count, (10**9,)) for _ in range(many)]
    first = [next(stream) for stream in streams]
    answers = [rpc.rpc_sync(to, max, (1, 2)) for _ in range(20)]
    return sum(first) + sum(answers)


def test_streams_do_not_keep_calls_from_their_places(real_workers: Workers) -> None:
    one, two = real_workers.group(2, num_worker_threads=2)
    assert one.do(call_beside_streams, "w1", 5) == 40
    within(LIMIT_S, lambda: two.do(told).count("over") == 5, "all have ended")
