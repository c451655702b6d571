"""What it costs to draw a value of each domain, a configuration, and the generator they are drawn with.

CPU time of one thread, in microseconds; the smallest of many rounds, because whatever else the machine does adds to it.

    python benchmarks/drawing.py [--rounds 60]
"""

import argparse
import random
import time
import timeit
from collections.abc import Callable

from measuring import finish, machine, table

from fanwise.tune import (
    Space,
    choice,
    finrange,
    logfinrange,
    logordinal,
    lograndint,
    loguniform,
    parameter,
    qlograndint,
    quniform,
    randint,
    reverseloguniform,
    uniform,
)
from fanwise.tune.rng import KeyedRandom
from fanwise.tune.space import Domain

CHANCE = KeyedRandom("benchmark")
UNITS = [CHANCE.random() for _ in range(500)]
DOMAINS: list[Domain] = [
    uniform(0, 1),
    loguniform(1e-4, 1),
    reverseloguniform(0.9, 0.999),
    randint(32, 256),
    lograndint(1, 1000),
    quniform(0, 1, 0.1),
    qlograndint(8, 1024, 8),
    finrange(0.1, 1, 10),
    logfinrange(1e-3, 1, 4),
    logordinal([8, 64, 512]),
    choice(["a", "b", "c", "d", "e"]),
]
BOOK = Space({"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256), "max_epochs": 10})
TREE = Space(
    {
        "optimizer": choice(["sgd", "adam"]),
        "momentum": parameter(uniform(0, 0.99), when={"optimizer": "sgd"}),
        "learning_rate": parameter(loguniform(1e-4, 1), prior=0.1),
    }
)


def smallest_us(work: Callable[[float], object], values: list[float], rounds: int) -> float:
    """CPU time of one call."""
    timed = timeit.repeat(lambda: [work(value) for value in values], number=1, repeat=rounds, timer=time.thread_time)
    return min(timed) / len(values) * 1e6


def drawn(generator: Callable[[str], KeyedRandom | random.Random], count: int) -> Callable[[float], object]:
    return lambda _: [draw() for draw in [generator("7/suggest/17").random] * count]


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of draws")
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    facts = machine()
    taken_us = {
        **{f"{domain!r}.from_unit": smallest_us(domain.from_unit, UNITS, rounds) for domain in DOMAINS},
        "a configuration of the book's space": smallest_us(lambda _: BOOK.sample(CHANCE), UNITS, rounds),
        "one with a condition": smallest_us(lambda _: TREE.sample(CHANCE), UNITS, rounds),
    }
    for count in (1, 3, 8):
        taken_us[f"KeyedRandom(text), {count} draws"] = smallest_us(drawn(KeyedRandom, count), UNITS, rounds)
        taken_us[f"random.Random(text), {count} draws"] = smallest_us(drawn(random.Random, count), UNITS, rounds)
    rows = [[name, f"{taken:.2f}"] for name, taken in taken_us.items()]
    finish("drawing", [table(["what", "us of CPU"], rows)], {"us": taken_us}, facts=facts)


if __name__ == "__main__":
    main()
