"""Which searcher finds the best configuration soonest in spaces with conditions: on three formulas, simulated.

The tables of benchmarks/searchers.py have none. Formulas cannot stand for trainings, so read no more out of this than
an order of searchers: what they have in common with trainings is which hyperparameter exists beside which.

    python benchmarks/searchers_conditional.py [--seeds 10] [--processes 2]
"""

import argparse
import math
import multiprocessing
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from measuring import finish, machine, table

from fanwise.tune import FIFO, StoppingCriterion, choice, lograndint, loguniform, parameter, randint, uniform
from fanwise.tune.searchers import SEARCHERS
from fanwise.tune.simulate import FunctionTable, simulate

BUDGETS = (10, 20, 40, 70, 100)
WORKERS = 4
NOISE = 0.01
Config = Mapping[str, Any]  # Any: the values of a configuration


@dataclass(frozen=True, slots=True)
class Problem:
    """A loss of a configuration, where it is searched, and the least that there is without noise."""

    loss: Callable[[Config], float]
    space: Config
    best: float


def optimizers(config: Config) -> float:
    """Three optimizers, two of them with a setting of their own."""
    rate = math.log10(config["lr"])
    if config["optimizer"] == "sgd":
        return float((rate + 1) ** 2 / 4 + 4 * (config["momentum"] - 0.9) ** 2 + 0.02)
    if config["optimizer"] == "adam":
        return float((rate + 3) ** 2 / 4 + (config["beta"] - 0.3) ** 2)
    return (rate + 2) ** 2 / 4 + 0.1


def layers(config: Config) -> float:
    """One to four layers, each with a width; more layers are better."""
    depth = config["depth"]
    wrong = [math.log10(config[f"width_{i}"] / 2 ** (9 - i)) ** 2 for i in range(1, depth + 1)]
    return float(0.1 * (4 - depth) + sum(wrong) / depth + 0.2 * (math.log10(config["lr"]) + 2.5) ** 2)


def models(config: Config) -> float:
    """Three kinds of models; one has a setting that exists beside one value of another setting."""
    if config["kind"] == "svm":
        kernel = 0.05 * (math.log10(config["gamma"]) + 2) ** 2 if config["kernel"] == "rbf" else 0.1
        return float(0.15 + 0.05 * (math.log10(config["c"]) - 1) ** 2 + kernel)
    if config["kind"] == "forest":
        return float(0.12 + ((config["leaves"] - 12) / 20) ** 2 + 0.5 * (config["features"] - 0.4) ** 2)
    wrong = 0.1 * (math.log10(config["eta"]) + 1) ** 2 + ((config["max_depth"] - 5) / 10) ** 2
    return float(0.08 + wrong + 0.3 * (config["rows"] - 0.8) ** 2)


def _widths() -> Config:
    width = lograndint(4, 1024)
    deeper = {f"width_{i}": parameter(width, when={"depth": list(range(i, 5))}) for i in range(2, 5)}
    return {"width_1": width, **deeper}


PROBLEMS = {
    "optimizers": Problem(
        optimizers,
        {
            "optimizer": choice(["sgd", "adam", "rmsprop"]),
            "lr": loguniform(1e-5, 1),
            "momentum": parameter(uniform(0, 1), when={"optimizer": "sgd"}),
            "beta": parameter(uniform(0, 1), when={"optimizer": "adam"}),
        },
        0.0,
    ),
    "layers": Problem(layers, {"depth": choice([1, 2, 3, 4]), "lr": loguniform(1e-5, 1), **_widths()}, 0.0),
    "models": Problem(
        models,
        {
            "kind": choice(["svm", "forest", "boosting"]),
            "c": parameter(loguniform(1e-3, 1e3), when={"kind": "svm"}),
            "kernel": parameter(choice(["rbf", "linear"]), when={"kind": "svm"}),
            "gamma": parameter(loguniform(1e-5, 10), when={"kernel": "rbf"}),
            "leaves": parameter(randint(2, 40), when={"kind": "forest"}),
            "features": parameter(uniform(0.05, 1), when={"kind": "forest"}),
            "eta": parameter(loguniform(1e-3, 1), when={"kind": "boosting"}),
            "max_depth": parameter(randint(2, 15), when={"kind": "boosting"}),
            "rows": parameter(uniform(0.3, 1), when={"kind": "boosting"}),
        },
        0.08,
    ),
}
NAMES = ("random", "gp", "forest", "tpe")


def gaps(problem: str, name: str, seed: int) -> list[float]:
    """How far the best trial is from the best there is, after each budget of trials."""
    of = PROBLEMS[problem]

    def train(config: Config, epoch: int) -> tuple[Config, float]:
        # The same configuration comes out the same again.
        noise = zlib.crc32(repr(sorted(config.items())).encode()) / 2**32
        return {"loss": of.loss(config) + NOISE * noise}, 1.0

    found = simulate(
        FIFO(SEARCHERS[name](), metric="loss"),
        FunctionTable(train, {**of.space, "max_epochs": 1}),
        StoppingCriterion(max_num_trials_completed=BUDGETS[-1]),
        n_workers=WORKERS,
        seed=seed,
    ).incumbents
    ends_s = [budget / WORKERS + 0.5 for budget in BUDGETS]
    return [min(one.value for one in found if one.time_s <= end_s) - of.best for end_s in ends_s]


def main() -> None:
    parser = argparse.ArgumentParser(description="searchers in spaces with conditions, on formulas")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # a searcher's linear algebra is small, and processes run side by side
    facts = machine()
    asked = [(problem, name, seed) for seed in range(args.seeds) for problem in PROBLEMS for name in NAMES]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        gap_PMSB = np.array(pool.starmap(gaps, asked, chunksize=1))  # problems, methods, seeds, budgets
    shape = (args.seeds, len(PROBLEMS), len(NAMES), len(BUDGETS))
    gap_PMSB = gap_PMSB.reshape(shape).transpose(1, 2, 0, 3)
    worse = gap_PMSB[:, :, None] - gap_PMSB[:, None]
    rank_PMSB = ((np.sign(worse) + 1) / 2).sum(axis=2) + 0.5
    rows = [
        [name, f"{rank_PMSB[:, m].mean():.2f}", *(f"{gap:.4f}" for gap in gap_PMSB[:, m].mean(axis=(0, 1)))]
        for m, name in enumerate(NAMES)
    ]
    header = ["spaces with conditions", f"mean rank of {len(NAMES)}", *(f"gap after {budget}" for budget in BUDGETS)]
    by_problem = [
        [name, *(f"{gap_PMSB[p, m, :, -1].mean():.4f}" for p in range(len(PROBLEMS)))] for m, name in enumerate(NAMES)
    ]
    shown = [table(header, rows), table([f"gap after {BUDGETS[-1]}", *PROBLEMS], by_problem)]
    finish("searchers_conditional", shown, {"seeds": args.seeds, "gap_PMSB": gap_PMSB.tolist()}, facts=facts)


if __name__ == "__main__":
    main()
