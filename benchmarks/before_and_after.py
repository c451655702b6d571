"""What a change costs: this checkout beside an older one, in one run, for remote calls and data-parallel training.

    for each round, for each measure: before, after, one after the other; who begins changes --> medians of ratios

Each checkout brings its own `.venv` (made by `make check` there) and its own programs under benchmarks/peers, so that
both are asked what they understand. The measures are those of `rpc.py` and `parallel.py`.

    git worktree add ../before COMMIT && make -C ../before check
    python benchmarks/before_and_after.py ../before [--rounds 5] [--quick] [--only rpc|parallel]
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from measuring import ROOT, finish, machine, ratio_of_neighbours, say, spread, table

import parallel
import rpc
from rpc import Contestant, Running

# Named rows only: figures that say how much, not how fast, and what torch does, are left out.
RPC_ROWS = tuple(row for row in rpc.ROWS if row[0] not in ("read_alone", "idle"))


def pair(contestant: Contestant, before: Path) -> list[Contestant]:
    return [
        replace(contestant, name=f"{contestant.name}, before", checkout=before),
        replace(contestant, name=f"{contestant.name}, after", checkout=ROOT),
    ]


def compared(title: str, rows: Sequence[tuple[str, str, str, int]], running: Sequence[Running]) -> str:
    """A row a figure: before, after, and after over before."""
    cells = []
    for before, after in zip(running[::2], running[1::2], strict=True):
        who = after.contestant.name.removesuffix(", after")
        for measure, figure, text, digits in rows:
            first, second = (one.samples.get((measure, figure)) for one in (before, after))
            if first and second:
                old, new = spread(first), spread(second)
                is_paired = len(first) == len(second)
                ratio = ratio_of_neighbours(first, second) if is_paired else f"{new.median / old.median:.3f}"
                cells.append([f"{who}: {text}", old.shown(digits), new.shown(digits), ratio])
    return table([title, "before", "after", "after / before"], cells)


def remote_calls(before: Path, rounds: int, args: argparse.Namespace) -> tuple[list[str], list[Running]]:
    measures = list(dict.fromkeys(row[0] for row in RPC_ROWS))
    running = rpc.run(pair(rpc.FANWISE, before), measures, rounds, args)
    many = rpc.run(pair(rpc.WITH_OBSERVERS[0], before), ["observers"], rounds, args)
    return [
        compared("two workers on one host", [row[:4] for row in RPC_ROWS], running),
        compared(f"{rpc.OBSERVERS} workers call one", [row[:4] for row in rpc.OBSERVER_ROWS], many),
    ], [*running, *many]


def training(before: Path, rounds: int, args: argparse.Namespace) -> tuple[list[str], list[Running]]:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    ours = [one for one in parallel.trainers(cpus) if one.program == parallel.OWN]
    steps = rpc.run([each for one in ours for each in pair(one, before)], parallel.MODELS, rounds, args, anew=True)
    adders = [one for one in parallel.adders(cpus) if one.program == parallel.OWN]
    sums = rpc.run([each for one in adders for each in pair(one, before)], parallel.SUMS, rounds, args, anew=True)
    two = next(one for one in ours if one.name == parallel.TWO)
    starts = rpc.run(pair(two, before), [measure for measure, *_ in parallel.STARTS], rounds, args)
    return [
        compared("training, steps a second", [(name, "steps/s", name, 2) for name in parallel.MODELS], steps),
        compared("a sum alone, ms", [(name, "ms", name, 2) for name in parallel.SUMS], sums),
        compared("seconds", [(name, "s", text, 3) for name, text, *_ in parallel.STARTS], starts),
    ], [*steps, *sums, *starts]


PARTS = {"rpc": remote_calls, "parallel": training}


def main() -> None:
    parser = argparse.ArgumentParser(description="this checkout beside an older one")
    parser.add_argument("before", type=Path, help="the folder of the older checkout, with its .venv")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of short blocks, to see that everything works")
    parser.add_argument("--only", choices=PARTS, action="append", default=[])
    parser.set_defaults(install=False)
    args = parser.parse_args()
    before = args.before.resolve()
    if not (before / ".venv" / "bin" / "python").exists():
        parser.error(f"{before} has no .venv: run 'make check' there first")
    facts = machine()
    rounds = 1 if args.quick else args.rounds
    tables, everything = [], []
    for name, part in PARTS.items():
        if not args.only or name in args.only:
            say(name)
            shown, running = part(before, rounds, args)
            tables += shown
            everything += running
    if missing := rpc.left_out(everything):
        tables.append("\n".join(missing))
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    samples = [
        {"name": one.contestant.name, "samples": {f"{m}: {f}": values for (m, f), values in one.samples.items()}}
        for one in everything
    ]
    finish("before_and_after", tables, {"contestants": samples}, facts=facts)


if __name__ == "__main__":
    main()
