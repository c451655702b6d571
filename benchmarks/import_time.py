"""What `import fanwise`, `.tune` and `.rpc` cost, beside an interpreter that does nothing, numpy and torch.

Every measurement is a fresh interpreter; the commands take turns, so that all of them see the same machine. The first
turn only warms the disk's cache and is not counted. `fanwise.rpc` loads torch first: what it costs above that is less
than one import of torch differs from the next, so both are timed in one interpreter.

    python benchmarks/import_time.py [--rounds 20] [--only-rpc]
"""

import argparse
import os
import subprocess
import sys
import time

from measuring import finish, machine, spread, table

TORCH = "import torch"
COMMANDS = ("pass", "import fanwise", "import fanwise.tune", "import numpy", TORCH)
# Prints milliseconds of processor time.
RPC_AFTER_TORCH = """
import time
began = time.process_time()
import torch
between = time.process_time()
import fanwise.rpc
print((between - began) * 1e3, (time.process_time() - between) * 1e3)
"""


def taken(command: str) -> tuple[float, float]:
    """Milliseconds of one fresh interpreter that runs `command`: by the clock, and of processors."""
    began_s = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", command])
    _, status, used = os.wait4(process.pid, 0)
    elapsed_s = time.perf_counter() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command!r} ended with exit status {process.returncode}")
    return elapsed_s * 1e3, (used.ru_utime + used.ru_stime) * 1e3


def rpc_after_torch() -> tuple[float, float]:
    """Milliseconds of processor time: torch, then `fanwise.rpc`, in one fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", RPC_AFTER_TORCH], check=True, capture_output=True, text=True)
    torch_ms, rpc_ms = map(float, done.stdout.split())
    return torch_ms, rpc_ms


def main() -> None:
    parser = argparse.ArgumentParser(description="time of imports in fresh interpreters")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only-rpc", action="store_true", help="only fanwise.rpc beside torch")
    args = parser.parse_args()
    facts = machine()
    wall_ms: dict[str, list[float]] = {command: [] for command in COMMANDS}
    cpu_ms: dict[str, list[float]] = {command: [] for command in COMMANDS}
    rpc_ms: list[tuple[float, float]] = []
    for number in range(args.rounds + 1):
        for command in () if args.only_rpc else COMMANDS:
            wall, cpu = taken(command)
            if number > 0:
                wall_ms[command].append(wall)
                cpu_ms[command].append(cpu)
        pair = rpc_after_torch()
        if number > 0:
            rpc_ms.append(pair)
    tables = []
    if not args.only_rpc:
        nothing_ms = spread(wall_ms["pass"]).median
        rows = [
            [
                f"`python -c '{command}'`",
                spread(wall_ms[command]).shown(),
                f"{spread(wall_ms[command]).median - nothing_ms:.1f}",
                spread(cpu_ms[command]).shown(),
            ]
            for command in COMMANDS
        ]
        tables.append(table(["command", "ms", "above `pass`, ms", "processor time, ms"], rows))
    after = [spread([pair[0] for pair in rpc_ms]), spread([pair[1] for pair in rpc_ms])]
    shares = spread([100 * rpc / torch for torch, rpc in rpc_ms])
    row = [*(each.shown() for each in after), shares.shown()]
    tables.append(table(["torch, processor time, ms", "then fanwise.rpc, ms", "fanwise.rpc / torch, %"], [row]))
    payload = {"ms": wall_ms, "cpu ms": cpu_ms, "torch, then rpc, cpu ms": rpc_ms}
    finish("import_time", tables, payload, facts=facts)


if __name__ == "__main__":
    main()
