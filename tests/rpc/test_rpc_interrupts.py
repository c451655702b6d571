"""Ctrl-C ends every wait of the main thread at once, and takes nothing away from those who still wait."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rpc_workers import LIMIT_S, Workers, all_do, leave

import fanwise.rpc as rpc
from fanwise.rpc import autograd
from fanwise.testing import within

# Any throughout: what users' functions take and return.


def mark_and_wait(mark: Path, go: Path) -> str:
    mark.touch()
    within(3 * LIMIT_S, go.exists, "it is told to go on")
    return "answered"


class WaitingBackward(torch.autograd.Function):
    """The identity, whose backward pass waits until it is told to go on."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mark: Path, go: Path) -> torch.Tensor:
        ctx.files = mark, go
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        mark_and_wait(*ctx.files)
        return grads[0], None, None


def wait_in_backward(x: torch.Tensor, mark: Path, go: Path) -> torch.Tensor:
    return WaitingBackward.apply(x, mark, go)  # type: ignore[no-any-return, no-untyped-call]


def run_backward(mark: Path, go: Path) -> None:
    with autograd.context() as context_id:
        x = torch.ones(3, requires_grad=True)
        loss = rpc.rpc_sync("w1", wait_in_backward, (x, mark, go)).sum()
        autograd.backward(context_id, [loss])


def take_local_value(mark: Path, go: Path) -> None:
    rpc.remote("w0", mark_and_wait, (mark, go)).local_value()


def wait_for_two(mark: Path, go: Path) -> None:
    torch.futures.wait_all([rpc.rpc_async("w1", mark_and_wait, (mark, go)) for _ in range(2)])


def wait_for_then(mark: Path, go: Path) -> None:
    rpc.rpc_async("w1", mark_and_wait, (mark, go)).then(lambda done: done.wait()).wait()


def wait_for_collected(mark: Path, go: Path) -> None:
    torch.futures.collect_all([rpc.rpc_async("w1", mark_and_wait, (mark, go))]).wait()


def error_of(way: Any, mark: Path, go: Path) -> str:
    try:
        way(mark, go)
    except BaseException as error:
        return type(error).__name__
    return "none"


@pytest.mark.parametrize("way", [run_backward, take_local_value, wait_for_two, wait_for_then, wait_for_collected])
def test_control_c_ends_a_wait_at_once_and_breaks_nothing(real_workers: Workers, tmp_path: Path, way: Any) -> None:
    two, mark, go = real_workers.group(2), tmp_path / "mark", tmp_path / "go"
    two[0].begin(error_of, way, mark, go)
    within(LIMIT_S, mark.exists, "it has begun")
    two[0].send(signal.SIGINT)
    assert two[0].result() == "KeyboardInterrupt"
    go.touch()
    assert two[0].do(error_of, way, mark, go) == "none"
    all_do(two, leave)


def interrupt_when(holds: Callable[[], bool]) -> None:
    """Press Ctrl-C in this process, soon."""

    def press() -> None:
        within(LIMIT_S, holds, "it waits")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()


def main_thread_waits() -> bool:
    """Return True if the main thread waits for an event."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_name != "wait_for_event":
        frame = frame.f_back
    return frame is not None


def hear_after_an_interrupt(mark: Path, go: Path, is_first: bool) -> list[str]:
    """What a callback is told after this thread was interrupted in waiting. The first call waits for its link too."""
    heard: list[str] = []
    if not is_first:
        rpc.rpc_sync("w1", min, (1, 2))
    told = threading.Event()
    future: Any = rpc.rpc_async("w1", mark_and_wait, (mark, go))
    future.then(lambda done: heard.append(done.wait())).add_done_callback(lambda _: told.set())
    interrupt_when(main_thread_waits if is_first else lambda: bool(future._has_waiter))
    try:
        future.wait()
    except KeyboardInterrupt:
        heard.append("interrupted")
    go.touch()
    told.wait(LIMIT_S)
    return heard


@pytest.mark.parametrize("is_first", [False, True])
def test_a_callback_of_a_call_comes_also_when_who_waited_was_interrupted(
    real_workers: Workers, tmp_path: Path, is_first: bool
) -> None:
    two = real_workers.group(2)
    heard = two[0].do(hear_after_an_interrupt, tmp_path / "mark", tmp_path / "go", is_first)
    assert heard == ["interrupted", "answered"]
    all_do(two, leave)
