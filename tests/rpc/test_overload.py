"""Tier 4: more calls than a worker can run. Memory and threads are bounded, calls are answered or fail in time."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from rpc_workers import LIMIT_S, Worker, Workers, all_do, leave

import fanwise.rpc as rpc
from fanwise.base.errors import ClosedError, DeadlineExceeded, WindowFullError, WorkerLostError
from fanwise.links.credits import OVERDRAFT, WINDOW_MAX
from fanwise.rpc import agent as agents
from fanwise.testing import within

# Any throughout: what users' functions take and return.

THREADS = 2
FLOATS = 25_000  # 100 kB
MOST_MB = 48  # of 100 MB that are sent

free = threading.Event()
most_threads = 0


def count_threads() -> None:
    global most_threads
    most_threads = max(most_threads, threading.active_count())


def be_busy() -> None:
    free.wait(LIMIT_S)


def set_free() -> None:
    free.set()


def size_of(x: torch.Tensor) -> int:
    count_threads()
    return x.numel()


def begin() -> tuple[float, int]:
    """Reset the peak. Return the memory in MB and the number of threads."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_mb("VmRSS"), threading.active_count()


def memory_mb(field: str = "VmHWM") -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


def end() -> tuple[float, int]:
    return memory_mb(), most_threads


def occupy(to: str) -> None:
    """All places of `to` are taken until it is `free`."""
    for _ in range(THREADS):
        rpc.rpc_async(to, be_busy, timeout=0)


def flood(to: str, number: int) -> int:
    calls = [rpc.rpc_async(to, size_of, (torch.full((FLOATS,), float(i)),), timeout=0) for i in range(number)]
    return sum(call.wait() == FLOATS for call in calls)


