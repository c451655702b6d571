# mypy: ignore-errors
# The reason: ray lives in an environment of its own, which the type checker does not see.
"""Trials that sleep and report, with Ray Tune: see benchmarks/sleeping_trials.py.

The start of the local Ray is not measured; the dashboard is off and nothing is printed, which is in Ray's favor.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def objective(config):
    from ray import tune

    begin_s = time.monotonic()
    for number in range(1, config["results"] + 1):
        time.sleep(max(0.0, begin_s + number * config["interval_s"] - time.monotonic()))
        tune.report({"loss": config["x"] + number})


def main():
    parser = argparse.ArgumentParser()
    for name in ("trials", "workers", "results"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--interval-s", type=float)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--reuse", action="store_true")
    args = parser.parse_args()

    import ray
    from ray import tune

    ray.init(
        "local", num_cpus=args.workers, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    begin_s = time.perf_counter()
    results = tune.Tuner(
        tune.with_resources(objective, {"cpu": 1}),
        param_space={"x": tune.uniform(0, 1), "results": args.results, "interval_s": args.interval_s},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=args.trials, reuse_actors=args.reuse),
        run_config=tune.RunConfig(name="sleeping", storage_path=str(args.folder), verbose=0),
    ).fit()
    wall_s = time.perf_counter() - begin_s
    if results.num_errors or len(results) != args.trials:
        raise RuntimeError(f"{len(results)} trials, {results.num_errors} failed")
    print(json.dumps({"version": ray.__version__, "wall_s": wall_s}))
    ray.shutdown()


if __name__ == "__main__":
    main()
