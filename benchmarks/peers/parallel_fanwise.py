"""Training with fanwise.run; sums alone; launches; and a process that is killed.

    python parallel_fanwise.py --cpus 0                                one device
    python parallel_fanwise.py --cpus 0,1 [--shards 8] [--reduce fast] [--shared]     a process a CPU

Each block is a run of its own, in processes that are kept warm. The first run, before anything is measured, says
whether what was asked for can be had.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from parallel_measures import (
    BATCH_SIZE,
    ELEMENTS,
    WARM_UP_STEPS,
    Blocks,
    Figures,
    Measure,
    median_ms,
    pinned,
    problem,
    serve,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise
from fanwise.parallel import Batch, Run, Step
from fanwise.parallel.optim.sharded import StepOptimizer
from fanwise.parallel.step.gradients import Partial
from fanwise.parallel.step.tree import Node

MANY = 1 << 30
STEPS_BEFORE_KILL = 10


def losses(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(model(features), labels, reduction="none")


def endless(run: Run, features: Tensor, labels: Tensor) -> Iterator[Batch]:
    """Batches, epoch after epoch."""
    for _ in run.epochs(MANY):
        yield from run.batches((features, labels), BATCH_SIZE)


def seconds(run: Run, cpus: list[int], name: str, steps: int) -> float:
    """What so many steps of a model take, after some that warm up."""
    with pinned(cpus[run.rank : run.rank + 1], run.threads):
        made = problem(name)
        step = run.step(made.model, made.optimizer, losses)
        begun = time.perf_counter()
        for number, batch in enumerate(endless(run, made.features, made.labels), 1):
            step(batch)
            if number == WARM_UP_STEPS:
                begun = time.perf_counter()
            if number == WARM_UP_STEPS + steps:
                break
        return time.perf_counter() - begun


def sum_ms(run: Run, cpus: list[int], name: str, quick: bool, is_shared: bool) -> float:
    """What steps use to add gradients, alone: a mean over the processes, back in the memory where the terms were.

    With `is_shared` it is left in the memory that the processes share, where an optimizer of a step reads it.
    """
    with pinned(cpus[run.rank : run.rank + 1], run.threads):
        elements = torch.zeros(ELEMENTS[name])
        params = [nn.Parameter(elements)]
        whole = StepOptimizer(params, torch.optim.SGD(params), allow_slices=False)  # without an update: the sum itself
        sums = run._team.sums(params, whole)

        def once() -> None:
            brought = Partial([elements], torch.zeros(()), 1, 1, {})
            node = Node(run.rank, run.rank + 1, brought)

            def add() -> list[Tensor | None]:
                sums.reduce("adds", [node], run.world_size, mean=True)
                return sums.gather_grads()

            [mean] = run._team.together(add)
            assert mean is not None, "every process brought a term"
            if not is_shared:
                elements.copy_(mean)

        return median_ms(once, quick)


def first_step(run: Run) -> float:
    """When the first step of a tiny model was done, on the clock that all processes of a machine share."""
    model = nn.Linear(4, 2)
    step = run.step(model, torch.optim.SGD(model.parameters(), lr=0.1), losses)
    for batch in run.batches((torch.randn(64, 4), torch.zeros(64, dtype=torch.int64)), 64):
        step(batch)
    return time.monotonic()


def ends_after_kill(run: Run, cpus: list[int], note: Path) -> list[float]:
    """Kill rank 1 in the middle of a step, once, and note when; when the steps of rank 0 were done."""
    with pinned(cpus[run.rank : run.rank + 1], run.threads):
        made = problem("LeNet")
        steps: list[Step] = []

        def deadly(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
            if run.rank == 1 and steps[0].batches == STEPS_BEFORE_KILL and not note.exists():
                note.write_text(repr(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            return losses(model, features, labels)

        steps.append(run.step(made.model, made.optimizer, deadly))
        ends = []
        for batch in endless(run, made.features, made.labels):
            steps[0](batch)
            ends.append(time.monotonic())
            if len(ends) == 2 * STEPS_BEFORE_KILL:
                break
        return ends


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to run. `is_shared`: sums alone stay where they are made."""

    cpus: list[int]
    shards: int | Literal["devices"]
    reduce: Literal["exact", "fast"]
    is_shared: bool

    def seconds(self, name: str, steps: int) -> float:
        train = partial(seconds, cpus=self.cpus, name=name, steps=steps)
        return fanwise.run(train, devices=len(self.cpus), shards=self.shards, reduce=self.reduce)

    def allreduce(self, name: str, quick: bool) -> Figures:
        train = partial(sum_ms, cpus=self.cpus, name=name, quick=quick, is_shared=self.is_shared)
        return {"ms": fanwise.run(train, devices=len(self.cpus), shards=self.shards, reduce=self.reduce)}

    def launch(self) -> Figures:
        begun = time.monotonic()
        done = fanwise.run(first_step, devices=len(self.cpus), shards=self.shards, reduce=self.reduce)
        return {"s": done - begun}

    def recovery(self) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            note = Path(folder) / "killed"
            train = partial(ends_after_kill, cpus=self.cpus, note=note)
            ends = fanwise.run(train, devices=len(self.cpus), shards=self.shards)
            killed = float(note.read_text())
        # Not the first end after it: rank 0 may still have been in the step before, which all had already committed.
        return {"s": ends[STEPS_BEFORE_KILL] - killed}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpus", required=True)
    parser.add_argument("--shards", type=int, help="by default one a process")
    parser.add_argument("--reduce", default="exact")
    parser.add_argument("--shared", action="store_true", help="a sum alone is not copied back")
    args = parser.parse_args()
    cpus = [int(each) for each in args.cpus.split(",")]
    contestant = Contestant(cpus, args.shards or "devices", args.reduce, args.shared)
    try:
        cold = contestant.launch()
    except Exception as reason:
        sys.exit(f"{type(reason).__name__}: {reason}".splitlines()[0])
    measures: dict[str, Measure] = Blocks(contestant.seconds).all()
    for name in ELEMENTS:
        measures[name] = lambda quick, name=name: contestant.allreduce(name, quick)  # type: ignore[misc]
    measures["cold launch"] = lambda quick: cold
    measures["launch"] = lambda quick: contestant.launch()
    measures["recovery"] = lambda quick: contestant.recovery()
    serve(measures, fanwise.__version__)


if __name__ == "__main__":
    main()
