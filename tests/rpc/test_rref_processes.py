"""References between real processes: what only a death by the operating system shows."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from fanwise.base.errors import OwnerLostError
from fanwise.testing import within

LIMIT_S = 30.0
context = multiprocessing.get_context("fork")
HELD: list[Any] = []  # Any: RRefs


def make(size: int) -> torch.Tensor:
    return torch.ones(size)


def hold(rref: Any) -> None:  # Any: an RRef
    HELD.append(rref)


def held_total() -> float:
    return float(HELD[0].to_here().sum())


def num_forks() -> int:
    from fanwise.rpc import agent

    return int(agent.current().references.debug_info()["num_forks"])


def live(folder: str, rank: int, control: Connection) -> None:
    """A worker that does what it is told, until it is told None."""
    import fanwise.rpc as rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/meet", rpc_timeout=LIMIT_S)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3, rpc_backend_options=options)
    control.send(os.getpid())
    while True:
        told = control.recv()
        if told is None:
            break
        function, args = told
        try:
            control.send((True, function(*args)))
        except Exception as error:
            control.send((False, error))
    rpc.shutdown(graceful=False)


class Workers:
    """Three processes, each told through a pipe what to do."""

    def __init__(self, folder: Path) -> None:
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(3):
            mine, its = context.Pipe()
            process = context.Process(target=live, args=(str(folder), rank, its))
            process.start()
            its.close()
            self.pipes.append(mine)
            self.processes.append(process)
        self.pids = [self.answer(rank) for rank in range(3)]

    def answer(self, rank: int) -> Any:  # Any: what the worker sends
        assert self.pipes[rank].poll(LIMIT_S), f"worker {rank} does not answer"
        return self.pipes[rank].recv()

    def do(self, rank: int, function: Callable[..., Any], *args: object) -> Any:  # Any: what the function returns
        self.pipes[rank].send((function, args))
        well, value = self.answer(rank)
        if not well:
            raise value
        return value

    def kill(self, rank: int) -> None:
        os.kill(self.pids[rank], signal.SIGKILL)
        self.processes[rank].join(LIMIT_S)

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join(LIMIT_S)
            process.close()
            pipe.close()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path)
    yield made
    made.close()


def create(owner: str) -> None:
    import fanwise.rpc as rpc

    HELD.append(rpc.remote(owner, make, (3,)))
    HELD[0].to_here()


def pass_on(to: str) -> None:
    import fanwise.rpc as rpc

    rpc.rpc_sync(to, hold, (HELD[0],))


def test_what_a_killed_worker_held_is_released_and_the_rest_lives(workers: Workers) -> None:
    workers.do(2, create, "worker1")
    workers.do(2, pass_on, "worker0")
    within(LIMIT_S, lambda: workers.do(1, num_forks) == 2, "workers 0 and 2 hold the value")
    workers.kill(2)
    within(LIMIT_S, lambda: workers.do(1, num_forks) == 1, "the dead worker holds nothing")
    assert workers.do(0, held_total) == 3.0


def test_the_value_of_a_killed_owner_is_lost(workers: Workers) -> None:
    workers.do(0, create, "worker1")
    workers.do(0, pass_on, "worker2")
    workers.kill(1)
    for user in (0, 2):
        with pytest.raises(OwnerLostError, match="worker1 died or left"):
            workers.do(user, held_total)
