"""Trials that sleep and report, with fanwise: see benchmarks/sleeping_trials.py."""

import argparse
import json
import os
import time
from pathlib import Path

import fanwise
from fanwise.tune import FIFO, StoppingCriterion, Tuner, report, uniform


def objective(x: float, results: int, interval_s: float) -> None:
    begin_s = time.monotonic()
    for number in range(1, results + 1):
        time.sleep(max(0.0, begin_s + number * interval_s - time.monotonic()))
        report(loss=x + number)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("trials", "workers", "results"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--interval-s", type=float)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    os.environ["FANWISE_HOME"] = str(args.folder)
    begin_s = time.perf_counter()
    experiment = Tuner(
        objective,
        {"x": uniform(0, 1), "results": args.results, "interval_s": args.interval_s},
        FIFO(metric="loss", mode="min", random_seed=1),
        StoppingCriterion(max_num_trials_started=args.trials),
        n_workers=args.workers,
        name="sleeping",
        quiet=True,
    ).run()
    wall_s = time.perf_counter() - begin_s
    done = int((experiment.trials["status"] == "Completed").sum())
    if done != args.trials:
        raise RuntimeError(f"{done} of {args.trials} trials were completed")
    print(json.dumps({"version": fanwise.__version__, "wall_s": wall_s}))


if __name__ == "__main__":
    main()
