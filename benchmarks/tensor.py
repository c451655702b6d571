"""What the tensor layer costs: over the raw engine, beside array-api-compat, autoray and keras.ops; and its own parts.

    a function of fanwise.tensor           over torch's own, 16 elements: each library in a process of its own
    engine_of, convert, at, State, Key     a call
    value_and_grad                         over the same gradient written by hand, a linear model with two leaves
    to_wire and from_wire                  64 MB there and back, and how much of it was copied
    import fanwise.tensor                  beyond its dependencies

Blocks of raw and wrapped calls take turns; a sample, one a round, is the difference of the quickest of each: the rest
is what other programs took of the machine. autoray lives in `.bench-envs/tensor`, made by `--install`.

    python benchmarks/tensor.py [--rounds 5] [--install]
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import numpy as np
import tensorflow as tf
import torch
from measuring import Spread, finish, machine, say, spread, table
from trial_overhead import ENVIRONMENTS, PEERS, environment

import fanwise.tensor as ft

# Any throughout: arrays of all engines, and functions of theirs.

Call = Callable[[], Any]
Row = tuple[str, str, Spread]

LIBRARIES = ["fanwise", "namespace", "array_api_compat", "autoray", "keras"]
TITLES = {
    "fanwise": "fanwise.tensor.f(x)",
    "namespace": "namespace('torch').f(x)",
    "array_api_compat": "array-api-compat",
    "autoray": "autoray do",
    "keras": "keras.ops on torch",
}
WIRE_BYTES = 64_000_000


def block_us(call: Call, calls: int) -> float:
    """Microseconds a call, of one block: short, so that many end before another program gets the core."""
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls * 1e6


def measured(call: Call, rounds: int, *, over: Call | None = None, calls: int = 20, blocks: int = 150) -> Spread:
    """A call's microseconds, or what it takes more than `over`."""
    call()
    samples = []
    for _ in range(rounds):
        pairs = [(block_us(over, calls) if over else 0.0, block_us(call, calls)) for _ in range(blocks)]
        samples.append(min(wrapped for _, wrapped in pairs) - min(raw for raw, _ in pairs))
    return spread(samples)


# -- beside other libraries ----------------------------------------------------------------------------------------


