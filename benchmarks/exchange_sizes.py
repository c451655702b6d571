"""Steps of two processes by the size of the model: gradients exchanged whole at one meeting, or in slices at two.

    in each round, for each size and optimizer: a run, whole --> ms a step, another, in slices --> ms a step

What a run does by itself changes where the sizes in both processes together pass `_ONE_SHOT_BYTES` of
`parallel/comm/shm_team.py`; here both are asked for. The batch is tiny: a step is mostly exchange and update.

    python benchmarks/exchange_sizes.py [--rounds 5]
"""

import argparse
import importlib
import statistics
import time
from functools import partial
from unittest.mock import patch

import torch
from measuring import finish, machine, say, spread, table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise
from fanwise.parallel import Run
from fanwise.parallel.comm.shared_memory import AllReduceKind
from fanwise.parallel.launch.settings import Settings

RUN = importlib.import_module("fanwise.parallel.run")  # the package has a function of this name

WIDTHS = (64, 256, 512, 768)
OPTIMIZERS = ("SGD", "Adam")
HOW: tuple[AllReduceKind, ...] = ("one-shot", "two-shot")
WARM_UP, STEPS = 10, 100


def model_of(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


def step_ms(width: int, optimizer: str, run: Run) -> float:
    """The median."""
    torch.manual_seed(0)
    model = model_of(width)
    step = run.step(model, getattr(torch.optim, optimizer)(model.parameters(), lr=0.001), losses)
    batch = (torch.randn(8, 64), torch.randint(0, 10, (8,)))
    took = []
    for _ in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        step(batch)
        took.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(took[WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found: dict[tuple[int, str, str], list[float]] = {}
    facts = machine()
    for number in range(args.rounds):
        say(f"round {number + 1} of {args.rounds}")
        for width in WIDTHS:
            for optimizer in OPTIMIZERS:
                for how in HOW if number % 2 else HOW[::-1]:
                    with patch.object(RUN, "Settings", partial(Settings, all_reduce=how)):
                        ms = fanwise.run(partial(step_ms, width, optimizer), devices=2, shards=2, progress=False)
                    found.setdefault((width, optimizer, how), []).append(ms)
    rows = []
    for width in WIDTHS:
        size_bytes = sum(param.numel() * param.element_size() for param in model_of(width).parameters())
        for optimizer in OPTIMIZERS:
            whole, slices = (spread(found[width, optimizer, how]) for how in HOW)
            name, ratio = f"{size_bytes / 1e6:.2f} MB, {optimizer}", f"{slices.median / whole.median:.2f}"
            rows.append([name, whole.shown(2), slices.shown(2), ratio])
    shown = table(["a step of two processes, ms", "whole", "in slices", "ratio of medians"], rows)
    finish("exchange_sizes", [shown], {f"{w} {o} {how}": ms for (w, o, how), ms in found.items()}, facts=facts)


if __name__ == "__main__":
    main()
