"""Which searcher finds the largest hypervolume soonest, with two objectives and without learning curves.

    for each seed, problem, method:  simulate(...) with 4 workers  --a line a run-->  a file
    of all lines: hypervolume over the number of trials, mean ranks with bootstrap intervals  --> tables

Problems: ZDT1-4 and ZDT6 (Zitzler, Deb and Thiele, Evolutionary Computation 8(2), 2000), DTLZ2 (Deb, Thiele, Laumanns
and Zitzler, CEC 2002), the constrained problem SRN (Srinivas and Deb, 1994, as in Deb et al., NSGA-II, 2002), and error
and training time of two models on data sets of OpenML, by surrogates of YAHPO Gym (mixed, one with conditions).
Data sets whose surrogate has a front of one point, or one with an error of 0, are left out (28 and 40499 of xgboost).

The hypervolume is normalized: the reference point is the median of each objective over random configurations, and 1 is
the hypervolume of the known front or, for surrogates and SRN, of all runs in the file together. Finished runs are not
repeated, so it can be stopped at any time and continued. `--only "Optuna GP"` runs a slow method with fewer seeds and
trials; it is left out otherwise. The surrogates need shared/data beside the checkout, or BENCHMARK_DATA.

    python benchmarks/several_objectives.py [--seeds 10] [--processes 2] [--minutes 60] [--only METHOD ...] [--report]
"""

import argparse
import concurrent.futures
import json
import math
import multiprocessing
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measuring import RESULTS, finish, machine, quantile, say, table
from searchers_parts.regret import Duels
from searchers_parts.two_objectives import PROBLEMS, Config, Losses, Problem

from fanwise.tune import (
    FIFO,
    Space,
    StoppingCriterion,
    SuggestContext,
)
from fanwise.tune.core.actions import Answer
from fanwise.tune.core.events import Reported
from fanwise.tune.pareto import HypervolumeFront
from fanwise.tune.searchers import SEARCHERS, OptunaSearcher, Searcher
from fanwise.tune.simulate import FunctionTable, simulate

WORKERS = 4
BUDGETS = (20, 40, 70, 100)  # trials
SLOW = ("Optuna GP",)
SLOW_BUDGETS, SLOW_SEEDS = (20, 40), 3
METHODS: dict[str, Callable[[], Searcher]] = {
    **{name: SEARCHERS[name] for name in ("random", "sobol", "tpe", "forest")},
    "Optuna TPE (its default)": lambda: OptunaSearcher("TPESampler"),
    "Optuna NSGA-II": lambda: OptunaSearcher("NSGAIISampler"),
    "Optuna GP": lambda: OptunaSearcher("GPSampler", suggest_timeout_s=None),
}


def run_one(name: str, method: str, seed: int, num_trials: int) -> dict[str, Any]:
    """Run one search in a process of its own. The losses are in the order of the reports; infinite if infeasible."""
    problem = PROBLEMS[name]
    losses: list[Losses] = []

    def train(config: Config, epoch: int) -> tuple[dict[str, float], float]:
        limits = {name: function(config) for name, (function, _) in problem.constraints.items()}
        a, b = problem.losses(config)
        return {"a": a, "b": b, **limits}, 1 + 0.5 * zlib.crc32(repr(sorted(config.items())).encode()) / 2**32

    def collect(event: object, actions: Sequence[object]) -> None:
        if isinstance(event, Reported) and any(isinstance(action, Answer) for action in actions):
            values: Any = event.values
            feasible = all(values[name] <= bound for name, (_, bound) in problem.constraints.items())
            losses.append((values["a"], values["b"]) if feasible else (math.inf, math.inf))

    began_s = time.process_time()
    simulate(
        FIFO(
            METHODS[method](),
            metric=["a", "b"],
            constraints=[f"{name} <= {bound}" for name, (_, bound) in problem.constraints.items()],
        ),
        FunctionTable(train, {**problem.space, "max_epochs": 1}),
        StoppingCriterion(max_num_trials_completed=num_trials),
        n_workers=WORKERS,
        seed=seed,
        on_event=collect,
    )
    seconds = round(time.process_time() - began_s, 3)
    return {"problem": name, "method": method, "seed": seed, "seconds": seconds, "losses": losses[:num_trials]}


