"""Data-parallel training on two CPUs: fanwise.run beside a plain loop, two processes that exchange nothing, and DDP.

    for each round, for each model: every contestant trains for about two seconds --JSON lines--> steps a second
    then sums alone beside Gloo's, launches, and the time from a SIGKILL until the step it hit is done

Within a round all contestants are alive and take turns, so that a slow minute of the machine hits all of them; who
rests waits for a line and needs no processor. Each round has new processes: how the memory of a process happens to lie
makes a step of LeNet up to a third slower, for as long as the process lives. Each is pinned to a CPU of its own and
computes with one thread; "one process, 2 threads" has both CPUs. Data, batches (256 over all processes) and optimizer
are the same, see `peers/parallel_measures.py`. A number is the median of the rounds, with the least and the greatest; a
ratio is one of medians, beside what must hold. What cannot start, or fails, is left out with the reason.

    python benchmarks/parallel.py [--rounds 5] [--quick]
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from measuring import Spread, finish, machine, say, spread, table

from rpc import Contestant, Running, left_out, run

OWN, TORCH = "parallel_fanwise.py", "parallel_torch.py"
MODELS = ("LeNet", "MLP")

PLAIN, THREADS, APART, DDP = "plain loop", "plain loop, 2 threads", "2 processes, no exchange", "DDP over Gloo"
# As processes of fanwise.run do: what is left is the price of the exchange.
APART_KEPT = "the same, freed memory kept"
ONE, ONE_FOUR, TWO, FAST, FOUR, EIGHT = (
    "fanwise, 1 device, 1 shard",
    "fanwise, 1 device, 4 shards",
    "fanwise, 2 processes",
    "fanwise, 2 processes, fast",
    "fanwise, 2 processes, 4 shards",
    "fanwise, 2 processes, 8 shards",
)
SHARED, GLOO = "fanwise, not copied back", "Gloo"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The first over the second, and what must hold, for each column."""

    text: str
    first: str
    second: str
    wanted: tuple[str, ...]


RATIOS = (
    Ratio("1 device / plain loop, 1 thread", ONE, PLAIN, (">= 0.98", ">= 0.98")),
    Ratio("2 processes / the same without exchange", TWO, APART, (">= 0.95", ">= 0.88")),
    Ratio("2 processes / the same, freed memory kept", TWO, APART_KEPT, (">= 0.95", ">= 0.88")),
    Ratio("2 processes / DDP over Gloo", TWO, DDP, (">= 1.15", ">= 1.3")),
    Ratio("2 processes / 1 process, 2 threads", TWO, THREADS, ("", "")),
    Ratio("exact / fast", TWO, FAST, ("", "")),
    Ratio("by default: 4 shards / 1, 1 device", ONE_FOUR, ONE, ("", "")),
    Ratio("by default: 4 shards / 2, 2 processes", FOUR, TWO, ("", "")),
    Ratio("8 shards / 2, 2 processes", EIGHT, TWO, ("", "")),
    Ratio("DDP over Gloo / the same without exchange", DDP, APART, ("", "")),
)
SUMS = ("allreduce 45 MB", "allreduce 0.5 MB")
# Of times, so the other's comes first. What is not copied back is read where it lies, as a step does.
SUM_RATIOS = (
    Ratio("Gloo's time / ours", GLOO, TWO, (">= 3", "")),
    Ratio("Gloo's time / ours, not copied back", GLOO, SHARED, ("", "")),
)
# (measure, how the row is called, digits, what must hold)
STARTS = (
    ("launch", "fanwise.run until the first step is done, warm, s", 3, "<= 0.15"),
    ("cold launch", "the same, the first call of a process, s", 1, ""),
    ("recovery", "SIGKILL of a rank until the step it hit is done, s", 3, "<= 1"),
)


