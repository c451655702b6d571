"""Links between living workers are cut at any moment: nobody is called dead, nothing leaks, every call has an end."""

import contextlib
import gc
import os
import random
import socket
import struct
import threading
import weakref
from typing import Any

import pytest
import torch
from networks import PlayedHost, why_not
from resets import hosts_behind_resets
from rpc_workers import LIMIT_S, Worker, Workers, all_do, leave

import fanwise.rpc as rpc
from fanwise.base.errors import LinkLostError, OwnerLostError, WorkerLostError
from fanwise.links.shared_secret import new_secret
from fanwise.rpc import agent as agents
from fanwise.rpc import autograd
from fanwise.testing import within

# Any throughout: what users' functions take and return.

# -- what workers are told to do -----------------------------------------------------------------------------------

ALIVE: "weakref.WeakSet[Thing]" = weakref.WeakSet()
FREED: list[int] = []
KEPT: list[Any] = []


class Thing:
    """A value that counts its end."""

    made = 0

    def __init__(self, number: int) -> None:
        Thing.made += 1
        self.number = number
        ALIVE.add(self)

    def __del__(self) -> None:
        FREED.append(self.number)

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return int, (self.number,)


def pid() -> int:
    return os.getpid()


def number_of(thing: Any) -> int:
    """Of a reference that came along, or of a value."""
    value: Any = thing.to_here(timeout=LIMIT_S) if isinstance(thing, rpc.RRef) else thing
    return int(getattr(value, "number", value))


def lend(number: int) -> Any:
    """A reference to a value of this worker, as an answer."""
    return rpc.RRef(Thing(number))


def lend_lately(number: int) -> Any:
    threading.Event().wait(0.02)
    return lend(number)


