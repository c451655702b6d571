"""Ctrl-C ends every wait of the main thread at once, and other waits continue."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rpc_workers import LIMIT_S, Worker, Workers, call, errors_of_each_way, join, leave, mark_and_wait, pid

import fanwise.rpc as rpc
from fanwise.rpc import agent as agents
from fanwise.rpc import autograd
from fanwise.testing import within

# Any throughout: arguments and results of users' functions.


class WaitingBackward(torch.autograd.Function):
    """The identity, whose backward pass waits for the test."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mark: Path, resume: Path) -> torch.Tensor:
        ctx.files = mark, resume
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        mark_and_wait(*ctx.files)
        return grads[0], None, None


def apply_waiting_backward(x: torch.Tensor, mark: Path, resume: Path) -> torch.Tensor:
    return WaitingBackward.apply(x, mark, resume)  # type: ignore[no-any-return, no-untyped-call]


def run_backward(mark: Path, resume: Path) -> None:
    with autograd.context() as context_id:
        x = torch.ones(3, requires_grad=True)
        loss = rpc.rpc_sync("w1", apply_waiting_backward, (x, mark, resume)).sum()
        autograd.backward(context_id, [loss])


WAITS: dict[str, Callable[..., object]] = {
    "rpc_sync": lambda *files: rpc.rpc_sync("w1", mark_and_wait, files, timeout=0),
    "rpc_async": lambda *files: rpc.rpc_async("w1", mark_and_wait, files, timeout=0).wait(),
    "to_here": lambda *files: rpc.remote("w1", mark_and_wait, files, timeout=0).to_here(timeout=0),
    "local_value": lambda *files: rpc.remote("w0", mark_and_wait, files).local_value(),
    "wait_all": lambda *files: torch.futures.wait_all([rpc.rpc_async("w1", mark_and_wait, files) for _ in range(2)]),
    "then": lambda *files: rpc.rpc_async("w1", mark_and_wait, files).then(lambda done: done.wait()).wait(),
    "collect_all": lambda *files: torch.futures.collect_all([rpc.rpc_async("w1", mark_and_wait, files)]).wait(),
    "backward": run_backward,
}


def error_of_wait(way: str, mark: Path, resume: Path) -> str:
    try:
        WAITS[way](mark, resume)
    except BaseException as error:
        return type(error).__name__
    return "none"


@pytest.mark.parametrize("way", WAITS)
def test_interrupt_ends_a_wait_at_once_and_breaks_nothing(pair: list[Worker], tmp_path: Path, way: str) -> None:
    mark, resume = tmp_path / "mark", tmp_path / "resume"
    pair[0].begin(error_of_wait, way, mark, resume)
    within(LIMIT_S, mark.exists, "the function runs")
    pair[0].send(signal.SIGINT)
    assert pair[0].result() == "KeyboardInterrupt"
    assert pair[0].do(call, "w1", pid) == pair[1].pid
    resume.touch()
    assert pair[0].do(error_of_wait, way, mark, resume) == "none"


def interrupt_when(condition: Callable[[], bool]) -> None:
    """Send SIGINT to this process from another thread."""

    def send() -> None:
        within(LIMIT_S, condition, "it waits")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send).start()


def main_thread_waits() -> bool:
    """Return True if the main thread waits for an event."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_name != "wait_for_event":
        frame = frame.f_back
    return frame is not None


def results_of_callback(mark: Path, resume: Path, is_first: bool) -> list[str]:
    """Interrupt a wait for a call with a callback. The first call to a worker waits for its link, too."""
    results: list[str] = []
    if not is_first:
        rpc.rpc_sync("w1", min, (1, 2))
    called = threading.Event()
    future: Any = rpc.rpc_async("w1", mark_and_wait, (mark, resume))
    future.then(lambda done: results.append(done.wait())).add_done_callback(lambda _: called.set())
    interrupt_when(main_thread_waits if is_first else lambda: bool(future._has_waiter))
    try:
        future.wait()
    except KeyboardInterrupt:
        results.append("interrupted")
    resume.touch()
    called.wait(LIMIT_S)
    return results


@pytest.mark.parametrize("is_first", [False, True])
def test_callback_of_a_call_runs_although_the_wait_was_interrupted(
    new_pair: list[Worker], tmp_path: Path, is_first: bool
) -> None:
    results = new_pair[0].do(results_of_callback, tmp_path / "mark", tmp_path / "resume", is_first)
    assert results == ["interrupted", "answered"]


def num_threads_after_interrupt(function: Callable[..., object], *args: object) -> int:
    try:
        function(*args)
    except KeyboardInterrupt:
        within(LIMIT_S, lambda: threading.active_count() == 1, "its threads have ended")
        return threading.active_count()
    raise AssertionError("it was not interrupted")


@pytest.mark.parametrize("rank", [0, 1])
def test_interrupted_init_leaves_nothing_and_may_be_repeated(real_workers: Workers, rank: int) -> None:
    early = real_workers.start(f"w{rank}")
    early.begin(num_threads_after_interrupt, join, early.name, rank, 2, real_workers.url)
    tasks = Path(f"/proc/{early.pid}/task")
    within(LIMIT_S, lambda: len(list(tasks.iterdir())) > 2, "it is joining, and its event loop runs")
    early.send(signal.SIGINT)
    assert early.result() == 1
    late = real_workers.begin(1 - rank, 2)
    early.do(join, early.name, rank, 2, real_workers.url)
    late.result()
    assert early.do(call, late.name, pid) == late.pid


def test_interrupted_shutdown_ends_and_the_others_continue(real_workers: Workers) -> None:
    two = real_workers.group(2)
    two[1].begin(num_threads_after_interrupt, leave)
    within(LIMIT_S, lambda: two[0].do(num_in_shutdown) == 1, "it waits for the other")
    two[1].send(signal.SIGINT)
    assert two[1].result() == 1
    for error in two[1].do(errors_of_each_way, "w0", pid):
        assert "RPC has not been initialized" in error
    two[0].do(leave)


def num_in_shutdown() -> int:
    """Return the number of workers in shutdown, as known by rank 0."""
    server = agents.current().group._server
    return 0 if server is None else len(server.machine.barrier.counts)
