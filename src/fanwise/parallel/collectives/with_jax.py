"""JAX arrays in the collectives: constants, so every result is a new array."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ...tensor import device_of, to_device


def refusal(x: jax.Array) -> str:
    if isinstance(x, jax.core.Tracer):
        return "is being traced and lies on no device: call this outside of jit, grad and vmap (there: jax.lax.psum)"
    return ""


def why_fixed(x: jax.Array) -> str:
    return ""


def span(x: jax.Array) -> None:
    return None


def dtype(x: jax.Array) -> str:
    return str(x.dtype)


def near(x: jax.Array, like: jax.Array) -> jax.Array:
    moved: jax.Array = to_device(x, device_of(like))
    return moved


copied = near  # nobody can write to either


def added(x: jax.Array, y: jax.Array) -> jax.Array:
    return x + y


def stored(x: jax.Array, value: jax.Array) -> jax.Array:
    return near(value, x)


def slices(x: jax.Array, ranges: Sequence[range]) -> list[jax.Array]:
    flat = x.reshape(-1)
    return [jax.lax.slice(flat, (part.start,), (part.stop,)) for part in ranges]


def rebuilt(x: jax.Array, slices: list[jax.Array]) -> jax.Array:
    assert sum(len(part) for part in slices) == math.prod(x.shape), "the slices are those of x"
    return jnp.concatenate(slices).reshape(x.shape)


def rows(x: jax.Array, ranges: Sequence[range]) -> list[jax.Array]:
    return [x[part.start : part.stop] for part in ranges]


def joined(parts: list[jax.Array]) -> jax.Array:
    return jnp.concatenate(parts)


def replica(x: jax.Array, device: str) -> jax.Array:
    # A copy, although nobody can write to it: memory that is donated to a compiled function is gone.
    return jnp.copy(to_device(x, device))


def placed(x: jax.Array, device: str) -> jax.Array:
    moved: jax.Array = to_device(x, device)
    return moved
