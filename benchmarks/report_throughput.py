"""Durable reports a second into one tuner, and how long a worker waits for its decision.

    two workers --report--> tuner: commit --decision--> the worker's next report

Part 1, flat out: each of two trials reports as fast as it can, and every report waits for its decision, which leaves
after the commit of its turn. Afterwards the record must hold exactly as many reports as were answered.
Part 2, paced: both trials report 1,000 times a second, and each worker measures its own calls of `report`. A worker
that falls behind its pace goes on at once; how often that happened is printed.

Durable means what the record promises: committed before the answer, so that a killed tuner loses nothing that was
answered, and synced to the disk within 0.15 s, so that a power cut loses no more than that.

    python benchmarks/report_throughput.py [--rounds 3] [--quick]
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring import Spread, finish, machine, quantile, say, scratch_folder, spread, table

from fanwise.tune import FIFO, StoppingCriterion, Tuner, load_experiment, report, uniform

N_WORKERS = 2
PACE_PER_S = 1000


@dataclass(frozen=True, slots=True)
class Worked:
    """What one trial measured of itself, times on the clock that all processes of the machine share."""

    first_s: float
    last_s: float
    waits_s: list[float]
    num_late: int


def flat_out(x: float, num_reports: int, folder: str) -> None:
    """Report `num_reports` times without a pause."""
    first_s = time.monotonic()
    for i in range(num_reports):
        report(loss=x + i)
    keep(folder, Worked(first_s, time.monotonic(), [], 0))


def paced(x: float, num_reports: int, folder: str) -> None:
    """Report `num_reports` times at PACE_PER_S, and time each call."""
    waits_s: list[float] = []
    num_late = 0
    first_s = time.monotonic()
    for i in range(num_reports):
        pause_s = first_s + i / PACE_PER_S - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
        else:
            num_late += 1
        called_s = time.perf_counter()
        report(loss=x + i)
        waits_s.append(time.perf_counter() - called_s)
    keep(folder, Worked(first_s, time.monotonic(), waits_s, num_late))


def keep(folder: str, worked: Worked) -> None:
    """Leave the numbers of this trial where the benchmark finds them."""
    (Path(folder) / f"worked-{os.getpid()}.json").write_text(json.dumps(asdict(worked)))


def search(objective: Callable[..., None], name: str, num_reports: int, folder: Path) -> list[Worked]:
    """Two trials of `num_reports` reports each, side by side.

    Raises:
        RuntimeError: a trial did not come to its end, or the record does not hold exactly what was answered.
    """
    os.environ["FANWISE_HOME"] = str(folder)
    tuner = Tuner(
        objective,
        {"x": uniform(0, 1), "num_reports": num_reports, "folder": str(folder)},
        FIFO(metric="loss", mode="min", random_seed=1),
        StoppingCriterion(max_num_trials_started=N_WORKERS),
        n_workers=N_WORKERS,
        name=name,
        quiet=True,
    )
    tuner.run()
    files = sorted(folder.glob("worked-*.json"))
    num_recorded = len(load_experiment(name).results)
    if len(files) != N_WORKERS or num_recorded != N_WORKERS * num_reports:
        wanted = f"{N_WORKERS} trials and {N_WORKERS * num_reports} reports"
        raise RuntimeError(f"wanted {wanted}, got {len(files)} trials and {num_recorded} reports")
    return [Worked(**json.loads(file.read_text())) for file in files]


def reports_per_s(num_reports: int) -> float:
    """Part 1: all reports over the time from the first call of any worker to the last answer of any."""
    with scratch_folder() as folder:
        workers = search(flat_out, "flat-out", num_reports, folder)
    elapsed_s = max(one.last_s for one in workers) - min(one.first_s for one in workers)
    return N_WORKERS * num_reports / elapsed_s


def waits_ms(num_reports: int) -> tuple[list[float], int]:
    """Part 2: how long each call of `report` took, of both workers, and how many calls were behind the pace."""
    with scratch_folder() as folder:
        workers = search(paced, "paced", num_reports, folder)
    return [wait_s * 1e3 for one in workers for wait_s in one.waits_s], sum(one.num_late for one in workers)


def shown(rates: Spread, p50: Spread, p99: Spread, late: Spread) -> str:
    """The table of the benchmark."""
    rows = [
        ["durable reports a second, 2 workers, each waits for its decision", rates.shown(0)],
        [f"decision after a report, both workers at {PACE_PER_S}/s, p50, ms", p50.shown(2)],
        ["the same, p99, ms", p99.shown(2)],
        ["reports behind the pace, % of all", late.shown(1)],
    ]
    return table(["reports", "measured"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="durable reports a second, and the wait for a decision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the reports")
    args = parser.parse_args()
    num_flat_out, num_paced = (5_000, 1_000) if args.quick else (50_000, 10_000)
    facts = machine()
    rates: list[float] = []
    p50: list[float] = []
    p99: list[float] = []
    late: list[float] = []
    for number in range(1 if args.quick else args.rounds):
        rates.append(reports_per_s(num_flat_out))
        waits, num_late = waits_ms(num_paced)
        p50.append(quantile(waits, 0.5))
        p99.append(quantile(waits, 0.99))
        late.append(100 * num_late / len(waits))
        say(f"round {number + 1}: {rates[-1]:.0f} reports/s; wait p50 {p50[-1]:.2f} ms, p99 {p99[-1]:.2f} ms")
    payload = {"reports_per_s": rates, "wait_p50_ms": p50, "wait_p99_ms": p99, "late_percent": late}
    finish("report_throughput", [shown(spread(rates), spread(p50), spread(p99), spread(late))], payload, facts=facts)


if __name__ == "__main__":
    main()
