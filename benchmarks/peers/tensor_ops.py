"""What a library costs over torch's own functions, by operation: one JSON line {"version": ..., "us": {op: [...]}}.

    python tensor_ops.py array_api_compat|autoray|keras|fanwise ROUNDS

Raw and wrapped calls take turns in blocks of a fraction of a millisecond; a sample, one a round, is the difference of
their quickest blocks, in microseconds a call: what other programs took of the machine is in the slower ones.
Only torch and the library are needed.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import torch

# Any throughout: functions of other libraries.

CALLS = 200
BLOCKS = 25


def arguments() -> dict[str, tuple[Any, ...]]:
    """Sixteen elements, so that what is measured is the way to the operation."""
    x, y, m = torch.rand(16), torch.rand(16), torch.rand(4, 4)
    return {
        "exp": (x,),
        "add": (x, y),
        "sum": (x,),
        "matmul": (m, m),
        "reshape": (x, (4, 4)),
        "concat": ([x, y],),
        "where": (x > 0.5, x, y),
        "clip": (x, 0.2, 0.8),
        "zeros": ((4, 4),),
    }


def raw() -> dict[str, Callable[..., Any]]:
    """As one writes it with torch alone."""
    return {
        "exp": torch.exp,
        "add": torch.add,
        "sum": torch.sum,
        "matmul": torch.matmul,
        "reshape": torch.reshape,
        "concat": torch.cat,
        "where": torch.where,
        "clip": torch.clip,
        "zeros": torch.zeros,
    }


def of_array_api_compat() -> Mapping[str, Callable[..., Any]]:
    import array_api_compat.torch as xp

    return {name: getattr(xp, name) for name in raw()}


def of_autoray() -> Mapping[str, Callable[..., Any]]:
    from autoray import do

    names = {"concat": "concatenate"}

    def through(name: str) -> Callable[..., Any]:
        if name == "zeros":
            return lambda shape: do("zeros", shape, like="torch")
        return lambda *args: do(name, *args)

    return {name: through(names.get(name, name)) for name in raw()}


def of_keras() -> Mapping[str, Callable[..., Any]]:
    os.environ["KERAS_BACKEND"] = "torch"
    from keras import ops

    names = {"concat": "concatenate"}
    return {name: getattr(ops, names.get(name, name)) for name in raw()}


def of_fanwise() -> Mapping[str, Callable[..., Any]]:
    import fanwise.tensor as ft

    return {name: getattr(ft, name) for name in raw()}


def of_namespace() -> Mapping[str, Callable[..., Any]]:
    from fanwise.tensor import namespace

    return {name: getattr(namespace("torch"), name) for name in raw()}


LIBRARIES: dict[str, tuple[str, Callable[[], Mapping[str, Callable[..., Any]]]]] = {
    "fanwise": ("fanwise", of_fanwise),
    "namespace": ("fanwise", of_namespace),
    "array_api_compat": ("array_api_compat", of_array_api_compat),
    "autoray": ("autoray", of_autoray),
    "keras": ("keras", of_keras),
}


def time_a_call(f: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Microseconds, of one block."""
    begun = time.perf_counter()
    for _ in range(CALLS):
        f(*args)
    return (time.perf_counter() - begun) / CALLS * 1e6


def overheads(functions: Mapping[str, Callable[..., Any]], rounds: int) -> dict[str, list[float]]:
    """By operation, a difference a round."""
    found: dict[str, list[float]] = {name: [] for name in raw()}
    for number in range(rounds + 1):
        for name, args in arguments().items():
            pairs = [(time_a_call(raw()[name], args), time_a_call(functions[name], args)) for _ in range(BLOCKS)]
            if number:  # the first round warms up
                found[name].append(min(wrapped for _, wrapped in pairs) - min(plain for plain, _ in pairs))
    return found


def main() -> None:
    name, rounds = sys.argv[1], int(sys.argv[2])
    package, make = LIBRARIES[name]
    torch.set_num_threads(1)
    try:
        number = version(package)
    except Exception:
        number = ""
    print(json.dumps({"version": number, "us": overheads(make(), rounds)}))


if __name__ == "__main__":
    main()
