"""What a program does first: it joins, calls, makes a value there, sends a tensor of 1 MiB. Each is written down."""

import os

import rpc_sections
import torch
from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc

MIB_FLOATS = 1 << 18


def noop(value: int) -> int:
    return value


def read_all(x: torch.Tensor) -> float:
    return float(x.sum())


def begin() -> None:
    x = torch.ones(MIB_FLOATS)
    read_all(x)
    rpc_sections.mark("before the first call")
    rpc.rpc_sync("worker1", noop, args=(1,))
    rpc_sections.mark("first rpc_sync")
    rpc.remote("worker1", noop, args=(1,)).to_here()
    rpc_sections.mark("first remote, to_here")
    rpc.rpc_sync("worker1", read_all, args=(x,))
    rpc_sections.mark("first 1 MiB")
    rpc.rpc_sync("worker1", read_all, args=(x,))
    rpc_sections.mark("second 1 MiB")


def work(rank: int, meet: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        begin()
    rpc.shutdown()


if __name__ == "__main__":
    spawn(work, args=(f"file:///first-{os.getpid()}",), nprocs=2, daemon=True)
