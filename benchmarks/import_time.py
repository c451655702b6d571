"""What `import fanwise` and `import fanwise.tune` cost, beside an interpreter that does nothing.

Every measurement is a fresh interpreter; the commands take turns, so that all of them see the same machine. The first
turn only warms the disk's cache and is not counted.

    python benchmarks/import_time.py [--rounds 20]
"""

import argparse
import subprocess
import sys
import time

from measuring import finish, machine, spread, table

COMMANDS = ("pass", "import fanwise", "import fanwise.tune", "import numpy", "import torch")


def seconds(command: str) -> float:
    """Wall time of one fresh interpreter that runs `command`."""
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", command], check=True)
    return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description="wall time of imports in fresh interpreters")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    facts = machine()
    taken_ms: dict[str, list[float]] = {command: [] for command in COMMANDS}
    for number in range(args.rounds + 1):
        for command in COMMANDS:
            elapsed_s = seconds(command)
            if number > 0:
                taken_ms[command].append(elapsed_s * 1e3)
    nothing_ms = spread(taken_ms["pass"]).median
    rows = [
        [
            f"`python -c '{command}'`",
            spread(taken_ms[command]).shown(),
            f"{spread(taken_ms[command]).median - nothing_ms:.1f}",
        ]
        for command in COMMANDS
    ]
    finish("import_time", [table(["command", "ms", "above `pass`, ms"], rows)], {"ms": taken_ms}, facts=facts)


if __name__ == "__main__":
    main()
