"""Shutdown inside called functions, programs that end without shutdown, and forks of workers."""

import gc
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rpc_workers import (
    LIMIT_S,
    Worker,
    Workers,
    all_do,
    call,
    echo,
    error_of,
    leave,
    leave_at_once,
    mark_and_wait,
    pid,
)
from torch.utils.data import DataLoader, Dataset

import fanwise.rpc as rpc
from fanwise.base.errors import WorkerLostError
from fanwise.rpc import agent as agents
from fanwise.testing import within

# Any throughout: arguments and results of users' functions.
KEPT: list[Any] = []

# -- shutdown inside called functions ------------------------------------------------------------------------------


def test_shutdown_that_is_not_graceful_inside_a_called_function_leaves_at_once(real_workers: Workers) -> None:
    two = real_workers.group(2)
    with pytest.raises(WorkerLostError):
        two[0].do(call, "w1", leave_at_once)
    two[0].do(leave)


def leave_after_a_call() -> None:
    """Leave on a thread that has waited for a reply, so it does not read any more."""
    rpc.rpc_sync("w0", pid)
    rpc.shutdown()


async def leave_in_a_coroutine() -> None:
    rpc.shutdown()


@pytest.mark.parametrize("dynamic", [False, True])
def test_graceful_shutdown_inside_a_called_function_is_an_error(real_workers: Workers, dynamic: bool) -> None:
    two = real_workers.group(2, dynamic=dynamic)
    for function in (rpc.shutdown, leave_after_a_call, leave_in_a_coroutine):
        for to in ("w1", "w0"):
            text = f"shutdown\\(\\) was called on worker {to} by a function that a call runs(?s:.*)Return first"
            with pytest.raises(RuntimeError, match=text):
                two[0].do(call, to, function)
    assert two[0].do(call, "w1", pid) == two[1].pid
    all_do(two, leave)


# -- the end of the program ----------------------------------------------------------------------------------------


def keep_everything(to: str) -> None:
    KEPT.append(rpc.remote(to, torch.ones, (3,)))
    KEPT.append(rpc.RRef(torch.ones(3)))
    KEPT.append(rpc.rpc_async(to, echo, (torch.ones(3),)))
    KEPT.append(rpc.rpc_async(to, echo, (KEPT[0],)))
    KEPT.append(KEPT[2].then(lambda future: future.value()))


@pytest.mark.parametrize("ending", ["at once", "after a call", "with everything in use", "in a call of another"])
def test_program_that_ends_without_shutdown_ends_silently_and_the_others_continue(
    real_workers: Workers, tmp_path: Path, ending: str
) -> None:
    three = real_workers.group(3)
    if ending == "after a call":
        three[2].do(call, "w1", pid)
    elif ending == "with everything in use":
        three[2].do(keep_everything, "w1")
        three[1].do(keep_everything, "w2")
    elif ending == "in a call of another":
        three[1].begin(error_of, call, "w2", mark_and_wait, tmp_path / "mark", tmp_path / "resume")
        within(LIMIT_S, (tmp_path / "mark").exists, "the function runs")
    assert three[2].leave() == 0
    assert three[2].printed == ""
    if ending == "in a call of another":
        assert three[1].result().startswith("WorkerLostError")
    assert three[1].do(call, "w0", pid) == three[0].pid
    all_do(three[:2], leave)


# -- forks ---------------------------------------------------------------------------------------------------------


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index * index


def load(num_workers: int) -> list[int]:
    loader = DataLoader(Squares(), batch_size=2, num_workers=num_workers, multiprocessing_context="fork")
    return [int(x) for batch in loader for x in batch]


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_data_loader_may_have_processes_inside_a_called_function(new_pair: list[Worker], to: str) -> None:
    for _ in range(2):
        assert new_pair[0].do(call, to, load, 2) == [0, 1, 4, 9, 16, 25]


def errors_in_a_fork(to: str) -> list[str]:
    """Return the errors of calls in a fork of this worker."""
    KEPT.append(rpc.remote(to, torch.ones, (3,)))
    KEPT[0].to_here()
    ways: list[Callable[[], object]] = [
        lambda: rpc.rpc_sync(to, pid),
        lambda: rpc.rpc_async(to, pid).wait(),
        lambda: rpc.remote(to, pid).to_here(),
        lambda: KEPT[0].to_here(),
    ]
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, "\n".join(error_of(way).partition("\n")[0] for way in ways).encode())
        KEPT.clear()
        gc.collect()
        os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with open(reads) as pipe:
        return pipe.read().split("\n")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("to", ["w0", "w1"])
def test_calls_in_a_fork_of_a_worker_are_errors(new_pair: list[Worker], to: str, inside: bool) -> None:
    first = new_pair[0]
    errors = first.do(call, "w1", errors_in_a_fork, to) if inside else first.do(errors_in_a_fork, to)
    is_own_value = to == ("w1" if inside else "w0")
    assert errors.pop() == "no error" if is_own_value else len(errors) == 4
    for error in errors:
        assert error.startswith("ClosedError") and "was forked from worker" in error
    if not inside:
        assert first.do(kept_value).sum() == 3, "the fork has released nothing"


def kept_value() -> Any:
    return KEPT[0].to_here()


def fork_with_locked_hub() -> None:
    """Fork while another thread seems to hold the locks of the event loop and of the link to this worker."""
    agent = agents.current()
    rpc.rpc_sync(agent.info.name, pid)
    with agent._hub._waking:
        child = os.fork()
        if child == 0:
            os._exit(0)
    try:
        within(LIMIT_S, lambda: os.waitpid(child, os.WNOHANG)[0], "the fork ends")
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def test_fork_needs_no_lock_that_the_worker_holds(new_pair: list[Worker]) -> None:
    new_pair[0].do(fork_with_locked_hub)


def work_in_a_fork(url: str) -> int:
    """Return the exit code of a fork of this worker that forms a group of its own."""
    child = os.fork()
    if child == 0:
        try:
            options = rpc.TensorPipeRpcBackendOptions(init_method=url)
            rpc.init_rpc("child", rank=0, world_size=1, rpc_backend_options=options)
            is_child = rpc.rpc_sync("child", pid) == os.getpid()
            rpc.shutdown()
            os._exit(0 if is_child else 2)
        except BaseException:
            logging.exception("the child")
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_fork_of_a_worker_may_become_a_worker_itself(new_pair: list[Worker], real_workers: Workers) -> None:
    assert new_pair[0].do(work_in_a_fork, real_workers.url + "-child") == 0, new_pair[0].printed
