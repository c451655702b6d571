"""Cells of JAX: an array, replaced by another one."""

from typing import Any

import jax

from ..indexing import with_jax
from ..indexing.places import How


def held(x: jax.Array, copy: bool) -> jax.Array:
    return _without_gradient(x)


def value(holder: jax.Array) -> jax.Array:
    return holder


def read(holder: jax.Array, index: Any) -> jax.Array:  # Any, here and below: an index or a value of `at`
    return with_jax.read(holder, index)


def write(holder: jax.Array, index: Any, value: Any, how: How) -> jax.Array:
    new = with_jax.changed(holder, index, value, how)
    # What is traced is no value, and the cell would keep it after the function has been traced.
    if isinstance(new, jax.core.Tracer) and not isinstance(holder, jax.core.Tracer):
        raise TypeError(
            "a State of known numbers cannot be written to in a function that JAX traces (jit, grad, vmap): "
            "give its value to the function, and write what the function returns"
        )
    return _without_gradient(new)


def _without_gradient(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x) if isinstance(x, jax.core.Tracer) else x
