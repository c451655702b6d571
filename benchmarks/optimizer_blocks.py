"""Updates of 45 MB of parameters on one thread: torch's optimizers as they are beside the same ones in blocks.

    in each round, for each optimizer: optimizer.step() --> ms, the same update block by block --> ms

The two take turns on parameters and gradients of the same shapes, those of the network of `parallel.py`. What a run of
`fanwise.run` does on one CPU device is the second.

    python benchmarks/optimizer_blocks.py [--rounds 15]
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from measuring import finish, machine, say, spread, table
from torch import nn

from fanwise.parallel.optimizers.blocked import BlockedStep

HIDDEN = 2976
SHAPES = ((HIDDEN, 784), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (10, HIDDEN), (10,))
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Any]] = {  # Any: an optimizer
    "SGD, momentum": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.01),
}


def updates(make: Callable[[list[nn.Parameter]], Any], *, in_blocks: bool) -> Callable[[], float]:  # Any: as above
    """What an update takes, ms. The first, which makes the state, has been done."""
    params = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    grads = [torch.randn(shape) for shape in SHAPES]
    optimizer = make(params)
    step = BlockedStep(optimizer).step if in_blocks else optimizer.step

    def once() -> float:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        begun = time.perf_counter()
        step()
        return (time.perf_counter() - begun) * 1e3

    once()
    return once


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine()
    rows, payload = [], {}
    for name, make in OPTIMIZERS.items():
        say(name)
        both = updates(make, in_blocks=False), updates(make, in_blocks=True)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(args.rounds):
            for call, found in zip(both, times, strict=True):
                found.append(call())
        whole, cut = map(spread, times)
        rows.append([name, whole.shown(), cut.shown(), f"{whole.median / cut.median:.2f}"])
        payload[name] = {"whole": times[0], "blocks": times[1]}
    shown = table(["an update of 45 MB, ms", "torch", "in blocks", "ratio of medians"], rows)
    finish("optimizer_blocks", [shown], payload, facts=facts)


if __name__ == "__main__":
    main()
