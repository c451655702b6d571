"""Takes about 10 seconds: exercise 3 of "Dive into Deep Learning" 13.5, a better allreduce, and why it is better.

"root" is the book's: device 0 gets the arrays of all others, adds, and sends the sum to each, (k - 1) S bytes either
way. With "owner" each device does so for a slice of its own, so all links work at once, each with 2 (k - 1) / k S.
Printed is what links of 16 GB/s need, on paper, and the time here. Where one CPU plays all devices nothing is copied,
and the times are those of the additions alone: no way has an advantage there.
"""

import math
import time
from typing import Any

import torch

from fanwise.parallel import allreduce

SIZE = 10_000_000  # float32 numbers, 40 MB a device
COUNTS = (2, 4, 8)
LINK = 16e9  # bytes a second in each direction: PCIe 3, 16 lanes
GPUS = torch.cuda.device_count()
TIMES_S = {  # of k devices with S bytes each, see fanwise.parallel.allreduce
    "root": lambda k, S: 2 * (k - 1) * S / LINK,
    "tree": lambda k, S: 2 * math.ceil(math.log2(k)) * S / LINK,
    "ring": lambda k, S: 2 * (k - 1) / k * S / LINK,
    "owner": lambda k, S: 2 * (k - 1) / k * S / LINK,
}


def wait() -> None:
    for number in range(GPUS):
        torch.cuda.synchronize(number)


def seconds(k: int, how: Any) -> float:
    arrays = [torch.full((SIZE,), float(j), device=f"cuda:{j % GPUS}" if GPUS else "cpu") for j in range(k)]
    wait()
    begin = time.perf_counter()
    allreduce(arrays, how)
    wait()
    taken = time.perf_counter() - begin
    assert all(bool((array == sum(range(k))).all()) for array in arrays)
    return taken


print("devices:", [f"cuda:{number}" for number in range(GPUS)] or "one CPU in the place of all")
print("k   how     on links of 16 GB/s   here")
for k in COUNTS:
    for how, on_paper in TIMES_S.items():
        fastest = min(seconds(k, how) for _ in range(3))
        print(f"{k}   {how:6}  {1e3 * on_paper(k, 4 * SIZE):8.1f} ms   {1e3 * fastest:14.1f} ms", flush=True)
