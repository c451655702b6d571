# mypy: ignore-errors
# The reason: ray lives in an environment of its own, which the type checker does not see.
"""No-op trials with Ray Tune 2.60: a function trainable, two CPUs, one CPU a trial.

What its current interface wants: results are reported with `ray.tune.report({...})`; settings go into `TuneConfig` and
`ray.tune.RunConfig`. Every trial is an actor in a process of its own; with `--reuse` (`reuse_actors=True`) the
processes are kept. The start of the local Ray is part of the cold start, as the start of our pool is part of ours. The
dashboard is off and nothing is printed, which is in Ray's favour.
"""

import os
from pathlib import Path

import marks

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["PYTHONPATH"] = str(Path(__file__).parent)


def objective(config):
    import marks

    marks.mark()
    import torch  # noqa: F401
    from ray import tune

    for i in range(3):
        tune.report({"loss": config["x"] + i})


def main():
    args = marks.arguments("reuse")

    import ray
    from ray import tune

    run = marks.Run.begin("ray tune, reuse_actors" if args.reuse else "ray tune", ray.__version__, args.folder)
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    tuner = tune.Tuner(
        tune.with_resources(objective, {"cpu": 1}),
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=args.trials, reuse_actors=args.reuse),
        run_config=tune.RunConfig(name="noop", storage_path=str(args.folder), verbose=0),
    )
    results = tuner.fit()
    run.end()
    if results.num_errors:
        raise RuntimeError(f"{results.num_errors} of {args.trials} trials failed: {results.errors[0]}")
    ray.shutdown()


if __name__ == "__main__":
    main()