def run_all(args: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """Run what is missing, seed by seed, and append it to the file."""
    done = {(run["problem"], run["method"], run["seed"]) for run in runs}
    until_s = time.monotonic() + args.minutes * 60
    with concurrent.futures.ProcessPoolExecutor(args.processes, multiprocessing.get_context("spawn")) as pool:
        jobs = [
            pool.submit(run_until, until_s, name, method, seed, max(SLOW_BUDGETS if method in SLOW else BUDGETS))
            for seed in range(args.seeds)
            for name in PROBLEMS
            for method in METHODS
            if (method in args.only if args.only else method not in SLOW)
            and (method not in SLOW or seed < SLOW_SEEDS)
            and (name, method, seed) not in done
        ]
        for number, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            if (run := job.result()) is not None:
                with args.file.open("a") as file:
                    file.write(json.dumps(run) + "\n")
                runs.append(run)
                say(f"  {number}/{len(jobs)} {run['problem']}, {run['method']}, seed {run['seed']}: {run['seconds']} s")


def run_until(until_s: float, *search: Any) -> dict[str, Any] | None:
    return run_one(*search) if time.monotonic() < until_s else None


def reference_point(problem: Problem) -> Losses:
    """Return the median of each loss over 1,000 random configurations."""
    rng = SuggestContext(0, 0, Space(problem.space)).random
    return tuple(np.median([problem.losses(Space(problem.space).sample(rng)) for _ in range(1000)], axis=0).tolist())


def volumes(losses: Sequence[Losses], reference: Losses) -> list[float]:
    """Return the hypervolume after each trial."""
    front = HypervolumeFront(reference)
    return [front.volume for point in losses if front.add(point) or True]


def area(losses: Sequence[Losses], reference: Losses) -> float:
    """Return the hypervolume of many points with two losses."""
    total, lowest = 0.0, reference[1]
    for first, second in sorted(losses):
        if first < reference[0] and second < lowest:
            total += (reference[0] - first) * (lowest - second)
            lowest = second
    return total


def lost_volumes(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, int], list[float]]:
    """Return 1 - the normalized hypervolume after each trial, for each (problem, method, seed)."""
    lost = {}
    for name in {run["problem"] for run in runs}:
        problem, of_problem = PROBLEMS[name], [run for run in runs if run["problem"] == name]
        reference = reference_point(problem)
        best = [point for run in of_problem for point in run["losses"]]
        if problem.front is not None:
            best = [(first, problem.front(first)) for first in np.linspace(0.281 if name == "ZDT6" else 0, 1, 2000)]
        total = area(best, reference)
        for run in of_problem:
            volume = volumes(run["losses"], reference)
            lost[name, run["method"], run["seed"]] = [1 - each / total for each in volume]
    return lost


def tables(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    lost = lost_volumes(runs)
    shown = []
    for budgets in (BUDGETS, SLOW_BUDGETS):
        at = {
            key: np.array([of[budget - 1] for budget in budgets]) for key, of in lost.items() if len(of) >= budgets[-1]
        }
        names = [name for name in PROBLEMS if any(key[0] == name for key in at)]
        methods = [m for m in METHODS if all(any(key[:2] == (name, m) for key in at) for name in names)]
        ranks = Duels.between(at, names, methods).intervals()
        rows = []
        for method in sorted(methods, key=lambda method: ranks[method].mean):
            rank, of_method = ranks[method], [each for key, each in at.items() if key[1] == method]
            seconds = [run["seconds"] for run in runs if run["method"] == method]
            volume = [f"{1 - each:.3f}" for each in np.mean(of_method, axis=0)]
            rows.append([method, f"{rank.mean:.2f} ({rank.low:.2f}-{rank.high:.2f})", *volume])
            rows[-1] += [str(len(of_method)), f"{quantile(seconds, 0.5):.1f}"]
        header = [f"two objectives, to {budgets[-1]} trials", f"mean rank of {len(methods)} (95 % interval)"]
        shown.append(table([*header, *(f"hypervolume at {b}" for b in budgets), "runs", "median s a run"], rows))
        by_problem = [[m, *(f"{1 - _mean_at_end(at, name, m):.3f}" for name in names)] for m in methods]
        shown.append(table([f"hypervolume at {budgets[-1]}", *names], by_problem))
    return shown


def _mean_at_end(at: Mapping[tuple[str, str, int], Any], name: str, method: str) -> float:
    return float(np.mean([of[-1] for key, of in at.items() if key[:2] == (name, method)]))


def main() -> None:
    parser = argparse.ArgumentParser(description="hypervolume of searchers with two objectives")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after that")
    parser.add_argument("--only", action="append", default=[], metavar="METHOD", choices=list(METHODS))
    parser.add_argument("--report", action="store_true", help="run nothing: tables of what is in the file")
    parser.add_argument("--file", type=Path, default=RESULTS / "several_objectives.jsonl")
    args = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    facts = machine()
    args.file.parent.mkdir(parents=True, exist_ok=True)
    runs = [json.loads(line) for line in args.file.read_text().splitlines()] if args.file.exists() else []
    if not args.report:
        run_all(args, runs)
    finish("several_objectives", tables(runs), {"file": str(args.file), "runs": len(runs)}, facts=facts)


if __name__ == "__main__":
    main()
