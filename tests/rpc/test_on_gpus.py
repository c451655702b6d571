"""Tensors on real GPUs in calls: as handles, through main memory and with device maps. Also run on the CPU.

Nothing here may touch CUDA when it is imported: the interpreter that all workers are forks of imports it too.
"""

import contextlib
import gc
import os
from typing import Any

import pytest
import torch
from rpc_workers import LIMIT_S, Worker, Workers

from fanwise import rpc
from fanwise.rpc import agent as agents
from fanwise.rpc import autograd
from fanwise.rpc.calling import serializer
from fanwise.testing import within

BIG = 1 << 18  # float32: 1 MiB, which is sent as a handle
CPU_AND_GPU = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])

# Any throughout: what users' functions take and return.


# -- functions that run on workers -------------------------------------------------------------------------------------


def join(name: str, rank: int, url: str, device_maps: Any = None, ipc: str = "") -> None:
    os.environ["FANWISE_CUDA_IPC"] = ipc
    torch.set_num_threads(1)  # a fork has none of OpenMP's threads
    options = rpc.TensorPipeRpcBackendOptions(init_method=url, rpc_timeout=LIMIT_S, device_maps=device_maps)
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)
    module: Any = serializer
    open_handle = module.open_handle

    def open_and_count(handle: memoryview) -> torch.Tensor:
        opened.append(len(handle))
        tensor: torch.Tensor = open_handle(handle)
        return tensor

    module.open_handle = open_and_count


opened: list[int] = []


def num_opened() -> int:
    return len(opened)


def num_bytes_allocated(device: str) -> int:
    """Return the device memory of this process in use."""
    gc.collect()
    if device == "cpu":
        return 0
    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]  # torch's
    return torch.cuda.memory_allocated(device)


def can_share_with(other: str) -> bool:
    """Return True if this worker knows the devices of `other`, which it asks for when it sends a large tensor."""
    agent = agents.current()
    ipc = agent.serializer._cuda_ipc
    assert ipc is not None
    return bool(ipc._uuids.get(agent.group.members()[agent.worker(other).id].key))


def echo(x: Any) -> Any:
    return x


def double_in_place(x: torch.Tensor) -> float:
    return float(x.mul_(2).sum())


def device_here(x: torch.Tensor) -> str:
    return str(x.device)


def products(to: str, device: str, times: int) -> tuple[list[float], set[str]]:
    x = torch.arange(float(BIG), device=device) / BIG
    answers = [rpc.rpc_sync(to, torch.mul, (x, i)) for i in range(times)]
    return [float(a.double().sum()) for a in answers], {str(a.device) for a in answers}


def there_and_back(to: str, device: str) -> list[str]:
    """Return the values that did not survive a round trip."""
    wide = torch.randn(600, 700, generator=torch.Generator().manual_seed(1)).to(device)
    sent = {
        "transposed": wide.T,
        "every second": wide[::2, ::2],
        "bfloat16": wide.bfloat16(),
        "complex, conjugated": torch.complex(wide, wide).conj(),
        "bool": wide > 0,
        "int64": (wide * 100).long(),
        "empty": wide[:0],
        "no axes": wide[0, 0],
        "small": wide[0, :5],
        "parameter": torch.nn.Parameter(wide),
        "46 MB": wide.repeat(40, 1)[: 1 << 14, :].contiguous(),
    }
    wrong = []
    for name, x in sent.items():
        for _ in range(2):  # the first message requests the devices of the peer
            y = rpc.rpc_sync(to, echo, (x,))
            is_same = torch.equal(y.detach(), x.detach()) and (y.device, y.dtype, type(y)) == (
                x.device,
                x.dtype,
                type(x),
            )
            wrong += [] if is_same else [name]
    return wrong


def change_there_and_here(to: str, device: str) -> tuple[float, float]:
    """Neither side sees later changes of the other side's tensor."""
    for _ in range(2):
        x = torch.ones(BIG, device=device)
        future = rpc.rpc_async(to, double_in_place, (x,))
        x.zero_()
        there = future.wait()
    return there, float(x.sum())


def what_is_still_computed(to: str, device: str) -> list[bool]:
    """Kernels that are queued when the call begins come before it: on the usual stream, and on another."""
    rpc.rpc_sync(to, echo, (torch.ones(BIG, device=device),))
    differences = []
    streams: Any = torch.cuda  # Any: torch has not annotated them
    for on in [contextlib.nullcontext(), streams.stream(streams.Stream()) if device != "cpu" else torch.no_grad()]:
        with on:
            x, one = torch.zeros(512, 512, device=device), torch.eye(512, device=device)
            for _ in range(200):
                x = (x + 1) @ one
            y = rpc.rpc_sync(to, echo, (x,)) @ one
            differences.append(bool((y == 200).all()))
    return differences


def kept_there(to: str, device: str) -> tuple[str, float]:
    kept = rpc.remote(to, torch.mul, (torch.ones(BIG, device=device), 3))
    y = kept.to_here()
    return str(y.device), float(y.sum())


