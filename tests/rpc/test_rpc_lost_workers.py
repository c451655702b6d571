"""Workers that are killed or stopped: calls to them fail, the others continue, and all learn the reason."""

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from gates import Gate
from rpc_workers import (
    LIMIT_S,
    Worker,
    Workers,
    all_do,
    call,
    hold_the_interpreter,
    join,
    leave,
    leave_at_once,
    mark_and_hang,
    mark_and_wait,
    names,
    num_owned,
    pid,
)

import fanwise.rpc as rpc
from fanwise.base.errors import ClosedError, OwnerLostError, WorkerLostError
from fanwise.links.link import Link
from fanwise.rpc import agent as agents
from fanwise.testing import within

# Any throughout: arguments and results of users' functions.

KEPT: list[Any] = []


@rpc.functions.async_execution
def mark_and_promise(mark: Path) -> "torch.futures.Future[Any]":
    mark.touch()
    KEPT.append(promise := torch.futures.Future())  # type: ignore[var-annotated]
    return promise


def call_by_sync(to: str, function: Any, *args: object) -> Any:
    return rpc.rpc_sync(to, function, args, timeout=0)


def call_by_future(to: str, function: Any, *args: object) -> Any:
    return rpc.rpc_async(to, function, args, timeout=0).wait()


def call_by_reference(to: str, function: Any, *args: object) -> Any:
    return rpc.remote(to, function, args, timeout=0).to_here(timeout=0)


def begin_call(to: str, function: Any, *args: object) -> None:
    KEPT.append(rpc.rpc_async(to, function, args, timeout=0))


def keep_remote(to: str) -> None:
    KEPT.append(rpc.remote(to, torch.ones, (3,)))
    KEPT[-1].to_here()


def kept_value() -> Any:
    return KEPT[-1].to_here()


def sees(worker: Worker, *others: str) -> None:
    within(LIMIT_S, lambda: worker.do(names) == list(others), f"{worker.name} sees {others}")


def reaches(worker: Worker, other: Worker) -> None:
    """Wait until a call reaches this incarnation of the other worker. Not all workers learn of it at the same time."""
    within(LIMIT_S, lambda: worker.do(pid_or_zero, other.name) == other.pid, f"{worker.name} reaches {other.name}")


def pid_or_zero(to: str) -> int:
    try:
        return call(to, pid)  # type: ignore[no-any-return]
    except RuntimeError:
        return 0


def wait_for_mark(mark: Path) -> None:
    within(LIMIT_S, mark.exists, "the function runs")


# -- killed workers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [call_by_sync, call_by_future, call_by_reference])
@pytest.mark.parametrize("function", [mark_and_hang, mark_and_promise])
def test_call_without_time_out_raises_when_its_callee_is_killed(
    real_workers: Workers, tmp_path: Path, way: Any, function: Any
) -> None:
    three = real_workers.group(3)
    three[0].begin(way, "w1", function, tmp_path / "mark")
    wait_for_mark(tmp_path / "mark")
    three[1].kill()
    with pytest.raises(WorkerLostError, match="w1"):
        three[0].result()


def test_nested_call_names_the_worker_that_was_lost(real_workers: Workers, tmp_path: Path) -> None:
    three = real_workers.group(3)
    three[0].begin(call_by_sync, "w1", call_by_sync, "w2", mark_and_hang, tmp_path / "mark")
    wait_for_mark(tmp_path / "mark")
    three[2].kill()
    with pytest.raises(WorkerLostError, match="worker w2") as raised:
        three[0].result()
    assert "w1" not in str(raised.value)
    all_do(three[:2], leave)


def test_nested_call_raises_when_the_worker_between_is_killed(real_workers: Workers, tmp_path: Path) -> None:
    three = real_workers.group(3)
    three[0].begin(call_by_sync, "w1", call_by_sync, "w2", mark_and_wait, tmp_path / "mark", tmp_path / "resume")
    wait_for_mark(tmp_path / "mark")
    three[1].kill()
    with pytest.raises(WorkerLostError, match="worker w1"):
        three[0].result()
    (tmp_path / "resume").touch()
    all_do([three[0], three[2]], leave)