def trainers(cpus: Sequence[int]) -> list[Contestant]:
    one, two = f"{cpus[0]}", f"{cpus[0]},{cpus[1]}"
    return [
        Contestant(PLAIN, TORCH, ("--cpus", one)),
        Contestant(ONE, OWN, ("--cpus", one)),
        Contestant(ONE_FOUR, OWN, ("--cpus", one, "--shards", "4")),
        Contestant(THREADS, TORCH, ("--cpus", two, "--together")),
        Contestant(APART, TORCH, ("--cpus", two)),
        Contestant(APART_KEPT, TORCH, ("--cpus", two, "--kept")),
        Contestant(TWO, OWN, ("--cpus", two)),
        Contestant(DDP, TORCH, ("--cpus", two, "--gloo")),
        Contestant(FAST, OWN, ("--cpus", two, "--reduce", "fast")),
        Contestant(FOUR, OWN, ("--cpus", two, "--shards", "4")),
        Contestant(EIGHT, OWN, ("--cpus", two, "--shards", "8")),
    ]


def adders(cpus: Sequence[int]) -> list[Contestant]:
    two = f"{cpus[0]},{cpus[1]}"
    return [
        Contestant(TWO, OWN, ("--cpus", two)),
        Contestant(SHARED, OWN, ("--cpus", two, "--shared")),
        Contestant(GLOO, TORCH, ("--cpus", two, "--gloo")),
    ]


def measured(running: Sequence[Running], figure: str) -> dict[tuple[str, str], Spread]:
    """Of a contestant's name and a measure."""
    return {
        (one.contestant.name, measure): spread(values)
        for one in running
        for (measure, found), values in one.samples.items()
        if found == figure
    }


def shown(title: str, running: Sequence[Running], measures: Sequence[str], figure: str, digits: int) -> str:
    """A row a contestant, a column a measure."""
    found = measured(running, figure)
    rows = []
    for one in running:
        name = one.contestant.name
        cells = [found[name, measure].shown(digits) if (name, measure) in found else "-" for measure in measures]
        rows.append([name, one.version, *cells])
    return table([title, "version", *measures], rows)


def compared(
    ratios: Sequence[Ratio], running: Sequence[Running], measures: Sequence[str], figure: str, digits: int
) -> str:
    """A row a ratio; beside each what must hold."""
    found = measured(running, figure)
    rows = []
    for ratio in ratios:
        cells = []
        for measure, wanted in zip(measures, ratio.wanted, strict=True):
            one, other = found.get((ratio.first, measure)), found.get((ratio.second, measure))
            cells += [f"{one.median / other.median:.{digits}f}" if one and other else "-", wanted]
        rows.append([ratio.text, *cells])
    header = [cell for measure in measures for cell in (measure, "must hold")]
    return table(["ratio of medians", *header], rows)


def starts(running: Sequence[Running]) -> str:
    found = measured(running, "s")
    rows = []
    for measure, text, digits, wanted in STARTS:
        seen = found.get((TWO, measure))
        rows.append([text, "-" if seen is None else seen.shown(digits), wanted])
    return table(["two processes", TWO, "must hold"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="data-parallel training on two CPUs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of short blocks, to see that everything works")
    parser.set_defaults(install=False)
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        sys.exit("benchmarks/parallel.py needs two CPUs; this process may use one")
    facts = machine()
    facts["pinned to"] = " ".join(map(str, cpus))
    rounds = 1 if args.quick else args.rounds
    say("training")
    training = run(trainers(cpus), MODELS, rounds, args, anew=True)
    say("sums")
    adding = run(adders(cpus), SUMS, rounds, args, anew=True)
    say("launches and kills")
    launching = [one for one in trainers(cpus) if one.name == TWO]
    starting = run(launching, [measure for measure, *_ in STARTS], rounds, args)
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    tables = [
        shown("training, steps a second", training, MODELS, "steps/s", 2),
        compared(RATIOS, training, MODELS, "steps/s", 3),
        shown("a sum alone, two processes, ms", adding, SUMS, "ms", 2),
        compared(SUM_RATIOS, adding, SUMS, "ms", 2),
        starts(starting),
    ]
    everything = [*training, *adding, *starting]
    if missing := left_out(everything):
        tables.append("\n".join(missing))
    samples = [
        {
            "name": one.contestant.name,
            "version": one.version,
            "trouble": one.trouble,
            "samples": {f"{measure}: {figure}": values for (measure, figure), values in one.samples.items()},
        }
        for one in everything
    ]
    finish("parallel", tables, {"contestants": samples}, facts=facts)


if __name__ == "__main__":
    main()
