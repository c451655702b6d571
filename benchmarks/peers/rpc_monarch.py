# mypy: ignore-errors
# The reason: monarch lives in an environment of its own, which the type checker does not see.
"""Calls of an actor in Monarch 0.7: this process calls, an actor in a process of its own is the callee.

`call` is `actor.run.call_one(...).get()`, as its documentation has it. Functions and tensors go through Monarch's own
serialisation (cloudpickle), over its default transport within one host.
"""

import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

os.environ["PYTHONPATH"] = str(Path(__file__).parent)

import torch
from monarch.actor import Actor, endpoint, shutdown_context, this_host
from rpc_measures import serve


class Callee(Actor):
    def __init__(self):
        torch.set_num_threads(1)

    @endpoint
    def run(self, function, args):
        return function(*args)


@dataclass(frozen=True)
class Started:
    future: object

    def wait(self):
        return self.future.get()


@dataclass(frozen=True)
class Remote:
    actor: object

    def call(self, function, *args):
        return self.actor.run.call_one(function, args).get()

    def start(self, function, *args):
        return Started(self.actor.run.call_one(function, args))


def main():
    torch.set_num_threads(1)
    procs = this_host().spawn_procs(per_host={"callees": 1})
    serve(Remote(procs.spawn("callee", Callee)), version("torchmonarch"))
    procs.stop().get()
    shutdown_context().get()


if __name__ == "__main__":
    main()