def fill(to: str) -> None:
    """Nothing more can be sent to `to` until it is free."""
    rpc.rpc_async(to, size_of, (torch.zeros(WINDOW_MAX // 4),), timeout=0)


def is_waiting_for_room(to: str) -> bool:
    link = agents.current().connections.get_open(agents.current().worker(to).id)
    return link is not None and link._calls.spending.num_waiting > 0


@pytest.fixture
def busy(real_workers: Workers) -> list[Worker]:
    """Two of three call the first one, whose places are all taken."""
    workers = real_workers.group(3, num_worker_threads=THREADS)
    for worker in workers[1:]:
        worker.do(rpc.rpc_sync, "w0", max, (1, 2))
    workers[1].do(occupy, "w0")
    return workers


def test_memory_and_threads_are_bounded_while_a_worker_is_busy_and_all_calls_are_answered(busy: list[Worker]) -> None:
    before = all_do(busy, begin)
    for worker in busy[1:]:
        worker.begin(flood, "w0", 500)
    within(LIMIT_S, lambda: busy[0].do(memory_mb) - before[0][0] > 6.0, "calls have arrived")
    busy[0].do(set_free)
    assert [worker.result() for worker in busy[1:]] == [500, 500]
    after = all_do(busy, end)
    assert max(peak - base for (base, _), (peak, _) in zip(before, after, strict=True)) < MOST_MB
    assert after[0][1] <= before[0][1] + THREADS + 4, "two fixed ones, and few that rest"
    all_do(busy, leave)


def fail_in_time(to: str) -> tuple[list[str], bool]:
    fill(to)
    rref = rpc.RRef([1])
    future = rpc.rpc_async(to, len, (rref,), timeout=0.1)
    assert future.done(), "it waited in rpc_async, and not longer"
    made = rpc.remote(to, len, (rref,), timeout=0.1)
    texts = []
    for wait in (future.wait, lambda: rpc.rpc_sync(to, len, (rref,), timeout=0.1), made.to_here):
        with pytest.raises(DeadlineExceeded) as raised:
            wait()
        texts.append(str(raised.value))
    return texts, is_waiting_for_room(to)


def has_forks() -> bool:
    return agents.current().references.debug_info()["num_forks"] != "0"


def test_a_call_for_which_there_is_no_room_in_time_fails_as_any_other_and_leaves_nothing(busy: list[Worker]) -> None:
    texts, is_waiting = busy[1].do(fail_in_time, "w0")
    assert all("RPC ran for more than set timeout (100 ms)" in text for text in texts[:2]) and not is_waiting
    within(LIMIT_S, lambda: not busy[1].do(has_forks), "the references in its arguments are given back")
    busy[0].do(set_free)
    assert busy[1].do(rpc.rpc_sync, "w0", max, (1, 2)) == 2
    all_do(busy, leave)


def wait_for_room(to: str) -> str:
    try:
        fill(to)  # may itself wait for a moment
        rpc.rpc_async(to, max, (1, 2), timeout=0).wait()
    except (ClosedError, WorkerLostError) as error:
        return type(error).__name__
    return "answered"


notified: list[str] = []


def wait_in_a_thread(to: str) -> None:
    threading.Thread(target=lambda: notified.append(wait_for_room(to)), daemon=True).start()


def leave_at_once() -> list[str]:
    rpc.shutdown(graceful=False)
    within(LIMIT_S, lambda: notified, "the waiting thread was notified")
    return notified


def what_was_heard() -> list[str]:
    return notified


def test_who_waits_for_room_hears_of_a_shutdown_and_of_a_death(busy: list[Worker]) -> None:
    for worker in busy[1:]:
        worker.do(wait_in_a_thread, "w0")
        within(LIMIT_S, lambda worker=worker: worker.do(is_waiting_for_room, "w0"), "it waits")  # type: ignore[misc]
    assert busy[1].do(leave_at_once)[0] in ("ClosedError", "WorkerLostError"), (
        "whether it or the other ends the link first"
    )
    busy[0].kill()
    within(LIMIT_S, lambda: busy[2].do(what_was_heard) == ["WorkerLostError"], "it heard of the death")
    busy[2].do(rpc.shutdown, graceful=False)


def test_a_function_that_waits_for_room_lends_its_place(busy: list[Worker]) -> None:
    busy[2].do(call_without_waiting, "w1", wait_for_room, THREADS + 1)
    within(LIMIT_S, lambda: busy[1].do(is_waiting_for_room, "w0"), "they wait")
    assert busy[2].do(rpc.rpc_sync, "w1", max, (1, 2)) == 2
    busy[0].do(set_free)
    all_do(busy, leave)


def call_without_waiting(to: str, function: Callable[..., object], number: int) -> None:
    for _ in range(number):
        rpc.rpc_async(to, function, ("w0",), timeout=0)


def call_from_a_thread_that_reads(to: str) -> tuple[int, str]:
    """Return how many calls a callback on a reading thread could send, and the error of the next."""
    sent, texts, done, me = 0, "", threading.Event(), threading.get_ident()

    def ask() -> None:
        agents.current().request(agents.current().worker(to).id, "devices").add_done_callback(call)

    def call(_: object) -> None:
        nonlocal sent, texts
        if threading.get_ident() == me:  # the answer was here before the callback, and this thread may wait
            ask()
            return
        try:
            while sent < 4 * WINDOW_MAX:
                rpc.rpc_async(to, size_of, (torch.zeros(FLOATS),), timeout=0)
                sent += 4 * FLOATS
        except WindowFullError as error:
            texts = str(error)
        finally:
            done.set()

    ask()
    assert done.wait(LIMIT_S)
    return sent, texts


def test_a_thread_that_reads_answers_does_not_wait_and_is_told_what_to_do(busy: list[Worker]) -> None:
    sent, texts = busy[1].do(call_from_a_thread_that_reads, "w0")
    assert 0 < sent <= WINDOW_MAX + OVERDRAFT
    assert "Call from a thread of your own, or from a callback of a call's future" in texts
    busy[0].do(set_free)
    all_do(busy, leave)


def call_before_there_is_a_link(to: str) -> list[bool]:
    """Return which calls had failed when rpc_async returned. The first two keep their room."""
    calls = []
    for i in range(5):
        x = torch.full((FLOATS,), float(i))
        calls.append(rpc.rpc_async(to, size_of, (x,), timeout=0 if i < 2 else 0.3))
    waited = [call.done() for call in calls]
    for call in calls[:2]:
        assert call.cancel()
    for call in calls[2:]:
        with pytest.raises(DeadlineExceeded, match="RPC ran for more than set timeout"):
            call.wait()
    return waited


def test_few_calls_wait_for_their_link_without_the_caller_and_the_rest_with_it(busy: list[Worker]) -> None:
    busy[2].send(signal.SIGSTOP)
    assert busy[1].do(call_before_there_is_a_link, "w2") == [False] * 2 + [True] * 3
    busy[2].send(signal.SIGCONT)
    assert busy[1].do(rpc.rpc_sync, "w2", max, (1, 2)) == 2
    busy[0].do(set_free)
    all_do(busy, leave)


@contextlib.contextmanager
def interrupting(mark: Callable[[], bool]) -> Iterator[None]:
    """Press Ctrl-C in this process when `mark` holds; the body hears of it."""

    def press() -> None:
        within(LIMIT_S, mark, "it waits for room")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        yield


def be_interrupted_while_waiting_for_room(to: str) -> None:
    fill(to)
    rref = rpc.RRef([1])
    for call in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
        with interrupting(lambda: is_waiting_for_room(to)):
            call(to, len, (rref,), timeout=0)


def test_a_call_interrupted_while_it_waits_for_room_leaves_nothing(busy: list[Worker]) -> None:
    busy[1].do(be_interrupted_while_waiting_for_room, "w0")
    within(LIMIT_S, lambda: not busy[1].do(has_forks), "the references in its arguments are given back")
    busy[0].do(set_free)
    assert busy[1].do(rpc.rpc_sync, "w0", max, (1, 2)) == 2
    all_do(busy, leave)
