# mypy: ignore-errors
# The reason: optuna and rustuna live in environments of their own, which the type checker does not see.
"""Processor time of a study over 40 numbers with Optuna 5 or Rustuna: see benchmarks/suggestion_time.py."""

import argparse
import importlib
import json
import time

NUM_DIMS = 40


def objective(trial):
    values = [trial.suggest_float(f"x{d}", 0, 1) for d in range(NUM_DIMS)]
    return sum((value - 0.3) ** 2 for value in values)


def two_objectives(trial):
    values = [trial.suggest_float(f"x{d}", 0, 1) for d in range(NUM_DIMS)]
    return sum((value - 0.3) ** 2 for value in values), sum((value - 0.6) ** 2 for value in values)


def optimize(library, sampler, objectives, trials):
    sampler = getattr(library.samplers, sampler)(seed=0)
    directions = ["minimize"] * objectives
    study = library.create_study(directions=directions, sampler=sampler)
    study.optimize(objective if objectives == 1 else two_objectives, n_trials=trials)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["optuna", "rustuna"])
    parser.add_argument("--sampler")
    parser.add_argument("--objectives", type=int)
    parser.add_argument("--trials", type=int)
    args = parser.parse_args()
    library = importlib.import_module(args.how)
    if args.how == "optuna":
        library.logging.set_verbosity(library.logging.ERROR)
    optimize(library, args.sampler, args.objectives, 60)  # imports
    begin_s = time.process_time()
    optimize(library, args.sampler, args.objectives, args.trials)
    print(json.dumps({"cpu_s": time.process_time() - begin_s}))


if __name__ == "__main__":
    main()
