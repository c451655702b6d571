"""A family of learning curves whose optimum is known, for simulated searches. Quiet.

    loss(r) = e + (1 - e) / (1 + s r),   e: how far the configuration is from the best one, s: how fast it learns

`e` is the largest of the distances of `x0`, `x1`, `x2` from their best values, on a circle of length 1 on which the
farthest point has distance 1: a share q of all configurations has e <= q ** (1 / 3), exactly. `s` is a hyperparameter
of its own, so curves cross: what is good in the end may look bad early. Sums, products and quotients alone: the same
bits on every machine.
"""

from collections.abc import Mapping
from typing import Any

from fanwise.tune.simulate import FunctionTable
from fanwise.tune.space import uniform

SLOWEST, FASTEST = 0.5, 4.0
BEST = {"x0": 0.3, "x1": 0.6, "x2": 0.9}


def loss_at(config: Mapping[str, Any], resource: int) -> float:  # Any: the floats of `uniform`
    """The loss of a configuration after so much training."""
    distance = 0.0
    for name, best in BEST.items():
        apart = abs(config[name] - best)
        distance = max(distance, 2.0 * min(apart, 1.0 - apart))
    return distance + (1.0 - distance) / (1.0 + float(config["speed"]) * resource)


def least_loss(max_resource: int) -> float:
    """The loss of the best configuration at the end of its training."""
    return 1.0 / (1.0 + FASTEST * max_resource)


def curves(max_resource: int, *, step_s: float = 1.0) -> FunctionTable:
    """The family as a table: trials report `loss` and `epoch` up to `max_resource`, every `step_s` virtual seconds."""

    def train(config: Mapping[str, object], epoch: int) -> tuple[dict[str, object], float]:
        return {"loss": loss_at(config, epoch)}, step_s

    space = {**dict.fromkeys(BEST, uniform(0, 1)), "speed": uniform(SLOWEST, FASTEST), "max_epochs": max_resource}
    return FunctionTable(train, space)
