"""Problems with two losses: formulas with known fronts, a constrained one, and surrogates of trainings."""

import json
import math
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from trial_overhead import PEERS, environment

from fanwise.tune import choice, lograndint, loguniform, parameter, randint, uniform

from .tasks import DATA

Config = Mapping[str, Any]  # Any: the values of a configuration
Losses = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Two losses of a configuration, and the second loss of the known front at a first loss. None: unknown."""

    space: Mapping[str, object]
    losses: Callable[[Config], Losses]
    front: Callable[[float], float] | None = None
    # name -> (function, largest feasible value)
    constraints: Mapping[str, tuple[Callable[[Config], float], float]] = field(default_factory=dict)


def zdt(number: int, num_dims: int) -> Problem:
    def losses(config: Config) -> Losses:
        first, rest = config["x1"], np.array([config[f"x{d}"] for d in range(2, num_dims + 1)])
        if number == 4:
            g = 1 + 10 * len(rest) + float((rest**2 - 10 * np.cos(4 * math.pi * rest)).sum())
        elif number == 6:
            first = 1 - math.exp(-4 * first) * math.sin(6 * math.pi * first) ** 6
            g = 1 + 9 * float(rest.mean()) ** 0.25
        else:
            g = 1 + 9 * float(rest.mean())
        return first, g * shape(first / g, first)

    def shape(ratio: float, first: float) -> float:
        if number in (2, 6):
            return 1 - ratio**2
        return 1 - math.sqrt(ratio) - (ratio * math.sin(10 * math.pi * first) if number == 3 else 0.0)

    rest = uniform(-5, 5) if number == 4 else uniform(0, 1)
    space = {"x1": uniform(0, 1), **{f"x{d}": rest for d in range(2, num_dims + 1)}}
    return Problem(space, losses, lambda first: shape(first, first))


def dtlz2(config: Config) -> Losses:
    g = sum((config[f"x{d}"] - 0.5) ** 2 for d in range(2, 12))
    angle = config["x1"] * math.pi / 2
    return (1 + g) * math.cos(angle), (1 + g) * math.sin(angle)


def srn(config: Config) -> Losses:
    return (config["x"] - 2) ** 2 + (config["y"] - 1) ** 2 + 2, 9 * config["x"] - (config["y"] - 1) ** 2


IMPUTE = choice(["impute.mean", "impute.median", "impute.hist"])
RPART = {
    "cp": loguniform(math.exp(-7), 1),
    "maxdepth": randint(1, 30),
    "minbucket": randint(1, 100),
    "minsplit": randint(1, 100),
    "num.impute.selected.cpo": IMPUTE,
}
TREES, DART = {"booster": ["gbtree", "dart"]}, {"booster": "dart"}
XGBOOST = {
    "booster": choice(["gblinear", "gbtree", "dart"]),
    "nrounds": lograndint(7, 2981),
    "lambda": loguniform(math.exp(-7), math.exp(7)),
    "alpha": loguniform(math.exp(-7), math.exp(7)),
    "subsample": uniform(0.1, 1),
    "num.impute.selected.cpo": IMPUTE,
    "eta": parameter(loguniform(math.exp(-7), 1), when=TREES),
    "gamma": parameter(loguniform(math.exp(-10), math.exp(2)), when=TREES),
    "max_depth": parameter(randint(1, 15), when=TREES),
    "min_child_weight": parameter(loguniform(math.e, math.exp(5)), when=TREES),
    "colsample_bytree": parameter(uniform(0.01, 1), when=TREES),
    "colsample_bylevel": parameter(uniform(0.01, 1), when=TREES),
    "rate_drop": parameter(uniform(0, 1), when=DART),
    "skip_drop": parameter(uniform(0, 1), when=DART),
}


def surrogate(kind: str, task_id: str, space: Mapping[str, object]) -> Problem:
    """Error and seconds of training, by a process that starts with the first configuration and ends with this one."""
    processes: list[subprocess.Popen[str]] = []

    def losses(config: Config) -> Losses:
        if not processes:
            command = [str(environment("surrogates")), str(PEERS / "surrogates.py"), str(DATA / "yahpo" / kind)]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        stdin, stdout = processes[0].stdin, processes[0].stdout
        assert stdin is not None and stdout is not None
        given = {name: value for name, value in config.items() if name != "max_epochs"}
        stdin.write(json.dumps([{**given, "task_id": task_id, "trainsize": 1.0, "repl": 10}]) + "\n")
        stdin.flush()
        targets = json.loads(stdout.readline())[0]
        return 1 - targets[0], targets[6]

    return Problem(space, losses)


PROBLEMS = {
    **{f"ZDT{number}": zdt(number, num_dims) for number, num_dims in ((1, 30), (2, 30), (3, 30), (4, 10), (6, 10))},
    "DTLZ2": Problem({f"x{d}": uniform(0, 1) for d in range(1, 12)}, dtlz2, lambda first: math.sqrt(1 - first**2)),
    "SRN": Problem(
        {"x": uniform(-20, 20), "y": uniform(-20, 20)},
        srn,
        constraints={
            "circle": (lambda config: config["x"] ** 2 + config["y"] ** 2, 225),
            "line": (lambda config: config["x"] - 3 * config["y"], -10),
        },
    ),
    **{f"rpart {task_id}": surrogate("rbv2_rpart", task_id, RPART) for task_id in ("1476", "40499", "41163")},
    **{f"xgboost {task_id}": surrogate("rbv2_xgboost", task_id, XGBOOST) for task_id in ("12", "16", "1501")},
}
