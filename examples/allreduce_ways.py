"""Takes about 20 seconds: exercise 3 of "Dive into Deep Learning" 13.5, a better allreduce, and why it is better.

"root" is the book's: device 0 gets the arrays of all others, adds, and sends the sum to each, (k - 1) S bytes either
way. With "owner" each device does so for a slice of its own, so all links work at once, each with 2 (k - 1) / k S.
It prints the time that links of 16 GB/s need in theory, and the time measured here: the median of rounds in which the
algorithms take turns. If one CPU simulates all devices, nothing is copied between them: no algorithm has an advantage.
"""

import math
import time
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from fanwise.parallel import allreduce

Algorithm = Literal["root", "tree", "ring", "owner"]
SIZE = 10_000_000  # float32 numbers, 40 MB a device
COUNTS = (2, 4, 8)  # of devices: k
ALGORITHMS: tuple[Algorithm, ...] = ("root", "tree", "ring", "owner")
ROUNDS = 7
LINK = 16e9  # bytes a second in each direction: PCIe 3, 16 lanes
GPUS = torch.cuda.device_count()
torch.set_num_threads(1)  # so that the times are of additions, and not of threads that wait for each other


def on_paper_ms(algorithm: Algorithm, k: int) -> float:
    """What the busiest link needs, see fanwise.parallel.allreduce."""
    arrays = {"root": k - 1, "tree": math.ceil(math.log2(k)), "ring": (k - 1) / k, "owner": (k - 1) / k}
    return 1e3 * 2 * arrays[algorithm] * 4 * SIZE / LINK


def wait() -> None:
    for number in range(GPUS):
        torch.cuda.synchronize(number)


def measured_ms(algorithm: Algorithm, arrays: list[Tensor]) -> float:
    wait()
    begin = time.perf_counter()
    allreduce(arrays, algorithm)
    wait()
    return 1e3 * (time.perf_counter() - begin)


def on_devices(k: int, size: int) -> list[Tensor]:
    return [torch.randn(size).to(f"cuda:{number % GPUS}" if GPUS else "cpu") for number in range(k)]


print("devices:", [f"cuda:{number}" for number in range(GPUS)] or "one CPU in the place of all")
print("k  algorithm  on links of 16 GB/s   here   bits of the owner's")
for k in COUNTS:
    arrays, same = on_devices(k, SIZE), on_devices(k, 1000)
    rounds = [{algorithm: measured_ms(algorithm, arrays) for algorithm in ALGORITHMS} for _ in range(ROUNDS)]
    sums = {algorithm: allreduce([array.clone() for array in same], algorithm)[-1] for algorithm in ALGORITHMS}
    for algorithm in ALGORITHMS:
        here = median(times[algorithm] for times in rounds)
        bits = "equal" if torch.equal(sums[algorithm], sums["owner"]) else "other"
        print(f"{k}  {algorithm:9}  {on_paper_ms(algorithm, k):13.1f} ms  {here:9.1f} ms   {bits}", flush=True)
