"""How long it takes until a search of 100,000 trials goes on after a kill, and how much memory that takes.

    the simulator --facts and orders--> a record, as a tuner would have written it (once for each scheduler)
    a process of its own: Tuner.resume(folder).run()  --> first trial that begins: seconds since the call, memory

The process has imported everything before the clock starts; its pool is part of the time, and is measured alone beside
it. Trials report nine times, each with a checkpoint's name; two of a hundred still run or are paused at the end.

    python benchmarks/resume_time.py [--trials 100000] [--repeats 3]
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from measuring import finish, machine, peak_mib, say, scratch_folder, spread, table

import support_path  # noqa: F401  # isort: skip

MAX_EPOCHS = 9
N_WORKERS = 100
SCHEDULERS = ("random search", "ASHA by promotion")


def train(x: float, max_epochs: int, begun: str) -> None:
    """Says when it began, once for the first trial, and ends the search."""
    with open(begun, "a") as file:
        file.write(f"{time.monotonic()}\n")


def _loss(config: Mapping[str, object], epoch: int) -> tuple[dict[str, object], float]:
    x = config["x"]
    assert isinstance(x, float), "a hyperparameter of the space"
    return {"loss": x / epoch}, 1.0


def write_record(folder: Path, scheduler_name: str, num_trials: int) -> int:
    """Simulate; returns the number of rows."""
    from simulated_record import record_simulated

    from fanwise.tune import ASHA, FIFO, StoppingCriterion, uniform
    from fanwise.tune.record.event_file import iter_events
    from fanwise.tune.simulate import FunctionTable

    space = {"x": uniform(0, 1), "max_epochs": MAX_EPOCHS, "begun": str(folder.parent / f"{folder.name}.begun")}
    curves = FunctionTable(_loss, space)
    scheduler = (
        FIFO(metric="loss", random_seed=0)
        if scheduler_name == "random search"
        else ASHA(metric="loss", resource_attr="epoch", max_resource_attr="max_epochs", type="promotion", random_seed=0)
    )
    stop = StoppingCriterion(max_num_trials_started=num_trials)
    record_simulated(folder, scheduler, curves, stop, n_workers=N_WORKERS, objective=train)
    return sum(1 for _ in iter_events(folder))


def resume(folder: Path) -> None:
    """The measured process."""
    from fanwise.pool import Pool
    from fanwise.tune import StoppingCriterion, Tuner, load_experiment  # noqa: F401  # all that is needed is loaded

    before = peak_mib()
    pool_s = time.monotonic()
    with Pool(cpus=4, seed=0) as pool:
        pool.submit(int).result(within_s=60)
        start_s = time.monotonic()
        stop = StoppingCriterion(max_wallclock_time=1e9, max_num_evaluations=10**9)
        tuner = Tuner.resume(folder, stop=stop, n_workers=1, pool=pool, quiet=True)
        made_s = time.monotonic()
        begun = folder.parent / f"{folder.name}.begun"

        def end() -> None:
            while not begun.exists() or not begun.read_text().endswith("\n"):
                time.sleep(0.001)
            tuner.stop()

        threading.Thread(target=end, daemon=True).start()
        try:
            tuner.run()
        finally:
            first_s = float(begun.read_text().splitlines()[0])
            begun.unlink()
            peak = peak_mib()
            print(
                json.dumps(
                    {
                        "pool_s": start_s - pool_s,
                        "made_s": made_s - start_s,
                        "first_s": first_s - start_s,
                        "mib": peak - before,
                    }
                ),
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    if options.resume:
        resume(options.resume)
        return
    facts, rows, raw = machine(), [], {}
    with scratch_folder() as scratch:
        for scheduler in SCHEDULERS:
            folder = scratch / scheduler.replace(" ", "-")
            num_rows = write_record(folder, scheduler, options.trials)
            size_mib = (folder / "events.jsonl").stat().st_size / (1 << 20)
            say(f"{scheduler}: {num_rows:,} rows, {size_mib:.0f} MiB")
            found = []
            for _ in range(options.repeats):
                command = [sys.executable, __file__, "--resume", str(folder)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found.append(json.loads(done.stdout.splitlines()[-1]))
            raw[scheduler] = found
            columns = [
                spread([one[key] for one in found]).shown(digits) for key, digits in (("first_s", 1), ("mib", 0))
            ]
            rows.append([scheduler, f"{num_rows:,}", f"{size_mib:.0f}", *columns])
    header = ["scheduler", "rows", "record, MiB", "until the first trial begins, s", "memory, MiB"]
    finish("resume_time", [table(header, rows)], {"seconds": raw}, facts=facts)


if __name__ == "__main__":
    main()
