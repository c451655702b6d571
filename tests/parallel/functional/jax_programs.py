"""Trainings of JAX models, run as a program where JAX has not begun: what came of each, as JSON.

`equal`: fingerprints of a training on several devices, after a kill and a resume. `said`: what wrong programs hear.
"""

import functools
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch.utils.data import Dataset

import fanwise
from fanwise.parallel import Run

# N: samples, B: samples of a batch: shards of 3 and 2 samples, D: features
N, B, D = 30, 10, 784
X = np.random.default_rng(1).normal(size=(N, D)).astype("float32")
Y = np.arange(N) % 4  # int64, which JAX makes int32 of
Tree = Any  # Any: of arrays

np_random = np.random.default_rng(7)  # of the program, for a loss that is no function of its arguments


def fingerprint(*trees: Tree) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for leaf in jax.tree.leaves(trees):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


class Net(nn.Module):  # type: ignore[misc]  # flax is not looked into
    @nn.compact  # type: ignore[untyped-decorator]  # the same
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(512)(x))
        x = nn.Dropout(0.2, deterministic=not train)(nn.relu(x))
        out: jax.Array = nn.Dense(4)(x)
        return out


class Killing(Dataset[Any]):
    """A data set in memory. One process is killed while a shard is read, in the middle of a step."""

    def __init__(self, run: Run, is_on: bool) -> None:
        self._run = run
        self._is_on = is_on
        self.read = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Any, Any]:  # Any: arrays
        self.read += 1
        if self._is_on and self._run.world_size == 2 and self._run.rank == 1 and self.read == 18:
            os.kill(os.getpid(), signal.SIGKILL)
        return X[index], Y[index]


