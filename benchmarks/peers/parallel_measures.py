"""What benchmarks/parallel.py trains and exchanges, written once for all contestants, and how their programs answer.

    parallel.py --{"measure": NAME, "quick": BOOL}, a line on stdin--> peer program --{"figures": {...}}, a line--> it

A block is some untimed steps and then as many as take about two seconds. Every contestant reads the same data in the
same way, whole tensors by a permutation of their rows, with the same global batch; in each of two processes half of it.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fanwise.zoo import LeNet

BATCH_SIZE = 256
SAMPLES = 16 * BATCH_SIZE
WARM_UP_STEPS = 4
FEWEST_STEPS = 5
HIDDEN = 2976  # 784-2976-2976-10: 11.2 million parameters
ELEMENTS = {"allreduce 45 MB": 11_250_000, "allreduce 0.5 MB": 125_000}

Figures = dict[str, float]
Measure = Callable[[bool], Figures]


def mlp() -> nn.Module:
    """45 MB of gradients, and little to compute for them."""
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(784, HIDDEN), nn.ReLU()),
        *(nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
        nn.Linear(HIDDEN, 10),
    )


MODELS: Mapping[str, Callable[[], nn.Module]] = {"LeNet": LeNet, "MLP": mlp}


@dataclass(frozen=True, slots=True)
class Problem:
    """A model with its optimizer, and what it is trained on."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    features: Tensor
    labels: Tensor


def problem(name: str) -> Problem:
    """The same weights and data wherever it is made."""
    torch.manual_seed(0)
    model = MODELS[name]()
    features = torch.randn(SAMPLES, 1, 28, 28)
    return Problem(model, torch.optim.SGD(model.parameters(), lr=0.01), features, torch.randint(0, 10, (SAMPLES,)))


def stream(made: Problem, part: slice) -> Iterator[tuple[Tensor, Tensor]]:
    """This part of each global batch, epoch after epoch."""
    order = torch.Generator().manual_seed(1)
    while True:
        rows = torch.randperm(SAMPLES, generator=order)
        for start in range(0, SAMPLES, BATCH_SIZE):
            chosen = rows[start : start + BATCH_SIZE][part]
            yield made.features[chosen], made.labels[chosen]


def part_of(rank: int, processes: int) -> slice:
    """What of a global batch a process has."""
    size = BATCH_SIZE // processes
    return slice(rank * size, (rank + 1) * size)


class Loop:
    """The plain loop of one process. `model`: as it is called, in a wrapper perhaps."""

    def __init__(self, made: Problem, part: slice, model: nn.Module) -> None:
        self._model = model
        self._optimizer = made.optimizer
        self._stream = stream(made, part)

    def step(self) -> None:
        features, labels = next(self._stream)
        self._optimizer.zero_grad()
        cross_entropy(self._model(features), labels).backward()  # type: ignore[no-untyped-call]  # torch's
        self._optimizer.step()

    def seconds(self, steps: int) -> float:
        """What so many steps take, after some that warm up."""
        for _ in range(WARM_UP_STEPS):
            self.step()
        begun = time.perf_counter()
        for _ in range(steps):
            self.step()
        return time.perf_counter() - begun


class Blocks:
    """Measures in blocks. `seconds(name, steps)`: what so many steps of this model take, warmed up."""

    def __init__(self, seconds: Callable[[str, int], float]) -> None:
        self._seconds = seconds
        self._steps: dict[str, int] = {}

    def measure(self, name: str, quick: bool) -> Figures:
        if name not in self._steps:
            a_step_s = self._seconds(name, FEWEST_STEPS) / FEWEST_STEPS
            self._steps[name] = max(FEWEST_STEPS, round((0.3 if quick else 2.0) / a_step_s))
        steps = self._steps[name]
        return {"steps/s": steps / self._seconds(name, steps)}

    def all(self) -> dict[str, Measure]:
        """A measure for each model."""
        return {name: lambda quick, name=name: self.measure(name, quick) for name in MODELS}  # type: ignore[misc]


def median_ms(call: Callable[[], object], quick: bool) -> float:
    """Of a call that all processes make; so often that it takes about a second."""
    for _ in range(3):
        call()
    times = []
    for _ in range(8 if quick else 40):
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times)


@contextmanager
def pinned(cpus: Sequence[int], threads: int) -> Iterator[None]:
    """This thread, and those that it starts, on these CPUs; with so many threads in an operator."""
    cpus_before, threads_before = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, cpus)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)
        os.sched_setaffinity(0, cpus_before)


def serve(measures: Mapping[str, Measure], version: str) -> None:
    """Say that we are ready, then measure what is asked for, until the end of the input."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not an answer
    print(json.dumps({"ready": version}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({"figures": measures[asked["measure"]](asked["quick"])}), file=out, flush=True)
