"""Takes about 5 seconds: several workers search, awaited in asyncio; the first answer counts, the rest is cancelled."""

import asyncio
import os
import random
import time

from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc

WORKERS = 3
TARGET = 0.999


def search(seed: int) -> tuple[float, int]:
    """Draw until a number is large enough. A function that computes asks now and then whether anybody waits for it."""
    chance, tries = random.Random(seed), 0
    while not rpc.cancelled():
        tries += 1
        time.sleep(0.0005)  # the work of one try
        if (found := chance.random()) > TARGET:
            return found, tries
    print(f"{rpc.get_worker_info().name} stopped after {tries} tries", flush=True)
    return 0.0, tries


async def first_of_all() -> tuple[float, int]:
    """What the first of all workers finds."""
    calls = {asyncio.ensure_future(ask(f"worker{rank}", rank)) for rank in range(1, 1 + WORKERS)}
    done, others = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()  # the task's await ends, the call is cancelled, its function hears of it
    await asyncio.gather(*others, return_exceptions=True)
    return done.pop().result()


async def ask(to: str, seed: int) -> tuple[float, int]:
    found: tuple[float, int] = await rpc.rpc_async(to, search, args=(seed,))
    return found


def work(rank: int, meet: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=1 + WORKERS, rpc_backend_options=options)
    if rank == 0:
        found, tries = asyncio.run(first_of_all())
        print(f"Found {found:.6f} after {tries} tries", flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    spawn(work, args=(f"file:///async-calls-{os.getpid()}",), nprocs=1 + WORKERS, daemon=True)
