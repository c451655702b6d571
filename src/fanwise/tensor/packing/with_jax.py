"""Trees of JAX arrays in one buffer.

Both ways are compiled, once for each layout: cut out one by one, leaves cost 50 us each.
"""

import functools
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from .layout import PackedLeaf, PackSpec, as_python, gaps

_Leaves = tuple[PackedLeaf, ...]


def gathered(leaves: list[Any], spec: PackSpec, out: object) -> jax.Array:  # Any: arrays and numbers
    if out is not None:
        _refuse()
    dtype = jnp.dtype(spec.dtype)
    if jnp.zeros(0, jax.dtypes.canonicalize_dtype(dtype)).dtype != dtype:
        raise ValueError(
            f"JAX is set to 32 bits, and a buffer of {spec.dtype} is asked for; "
            f"call jax.config.update('jax_enable_x64', True) first, or give another dtype"
        )
    arrays = [leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf, dtype) for leaf in leaves]
    buffer: jax.Array = _gathered(arrays, spec.leaves, spec.size, spec.dtype)
    return buffer


def taken_out(buffer: jax.Array, leaves: _Leaves) -> list[Any]:
    parts: list[jax.Array] = _taken_out(buffer, leaves)
    if isinstance(buffer, jax.core.Tracer):
        return parts
    return [
        as_python(part.item(), leaf.number) if leaf.number else part for part, leaf in zip(parts, leaves, strict=True)
    ]


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _gathered(arrays: list[jax.Array], leaves: _Leaves, size: int, dtype: str) -> jax.Array:
    parts = [jnp.zeros(0, dtype)]
    for array, gap in zip(arrays, gaps(leaves, size), strict=True):
        parts += [array.reshape(-1).astype(dtype), jnp.zeros(gap, dtype)]
    return jnp.concatenate(parts)


@functools.partial(jax.jit, static_argnums=1)
def _taken_out(buffer: jax.Array, leaves: _Leaves) -> list[jax.Array]:
    return [
        jax.lax.slice(buffer, (leaf.offset,), (leaf.offset + leaf.size,))
        .reshape(leaf.shape)
        .astype(buffer.dtype if leaf.number else leaf.dtype)
        for leaf in leaves
    ]


def _refuse() -> NoReturn:
    raise ValueError("arrays of JAX cannot be written to: leave out= away; inside jit, donated memory is used again")