def fork_and_hang(gate: Gate, mark: Path) -> None:
    if os.fork() == 0:
        mark.touch()
        gate.wait()
        os._exit(0)
    threading.Event().wait()


def test_killed_worker_is_lost_although_a_fork_of_it_lives(real_workers: Workers, tmp_path: Path) -> None:
    with Gate(tmp_path / "gate") as gate:
        three = real_workers.group(3)
        three[0].begin(call_by_sync, "w1", fork_and_hang, gate, tmp_path / "mark")
        wait_for_mark(tmp_path / "mark")
        three[1].kill()
        with pytest.raises(WorkerLostError, match="w1"):
            three[0].result()
        all_do([three[0], three[2]], leave)


def test_survivors_call_each_other_and_leave_gracefully(real_workers: Workers, tmp_path: Path) -> None:
    three = real_workers.group(3)
    three[0].do(begin_call, "w1", mark_and_hang, tmp_path / "mark")
    wait_for_mark(tmp_path / "mark")
    three[1].kill()
    for survivor in (three[0], three[2]):
        for to in ("w1", 1):
            with pytest.raises(WorkerLostError, match="w1"):
                survivor.do(call, to, pid)
    assert three[0].do(call, "w2", pid) == three[2].pid
    assert three[2].do(call, "w0", pid) == three[0].pid
    all_do([three[0], three[2]], leave)


def test_references_of_a_killed_worker_are_released_and_those_to_its_values_fail(real_workers: Workers) -> None:
    three = real_workers.group(3)
    three[0].do(keep_remote, "w1")
    three[1].do(keep_remote, "w0")
    assert three[0].do(num_owned) == 1
    three[1].kill()
    within(LIMIT_S, lambda: three[0].do(num_owned) == 0, "the value was freed")
    with pytest.raises(OwnerLostError, match="w1"):
        three[0].do(kept_value)
    all_do([three[0], three[2]], leave)


def test_shutdown_does_not_wait_for_a_worker_that_is_killed_meanwhile(real_workers: Workers) -> None:
    three = real_workers.group(3)
    for worker in three[:2]:
        worker.begin(leave)
    three[2].kill()
    for worker in three[:2]:
        worker.result()


@pytest.mark.parametrize("size", [3, None])
def test_killed_worker_may_return_under_its_name(real_workers: Workers, size: int | None) -> None:
    three = real_workers.group(3, dynamic=size is None)
    assert three[2].do(call, "w1", pid) == three[1].pid
    three[1].kill()
    three[1] = again = real_workers.join(1, size)
    reaches(three[2], again)
    reaches(again, three[2])
    all_do(three, leave)


# -- rank 0 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_when_rank_0_is_killed_calls_and_shutdowns_of_the_others_raise_and_another_group_may_form(
    real_workers: Workers, tmp_path: Path, dynamic: bool
) -> None:
    three = real_workers.group(3, dynamic=dynamic)
    three[1].do(keep_remote, "w2")
    three[2].begin(call_by_sync, "w1", mark_and_hang, tmp_path / "mark")
    wait_for_mark(tmp_path / "mark")
    three[0].kill()
    ended = r"the group has ended, because worker 'w0' \(rank 0, .*\), which coordinates it, was lost: "
    with pytest.raises(WorkerLostError, match=ended):
        three[2].result()
    for worker in three[1:]:
        sees(worker, worker.name)
        for to in ("w0", 0, "w1", "w2"):
            if to != worker.name:
                with pytest.raises(WorkerLostError, match=ended):
                    worker.do(call, to, pid)
        assert worker.do(call, worker.name, pid) == worker.pid
    with pytest.raises(OwnerLostError, match="w2"):
        three[1].do(kept_value)
    with pytest.raises(WorkerLostError, match=ended):
        three[1].do(leave)
    three[2].do(leave_at_once)
    real_workers.group(3, dynamic=dynamic)


def test_shutdown_raises_when_rank_0_is_killed_meanwhile(real_workers: Workers) -> None:
    three = real_workers.group(3)
    for worker in three[1:]:
        worker.begin(leave)
    three[0].kill()
    for worker in three[1:]:
        with pytest.raises(WorkerLostError, match="because worker 'w0'"):
            worker.result()