def gradient(to: str, device: str) -> tuple[str, float]:
    weight = torch.ones(BIG, device=device, requires_grad=True)
    with autograd.context() as context_id:
        autograd.backward(context_id, [rpc.rpc_sync(to, torch.mul, (weight, 3)).sum()])
        differences = autograd.get_gradients(context_id)[weight]
    return str(differences.device), float(differences.sum())


def where_it_arrives(to: str, device: str) -> tuple[str, str, str]:
    """There, of an answer, and of an answer that the callee itself has made."""
    for _ in range(2):
        x = torch.ones(BIG, device=device)
        there = rpc.rpc_sync(to, device_here, (x,))
        back = rpc.rpc_sync(to, torch.add, (x, 1))
    return there, str(back.device), str(rpc.rpc_sync(to, torch.ones, (3,)).device)


def send(to: str, device: str) -> str:
    try:
        rpc.rpc_sync(to, device_here, (torch.ones(3, device=device),))
    except RuntimeError as error:
        return str(error)
    return ""


# -- tests -------------------------------------------------------------------------------------------------------------


def two(real_workers: Workers, maps: Any = None, ipc: str = "") -> list[Worker]:
    """The first has these device maps."""
    workers = [real_workers.start("w0"), real_workers.start("w1")]
    for rank, worker in enumerate(workers):
        worker.begin(join, worker.name, rank, real_workers.url, maps if rank == 0 else None, ipc)
    for worker in workers:
        worker.result()
    return workers


def all_released(workers: list[Worker], device: str) -> None:
    for worker in workers:
        within(LIMIT_S, lambda worker=worker: worker.do(num_bytes_allocated, device) < 2 << 20, "the copies are freed")  # type: ignore[misc]


@CPU_AND_GPU
def test_large_cuda_tensors_are_sent_as_handles_and_their_copies_are_freed(real_workers: Workers, device: str) -> None:
    workers = two(real_workers)
    workers[0].do(products, "w1", device, 1)
    if device != "cpu":
        within(LIMIT_S, lambda: workers[0].do(can_share_with, "w1"), "the caller knows the devices of the callee")
        within(LIMIT_S, lambda: workers[1].do(can_share_with, "w0"), "the callee knows the devices of the caller")
    before = [worker.do(num_opened) for worker in workers]
    sums, devices = workers[0].do(products, "w1", device, 20)
    whole = float((torch.arange(float(BIG)) / BIG).double().sum())
    assert sums == pytest.approx([whole * i for i in range(20)]) and devices == {device}
    count = [worker.do(num_opened) - number for worker, number in zip(workers, before, strict=True)]
    assert count == ([0, 0] if device == "cpu" else [20, 20]), "results, and arguments"
    all_released(workers, device)


@CPU_AND_GPU
def test_without_handles_all_goes_through_main_memory(real_workers: Workers, device: str) -> None:
    workers = two(real_workers, ipc="0")
    _, devices = workers[0].do(products, "w1", device, 3)
    assert devices == {device} and workers[0].do(num_opened) == workers[1].do(num_opened) == 0
    assert workers[0].do(there_and_back, "w1", device) == []


@CPU_AND_GPU
def test_values_come_back_as_they_went(real_workers: Workers, device: str) -> None:
    workers = two(real_workers)
    assert workers[0].do(there_and_back, "w1", device) == []
    all_released(workers, device)


@CPU_AND_GPU
def test_later_changes_stay_where_they_are_made(real_workers: Workers, device: str) -> None:
    assert two(real_workers)[0].do(change_there_and_here, "w1", device) == (2.0 * BIG, 0.0)


@CPU_AND_GPU
def test_what_is_still_computed_is_waited_for(real_workers: Workers, device: str) -> None:
    assert two(real_workers)[0].do(what_is_still_computed, "w1", device) == [True, True]


@CPU_AND_GPU
def test_references_and_gradients_stay_on_the_device(real_workers: Workers, device: str) -> None:
    workers = two(real_workers)
    assert workers[0].do(kept_there, "w1", device) == (device, 3.0 * BIG)
    assert workers[0].do(gradient, "w1", device) == (device, 3.0 * BIG)


@CPU_AND_GPU
def test_a_device_map_says_where_tensors_arrive(real_workers: Workers, device: str) -> None:
    workers = two(real_workers, maps={"w1": {device: device}})
    assert workers[0].do(where_it_arrives, "w1", device) == (device, device, "cpu")


@pytest.mark.gpu
def test_a_device_that_the_map_leaves_out_is_refused(real_workers: Workers) -> None:
    workers = two(real_workers, maps={"w1": {"cpu": "cpu"}})
    assert "There is no entry for cuda:0 in the device map to worker w1" in workers[0].do(send, "w1", "cuda:0")


@pytest.mark.gpu(2)
def test_a_map_leads_to_another_gpu_and_back(real_workers: Workers) -> None:
    workers = two(real_workers, maps={"w1": {"cuda:0": "cuda:1"}})
    assert workers[0].do(where_it_arrives, "w1", "cuda:0") == ("cuda:1", "cuda:0", "cpu")
    all_released(workers, "cuda:0")
