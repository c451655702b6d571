"""Functions of models and losses: those of jax.nn and jax.numpy."""

import jax
import jax.numpy as jnp

from .namespace import take_along_axis


def softmax(x: jax.Array, axis: int) -> jax.Array:
    return jax.nn.softmax(x, axis)


def log_softmax(x: jax.Array, axis: int) -> jax.Array:
    return jax.nn.log_softmax(x, axis)


def logsumexp(x: jax.Array, axes: tuple[int, ...], keepdims: bool) -> jax.Array:
    return jax.nn.logsumexp(x, axis=axes, keepdims=keepdims)


def relu(x: jax.Array) -> jax.Array:
    return jax.nn.relu(x)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    # What counts from the end elsewhere is no class: it is put where nothing is.
    wanted = jnp.where(labels < 0, logits.shape[-1], labels.astype(jnp.int32))
    return -take_along_axis(jax.nn.log_softmax(logits), wanted[..., None], axis=-1)[..., 0]


def einsum(subscripts: str, arrays: list[jax.Array]) -> jax.Array:
    return jnp.einsum(subscripts, *arrays)
