"""On a GPU: how long after its begin a trial has run its first kernel, in a forked and in a reused process.

A forked trial pays for its CUDA context (the warm process must not have one); a reused process pays once. Beside them a
fresh interpreter that imports torch and does the same. Without a GPU it says so and measures nothing.

    python benchmarks/first_kernel.py [--trials 20]
"""

import argparse
import os
import subprocess
import sys
import time
from statistics import median

from measuring import Beside, finish, machine, say, scratch_folder, spread, table

from fanwise.pool import Pool

FRESH = "import torch; torch.ones(1, device='cuda').sum().item()"


def first_kernel_s() -> float:
    """Seconds from the begin of the function until a kernel has run and its result is here."""
    began_s = time.monotonic()
    import torch

    torch.ones(1, device="cuda").sum().item()
    return time.monotonic() - began_s


def measure(reuse: bool, trials: int) -> list[float]:
    """The first kernel of each of `trials` jobs, one after another; the first job of the pool is not counted."""
    with Pool() as pool:
        seconds = [pool.needs(gpus=1, reuse=reuse).submit(first_kernel_s).result(120) for _ in range(trials + 1)]
    return [1e3 * value for value in seconds[1:]]


def fresh_interpreter() -> float:
    """Milliseconds of an interpreter of its own that runs one kernel."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", FRESH], check=True)
    return 1e3 * (time.monotonic() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="time to the first kernel of a trial on a GPU")
    parser.add_argument("--trials", type=int, default=20)
    args = parser.parse_args()
    with Pool() as pool:
        if not pool.machine.gpus:
            say("first_kernel: no GPU was found here; nothing is measured")
            return
    facts = machine()
    with scratch_folder() as folder:
        os.environ["FANWISE_HOME"] = str(folder)
        taken = {
            "fanwise, fork": measure(False, args.trials),
            "fanwise, reuse": measure(True, args.trials),
            "fresh interpreter": [fresh_interpreter() for _ in range(max(3, args.trials // 4))],
        }
    base = median(taken["fanwise, fork"])
    rows = [[name, spread(values).shown(), f"{median(values) / base:.2f}"] for name, values in taken.items()]
    peer = "fresh interpreter"
    beside = [Beside(name, peer, median(taken[peer]) / median(taken[name])) for name in taken if name != peer]
    shown = table(["", "ms to the first kernel", "ratio to fork"], rows)
    finish("first_kernel", [shown], {"ms": taken}, facts=facts, beside=beside)


if __name__ == "__main__":
    main()
