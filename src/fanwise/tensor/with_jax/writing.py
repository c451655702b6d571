"""Arrays of JAX with some elements changed: `x.at`, with everything checked first that JAX would clamp or skip.

An index is checked on the host when it is known there. Operations that JAX can differentiate only where no place is
named twice are done by reading, computing and setting when that is known to be so, and by a choice under a mask.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from ..adapters import How
from ..indexing.host import (
    Index,
    check_broadcast,
    is_basic,
    last_of_each,
    names_twice,
    parts_of,
    positions,
    selected_shape,
)

_OPS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "min": jnp.minimum,
    "max": jnp.maximum,
}


def changed(x: jax.Array, index: Index, value: Any, how: How) -> jax.Array:  # Any, here and below: a number or an array
    index, known = _looked_at(index)
    if isinstance(value, jax.Array):
        value = value.astype(x.dtype)
    else:
        value = jnp.asarray(value, x.dtype)
    if not known and _is_mask(index) and not value.ndim:
        return _masked(x, index, value, how)
    place = _checked(x.shape, index, known)
    if place is not None:
        check_broadcast(value.shape, place)
    if how == "set" and known and value.ndim and not is_basic(index):
        found = positions(x.shape, index)
        if (last := last_of_each(found)) is not None:  # JAX leaves open which value is written last
            value = jnp.broadcast_to(value, found.shape).reshape(-1)[last]
            return x.reshape(-1).at[found.reshape(-1)[last]].set(value).reshape(x.shape)
    if how == "set":
        return x.at[index].set(value)
    if how == "add":
        return x.at[index].add(value)
    if how == "subtract":
        return x.at[index].add(-value)
    if is_basic(index) or (known and not names_twice(positions(x.shape, index))):
        return x.at[index].set(_OPS[how](x[index], value))
    updated: jax.Array = getattr(x.at[index], how)(value)
    return updated


def write(x: jax.Array, index: Index, value: Any, how: How) -> NoReturn:
    raise ValueError("copy=False asks to write into the array, and arrays of JAX cannot be changed; leave copy out")


def read(x: jax.Array, index: Index) -> jax.Array:
    index, known = _looked_at(index)
    _checked(x.shape, index, known)
    part: jax.Array = x[index]
    return part


def _is_mask(index: Index) -> bool:
    return isinstance(index, jax.Array) and index.dtype == jnp.bool_


def _masked(x: jax.Array, mask: jax.Array, value: jax.Array, how: How) -> jax.Array:
    """One number where a mask is true; the mask may be traced, for the shapes do not depend on it."""
    if mask.shape != x.shape[: mask.ndim]:
        raise IndexError(f"a mask of shape {mask.shape} does not fit the first axes of an array of shape {x.shape}")
    mask = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
    return jnp.where(mask, value if how == "set" else _OPS[how](x, value), x)


def _looked_at(index: Index) -> tuple[Index, bool]:
    """The index with lists and arrays whose numbers are known as arrays of numpy; whether that is all of it."""
    parts = [np.asarray(part) if _is_known(part) else part for part in parts_of(index)]
    known = not any(isinstance(part, jax.core.Tracer) for part in parts)
    return tuple(parts) if isinstance(index, tuple) else parts[0], known


def _is_known(part: Any) -> bool:
    return isinstance(part, (list, jax.Array)) and not isinstance(part, jax.core.Tracer)


def _checked(shape: tuple[int, ...], index: Index, known: bool) -> tuple[int, ...] | None:
    """The shape of the place, None where a mask is traced. Integers that are traced are taken to be in range."""
    if known:
        return selected_shape(shape, index)
    traced = [part for part in parts_of(index) if isinstance(part, jax.core.Tracer)]
    if any(part.dtype == jnp.bool_ for part in traced) or 0 in shape:
        return None
    parts = [np.zeros(part.shape, int) if isinstance(part, jax.core.Tracer) else part for part in parts_of(index)]
    return selected_shape(shape, tuple(parts))


def new_variable(x: jax.Array, copy: bool) -> jax.Array:
    return _without_gradient(x)


def value_of(variable: jax.Array) -> jax.Array:
    return variable


def assign(variable: jax.Array, index: Index, value: Any, how: How) -> jax.Array:
    """Another array, which is the variable from now on."""
    new = changed(variable, index, value, how)
    # What is traced is no value, and the variable would keep it after the function has been traced.
    if isinstance(new, jax.core.Tracer) and not isinstance(variable, jax.core.Tracer):
        raise TypeError(
            "a State of known numbers cannot be written to in a function that JAX traces (jit, grad, vmap): "
            "give its value to the function, and write what the function returns"
        )
    return _without_gradient(new)


def _without_gradient(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x) if isinstance(x, jax.core.Tracer) else x
