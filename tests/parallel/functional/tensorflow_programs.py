"""Trainings of TensorFlow models, run as a program where TensorFlow has not begun: what came of each, as JSON.

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

import keras
import numpy as np
import tensorflow as tf
import torch

import fanwise
from fanwise.parallel import Run

# N: samples, B: samples of a batch: shards of 3 and 2 samples, D: features
N, B, D = 30, 10, 6
IMAGES = np.random.default_rng(1).normal(size=(N, 10, 10, 3)).astype("float32")
Y = np.arange(N) % 4
X = IMAGES.reshape(N, -1)[:, :D].copy()
Tree = Any  # Any: of tensors


def fingerprint(*trees: Tree) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for leaf in tf.nest.flatten(trees):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def values(variables: Any) -> list[Any]:  # Any: of Keras
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def momentum(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    state = [0.9 * old + grad for old, grad in zip(state, grads, strict=True)]
    return [param - 0.05 * step for param, step in zip(params, state, strict=True)], state


def keras_model(run: Run, epochs: int = 2, kill: bool = False, save: str = "") -> tuple[str, float]:
    """A convolutional network with batch normalisation, noise in its input and a weight for each sample."""
    model = keras.Sequential([keras.Input((10, 10, 3)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()])
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(4))

    def loss_fn(params: Tree, buffers: Tree, x: Any, y: Any, key: Any) -> Any:
        noise = tf.random.stateless_normal(tf.shape(x), seed=key)
        logits, buffers = model.stateless_call(params, buffers, x + 0.1 * noise, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        weights = tf.cast(1 + y, tf.float32)
        return (losses * weights, weights), buffers

    params = values(model.trainable_variables)
    start = [tf.zeros_like(param) for param in params]
    step = run.step(params, momentum, loss_fn, state=start, buffers=values(model.non_trainable_variables))
    batches = 0
    for _ in run.epochs(epochs):
        for batch in run.batches((tf.constant(IMAGES), tf.constant(Y)), B):
            assert isinstance(next(iter(batch)), tf.Tensor), "batches are of the engine of the data"
            batches += 1
            if kill and batches == 5 and run.world_size == 2 and run.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            assert isinstance(step(batch), tf.Tensor)
        if save:
            run.save(save)

    def right(params: Tree, x: Any, y: Any) -> Any:
        logits, _ = model.stateless_call(params, step.buffers, x, training=False)
        return tf.argmax(logits, 1) == y

    accuracy = run.mean(right, step.params, (IMAGES, Y))
    return fingerprint(step.params, step.state, step.buffers), accuracy


# -- wrong programs ----------------------------------------------------------------------------------------------------


def plain(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    return {name: param - 0.1 * grads[name] for name, param in params.items()}, state


def dot(params: Tree, x: Any) -> Any:
    return tf.linalg.matvec(x, params["w"])


def heard(body: Callable[[], object]) -> str:
    try:
        body()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def wrong(run: Run) -> dict[str, str]:
    params, x = {"w": tf.ones(D)}, (X[:8],)
    count, total = [0], tf.Variable(0.0)

    def counting(p: Tree, x: Any) -> Any:
        count[0] += 1
        return dot(p, x) / count[0]

    def assigning(p: Tree, x: Any) -> Any:
        total.assign_add(tf.reduce_sum(x))
        return dot(p, x)

    def stepped(loss_fn: Any, update: Any = plain, params: Tree = params, **options: Any) -> Callable[[], object]:
        return lambda: run.step(params, update, loss_fn, **options)(x)

    return {
        "variables": heard(stepped(dot, params={"w": tf.Variable(tf.ones(D))})),
        "NumPy arrays": heard(stepped(dot, params={"w": np.ones(D)})),
        "another tree": heard(stepped(dot, lambda g, s, p: ([p["w"]], s))),
        "no pair": heard(stepped(dot, lambda g, s, p: p)),
        "one for two": heard(stepped(lambda p, x: dot(p, x)[:1])),
        "random": heard(stepped(lambda p, x: dot(p, tf.nn.dropout(x, 0.5)))),
        "assigns": heard(stepped(assigning)),
        "counter": heard(stepped(counting)),
        "nothing wrong": heard(stepped(dot)),
    }


def main(folder: Path) -> dict[str, Any]:
    path = str(folder / "run.pt")
    one, train = ["cpu"], keras_model
    equal = {
        "1 device": fanwise.run(train, devices=one),
        "3 devices of a process": fanwise.run(functools.partial(train, save=path), devices=one * 3, processes=1),
        "2 devices, a kill": fanwise.run(functools.partial(train, kill=True), devices=one * 2),
    }
    fanwise.run(functools.partial(train, epochs=1, save=path), devices=one * 3, processes=1)
    content = torch.load(path, weights_only=True)
    equal["resumed on 2 devices"] = fanwise.run(train, devices=one * 2, resume=path, verify=2)
    return {
        "equal": equal,
        "said": fanwise.run(wrong, devices=one),
        "threads": fanwise.run(lambda run: heard(lambda: run.step({"w": tf.ones(D)}, plain, dot)), threads=2),
        "checkpoint": sorted(content["model"]),
    }


if __name__ == "__main__":
    json.dump(main(Path.cwd()), sys.stdout)