def flax_with_optax(run: Run, epochs: int = 2, kill: bool = False, save: str = "") -> tuple[str, float, list[str]]:
    """A network with batch normalisation, dropout and Adam; an int32 counter beside the statistics."""
    net = Net()
    made = jax.jit(net.init, static_argnums=2)(jax.random.key(run.seed), X[:1], False)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01))

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        changes, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, changes), state

    def loss_fn(params: Tree, buffers: Tree, x: jax.Array, y: jax.Array, key: Any) -> Any:
        logits, new = net.apply(
            {"params": params, "batch_stats": buffers["batch_stats"]},
            *(x, True),
            rngs={"dropout": key},
            mutable=["batch_stats"],
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return losses, {"batch_stats": new["batch_stats"], "steps": buffers["steps"] + 1}

    step = run.step(
        made["params"],
        update,
        loss_fn,
        state=optimizer.init(made["params"]),
        buffers={"batch_stats": made["batch_stats"], "steps": jnp.zeros((), jnp.int32)},
    )
    kinds = []
    for _ in run.epochs(epochs):
        for batch in run.batches(Killing(run, kill) if kill else (jnp.asarray(X), jnp.asarray(Y)), B):
            assert kill or isinstance(next(iter(batch)), jax.Array), "batches are of the engine of the data"
            loss = step(batch)
            kinds.append(type(loss).__name__)
        if save:
            run.save(save)

    @jax.jit
    def right(model: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        params, buffers = model
        logits: jax.Array = net.apply({"params": params, "batch_stats": buffers}, x, False)
        return logits.argmax(1) == y

    accuracy = run.mean(right, (step.params, step.buffers["batch_stats"]), (X, Y))
    assert int(step.buffers["steps"]) == step.batches
    return fingerprint(step.params, step.state, step.buffers), accuracy, kinds


def product_with_its_data_as_gradient() -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Made where it is used: such functions of JAX cannot be sent to another process."""

    def with_data(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return w * x, x

    def data_itself(x: jax.Array, _: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x, jnp.zeros_like(x)

    product = jax.custom_vjp(lambda w, x: w * x)
    product.defvjp(with_data, data_itself)
    return product


def gradient_that_is_an_argument(run: Run) -> str:
    """Each shard's gradient is its data, and not compiled the same array: what is added in place must be another."""
    data = jnp.asarray(X[:2])
    before = fingerprint(data)
    weights = {"w": jnp.ones((1, D)), "unused": jnp.ones(3)}
    product = product_with_its_data_as_gradient()

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        return jax.tree.map(lambda a, b: a - b, params, grads), grads

    step = run.step(weights, update, lambda p, x: product(p["w"], x).sum(1), state=weights)
    step((data,))
    with jax.disable_jit():
        step((data,))
    state, kept = step.state, fingerprint(step.state)
    step((2 * data,))
    assert fingerprint(data) == before and fingerprint(state) == kept
    assert bool((step.params["unused"] == 1).all())
    return fingerprint(step.params, step.state)


def dot(params: Tree, x: jax.Array) -> jax.Array:
    found: jax.Array = x @ params["w"]
    return found


def beside_a_plain_loop(run: Run) -> list[float]:
    """How far a step of 3, 3, 2 and 2 samples is from plain JAX on the whole batch: loss, parameters, buffers."""
    params, buffers = {"w": jnp.linspace(-1, 1, D)}, {"mean": jnp.zeros(())}
    data = jnp.asarray(X[:B]), jnp.asarray(Y[:B])

    def loss_fn(p: Tree, b: Tree, x: jax.Array, y: jax.Array) -> Any:
        return ((dot(p, x) - y) ** 2 * y, y), {"mean": b["mean"] + y.mean()}

    def mean(p: Tree) -> jax.Array:
        losses, weights = loss_fn(p, buffers, *data)[0]
        total: jax.Array = losses.sum() / weights.sum()
        return total

    step = run.step(params, plain, loss_fn, buffers=buffers)
    loss = step(data)
    expected, grads = jax.value_and_grad(mean)(params)
    found = (
        loss / expected - 1,
        step.params["w"] - (params["w"] - 0.1 * grads["w"]),
        step.buffers["mean"] - Y[:B].mean(),
    )
    return [float(jnp.abs(each).max()) for each in found]


# -- wrong programs ----------------------------------------------------------------------------------------------------


def plain(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), state


def heard(body: Callable[[], object]) -> str:
    try:
        body()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def wrong(run: Run) -> dict[str, str]:
    params, x = {"w": jnp.ones(D)}, (X[:8],)
    count = [0]

    def counting(p: Tree, x: jax.Array) -> jax.Array:
        count[0] += 1
        return dot(p, x) / count[0]

    def noisy(p: Tree, x: jax.Array) -> jax.Array:
        return dot(p, x + np_random.normal(size=x.shape).astype("float32"))

    def stepped(loss_fn: Any, update: Any = plain, params: Tree = params, **options: Any) -> Callable[[], object]:
        return lambda: run.step(params, update, loss_fn, **options)(x)

    transformation = optax.sgd(0.1)
    state = transformation.init(params)
    mixed = {"w": jnp.ones(D), "b": torch.ones(1)}
    return {
        "no arrays": heard(stepped(dot, params={"w": 3.0})),
        "a list": heard(stepped(dot, params=[])),
        "NumPy arrays": heard(stepped(dot, params={"w": np.ones(D)})),
        "two engines": heard(stepped(dot, params=mixed)),
        "whole numbers": heard(stepped(dot, params={"w": jnp.ones(D), "n": jnp.arange(3)})),
        "optax as it is": heard(stepped(dot, transformation, state=state)),
        "its update": heard(stepped(dot, transformation.update, state=state)),
        "chained": heard(stepped(dot, optax.chain(optax.clip(1.0), transformation).update, state=state)),
        "no pair": heard(stepped(dot, lambda g, s, p: p)),
        "another tree": heard(stepped(dot, lambda g, s, p: ([p["w"]], s))),
        "another shape": heard(stepped(dot, lambda g, s, p: ({"w": p["w"][:5]}, s))),
        "another state": heard(stepped(dot, lambda g, s, p: (p, {"t": p}), state={"m": params})),
        "one for two": heard(stepped(lambda p, x: dot(p, x)[:1])),
        "logits": heard(stepped(lambda p, x: (dot(p, x), x * 1.0))),
        "three": heard(stepped(lambda p, x: (dot(p, x), 1, 2))),
        "no buffers": heard(stepped(lambda p, b, x: dot(p, x), buffers={"n": jnp.zeros(2)})),
        "other buffers": heard(stepped(lambda p, b, x: (dot(p, x), {"n": b["n"][:1]}), buffers={"n": jnp.zeros(2)})),
        "parted": heard(
            stepped(lambda p, b, x: (dot(p, x), {"n": x.sum().astype(int)}), buffers={"n": jnp.zeros((), int)})
        ),
        "each its own key": heard(
            stepped(
                lambda p, b, x, key: (dot(p, x), {"n": jax.random.randint(key, (), 0, 10**6)}),
                buffers={"n": jnp.zeros((), int)},
            )
        ),
        "counter": heard(stepped(counting)),
        "noise": heard(stepped(noisy)),
        "clip_norm": heard(stepped(dot, clip_norm=1.0)),
        "texts": heard(lambda: run.step(params, plain, lambda p, x, t: dot(p, x))((X[:4], ["a", "b", "c", "d"]))),
        "nothing wrong": heard(stepped(dot)),
    }


def main(folder: Path) -> dict[str, Any]:
    path = str(folder / "run.pt")
    one = ["cpu"]
    train = flax_with_optax
    equal: dict[str, Any] = {
        "1 device": fanwise.run(functools.partial(train, save=path), devices=one),
        "3 devices of a process": fanwise.run(train, devices=one * 3, processes=1),
        "2 devices, a kill": fanwise.run(functools.partial(train, kill=True), devices=one * 2),
    }
    fanwise.run(functools.partial(train, epochs=1, save=path), devices=one * 3, processes=1)
    content = torch.load(path, weights_only=True)
    equal["resumed on 2 devices"] = fanwise.run(train, devices=one * 2, resume=path, verify=2)
    return {
        "equal": {name: each[:2] for name, each in equal.items()},
        "kinds": sorted({kind for each in equal.values() for kind in each[2]}),
        "argument": [
            fanwise.run(gradient_that_is_an_argument, devices=one, shards=2),
            fanwise.run(gradient_that_is_an_argument, devices=one * 2, shards=2),
        ],
        "beside": fanwise.run(beside_a_plain_loop, devices=one),
        "said": fanwise.run(wrong, devices=one),
        "threads": fanwise.run(heard_of_threads, devices=one, threads=2),
        "checkpoint": {name: sorted(content[name]) for name in ("model", "optimizer", "buffers", "step")},
    }


def heard_of_threads(run: Run) -> str:
    return heard(lambda: run.step({"w": jnp.ones(D)}, plain, dot))


if __name__ == "__main__":
    json.dump(main(Path.cwd()), sys.stdout)