def test_dynamic_group_ends_without_an_error_when_rank_0_leaves(real_workers: Workers) -> None:
    three = real_workers.group(3, dynamic=True)
    three[0].do(leave)
    for worker in three[1:]:
        sees(worker, worker.name)
        with pytest.raises(WorkerLostError, match=r"because worker 'w0' .* has left"):
            worker.do(call, "w0", pid)
    all_do(three[1:], leave)


# -- stopped and busy workers --------------------------------------------------------------------------------------


def test_stopped_worker_is_lost_learns_it_when_it_continues_and_may_return(
    real_workers: Workers, tmp_path: Path
) -> None:
    caller, stopped, third = real_workers.group(3)
    assert stopped.do(call, "w2", pid) == third.pid
    stopped.do(dial_again, "w2")
    caller.begin(call_by_sync, "w1", mark_and_hang, tmp_path / "mark")
    wait_for_mark(tmp_path / "mark")
    stopped.send(signal.SIGSTOP)
    assert third.do(call, "w0", pid) == caller.pid
    with pytest.raises(WorkerLostError, match="w1"):
        caller.result()
    sees(third, "w0", "w2")
    # The members change a moment before the links of the lost one are closed.
    within(LIMIT_S, lambda: third.do(num_links_with, stopped.pid) == 0, "no link to it is left")
    stopped.send(signal.SIGCONT)
    for to in ("w2", "w0"):
        within(LIMIT_S, lambda to=to: "declared lost" in stopped.do(loss_error, to), "its calls name the reason")  # type: ignore[misc]
    with pytest.raises(WorkerLostError, match="declared lost"):
        stopped.do(leave)
    sees(third, "w0", "w2")
    stopped.do(join, "w1", 1, 3, real_workers.url)
    reaches(third, stopped)
    all_do([caller, stopped, third], leave)


def test_when_rank_0_is_stopped_the_group_ends_and_rank_0_has_lost_the_others(
    real_workers: Workers, tmp_path: Path
) -> None:
    stopped, caller, third = real_workers.group(3)
    caller.begin(call_by_sync, "w0", mark_and_hang, tmp_path / "mark")
    wait_for_mark(tmp_path / "mark")
    stopped.send(signal.SIGSTOP)
    assert third.do(call, "w1", pid) == caller.pid
    with pytest.raises(WorkerLostError, match=r"because worker 'w0' .* was lost: it was stopped"):
        caller.result()
    sees(third, "w2")
    stopped.send(signal.SIGCONT)
    sees(stopped, "w0")
    for to in ("w1", "w2"):
        with pytest.raises(WorkerLostError, match=to):
            stopped.do(call, to, pid)
    stopped.do(leave_at_once)
    for worker in (caller, third):
        with pytest.raises(WorkerLostError, match="because worker 'w0'"):
            worker.do(leave)


def dial_again(to: str) -> None:
    """Open another link, as when two workers dial each other at the same time."""
    agent = agents.current()
    agent.connections.dial(agent.group.find(to), LIMIT_S)


def num_links_with(process: int) -> int:
    links = [thing for thing in gc.get_objects() if type(thing) is Link]
    return sum(link.peer.pid == process and link.ending is None for link in links)


def loss_error(to: str) -> str:
    """Return the error of a call. Until the loss is known, a call may be answered, or end with the link."""
    try:
        return str(rpc.rpc_sync(to, pid, timeout=0))
    except (WorkerLostError, ClosedError) as error:
        return str(error)


@pytest.mark.parametrize("busy", [0, 1])
def test_busy_worker_is_not_lost_on_the_same_host(real_workers: Workers, busy: int) -> None:
    """Longer than a stopped one may be silent."""
    three = real_workers.group(3)
    three[0].do(keep_remote, "w1")
    three[1].do(keep_remote, "w0")
    three[1 - busy].begin(call_by_sync, f"w{busy}", hold_the_interpreter, 7000)
    three[2].begin(call, f"w{busy}", pid)
    three[1 - busy].result()
    assert three[2].result() == three[busy].pid
    assert three[0].do(kept_value).sum() == 3 and three[1].do(kept_value).sum() == 3
    assert three[2].do(names) == ["w0", "w1", "w2"]
    all_do(three, leave)