def sockets_to(pids: list[int]) -> list[socket.socket]:
    """Copies of this process's sockets whose other side is one of these processes."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        is_link = one.family == socket.AF_UNIX and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if is_link and struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0] in pids:
            found.append(one)
        else:
            one.close()
    return found


def cut(pids: list[int], chance: random.Random | None = None) -> int:
    """Cut the links to these processes, or one of them by chance. How many were cut."""
    found = sockets_to(pids)
    chosen = found if chance is None or not found else [chance.choice(found)]
    count = 0
    for one in chosen:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
            count += 1
    for one in found:
        one.close()
    return count


def join_behind_resets(host: PlayedHost, name: str, rank: int, secret: str) -> None:
    """Become a worker on a host of its own."""
    host.enter()
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="10.91.0.1", MASTER_PORT="29500", FANWISE_PORTS="29600", FANWISE_SECRET=secret)
    rpc.init_rpc(
        name, rank=rank, world_size=3, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(rpc_timeout=LIMIT_S)
    )


def cut_into(count: list[int], pids: list[int], seed: float) -> None:
    count.append(cut(pids, random.Random(seed)))


def work_among_cuts(seed: int, num_steps: int, num_cuts: int, pids: list[int]) -> dict[str, Any]:
    """Call, make, hand on and drop references, while links to the others are cut now and then. What came of it."""
    chance = random.Random(f"{seed}/{os.getpid() in pids}/{rpc.get_worker_info().id}")
    me = rpc.get_worker_info().id
    others = [f"w{id}" for id in range(3) if id != me]
    foreign = [other for other in pids if other != os.getpid()]
    said: dict[str, Any] = {"cuts": 0, "well": 0, "LinkLostError": 0, "wrong": []}
    held: list[Any] = []
    steps_a_cut = max(1, num_steps // num_cuts) if num_cuts else 0
    for step in range(num_steps):
        to, third = chance.choice(others), chance.choice([f"w{id}" for id in range(3)])
        cutting: list[int] = []
        cutter = threading.Timer(chance.uniform(0.0, 0.004), cut_into, (cutting, foreign, chance.random()))
        is_cut = num_cuts > 0 and step % steps_a_cut == 0
        if is_cut:
            cutter.start()
        try:
            match chance.choice(["sync", "async", "make", "make", "pass", "pass", "lend", "lend", "ask", "drop"]):
                case "sync":
                    assert rpc.rpc_sync(to, number_of, args=(step,), timeout=LIMIT_S) == step
                case "async":
                    futures = [rpc.rpc_async(to, number_of, args=(n,), timeout=LIMIT_S) for n in range(5)]
                    for n, future in enumerate(futures):
                        try:
                            assert future.wait() == n
                        except LinkLostError:
                            said["LinkLostError"] += 1
                case "make":
                    held.append(rpc.remote(to, Thing, args=(step,), timeout=LIMIT_S))
                case "pass" if held:
                    rpc.rpc_sync(third, number_of, args=(chance.choice(held),), timeout=LIMIT_S)
                case "lend":
                    held.append(rpc.rpc_sync(to, chance.choice([lend, lend_lately]), args=(step,), timeout=LIMIT_S))
                case "ask" if held:
                    number_of(chance.choice(held))
                case "drop" if held:
                    held.pop(chance.randrange(len(held)))
            said["well"] += 1
        except LinkLostError as error:
            said["LinkLostError"] += 1
            if "live" not in str(error):
                said["wrong"].append(str(error))
        except Exception as error:
            said["wrong"].append(f"step {step}: {type(error).__name__}: {error}")
        if is_cut:
            cutter.join()
            said["cuts"] += sum(cutting)
    del held
    return said


def hold_nothing() -> tuple[int, int, int, dict[str, str]]:
    """How many values were made here, are freed, live; and what the books say."""
    gc.collect()
    return Thing.made, len(FREED), len(ALIVE), agents.current().references.debug_info()


def is_empty(worker: Worker) -> bool:
    made, freed, alive, books = worker.do(hold_nothing)
    return made == freed and alive == 0 and set(books.values()) == {"0"}


def work_to_the_end(group: list[Worker], seed: int, num_steps: int, num_cuts: int) -> list[dict[str, Any]]:
    """All work, nothing goes wrong but calls whose links were cut, nothing is left. What each said."""
    pids = [worker.do(pid) for worker in group]
    said = all_do(group, work_among_cuts, seed, num_steps, num_cuts, pids)
    assert [one["wrong"] for one in said] == [[], [], []], said
    assert all(one["well"] > 0 for one in said)
    within(LIMIT_S, lambda: all(is_empty(worker) for worker in group), "all values are freed and all books empty")
    return said


def end_among_resets(workers: Workers, seed: int, *, num_steps: int, num_resets: int) -> None:
    """Three workers on three hosts; a device between them resets so many connections, in the middle of frames."""
    secret = new_secret()
    with hosts_behind_resets(
        3, [29500, 29600], seed=seed, bytes_between=(3_000, 30_000), num_resets_max=num_resets
    ) as (hosts, device):
        group = [workers.start(f"w{rank}") for rank in range(3)]
        for rank, (worker, host) in enumerate(zip(group, hosts, strict=True)):
            worker.begin(join_behind_resets, host, worker.name, rank, secret)
        for worker in group:
            worker.result()
        hit = 0
        while device.num_resets < num_resets:
            said = work_to_the_end(group, seed + device.num_resets, num_steps, 0)
            hit += sum(one["LinkLostError"] for one in said)
        assert hit > 0, "calls were under way"
        all_do(group, leave)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_calls_and_references_outlive_connections_that_are_reset_in_the_middle_of_frames(real_workers: Workers) -> None:
    end_among_resets(real_workers, 1, num_steps=30, num_resets=6)


@pytest.mark.soak
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("seed", range(100, 103))
def test_calls_and_references_outlive_a_hundred_connections_that_are_reset(real_workers: Workers, seed: int) -> None:
    end_among_resets(real_workers, seed, num_steps=200, num_resets=100)


# -- one cut at a known moment -------------------------------------------------------------------------------------


def call_while_cut(to: str, its_pid: int) -> str:
    """A call is running over there when its link is cut. What is said, and then the next call."""
    future = rpc.rpc_async(to, lend_lately, args=(1,), timeout=LIMIT_S)
    cut([its_pid])
    try:
        future.wait()
        text = "answered"
    except (LinkLostError, WorkerLostError, OwnerLostError) as error:
        text = f"{type(error).__name__}: {error}"
    assert rpc.rpc_sync(to, pid) == its_pid
    return text


def test_a_call_whose_link_is_cut_says_that_the_worker_lives(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3)
    text = two.do(call_while_cut, "w2", three.do(pid))
    assert text == "answered" or (text.startswith("LinkLostError: the link to worker w2 (rank 2) was cut"))
    assert "the worker is alive" in text or text == "answered"
    all_do([one, two, three], leave)


def backward_over_a_cut(to: str, its_pid: int) -> list[str]:
    """Contexts before and after a cut, and one that it hits."""
    said = []
    for when in ("before", "cut", "after"):
        with autograd.context() as context_id:
            weight = torch.ones(3, requires_grad=True)
            try:
                loss = rpc.rpc_sync(to, torch.add, args=(weight, weight), timeout=LIMIT_S).sum()
                if when == "cut":
                    cut([its_pid])
                autograd.backward(context_id, [loss])
                said.append(str(autograd.get_gradients(context_id)[weight].tolist()))
            except LinkLostError:
                said.append("LinkLostError")
    return said


def test_a_backward_pass_over_a_cut_link_is_right_or_fails_clearly(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3)
    before, hit, after = two.do(backward_over_a_cut, "w2", three.do(pid))
    assert before == after == "[2.0, 2.0, 2.0]" and hit in (before, "LinkLostError")
    all_do([one, two, three], leave)
