"""What all benchmarks share: the spread of repeated numbers, a table, the machine, a place for results and for scratch.

A benchmark never says "fast enough" and never fails because of a number: it prints what it measured, beside what it
compares with, from the same run on the same machine. The tables are Markdown, so that docs/benchmarks.md can quote
them. The raw numbers go to `.bench-results/` (ignored by git) as JSON.

Scratch folders lie there too and not in the system's temporary folder: that one is often kept in memory, and then
durable writes would look cheaper than they are.
"""

import json
import math
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".bench-results"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of some repeated measurements, in their unit."""

    median: float
    least: float
    greatest: float

    def shown(self, digits: int = 1) -> str:
        """As a table cell: `7.3 (7.1-7.9)`, or the median alone when there was one measurement."""
        if self.least == self.greatest:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.least:.{digits}f}-{self.greatest:.{digits}f})"


@dataclass(frozen=True, slots=True)
class Beside:
    """What a benchmark has found out: how many times as fast as its peer something of ours is; below 1: slower.

    `times` is None where there is nothing to compare: `trouble` says why ours, or `no_peer` why the peer, did not run.
    """

    ours: str
    peer: str
    times: float | None
    trouble: str = ""
    no_peer: str = ""


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def ratio_of_neighbours(before: Sequence[float], after: Sequence[float]) -> str:
    """The median of after / before, round by round, with the interval that holds it in 95 of 100 series of rounds.

    What slows the machine for a minute slows both of a round, so this says more than the ratio of the medians. The
    interval is that of the sign test: between two order statistics. Under six rounds there is none.
    """
    ratios = sorted(new / old for old, new in zip(before, after, strict=True))
    count, shown = len(ratios), f"{statistics.median(ratios):.3f}"
    if count < 6:
        return shown
    outside = max(k for k in range(count // 2) if 2 * sum(math.comb(count, i) for i in range(k + 1)) <= 0.05 * 2**count)
    return f"{shown} ({ratios[outside]:.3f}-{ratios[count - 1 - outside]:.3f})"


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which about `share` (0 to 1) of the values lie: the nearest one that was measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines
    )


def machine() -> dict[str, str]:
    """What a reader must know about the machine, the load on it before the benchmark included."""
    facts = {
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "day": time.strftime("%Y-%m-%d"),
    }
    return facts


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def peak_mib() -> float:
    """The most memory that this process has had. Not `ru_maxrss`: that begins with what the process which started this
    one had at that moment, however small this one is."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def say(text: str) -> None:
    """One line of progress, on stderr, so that stdout holds the tables alone."""
    print(text, file=sys.stderr, flush=True)


def finish(
    name: str,
    tables: Sequence[str],
    payload: Mapping[str, object],
    *,
    facts: Mapping[str, str],
    beside: Sequence[Beside] = (),
) -> None:
    """Print the tables with the machine below, and write everything to `.bench-results/NAME-<time>.json`.

    Args:
        beside: what `make gpu-check` tells of it.
    """
    print("\n\n".join(tables))
    print("\n" + "; ".join(f"{key}: {value}" for key, value in facts.items()))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    written = {"benchmark": name, "machine": dict(facts), "beside": [asdict(each) for each in beside], **payload}
    path.write_text(json.dumps(written, indent=1) + "\n")
    say(f"written: {path.relative_to(ROOT)}")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder on the disk of the checkout, removed at the end."""
    RESULTS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="scratch-", dir=RESULTS))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
