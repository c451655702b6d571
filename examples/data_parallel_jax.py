"""Takes about 30 seconds: a flax network with optax, trained on 1 and 2 devices, with the same result bit for bit."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import fanwise as fw
from fanwise.parallel import Run
from fanwise.zoo import digits

DEVICES = (1, 2)  # each a process with one thread
BATCH_SIZE, LR = 64, 0.003
EPOCHS = 10
data = digits(8).standardised()
# Numbers of NumPy: JAX begins in the run, with the threads of a device.
train_set = data.train_images.flatten(1).numpy(), data.train_labels.numpy()
test_set = data.test_images.flatten(1).numpy(), data.test_labels.numpy()
optimizer = optax.adamw(LR)


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not is_training)(nn.Dense(128)(x))
        x = nn.Dropout(0.1, deterministic=not is_training)(nn.relu(x))
        return nn.Dense(10)(x)


network = Network()


def losses(params: Any, stats: Any, x: jax.Array, y: jax.Array, key: Any) -> Any:
    """One loss for each sample, and what batch normalisation makes of its statistics. key: of this shard."""
    logits, new = network.apply(
        {"params": params, "batch_stats": stats}, x, True, rngs={"dropout": key}, mutable=["batch_stats"]
    )
    return optax.softmax_cross_entropy_with_integer_labels(logits, y), new["batch_stats"]


def update(grads: Any, state: Any, params: Any) -> Any:
    changes, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, changes), state


@jax.jit
def is_right(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return network.apply({"params": model[0], "batch_stats": model[1]}, x, False).argmax(1) == y


def train(run: Run) -> tuple[Any, float]:
    made = jax.jit(network.init, static_argnums=2)(jax.random.key(run.seed), jnp.zeros((1, 64)), False)
    params, stats = made["params"], made["batch_stats"]
    step = run.step(params, update, losses, state=optimizer.init(params), buffers=stats)
    start_s = time.perf_counter()
    for epoch in run.epochs(EPOCHS):
        for batch in run.batches(train_set, BATCH_SIZE):
            step(batch)
        run.report(epoch=epoch, accuracy=run.mean(is_right, (step.params, step.buffers), test_set))
    accuracy = run.rows[-1]["accuracy"]
    seconds = (time.perf_counter() - start_s) / EPOCHS
    run.print(f"test acc: {accuracy:.2f}, {seconds:.1f} sec/epoch in {run.world_size} processes")
    return jax.tree.map(np.asarray, (step.params, step.buffers)), accuracy


if __name__ == "__main__":
    trees = [fw.run(train, devices=["cpu"] * devices)[0] for devices in DEVICES]
    one, two = map(jax.tree.leaves, trees)
    print("same bits:", all(np.array_equal(a, b) for a, b in zip(one, two, strict=True)))
