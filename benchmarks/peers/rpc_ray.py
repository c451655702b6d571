# mypy: ignore-errors
# The reason: ray lives in an environment of its own, which the type checker does not see.
"""Calls of an actor in Ray 2.60: this process calls, the actor is the callee.

`call` is `ray.get(actor.run.remote(...))`, as its documentation has it. Tensors go through Ray's own serialisation, big
ones through its store in shared memory. The dashboard is off and nothing is logged, which is in Ray's favour.
"""

import os
from dataclasses import dataclass
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["PYTHONPATH"] = str(Path(__file__).parent)

import ray
import torch
from rpc_measures import serve


class Callee:
    def __init__(self):
        torch.set_num_threads(1)

    def run(self, function, args):
        return function(*args)


@dataclass(frozen=True)
class Started:
    reference: object

    def wait(self):
        return ray.get(self.reference)


@dataclass(frozen=True)
class Actor:
    actor: object

    def call(self, function, *args):
        return ray.get(self.actor.run.remote(function, args))

    def start(self, function, *args):
        return Started(self.actor.run.remote(function, args))


def main():
    torch.set_num_threads(1)
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    serve(Actor(ray.remote(Callee).options(num_cpus=1).remote()), ray.__version__)
    ray.shutdown()


if __name__ == "__main__":
    main()
