"""The first call to a worker, which needs a link: nobody waits for it but who asked to, and nothing of it is lost.

The worker that is called holds its interpreter, so that none of its threads runs and no link to it can be made, until
the test lets it go.
"""

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rpc_workers import LIMIT_S, Worker, Workers, all_do, leave, names, num_owned

import fanwise.rpc as rpc
from fanwise.base.errors import ClosedError, DeadlineExceeded, OwnerLostError, WorkerLostError
from fanwise.rpc import agent as agents
from fanwise.rpc import autograd
from fanwise.testing import within

# Any throughout: what users' functions take and return.
KEPT: list[Any] = []

# -- functions that run on workers -------------------------------------------------------------------------------------


def pid() -> int:
    return os.getpid()


def call(to: str, function: Any, *args: object, timeout_s: float = 0) -> Any:
    return rpc.rpc_sync(to, function, args, timeout=timeout_s)


def hold_the_interpreter(begun: Path, go: Path) -> str:
    """No other thread of this process runs from when `begun` is written until `go` is."""
    waits, marks = os.open(go, os.O_RDWR), os.open(begun, os.O_CREAT | os.O_WRONLY)
    libc, buffer, interval_s = ctypes.PyDLL(None), ctypes.create_string_buffer(1), sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    libc.write(marks, b".", 1)
    libc.read(waits, buffer, 1)
    sys.setswitchinterval(interval_s)
    return "done"


def begin(way: str, to: str, function: Any, *args: object, timeout_s: float = 0) -> bool:
    """Return True if it is done already."""
    if way == "rpc_async":
        KEPT.append(future := rpc.rpc_async(to, function, args, timeout=timeout_s))
        return future.done()
    KEPT.append(rref := rpc.remote(to, function, args, timeout=timeout_s))
    return rref._get_future().done()


def end() -> Any:
    last = KEPT.pop()
    return last.to_here(timeout=0) if isinstance(last, rpc.RRef) else last.wait()


# -- the test's side -----------------------------------------------------------------------------------------------


