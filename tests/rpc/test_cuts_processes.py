"""Connections between living workers are reset: every call is answered, no worker is lost, nothing leaks."""

import gc
import os
import random
import threading
import weakref
from typing import Any

import pytest
import torch
from networks import PlayedHost, why_not
from resets import hosts_behind_resets
from rpc_workers import LIMIT_S, Worker, Workers, all_do, leave

import fanwise.rpc as rpc
from fanwise.links.shared_secret import new_secret
from fanwise.rpc import agent as agents
from fanwise.testing import within

# Any throughout: what users' functions take and return.

# -- functions of workers ------------------------------------------------------------------------------------------

ALIVE: "weakref.WeakSet[Thing]" = weakref.WeakSet()
FREED: list[int] = []
KEPT: list[Any] = []


class Thing:
    """A value that records when it is freed."""

    num_created = 0

    def __init__(self, number: int) -> None:
        Thing.num_created += 1
        self.number = number
        ALIVE.add(self)

    def __del__(self) -> None:
        FREED.append(self.number)

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return int, (self.number,)


def pid() -> int:
    return os.getpid()


def number_of(thing: Any) -> int:
    """Return the number of a value, or of the value of a reference."""
    value: Any = thing.to_here(timeout=LIMIT_S) if isinstance(thing, rpc.RRef) else thing
    return int(getattr(value, "number", value))


def lend(number: int) -> Any:
    """Return a reference to a value of this worker."""
    return rpc.RRef(Thing(number))


def lend_lately(number: int) -> Any:
    threading.Event().wait(0.02)
    return lend(number)


def join_behind_resets(host: PlayedHost, name: str, rank: int, secret: str) -> None:
    """Join the group on the given host."""
    host.enter()
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="10.91.0.1", MASTER_PORT="29500", FANWISE_PORTS="29600", FANWISE_SECRET=secret)
    rpc.init_rpc(
        name, rank=rank, world_size=3, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(rpc_timeout=LIMIT_S)
    )


def work_among_cuts(seed: int, num_steps: int) -> dict[str, Any]:
    """Call, and create, send and drop references. Return the number of successful steps, and the errors."""
    me = rpc.get_worker_info().id
    chance = random.Random(f"{seed}/{me}")
    others = [f"w{id}" for id in range(3) if id != me]
    result: dict[str, Any] = {"num_successful": 0, "errors": []}
    rrefs: list[Any] = []
    for step in range(num_steps):
        to, third = chance.choice(others), chance.choice([f"w{id}" for id in range(3)])
        try:
            match chance.choice(["sync", "async", "make", "make", "pass", "pass", "lend", "lend", "ask", "drop"]):
                case "sync":
                    assert rpc.rpc_sync(to, number_of, args=(step,), timeout=LIMIT_S) == step
                case "async":
                    futures = [rpc.rpc_async(to, number_of, args=(n,), timeout=LIMIT_S) for n in range(5)]
                    assert [future.wait() for future in futures] == list(range(5))
                case "make":
                    rrefs.append(rpc.remote(to, Thing, args=(step,), timeout=LIMIT_S))
                case "pass" if rrefs:
                    rpc.rpc_sync(third, number_of, args=(chance.choice(rrefs),), timeout=LIMIT_S)
                case "lend":
                    rrefs.append(rpc.rpc_sync(to, chance.choice([lend, lend_lately]), args=(step,), timeout=LIMIT_S))
                case "ask" if rrefs:
                    number_of(chance.choice(rrefs))
                case "drop" if rrefs:
                    rrefs.pop(chance.randrange(len(rrefs)))
            result["num_successful"] += 1
        except Exception as error:
            result["errors"].append(f"step {step}: {type(error).__name__}: {error}")
    del rrefs
    return result


def state() -> tuple[int, int, int, dict[str, str]]:
    """Return the numbers of created, freed and living values, and the counters of references."""
    gc.collect()
    return Thing.num_created, len(FREED), len(ALIVE), agents.current().references.debug_info()


def is_empty(worker: Worker) -> bool:
    num_created, num_freed, num_alive, counters = worker.do(state)
    return num_created == num_freed and num_alive == 0 and set(counters.values()) == {"0"}


def work_to_the_end(group: list[Worker], seed: int, num_steps: int) -> None:
    """Let all workers work, and check that no step failed and nothing is left."""
    result = all_do(group, work_among_cuts, seed, num_steps)
    assert [one["errors"] for one in result] == [[], [], []], result
    assert [one["num_successful"] for one in result] == [num_steps] * 3
    within(LIMIT_S, lambda: all(is_empty(worker) for worker in group), "all values are freed and all counters are 0")


def run_among_resets(workers: Workers, seed: int, *, num_steps: int, num_resets: int) -> None:
    """Run three workers on three hosts, with a device between them that resets connections within frames."""
    secret = new_secret()
    with hosts_behind_resets(
        3, [29500, 29600], seed=seed, bytes_between=(3_000, 30_000), num_resets_max=num_resets
    ) as (hosts, device):
        group = [workers.start(f"w{rank}") for rank in range(3)]
        for rank, (worker, host) in enumerate(zip(group, hosts, strict=True)):
            worker.begin(join_behind_resets, host, worker.name, rank, secret)
        for worker in group:
            worker.result()
        while device.num_resets < num_resets:
            work_to_the_end(group, seed + device.num_resets, num_steps)
        all_do(group, leave)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_calls_and_references_survive_connections_that_are_reset_within_frames(real_workers: Workers) -> None:
    run_among_resets(real_workers, 1, num_steps=30, num_resets=6)


@pytest.mark.soak
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("seed", range(100, 103))
def test_calls_and_references_survive_a_hundred_resets(real_workers: Workers, seed: int) -> None:
    run_among_resets(real_workers, seed, num_steps=200, num_resets=100)
