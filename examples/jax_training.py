"""Takes about 1 minute: a network in JAX that is trained with Optax, with early stopping by ASHA.

Every trial is a process of its own, so each compiles its step anew. `n_workers=2` gives each trial half of the cores,
or on a machine with GPUs a GPU, or an equal share of one. With Flax or Equinox only the model looks different.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fanwise.tune import ASHA, StoppingCriterion, Tuner, loguniform, randint, report

TRIALS = 12
MAX_EPOCHS = 27
BATCH_SIZE = 64
X_train, X_test, y_train, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)


def new_params(width: int) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0))
    return {
        "hidden": jax.random.normal(keys[0], (64, width)) * 64**-0.5,
        "output": jax.random.normal(keys[1], (width, 10)) * width**-0.5,
        "bias": jnp.zeros(10),
    }


def predict(params: dict[str, Any], x: jax.Array) -> jax.Array:
    return jax.nn.relu((x / 16) @ params["hidden"]) @ params["output"] + params["bias"]


def loss_of(params: dict[str, Any], x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, x), y).mean()


def train(learning_rate: float, momentum: float, width: int) -> None:
    params, optimizer = new_params(width), optax.sgd(learning_rate, momentum)
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(loss_of)(params, x, y), state)
        return optax.apply_updates(params, updates), state

    for epoch in range(1, MAX_EPOCHS + 1):
        rows = np.random.permutation(len(X_train))  # seeded by fanwise, for each trial anew
        for first in range(0, len(rows) - BATCH_SIZE + 1, BATCH_SIZE):
            batch = rows[first : first + BATCH_SIZE]
            params, state = step(params, state, X_train[batch], y_train[batch])
        report(epoch=epoch, error=float((predict(params, X_test).argmax(1) != y_test).mean()))


space = {"learning_rate": loguniform(1e-3, 1), "momentum": loguniform(0.1, 0.99), "width": randint(8, 128)}
scheduler = ASHA(metric="error", resource_attr="epoch", max_t=MAX_EPOCHS)
experiment = Tuner(train, space, scheduler, StoppingCriterion(max_num_trials_started=TRIALS), n_workers=2).run()
print(f"best: {experiment.best}")