class Held:
    """A worker that holds its interpreter."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        self._worker = worker
        self._go = folder / "go"
        self._is_over = False
        os.mkfifo(self._go)
        worker.begin(hold_the_interpreter, folder / "begun", self._go)
        within(LIMIT_S, lambda: (folder / "begun").exists() and (folder / "begun").read_bytes(), "it holds it")

    def resume(self) -> None:
        self._is_over = True
        with open(os.open(self._go, os.O_RDWR), "wb") as go:
            go.write(b".")
            go.flush()
            assert self._worker.result() == "done"

    def kill(self) -> None:
        self._is_over = True
        self._worker.kill()


@pytest.fixture
def hold_link(tmp_path: Path) -> Callable[[Worker], Held]:
    return lambda worker: Held(worker, tmp_path)


Hold = Callable[[Worker], Held]
WAYS = ["rpc_async", "remote"]


@pytest.mark.parametrize("way", WAYS)
def test_who_does_not_wait_goes_on_while_the_link_is_made(real_workers: Workers, hold_link: Hold, way: str) -> None:
    three = real_workers.group(3)
    busy = hold_link(three[1])
    assert not three[0].do(begin, way, "w1", pid)
    assert three[0].do(call, "w2", pid) == three[2].pid, "calls to others leave meanwhile"
    three[0].do(begin, "rpc_async", "w2", pid)
    assert three[0].do(end) == three[2].pid
    busy.resume()
    assert three[0].do(end) == three[1].pid
    all_do(three, leave)


def begin_here(way: str) -> bool:
    """Return True if the first call to this worker itself was sent when `rpc_async` returns."""
    connections, me = agents.current().connections, agents.current().info
    assert connections.get_open(me.id) is None
    begin(way, me.name, pid)
    return connections.get_open(me.id) is not None


@pytest.mark.parametrize("way", WAYS)
def test_the_first_call_to_oneself_waits_for_nothing(real_workers: Workers, way: str) -> None:
    two = real_workers.group(2)
    assert two[0].do(begin_here, way)
    assert two[0].do(end) == two[0].pid


def change_after_the_call(to: str) -> Any:
    tensor, array = torch.ones(100_000), torch.ones(100_000).numpy()
    KEPT.append(rpc.rpc_async(to, sums, (tensor, array, small := torch.ones(3)), timeout=0))
    for changed in (tensor, array, small):
        changed[:] = 0


def sums(*values: Any) -> list[float]:
    return [float(value.sum()) for value in values]


def test_what_is_changed_after_the_call_arrives_as_it_was(real_workers: Workers, hold_link: Hold) -> None:
    two = real_workers.group(2)
    busy = hold_link(two[1])
    two[0].do(change_after_the_call, "w1")
    busy.resume()
    assert two[0].do(end) == [100_000.0, 100_000.0, 3.0]


def collect_all(to: str) -> list[int]:
    futures = [rpc.rpc_async(to, echo, (number,), timeout=0) for number in range(100)]
    doubled = [future.then(lambda done: rpc.rpc_sync(to, echo, (done.value() * 2,))) for future in futures]
    KEPT.append(torch.futures.collect_all(doubled).then(lambda done: [future.value() for future in done.value()]))
    return []


def echo(value: Any) -> Any:
    return value


def test_many_calls_wait_for_one_link_and_their_callbacks_may_call_there_again(
    real_workers: Workers, hold_link: Hold
) -> None:
    two = real_workers.group(2)
    busy = hold_link(two[1])
    two[0].do(collect_all, "w1")
    busy.resume()
    assert two[0].do(end) == [2 * number for number in range(100)]


# -- when no link can be made --------------------------------------------------------------------------------------


def test_its_time_runs_out_while_it_waits_for_the_link(real_workers: Workers, hold_link: Hold) -> None:
    two = real_workers.group(2)
    busy = hold_link(two[1])
    two[0].do(begin, "rpc_async", "w1", pid)
    two[0].do(begin, "rpc_async", "w1", pid, timeout_s=0.2)
    text = r"RPC ran for more than set timeout \(200 ms\).*worker w1 has not answered"
    with pytest.raises(DeadlineExceeded, match=text):
        two[0].do(end)
    with pytest.raises(DeadlineExceeded, match=text):
        two[0].do(call, "w1", pid, timeout_s=0.2)
    two[0].do(begin, "remote", "w1", pid, timeout_s=0.2)
    with pytest.raises(RuntimeError, match=r"RRef creation via rpc\.remote"):
        two[0].do(end_when_given_up)
    busy.resume()
    assert two[0].do(end) == two[1].pid
    all_do(two, leave)


def end_when_given_up() -> Any:
    """A reference whose creation has failed says so at once."""
    within(LIMIT_S, lambda: KEPT[-1]._user.error is not None, "the creation has failed")
    return end()


@pytest.mark.parametrize("way", WAYS)
def test_its_callee_is_killed_while_it_waits_for_the_link(real_workers: Workers, hold_link: Hold, way: str) -> None:
    three = real_workers.group(3)
    busy = hold_link(three[1])
    three[0].do(begin, way, "w1", pid)
    busy.kill()
    with pytest.raises(WorkerLostError, match="w1") as caught:
        three[0].do(end)
    assert isinstance(caught.value, OwnerLostError) == (way == "remote")
    all_do([three[0], three[2]], leave)


def leave_at_once() -> str:
    waiting = threading.Thread(target=lambda: results.append(error_of(KEPT[-1].wait)))
    results: list[str] = []
    waiting.start()
    rpc.shutdown(graceful=False)
    waiting.join(LIMIT_S)
    return results[0]


def error_of(function: Callable[[], object]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_this_worker_leaves_while_it_waits_for_the_link(real_workers: Workers, hold_link: Hold) -> None:
    two = real_workers.group(2)
    busy = hold_link(two[1])
    two[0].do(begin, "rpc_async", "w1", pid)
    error = two[0].do(leave_at_once)
    assert error.startswith(ClosedError.__name__) and "RPC was shut down in this process" in error
    busy.resume()


def begin_and_leave(to: str, mark: Path) -> None:
    rpc.rpc_async(to, touch, (mark,), timeout=0)
    leave()


def touch(mark: Path) -> None:
    mark.touch()


def test_a_graceful_shutdown_waits_for_calls_that_wait_for_their_links(
    real_workers: Workers, hold_link: Hold, tmp_path: Path
) -> None:
    two = real_workers.group(2, dynamic=True)
    busy = hold_link(two[1])
    two[0].begin(begin_and_leave, "w1", tmp_path / "mark")
    busy.resume()
    two[0].result()
    assert (tmp_path / "mark").exists()
    two[1].do(leave)


# -- what goes with it ---------------------------------------------------------------------------------------------


def begin_with_a_reference(to: str, timeout_s: float) -> None:
    rref = rpc.RRef(torch.ones(3))
    KEPT.append(rpc.rpc_async(to, value_of, (rref,), timeout=timeout_s))


def value_of(rref: Any) -> float:
    return float(rref.to_here().sum())


def test_a_reference_in_a_call_that_never_left_is_given_back(real_workers: Workers, hold_link: Hold) -> None:
    two = real_workers.group(2)
    busy = hold_link(two[1])
    two[0].do(begin_with_a_reference, "w1", 0.2)
    with pytest.raises(DeadlineExceeded):
        two[0].do(end)
    within(LIMIT_S, lambda: two[0].do(num_owned) == 0, "the value was freed")
    busy.resume()


def call_in_vain_and_go_back(to: str) -> Iterator[float]:
    with autograd.context() as context_id:
        x = torch.ones(3, requires_grad=True)
        with contextlib.suppress(DeadlineExceeded):
            rpc.rpc_async(to, torch.add, (x, 1), timeout=0.2).wait()
        yield 0.0
        autograd.backward(context_id, [(x * 2).sum()])
        yield float(autograd.get_gradients(context_id)[x].sum())


def step(to: str) -> float:
    if not KEPT:
        KEPT.append(call_in_vain_and_go_back(to))
    return float(next(KEPT[0]))


def test_a_call_that_never_left_takes_no_part_in_a_backward_pass(real_workers: Workers, hold_link: Hold) -> None:
    three = real_workers.group(3)
    busy = hold_link(three[1])
    three[0].do(step, "w1")
    busy.kill()
    within(LIMIT_S, lambda: three[0].do(names) == ["w0", "w2"], "its death is known")
    assert three[0].do(step, "w1") == 6.0
