"""What a suggestion costs with 100, 1,000 and 10,000 finished trials, for each searcher that has a name; and memory.

Four trials run at a time in a space of seven hyperparameters. Most trials are told only, as if somebody else had chosen
them; for the last of each number the searcher is asked, and these questions are timed. It is processor time of one
thread: on a core that has nothing else to do a suggestion takes as long. Each searcher has a process of its own.

    python benchmarks/suggestion_time.py [--only forest ...]
"""

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Sequence

from measuring import finish, machine, peak_mib, quantile, table

from fanwise.tune import Observation, Searcher, Space, SuggestContext, choice, loguniform, randint, uniform
from fanwise.tune.searchers import SEARCHERS

SPACE = Space(
    {
        "learning_rate": loguniform(1e-4, 1),
        "weight_decay": loguniform(1e-6, 1e-1),
        "momentum": uniform(0, 1),
        "dropout": uniform(0, 1),
        "depth": randint(1, 8),
        "width": randint(16, 512),
        "activation": choice(["relu", "tanh", "gelu"]),
    }
)
SIZES = (100, 1000, 10_000)
ASKED = 400  # so many suggestions are timed at each size, at most a fifth of it
SLOW = {"bayesopt": ((100,), 20)}
WORKERS = 4


def measured(name: str) -> list[tuple[int, list[float], float]]:
    """(finished trials, milliseconds of each suggestion, peak MiB so far) at each size. In a process of its own."""
    play(name, (60,), 20)  # loads libraries
    return play(name, *SLOW.get(name, (SIZES, ASKED)))


def play(name: str, sizes: Sequence[int], most: int) -> list[tuple[int, list[float], float]]:
    """As `measured`, with at most so many questions at each size."""
    searcher = SEARCHERS[name]()
    searcher.begin(SPACE, 0)
    found = []
    running: dict[int, dict[str, object]] = {}
    number = 0
    for size in sizes:
        taken_ms: list[float] = []
        while number < size:
            ask = SuggestContext(number, number, SPACE, pending=dict(running))
            if number < size - min(most, size // 5):
                running[number] = SPACE.sample(ask.random)
            else:
                began_s = time.process_time()
                config = searcher.suggest(ask)
                taken_ms.append((time.process_time() - began_s) * 1e3)
                assert config is not None, "the space has more configurations than that"
                running[number] = dict(config)
            number += 1
            if len(running) == WORKERS:
                _end(searcher, min(running), running)
        found.append((size, taken_ms, peak_mib()))
    return found


def _end(searcher: Searcher, trial_id: int, running: dict[int, dict[str, object]]) -> None:
    config = running.pop(trial_id)
    rate, momentum = config["learning_rate"], config["momentum"]
    assert isinstance(rate, float) and isinstance(momentum, float)
    loss = (math.log10(rate) + 2) ** 2 + (momentum - 0.9) ** 2 + 1e-3 * (trial_id * 7919 % 101)
    searcher.observe(Observation(trial_id, config, 1, 1.0, (loss,), {"loss": loss}))
    searcher.on_end(trial_id, "Completed")


def main() -> None:
    parser = argparse.ArgumentParser(description="processor time of a suggestion")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=list(SEARCHERS))
    args = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    facts = machine()
    names = args.only or [name for name in SEARCHERS if name != "grid"]  # whose grid has an end
    rows, raw = [], {}
    for name in names:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(measured, (name,))
        raw[name] = found
        rows += [
            [name, f"{size:,}", f"{quantile(ms, 0.5):.2f}", f"{quantile(ms, 0.99):.1f}", f"{mib:.0f}"]
            for size, ms, mib in found
        ]
    finish(
        "suggestion_time",
        [table(["a suggestion", "finished trials", "median ms", "p99 ms", "peak MiB"], rows)],
        {"found": raw},
        facts=facts,
    )


if __name__ == "__main__":
    main()
