"""What a scheduler does on 1 to 10,000 workers, and how fast the simulator is. One core; small: 4 minutes, full: 20.

Quick only shows that it runs: an easy target, one table.

time to target   ASHA on tests/support/learning_curves.py, to a loss that costs some 4,000 full trainings on one
                 worker; without loss the time falls linearly: speed-up = number of workers
utilization      ASHA and random search on the LCBench tables, virtual hours of 100 workers, where the tables are
events a second   of processor time: the state machine with its scheduler and searcher, and the simulator around them
memory           resident memory of a process after 100,000 and after 1,000,000 simulated trials

    python benchmarks/simulate_scaling.py [--size quick | small | full] [--tables events ...]
"""

import argparse
import gc
import itertools
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from curve_tables import lcbench_curves
from measuring import finish, machine, peak_mib, say, spread, table

from fanwise.tune import FIFO, Scheduler, StoppingCriterion
from fanwise.tune.core.actions import Action
from fanwise.tune.core.events import Event
from fanwise.tune.core.search_core import SearchCore
from fanwise.tune.schedulers import ASHA
from fanwise.tune.simulate import simulate

import support_path  # noqa: F401  # isort: skip
from learning_curves import curves  # isort: skip

MAX_EPOCHS = 64
TARGET = 0.034  # of the family's least loss of 0.0039: one in some 100,000 configurations gets there
EASY = 0.2
TABLES = Path(__file__).resolve().parents[2] / "shared" / "data" / "lcbench-curves"
REPETITIONS = 3


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run. `memory`: the two numbers of trials; `speed`: trials for each kind of scheduler."""

    seeds: range
    num_workers: Sequence[int]
    speed: int
    speed_workers: Sequence[int]
    memory: tuple[int, int]
    tables: int = 6
    table_s: float = 3600.0
    target: float = TARGET


MANY = (1, 10, 100, 500, 1_000, 10_000)
SIZES = {
    "quick": Size(range(1, 2), (1, 100), 200, (4, 100), (1_000, 2_000), tables=1, table_s=60.0, target=EASY),
    "small": Size(range(1, 3), MANY, 8_000, (4, 1_000, 10_000), (20_000, 100_000)),
    "full": Size(range(1, 7), MANY, 40_000, (4, 1_000, 10_000), (100_000, 1_000_000)),
}


def asha(kind: str, metric: str = "loss", mode: str = "min", eta: int = 4) -> Scheduler:
    return ASHA(
        metric=metric,
        mode=mode,  # type: ignore[arg-type]  # one of the two
        resource_attr="epoch",
        max_resource_attr="max_epochs",
        grace_period=1,
        reduction_factor=eta,
        type=kind,  # type: ignore[arg-type]  # one of the two
    )


def scaling(size: Size, payload: dict[str, object]) -> str:
    """Time to target over the number of workers."""
    stop = StoppingCriterion(min_metric_value=size.target)
    family = curves(MAX_EPOCHS)
    rows, raw = [], {}
    for kind in ("stopping", "promotion"):
        seconds: dict[int, list[float]] = {}
        for n_workers in size.num_workers:
            searches = [simulate(asha(kind), family, stop, n_workers=n_workers, seed=seed) for seed in size.seeds]
            seconds[n_workers] = [search.duration_s for search in searches]
            total_s, one_s = sum(seconds[n_workers]), sum(seconds[1])
            trainings = [each * n_workers / MAX_EPOCHS for each in seconds[n_workers]]
            rows.append(
                [
                    kind,
                    f"{n_workers:,}",
                    spread(seconds[n_workers]).shown(0),
                    f"{statistics.fmean(trainings):,.0f}",
                    f"{one_s / total_s:,.1f}",
                    f"{one_s / total_s / n_workers:.3f}",
                    f"{min(search.utilization for search in searches):.3f}",
                ]
            )
            say(f"  ASHA {kind}, {n_workers} workers: {seconds[n_workers]}")
        raw[kind] = seconds
    payload["seconds_to_target"] = raw
    header = ["ASHA", "workers", "virtual s to target", "full trainings", "speed-up", "of linear", "utilization"]
    return table(header, rows)


def utilization(size: Size, payload: dict[str, object]) -> str:
    """Virtual utilization on the tables, with a second of start-up for each attempt."""
    stop = StoppingCriterion(max_wallclock_time=size.table_s)
    rows = []
    for path in sorted(TABLES.glob("task_*.npz"))[: size.tables]:
        curve_table = lcbench_curves(path)
        schedulers = {
            "random search": FIFO(metric="val_accuracy", mode="max"),
            "ASHA stopping": asha("stopping", "val_accuracy", "max", 3),
            "ASHA promotion": asha("promotion", "val_accuracy", "max", 3),
        }
        for name, scheduler in schedulers.items():
            for startup_s in (0.0, 0.3):
                search = simulate(scheduler, curve_table, stop, n_workers=100, startup_s=startup_s)
                rows.append(
                    [
                        path.stem,
                        name,
                        f"{startup_s:g}",
                        f"{search.num_trials_started:,}",
                        f"{search.best_value_at(math.inf):.2f}",
                        f"{search.utilization:.4f}",
                    ]
                )
        say(f"  {path.stem}")
    payload["utilization"] = rows
    return table(["LCBench", "scheduler", "start-up s", "trials", "best accuracy %", "utilization"], rows)


def recorded(scheduler: Callable[[], Scheduler], n_workers: int, trials: int, *, checkpoints: bool) -> list[Event]:
    """The events of a simulated search.

    No search keeps its events, so the collector is told to leave them alone: else it looks at all of them again and
    again while the state machine is timed.
    """
    history: list[Event] = []

    def note(event: Event, actions: list[Action]) -> None:
        history.append(event)

    stop = StoppingCriterion(max_num_trials_started=trials)
    simulate(scheduler(), curves(MAX_EPOCHS), stop, n_workers=n_workers, checkpoints=checkpoints, on_event=note)
    gc.collect()
    gc.freeze()
    return history


def speed(size: Size, payload: dict[str, object]) -> str:
    """Events a second: of the state machine alone, events handed in again, and of whole simulated searches."""
    schedulers: Mapping[str, Callable[[], Scheduler]] = {
        "random search": lambda: FIFO(metric="loss"),
        "ASHA stopping": lambda: asha("stopping"),
        "ASHA promotion": lambda: asha("promotion"),
    }
    rows = []
    for (name, make), n_workers in itertools.product(schedulers.items(), size.speed_workers):
        number = max(n_workers, size.speed if name != "random search" else size.speed // 8)
        checkpoints = name == "ASHA promotion"  # the others pause nobody
        history = recorded(make, n_workers, number, checkpoints=checkpoints)
        alone, whole = [], []
        for _ in range(REPETITIONS):
            scheduler, space = make(), curves(MAX_EPOCHS).space
            scheduler.begin(space, 0)
            stop = StoppingCriterion(max_num_trials_started=number)
            core = SearchCore(scheduler, space, stop, n_workers=n_workers)
            gc.collect()  # of the one before
            began_s = time.process_time()
            for event in history:
                core.handle(event)
            alone.append(len(history) / (time.process_time() - began_s))
            began_s = time.process_time()
            search = simulate(make(), curves(MAX_EPOCHS), stop, n_workers=n_workers, checkpoints=checkpoints)
            whole.append(search.num_events / (time.process_time() - began_s))
        rows.append([name, f"{n_workers:,}", f"{len(history):,}", spread(alone).shown(0), spread(whole).shown(0)])
        say(f"  {rows[-1]}")
    payload["facts_per_s"] = rows
    return table(["scheduler", "workers", "events", "state machine, events/s", "simulator, events/s"], rows)


def resident_mib(kind: str, trials: int) -> None:
    """The measured process: prints the most memory that it had."""
    scheduler = FIFO(metric="loss") if kind == "random" else asha(kind)
    family = curves(1 if kind == "random" else 16)
    simulate(scheduler, family, StoppingCriterion(max_num_trials_started=trials), n_workers=1_000)
    print(peak_mib())


def memory(size: Size, payload: dict[str, object]) -> str:
    """Growth of memory between two numbers of trials."""
    rows, numbers = [], size.memory
    for kind in ("random", "stopping", "promotion"):
        mib = []
        for number in numbers:
            command = [sys.executable, __file__, "--memory-of", kind, "--trials", str(number)]
            mib.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        grown = (mib[1] - mib[0]) * 2**20 / (numbers[1] - numbers[0])
        rows.append([kind, *(f"{each:.1f}" for each in mib), f"{grown:.1f}"])
        say(f"  {rows[-1]}")
    payload["memory"] = rows
    return table(["scheduler", *(f"MiB after {number:,} trials" for number in numbers), "bytes a further trial"], rows)


PARTS = {"events": speed, "memory": memory, "utilization": utilization, "scaling": scaling}


def main() -> None:
    parser = argparse.ArgumentParser(description="simulated searches on 1 to 10,000 workers")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--tables", action="append", default=[], choices=list(PARTS), help="may repeat; default: all")
    parser.add_argument("--memory-of", choices=["random", "stopping", "promotion"], help=argparse.SUPPRESS)
    parser.add_argument("--trials", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of is not None:
        resident_mib(args.memory_of, args.trials)
        return
    events, payload = machine(), dict[str, object]()
    size = SIZES[args.size]
    parts = [name for name in args.tables or PARTS if name != "utilization" or TABLES.is_dir()]
    tables = [PARTS[name](size, payload) for name in parts]
    finish("simulate_scaling", tables, payload, facts=events)


if __name__ == "__main__":
    main()