def of_library(name: str, rounds: int) -> dict[str, Any] | None:
    """What its program prints; None when its environment is not there."""
    python: str | Path = sys.executable
    if name == "autoray":
        python = ENVIRONMENTS / "tensor" / "bin" / "python"
        if not python.exists():
            say("autoray is left out: run with --install once")
            return None
    say(f"{TITLES[name]} ...")
    command = [str(python), str(PEERS / "tensor_ops.py"), name, str(rounds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def beside_others(rounds: int) -> tuple[str, dict[str, Any]]:
    found = {name: result for name in LIBRARIES if (result := of_library(name, rounds)) is not None}
    operations = list(next(iter(found.values()))["us"])
    rows = [
        [operation, *(spread(result["us"][operation]).shown(2) for result in found.values())]
        for operation in operations
    ]
    header = ["us over torch", *(f"{TITLES[name]} {result['version']}".strip() for name, result in found.items())]
    return table(header, rows), found


# -- our own parts -------------------------------------------------------------------------------------------------


def of_gradients(rounds: int) -> list[list[str]]:
    """value_and_grad of a linear model's mean square, over the same by hand."""
    x, y = np.random.rand(8, 4).astype(np.float32), np.random.rand(8, 1).astype(np.float32)
    w, b = np.random.rand(4, 1).astype(np.float32), np.zeros((), np.float32)

    def loss(params: Any, x: Any, y: Any) -> Any:
        error = x @ params["w"] + params["b"] - y
        return (error * error).mean() if not isinstance(error, tf.Tensor) else tf.reduce_mean(error * error)

    def made(engine: str) -> tuple[Any, Any, Any]:
        arrays = [ft.convert(array, engine, copy=True) for array in (w, b, x, y)]
        return {"w": arrays[0], "b": arrays[1]}, arrays[2], arrays[3]

    params, features, labels = made("torch")

    def by_hand_torch() -> Any:
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        value = loss(leaves, features, labels)
        return value.detach(), torch.autograd.grad(value, list(leaves.values()))

    ours, ours_compiled = ft.value_and_grad(loss), ft.jit(ft.value_and_grad(loss))
    jax_arguments, tf_arguments = made("jax"), made("tensorflow")
    plain_jax = jax.value_and_grad(loss)
    by_hand_jax = jax.jit(plain_jax)

    def in_tensorflow(params: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(params)
            value = loss(params, x, y)
        return value, tape.gradient(value, params)

    ways: list[tuple[str, Call, Call]] = [
        ("torch", lambda: ours(params, features, labels), by_hand_torch),
        ("jax", lambda: ours(*jax_arguments), lambda: plain_jax(*jax_arguments)),
        ("tensorflow", lambda: ours(*tf_arguments), lambda: in_tensorflow(*tf_arguments)),
        ("jax, jit", lambda: ours_compiled(*jax_arguments), lambda: by_hand_jax(*jax_arguments)),
    ]
    return [
        [
            f"value_and_grad, {engine}",
            f"by hand{', compiled' if 'jit' in engine else ''}, {measured(by_hand, 1).shown(0)} us",
            measured(call, rounds, over=by_hand).shown(2),
        ]
        for engine, call, by_hand in ways
    ]


def of_calls(rounds: int) -> list[list[str]]:
    x = torch.rand(16)
    arrays = {engine: ft.convert(np.zeros(1024, "float32"), engine, copy=True) for engine in ENGINES}
    pool = ft.namespace("torch")
    state, key = ft.State(torch.zeros(16)), ft.Key(0)

    def set_ours() -> Any:
        return ft.at(x)[3].set(1.0)

    def set_raw() -> Any:
        y = x.clone()
        y[3] = 1.0
        return y

    def write_raw() -> None:
        x[3] = 1.0

    def write_state() -> None:
        state[3] = 1.0

    def concat() -> Any:
        return pool.concat([x, x])

    def million() -> Any:
        return ft.normal(key, (1_000_000,))

    def convert(source: str, target: str) -> Call:
        return lambda: ft.convert(arrays[source], target)

    rows: list[Row] = [
        ("engine_of", "an empty call", measured(lambda: ft.engine_of(x), rounds, over=lambda: None)),
        ("namespace.exp", "torch.exp", measured(lambda: pool.exp(x), rounds, over=lambda: torch.exp(x))),
        ("ft.exp(x)", "namespace.exp", measured(lambda: ft.exp(x), rounds, over=lambda: pool.exp(x))),
        ("ft.add(x, x)", "namespace.add", measured(lambda: ft.add(x, x), rounds, over=lambda: pool.add(x, x))),
        ("ft.concat([x, x])", "namespace.concat", measured(lambda: ft.concat([x, x]), rounds, over=concat)),
        ("ft.zeros(16)", "namespace.zeros", measured(lambda: ft.zeros(16), rounds, over=lambda: pool.zeros(16))),
        ("at(x)[3].set(1.0)", "x.clone(), then x[3] = 1.0", measured(set_ours, rounds, over=set_raw)),
        ("State: s[3] = 1.0", "x[3] = 1.0", measured(write_state, rounds, over=write_raw)),
        ("Key.fold_in", "", measured(lambda: key.fold_in(7), rounds)),
        ("16 normals", "", measured(lambda: ft.normal(key, (16,)), rounds)),
        ("1,000,000 normals, ms", "", _in_ms(measured(million, rounds, calls=1, blocks=15))),
    ]
    pairs = [(source, target) for source in ENGINES for target in ENGINES if source != target]
    rows += [(f"convert 4 kB, {one} to {other}", "", measured(convert(one, other), rounds)) for one, other in pairs]
    return [[what, over, found.shown(2)] for what, over, found in rows]


def _in_ms(found: Spread) -> Spread:
    return Spread(found.median / 1e3, found.least / 1e3, found.greatest / 1e3)


def of_wire(rounds: int) -> list[list[str]]:
    """Encode and decode in one process, so nothing but our own work is in it."""
    rows = []
    for engine in ENGINES:
        x = ft.convert(np.zeros(WIRE_BYTES // 4, "float32"), engine, copy=True)
        header, (memory,) = ft.to_wire(x)
        received = ft.aligned_buffer(memory.nbytes)
        found = measured(functools.partial(ft.to_wire, x), rounds)
        back = measured(functools.partial(ft.from_wire, header, [received]), rounds)
        shares = np.shares_memory(np.frombuffer(memory, np.uint8), ft.to_numpy(x).reshape(-1).view(np.uint8))
        copied = (
            0
            if shares and ft.same_memory(ft.from_wire(header, [received]), np.frombuffer(received, np.float32))
            else 64
        )
        rows.append([f"64 MB of {engine} to wire and back", f"{copied} MB copied", f"{found.median + back.median:.1f}"])
    return rows


def of_import(rounds: int) -> list[list[str]]:
    """A fresh interpreter each time."""
    code = (
        "import sys, time; {0}; a = time.perf_counter(); import fanwise.tensor; print((time.perf_counter() - a) * 1e3)"
    )
    before = "import ast, contextlib, ctypes, dataclasses, hashlib, importlib.util, inspect, linecache, mmap, traceback"
    samples = [
        float(
            subprocess.run(
                [sys.executable, "-c", code.format(before)], check=True, capture_output=True, text=True
            ).stdout
        )
        for _ in range(max(10, rounds))
    ]
    return [["import fanwise.tensor, ms", "the standard library's parts", spread(samples).shown(1)]]


ENGINES = ["numpy", "torch", "jax", "tensorflow"]


def main() -> None:
    parser = argparse.ArgumentParser(description="what fanwise.tensor costs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--install", action="store_true", help="make the environment of autoray (downloads)")
    args = parser.parse_args()
    facts = machine()
    if args.install:
        environment("tensor")
    torch.set_num_threads(1)
    others, found = beside_others(args.rounds)
    parts: Sequence[Callable[[int], list[list[str]]]] = (of_calls, of_gradients, of_wire, of_import)
    rows = [row for part in parts for row in part(args.rounds)]
    versions = f"torch {torch.__version__}, jax {jax.__version__}, tensorflow {tf.__version__}, numpy {np.__version__}"
    facts["engines"] = versions
    own = table(["what", "over", "us"], rows)
    finish("tensor", [others, own], {"others": found, "own": rows}, facts=facts)


if __name__ == "__main__":
    main()
